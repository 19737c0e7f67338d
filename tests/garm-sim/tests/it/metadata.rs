//! `GET metadata/*` and the bootstrap data: what a live controller gives.

use garm_sim::{
    AgentTools, Entity, EventType, Instance, InstanceSpec, PrivateCa, Proxy, Sim, SimOptions,
};
use serde_json::json;

use crate::client::{Ask, get};

const NOT_AUTHORIZED: &str = "{\"error\":\"Not Authorized\",\"details\":\"\"}\n";

fn sim() -> Sim {
    Sim::start(SimOptions::default())
}

pub(crate) fn metadata(sim: &Sim, instance: &Instance, path: &str) -> Ask {
    get(&format!("{}/{path}", sim.metadata_url())).bearer(&instance.token())
}

#[test]
fn runner_metadata_of_a_jit_instance_is_as_a_real_garm_gives_it() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    let answer = metadata(&sim, &one, "runner-metadata").send().unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let wanted = json!({
        "metadata_access": {
            "callback_url": sim.callback_url(),
            "metadata_url": sim.metadata_url(),
            "agent_url": format!("{}/agent", sim.base_url()),
        },
        "forge_type": "github",
        "runner_registration_url": format!("{}/acme/widgets", sim.forge_url()),
        "runner_name": one.name(),
        "agent_mode": false,
        "jit_enabled": true,
        "runner_tools": {
            "os": "linux",
            "architecture": "x64",
            "download_url": sim.download_url(),
            "filename": "actions-runner-linux-x64-2.999.0.tar.gz",
            "sha256_checksum": sim.archive_sha256(),
        },
    });
    assert_eq!(answer.json(), wanted);
    assert!(answer.text().starts_with("{\"metadata_access\":{\"callback_url\":"));
    assert!(answer.text().ends_with("}\n"));
}

#[test]
fn labels_come_only_without_jit_and_extra_specs_only_when_there_are_any() {
    let sim = sim();
    let token = sim.create(InstanceSpec {
        extra_specs: Some(json!({"a": "<b>"})),
        ..InstanceSpec::with_token()
    });
    let answer = metadata(&sim, &token, "runner-metadata").send().unwrap();
    assert!(answer.text().contains("\\u003cb\\u003e"));
    let labels = answer.json()["runner_labels"].clone();
    assert_eq!(labels[0], "sim");
    assert!(labels[1].as_str().unwrap().starts_with("runner-controller-id="));
    assert!(labels[2].as_str().unwrap().starts_with("runner-pool-id="));
    assert_eq!(answer.json()["jit_enabled"], false);

    let set = sim.create(InstanceSpec::of_scale_set());
    let answer = metadata(&sim, &set, "runner-metadata").send().unwrap();
    assert_eq!(answer.json().get("runner_labels"), None);
}

#[test]
fn credentials_are_raw_bytes_under_a_type_that_is_none() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    for file in ["runner", "credentials", "credentials_rsaparams"] {
        for _repeated in 0..2 {
            let answer = metadata(&sim, &one, &format!("credentials/{file}")).send().unwrap();
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("content-type"), Some("octet-stream"));
            let disposition = format!("attachment; filename=.{file}");
            assert_eq!(answer.header("content-disposition"), Some(disposition.as_str()));
            assert_eq!(Some(answer.text()), one.jit_file(&format!(".{file}")));
        }
    }
    let runner = metadata(&sim, &one, "credentials/runner").send().unwrap().json();
    assert_eq!(runner["AgentId"], one.agent_id().to_string(), "a string");

    let answer = metadata(&sim, &one, "credentials/.runner").send().unwrap();
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["details"], "could not find file \"..runner\"");
    let token = sim.create(InstanceSpec::with_token());
    let answer = metadata(&sim, &token, "credentials/runner").send().unwrap();
    assert_eq!(answer.status, 404);
    assert_eq!(answer.json()["details"], "instance not configured for JIT");
}

#[test]
fn the_registration_token_is_given_once_per_create_attempt() {
    let sim = sim();
    let one = sim.create(InstanceSpec::with_token());
    let path = "runner-registration-token";
    let answer = metadata(&sim, &one, path).send().unwrap();
    assert_eq!((answer.status, answer.text()), (200, one.registration_token()));
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let again = metadata(&sim, &one, path).send().unwrap();
    assert_eq!((again.status, again.text()), (401, NOT_AUTHORIZED.to_owned()));
    assert_eq!(NOT_AUTHORIZED.len(), 40);
    let events: Vec<_> = one.messages().into_iter().map(|row| (row.event, row.message)).collect();
    let text = "runner registration token was retrieved".to_owned();
    assert_eq!(events, [(EventType::FetchToken, text)]);

    one.requeue();
    assert_eq!(metadata(&sim, &one, path).status(), 200);
    let jit = sim.create(InstanceSpec::default());
    assert_eq!(metadata(&sim, &jit, path).send().unwrap().text(), NOT_AUTHORIZED);
}

