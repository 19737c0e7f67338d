//! Waiting for every process there is, and ending what is left at the end.

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, alarm};

use super::descendants;

/// How many seconds processes may take to end after SIGTERM, and again after SIGKILL.
const GRACE: u32 = 2;

/// The exit code that stands for `status`: the process's own, or 128 and the signal that killed it.
/// `None` for a process that has not ended (stopped, continued, traced).
pub(super) fn exit_code_of(status: WaitStatus) -> Option<u8> {
    match status {
        // The kernel keeps the low eight bits.
        WaitStatus::Exited(_, code) => Some(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        WaitStatus::Signaled(_, signal, _) => Some(128 + signal as u8),
        _ => None,
    }
}

/// Reaps all that have ended, and says how `agent` did if it is among them.
pub(super) fn reap(agent: Pid) -> Option<u8> {
    let mut code = None;
    while let Some(status) = ended() {
        if status.pid() == Some(agent) {
            code = exit_code_of(status).or(code);
        }
    }
    // Gone, but by a real-time signal that has no name: its code went unread.
    code.or_else(|| (kill(agent, None) == Err(Errno::ESRCH)).then_some(u8::MAX))
}

/// Ends what the agent has left: SIGTERM, and SIGKILL to those that stay. `signal` sends to them all.
/// Returns when none is there any more, or cannot be ended.
pub(super) fn end_the_rest(waited: &SigSet, signal: impl Fn(Signal)) {
    for last in [Signal::SIGTERM, Signal::SIGKILL] {
        if is_childless() {
            return;
        }
        signal(last);
        // The alarm ends the wait; like all signals it is blocked, so it only ever comes out of `wait`.
        alarm::set(GRACE);
        while let Ok(woken_by) = waited.wait() {
            if is_childless() || woken_by == Signal::SIGALRM {
                break;
            }
            // One killed process may have had children: they are ours now, and as old as it was.
            if last == Signal::SIGKILL {
                signal(last);
            }
        }
        alarm::cancel();
    }
}

/// Sends to all processes but us. Only PID 1 may: elsewhere that is the whole machine.
pub(super) fn everyone(signal: Signal) {
    let _ = kill(Pid::from_raw(-1), signal);
}

/// Sends to our children and theirs.
pub(super) fn all_below_us(signal: Signal) {
    for pid in descendants::of(nix::unistd::getpid()) {
        let _ = kill(pid, signal);
    }
}

/// Reaps all that have ended; whether no child is left, alive or dead.
fn is_childless() -> bool {
    while ended().is_some() {}
    waitpid(None, Some(WaitPidFlag::WNOHANG)) == Err(Errno::ECHILD)
}

/// One ended child, reaped.
fn ended() -> Option<WaitStatus> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return None,
            Ok(status) => return Some(status),
            // Killed by a real-time signal, which nix has no name for: reaped all the same.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_processs_own_or_128_and_the_signal() {
        let pid = Pid::from_raw(7);
        let table = [
            (WaitStatus::Exited(pid, 0), Some(0)),
            (WaitStatus::Exited(pid, 31), Some(31)),
            (WaitStatus::Exited(pid, 255), Some(255)),
            (WaitStatus::Signaled(pid, Signal::SIGKILL, false), Some(137)),
            (WaitStatus::Signaled(pid, Signal::SIGTERM, false), Some(143)),
            (WaitStatus::Signaled(pid, Signal::SIGSEGV, true), Some(139)),
            (WaitStatus::Stopped(pid, Signal::SIGTSTP), None),
            (WaitStatus::Continued(pid), None),
            (WaitStatus::StillAlive, None),
        ];
        for (status, code) in table {
            assert_eq!(exit_code_of(status), code, "{status:?}");
        }
    }
}
