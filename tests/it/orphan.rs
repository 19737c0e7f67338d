//! An idle runner that GARM has forgotten, and all those that only look like one.

use std::time::Duration;

use garm_sim::archive::runner_runs;
use garm_sim::{Endpoint, Fault, FaultKind, Instance, InstanceSpec, RunnerScript, Sim};

use crate::support::after::{Scene, assert_nothing_left, posted, wait, wait_for_status};
use crate::support::{Boot, Ended, LONG, Running, scripted};

const SECOND: Duration = Duration::from_secs(1);

fn idle(script: RunnerScript, limit: &str) -> (Sim, Instance, Running) {
    let sim = scripted(script);
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).arg("--orphan-limit").arg(limit).spawn();
    wait_for_status(&running, &sim, "idle");
    (sim, instance, running)
}

fn assert_forgotten(sim: &Sim, ended: &Ended) {
    let scene = Scene(sim, ended);
    assert_eq!(ended.code, 11, "{scene}");
    assert!(ended.stderr.contains("GARM has forgotten this instance"), "{scene}");
    assert_eq!(runner_runs(&ended.home())[0].signals, [2], "{scene}");
    assert_nothing_left(sim, ended);
}

fn assert_job_done(sim: &Sim, ended: &Ended) {
    let scene = Scene(sim, ended);
    let run = runner_runs(&ended.home()).remove(0);
    assert_eq!((ended.code, run.signals.len()), (0, 0), "{scene}");
    assert!(run.notes.contains(&"job ended Succeeded".to_owned()), "{scene}");
}

#[test]
fn an_idle_runner_whose_garm_is_gone_leaves() {
    let (sim, _instance, running) = idle(RunnerScript::new(), "2s");
    sim.garm_down();
    assert_forgotten(&sim, &running.wait(LONG));
}

#[test]
fn an_idle_runner_leaves_when_something_else_is_where_garm_was() {
    for status in [404, 410, 502, 503] {
        let (sim, _instance, running) = idle(RunnerScript::new(), "1s");
        sim.fault(Fault::new(Endpoint::RunnerMetadata).kind(FaultKind::status(status)));
        assert_forgotten(&sim, &running.wait(LONG));
    }
}

#[test]
fn a_runner_that_garm_has_never_taken_as_idle_leaves_if_no_job_comes() {
    let sim = scripted(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(FaultKind::unauthorized()));
    let running = Boot::of(&instance).arg("--orphan-limit").arg("1s").spawn();
    assert_forgotten(&sim, &running.wait(LONG));
}

#[test]
fn a_job_that_was_faster_than_idle_is_finished() {
    let sim = scripted(RunnerScript::one_job(SECOND / 2, SECOND * 2));
    let instance = sim.create(InstanceSpec::default());
    sim.fault(Fault::new(Endpoint::Status).posting("idle").kind(FaultKind::unauthorized()));
    let ended = Boot::of(&instance).arg("--orphan-limit").arg("1s").spawn().wait(LONG);
    assert_job_done(&sim, &ended);
}

#[test]
fn a_job_is_finished_though_garm_is_gone() {
    let (sim, _instance, running) = idle(RunnerScript::one_job(SECOND / 2, SECOND * 3), "1s");
    sim.garm_down();
    assert_job_done(&sim, &running.wait(LONG));
}

#[test]
fn a_garm_that_comes_back_in_time_starts_the_time_anew() {
    let (sim, _instance, running) = idle(RunnerScript::one_job(SECOND * 8, SECOND / 10), "4s");
    // Each absence is shorter than the limit, both together are longer.
    for _ in 0..2 {
        sim.garm_down();
        std::thread::sleep(SECOND * 2);
        sim.garm_up().unwrap();
        let calls = sim.calls().len();
        wait(&running, &sim, "it has asked again", || sim.calls().len() > calls);
    }
    assert_job_done(&sim, &running.wait(LONG));
}

#[test]
fn a_healthy_runner_of_a_warm_pool_stays_though_every_answer_is_401() {
    let (sim, instance, running) = idle(RunnerScript::one_job(SECOND * 5, SECOND / 10), "1s");
    // GARM says the same of an instance that it has deleted: nothing follows from it.
    instance.delete();
    let ended = running.wait(LONG);
    assert_job_done(&sim, &ended);
    let refused = sim.calls().iter().filter(|call| call.status == Some(401)).count();
    assert!(refused > 3, "{}", Scene(&sim, &ended));
}

#[test]
fn nobody_asks_whether_garm_is_there_by_default() {
    let sim = scripted(RunnerScript::one_job(SECOND * 3, SECOND / 10));
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).spawn();
    wait_for_status(&running, &sim, "idle");
    let calls = crate::support::garm_calls(&sim).len();
    let ended = running.wait(LONG);
    assert_job_done(&sim, &ended);
    assert_eq!(crate::support::garm_calls(&sim).len(), calls, "{}", Scene(&sim, &ended));
    assert_eq!(posted(&sim, "failed"), 0);
}
