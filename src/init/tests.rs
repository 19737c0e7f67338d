//! The init must be the whole process, so these start the test program again as one (see
//! [`the_program_that_the_others_start`]), in a process-id namespace of its own where it is to be PID 1.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

#[test]
fn the_init_is_wanted_as_pid_1_or_when_asked_for_but_never_in_the_agent() {
    let table: [(bool, &[&str], bool); 8] = [
        (true, &["garm-bootstrap", "run"], true),
        (false, &["garm-bootstrap", "--init", "run"], true),
        (false, &["garm-bootstrap", "run", "--init"], true),
        (false, &["garm-bootstrap", "run"], false),
        (false, &["garm-bootstrap", "run", "--", "--init"], false),
        (true, &[AGENT, "run"], false),
        (false, &[AGENT, "--init", "run"], false),
        (false, &[], false),
    ];
    for (pid_1, args, wanted) in table {
        assert_eq!(is_wanted_as(pid_1, args), wanted, "{pid_1} {args:?}");
    }
}

#[test]
fn a_start_that_failed_has_the_code_that_a_shell_would_give() {
    let failed = |errno: Errno| {
        let source = std::io::Error::from_raw_os_error(errno as i32);
        code_of_failed_start(&ProcessError::Start { path: "x".into(), source })
    };
    assert_eq!(failed(Errno::ENOENT), 127);
    assert_eq!(failed(Errno::EACCES), 126);
}

#[test]
fn pid_1_reaps_a_thousand_orphans_and_keeps_the_agents_code() {
    let init = Init::as_pid_1(
        "i=0; while [ $i -lt 1000 ]; do (true & true); i=$((i+1)); done
         while grep -qs '^State:.Z' /proc/[0-9]*/status; do sleep 0.02; done; exit 31",
    );
    assert_eq!(init.wait(), 31);
}

#[test]
fn pid_1_passes_signals_on_to_the_agent() {
    for (signal, code) in [("TERM", 41), ("INT", 42), ("HUP", 43), ("USR1", 44), ("QUIT", 45)] {
        let script =
            format!("trap 'exit {code}' {signal}; kill -{signal} 1; while :; do sleep 0.02; done");
        assert_eq!(Init::as_pid_1(&script).wait(), code, "{signal}");
    }
}

#[test]
fn a_signal_in_the_first_milliseconds_is_neither_lost_nor_fatal() {
    let init = Init::as_pid_1(TAKE_ONE_SIGNAL);
    let unshare = init.child.id();
    let ours = std::env::current_exe().unwrap();
    let pid_1 = until(|| {
        let children =
            fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).ok()?;
        let pid: i32 = children.trim().parse().ok()?;
        (fs::read_link(format!("/proc/{pid}/exe")).ok()? == ours).then_some(pid)
    });
    kill(Pid::from_raw(pid_1), Signal::SIGTERM).unwrap();
    assert_eq!(init.wait(), Signal::SIGTERM as i32);
}

#[test]
fn an_agent_that_was_killed_is_told_as_128_and_the_signal() {
    assert_eq!(Init::as_pid_1("kill -9 $$").wait(), 137);
}

#[test]
fn what_an_agent_leaves_behind_does_not_hold_pid_1_up() {
    let init = Init::as_pid_1(
        "setsid sh -c 'trap \"\" TERM; echo >up; while :; do sleep 60; done' &
         while ! [ -e up ]; do sleep 0.01; done; exit 7",
    );
    assert_eq!(init.wait(), 7);
}

#[test]
fn an_init_that_is_not_pid_1_ends_its_descendants_and_nobody_else() {
    let mut other = start(Command::new("sleep").arg("60"));
    let mut init = Init::beside_others(
        "setsid sh -c 'trap \"\" TERM; sleep 60 & echo $! $$ >left; while :; do wait; done' &
         while ! [ -s left ]; do sleep 0.01; done; exit 7",
    );
    let code = init.child.wait().unwrap().code();
    let left = fs::read_to_string(init.dir.path().join("left")).unwrap();
    assert_eq!(code, Some(7));
    assert_eq!(left.split_whitespace().count(), 2);
    for pid in left.split_whitespace() {
        assert!(!Path::new("/proc").join(pid).exists(), "{pid} is alive");
    }
    assert!(other.try_wait().unwrap().is_none());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn the_agent_starts_with_default_signals_and_holds_back_only_those_that_ask_it_to_leave() {
    // The init itself was started with all of them blocked and some ignored.
    let mut init = Init::beside_others("exit 0");
    assert!(init.child.wait().unwrap().success());
    let status = fs::read_to_string(init.dir.path().join("agent-status")).unwrap();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap() & NAMED
    };
    let bits = |signals: &[Signal]| signals.iter().map(|s| 1_u64 << (*s as u32 - 1)).sum::<u64>();
    assert_eq!(mask("SigBlk:"), bits(&HELD), "{status}");
    // Rust's own runtime ignores SIGPIPE in every program.
    assert_eq!(mask("SigIgn:"), bits(&[Signal::SIGPIPE]), "{status}");
}

/// A script that stands for: release nothing, take the first signal that is held back, exit with its number.
const TAKE_ONE_SIGNAL: &str = "take one signal";

/// The signals that have names; some machines' own init leaves real-time ones ignored.
const NAMED: u64 = 0x7fff_ffff;

/// What the agent is to do: a shell script.
const SCRIPT: &str = "INIT_TEST_SCRIPT";

struct Init {
    child: Child,
    dir: tempfile::TempDir,
}

impl Init {
    fn as_pid_1(script: &str) -> Self {
        let mut command = Command::new("unshare");
        if !nix::unistd::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "env"]);
        Self::start(command, script)
    }

    fn beside_others(script: &str) -> Self {
        Self::start(Command::new("env"), script)
    }

    /// Blocked for the whole process, because the test harness has another thread, which would take
    /// the signals; in the real program there is none.
    fn start(mut command: Command, script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        command
            .args(["--block-signal", "--ignore-signal=INT,TERM,CHLD"])
            .arg(std::env::current_exe().unwrap())
            .args(["init::tests::the_program_that_the_others_start", "--exact", "--ignored"])
            .arg("--nocapture")
            .env(SCRIPT, script)
            .stdout(Stdio::null())
            .current_dir(dir.path());
        Self { child: start(&mut command), dir }
    }

    fn wait(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }
}

#[expect(clippy::disallowed_methods, reason = "what is started here is the process under test")]
fn start(command: &mut Command) -> Child {
    command.spawn().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "waits for another process, with a deadline")]
fn until<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "what a test waits for comes in time");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "no test: the program that the others start, as init and as agent"]
#[expect(clippy::disallowed_methods, clippy::exit, reason = "it stands for a main")]
fn the_program_that_the_others_start() {
    use std::os::unix::process::CommandExt;
    let Ok(script) = std::env::var(SCRIPT) else { return };
    process::make_private().unwrap();
    if std::env::args_os().next().is_some_and(|name| name != AGENT) {
        std::process::exit(live().into());
    }
    if script == TAKE_ONE_SIGNAL {
        let held: nix::sys::signal::SigSet = HELD.into_iter().collect();
        std::process::exit(held.wait().unwrap() as i32);
    }
    // Of this thread: the C library blocks all signals in the other one while it starts this one.
    fs::copy("/proc/thread-self/status", "agent-status").unwrap();
    signals::release();
    panic!("{}", Command::new("/bin/sh").args(["-c", &script]).exec());
}
