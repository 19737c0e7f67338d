//! Starting the binary and looking at what it left behind.

pub mod after;
pub mod garm_template;
pub mod image;
pub mod page;
pub mod pod;
pub mod podman;
mod scene;
pub mod seeds;
pub mod traces;
pub mod web;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use garm_sim::{Instance, RunnerScript};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tempfile::TempDir;

pub use scene::*;

/// Longer than anything takes; a test that needs it has failed.
pub const LONG: Duration = Duration::from_secs(60);

/// Longer than a test may take: whatever lasts so long has to be ended.
pub const FOR_EVER: Duration = Duration::from_secs(3600);

/// Who starts the binary, and so who the runner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Root, which drops to the user `runner`.
    Root,
    /// The user `runner` itself where we are root, else whoever runs the tests.
    Plain,
}

/// A boot that is being prepared.
pub struct Boot {
    pub dir: TempDir,
    who: Who,
    /// A program that starts the binary, with its arguments.
    through: Vec<OsString>,
    args: Vec<OsString>,
    env: BTreeMap<OsString, OsString>,
}

/// A boot that runs.
pub struct Running {
    child: Started,
    dir: TempDir,
}

/// A child that does not outlive a test that failed, and neither does what it has started.
struct Started {
    child: Child,
    dir: PathBuf,
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            for process in after::processes_under(&self.dir) {
                let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
            }
        }
    }
}

/// A boot that has ended.
pub struct Ended {
    pub dir: TempDir,
    /// The exit code, or 128 and the signal's number.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn is_root() -> bool {
    geteuid().is_root()
}

pub fn need_root() {
    assert!(is_root(), "this test needs root: run it as root, as CI does");
}

/// The account that the runner has in these tests.
pub fn runner() -> User {
    User::from_name("runner").expect("passwd can be read").expect(
        "these tests need a user called runner: useradd -m runner (cargo xtask test does it)",
    )
}

impl Boot {
    /// `garm-bootstrap run` for `instance`, by [`Who::Plain`], in folders of its own.
    pub fn of(instance: &Instance) -> Self {
        let mut boot = Self::bare();
        for (name, value) in instance.env() {
            boot = boot.env(&name, &value);
        }
        boot
    }

