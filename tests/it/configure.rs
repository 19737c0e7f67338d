//! From an unpacked runner to this instance's runner.

use std::time::{Duration, Instant};

use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, InstanceSpec, RunnerScript, Sim, SimOptions,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Boot, Ended, LONG, Who, account, calls_to, failures, good, is_root, one_job, scripted,
    wait_until,
};

const PAPERS: [&str; 3] = [".runner", ".credentials", ".credentials_rsaparams"];

/// The boot of an instance with a registration token.
fn boot_of(sim: &Sim) -> Boot {
    Boot::of(&sim.create(InstanceSpec::with_token()))
}

/// Asserts that the token was asked for once: GARM gives it only once.
#[track_caller]
fn assert_one_token(ended: &Ended, sim: &Sim) {
    let asked = calls_to(sim, Endpoint::RegistrationToken).len();
    assert_eq!(asked, 1, "{}", ended.story(sim));
}

#[track_caller]
fn assert_no_papers(ended: &Ended, sim: &Sim) {
    for name in PAPERS {
        assert!(!ended.home().join(name).exists(), "{name}\n{}", ended.story(sim));
    }
}

/// Asserts that nothing that config.sh started lives on.
#[track_caller]
fn assert_ended(ended: &Ended, sim: &Sim) {
    for start in ended.starts() {
        assert!(kill(Pid::from_raw(start.pid), None).is_err(), "{start:?}\n{}", ended.story(sim));
    }
}

#[test]
fn every_value_is_one_argument_whatever_is_in_it() {
    let sim = good();
    let name = "the \"runner\" $(touch /tmp/garm-it-pwned) `id` ;&|<> *";
    let label = "$(touch /tmp/garm-it-pwned)";
    let instance = sim.create(InstanceSpec {
        runner_name: Some(name.into()),
        labels: vec!["a b".into(), label.into(), "'q' \"Q\" \\ ü\u{1f980}".into()],
        ..InstanceSpec::with_token()
    });
    let boot = Boot::of(&instance);
    let work = boot.path("work/the jobs");
    let group = "Sample Group 1 'x' $HOME";
    let ended = boot.flag("group", group).flag("work", &work).run().expect_job(&sim);
    let configures = ended.configures();
    let args = configures[0].args();
    let bootstrap: serde_json::Value = serde_json::from_str(&instance.bootstrap_json()).unwrap();
    let labels: Vec<&str> =
        bootstrap["labels"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    let url = format!("{}/acme/widgets", sim.forge_url());
    let expected = [
        "configure",
        "--unattended",
        "--url",
        &url,
        "--name",
        name,
        "--labels",
        &labels.join(","),
        "--runnergroup",
        group,
        "--work",
        work.to_str().unwrap(),
        "--ephemeral",
        "--no-default-labels",
    ];
    assert_eq!(args, expected, "{}", ended.story(&sim));
    assert!(labels.contains(&label));
    assert!(!std::path::Path::new("/tmp/garm-it-pwned").exists());
    assert_eq!(configures[0].cwd, ended.home().display().to_string());
    assert_one_token(&ended, &sim);
}

#[test]
fn the_token_is_in_the_environment_of_config_sh_alone() {
    let sim = good();
    let instance = sim.create(InstanceSpec::with_token());
    let ended = Boot::of(&instance).run().expect_job(&sim);
    let token = instance.registration_token();
    for start in ended.starts() {
        let args = start.args();
        assert!(args.iter().all(|arg| !arg.contains(&token)), "{args:?}");
        let holders: Vec<String> = start
            .env
            .iter()
            .filter(|(_, value)| value.to_string_lossy().contains(&token))
            .map(|(name, _)| name.to_string_lossy().into_owned())
            .collect();
        let right: &[&str] = match start.subcommand.as_str() {
            "configure" => &["ACTIONS_RUNNER_INPUT_TOKEN"],
            _ => &[],
        };
        assert_eq!(holders, right, "{}", start.subcommand);
    }
    assert!(!ended.output().contains(&token), "{}", ended.story(&sim));
}

#[test]
fn what_is_switched_off_is_not_asked_for() {
    let sim = good();
    let boot = boot_of(&sim)
        .arg("--ephemeral=false")
        .env("RUNNER_NO_DEFAULT_LABELS", "false")
        .arg("--disable-update")
        .env("RUNNER_GROUP", "default");
    let running = boot.spawn();
    wait_until("its job is done", || {
        sim.runner_events().iter().any(|event| event.event == "job_completed")
    });
    // It would take another one.
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG).expect(&sim, 0);
    let args = ended.configures()[0].args();
    for absent in ["--ephemeral", "--no-default-labels", "--runnergroup", "--work", "--token"] {
        assert!(!args.iter().any(|arg| arg == absent), "{absent} in {args:?}");
    }
    assert!(args.iter().any(|arg| arg == "--disableupdate"), "{args:?}");
}

