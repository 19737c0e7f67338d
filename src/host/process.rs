//! The one place that starts programs.
//!
//! Owns: what a child inherits. That is nothing by accident: its environment is exactly what
//! [`Program`] holds, its stdin is `/dev/null`, it has no descriptor beyond the usual three, its signal
//! dispositions are the default ones and its mask is empty (a child that inherits an ignored SIGINT can
//! never be stopped with it), it leads a process group of its own, and it runs as [`Program::user`] with
//! that user's groups.
//! Must not: use PR_SET_PDEATHSIG (it fires when the spawning *thread* ends, and tokio's come and go).

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigHandler, SigSet, Signal, killpg, signal};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Pid, Uid};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::oom;
use super::users::Account;
use crate::text::Tail;

/// How long a stopped program may take to end by itself before it is killed.
const GRACE: Duration = Duration::from_secs(2);
/// How long a killed one may take to be gone; what is not then waits for a disk, or for a parent that
/// does not reap.
const KILL_GRACE: Duration = Duration::from_millis(500);
/// How often a group whose leader is gone is looked at until it is empty.
const GROUP_LOOK: Duration = Duration::from_millis(20);
/// How long the output of an ended program is still awaited: something it left running in the
/// background may hold the pipe open for ever.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// A program with everything that it is to have, and nothing else. `Debug` leaves the values of the
/// environment out.
#[derive(Clone)]
pub struct Program {
    pub path: PathBuf,
    pub args: Vec<OsString>,
    /// The whole environment of the child. May hold secrets; `args` must not.
    pub env: Vec<(OsString, OsString)>,
    pub dir: PathBuf,
    /// `None`: as ourselves.
    pub user: Option<Account>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.env.iter().map(|(name, _)| name).collect();
        f.debug_struct("Program")
            .field("path", &self.path)
            .field("args", &self.args)
            .field("env", &names)
            .field("dir", &self.dir)
            .field("user", &self.user)
            .finish()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("start {}: {}", path.display(), start_hint(source))]
    Start { path: PathBuf, source: io::Error },
    #[error("wait for {}: {source}", path.display())]
    Wait { path: PathBuf, source: io::Error },
    #[error("run {}: it did not end within {} s and was stopped", path.display(), limit.as_secs())]
    TimedOut { path: PathBuf, limit: Duration, output: String },
    #[error("run {}: told to stop", path.display())]
    Cancelled { path: PathBuf },
}

/// How a program ended, and what it printed.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub output: Printed,
    /// Whether the kernel has killed something meanwhile for want of memory.
    out_of_memory: bool,
}

impl Finished {
    /// How it ended, in words.
    pub fn ended(&self) -> String {
        if self.out_of_memory {
            return format!("{} (killed by the kernel for want of memory)", self.status);
        }
        self.status.to_string()
    }
}

/// The beginning and end of what a program printed, by output: a flood on stdout must not wash away
/// the one line on stderr that says what went wrong.
#[derive(Debug, Default)]
pub struct Printed {
    stdout: Tail,
    stderr: Tail,
}

impl Printed {
    /// stdout, and below it stderr.
    pub fn text(&self) -> String {
        let texts = [self.stdout.text(), self.stderr.text()].map(|text| text.trim_end().to_owned());
        let said: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        said.join("\n")
    }
}

impl Program {
    /// Starts the program with both outputs piped.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
    pub fn spawn(&self) -> Result<Child, ProcessError> {
        let mut command = Command::new(&self.path);
        command
            .args(&self.args)
            .env_clear()
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        before_exec(&mut command, self.user.as_ref());
        command.spawn().map_err(|source| ProcessError::Start { path: self.path.clone(), source })
    }

    /// Runs the program to its end, or ends its whole process group when `limit` has passed or
    /// `cancel` is called.
    pub async fn run(
        &self,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<Finished, ProcessError> {
        let path = || self.path.clone();
        let mut memory = oom::Watch::start();
        let mut child = self.spawn()?;
        let pid = child.id();
        let group = Group::of(&child);
        let mut output = Output::of(&mut child);
        let ended = tokio::select! {
            ended = output.drain_until(child.wait()) => ended,
            () = sleep(limit) => {
                group.end(&mut child).await;
                return Err(ProcessError::TimedOut { path: path(), limit, output: output.printed.text() });
            }
            () = cancel.cancelled() => {
                group.end(&mut child).await;
                return Err(ProcessError::Cancelled { path: path() });
            }
        };
        let status = ended.map_err(|source| ProcessError::Wait { path: path(), source })?;
        // What it left in its group has no business after it; the pipe is free then, too.
        group.signal(Signal::SIGKILL);
        let _ = timeout(LAST_WORDS, output.drain()).await;
        let out_of_memory = !status.success() && memory.has_killed(pid);
        Ok(Finished { status, output: output.printed, out_of_memory })
    }
}

/// The process group that a child of [`Program::spawn`] leads.
#[derive(Debug, Clone, Copy)]
pub struct Group(Option<Pid>);

impl Group {
    pub fn of(child: &Child) -> Self {
        child.id().map_or(Self(None), Self::led_by)
    }

