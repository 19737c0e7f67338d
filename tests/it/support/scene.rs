//! What a scenario looks at: calls, statuses, files, and the words for a failed assertion.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use garm_sim::archive::{RunnerStart, runner_runs, runner_starts};
use garm_sim::{ArchiveSpec, Call, Endpoint, Host, InstanceSpec, RunnerScript, Sim, SimOptions};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::User;

use super::{Boot, Ended, LONG, Running, is_root, need_root, one_job, runner};

/// A GARM whose runners do what `script` says.
pub fn scripted(script: RunnerScript) -> Sim {
    Sim::start(archive_of(script))
}

/// The same, before it is started.
pub fn archive_of(script: RunnerScript) -> SimOptions {
    SimOptions { archive: ArchiveSpec::scripted(script), ..SimOptions::default() }
}

/// A GARM whose runners have one short job.
pub fn good() -> Sim {
    scripted(one_job())
}

/// Both ways to register.
pub fn both_kinds() -> [(&'static str, InstanceSpec); 2] {
    [("JIT", InstanceSpec::default()), ("token", InstanceSpec::with_token())]
}

/// The account that the runner must have run as.
pub fn account() -> User {
    if is_root() {
        return runner();
    }
    User::from_uid(nix::unistd::geteuid()).unwrap().expect("whoever runs the tests has an account")
}

/// The calls to one endpoint.
pub fn calls_to(sim: &Sim, endpoint: Endpoint) -> Vec<Call> {
    let mut calls = sim.calls();
    calls.retain(|call| call.endpoint == endpoint);
    calls
}

/// The calls to GARM.
pub fn garm_calls(sim: &Sim) -> Vec<Call> {
    let mut calls = sim.calls();
    calls.retain(|call| call.host == Host::Garm);
    calls
}

/// What was posted as `status`, in order.
pub fn statuses(sim: &Sim) -> Vec<String> {
    calls_to(sim, Endpoint::Status).iter().filter_map(Call::posted_status).collect()
}

/// The messages of every `failed` that was posted.
pub fn failures(sim: &Sim) -> Vec<String> {
    let mut calls = calls_to(sim, Endpoint::Status);
    calls.retain(|call| call.posted_status().as_deref() == Some("failed"));
    calls.iter().filter_map(Call::posted_message).collect()
}

/// Everything below `folder`, links not followed; the paths from there.
pub fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
                open.push(path.clone());
            }
            found.push(path.strip_prefix(folder).unwrap().to_owned());
        }
    }
    found.sort();
    found
}

/// Asserts that everything in `folder`, itself included, belongs to the runner's user.
#[track_caller]
pub fn assert_owned(folder: &Path) {
    let owner = account();
    for path in
        std::iter::once(folder.to_owned()).chain(tree(folder).iter().map(|p| folder.join(p)))
    {
        let meta = fs::symlink_metadata(&path).unwrap();
        let wanted = (owner.uid.as_raw(), owner.gid.as_raw());
        assert_eq!((meta.uid(), meta.gid()), wanted, "{}", path.display());
    }
}

pub fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A small file system of its own at `folder`, until it is dropped.
pub struct Mounted {
    folder: PathBuf,
}

impl Mounted {
    pub fn tmpfs(folder: &Path, size: &str) -> Self {
        need_root();
        fs::create_dir_all(folder).unwrap();
        let options = format!("size={size},mode=755");
        let flags = MsFlags::empty();
        mount(Some("tmpfs"), folder, Some("tmpfs"), flags, Some(options.as_str())).unwrap();
        Self { folder: folder.to_owned() }
    }

    pub fn make_read_only(&self) {
        let flags = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, &self.folder, None::<&str>, flags, None::<&str>).unwrap();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
    }
}

impl Boot {
    /// Another command than `run`, with its arguments.
    pub fn doing(mut self, words: &[&str]) -> Self {
        self.args = words.iter().map(OsString::from).collect();
        self
    }

    pub fn args(mut self, words: &[&str]) -> Self {
        self.args.extend(words.iter().map(OsString::from));
        self
    }

    /// Lets nobody but flags, the environment and files of the test's own say anything.
    pub fn flag(self, name: &str, value: impl AsRef<Path>) -> Self {
        self.arg(format!("--{name}")).arg(value.as_ref().as_os_str())
    }

    /// A file in the folder of the test, readable by everyone.
    pub fn file(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    }

    /// Runs to the end with `input` on stdin.
    pub fn run_with_stdin(self, input: impl AsRef<[u8]>) -> Ended {
        let stdin = File::open(self.file("stdin", input)).unwrap();
        self.run_with_stdin_from(stdin.into())
    }

