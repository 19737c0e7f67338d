//! The end of the runner's own log is told where the runner has ended badly: the instance takes that log
//! with it.

use garm_sim::{InstanceSpec, RunnerScript};

use crate::support::after::{Scene, assert_failed_once, end_the_idle_listener, posted};
use crate::support::{Boot, LONG, one_job, scripted};

const LINE: &str = "[2026-12-01 02:03:04Z ERR  Terminal] WRITE ERROR: the disk is full of eels\n";

#[test]
fn a_runner_that_does_not_come_up_is_told_with_the_end_of_its_log() {
    let sim = scripted(RunnerScript::new().exit_before_listening().exit_code(1).diag(LINE));
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run();
    let message = assert_failed_once(&sim, &ended, "runner_not_ready", "start");
    assert!(message.contains("own log: ") && message.contains("full of eels"), "{message}");
    assert!(ended.stderr.contains("full of eels"), "{}", Scene(&sim, &ended));
}

#[test]
fn a_runner_that_ends_badly_after_idle_leaves_the_end_of_its_log_in_ours() {
    let sim = scripted(RunnerScript::new().signal_exit_code(1).diag(LINE));
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).spawn();
    end_the_idle_listener(&running, &sim);
    let ended = running.wait(LONG);
    assert_eq!((ended.code, posted(&sim, "failed")), (30, 0), "{}", Scene(&sim, &ended));
    assert!(ended.stderr.contains("full of eels"), "{}", Scene(&sim, &ended));
}

#[test]
fn a_secret_in_the_runners_log_is_masked() {
    let sim = scripted(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance);
    // What the agent knows as a secret, and the runner's log should never hold.
    let token = instance.token();
    let script = RunnerScript::new().exit_before_listening().exit_code(1);
    let script = script.diag(format!("{LINE}the token is {token}\n"));
    let home = boot.home();
    let boot = boot.unpack(&sim, &home);
    sim.write_script(&home, &script).unwrap();
    let ended = boot.run();
    let message = assert_failed_once(&sim, &ended, "runner_not_ready", "start");
    assert!(message.contains("the token is "), "{message}");
    assert!(!message.contains(&token) && !ended.output().contains(&token), "{message}");
}

#[test]
fn a_runner_that_did_its_job_does_not_fill_our_log() {
    let sim = scripted(one_job().diag(LINE));
    let instance = sim.create(InstanceSpec::default());
    let ended = Boot::of(&instance).run();
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    assert!(!ended.output().contains("eels"), "{}", Scene(&sim, &ended));
}
