//! A handle of a process that is not our child, and never becomes another one's (pidfd_open(2)).

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use nix::libc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::sleep;

/// The kernel tells the status when the process has been reaped, by whoever its parent is now.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(20);

/// `struct pidfd_info` of Linux 6.13 and later (include/uapi/linux/pidfd.h).
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    /// pid, tgid, ppid, and four pairs of user and group.
    ids: [u32; 11],
    /// As wait(2) gives it; with [`EXIT`] in the mask, which Linux 6.15 has.
    exit_code: i32,
}

const EXIT: u64 = 1 << 3;

nix::ioctl_readwrite!(get_info, 0xFF, 11, Info);

/// The process `pid`.
#[expect(unsafe_code, reason = "there is no wrapper of pidfd_open")]
pub fn open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers, and returns a new descriptor that is ours, or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = RawFd::try_from(fd).map_err(|_| io::ErrorKind::InvalidData)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The process that `handle` is of; `None` when that has been reaped.
pub fn pid(handle: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd()))?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).map(str::trim);
    let pid: i32 = pid.and_then(|pid| pid.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(u32::try_from(pid).ok())
}

/// A process whose end is waited for.
#[derive(Debug)]
pub struct Watched(AsyncFd<OwnedFd>);

impl Watched {
    /// Must be called inside a runtime.
    #[expect(unsafe_code, reason = "the runtime has no safe way to be given a descriptor")]
    pub fn new(process: OwnedFd) -> io::Result<Self> {
        // SAFETY: an `OwnedFd` has one number until it is dropped, and is dropped after its registration.
        Ok(Self(unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?))
    }

    /// Waits for the end. `None`: it has ended, and this kernel does not say how.
    pub async fn ended(&self) -> io::Result<Option<ExitStatus>> {
        self.0.ready(Interest::READABLE).await?.retain_ready();
        for _ in 0..LOOKS {
            match exit_status(self.0.get_ref().as_raw_fd()) {
                Ok(Some(status)) => return Ok(Some(status)),
                // Not reaped yet.
                Ok(None) => sleep(LOOK).await,
                Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }
}

#[expect(unsafe_code, reason = "an ioctl")]
fn exit_status(process: RawFd) -> io::Result<Option<ExitStatus>> {
    let mut info = Info { mask: EXIT, ..Info::default() };
    // SAFETY: the kernel writes at most the size of `Info`, which is part of the request's number.
    unsafe { get_info(process, &raw mut info) }?;
    Ok((info.mask & EXIT != 0).then(|| ExitStatus::from_raw(info.exit_code)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "a process to look at")]
    async fn the_end_of_a_process_is_seen_and_its_status_where_the_kernel_tells_it() {
        let mut child =
            std::process::Command::new("/bin/sh").args(["-c", "exit 7"]).spawn().unwrap();
        let process = open(child.id()).unwrap();
        assert_eq!(pid(process.as_fd()).unwrap(), Some(child.id()));
        child.wait().unwrap();
        assert_eq!(pid(process.as_fd()).unwrap(), None);
        let known = exit_status(process.as_raw_fd()).ok().flatten();
        let seen = Watched::new(process).unwrap().ended().await.unwrap();
        assert_eq!(seen, known);
        assert!(seen.is_none_or(|status| status.code() == Some(7)), "{seen:?}");
    }
}