    /// Runs to the end with `stdin`, whatever it is.
    pub fn run_with_stdin_from(self, stdin: OwnedFd) -> Ended {
        self.spawn_as(|command| {
            command.stdin(stdin);
        })
        .wait(LONG)
    }

    /// Runs to the end as a uid without an account.
    pub fn run_as_uid(self, uid: u32) -> Ended {
        use std::os::unix::process::CommandExt as _;
        need_root();
        std::os::unix::fs::chown(self.path("work"), Some(uid), Some(uid)).unwrap();
        self.spawn_as(|command| {
            command.uid(uid).gid(uid);
        })
        .wait(LONG)
    }

    /// For scripts that call `garm-bootstrap`.
    pub fn with_its_folder_on_the_path(self) -> Self {
        let path = format!("{}:/usr/bin:/bin", self.dir.path().display());
        self.env("PATH", &path)
    }

    /// Runs a bash script in place of the binary, in the same environment.
    pub fn run_script(self, script: &str) -> Ended {
        let script = self.file("script", script);
        self.spawn_as(|command| {
            let mut bash = Command::new("bash");
            bash.arg(script).env_clear();
            bash.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            *command = bash;
        })
        .wait(LONG)
    }

    /// Runs to the end by way of a program that is given the command as its last arguments.
    pub fn run_through(self, way: &[&str]) -> Ended {
        self.spawn_as(|command| {
            let mut outer = Command::new(way[0]);
            outer.args(&way[1..]).arg(command.get_program()).args(command.get_args());
            outer.env_clear();
            outer.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            *command = outer;
        })
        .wait(LONG)
    }
}

impl Running {
    /// Files that are open though no folder has them any more.
    pub fn deleted_files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let links = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().ends_with("(deleted)")).collect()
    }
}

impl Ended {
    /// What a failed assertion is to show.
    pub fn story(&self, sim: &Sim) -> String {
        format!(
            "code {}\n--- stderr\n{}\n--- stdout\n{}\n--- calls\n{}",
            self.code,
            self.stderr,
            self.stdout,
            sim.calls_table()
        )
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn expect(self, sim: &Sim, code: i32) -> Self {
        assert_eq!(self.code, code, "\n{}", self.story(sim));
        self
    }

    /// Asserts that it was booted, announced and did its job.
    #[track_caller]
    pub fn expect_job(self, sim: &Sim) -> Self {
        let ended = self.expect(sim, 0);
        let events = sim.runner_events();
        let done = events.iter().filter(|event| event.event == "job_completed").count();
        assert_eq!(done, 1, "jobs\n{}", ended.story(sim));
        ended
    }

    /// Asserts the exit code, one `failed` that holds `words`, and a sentence on stderr that holds them.
    #[track_caller]
    pub fn expect_failed(self, sim: &Sim, code: i32, words: &[&str]) -> Self {
        let ended = self.expect(sim, code);
        let failures = failures(sim);
        assert_eq!(failures.len(), 1, "failed statuses\n{}", ended.story(sim));
        for word in words {
            assert!(
                failures[0].contains(word),
                "{word:?} in {:?}\n{}",
                failures[0],
                ended.story(sim)
            );
            assert!(ended.stderr.contains(word), "{word:?} on stderr\n{}", ended.story(sim));
        }
        ended
    }

    /// Asserts that a line of the log holds `words`.
    #[track_caller]
    pub fn expect_said(self, sim: &Sim, words: &str) -> Self {
        assert!(self.stderr.contains(words), "{words:?} on stderr\n{}", self.story(sim));
        self
    }

    /// Every start of the fake runner.
    pub fn starts(&self) -> Vec<RunnerStart> {
        runner_starts(&self.home())
    }

    /// The starts of config.sh.
    pub fn configures(&self) -> Vec<RunnerStart> {
        let mut starts = self.starts();
        starts.retain(|start| start.subcommand == "configure");
        starts
    }

    /// Asserts that the Listener never ran.
    #[track_caller]
    pub fn expect_no_runner(self, sim: &Sim) -> Self {
        assert!(runner_runs(&self.home()).is_empty(), "a runner ran\n{}", self.story(sim));
        let events = sim.runner_events();
        assert!(events.iter().all(|event| event.event != "online"), "\n{}", self.story(sim));
        self
    }

    /// What lies in the work folder beside our own state: the home, and whatever was left beside it.
    pub fn beside_home(&self) -> Vec<String> {
        let ours = ["state", "run"];
        let entries = fs::read_dir(self.dir.path().join("work")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.filter(|name| !ours.contains(&name.as_str())).collect();
        names.sort();
        names
    }
}
