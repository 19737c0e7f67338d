//! Want of memory: who is killed for it, and how that is told.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use garm_sim::archive::{runner_runs, runner_starts};
use garm_sim::{InstanceSpec, RunnerScript};

use crate::support::after::{
    Scene, assert_failed_once, assert_nothing_left, wait, wait_for_note, wait_for_start,
    wait_for_status,
};
use crate::support::{Boot, FOR_EVER, LONG, need_root, one_job, read, scripted};

/// A cgroup with little memory, of whichever version this machine has.
struct Little(PathBuf);

impl Little {
    fn new() -> Self {
        need_root();
        let name = format!("garm-it-{}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (group, limits) = if v1.is_dir() {
            (v1.join(name), ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"])
        } else {
            let root = Path::new("/sys/fs/cgroup");
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
            (root.join(name), ["memory.max", "memory.swap.max"])
        };
        fs::create_dir(&group).expect("root can make a cgroup for memory");
        fs::write(group.join(limits[0]), "64M").unwrap();
        // Where there is no swap it cannot be limited.
        let _ = fs::write(
            group.join(limits[1]),
            if limits[1].contains("swap.max") { "0" } else { "64M" },
        );
        Self(group)
    }

    /// Words that start a program inside.
    fn enter(&self) -> String {
        format!("echo $$ >{}/cgroup.procs; exec \"$@\"", self.0.display())
    }
}

impl Drop for Little {
    fn drop(&mut self) {
        // What has just been killed may still be on its way out.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_runner_that_the_kernel_kills_for_want_of_memory_is_told_as_that() {
    let little = Little::new();
    // The job makes the Listener the best victim, and then takes all there is: by two, for the kernel
    // rounds the score down so far that one who has nearly all would be taken instead.
    let eat = "echo 1000 >/proc/$PPID/oom_score_adj; tail /dev/zero & exec tail /dev/zero";
    let sim =
        scripted(RunnerScript::one_job(Duration::from_millis(200), FOR_EVER).job_command(eat));
    let instance = sim.create(InstanceSpec::default());
    let enter = little.enter();
    let running = Boot::of(&instance).as_root().through(&["sh", "-c", &enter, "sh"]).spawn();
    let ended = running.wait(LONG);
    let scene = Scene(&sim, &ended);
    assert_eq!(ended.code, 34, "{scene}");
    let says = "killed by signal 9 (by the kernel, for want of memory)";
    assert!(ended.stderr.contains(says), "{scene}");
    assert_nothing_left(&sim, &ended);
}

#[test]
fn a_runner_that_somebody_kills_is_not_told_as_that() {
    let sim = scripted(RunnerScript::new());
    let instance = sim.create(InstanceSpec::default());
    let running = Boot::of(&instance).as_root().spawn();
    wait_for_status(&running, &sim, "idle");
    let listener = nix::unistd::Pid::from_raw(runner_runs(&running.home())[0].pid);
    nix::sys::signal::kill(listener, nix::sys::signal::Signal::SIGKILL).unwrap();
    let ended = running.wait(LONG);
    assert_eq!(ended.code, 34, "{}", Scene(&sim, &ended));
    assert!(!ended.stderr.contains("memory)"), "{}", Scene(&sim, &ended));
}

#[test]
fn the_agent_is_spared_and_the_runner_is_not() {
    let score = |pid: i32| read(Path::new(&format!("/proc/{pid}/oom_score_adj"))).trim().to_owned();
    let sim = scripted(RunnerScript::one_job(Duration::from_millis(200), FOR_EVER));
    let instance = sim.create(InstanceSpec::default());
    let set = "echo 300 >/proc/self/oom_score_adj; exec \"$@\"";
    let running = Boot::of(&instance).as_root().through(&["sh", "-c", set, "sh"]).spawn();
    wait_for_note(&running, &sim, "job started");
    // Without CAP_SYS_RESOURCE it can only go back to where it was.
    let agents = score(running.pid().as_raw());
    assert!(["-900", "0"].contains(&agents.as_str()), "{agents}");
    assert_eq!(score(runner_runs(&running.home())[0].pid), "300");
    running.signal(nix::sys::signal::Signal::SIGTERM);
    wait(&running, &sim, "it has heard that", || running.stderr().contains("asked to leave"));
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.wait(LONG);
}

/// A boot that finds its control group in `folder`, whose counters the test writes.
fn with_counters(boot: Boot, folder: &Path) -> Boot {
    fs::create_dir(folder).unwrap();
    count(folder, 4);
    boot.in_namespace(&format!("mount --bind {} /sys/fs/cgroup; exec \"$@\"", folder.display()))
}

fn count(folder: &Path, kills: u32) {
    fs::write(folder.join("memory.events"), format!("max 9\noom 1\noom_kill {kills}\n")).unwrap();
}

fn kill_hard(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .unwrap();
}

#[test]
fn a_runner_that_is_killed_for_want_of_memory_before_it_is_idle_is_told_to_garm_as_that() {
    for counted in [true, false] {
        let sim = scripted(RunnerScript::new().hang_before_listening());
        let instance = sim.create(InstanceSpec::default());
        let boot = Boot::of(&instance);
        let folder = boot.path("cgroup");
        let running = with_counters(boot, &folder).spawn();
        wait_for_start(&running, &sim, "run");
        if counted {
            count(&folder, 5);
        }
        kill_hard(runner_runs(&running.home())[0].pid);
        let ended = running.wait(LONG);
        assert_eq!(ended.code, 34, "{}", Scene(&sim, &ended));
        let message = assert_failed_once(&sim, &ended, "killed", "start");
        assert_eq!(message.contains("(by the kernel, for want of memory)"), counted, "{message}");
        assert_nothing_left(&sim, &ended);
    }
}

#[test]
fn a_config_sh_that_is_killed_for_want_of_memory_is_told_as_that() {
    let first = RunnerScript::new().config(FOR_EVER);
    let sim = scripted(one_job().on_start(1, &first));
    let instance = sim.create(InstanceSpec::with_token());
    let boot = Boot::of(&instance);
    let folder = boot.path("cgroup");
    let running = with_counters(boot, &folder).spawn();
    wait_for_start(&running, &sim, "configure");
    count(&folder, 5);
    kill_hard(runner_starts(&running.home())[0].pid);
    let ended = running.wait(LONG).expect_job(&sim);
    let says = "(killed by the kernel for want of memory)";
    assert!(ended.stderr.contains(says), "{}", Scene(&sim, &ended));
}

#[test]
fn what_we_have_killed_ourselves_is_not_put_down_to_the_kernel() {
    let sim = scripted(RunnerScript::new().ignore_signals());
    let instance = sim.create(InstanceSpec::default());
    let boot = Boot::of(&instance).env("GARM_STOP_GRACE", "300ms");
    let folder = boot.path("cgroup");
    let running = with_counters(boot, &folder).spawn();
    wait_for_status(&running, &sim, "idle");
    // Something else in this group.
    count(&folder, 5);
    running.signal(nix::sys::signal::Signal::SIGTERM);
    let ended = running.wait(LONG);
    assert_eq!(ended.code, 0, "{}", Scene(&sim, &ended));
    assert!(!ended.stderr.contains("by the kernel"), "{}", Scene(&sim, &ended));
}
