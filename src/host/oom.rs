//! The kernel's out-of-memory killer: who it is to spare, and whether it has struck.
//!
//! Facts: proc_pid_oom_score_adj(5); `oom_kill` in `memory.events` (cgroup v2, descendants included) and
//! in `memory.oom_control` (v1); the kernel log's "Killed process PID (name)". Must not: decide what
//! follows from it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use nix::fcntl::OFlag;

use super::container::in_first_pid_namespace;

const SCORE_ADJ: &str = "/proc/self/oom_score_adj";
/// Spared as long as anything else can be killed, but not immune; and what is left to those who lack
/// CAP_SYS_RESOURCE, if somebody has raised their value before.
const SPARED: [i32; 2] = [-900, 0];

/// What our own value was before [`protect`] has changed it.
static BEFORE: OnceLock<i32> = OnceLock::new();

/// Asks the kernel to kill others before us, as far as we may; elsewhere nothing changes.
pub fn protect() {
    let before = fs::read_to_string(SCORE_ADJ).ok().and_then(|text| text.trim().parse().ok());
    let Some(before) = before else { return };
    let better = SPARED.into_iter().filter(|score| *score < before);
    if better.map(|score| fs::write(SCORE_ADJ, score.to_string())).any(|done| done.is_ok()) {
        let _ = BEFORE.set(before);
    }
}

/// The value that our children are to have, if it is not ours any more.
pub(super) fn for_children() -> Option<i32> {
    BEFORE.get().copied()
}

/// Where a child writes it.
pub(super) const CHILDS_SCORE_ADJ: &std::ffi::CStr = c"/proc/self/oom_score_adj";

/// Looks out for kills from now on.
pub struct Watch {
    counters: Vec<PathBuf>,
    before: u64,
    kernel_log: Option<File>,
}

impl Watch {
    pub fn start() -> Self {
        Self::below(Path::new("/"), kernel_log())
    }

    fn below(root: &Path, kernel_log: Option<File>) -> Self {
        let counters = counters(root);
        Self { before: count(&counters), counters, kernel_log }
    }

    /// Whether it has killed `pid`, as far as can be known when that has died of SIGKILL.
    pub fn has_killed(&mut self, pid: Option<u32>) -> bool {
        self.kills() > 0 || pid.is_some_and(|pid| self.names(pid))
    }

    /// How many processes of our cgroup it has killed since.
    pub fn kills(&self) -> u64 {
        count(&self.counters).saturating_sub(self.before)
    }

    /// Whether the kernel's log says since then that it has killed the process `pid`.
    fn names(&mut self, pid: u32) -> bool {
        let Some(log) = &mut self.kernel_log else { return false };
        let wanted = format!("Killed process {pid} ");
        let mut record = [0; 8192];
        loop {
            match log.read(&mut record) {
                Ok(0) => return false,
                Ok(length) if String::from_utf8_lossy(&record[..length]).contains(&wanted) => {
                    return true;
                }
                Ok(_) => {}
                // Records were overwritten before we came to them; the next read goes on behind.
                Err(error) if error.raw_os_error() == Some(nix::libc::EPIPE) => {}
                Err(_) => return false,
            }
        }
    }
}

/// The kernel's log from here on, where we may read it and it speaks of our process ids.
fn kernel_log() -> Option<File> {
    let flags = OFlag::O_NONBLOCK.bits();
    let mut log = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg").ok()?;
    log.seek(SeekFrom::End(0)).ok()?;
    in_first_pid_namespace().then_some(log)
}

/// The files that count the kills in our cgroup.
fn counters(root: &Path) -> Vec<PathBuf> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mounts = root.join("sys/fs/cgroup");
    let found = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let path = path.trim_start_matches('/');
        // In a cgroup namespace, or with only our own group mounted, the path says less than the mount.
        let places = |mount: PathBuf, file: &str| {
            [mount.join(path).join(file), mount.join(file)].into_iter().find(|file| file.is_file())
        };
        if controllers.is_empty() {
            places(mounts.clone(), "memory.events")
                .or_else(|| places(mounts.join("unified"), "memory.events"))
        } else if controllers.split(',').any(|controller| controller == "memory") {
            places(mounts.join("memory"), "memory.oom_control")
        } else {
            None
        }
    });
    found.collect()
}

fn count(counters: &[PathBuf]) -> u64 {
    let kills = |file: &PathBuf| {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "))?;
        line.trim().parse::<u64>().ok()
    };
    counters.iter().filter_map(kills).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(cgroup: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", cgroup);
        for (path, text) in files {
            write(path, text);
        }
        dir
    }

    #[test]
    fn kills_are_counted_in_both_versions_of_cgroups() {
        let v2 =
            ("0::/system.slice/x.service\n", "sys/fs/cgroup/system.slice/x.service/memory.events");
        let namespace = ("0::/\n", "sys/fs/cgroup/memory.events");
        let v1 = (
            "4:cpu,memory:/docker/abc\n0::/\n",
            "sys/fs/cgroup/memory/docker/abc/memory.oom_control",
        );
        let bound = ("4:memory:/docker/abc\n", "sys/fs/cgroup/memory/memory.oom_control");
        for (cgroup, file) in [v2, namespace, v1, bound] {
            let dir = root(cgroup, &[(file, "low 0\noom 3\noom_kill 2\n")]);
            let watch = Watch::below(dir.path(), None);
            assert_eq!(watch.kills(), 0, "{file}");
            fs::write(dir.path().join(file), "low 0\noom 5\noom_kill 3\noom_group_kill 0\n")
                .unwrap();
            assert_eq!(watch.kills(), 1, "{file}");
        }
    }

    #[test]
    fn without_a_counter_nothing_was_killed() {
        let dir = root("0::/\n", &[("sys/fs/cgroup/memory.events", "garbage")]);
        assert_eq!(Watch::below(dir.path(), None).kills(), 0);
        assert_eq!(Watch::below(Path::new("/nowhere"), None).kills(), 0);
    }

    #[test]
    fn the_kernel_log_names_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("kmsg");
        fs::write(&log, "3,1,2,-;Out of memory: Killed process 77 (Runner.Worker) total-vm:1kB\n")
            .unwrap();
        let watch = || Watch::below(dir.path(), File::open(&log).ok());
        assert!(watch().names(77));
        assert!(!watch().names(7));
    }
}
