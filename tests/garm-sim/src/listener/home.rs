//! The runner's home: its files, and `_sim` where every start leaves its traces.

use std::cell::Cell;
use std::env;
use std::ffi::OsString;
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::OnceLock;
use std::path::{Path, PathBuf};

use crate::{clock, system};

pub const CONFIGURED: [&str; 3] = [".runner", ".credentials", ".credentials_rsaparams"];

pub struct Home {
    root: PathBuf,
    /// The number of this start, over all subcommands.
    ordinal: Cell<u32>,
}

impl Home {
    /// The folder above the program's own.
    pub fn find() -> Option<Self> {
        let program = env::current_exe().ok()?;
        let root = program.parent()?.parent()?.to_path_buf();
        Some(Self {
            root,
            ordinal: Cell::new(0),
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn read(&self, name: &str) -> Option<String> {
        let bytes = fs::read(self.path(name)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn write_secret(&self, name: &str, text: &str) -> bool {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(self.path(name));
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .is_ok()
    }

    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.path(name));
    }

    pub fn forget_registration(&self) {
        for name in CONFIGURED {
            self.remove(name);
        }
    }

    /// Notes a start; the answer is how many of this subcommand there were, this one included.
    pub fn start(&self, subcommand: &str, args: &[OsString]) -> u32 {
        let traces = self.path("_sim");
        if fs::create_dir(&traces).is_ok() {
            // Root may come first (dependencies) and the runner's user later.
            let _ = fs::set_permissions(&traces, Permissions::from_mode(0o777));
        }
        let ordinal = claim(&traces, "start");
        let nth = claim(&traces, subcommand);
        self.ordinal.set(ordinal);
        let mut argv = Vec::new();
        for arg in args {
            argv.extend_from_slice(arg.as_bytes());
            argv.push(0);
        }
        let mut environment = Vec::new();
        for (key, value) in env::vars_os() {
            environment.extend_from_slice(key.as_bytes());
            environment.push(b'=');
            environment.extend_from_slice(value.as_bytes());
            environment.push(0);
        }
        let _ = fs::write(traces.join(format!("argv-{ordinal}")), argv);
        let _ = fs::write(traces.join(format!("env-{ordinal}")), environment);
        let folder = env::current_dir().unwrap_or_default();
        self.note(&format!(
            "start {subcommand} nth={nth} pgid={} uid={} cwd={} {}",
            system::group(),
            system::uid(),
            escape(&folder.to_string_lossy()),
            inherited_signals(),
        ));
        nth
    }

    /// The environment that a job gets: this program's with `.env` over it.
    pub fn dump_job_environment(&self, environment: &[(String, String)]) {
        let mut text = Vec::new();
        for (key, value) in environment {
            text.extend_from_slice(format!("{key}={value}\0").as_bytes());
        }
        let name = format!("_sim/job-env-{}", self.ordinal.get());
        let _ = fs::write(self.path(&name), text);
    }

    /// One line of the journal, written at once.
    pub fn note(&self, what: &str) {
        let path = self.path("_sim/journal.log");
        let new = !path.exists();
        let line = format!(
            "{} n={} pid={} {what}\n",
            clock::journal_time(),
            self.ordinal.get(),
            system::pid()
        );
        if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(&path) {
            if new {
                let _ = file.set_permissions(Permissions::from_mode(0o666));
            }
            let _ = file.write_all(line.as_bytes());
        }
    }

    /// Appends to this start's `_diag/Runner_*.log`.
    pub fn diag(&self, text: &[u8]) {
        let folder = self.path("_diag");
        let _ = fs::create_dir_all(&folder);
        static NAME: OnceLock<String> = OnceLock::new();
        let name = NAME.get_or_init(|| format!("Runner_{}-utc.log", clock::file_time()));
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(folder.join(name));
        if let Ok(mut file) = file {
            let _ = file.write_all(text);
        }
    }
}

/// Takes the next free number under that name.
fn claim(folder: &Path, name: &str) -> u32 {
    for number in 1..100_000 {
        let path = folder.join(format!(".{name}-{number}"));
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(_) => return number,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            // Nowhere to count: every start is the first.
            Err(_) => return 1,
        }
    }
    1
}

/// The ignored and blocked signals that this process was started with.
fn inherited_signals() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = |key: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .map_or("?", str::trim)
            .to_owned()
    };
    format!("sigblk={} sigign={}", value("SigBlk:"), value("SigIgn:"))
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace(' ', "\\x20")
        .replace('\n', "\\n")
}