#[test]
fn config_sh_has_nothing_to_read() {
    let sim = scripted(one_job().config_reads_stdin());
    let ended = boot_of(&sim).run().expect_job(&sim);
    let notes = ended.configures()[0].notes.clone();
    assert!(notes.iter().any(|note| note == "stdin gave 0 bytes"), "{notes:?}");
}

#[test]
fn a_half_done_registration_is_cleaned_up_before_the_next_attempt() {
    for who in [Who::Root, Who::Plain] {
        let sim = scripted(one_job().config_fail_times(1).config_writes_runner_then_fails());
        let ended = boot_of(&sim).who(who).run().expect_job(&sim);
        let exits: Vec<_> = ended.configures().iter().map(|start| start.exit).collect();
        assert_eq!(exits, [Some(1), Some(0)], "{}", ended.story(&sim));
        let uid = account().uid.as_raw();
        assert!(ended.starts().iter().all(|start| start.uid == uid), "{}", ended.story(&sim));
        assert_one_token(&ended, &sim);
        assert!(failures(&sim).is_empty(), "{}", ended.story(&sim));
    }
}

#[test]
fn a_registration_of_an_earlier_life_is_no_obstacle() {
    let sim = good();
    for spec in [InstanceSpec::default(), InstanceSpec::with_token()] {
        let instance = sim.create(spec);
        let boot = Boot::of(&instance);
        let home = boot.home();
        let boot = boot.unpack(&sim, &home);
        std::fs::write(home.join(".runner"), "{\"agentId\": 1}").unwrap();
        crate::support::own_all(&home);
        let ended = boot.run().expect(&sim, 0);
        let idles = calls_to(&sim, Endpoint::Status);
        let id = idles.last().unwrap().json("agent_id").and_then(|id| id.as_i64());
        assert_eq!(id, Some(instance.agent_id()), "{}", ended.story(&sim));
        assert_ne!(id, Some(1));
    }
}

/// The first attempt registered, and then failed: the name is taken by ourselves.
#[test]
fn a_name_that_is_taken_is_replaced_by_the_next_attempt() {
    let sim = scripted(one_job().config_needs_replace());
    let ended = boot_of(&sim).run().expect_job(&sim);
    let replaced: Vec<bool> =
        ended.configures().iter().map(|start| start.args().contains(&"--replace".into())).collect();
    assert_eq!(replaced, [false, true], "{}", ended.story(&sim));
    ended.expect_said(&sim, "A runner exists with the same name");
}

/// What a program says, whatever bytes it says it in, arrives as readable text in valid JSON.
#[test]
fn what_config_sh_says_when_it_fails_for_ever_reaches_garm() {
    let mut said =
        b"Http response code: NotFound from \"POST https://x\"\n\ttabbed \\ back".to_vec();
    said.extend_from_slice(b"\x1b[31mred\x1b[0m \xff end\r\n");
    let sim = scripted(RunnerScript::new().config_exit(1).config_stderr(&said));
    let ended = boot_of(&sim).run().expect_failed(&sim, 22, &["config.sh ended with"]);
    let ended = ended.expect_no_runner(&sim);
    let failed = &failures(&sim)[0];
    assert!(failed.starts_with("[configure_failed] configure: failed to "), "{failed}");
    for words in ["NotFound from \"POST https://x\"", "tabbed \\ back", "red", "\u{fffd} end"] {
        assert!(failed.contains(words), "{words:?} in {failed:?}");
    }
    assert!(failed.contains("token is 0 min old"), "a hint at the token's age: {failed:?}");
    let control = |c: char| c.is_control() && c != '\n' && c != '\t';
    assert!(!failed.contains(control), "{failed:?}");
    let last = calls_to(&sim, Endpoint::Status).pop().unwrap();
    assert_eq!(last.status, Some(200), "{}", ended.story(&sim));
    assert!(ended.configures().len() > 1, "{}", ended.story(&sim));
    assert_one_token(&ended, &sim);
    assert_no_papers(&ended, &sim);
}

