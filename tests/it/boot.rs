//! A boot in which all goes well.

use std::fs;
use std::process::Command;

use garm_sim::{Call, Endpoint, InstanceSpec, Sim};

use crate::support::{
    Boot, Ended, Who, account, assert_owned, calls_to, garm_calls, good, is_root, mode, one_job,
    scripted, statuses,
};

/// The job tells who it runs as.
const WHO_AM_I: &str = "{ id -u; id -g; id -G; pwd; } > _sim/who";

fn boot(spec: InstanceSpec, who: Who) -> (Sim, Ended) {
    let sim = scripted(one_job().job_command(WHO_AM_I));
    let instance = sim.create(spec);
    let ended = Boot::of(&instance).who(who).run().expect_job(&sim);
    (sim, ended)
}

/// Everything that holds for every good boot.
fn check(what: &str, spec: InstanceSpec, who: Who) -> Vec<String> {
    let jit = spec.jit;
    let (sim, ended) = boot(spec, who);
    let story = || format!("{what}\n{}", ended.story(&sim));

    let calls = garm_calls(&sim);
    let at = |holds: &dyn Fn(&Call) -> bool| {
        calls.iter().find(|call| holds(call)).unwrap_or_else(|| panic!("{}", story())).clone()
    };
    let first = calls.iter().find(|call| call.method == "POST").unwrap();
    assert_eq!(first.posted_status().as_deref(), Some("installing"), "{}", story());
    let papers =
        at(&|call| call.path.contains("/metadata/") && call.endpoint != Endpoint::RunnerMetadata);
    assert!(papers.at > first.at, "nothing is fetched before GARM knows us: {}", story());
    let info = at(&|call| call.endpoint == Endpoint::SystemInfo);
    let idle = at(&|call| call.posted_status().as_deref() == Some("idle"));
    let online = sim.runner_events().into_iter().find(|event| event.event == "online").unwrap();
    assert!(info.at < online.at, "system-info before the runner is online: {}", story());
    assert!(idle.at > online.at, "idle after the runner is online: {}", story());
    let agent_id = agent_id_of_the_runner(&sim, &idle, jit);
    for call in [&info, &idle] {
        let posted = call.json("agent_id").and_then(|id| id.as_i64());
        assert_eq!(posted, Some(agent_id), "{}", story());
    }
    assert_eq!((info.status, idle.status), (Some(200), Some(200)), "{}", story());

    let statuses = statuses(&sim);
    assert!(statuses.len() <= 12, "{}", story());
    assert_eq!(statuses.iter().filter(|status| *status != "installing").count(), 1, "{}", story());
    assert_eq!(statuses.last().map(String::as_str), Some("idle"), "{}", story());
    let message = idle.posted_message().unwrap();
    assert!(is_ready_message(&message), "{message:?}: {}", story());

    let system = (info.json("os_name").unwrap(), info.json("os_version").unwrap());
    assert_eq!(system, (os_release("NAME").into(), os_release("VERSION_ID").into()), "{}", story());

    let home = ended.home();
    assert_eq!(
        fs::read_to_string(home.join("_sim/who")).unwrap(),
        who_it_must_be(&ended),
        "{what}"
    );
    assert_owned(&home);
    assert_eq!(ended.beside_home(), ["home"], "{}", story());
    check_timeline(&ended);

    let papers = [
        Endpoint::RegistrationToken,
        Endpoint::CredentialsRunner,
        Endpoint::CredentialsCredentials,
        Endpoint::CredentialsRsaparams,
    ];
    // How many `installing` there are depends on how fast GARM answers: a backlog is folded.
    calls
        .iter()
        .filter(|call| call.posted_status().as_deref() != Some("installing"))
        .filter(|call| !papers.contains(&call.endpoint))
        .map(|call| format!("{} {:?}", call.path, call.posted_status()))
        .collect()
}

/// As the forge knows it, or GARM's own for JIT.
fn agent_id_of_the_runner(sim: &Sim, idle: &Call, jit: bool) -> i64 {
    let instance = sim.instance(idle.instance.as_deref().unwrap());
    let known = instance.agent_id();
    assert_eq!(known >= 4200, jit, "garm-sim's own ids begin at 4200: {known}");
    known
}

/// `runner ready in 8.2 s (fetch 5.1 s, …)`.
fn is_ready_message(message: &str) -> bool {
    let Some(rest) = message.strip_prefix("runner ready in ") else { return false };
    let total = rest.split(' ').next().unwrap_or_default();
    total.parse::<f64>().is_ok_and(|seconds| seconds < 60.0)
        && rest[total.len()..].starts_with(" s")
}

