//! Signals before the runtime: who holds them back, and until when.

use nix::sys::signal::{SigSet, Signal};

/// The signals that ask the agent to leave. It holds them back until its handlers stand.
pub(super) const HELD: [Signal; 4] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// Signals that mean nothing to us and would end us, and with an init everything: somebody who asks a program
/// about itself or wakes it up does not know that it leads a job.
const IDLE_TALK: [Signal; 7] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGVTALRM,
    Signal::SIGPROF,
    Signal::SIGIO,
    // A log that has become too large is no reason either.
    Signal::SIGXFSZ,
];

/// Holds back the signals that ask us to leave, until [`release`]: they are neither lost nor fatal.
/// The first thing that a process does which is not the init; before any thread, for a thread inherits
/// the mask.
pub fn hold() {
    // Fails only for an invalid argument, and there is none.
    let _ = held().thread_block();
    ignore_idle_talk();
}

#[expect(unsafe_code, reason = "signal is unsafe for the sake of handlers; this is none")]
fn ignore_idle_talk() {
    use nix::sys::signal::{SigHandler, signal};
    for idle in IDLE_TALK {
        // SAFETY: SIG_IGN installs no code of ours. What we start gets the default back.
        let _ = unsafe { signal(idle, SigHandler::SigIgn) };
    }
}

/// Lets through what [`hold`] (or whoever started us) held back. Call it from the main thread, once the
/// handlers stand.
pub fn release() {
    let _ = held().thread_unblock();
}

/// Blocks all that can be waited for, and returns that set. A fault of our own (SIGSEGV and the like)
/// cannot. SIGTTIN and SIGTTOU are blocked, too: so a background group may use its terminal.
pub(super) fn block_all() -> SigSet {
    use Signal::{
        SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIGTTIN,
        SIGTTOU,
    };
    const FAULTS: [Signal; 9] =
        [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, SIGKILL, SIGSTOP];
    let all: SigSet = Signal::iterator().filter(|s| !FAULTS.contains(s)).collect();
    let _ = all.thread_block();
    default_sigchld();
    let mut waited = all;
    waited.remove(SIGTTIN);
    waited.remove(SIGTTOU);
    waited
}

/// With SIGCHLD ignored, as some parents leave it, the kernel would throw exit codes away.
#[expect(unsafe_code, reason = "signal is unsafe for the sake of handlers; this is a default one")]
fn default_sigchld() {
    use nix::sys::signal::{SigHandler, signal};
    // SAFETY: SIG_DFL installs no code of ours.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
}

fn held() -> SigSet {
    HELD.into_iter().collect()
}