#[test]
fn a_config_sh_that_lies_is_found_out() {
    let sim = scripted(RunnerScript::new().config_lies());
    let words = ["config.sh reported success, but", ".credentials"];
    let ended = boot_of(&sim).run().expect_failed(&sim, 22, &words).expect_no_runner(&sim);
    assert_one_token(&ended, &sim);
}

#[test]
fn a_config_sh_that_hangs_is_ended_by_the_deadline() {
    for script in [RunnerScript::new().config_hang(), RunnerScript::new().config_hang_hard()] {
        let sim = scripted(script);
        let began = Instant::now();
        let ended = boot_of(&sim).flag("deadline", "4s").run();
        let ended = ended.expect_failed(&sim, 22, &["config.sh", "did not end"]);
        assert!(began.elapsed() < Duration::from_secs(15), "{}", ended.story(&sim));
        let ended = ended.expect_no_runner(&sim);
        assert_ended(&ended, &sim);
        assert_no_papers(&ended, &sim);
    }
}

#[test]
fn a_token_that_garm_does_not_give_is_named() {
    let sim = good();
    let refused = FaultKind::answer(401, "{\"error\":\"Not Authorized\",\"details\":\"\"}\n");
    sim.fault(Fault::new(Endpoint::RegistrationToken).always().kind(refused));
    let words = ["registration token", "handed out already", "401"];
    let running = boot_of(&sim).flag("deadline", "4s").run();
    let ended = running.expect_failed(&sim, 12, &words).expect_no_runner(&sim);
    assert!(ended.configures().is_empty(), "{}", ended.story(&sim));
    let asked = calls_to(&sim, Endpoint::RegistrationToken).len();
    assert!((3..12).contains(&asked), "{}", ended.story(&sim));
}

/// GARM says so as well while the forge does not take its own credentials, and has lost no token then.
#[test]
fn a_registration_token_that_is_refused_for_some_seconds_is_waited_for() {
    let sim = good();
    let refused = FaultKind::answer(401, "{\"error\":\"Not Authorized\",\"details\":\"\"}\n");
    sim.fault(Fault::new(Endpoint::RegistrationToken).times(4).kind(refused));
    let ended = boot_of(&sim).run().expect_job(&sim);
    assert_eq!(calls_to(&sim, Endpoint::RegistrationToken).len(), 5, "{}", ended.story(&sim));
}

#[test]
fn a_boot_without_papers_does_not_wait_for_its_download() {
    let sim = good();
    let slow = FaultKind::SlowBody { bytes_per_sec: 20_000 };
    sim.fault(Fault::new(Endpoint::Download).always().kind(slow));
    let refused = FaultKind::answer(403, "{\"error\":\"Forbidden\",\"details\":\"\"}\n");
    sim.fault(Fault::new(Endpoint::RegistrationToken).always().kind(refused));
    let began = Instant::now();
    boot_of(&sim).run().expect_failed(&sim, 12, &["registration token"]).expect_no_runner(&sim);
    // The whole archive would take forty seconds.
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
}

#[test]
fn a_token_that_is_a_web_page_is_refused() {
    let sim = good();
    sim.fault(Fault::new(Endpoint::RegistrationToken).always().kind(FaultKind::CaptivePortal));
    let ended = boot_of(&sim).run().expect_failed(&sim, 12, &["a registration token"]);
    assert!(ended.configures().is_empty(), "{}", ended.story(&sim));
}

