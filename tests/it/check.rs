//! `check` and `timeline`: what a person with a sick instance is told, without a trace of the question.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use garm_sim::archive::runner_runs;
use garm_sim::{Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{
    Boot, Ended, FOR_EVER, garm_calls, good, read, scripted, statuses, tree, wait_until,
};

fn check(instance: &Instance) -> Boot {
    Boot::of(instance).doing(&["check"])
}

/// The lines about one thing, each with its verdict.
fn lines<'a>(ended: &'a Ended, about: &str) -> Vec<(&'a str, &'a str)> {
    let split = |line: &'a str| {
        let (verdict, rest) = line.split_once(' ')?;
        Some((verdict, rest.trim_start().strip_prefix(about)?.trim_start()))
    };
    ended.stdout.lines().filter_map(split).collect()
}

#[track_caller]
fn assert_said(ended: &Ended, verdict: &str, about: &str, words: &str) {
    let said = lines(ended, about);
    let found = said.iter().any(|line| line.0 == verdict && line.1.contains(words));
    assert!(found, "{verdict} {about} {words}\n{}\n{}", ended.stdout, ended.stderr);
}

#[test]
fn a_healthy_instance_is_told_line_by_line_and_nothing_is_changed() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let boot = check(&instance).flag("deadline", "90s");
    let config = boot.file("c.toml", "labels = \"a,b\"\n");
    let before = tree(&boot.path("work"));
    let ended = boot.flag("config", &config).run().expect(&sim, 0);
    assert_eq!(tree(&ended.dir.path().join("work")), before, "nothing is made");
    assert_eq!((instance.runner_status().as_str(), instance.messages().len()), ("pending", 0));
    assert!(statuses(&sim).is_empty(), "{}", sim.calls_table());
    assert_eq!(garm_calls(&sim).len(), 3, "{}", sim.calls_table());

    let line = format!("metadata-url = {} ($METADATA_URL)", sim.metadata_url());
    assert_said(&ended, "ok", "setting", &line);
    assert_said(&ended, "ok", "setting", "deadline = 90s (--deadline)");
    let line = format!("labels = a,b (\"labels\" in {})", config.display());
    assert_said(&ended, "ok", "setting", &line);
    assert_said(&ended, "ok", "setting", "user = ");
    let token = format!("a token of the instance \"{}\", from $BEARER_TOKEN", instance.name());
    assert_said(&ended, "ok", "token", &token);
    assert_said(&ended, "ok", "GARM", "it listens to this instance");
    assert_said(&ended, "ok", "GARM", "the callback URL is answered");
    assert_said(&ended, "ok", "GARM", &format!("it calls this runner \"{}\"", instance.name()));
    assert_said(&ended, "ok", "clock", "agrees");
    assert_said(&ended, "ok", "runner", "a boot downloads it");
    assert_said(&ended, "ok", "state", "has not had its run");
    for about in ["system", "user", "disk", "memory"] {
        assert!(!lines(&ended, about).is_empty(), "{about}\n{}", ended.stdout);
    }
    assert!(!ended.output().contains(&instance.token()), "{}", ended.stdout);
}

#[test]
fn a_proxys_password_is_not_shown() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let boot = check(&instance).env("http_proxy", "http://user:hunter2-hunter2@127.0.0.1:9/");
    let ended = boot.env("no_proxy", "127.0.0.1").run().expect(&sim, 0);
    assert_said(&ended, "ok", "setting", "http-proxy = http://127.0.0.1:9/ ($http_proxy)");
    assert!(!ended.output().contains("hunter2"), "{}", ended.output());
}

#[test]
fn a_sick_instance_is_told_what_ails_it_and_the_code_is_that_of_a_boot() {
    type Spoil = fn(Boot, &Sim, &Instance) -> Boot;
    let rows: [(&str, Spoil, i32, &str, &str); 5] = [
        (
            "no token",
            |boot, _, _| boot.without("BEARER_TOKEN"),
            2,
            "settings",
            "failed to find the setting token",
        ),
        (
            "a bad value",
            |boot, _, _| boot.flag("stop-grace", "soon"),
            2,
            "settings",
            "failed to read --stop-grace",
        ),
        (
            "GARM is down",
            |boot, sim, _| {
                sim.garm_down();
                boot
            },
            10,
            "GARM",
            "the metadata URL is not answered",
        ),
        (
            "superseded",
            |boot, _, instance| {
                instance.requeue();
                boot
            },
            11,
            "GARM",
            "it does not listen to this instance",
        ),
        (
            "the callback is elsewhere",
            |boot, _, _| boot.env("CALLBACK_URL", "http://127.0.0.1:1/api/v1/callbacks"),
            10,
            "GARM",
            "the callback URL is not answered",
        ),
    ];
    for (what, spoil, code, about, words) in rows {
        println!("{what}");
        let sim = good();
        let instance = sim.create(InstanceSpec::default());
        let ended = spoil(check(&instance), &sim, &instance).run().expect(&sim, code);
        assert_said(&ended, "FAIL", about, words);
        assert!(statuses(&sim).is_empty(), "{}", sim.calls_table());
    }
}

