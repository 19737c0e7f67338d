//! What an agent costs that only watches, and what a boot costs GARM.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use garm_sim::{Call, InstanceSpec, RunnerScript};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::support::{Boot, LONG, both_kinds, garm_calls, good, scripted};

/// A thread of the blocking pool lives so long after its last work; its end is a last wake-up.
const SETTLE: Duration = Duration::from_secs(12);
const WATCHED: Duration = Duration::from_secs(20);
/// Two a minute are allowed; so in a third of one. The client's look at its idle connections, 50 s after
/// the last call, is not in it.
const WAKE_UPS: u64 = 1;

/// How often the threads of `pid` were given the processor since they began.
fn wake_ups(pid: Pid) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let switches = |status: String| -> u64 {
        let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        counts.map(|(_, count)| count.trim().parse::<u64>().unwrap()).sum()
    };
    tasks
        .map(|task| switches(fs::read_to_string(task.unwrap().path().join("status")).unwrap()))
        .sum()
}

#[test]
fn an_idle_agent_does_not_wake_up() {
    let sim = scripted(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).spawn();
    assert!(instance.wait_for_runner_status("idle", LONG), "{}", sim.calls_table());
    std::thread::sleep(SETTLE);
    let before = wake_ups(running.pid());
    std::thread::sleep(WATCHED);
    let count = wake_ups(running.pid()) - before;
    assert!(before > 0, "the wake-ups were not counted");
    assert!(count <= WAKE_UPS, "{count} wake-ups in {WATCHED:?}");
    running.signal(Signal::SIGTERM);
    running.wait(LONG);
}

#[test]
fn a_boot_costs_garm_few_requests_and_few_connections() {
    for (kind, spec) in both_kinds() {
        let sim = good();
        let instance = sim.create(spec);
        Boot::of(&instance).run().expect_job(&sim);
        let calls = garm_calls(&sim);
        let connections: BTreeSet<u64> = calls.iter().map(|call: &Call| call.connection).collect();
        assert!(calls.len() <= 12, "{kind}\n{}", sim.calls_table());
        assert!(connections.len() <= 3, "{kind}: {connections:?}\n{}", sim.calls_table());
    }
}
