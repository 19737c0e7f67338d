//! Tokens, callbacks, paths and methods: what a live controller answers.

use std::time::Duration;

use garm_sim::{Authorization, Instance, InstanceSpec, Sim, SimOptions};
use serde_json::json;

use crate::client::{Ask, get, post};
use crate::metadata::metadata;

const AUTHENTICATION_FAILED: &str = "{\"error\":\"Authentication failed\",\"details\":\"\"}\n";
fn sim() -> Sim {
    Sim::start(SimOptions::default())
}

fn status(sim: &Sim, instance: &Instance, body: &str) -> Ask {
    post(&format!("{}/status", sim.callback_url()), body).bearer(&instance.token())
}

fn body_of(status: &str) -> String {
    json!({"status": status, "message": "m"}).to_string()
}

#[test]
fn a_token_is_refused_for_every_reason_that_garm_has() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    let path = format!("{}/runner-metadata", sim.metadata_url());
    let claims = |extra: serde_json::Value| {
        let mut claims = json!({"name": one.name(), "create_attempt": 0, "exp": 4_000_000_000_u64});
        claims.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        sim.sign(&claims)
    };
    let ask = |value: &str| get(&path).header("Authorization", value);
    let good = one.token();
    for (value, status) in [
        (format!("Bearer {good}"), 200),
        (format!("bearer {good}"), 200),
        (format!("Token {good}"), 200),
        (format!("Bearer  {good}"), 401),
        (good.clone(), 401),
        (format!("Bearer {good} x"), 401),
        (format!("Bearer {good}x"), 401),
        ("Bearer junk".to_owned(), 401),
        (format!("Bearer {}", claims(json!({}))), 200),
        (format!("Bearer {}", claims(json!({"id": "other"}))), 200),
        (format!("Bearer {}", claims(json!({"exp": 1}))), 401),
        (format!("Bearer {}", claims(json!({"nbf": 4_000_000_000_u64}))), 401),
        (format!("Bearer {}", claims(json!({"is_agent": true}))), 401),
        (format!("Bearer {}", claims(json!({"create_attempt": 1}))), 401),
        (format!("Bearer {}", claims(json!({"name": "nobody"}))), 401),
    ] {
        let answer = ask(&value).send().unwrap();
        assert_eq!(answer.status, status, "{value}");
        if status == 401 {
            assert_eq!(answer.text(), AUTHENTICATION_FAILED);
            assert_eq!(answer.body.len(), 47);
        }
    }
    assert_eq!(get(&path).status(), 401);
    for (machine, wanted) in
        [("error", 401), ("creating", 200), ("pending_delete", 401), ("running", 200)]
    {
        one.set_status(machine);
        assert_eq!(metadata(&sim, &one, "runner-metadata").status(), wanted, "{machine}");
    }
    for (runner, wanted) in [
        ("installing", 200),
        ("idle", 401),
        ("active", 401),
        ("offline", 401),
        ("failed", 401),
        ("terminated", 401),
        ("pending", 200),
    ] {
        one.set_runner_status(runner);
        assert_eq!(metadata(&sim, &one, "runner-metadata").status(), wanted, "{runner}");
    }
    let old = one.token();
    let new = one.requeue();
    assert_eq!(get(&path).bearer(&old).status(), 401);
    assert_eq!(get(&path).bearer(&new).status(), 200);
    one.delete();
    assert_eq!(get(&path).bearer(&new).status(), 401);
    let expired = sim.create(InstanceSpec { token_ttl: Duration::ZERO, ..InstanceSpec::default() });
    assert_eq!(metadata(&sim, &expired, "runner-metadata").status(), 401);
}

#[test]
fn a_post_is_answered_by_an_empty_body_that_calls_itself_json() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    let answer = status(&sim, &one, &body_of("installing")).send().unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, 0));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("content-length"), Some("0"));
    assert_eq!(one.runner_status(), "installing");
}

