//! The first process of a container, and the reaper of everything that its jobs leave behind.
//!
//! Theory of operation: before any thread or runtime exists, the executable becomes two processes.
//! The parent (this module, synchronous, single-threaded) blocks every signal, starts the same
//! executable again as the *agent*, and then only waits: SIGCHLD makes it reap whatever has ended, any
//! other signal is passed on to the agent. When the agent has ended it ends what is left, and exits
//! with the agent's code. The agent may use `tokio::process` freely: a `waitpid(-1)` in the same process
//! would steal the exit codes of its children.
//!
//! The agent knows itself by its `argv[0]`, `AGENT`: nobody types that by accident, `ps` shows which
//! of the two is which, and other than a variable it can never reach the environment of a job. The
//! arguments are the same in both, `--init` included.
//!
//! Signals are safe from the first instant: what comes before the loop is pending, because all are
//! blocked; and the agent starts with those blocked that ask it to leave, until it calls
//! [`signals::release`], so that a SIGTERM which is passed on before its handlers stand does not kill it.
//!
//! Owns: the wait for all processes, and the last sweep. Must not: start threads, use a runtime,
//! know what the agent does.

mod descendants;
mod reap;
pub mod signals;

use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgrp, getpid, tcgetpgrp, tcsetpgrp};

use crate::host::oom;
use crate::host::process::{self, ProcessError};
use signals::HELD;

/// `argv[0]` of the agent that an init has started.
const AGENT: &str = "garm-bootstrap (agent)";

/// Could not be started, as a shell and every other init report it.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Whether this process is to be the init: it is PID 1, or `--init` was typed; never in the agent.
/// Takes the whole of `std::env::args_os()`.
pub fn is_wanted<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> bool {
    is_wanted_as(is_pid_1(), args)
}

/// Starts the agent, waits for its end and for all others, and says with which code to exit. Call it
/// before any thread exists.
pub fn run() -> ExitCode {
    ExitCode::from(live())
}

fn live() -> u8 {
    let waited = signals::block_all();
    if !is_pid_1()
        && let Err(error) = nix::sys::prctl::set_child_subreaper(true)
    {
        tell(&format!("orphans will not be reaped: {error}"));
    }
    let agent = match process::spawn_again(AGENT, &HELD) {
        Ok(agent) => agent,
        Err(error) => {
            tell(&format!("failed to {error}"));
            return code_of_failed_start(&error);
        }
    };
    // Not before: the agent is to find the value that its own children are to have.
    oom::protect();
    let had_terminal = has_terminal();
    if had_terminal {
        give_terminal_to(agent);
    }
    let code = loop {
        match waited.wait() {
            Ok(Signal::SIGCHLD) => {
                if let Some(code) = reap::reap(agent) {
                    break code;
                }
            }
            // Not reaped yet, so the process id is still the agent's.
            Ok(signal) => drop(kill(agent, signal)),
            Err(_) => {}
        }
    };
    if had_terminal {
        give_terminal_to(getpgrp());
    }
    if is_pid_1() {
        reap::end_the_rest(&waited, reap::everyone);
    } else {
        reap::end_the_rest(&waited, reap::all_below_us);
    }
    code
}

fn is_wanted_as<S: AsRef<OsStr>>(pid_1: bool, args: impl IntoIterator<Item = S>) -> bool {
    let mut args = args.into_iter();
    let is_agent = args.next().is_some_and(|name| name.as_ref() == AGENT);
    !is_agent
        && (pid_1
            || args.take_while(|arg| arg.as_ref() != "--").any(|arg| arg.as_ref() == "--init"))
}

fn is_pid_1() -> bool {
    getpid() == Pid::from_raw(1)
}

/// Whether we are the ones that Ctrl-C goes to.
fn has_terminal() -> bool {
    tcgetpgrp(std::io::stdin()).is_ok_and(|foreground| foreground == getpgrp())
}

/// With the terminal, Ctrl-C reaches the agent once and by the kernel. That we may give and take it, and
/// write, while we are in the background, is because SIGTTOU is blocked.
fn give_terminal_to(group: Pid) {
    let _ = tcsetpgrp(std::io::stdin(), group);
}

fn code_of_failed_start(error: &ProcessError) -> u8 {
    match error {
        ProcessError::Start { source, .. }
            if source.raw_os_error() == Some(Errno::ENOENT as i32) =>
        {
            NOT_FOUND
        }
        _ => NOT_EXECUTABLE,
    }
}

/// A line on stderr; there is no log yet, and will be none in this process.
fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "garm-bootstrap init: {what}");
}

#[cfg(test)]
mod tests;
