//! Real containers, by the podman command.
//!
//! A [`Container`] has a name of its own (the test's and the process's), is removed by that name when it is
//! dropped, and is ended by podman itself when the test could not do so. Every call has a time limit and its output is
//! kept for the words of a failure. Containers share the machine's network, so they reach a garm-sim on loopback.
//!
//! Tests that use this belong to the nextest group `containers` (`.config/nextest.toml`).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use garm_sim::Instance;

use super::need_root;

/// The smallest Debian, with what .NET needs. `xtask/src/roots.rs` makes it.
pub const DEBIAN: &str = "localhost/gb-debian:1";
/// The same with systemd as init, D-Bus and cloud-init.
pub const SYSTEMD: &str = "localhost/gb-systemd:2";
/// Where the static binary is in a container that [`Prepared::with_binary`] was asked for.
pub const BINARY: &str = "/usr/local/bin/garm-bootstrap";

/// Longer than any podman call takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// A container that lives longer belongs to a test that was killed.
const LONGEST_LIFE: &str = "--timeout=170";

/// What a program has printed, and its exit code.
#[derive(Debug, Clone)]
pub struct Output {
    /// The exit code, or 128 and the signal's number.
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "code {}\n--- stdout\n{}\n--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

impl Output {
    /// What was printed, if it went well.
    #[track_caller]
    pub fn expect_ok(self, what: &str) -> String {
        assert_eq!(self.code, 0, "{what}: {self}");
        self.stdout
    }
}

/// Runs `command` to its end; one that outlives `limit` is killed and the test fails.
pub fn finish(command: &mut Command, limit: Duration) -> Output {
    // Into files: a pipe would stay open for as long as whatever podman left behind.
    let (mut stdout, mut stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    command.stdin(Stdio::null());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let until = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            panic!(
                "{command:?} did not end within {limit:?}\n{}\n{}",
                text(&mut stdout),
                text(&mut stderr)
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Output { code, stdout: text(&mut stdout), stderr: text(&mut stderr) }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One call of podman.
pub fn podman<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    finish(Command::new("podman").args(["--runtime", "runc"]).args(args), LIMIT)
}

/// Fails the test where it could only pretend to run.
pub fn need_image(image: &str) {
    need_root();
    let found = Command::new("podman").args(["image", "exists", image]).status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "this test needs podman, runc and the image {image}: run `cargo xtask roots` (as root)"
    );
}

/// A container that is being prepared.
#[derive(Debug, Clone)]
pub struct Prepared {
    image: String,
    flags: Vec<OsString>,
    files: Vec<(PathBuf, String)>,
    command: Vec<OsString>,
}

/// A container that was started, and is removed when this is dropped.
#[derive(Debug)]
pub struct Container {
    name: String,
}

impl Drop for Container {
    fn drop(&mut self) {
        let mut rm = Command::new("podman");
        rm.args(["rm", "--force", "--time", "0", "--volumes", &self.name]);
        let _ = rm.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

impl Prepared {
    pub fn of(image: &str) -> Self {
        need_image(image);
        let image = image.to_owned();
        let prepared = Self { image, flags: vec![], files: vec![], command: vec![] };
        // runc starts nothing whose limits are above those of whoever asks.
        prepared
            .flag("--ulimit=nofile=1024:2048")
            .flag("--ulimit=nproc=4096:8192")
            .flag("--network=host")
            .flag(LONGEST_LIFE)
    }

    /// One word for `podman create`, such as `--read-only`.
    pub fn flag(mut self, flag: impl Into<OsString>) -> Self {
        self.flags.push(flag.into());
        self
    }

    pub fn env(self, name: &str, value: &str) -> Self {
        self.flag(format!("--env={name}={value}"))
    }

    /// GARM's three variables for `instance`.
    pub fn env_of(self, instance: &Instance) -> Self {
        instance.env().iter().fold(self, |prepared, (name, value)| prepared.env(name, value))
    }

    pub fn user(self, user: &str) -> Self {
        self.flag(format!("--user={user}"))
    }

    /// A folder or file of this machine, or a named volume.
    pub fn volume(self, source: impl AsRef<Path>, inside: &str) -> Self {
        self.flag(format!("--volume={}:{inside}", source.as_ref().display()))
    }

    /// A file that is copied in before the start, as root's.
    pub fn file(mut self, source: impl Into<PathBuf>, inside: &str) -> Self {
        self.files.push((source.into(), inside.to_owned()));
        self
    }

    /// The static binary at [`BINARY`].
    pub fn with_binary(self) -> Self {
        self.volume(super::static_binary(), &format!("{BINARY}:ro"))
    }

    pub fn entrypoint(self, program: &str) -> Self {
        self.flag(format!("--entrypoint={program}"))
    }

    /// What the container runs, in place of what the image says.
    pub fn command<S: Into<OsString>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    pub fn start(self) -> Container {
        let container = Container { name: fresh_name() };
        let mut create: Vec<OsString> = vec!["create".into(), "--name".into()];
        create.push(container.name.clone().into());
        create.extend(self.flags);
        create.push(self.image.into());
        create.extend(self.command);
        podman(create).expect_ok("podman create");
        for (source, inside) in &self.files {
            container.copy_in(source, inside);
        }
        podman(["start", &container.name]).expect_ok("podman start");
        container
    }

    /// Runs to the end.
    pub fn run(self) -> Output {
        self.start().wait(LIMIT)
    }
}

impl Container {
    /// A machine with systemd as its first process, when it is up. `prepare` adds to it before it starts.
    pub fn systemd(prepare: impl FnOnce(Prepared) -> Prepared) -> Self {
        let prepared = Prepared::of(SYSTEMD).flag("--systemd=always").command(["/sbin/init"]);
        let container = prepare(prepared).start();
        container.wait_for_systemd();
        container
    }

    /// Waits until systemd has brought the machine up.
    #[track_caller]
    pub fn wait_for_systemd(&self) {
        let until = Instant::now() + LIMIT;
        loop {
            // It waits by itself once it can ask; until then there is nobody to ask.
            let state = self.exec(["systemctl", "is-system-running", "--wait"]);
            if ["running", "degraded"].contains(&state.stdout.trim()) {
                return;
            }
            assert!(Instant::now() < until, "systemd did not come up: {state}{}", self.logs());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a program in there, as root.
    pub fn exec<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Output {
        self.podman_exec(&["--user", "0"], words)
    }

    /// Runs a program in there, as `user`.
    pub fn exec_as<S: AsRef<OsStr>>(
        &self,
        user: &str,
        words: impl IntoIterator<Item = S>,
    ) -> Output {
        self.podman_exec(&["--user", user], words)
    }

    /// Runs a line of sh in there, as root; what it printed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.exec(["sh", "-c", script]).expect_ok(script)
    }

    fn podman_exec<S: AsRef<OsStr>>(
        &self,
        flags: &[&str],
        words: impl IntoIterator<Item = S>,
    ) -> Output {
        let mut args: Vec<OsString> = vec!["exec".into()];
        args.extend(flags.iter().map(OsString::from));
        args.push(self.name.clone().into());
        args.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        podman(args)
    }

    /// SIGTERM, and SIGKILL after `patience`; returns when the container has ended.
    pub fn stop(&self, patience: Duration) {
        let seconds = patience.as_secs().to_string();
        podman(["stop", "--time", &seconds, &self.name]).expect_ok("podman stop");
    }

    /// Starts the very same container once more, as an engine that restarts it does.
    pub fn start_again(&self) -> &Self {
        podman(["start", &self.name]).expect_ok("podman start");
        self
    }

    pub fn kill(&self, signal: &str) {
        podman(["kill", "--signal", signal, &self.name]).expect_ok("podman kill");
    }

    /// Waits for the end; its exit code, and what it has printed.
    pub fn wait(&self, limit: Duration) -> Output {
        let mut wait = Command::new("podman");
        wait.args(["wait", "--interval", "50ms", &self.name]);
        let code = finish(&mut wait, limit).expect_ok("podman wait");
        Output { code: code.trim().parse().unwrap(), ..self.printed() }
    }

    /// What the first process has printed so far; the code is that of `podman logs`.
    pub fn printed(&self) -> Output {
        podman(["logs", &self.name])
    }

    /// Everything that the first process has printed so far.
    pub fn logs(&self) -> String {
        let printed = self.printed();
        printed.stdout + &printed.stderr
    }

    pub fn is_running(&self) -> bool {
        self.inspect()["State"]["Running"] == true
    }

    pub fn exit_code(&self) -> i64 {
        self.inspect()["State"]["ExitCode"].as_i64().unwrap()
    }

    /// All that podman knows of it.
    pub fn inspect(&self) -> serde_json::Value {
        let json = podman(["inspect", &self.name]).expect_ok("podman inspect");
        serde_json::from_str::<serde_json::Value>(&json).unwrap()[0].take()
    }

    pub fn copy_in(&self, source: &Path, inside: &str) {
        let (source, inside) = (source.as_os_str(), format!("{}:{inside}", self.name));
        podman([OsStr::new("cp"), source, OsStr::new(&inside)]).expect_ok("podman cp");
    }

    pub fn copy_out(&self, inside: &str, to: &Path) {
        let inside = format!("{}:{inside}", self.name);
        podman([OsStr::new("cp"), OsStr::new(&inside), to.as_os_str()]).expect_ok("podman cp");
    }
}

/// The test's name and the process's number, so that one can see whose it was.
pub fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let thread = std::thread::current();
    let test: String = thread.name().unwrap_or("test").chars().rev().take(60).collect();
    let test: String =
        test.chars().rev().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
    format!("gb-{}-{}-{count}", test.trim_matches('-'), std::process::id())
}

mod tests {
    use std::fs;
    use std::time::Duration;

    use super::{BINARY, Container, DEBIAN, Prepared};

    #[test]
    fn a_machine_with_systemd_comes_up() {
        let machine = Container::systemd(Prepared::with_binary);
        assert!(machine.is_running());
        assert_eq!(machine.sh("cat /proc/1/comm").trim(), "systemd");
        assert_eq!(machine.exec([BINARY, "nonsense"]).code, 2);
        machine.stop(Duration::from_secs(20));
        assert!(!machine.is_running(), "{} runs on", machine.name());
    }

    #[test]
    fn files_go_in_and_out() {
        let dir = tempfile::tempdir().unwrap();
        let (there, back) = (dir.path().join("there"), dir.path().join("back"));
        fs::write(&there, "1").unwrap();
        let prepared = Prepared::of(DEBIAN).file(&there, "/there").command(["sleep", "60"]);
        let container = prepared.start();
        container.sh("cat /there /there > /tmp/back");
        container.copy_out("/tmp/back", &back);
        assert_eq!(fs::read_to_string(back).unwrap(), "11");
        assert_eq!(container.exec_as("1001", ["id", "-u"]).expect_ok("id"), "1001\n");
    }
}