#[test]
fn a_jit_file_that_is_none_is_refused_and_none_is_left() {
    let endpoints = [
        (Endpoint::CredentialsRunner, ".runner"),
        (Endpoint::CredentialsCredentials, ".credentials"),
        (Endpoint::CredentialsRsaparams, ".credentials_rsaparams"),
    ];
    let not_found =
        r#"{"error":"Not Found","details":"instance not configured for JIT"}"#.to_owned();
    for (endpoint, name) in endpoints {
        let rows: [(FaultKind, i32, &str); 3] = [
            (FaultKind::Body(Vec::new()), 22, "it is empty"),
            (FaultKind::CaptivePortal, 22, "web page"),
            (FaultKind::answer(404, &not_found), 12, "not configured for JIT"),
        ];
        for (kind, code, words) in rows {
            let sim = good();
            let instance = sim.create(InstanceSpec::default());
            println!("{name}: {kind:?}");
            sim.fault(Fault::new(endpoint).always().kind(kind));
            let named = if code == 22 { name } else { "the JIT files" };
            let ended = Boot::of(&instance).run().expect_failed(&sim, code, &[words, named]);
            assert_no_papers(&ended.expect_no_runner(&sim), &sim);
        }
    }
}

fn with_missing_library(script: RunnerScript) -> Sim {
    let archive = ArchiveSpec {
        needs: vec!["libgarm-it-missing.so.7".into()],
        ..ArchiveSpec::scripted(script)
    };
    Sim::start(SimOptions { archive, ..SimOptions::default() })
}

fn installs(ended: &Ended) -> usize {
    ended.starts().iter().filter(|start| start.subcommand == "sim-deps").count()
}

#[test]
fn a_missing_library_is_installed_by_root_once() {
    for in_home in [false, true] {
        let sim = with_missing_library(one_job());
        let instance = sim.create(InstanceSpec::with_token());
        let mut boot = Boot::of(&instance).as_root();
        if in_home {
            let home = boot.home();
            boot = boot.unpack(&sim, &home);
        }
        let ended = boot.run().expect_job(&sim);
        assert_eq!(installs(&ended), 1, "{}", ended.story(&sim));
        let first = &ended.starts()[0];
        assert_eq!((first.subcommand.as_str(), first.uid), ("sim-deps", 0));
        assert_eq!(first.var("DEBIAN_FRONTEND").as_deref(), Some("noninteractive"));
        let statuses = calls_to(&sim, Endpoint::Status);
        let said = statuses.iter().filter_map(garm_sim::Call::posted_message);
        let said: Vec<_> = said.filter(|text| text.contains("libgarm-it-missing.so.7")).collect();
        assert_eq!(said, ["installing dependencies: libgarm-it-missing.so.7"]);
    }
}

#[test]
fn an_installation_that_fails_twice_is_tried_a_third_time() {
    let sim = with_missing_library(one_job().deps_fail_times(2));
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).as_root().run().expect_job(&sim);
    assert_eq!(installs(&ended), 3, "{}", ended.story(&sim));
    ended.expect_said(&sim, "Could not get lock");
}

#[test]
fn an_installation_that_fails_for_ever_is_told() {
    let sim = with_missing_library(one_job().deps_exit(1));
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).as_root().flag("deadline", "5s").run();
    let words = ["libgarm-it-missing.so.7", "Could not get lock"];
    assert_eq!(installs(&ended.expect_failed(&sim, 21, &words).expect_no_runner(&sim)), 1);
}

#[test]
fn a_plain_user_is_warned_of_a_missing_library_and_goes_on() {
    let sim = with_missing_library(one_job());
    let ended = boot_of(&sim).run().expect_job(&sim);
    let ended =
        ended.expect_said(&sim, "only root can install what is missing: libgarm-it-missing");
    assert_eq!(installs(&ended), 0, "{}", ended.story(&sim));
    assert!(is_root() || ended.starts().iter().all(|start| start.uid != 0));
}

#[test]
fn with_nothing_missing_nothing_is_installed() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).as_root().run().expect_job(&sim);
    assert_eq!(installs(&ended), 0, "{}", ended.story(&sim));
}
