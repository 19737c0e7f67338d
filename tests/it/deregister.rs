//! The registration of a runner that never had a job does not outlive it.

use std::time::{Duration, Instant};

use garm_sim::archive::{RunnerStart, runner_starts};
use garm_sim::{Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim};
use nix::sys::signal::Signal;

use crate::support::after::{
    Scene, assert_nothing_left, posted, registration_files, statuses, wait, wait_for_start,
    wait_for_status,
};
use crate::support::{Boot, Ended, FOR_EVER, LONG, Who, one_job, read, scripted};

fn removals(ended: &Ended) -> Vec<RunnerStart> {
    let mut starts = runner_starts(&ended.home());
    starts.retain(|start| start.subcommand == "remove");
    starts
}

fn sim(spec: InstanceSpec, script: RunnerScript) -> (Sim, Instance) {
    let sim = scripted(script);
    let instance = sim.create(spec);
    (sim, instance)
}

fn drained_while_idle(sim: &Sim, instance: &Instance, who: Who) -> Ended {
    let running = Boot::of(instance).who(who).spawn();
    wait_for_status(&running, sim, "idle");
    running.signal(Signal::SIGTERM);
    running.wait(LONG)
}

#[test]
fn a_runner_that_is_stopped_before_any_job_is_removed_once() {
    for who in [Who::Root, Who::Plain] {
        let (sim, instance) = sim(InstanceSpec::with_token(), RunnerScript::new());
        let ended = drained_while_idle(&sim, &instance, who);
        let scene = Scene(&sim, &ended);
        assert_eq!(ended.code, 0, "{scene}");
        let removals = removals(&ended);
        assert_eq!(removals.len(), 1, "{scene}");
        assert_eq!(sim.registrations().len(), 0, "{scene}");
        // By environment, and never as an argument.
        let token = instance.registration_token();
        assert_eq!(removals[0].var("ACTIONS_RUNNER_INPUT_TOKEN"), Some(token.clone()));
        assert_eq!(removals[0].args().join(" "), "remove");
        assert!(!ended.output().contains(&token), "{scene}");
        assert_nothing_left(&sim, &ended);
    }
}

#[test]
fn a_jit_runner_is_never_removed_from_inside() {
    let (sim, instance) = sim(InstanceSpec::default(), RunnerScript::new());
    let ended = drained_while_idle(&sim, &instance, Who::Plain);
    assert_eq!((ended.code, removals(&ended).len()), (0, 0), "{}", Scene(&sim, &ended));
}

#[test]
fn a_runner_that_had_its_job_is_not_removed() {
    for job in [one_job(), one_job().exit_code(1), one_job().no_result().keep_files()] {
        let (sim, instance) = sim(InstanceSpec::with_token(), job);
        let ended = Boot::of(&instance).run();
        assert_eq!(removals(&ended).len(), 0, "{}", Scene(&sim, &ended));
    }
}

#[test]
fn a_boot_that_fails_after_the_registration_says_so_first_and_then_removes_it() {
    let script = RunnerScript::new().exit_before_listening().exit_code(1);
    let (sim, instance) = sim(InstanceSpec::with_token(), script);
    let ended = Boot::of(&instance).run();
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, posted(&sim, "failed")), (23, 1), "{scene}");
    assert_eq!((removals(&ended).len(), sim.registrations().len()), (1, 0), "{scene}");
    let (last, call) = statuses(&sim).pop().unwrap();
    let removed = sim.runner_events().into_iter().find(|event| event.event == "removed").unwrap();
    assert!(last == "failed" && call.at < removed.at, "{scene}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_removal_that_asks_or_hangs_or_fails_keeps_nobody() {
    let asks = RunnerScript::new().remove_prompts();
    let fails = RunnerScript::new().remove_exit(1);
    let hangs = RunnerScript::new().remove(FOR_EVER);
    for (script, limit) in [(asks, 6), (fails, 6), (hangs, 20)] {
        let (sim, instance) = sim(InstanceSpec::with_token(), script);
        let began = Instant::now();
        let ended = drained_while_idle(&sim, &instance, Who::Plain);
        let scene = Scene(&sim, &ended);
        assert_eq!((ended.code, removals(&ended).len()), (0, 1), "{scene}");
        assert!(began.elapsed() < Duration::from_secs(limit), "{scene}");
        assert_nothing_left(&sim, &ended);
    }
}

#[test]
fn a_second_signal_ends_the_removal() {
    let (sim, instance) = sim(InstanceSpec::with_token(), RunnerScript::new().remove(FOR_EVER));
    let running = Boot::of(&instance).spawn();
    wait_for_status(&running, &sim, "idle");
    running.signal(Signal::SIGTERM);
    wait_for_start(&running, &sim, "remove");
    let asked = Instant::now();
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG);
    assert!(asked.elapsed() < Duration::from_secs(5), "{}", Scene(&sim, &ended));
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    assert_nothing_left(&sim, &ended);
}

