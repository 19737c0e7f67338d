//! What a boot leaves behind: processes, files, and what GARM heard.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use garm_sim::archive::{runner_runs, runner_starts};
use garm_sim::{Call, Endpoint, Instance, Sim};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Ended, Running};

/// A process, as `/proc` shows it to us.
pub struct Process {
    pub pid: i32,
    pub command: String,
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.command.trim())
    }
}

/// Everything that is needed to understand a failed assertion.
pub struct Scene<'a>(pub &'a Sim, pub &'a Ended);

impl fmt::Display for Scene<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(sim, ended) = self;
        write!(
            f,
            "\nended with {}\n{}\nstderr:\n{}\nstdout:\n{}\njournal:\n{}",
            ended.code,
            sim.calls_table(),
            ended.stderr,
            ended.stdout,
            ended.journal()
        )
    }
}

/// The processes that run a program below `dir`, or in a folder below it. Zombies have neither.
pub fn processes_under(dir: &Path) -> Vec<Process> {
    let looked_at = |pid: i32| {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let exe = fs::read_link(proc.join("exe")).ok()?;
        let cwd = fs::read_link(proc.join("cwd")).ok()?;
        let command = fs::read(proc.join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        (exe.starts_with(dir) || cwd.starts_with(dir)).then_some(Process { pid, command })
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(looked_at).collect()
}

/// The calls to `callbacks/status`, with the status that each posted, whatever the answer.
pub fn statuses(sim: &Sim) -> Vec<(String, Call)> {
    let calls = sim.calls().into_iter().filter(|call| call.endpoint == Endpoint::Status);
    calls.map(|call| (call.posted_status().unwrap_or_default(), call)).collect()
}

/// How often `status` was posted.
pub fn posted(sim: &Sim, status: &str) -> usize {
    statuses(sim).iter().filter(|(posted, _)| posted == status).count()
}

/// The messages of the `failed` that were posted.
pub fn failures(sim: &Sim) -> Vec<String> {
    let failed = statuses(sim).into_iter().filter(|(posted, _)| posted == "failed");
    failed.map(|(_, call)| call.posted_message().unwrap_or_default()).collect()
}

/// Exactly one `failed`, which begins with `[reason] phase:`; its whole message.
pub fn assert_failed_once(sim: &Sim, ended: &Ended, reason: &str, phase: &str) -> String {
    let mut failures = failures(sim);
    let scene = Scene(sim, ended);
    assert_eq!(failures.len(), 1, "exactly one `failed` is sent{scene}");
    let message = failures.remove(0);
    let start = format!("[{reason}] {phase}: failed to ");
    assert!(message.starts_with(&start), "{message:?} begins with {start:?}{scene}");
    message
}

/// No process of the boot is alive, and nothing half-written lies about.
pub fn assert_nothing_left(sim: &Sim, ended: &Ended) {
    let alive = processes_under(ended.dir.path());
    assert!(alive.is_empty(), "still alive: {alive:?}{}", Scene(sim, ended));
    let partial = half_written(&ended.dir.path().join("work"));
    assert!(partial.is_empty(), "half-written: {partial:?}{}", Scene(sim, ended));
    // A home is either empty or whole; the script and the Listener are at both ends of the archive.
    let home = ended.home();
    let unpacked = ["bin/Runner.Listener", "config.sh", "run.sh", "externals"];
    let there = unpacked.iter().filter(|name| home.join(name).exists()).count();
    assert!(there == 0 || there == unpacked.len(), "half a runner{}", Scene(sim, ended));
}

/// Names that only something unfinished has: a growing tree, or a file that was to be renamed.
pub fn half_written(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let ends_in_pid = name.rsplit_once('.').is_some_and(|(start, end)| {
            start.len() > 1 && !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit())
        });
        let growing = name.contains(".partial-") || name.contains(".garm-bootstrap.replaced");
        if growing || (name.starts_with('.') && ends_in_pid) {
            found.push(path);
        } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(half_written(&path));
        }
    }
    found
}

/// What is wrong if GARM has taken more than one `idle` or `failed`.
pub fn terminal_statuses(instance: &Instance) -> Option<String> {
    let terminal: Vec<String> = instance
        .messages()
        .into_iter()
        .filter(|row| row.accepted)
        .filter_map(|row| row.status.filter(|status| status == "idle" || status == "failed"))
        .collect();
    (terminal.len() > 1).then(|| format!("GARM took {}", terminal.join(" and ")))
}

/// The registration files that are in the home.
pub fn registration_files(home: &Path) -> Vec<&'static str> {
    let names = [".runner", ".credentials", ".credentials_rsaparams"];
    names.into_iter().filter(|name| home.join(name).exists()).collect()
}

/// Waits until the runner has noted `what` in its journal.
pub fn wait_for_note(running: &Running, sim: &Sim, what: &str) {
    let home = running.home();
    let noted = || {
        let starts = runner_starts(&home);
        starts.iter().any(|start| start.notes.iter().any(|note| note.starts_with(what)))
    };
    wait(running, sim, &format!("the runner notes \"{what}\""), noted);
}

/// Waits until GARM was told `status` and has answered.
pub fn wait_for_status(running: &Running, sim: &Sim, status: &str) {
    wait(running, sim, &format!("`{status}` is posted"), || {
        statuses(sim).iter().any(|(posted, call)| posted == status && call.status.is_some())
    });
}

/// Sends SIGINT to the Listener itself, when GARM knows that it is idle. Nobody has asked us to leave.
pub fn end_the_idle_listener(running: &Running, sim: &Sim) {
    wait_for_status(running, sim, "idle");
    let listener = runner_runs(&running.home())[0].pid;
    kill(Pid::from_raw(listener), Signal::SIGINT).unwrap();
}

/// Waits until a fake Listener was started with `subcommand`.
pub fn wait_for_start(running: &Running, sim: &Sim, subcommand: &str) {
    let home = running.home();
    wait(running, sim, &format!("{subcommand} is started"), || {
        runner_starts(&home).iter().any(|start| start.subcommand == subcommand)
    });
}

/// [`super::wait_until`], with the scene in the failure.
pub fn wait(running: &Running, sim: &Sim, what: &str, holds: impl Fn() -> bool) {
    let until = std::time::Instant::now() + super::LONG;
    while !holds() {
        assert!(
            std::time::Instant::now() < until,
            "waited in vain until {what}\n{}\nstderr:\n{}",
            sim.calls_table(),
            running.stderr()
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