    /// Without a word about GARM.
    pub fn bare() -> Self {
        let dir = tempfile::Builder::new().prefix("garm-it-").tempdir_in("/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let binary = dir.path().join("garm-bootstrap");
        put_binary(Path::new(env!("CARGO_BIN_EXE_garm-bootstrap")), &binary);
        let (through, args, env) = (Vec::new(), vec!["run".into()], BTreeMap::new());
        let boot = Self { dir, who: Who::Plain, through, args, env };
        let work = boot.path("work");
        fs::create_dir(&work).unwrap();
        let home = boot.home();
        let (state, runtime) = (boot.path("work/state"), boot.path("work/run"));
        boot.own(&work)
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("RUNNER_HOME", home.to_str().unwrap())
            .env("GARM_STATE_DIR", state.to_str().unwrap())
            .env("GARM_RUNTIME_DIR", runtime.to_str().unwrap())
            .env("GARM_STOP_GRACE", "5s")
            // The machine that runs the tests keeps its own idea of whom to trust.
            .env("GARM_SYSTEM_CA", "false")
    }

    /// As root, dropping to `runner`.
    pub fn as_root(mut self) -> Self {
        need_root();
        self.who = Who::Root;
        self.own_as_root()
    }

    pub fn who(self, who: Who) -> Self {
        match who {
            Who::Root => self.as_root(),
            Who::Plain => self,
        }
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Lets another program start the binary: `unshare`, `prlimit`, …
    pub fn through(mut self, words: &[&str]) -> Self {
        self.through = words.iter().map(OsString::from).collect();
        self
    }

    /// Takes the static binary, as images have it.
    pub fn with_static_binary(self) -> Self {
        let made = static_binary();
        let binary = self.path("garm-bootstrap");
        // It is a link to the other one.
        fs::remove_file(&binary).unwrap();
        put_binary(&made, &binary);
        self
    }

    /// As root, in a mount namespace of its own that `script` (of sh) prepares; it ends with `"$@"`.
    pub fn in_namespace(mut self, script: &str) -> Self {
        self = self.as_root();
        self.through = ["unshare", "-m", "sh", "-ec", script, "sh"].map(OsString::from).into();
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.env.remove(&OsString::from(name));
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn home(&self) -> PathBuf {
        self.path("work/home")
    }

    /// Puts the runner of `sim` into a folder, owned by the runner's user.
    pub fn unpack(self, sim: &garm_sim::Sim, folder: &Path) -> Self {
        fs::create_dir_all(folder).unwrap();
        sim.unpack_runner(folder).unwrap();
        own_all(folder);
        self
    }

    pub fn spawn(self) -> Running {
        self.spawn_as(|_| {})
    }

    /// Starts the command after a last change to it.
    fn spawn_as(self, change: impl FnOnce(&mut Command)) -> Running {
        let output = |name| File::create(self.path(name)).unwrap();
        let mut command = self.command();
        command.stdin(Stdio::null());
        change(&mut command);
        command.stdout(output("stdout")).stderr(output("stderr"));
        let child = command.spawn().unwrap();
        let child = Started { child, dir: self.dir.path().to_owned() };
        Running { child, dir: self.dir }
    }

    /// With descriptors that it inherits, from number 3 on.
    #[expect(unsafe_code, reason = "descriptors are handed over between fork and exec")]
    pub fn spawn_with_fds(self, fds: &[&OwnedFd]) -> Running {
        let fds: Vec<RawFd> = fds.iter().map(|fd| fd.as_raw_fd()).collect();
        self.spawn_as(|command| {
            let hand_over = move || {
                // Out of the way first: one of them may have another one's number.
                let mut copies = [-1; 8];
                for (copy, fd) in copies.iter_mut().zip(&fds) {
                    // SAFETY: plain calls on numbers that are open.
                    *copy = unsafe { libc::fcntl(*fd, libc::F_DUPFD, 32) };
                }
                for (number, copy) in (3..).zip(copies.iter().take(fds.len())) {
                    // SAFETY: as above.
                    unsafe { libc::dup2(*copy, number) };
                    // SAFETY: as above.
                    unsafe { libc::close(*copy) };
                }
                Ok(())
            };
            // SAFETY: nothing is allocated, and only async-signal-safe functions are called.
            unsafe { command.pre_exec(hand_over) };
        })
    }

    /// Runs to the end.
    pub fn run(self) -> Ended {
        self.spawn().wait(LONG)
    }

    /// The command as it is started, with nothing of our own environment.
    pub fn command(&self) -> Command {
        let mut words = self.through.clone();
        words.push(self.path("garm-bootstrap").into());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(&self.args).env_clear().envs(&self.env).current_dir("/");
        if is_root() && self.who == Who::Plain {
            let user = runner();
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        command
    }

    fn own(self, path: &Path) -> Self {
        own_all(path);
        self
    }

    fn own_as_root(self) -> Self {
        std::os::unix::fs::chown(self.path("work"), Some(0), Some(0)).unwrap();
        self
    }
}

/// What `cargo xtask dist` has built, which is what goes into images.
pub fn static_binary() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_garm-bootstrap"));
    let target = built.parent().and_then(Path::parent).unwrap();
    let made = target.join("dist/garm-bootstrap");
    assert!(made.is_file(), "{} is missing: run `cargo xtask dist` first", made.display());
    made
}

/// The command `garm-sim`, which is built with the workspace.
pub fn garm_sim_binary() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_garm-bootstrap")).with_file_name("garm-sim");
    assert!(built.is_file(), "{} is missing: run `cargo build -p garm-sim`", built.display());
    built
}

/// A file that is being written cannot be executed, and a process that another test starts at that
/// moment holds it open for a while longer; so it is linked where that can be done.
pub fn put_binary(built: &Path, to: &Path) {
    fs::hard_link(built, to).or_else(|_| fs::copy(built, to).map(drop)).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Gives everything below `path` to the runner's user, where we can.
pub fn own_all(path: &Path) {
    if is_root() {
        let user = runner();
        let owner = format!("{}:{}", user.uid, user.gid);
        let status = Command::new("chown").arg("-Rh").arg(owner).arg(path).status().unwrap();
        assert!(status.success());
    }
}

impl Running {
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.child.id()).unwrap())
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("work/home")
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.child.try_wait().unwrap().is_some()
    }

    /// Kills the agent and nothing else.
    pub fn kill_alone(self) -> Ended {
        self.signal(Signal::SIGKILL);
        self.wait(LONG)
    }

    pub fn stderr(&self) -> String {
        read(&self.dir.path().join("stderr"))
    }

    pub fn stdout(&self) -> String {
        read(&self.dir.path().join("stdout"))
    }

    /// Waits for the end; a boot that outlives `limit` is killed and the test fails.
    pub fn wait(mut self, limit: Duration) -> Ended {
        let until = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.child.try_wait().unwrap() {
                let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                let (stdout, stderr) = (self.stdout(), self.stderr());
                return Ended { dir: self.dir, code, stdout, stderr };
            }
            assert!(
                Instant::now() <= until,
                "it did not end within {limit:?}; stderr:\n{}",
                self.stderr()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Ended {
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("work/home")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.path().join("work/state")
    }

    pub fn timeline(&self) -> serde_json::Value {
        serde_json::from_str(&read(&self.state().join("timeline.json"))).unwrap()
    }

    /// What the fake runner wrote about its own starts.
    pub fn journal(&self) -> String {
        read(&self.home().join("_sim/journal.log"))
    }

    /// Everything that was printed.
    pub fn output(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }

    /// Boots once more in the same folders.
    pub fn again(self, instance: &Instance) -> Boot {
        let fresh = Boot::of(instance);
        let dir = self.dir;
        let mut boot =
            Boot { dir, who: fresh.who, through: vec![], args: fresh.args, env: fresh.env };
        let (home, state, runtime) = (boot.home(), boot.path("work/state"), boot.path("work/run"));
        boot = boot
            .env("RUNNER_HOME", home.to_str().unwrap())
            .env("GARM_STATE_DIR", state.to_str().unwrap())
            .env("GARM_RUNTIME_DIR", runtime.to_str().unwrap());
        boot
    }
}

/// Waits until `holds`, or fails the test.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < until, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// One short job.
pub fn one_job() -> RunnerScript {
    RunnerScript::one_job(Duration::from_millis(50), Duration::from_millis(100))
}