    /// The group of a leader that is no child of ours.
    pub fn led_by(pid: u32) -> Self {
        Self(i32::try_from(pid).ok().map(Pid::from_raw))
    }

    /// The group of a leader that has ended and been reaped, no matter when. As long as somebody is left in
    /// it, its number is nobody else's; so a process of that number tells that the group is gone.
    pub fn once_led_by(pid: u32) -> Self {
        let group = Self::led_by(pid);
        let leader = group.0.map(|leader| nix::sys::signal::kill(leader, None));
        if leader == Some(Err(Errno::ESRCH)) { group } else { Self(None) }
    }

    /// Sends `signal` to every process of the group; whether there was one left to get it.
    pub fn signal(self, signal: Signal) -> bool {
        self.0.is_some_and(|group| killpg(group, signal).is_ok())
    }

    /// Sends `signal` to the leader alone.
    pub fn signal_leader(self, signal: Signal) -> bool {
        self.0.is_some_and(|leader| nix::sys::signal::kill(leader, signal).is_ok())
    }

    /// Whether a process of the group is alive (or not yet reaped).
    pub fn is_alive(self) -> bool {
        self.0.is_some_and(|group| killpg(group, None) != Err(Errno::ESRCH))
    }

    /// Ends what is left of the group after its leader: SIGTERM, SIGKILL after [`GRACE`]; returns when
    /// nothing is left, or cannot be ended.
    pub async fn end_rest(self) {
        for (signal, grace) in [(Signal::SIGTERM, GRACE), (Signal::SIGKILL, KILL_GRACE)] {
            if !self.signal(signal) || timeout(grace, self.emptied()).await.is_ok() {
                return;
            }
        }
    }

    /// Looks again and again, because the kernel tells nobody that a group has become empty.
    async fn emptied(self) {
        while self.is_alive() {
            sleep(GROUP_LOOK).await;
        }
    }

    /// SIGTERM, and SIGKILL after [`GRACE`], to the group; returns when its leader is reaped.
    async fn end(self, child: &mut Child) {
        self.signal(Signal::SIGTERM);
        let _ = timeout(GRACE, child.wait()).await;
        self.signal(Signal::SIGKILL);
        let _ = child.wait().await;
    }
}

/// From now on no other process of our user may read our memory, environment or open files (but a
/// child that has not executed anything yet). The first thing that `main` does.
pub fn make_private() -> io::Result<()> {
    Ok(nix::sys::prctl::set_dumpable(false)?)
}

/// Starts this same executable once more, with our arguments, environment and outputs, under the
/// name `name`, in a process group of its own and with default signals; `held` stay blocked in it.
/// For `init`, before any thread or runtime: the caller waits for the process itself.
#[expect(clippy::disallowed_methods, reason = "this is the one place that spawns")]
pub fn spawn_again(name: &str, held: &'static [Signal]) -> Result<Pid, ProcessError> {
    let mut args = std::env::args_os();
    let typed = args.next().map(PathBuf::from);
    let args: Vec<OsString> = args.collect();
    // By its path first, because a program started as /proc/self/exe is called "exe" in every list of
    // processes; as typed where /proc is not mounted.
    let paths = [std::env::current_exe().ok(), Some(PathBuf::from("/proc/self/exe")), typed];
    let mut error = None;
    for path in paths.into_iter().flatten() {
        let mut command = std::process::Command::new(&path);
        command.arg0(name).args(&args).process_group(0);
        with_signals_held(&mut command, held);
        match command.spawn() {
            Ok(child) => return Ok(Pid::from_raw(child.id().cast_signed())),
            Err(source) => error = error.or(Some(ProcessError::Start { path, source })),
        }
    }
    Err(error.unwrap_or_else(|| ProcessError::Start {
        path: PathBuf::new(),
        source: io::Error::from_raw_os_error(Errno::ENOENT as i32),
    }))
}

#[expect(unsafe_code, reason = "the only way to reset signals")]
fn with_signals_held(command: &mut std::process::Command, held: &'static [Signal]) {
    let prepare = move || {
        reset_signals()?;
        held.iter().copied().collect::<SigSet>().thread_block()?;
        Ok(())
    };
    // SAFETY: the closure allocates nothing and calls only async-signal-safe functions (sigaction,
    // sigprocmask), as is required between fork and exec.
    unsafe { command.pre_exec(prepare) };
}

/// Both outputs of a child, and what came through them.
struct Output {
    stdout: Option<tokio::process::ChildStdout>,
    stderr: Option<tokio::process::ChildStderr>,
    printed: Printed,
}

impl Output {
    fn of(child: &mut Child) -> Self {
        let printed = Printed::default();
        Self { stdout: child.stdout.take(), stderr: child.stderr.take(), printed }
    }

