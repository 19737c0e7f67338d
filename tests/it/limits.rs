//! How long a runner may wait, work and live, where a person has said so.

use std::time::{Duration, Instant};

use garm_sim::archive::runner_runs;
use garm_sim::{InstanceSpec, RunnerScript, Sim};

use crate::support::after::{
    Scene, assert_nothing_left, posted, wait, wait_for_note, wait_for_status,
};
use crate::support::{Boot, Ended, FOR_EVER, LONG, scripted};

const SECOND: Duration = Duration::from_secs(1);

fn boots(script: RunnerScript, settings: &[&str]) -> (Sim, Ended, Duration) {
    let sim = scripted(script);
    let instance = sim.create(InstanceSpec::default());
    let boot = settings.iter().fold(Boot::of(&instance), Boot::arg);
    let running = boot.env("GARM_STOP_GRACE", "500ms").spawn();
    wait_for_status(&running, &sim, "idle");
    let idle = Instant::now();
    let ended = running.wait(LONG);
    (sim, ended, idle.elapsed())
}

fn assert_ended(sim: &Sim, ended: &Ended, code: i32, says: &str) {
    let scene = Scene(sim, ended);
    assert_eq!(ended.code, code, "{scene}");
    assert_eq!((posted(sim, "idle"), posted(sim, "failed")), (1, 0), "{scene}");
    assert!(ended.stderr.contains(says), "stderr says {says:?}{scene}");
    assert_nothing_left(sim, ended);
}

/// The signals that the Listener got, and the result of its job.
fn run(ended: &Ended) -> (Vec<i32>, Option<String>) {
    let run = runner_runs(&ended.home()).remove(0);
    let result = run.notes.iter().find_map(|note| note.strip_prefix("job ended "));
    (run.signals, result.map(str::to_owned))
}

#[test]
fn a_runner_without_a_job_leaves_when_the_idle_limit_has_passed() {
    let (sim, ended, took) = boots(RunnerScript::new(), &["--idle-limit", "1500ms"]);
    assert_ended(&sim, &ended, 33, "stopped by the idle limit");
    assert_eq!(run(&ended), (vec![2], None));
    assert!(took > SECOND, "it left after {took:?}{}", Scene(&sim, &ended));
}

#[test]
fn a_job_that_comes_before_the_idle_limit_is_finished() {
    let script = RunnerScript::one_job(SECOND * 9 / 10, SECOND * 3 / 2);
    let (sim, ended, _) = boots(script, &["--idle-limit", "2s"]);
    assert_ended(&sim, &ended, 0, "Succeeded");
    assert_eq!(run(&ended), (vec![], Some("Succeeded".to_owned())));
}

#[test]
fn a_job_that_comes_just_as_the_idle_limit_passes_is_finished() {
    let script = RunnerScript::new().job_after_sigint(SECOND / 5).job(SECOND);
    let (sim, ended, _) = boots(script, &["--idle-limit", "500ms"]);
    assert_ended(&sim, &ended, 0, "Succeeded");
    assert_eq!(run(&ended), (vec![2], Some("Succeeded".to_owned())));
}

#[test]
fn a_job_is_stopped_when_the_job_limit_has_passed() {
    let script = RunnerScript::one_job(SECOND / 4, FOR_EVER);
    let (sim, ended, _) = boots(script, &["--job-limit", "1s"]);
    assert_ended(&sim, &ended, 33, "stopped by the job limit");
    assert_eq!(run(&ended), (vec![2], Some("Canceled".to_owned())));
}

#[test]
fn a_job_that_does_not_heed_signals_is_ended_all_the_same() {
    let script = RunnerScript::one_job(SECOND / 4, FOR_EVER).ignore_signals().job_children(2);
    let (sim, ended, _) = boots(script, &["--job-limit", "1s"]);
    assert_ended(&sim, &ended, 33, "stopped by the job limit");
}