#[test]
fn what_only_may_matter_is_a_warning() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::RunnerMetadata).kind(FaultKind::EmptyReply));
    let ended = check(&instance).run().expect(&sim, 0);
    assert_said(&ended, "warn", "GARM", "it does not say who this instance is to be");

    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    // Whichever answer is the first tells the time.
    for endpoint in [Endpoint::ServiceName, Endpoint::RunnerMetadata, Endpoint::Status] {
        let headers = vec![("date".into(), date.clone())];
        let kind = FaultKind::Status { code: 401, body: String::new(), headers };
        sim.fault(Fault::new(endpoint).kind(kind));
    }
    let ended = check(&instance).run().expect(&sim, 11);
    assert_said(&ended, "warn", "clock", "behind GARM's");
}

#[test]
fn a_runner_on_disk_is_looked_at() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let boot = check(&instance);
    let home = boot.home();
    let ended = boot.unpack(&sim, &home).run().expect(&sim, 0);
    assert_said(&ended, "ok", "runner", "a usable one is in its home");
    assert_said(&ended, "ok", "runner", "version 2.999.0");
    assert_said(&ended, "ok", "libraries", "are there");

    let boot = check(&instance);
    let home = boot.home();
    let boot = boot.unpack(&sim, &home);
    fs::set_permissions(home.join("bin/Runner.Listener"), fs::Permissions::from_mode(0o644))
        .unwrap();
    let ended = boot.run().expect(&sim, 0);
    assert_said(&ended, "ok", "runner", "is not executable); a boot downloads it");
}

#[test]
fn a_boot_that_runs_and_one_that_has_run_are_told() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::Download).once().kind(FaultKind::Delay(Duration::from_secs(3))));
    let boot = Boot::of(&instance);
    let state = boot.path("work/state");
    let look = || check(&instance).env("GARM_STATE_DIR", state.to_str().unwrap());
    let running = boot.spawn();
    wait_until("the lock is there", || state.join("lock").exists());
    wait_until("the boot talks to GARM", || !sim.calls().is_empty());
    let ended = look().run().expect(&sim, 41);
    assert_said(&ended, "FAIL", "state", "a garm-bootstrap is at work here");
    let pid = running.pid();
    assert_said(&ended, "ok", "last run", "it is in the phase ");
    assert_said(&ended, "ok", "last run", &format!(" (process {pid})"));

    running.wait(crate::support::LONG).expect_job(&sim);
}

#[test]
fn a_used_instance_is_told_with_its_last_boot_and_its_timeline() {
    let sim = good();
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run().expect_job(&sim);
    let ended = ended.again(&instance).doing(&["check"]).run().expect(&sim, 41);
    assert_said(&ended, "FAIL", "state", "this instance had its run at 20");
    assert_said(&ended, "FAIL", "GARM", "or the runner is idle or active already");
    assert_said(&ended, "ok", "last boot", "was in the phase finish");
    assert_said(&ended, "ok", "last run", " with 0: the runner ended with code 0; job build: Succ");
    assert!(ended.stderr.contains("a boot would end with 41"), "{}", ended.stderr);

    let file = ended.timeline();
    let ended = ended.again(&instance).doing(&["timeline"]).run().expect(&sim, 0);
    // What a phase did side by side stands below it, further in.
    let (steps, others): (Vec<&str>, Vec<&str>) =
        ended.stdout.lines().partition(|line| line.starts_with(' '));
    let first: Vec<&str> =
        others.iter().filter_map(|line| line.split_whitespace().next()).collect();
    let phases = file["phases"].as_array().unwrap().iter();
    let phases: Vec<&str> = phases.map(|span| span["phase"].as_str().unwrap()).collect();
    assert_eq!(first[..2], ["boot", "phase"], "{}", ended.stdout);
    let (phases_shown, rest) = first[2..].split_at(phases.len());
    assert_eq!((phases_shown, rest), (&phases[..], &["end", "*"][..]), "{}", ended.stdout);
    let fetch = ["authorities", "papers", "runner"];
    assert!(fetch.iter().all(|step| ended.stdout.contains(step)), "{}", ended.stdout);
    let awaited = steps.iter().filter(|step| step.ends_with(" *")).count();
    assert_eq!(awaited, 3, "one in discover, fetch and dependencies each: {}", ended.stdout);

    let ended = ended.again(&instance).doing(&["timeline", "--json"]).run().expect(&sim, 0);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ended.stdout).unwrap(), file);
}

#[test]
fn an_instance_that_came_to_grief_is_told_with_what_it_was_doing() {
    let sim = scripted(RunnerScript::new().exit_before_listening().exit_code(5));
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run().expect(&sim, 31);
    let ended = ended.again(&instance).doing(&["check"]).run();
    let words = " with 31, registration_gone: [registration_gone] start: failed to ";
    assert_said(&ended, "warn", "last run", words);

    // Killed in its job: nobody could say how it ended.
    let job = RunnerScript::one_job(Duration::from_millis(200), FOR_EVER);
    let sim = scripted(job);
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).spawn();
    let file = running.home().with_file_name("state/state.json");
    wait_until("it is at its job", || read(&file).contains("\"running\""));
    let ended = running.kill_alone();
    kill(Pid::from_raw(runner_runs(&ended.home())[0].pid), Signal::SIGKILL).unwrap();
    let ended = ended.again(&instance).doing(&["check"]).run();
    assert_said(&ended, "warn", "last run", "it runs the job build since 20");
    assert_said(&ended, "warn", "last run", "which said so, is gone");
}

#[test]
fn without_a_boot_there_is_no_timeline_and_that_is_said() {
    let ended = Boot::bare().doing(&["timeline"]).run();
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("timeline.json: No such file"), "{}", ended.stderr);
    assert!(ended.stdout.is_empty());
}