#[test]
fn ten_restarts_of_a_runner_that_ends_at_once_leave_no_registration() {
    let script = RunnerScript::new().exit_before_listening().exit_code(1);
    let (sim, instance) = sim(InstanceSpec::with_token(), script);
    let mut ended = Boot::of(&instance).run();
    for _ in 0..9 {
        // The platform's restart, which keeps nothing but the home.
        let boot = ended.again(&instance);
        let _ = std::fs::remove_dir_all(boot.path("work/state"));
        ended = boot.arg("--deadline").arg("1s").run();
        assert_ne!(ended.code, 0, "{}", Scene(&sim, &ended));
    }
    assert_eq!(sim.registrations().len(), 0, "{}", Scene(&sim, &ended));
}

#[test]
fn a_registration_that_is_not_ours_any_more_is_left_alone() {
    const GONE: &str =
        "Failed to create a session. The runner registration has been deleted from the server\n";
    let dead = || RunnerScript::new().exit_before_listening();
    for script in [dead().exit_code(5), dead().exit_code(1).stderr(GONE)] {
        let (sim, instance) = sim(InstanceSpec::with_token(), script);
        let ended = Boot::of(&instance).run();
        assert_eq!((ended.code, removals(&ended).len()), (31, 0), "{}", Scene(&sim, &ended));
    }
}

#[test]
fn a_config_sh_that_is_stopped_when_its_work_is_done_has_registered_and_is_undone() {
    let script = RunnerScript::new().config_stays(FOR_EVER);
    let (sim, instance) = sim(InstanceSpec::with_token(), script);
    let running = Boot::of(&instance).spawn();
    let written = running.home().join(".runner");
    wait(&running, &sim, "all is written", || {
        written.exists() && running.home().join(".credentials_rsaparams").exists()
    });
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!((ended.code, posted(&sim, "failed")), (40, 1), "{scene}");
    assert_eq!((removals(&ended).len(), sim.registrations().len()), (1, 0), "{scene}");
    assert!(registration_files(&ended.home()).is_empty(), "{scene}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_boot_that_could_not_tell_garm_leaves_the_registration_to_the_next_one() {
    let first = RunnerScript::new().exit_before_listening().exit_code(1);
    let (sim, instance) = sim(InstanceSpec::with_token(), one_job().on_start(1, &first));
    sim.fault(Fault::new(Endpoint::Status).posting("failed").kind(FaultKind::status(503)).always());
    let ended = Boot::of(&instance).arg("--deadline").arg("3s").run();
    assert_eq!((ended.code, removals(&ended).len()), (23, 0), "{}", Scene(&sim, &ended));
    assert_eq!(sim.registrations().len(), 1, "{}", Scene(&sim, &ended));
    sim.clear_faults();
    let ended = ended.again(&instance).run().expect_job(&sim);
    assert!(ended.stderr.contains("registered by an earlier start"), "{}", Scene(&sim, &ended));
}

#[test]
fn a_token_that_has_expired_is_not_tried() {
    let slow = RunnerScript::new().config(FOR_EVER);
    let (sim, instance) = sim(InstanceSpec::with_token(), RunnerScript::new().on_start(1, &slow));
    let running = Boot::of(&instance).spawn();
    wait_for_start(&running, &sim, "configure");
    running.signal(Signal::SIGKILL);
    let boot = running.wait(LONG).again(&instance);
    // What the boot that was killed has kept, as it would be after an hour.
    let kept = std::fs::read_dir(boot.path("work/run")).unwrap().map(|entry| entry.unwrap().path());
    let kept = kept.filter(|path| path.to_string_lossy().contains("registration-token"));
    let [note] = &kept.collect::<Vec<_>>()[..] else { panic!("one token is kept") };
    let mut json: serde_json::Value = serde_json::from_str(&read(note)).unwrap();
    let fetched = json["token"]["fetched"].as_u64().unwrap();
    json["token"]["fetched"] = (fetched - 3600).into();
    std::fs::write(note, json.to_string()).unwrap();
    let running = boot.spawn();
    wait_for_status(&running, &sim, "idle");
    running.signal(Signal::SIGTERM);
    let ended = running.wait(LONG);
    assert_eq!((ended.code, removals(&ended).len()), (0, 0), "{}", Scene(&sim, &ended));
    assert!(ended.stderr.contains("GARM will remove its registration"), "{}", Scene(&sim, &ended));
}