fn os_release(key: &str) -> String {
    let script = format!(". /etc/os-release; printf %s \"${key}\"");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn who_it_must_be(ended: &Ended) -> String {
    let user = account();
    // A plain user is started by us with no groups but its own; root's boot looks them up.
    let mut groups = Command::new("id");
    if is_root() {
        groups.args(["-G", &user.name]);
    } else {
        groups.arg("-G");
    }
    let groups = String::from_utf8(groups.output().unwrap().stdout).unwrap();
    format!("{}\n{}\n{groups}{}\n", user.uid, user.gid, ended.home().display())
}

fn check_timeline(ended: &Ended) {
    let timeline = ended.timeline();
    let spans = timeline["phases"].as_array().unwrap();
    let names: Vec<&str> = spans.iter().map(|span| span["phase"].as_str().unwrap()).collect();
    let all = [
        "preflight",
        "discover",
        "fetch",
        "dependencies",
        "configure",
        "introduce",
        "start",
        "announce",
        "supervise",
        "finish",
    ];
    assert_eq!(names, all, "{timeline}");
    let starts: Vec<f64> = spans.iter().map(|span| span["start"].as_f64().unwrap()).collect();
    assert!(starts.is_sorted(), "{timeline}");
    assert!(spans.iter().all(|span| span["seconds"].is_f64()), "{timeline}");
    for span in spans {
        let fetched = span["phase"] == "fetch";
        assert_eq!(span["bytes"].as_u64().is_some_and(|bytes| bytes > 10_000), fetched, "{span}");
    }
    assert!(timeline["began_at"].as_str().unwrap().ends_with('Z'), "{timeline}");
}

/// One row: its three instances say the same to GARM, apart from their papers.
fn check_kinds(who: Who) {
    let jit = check("JIT", InstanceSpec::default(), who);
    let token = check("token", InstanceSpec::with_token(), who);
    let scale_set = check("scale set", InstanceSpec::of_scale_set(), who);
    assert_eq!(jit, token);
    assert_eq!(jit, scale_set);
}

#[test]
fn every_kind_of_instance_boots_as_root_for_the_user_runner() {
    check_kinds(Who::Root);
}

#[test]
fn every_kind_of_instance_boots_as_a_plain_user() {
    check_kinds(Who::Plain);
}

#[test]
fn the_papers_of_a_jit_runner_are_garms_bytes_and_the_users_alone() {
    // Kept, for the runner forgets them with its job.
    let sim = scripted(one_job().keep_files());
    for who in [Who::Root, Who::Plain] {
        let instance = sim.create(InstanceSpec::default());
        let ended = Boot::of(&instance).who(who).run().expect(&sim, 0);
        for name in [".runner", ".credentials", ".credentials_rsaparams"] {
            let path = ended.home().join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), instance.jit_file(name).unwrap());
            assert_eq!(mode(&path), 0o600, "{name}");
        }
        assert_owned(&ended.home());
    }
}

#[test]
fn a_boot_with_nothing_to_do_still_says_installing_first() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance);
    let home = boot.home();
    let ended = boot.unpack(&sim, &home).run().expect_job(&sim);
    let statuses = statuses(&sim);
    assert_eq!(statuses[0], "installing", "{}", ended.story(&sim));
    assert_eq!(statuses.last().unwrap(), "idle", "{}", ended.story(&sim));
    assert!(calls_to(&sim, Endpoint::Download).is_empty(), "{}", ended.story(&sim));
}

#[test]
fn the_user_can_be_root() {
    let sim = good();
    for spec in [InstanceSpec::default(), InstanceSpec::with_token()] {
        let instance = sim.create(spec);
        let ended = Boot::of(&instance).as_root().flag("user", "root").run().expect(&sim, 0);
        let ended = ended.expect_said(&sim, "run as root");
        for start in ended.starts() {
            assert_eq!(start.uid, 0);
            assert_eq!(start.var("RUNNER_ALLOW_RUNASROOT").as_deref(), Some("1"), "{start:?}");
        }
        assert!(!ended.starts().is_empty());
    }
}

#[test]
fn a_runner_that_is_not_root_is_not_allowed_to_be() {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let ended = Boot::of(&instance).as_root().run().expect_job(&sim);
    for start in ended.starts() {
        assert_eq!(start.var("RUNNER_ALLOW_RUNASROOT"), None, "{start:?}");
        assert_eq!(start.uid, account().uid.as_raw());
    }
}