    /// Reads whatever comes until `end` is there.
    async fn drain_until<T>(&mut self, end: impl Future<Output = T>) -> T {
        tokio::pin!(end);
        tokio::select! {
            ended = &mut end => return ended,
            () = self.drain() => {}
        }
        end.await
    }

    /// Reads until both outputs are closed.
    async fn drain(&mut self) {
        let (mut out, mut err) = (vec![0; 4096], vec![0; 4096]);
        while self.stdout.is_some() || self.stderr.is_some() {
            tokio::select! {
                n = read(&mut self.stdout, &mut out) => self.printed.stdout.push(&out[..n]),
                n = read(&mut self.stderr, &mut err) => self.printed.stderr.push(&err[..n]),
            }
        }
    }
}

/// The next bytes of `from`, which becomes `None` at its end; pending for ever after that.
async fn read(from: &mut Option<impl AsyncRead + Unpin>, into: &mut [u8]) -> usize {
    let Some(open) = from else { return std::future::pending().await };
    let count = open.read(into).await.unwrap_or(0);
    if count == 0 {
        *from = None;
    }
    count
}

/// What the child does between fork and exec.
#[expect(unsafe_code, reason = "the only way to reset signals and drop to another user")]
fn before_exec(command: &mut Command, user: Option<&Account>) {
    let user = user.map(|u| {
        let groups: Vec<Gid> = u.groups.iter().copied().map(Gid::from_raw).collect();
        (Uid::from_raw(u.uid), Gid::from_raw(u.gid), groups)
    });
    let score = oom::for_children().map(|score| score.to_string());
    let prepare = move || {
        reset_signals()?;
        keep_descriptors();
        if let Some(score) = &score {
            // Best effort: a runner that is spared, too, is no reason not to start it.
            let _ = set_oom_score(score.as_bytes());
        }
        if let Some((uid, gid, groups)) = &user {
            nix::unistd::setgroups(groups)?;
            nix::unistd::setgid(*gid)?;
            nix::unistd::setuid(*uid)?;
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and calls only async-signal-safe functions (sigaction,
    // sigprocmask, open, write, close, setgroups, setgid, setuid), as is required between fork and exec.
    unsafe { command.pre_exec(prepare) };
}

/// The program gets its three descriptors and none that somebody has left open above us. Linux before
/// 5.11 does not know the call; there it gets what was left open.
#[expect(unsafe_code, reason = "there is no wrapper of close_range")]
fn keep_descriptors() {
    use nix::libc::{CLOSE_RANGE_CLOEXEC, SYS_close_range, syscall};
    // SAFETY: nothing is closed here: the kernel closes them when the program is executed.
    unsafe { syscall(SYS_close_range, 3, u32::MAX, CLOSE_RANGE_CLOEXEC) };
}

/// Between fork and exec: allocates nothing.
fn set_oom_score(score: &[u8]) -> nix::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
    let file = nix::fcntl::open(oom::CHILDS_SCORE_ADJ, flags, Mode::empty())?;
    nix::unistd::write(&file, score)?;
    Ok(())
}

/// Every signal gets its default disposition and none is blocked.
#[expect(
    unsafe_code,
    reason = "sigaction is unsafe for the sake of handlers; these are default ones"
)]
pub(crate) fn reset_signals() -> io::Result<()> {
    for sig in Signal::iterator().filter(|s| !matches!(s, Signal::SIGKILL | Signal::SIGSTOP)) {
        // SAFETY: SIG_DFL installs no code of ours.
        unsafe { signal(sig, SigHandler::SigDfl) }?;
    }
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Why a program could not be started, in words that lead to the cause.
fn start_hint(error: &io::Error) -> String {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => {
            "no such file, or the interpreter or dynamic loader that it names is missing".to_owned()
        }
        Some(Errno::ENOEXEC) => "not a program for this machine (wrong architecture?)".to_owned(),
        Some(Errno::EACCES) => {
            "permission denied (not executable, or its file system is mounted noexec)".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