#[test]
fn the_job_limit_bounds_a_drain() {
    let sim = scripted(RunnerScript::one_job(SECOND / 4, FOR_EVER));
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).arg("--job-limit").arg("2s").spawn();
    wait_for_note(&running, &sim, "job started");
    running.signal(nix::sys::signal::Signal::SIGTERM);
    wait(&running, &sim, "the drain has begun", || running.stderr().contains("asked to leave"));
    let ended = running.wait(LONG);
    assert_ended(&sim, &ended, 33, "stopped by the job limit");
    assert_eq!(run(&ended), (vec![2], Some("Canceled".to_owned())));
}

#[test]
fn an_idle_runner_leaves_at_the_end_of_its_lifetime() {
    let (sim, ended, _) = boots(RunnerScript::new(), &["--lifetime", "1s"]);
    assert_ended(&sim, &ended, 33, "stopped by the lifetime limit");
    assert_eq!(run(&ended), (vec![2], None));
}

#[test]
fn a_job_is_finished_though_the_lifetime_has_passed() {
    let script = RunnerScript::one_job(SECOND / 4, SECOND * 5 / 2);
    let (sim, ended, _) = boots(script, &["--lifetime", "1s"]);
    assert_ended(&sim, &ended, 0, "Succeeded");
    assert_eq!(run(&ended), (vec![], Some("Succeeded".to_owned())));
}

#[test]
fn without_a_limit_an_idle_runner_waits_on() {
    let sim = scripted(RunnerScript::one_job(SECOND * 3, SECOND / 10));
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).spawn().wait(LONG);
    assert_ended(&sim, &ended, 0, "Succeeded");
    assert_eq!(run(&ended), (vec![], Some("Succeeded".to_owned())));
}

/// What the Listener writes into its own log when its job went to another runner or to nobody, and when the
/// forge does not know it any more.
const LOST: [&str; 3] = [
    "[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Job message already acquired '5f'. \
     job assignment is invalid: MissingKey\n",
    "[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Job message not found '5f'.\n",
    "[2025-11-07 15:35:21Z INFO BrokerMessageListener] Retriable exception: Registration 5b1b was not found.\n",
];

#[test]
fn a_runner_that_the_forge_has_forgotten_is_ended_within_the_orphan_limit() {
    for line in LOST {
        let (sim, ended, took) = boots(RunnerScript::new().diag(line), &["--orphan-limit", "2s"]);
        assert_ended(&sim, &ended, 31, "stopped because the forge has forgotten it");
        assert_eq!(run(&ended), (vec![2], None));
        assert!(took < SECOND * 6, "it took {took:?}{}", Scene(&sim, &ended));
    }
}

#[test]
fn a_runner_that_gets_another_job_after_all_is_no_ghost() {
    let script = RunnerScript::one_job(SECOND, SECOND * 3).diag(LOST[0]);
    let (sim, ended, _) = boots(script, &["--orphan-limit", "2s"]);
    assert_ended(&sim, &ended, 0, "Succeeded");
    assert_eq!(run(&ended), (vec![], Some("Succeeded".to_owned())));
}

#[test]
fn nobody_looks_for_ghosts_unasked() {
    let script = RunnerScript::one_job(SECOND * 3, SECOND / 10).diag(LOST[0]);
    let (sim, ended, _) = boots(script, &[]);
    assert_ended(&sim, &ended, 0, "Succeeded");
}

#[test]
fn a_limit_that_no_clock_can_hold_is_as_good_as_none() {
    let forever = ["--idle-limit", "500000000000y", "--lifetime", "9000000000000000000s"];
    let more = ["--drain-timeout", "500000000000y", "--deadline", "500000000000y"];
    let settings = [forever, more].concat();
    let (sim, ended, _) = boots(RunnerScript::one_job(SECOND / 4, SECOND / 10), &settings);
    assert_ended(&sim, &ended, 0, "Succeeded");
}