#[test]
fn a_refused_move_says_so_and_keeps_its_message() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    let answer = status(&sim, &one, &body_of("idle")).send().unwrap();
    assert_eq!(answer.status, 400);
    assert_eq!(
        answer.text(),
        "{\"error\":\"Bad Request\",\"details\":\"error updating runner agent ID: error updating \
         instance: invalid runner status transition from pending to idle\"}\n"
    );
    let rows: Vec<_> = one.messages().into_iter().map(|row| (row.status, row.accepted)).collect();
    assert_eq!(rows, [(Some("idle".to_owned()), false)]);
    assert_eq!(one.accepted_callbacks(), 0);
    assert_eq!(status(&sim, &one, "{}").status(), 200);
    assert_eq!(one.accepted_callbacks(), 1);
}

#[test]
fn the_first_status_after_installing_ends_the_token() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    assert_eq!(status(&sim, &one, &body_of("installing")).status(), 200);
    assert_eq!(status(&sim, &one, &body_of("installing")).status(), 200);
    assert_eq!(status(&sim, &one, &body_of("idle")).status(), 200);
    assert_eq!(status(&sim, &one, &body_of("idle")).status(), 401);
    assert_eq!(metadata(&sim, &one, "system/service-name").status(), 401);
}

#[test]
fn a_job_that_ends_before_the_provider_returns_leaves_the_machine_creating() {
    let sim = sim();
    for (machine, wanted) in [("running", "pending_delete"), ("creating", "creating")] {
        let one = sim.create(InstanceSpec { status: machine.into(), ..InstanceSpec::default() });
        for event in ["job_started", "job_completed"] {
            let url = format!("{}/_sim/{event}", sim.forge_url());
            assert_eq!(post(&url, format!("name={}\n", one.name())).status(), 200);
        }
        assert_eq!((one.runner_status().as_str(), one.status().as_str()), ("terminated", wanted));
    }
}

#[test]
fn agent_ids_stick() {
    let sim = sim();
    let jit = sim.create(InstanceSpec::default());
    let info = |one: &Instance, body: serde_json::Value| {
        post(&format!("{}/system-info", sim.callback_url()), body.to_string()).bearer(&one.token())
    };
    let own = jit.agent_id();
    assert_eq!(info(&jit, json!({"agent_id": own, "os_name": "x"})).status(), 200);
    let answer = info(&jit, json!({"agent_id": own + 1})).send().unwrap();
    assert_eq!(answer.status, 400);
    assert!(answer.text().ends_with("agent ID mismatch\"}\n"), "{}", answer.text());
    assert_eq!(jit.system_info().os_name, "x");

    let token = sim.create(InstanceSpec::with_token());
    for (id, wanted, kept) in [
        (json!(0), 200, 0),
        (json!(null), 200, 0),
        (json!("7"), 400, 0),
        (json!(7.5), 400, 0),
        (json!(7), 200, 7),
        (json!(8), 400, 7),
        (json!(7), 200, 7),
    ] {
        assert_eq!(info(&token, json!({"agent_id": id})).status(), wanted, "{id}");
        assert_eq!(token.agent_id(), kept, "{id}");
    }
}

#[test]
fn what_is_no_json_object_is_an_invalid_request() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    for body in ["[]", "\"idle\"", "{\"message\":\"a\nb\"}", "{\"status\":", "7"] {
        let answer = status(&sim, &one, body).send().unwrap();
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.json()["details"], "invalid request");
    }
    assert!(one.messages().is_empty());
    assert_eq!(status(&sim, &one, "{} and more").status(), 200);
}

