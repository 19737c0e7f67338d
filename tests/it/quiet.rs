//! What an agent costs that only watches, and what a boot costs GARM.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use garm_sim::archive::{EntryKind, ExtraEntry};
use garm_sim::{ArchiveSpec, Call, InstanceSpec, RunnerScript, Sim, SimOptions};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::support::{Boot, FOR_EVER, LONG, both_kinds, garm_calls, good, scripted, wait_until};

/// A thread of the blocking pool lives so long after its last work; its end is a last wake-up.
const SETTLE: Duration = Duration::from_secs(12);
/// With the time before it long enough for whoever looks at idle connections once a minute.
const WATCHED: Duration = Duration::from_secs(48);
/// Two a minute are allowed.
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

/// The TCP connections of `pid`: its descriptors that the kernel's list knows as established.
fn connections(pid: Pid) -> usize {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let inodes: BTreeSet<String> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(3) == Some(&ESTABLISHED))
        .map(|fields| format!("socket:[{}]", fields[9]))
        .collect();
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = descriptors.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    targets.filter(|target| inodes.contains(&*target.to_string_lossy())).count()
}

#[test]
fn no_connection_is_kept_while_there_is_nothing_to_say() {
    let script = RunnerScript::new().listen_after(Duration::from_secs(1));
    let sim = scripted(script);
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).spawn();
    wait_until("the boot has a connection", || connections(running.pid()) > 0);
    assert!(instance.wait_for_runner_status("idle", LONG), "{}", sim.calls_table());
    wait_until("the connection is closed", || connections(running.pid()) == 0);
    running.signal(Signal::SIGTERM);
    running.wait(LONG);
}

/// Bytes that do not shrink.
fn noise(mut seed: u64, length: usize) -> Vec<u8> {
    let mut next = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    };
    (0..length / 8).flat_map(|_| next()).collect()
}

#[test]
fn a_job_has_the_memory_that_the_boot_has_used() {
    let script = RunnerScript::one_job(Duration::from_millis(50), FOR_EVER);
    let extra_entries = (1..=60)
        .map(|n| ExtraEntry {
            path: format!("externals/noise{n}"),
            mode: 0o644,
            kind: EntryKind::File(noise(n, 1 << 20)),
        })
        .collect();
    let archive = ArchiveSpec { extra_entries, ..ArchiveSpec::scripted(script) };
    let sim = Sim::start(SimOptions { archive, ..SimOptions::default() });
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).with_static_binary().spawn();
    wait_until("the job runs", || running.stdout().contains("Running job"));
    let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
    let kb = |key: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    assert!(kb("VmHWM") <= 40_000 && kb("VmRSS") <= 8_000, "{status}");
    assert!(kb("VmHWM") > kb("VmRSS") + 2_000, "the boot has not used much: {status}");
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
