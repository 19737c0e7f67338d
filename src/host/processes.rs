//! Which other processes run here, as /proc shows them.
//!
//! Must not: signal any. What /proc does not show (it is not mounted, or hides them) does not run, as
//! far as we can know.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

/// A process and how it was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: Pid,
    pub parent: Option<Pid>,
    /// The program's file, where we may know it.
    pub program: Option<PathBuf>,
    pub args: Vec<OsString>,
}

impl Process {
    /// Whether it runs the program or the script at `path`.
    pub fn runs(&self, path: &Path) -> bool {
        // A script is the first argument of its interpreter.
        self.program.as_deref() == Some(path) || self.args.iter().take(2).any(|arg| arg == path)
    }
}

/// Every process but this one.
pub fn others() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let ours = nix::unistd::getpid();
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?);
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let program = fs::read_link(entry.path().join("exe")).ok();
            let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
            let parent = parent_in(&String::from_utf8_lossy(&stat));
            (pid != ours).then(|| Process { pid, parent, program, args: arguments(&line) })
        })
        .collect()
}

/// The parent in a /proc/PID/stat: the second field after the name, which stands in parentheses and may
/// hold anything, spaces and parentheses included (proc_pid_stat(5)).
pub fn parent_in(stat: &str) -> Option<Pid> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok().map(Pid::from_raw)
}

/// The arguments in a /proc/PID/cmdline: each ends with a NUL.
fn arguments(line: &[u8]) -> Vec<OsString> {
    let line = line.strip_suffix(b"\0").unwrap_or(line);
    line.split(|byte| *byte == 0).map(|arg| OsString::from_vec(arg.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_known_by_its_interpreters_first_argument() {
        let process = Process {
            pid: Pid::from_raw(7),
            parent: None,
            program: Some("/usr/bin/dash".into()),
            args: arguments(b"/bin/sh\0/home/r/config.sh\0--url\0/home/r/run.sh\0"),
        };
        assert!(process.runs(Path::new("/home/r/config.sh")));
        assert!(process.runs(Path::new("/usr/bin/dash")));
        assert!(!process.runs(Path::new("/home/r/run.sh")));
    }

    #[test]
    fn a_processs_name_cannot_forge_its_parent() {
        assert_eq!(parent_in("42 (sh) S 7 42 42 0"), Some(Pid::from_raw(7)));
        assert_eq!(parent_in("42 (x) S 1 (y) R 7 42"), Some(Pid::from_raw(7)));
        assert_eq!(parent_in("42"), None);
    }

    #[test]
    fn others_are_seen_and_we_are_not_among_them() {
        let ours = nix::unistd::getpid();
        assert!(others().iter().all(|process| process.pid != ours));
        assert!(!others().is_empty());
        let ours = nix::unistd::getppid();
        assert!(others().iter().any(|process| process.pid == ours));
    }
}
