//! What a boot that was killed outright has left running in the runner's home.
//!
//! As PID 1 nothing of it survives. Elsewhere a SIGKILL ends us alone: config.sh or the Listener goes on,
//! with nobody to lead it. Before anything is said or touched they are looked for:
//! - a config.sh is ended. It would go on writing into the home that this boot is about to configure,
//!   and what it has done so far is undone or replaced by the next one;
//! - a config.sh that an agent leads which lives (in the same home, with another state folder) is that one's;
//! - a Listener or a worker is left alone, and so is everything else: it may have a job, and a running
//!   job is not ours to kill. This boot is one too many, and ends.
//!
//! Dependencies that are being installed are left to dpkg's own lock.

use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use tracing::warn;

use crate::host::processes::{self, Process};

/// How an agent is called, and its init.
const NAME: &str = "garm-bootstrap";
const CONFIGURING: [&str; 1] = ["config.sh"];
const RUNNING: [&str; 4] = ["bin/Runner.Listener", "bin/Runner.Worker", "run.sh", "run-helper.sh"];

/// What is left in a home.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leftovers {
    configuring: Vec<Pid>,
    /// An agent that lives, and configures a runner here.
    pub(super) agent: Option<Pid>,
    /// A runner that lives, by its process.
    pub(super) runner: Option<Pid>,
}

impl Leftovers {
    pub(super) fn in_home(home: &Path) -> Self {
        Self::among(&processes::others(), home)
    }

    fn among(processes: &[Process], home: &Path) -> Self {
        // The kernel tells a program's path without links; a script's stands there as it was given.
        let real = std::fs::canonicalize(home.join("bin")).unwrap_or_else(|_| home.join("bin"));
        let within = |name: &&str| -> Vec<PathBuf> {
            let resolved = name.strip_prefix("bin/").map(|program| real.join(program));
            [Some(home.join(name)), resolved].into_iter().flatten().collect()
        };
        let runs_one = |process: &Process, names: &[&str]| {
            names.iter().flat_map(within).any(|path| process.runs(&path))
        };
        let mut left = Self { configuring: Vec::new(), agent: None, runner: None };
        for process in processes {
            // config.sh becomes the Listener with this word.
            let configures = process.args.iter().take(2).any(|arg| arg == "configure");
            let runner = runs_one(process, &RUNNING);
            if runs_one(process, &CONFIGURING) || (runner && configures) {
                match agent_above(process, processes) {
                    Some(agent) => left.agent = Some(agent),
                    None => left.configuring.push(process.pid),
                }
            } else if runner {
                left.runner = Some(process.pid);
            }
        }
        left
    }

    /// Ends every config.sh, its process group with it.
    pub(super) fn end_configuring(&self) {
        for pid in &self.configuring {
            warn!(%pid, "ending a config.sh that an earlier boot, which was killed, has left behind");
            // A group that it does not lead is somebody else's.
            let _ = match getpgid(Some(*pid)) {
                Ok(group) if group == *pid => killpg(group, Signal::SIGKILL),
                _ => kill(*pid, Signal::SIGKILL),
            };
        }
    }
}

/// The garm-bootstrap that has started `process`, itself or by a script between them.
fn agent_above(process: &Process, processes: &[Process]) -> Option<Pid> {
    let mut below = process;
    // Bounded, for the table may have changed while it was read.
    for _ in 0..16 {
        let parent = below.parent?;
        below = processes.iter().find(|process| process.pid == parent)?;
        let name = below.args.first().map(Path::new).and_then(Path::file_name);
        if name.is_some_and(|name| name.to_string_lossy().starts_with(NAME)) {
            return Some(below.pid);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, program: &str, args: &[&str]) -> Process {
        Process {
            pid: Pid::from_raw(pid),
            parent: None,
            program: Some(program.into()),
            args: args.iter().map(Into::into).collect(),
        }
    }

    #[test]
    fn a_config_sh_and_a_runner_of_this_home_are_told_apart_and_others_are_not_meant() {
        let table = [
            process(1, "/opt/r/garm-bootstrap", &["/opt/r/garm-bootstrap", "run"]),
            process(2, "/usr/bin/bash", &["/bin/bash", "/opt/r/config.sh", "--unattended"]),
            process(3, "/opt/r/bin/Runner.Listener", &["./bin/Runner.Listener", "configure"]),
            process(4, "/usr/bin/vi", &["vi", "/opt/r/notes"]),
            process(5, "/opt/other/bin/Runner.Listener", &["bin/Runner.Listener", "run"]),
        ];
        let left = Leftovers::among(&table, Path::new("/opt/r"));
        assert_eq!(left.configuring, [Pid::from_raw(2), Pid::from_raw(3)]);
        assert_eq!(left.runner, None);
        let runner = process(6, "/opt/r/bin/Runner.Listener", &["bin/Runner.Listener", "run"]);
        let left = Leftovers::among(&[runner], Path::new("/opt/r"));
        assert_eq!(left.runner, Some(Pid::from_raw(6)));
    }

    #[test]
    fn what_an_agent_that_lives_has_started_is_not_left_behind() {
        let below = |parent: i32, process: Process| Process {
            parent: Some(Pid::from_raw(parent)),
            ..process
        };
        let table = [
            process(1, "/sbin/init", &["/sbin/init"]),
            below(1, process(2, "/usr/bin/garm-bootstrap", &["/usr/bin/garm-bootstrap", "run"])),
            below(2, process(3, "/usr/bin/bash", &["/bin/bash", "/opt/r/config.sh"])),
            below(
                3,
                process(4, "/opt/r/bin/Runner.Listener", &["./bin/Runner.Listener", "configure"]),
            ),
        ];
        let left = Leftovers::among(&table, Path::new("/opt/r"));
        assert_eq!((left.agent, left.configuring.len()), (Some(Pid::from_raw(2)), 0));
        // With that agent killed.
        let orphans = [below(1, table[2].clone()), table[3].clone(), table[0].clone()];
        let left = Leftovers::among(&orphans, Path::new("/opt/r"));
        assert_eq!((left.agent, left.configuring.len()), (None, 2));
    }
}
