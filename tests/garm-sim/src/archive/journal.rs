//! Reads what the fake runner wrote down about its starts (`_sim/` in its home).

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// One start of the fake Listener, by whatever way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerStart {
    /// Its number over all starts in this home, from 1.
    pub n: u32,
    /// `configure`, `remove`, `run` or `sim-deps` (`installdependencies.sh`).
    pub subcommand: String,
    /// Its number among the starts of that subcommand, from 1.
    pub nth: u32,
    /// The process.
    pub pid: i32,
    /// Its process group.
    pub pgid: i32,
    /// Its user.
    pub uid: u32,
    /// Its working folder.
    pub cwd: String,
    /// Its arguments, without the program's name.
    pub argv: Vec<OsString>,
    /// The environment it was started with.
    pub env: Vec<(OsString, OsString)>,
    /// The environment of its job, if it ran one.
    pub job_env: Vec<(OsString, OsString)>,
    /// Signals blocked at the start, as a mask (bit 0 is signal 1).
    pub blocked: u64,
    /// Signals ignored at the start, as a mask; SIGPIPE (bit 12) always is, by Rust's runtime.
    pub ignored: u64,
    /// Signals that it received, in order.
    pub signals: Vec<i32>,
    /// Everything else that it noted: `job started`, `job ended Succeeded`, …
    pub notes: Vec<String>,
    /// Its exit code; `None` while it runs, and when a signal ended it.
    pub exit: Option<i32>,
}

impl RunnerStart {
    /// A variable of the environment it was started with.
    pub fn var(&self, name: &str) -> Option<String> {
        let found = self.env.iter().find(|(key, _)| key == name)?;
        Some(found.1.to_string_lossy().into_owned())
    }

    /// Its arguments as text.
    pub fn args(&self) -> Vec<String> {
        self.argv
            .iter()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect()
    }
}

/// Every start in that home, in order; empty when there was none.
pub fn runner_starts(home: &Path) -> Vec<RunnerStart> {
    let traces = home.join("_sim");
    let journal = fs::read(traces.join("journal.log")).unwrap_or_default();
    let mut starts: Vec<RunnerStart> = Vec::new();
    for line in String::from_utf8_lossy(&journal).lines() {
        let mut words = line.splitn(4, ' ');
        let (_time, n, pid, what) = (words.next(), words.next(), words.next(), words.next());
        let (Some(n), Some(pid), Some(what)) = (value(n, "n="), value(pid, "pid="), what) else {
            continue;
        };
        if let Some(rest) = what.strip_prefix("start ") {
            starts.push(start(&traces, n, pid, rest));
            continue;
        }
        let Some(one) = starts.iter_mut().rev().find(|one| one.n == n) else {
            continue;
        };
        match what.split_once(' ') {
            Some(("signal", number)) => one.signals.extend(number.parse::<i32>()),
            Some(("exit", code)) => one.exit = code.parse().ok(),
            _ => one.notes.push(what.to_owned()),
        }
    }
    starts
}

/// The starts of `run` only.
pub fn runner_runs(home: &Path) -> Vec<RunnerStart> {
    let mut starts = runner_starts(home);
    starts.retain(|one| one.subcommand == "run");
    starts
}

fn value<T: std::str::FromStr>(word: Option<&str>, key: &str) -> Option<T> {
    word?.strip_prefix(key)?.parse().ok()
}

fn start(traces: &Path, n: u32, pid: i32, rest: &str) -> RunnerStart {
    let words: Vec<&str> = rest.split(' ').collect();
    let text = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
    let number = |key: &str| text(key).and_then(|word| word.parse::<u32>().ok());
    let mask = |key: &str| text(key).and_then(|word| u64::from_str_radix(word, 16).ok());
    let items = |name: &str| {
        let bytes = fs::read(traces.join(format!("{name}-{n}"))).unwrap_or_default();
        bytes
            .strip_suffix(b"\0")
            .map(|bytes| bytes.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
            .unwrap_or_else(Vec::new)
    };
    let variables = |name: &str| {
        items(name)
            .into_iter()
            .map(|mut key: Vec<u8>| {
                let at = key.iter().position(|byte| *byte == b'=');
                let value = at.map_or_else(Vec::new, |at| key.split_off(at).split_off(1));
                (OsString::from_vec(key), OsString::from_vec(value))
            })
            .collect()
    };
    RunnerStart {
        n,
        subcommand: words.first().copied().unwrap_or_default().to_owned(),
        nth: number("nth=").unwrap_or(1),
        pid,
        pgid: text("pgid=")
            .and_then(|word| word.parse().ok())
            .unwrap_or(0),
        uid: number("uid=").unwrap_or(0),
        cwd: text("cwd=").unwrap_or_default().replace("\\x20", " "),
        argv: items("argv").into_iter().map(OsString::from_vec).collect(),
        env: variables("env"),
        job_env: variables("job-env"),
        blocked: mask("sigblk=").unwrap_or(0),
        ignored: mask("sigign=").unwrap_or(0),
        signals: Vec::new(),
        notes: Vec::new(),
        exit: None,
    }
}
