//! The registration of a runner that never had a job does not outlive it.

use std::time::{Duration, Instant};

use garm_sim::archive::{RunnerStart, runner_starts};
use garm_sim::{Instance, InstanceSpec, RunnerScript, Sim};
use nix::sys::signal::Signal;

use crate::support::after::{Scene, assert_nothing_left, posted, statuses, wait_for_status};
use crate::support::{Boot, Ended, FOR_EVER, LONG, Who, one_job, scripted};

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
    let failed = statuses(&sim).into_iter().rposition(|(status, _)| status == "failed");
    assert_eq!(failed, Some(statuses(&sim).len() - 1), "{scene}");
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
    crate::support::after::wait_for_start(&running, &sim, "remove");
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