#[test]
fn other_methods_and_unknown_paths_look_like_a_bad_token() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    let token = one.token();
    let call = |method: &'static str, path: &str| {
        let ask = get(&format!("{}{path}", sim.base_url())).bearer(&token);
        Ask { method, ..ask }.send().unwrap()
    };
    for (method, path) in [
        ("GET", "/api/v1/callbacks/status"),
        ("PUT", "/api/v1/metadata/runner-metadata"),
        ("POST", "/api/v1/metadata/runner-metadata"),
        ("GET", "/api/v1/metadata/nope"),
        ("POST", "/api/v1/callbacks"),
        ("POST", "/api/v1/callbacks/Status"),
    ] {
        let answer = call(method, path);
        assert_eq!((answer.status, answer.body.len()), (401, 47), "{method} {path}");
    }
    for path in ["/api/v1/metadata/runner-metadata", "/api/v1/callbacks/status"] {
        let answer = call("HEAD", path);
        assert_eq!((answer.status, answer.header("content-type")), (405, None));
        let answer = get(&format!("{}{path}", sim.base_url()));
        let answer = Ask { method: "OPTIONS", ..answer }.send().unwrap();
        assert_eq!((answer.status, answer.body.len()), (200, 0));
    }
    let answer = call("POST", "/api/v1/callbacks//status");
    assert_eq!(answer.status, 301);
    assert_eq!(answer.header("location"), Some("/api/v1/callbacks/status"));
    assert_eq!(call("GET", "/api/v1/metadata/runner-metadata/").status, 200);
    assert_eq!(call("GET", "/api/v1/metadata/runner-metadata?x=y").status, 200);
}

#[test]
fn a_method_that_no_route_has_is_not_allowed_and_options_are_answered_before_any_route() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    let call = |method: &'static str, path: &str| {
        let ask = get(&format!("{}{path}", sim.base_url())).bearer(&one.token());
        Ask { method, ..ask }.send().unwrap()
    };
    let metadata = "/api/v1/metadata/runner-metadata";
    for (method, path, status) in [
        ("PATCH", metadata, 405),
        ("TRACE", "/api/v1/metadata/nope", 405),
        ("DELETE", metadata, 401),
        ("PUT", "/agent", 405),
        ("DELETE", "/agent/", 405),
        ("GET", "/agent", 401),
        ("HEAD", "/nope", 404),
        ("HEAD", "/api/v1", 404),
        ("GET", "/api/v1", 404),
        ("GET", "/api/v1/", 401),
        ("HEAD", "/api/v1/metadata//runner-metadata", 301),
        ("OPTIONS", "/api/v1/metadata//runner-metadata", 200),
        ("OPTIONS", "/nope", 200),
    ] {
        let answer = call(method, path);
        assert_eq!(answer.status, status, "{method} {path}");
        let nosniff = (status == 404).then_some("nosniff");
        assert_eq!(answer.header("x-content-type-options"), nosniff, "{method} {path}");
    }
}

#[test]
fn a_refused_body_is_read_up_to_256_kib_and_then_the_connection_is_given_up() {
    let sim = sim();
    let url = format!("{}/status", sim.callback_url());
    for (length, wanted) in [(200_000, None), (400_000, Some("close"))] {
        let answer = post(&url, vec![b'x'; length]).bearer("junk").send().unwrap();
        assert_eq!((answer.status, answer.header("connection")), (401, wanted), "{length}");
    }
}

#[test]
fn the_record_has_every_call_and_no_token() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    status(&sim, &one, &body_of("installing")).status();
    metadata(&sim, &one, "runner-metadata").status();
    get(&sim.download_url()).bearer(&one.token()).status();
    let calls = sim.calls();
    let seen: Vec<_> = calls.iter().map(|call| (call.method.as_str(), call.status)).collect();
    assert_eq!(seen, [("POST", Some(200)), ("GET", Some(200)), ("GET", Some(200))]);
    assert_eq!(calls[0].posted_status().as_deref(), Some("installing"));
    let leaked = Authorization::InstanceToken(one.name().to_owned());
    assert_eq!(calls[2].authorization, leaked, "a leak to the download host is visible");
    let everything = format!("{calls:?}{}", sim.calls_table());
    for secret in one.secrets() {
        assert!(!everything.contains(&secret));
    }
}

#[tokio::test]
async fn a_simulation_can_live_and_end_in_an_async_test() {
    let sim = sim();
    sim.garm_down();
    sim.garm_up().unwrap();
    drop(sim);
}

#[test]
fn garm_can_go_down_and_come_back_with_what_it_knew() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    assert_eq!(status(&sim, &one, &body_of("installing")).status(), 200);
    sim.garm_down();
    let error = metadata(&sim, &one, "runner-metadata").send().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    sim.garm_up().unwrap();
    assert_eq!(metadata(&sim, &one, "runner-metadata").status(), 200);
    assert_eq!(one.runner_status(), "installing");
}