#[test]
fn the_systemd_endpoints_answer_plain_text() {
    let sim = sim();
    let one = sim.create(InstanceSpec::default());
    let answer = metadata(&sim, &one, "system/service-name").send().unwrap();
    assert_eq!(answer.text(), "actions.runner.acme.widgets");
    assert_eq!(answer.header("content-type"), Some("text/plain"));
    let answer = metadata(&sim, &one, "systemd/unit-file?runAsUser=").send().unwrap();
    assert_eq!(answer.body.len(), 302, "as measured at a real GARM");
    let other = sim.create(InstanceSpec {
        entity: Entity::Organization("acme".into()),
        proxy: Proxy { http: "http://u%40:p@proxy:3128".into(), ..Proxy::default() },
        ..InstanceSpec::default()
    });
    let answer = metadata(&sim, &other, "systemd/unit-file?runAsUser=ci").send().unwrap();
    assert!(answer.text().contains("User=ci\n"));
    assert!(answer.text().contains("Environment=\"http_proxy=http://u%%40:p@proxy:3128\"\n"));
    let answer = metadata(&sim, &other, "system/service-name").send().unwrap();
    assert_eq!(answer.text(), "actions.runner.acme");
}

#[test]
fn an_endpoint_ca_fills_the_bundle_and_breaks_runner_metadata() {
    let ca = PrivateCa::new("forge CA");
    let sim = Sim::start(SimOptions { ca_bundle: Some(ca.pem()), ..SimOptions::default() });
    let one = sim.create(InstanceSpec::default());
    for _ in 0..2 {
        let error = metadata(&sim, &one, "runner-metadata").send().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
    assert_eq!(sim.calls()[0].fault.as_deref(), Some("panic"));
    let bundle = metadata(&sim, &one, "system/cert-bundle").send().unwrap().json();
    let certificates = bundle["root_certificates"].as_object().unwrap();
    assert_eq!(certificates.len(), 1);
    assert!(certificates.keys().all(|key| key.bytes().all(|byte| byte.is_ascii_digit())));

    let plain = self::sim();
    let one = plain.create(InstanceSpec::default());
    let answer = metadata(&plain, &one, "system/cert-bundle").send().unwrap();
    assert_eq!(answer.text(), "{}\n");
}

#[test]
fn an_old_garm_knows_neither_metadata_nor_scripts() {
    let sim = Sim::start(SimOptions { no_runner_metadata: true, ..SimOptions::default() });
    let one = sim.create(InstanceSpec::default());
    for path in ["runner-metadata", "install-script", "tools/garm-agent"] {
        let answer = metadata(&sim, &one, path).send().unwrap();
        assert_eq!((answer.status, answer.body.len()), (401, 47), "{path}");
    }
    for path in ["credentials/runner", "system/service-name", "system/cert-bundle"] {
        assert_eq!(metadata(&sim, &one, path).status(), 200, "{path}");
    }
}

#[test]
fn install_scripts_and_agent_tools_answer_as_the_pool_is() {
    let sim = Sim::start(SimOptions {
        template: false,
        agent_tools: AgentTools::Upstream,
        ..SimOptions::default()
    });
    let one = sim.create(InstanceSpec::default());
    let answer = metadata(&sim, &one, "install-script").send().unwrap();
    assert_eq!((answer.status, answer.json()["error"].clone()), (409, json!("Conflict")));
    let list = metadata(&sim, &one, "tools/garm-agent").send().unwrap().json();
    assert_eq!((&list["total_count"], &list["results"][0]["sha256sum"]), (&json!(0), &json!("")));

    let sim = self::sim();
    let one = sim.create(InstanceSpec::default());
    let script = metadata(&sim, &one, "install-script").send().unwrap();
    assert!(script.text().contains(&one.token()));
    let list = metadata(&sim, &one, "tools/garm-agent").send().unwrap();
    let empty = "{\"total_count\":0,\"pages\":0,\"current_page\":1,\"results\":null}\n";
    assert_eq!(list.text(), empty);
    let list = metadata(&sim, &one, "tools/garm-agent?page=2&pageSize=3").send().unwrap();
    let second = empty.replace("e\":1,", "e\":2,\"previous_page\":1,");
    assert_eq!(list.text(), second);
    let none = "failed to list files: could not find file object with ID: 1";
    for (path, status, details) in [
        ("1", 404, none.to_owned()),
        ("1/download", 404, format!("failed to validate tools request: {none}")),
        ("-1", 400, "invalid objectID: invalid object ID; must be a number".to_owned()),
    ] {
        let answer = metadata(&sim, &one, &format!("tools/garm-agent/{path}")).send().unwrap();
        assert_eq!((answer.status, answer.json()["details"].clone()), (status, json!(details)));
    }
}

#[test]
fn the_bootstrap_json_has_the_providers_mixed_keys() {
    let sim = sim();
    let one = sim.create(InstanceSpec::with_token());
    let bootstrap: serde_json::Value = serde_json::from_str(&one.bootstrap_json()).unwrap();
    assert_eq!(bootstrap["instance-token"], one.token());
    assert_eq!(bootstrap["metadata-url"], sim.metadata_url());
    assert_eq!(bootstrap["tools"].as_array().unwrap().len(), 3);
    assert_eq!(bootstrap["jit_config_enabled"], false);
    assert_eq!(bootstrap["labels"][0], "sim");
    assert_eq!(bootstrap["ca-cert-bundle"], "");
    let jit = sim.create(InstanceSpec::default());
    let bootstrap: serde_json::Value = serde_json::from_str(&jit.bootstrap_json()).unwrap();
    assert_eq!(bootstrap["labels"], json!(null));
    assert!(bootstrap["extra_specs"]["runner_install_template"].is_string());
}
