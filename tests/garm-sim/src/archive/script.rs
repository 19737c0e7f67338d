//! What the fake runner does: `KEY=VALUE` lines in `.sim-script` in its home.
//!
//! The keys and their meaning are documented here; `src/listener/` obeys them. Any key can carry
//! `.N` (from 1) to hold for the N-th start of that subcommand only.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A script. The default one listens at once, takes no job, and ends at a signal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunnerScript {
    lines: Vec<(String, String)>,
}

/// Setters: each writes one key.
macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident: $kind:tt;)*) => {
        impl RunnerScript { $( keys!(@one $(#[$doc])* $name $kind); )* }
    };
    (@one $(#[$doc:meta])* $name:ident ms) => {
        $(#[$doc])* #[must_use]
        pub fn $name(self, time: Duration) -> Self {
            self.set(concat!(stringify!($name), "_ms"), &time.as_millis().to_string())
        }
    };
    (@one $(#[$doc:meta])* $name:ident number) => {
        $(#[$doc])* #[must_use]
        pub fn $name(self, value: i64) -> Self { self.set(stringify!($name), &value.to_string()) }
    };
    (@one $(#[$doc:meta])* $name:ident text) => {
        $(#[$doc])* #[must_use]
        pub fn $name(self, text: impl AsRef<[u8]>) -> Self {
            self.set(stringify!($name), &escape(text.as_ref()))
        }
    };
    (@one $(#[$doc:meta])* $name:ident flag) => {
        $(#[$doc])* #[must_use]
        pub fn $name(self) -> Self { self.set(stringify!($name), "1") }
    };
}

keys! {
    /// `run`: from the start to "Listening for Jobs".
    listen_after: ms;
    /// `run`: from listening to a job; without it no job comes.
    job_after: ms;
    /// How long the job lasts (default 100 ms).
    job: ms;
    /// The job's name (default `build`).
    job_name: text;
    /// The job's result (default `Succeeded`).
    job_result: text;
    /// The job ends without a result line and without the event `job_completed`.
    no_result: flag;
    /// How many jobs come before the runner is done (default 1).
    jobs: number;
    /// Lines that the job writes to the Listener's stdout at column 0; `%now%` is the time.
    job_output: text;
    /// A shell command that the job runs, with the job's environment.
    job_command: text;
    /// The job leaves this many processes in its group that ignore SIGINT and SIGTERM.
    job_children: number;
    /// The exit code after the job, after `exit_after`, or before listening (default 0).
    exit_code: number;
    /// Ends with `exit_code` before it listens.
    exit_before_listening: flag;
    /// Ends with `exit_code` so long after it listened, with no job.
    exit_after: ms;
    /// Exit codes of the 1st, 2nd, … start (the last one repeats): `2,2,0`. A start whose code
    /// is not 0 ends before it listens.
    exit_codes: text;
    /// The exit code when a signal ended it (default 0).
    signal_exit_code: number;
    /// Text on stderr right after the start.
    stderr: text;
    /// Text on stdout right after the start.
    stdout: text;
    /// Ends itself with that signal, at the moment when it would otherwise exit.
    kill_self: number;
    /// Never listens, but ends at a signal.
    hang_before_listening: flag;
    /// Ignores SIGINT and SIGTERM.
    ignore_signals: flag;
    /// Ignores SIGINT only.
    ignore_sigint: flag;
    /// So long between a signal and the end (default 0).
    stop_takes: ms;
    /// A job comes so long after the first signal; it runs to its end, then the runner exits.
    job_after_sigint: ms;
    /// Trace lines per second on stdout, from listening on.
    flood_lines_per_sec: number;
    /// Trace lines with the Listener's own words on stdout, as with
    /// `ACTIONS_RUNNER_PRINT_LOG_TO_STDOUT=1` (which has the same effect).
    trace: flag;
    /// Prints "Runner connect error" and "Runner reconnected." so long after listening.
    reconnect_after: ms;
    /// Text appended to `_diag/Runner_*.log` after it listens (or before it exits).
    diag: text;
    /// Removes `.runner` and the credentials when the job starts.
    forget_registration: flag;
    /// Keeps `.runner` and the credentials after the job (the real one removes them).
    keep_files: flag;
    /// Double-forks that many short processes when it listens.
    orphans: number;
    /// How long each of them lives (default 100 ms).
    orphan: ms;
    /// Self-update: exits with 3 (or 4, by `exit_code`) and leaves a helper behind in its group,
    /// which takes `bin` away for this long, puts it back and writes `update.finished`.
    update: ms;
    /// The helper of `update` never puts `bin` back and never writes `update.finished`.
    update_never_finishes: flag;
    /// `configure`: so long.
    config: ms;
    /// `configure`: the exit code (with `config_fail_times`, of the failures; default 1 then).
    config_exit: number;
    /// `configure`: the first so many attempts fail.
    config_fail_times: number;
    /// `configure`: what a failure says on stderr, any bytes.
    config_stderr: text;
    /// `configure`: what it says on stdout.
    config_stdout: text;
    /// `configure`: so many lines on stdout before anything else.
    config_flood_lines: number;
    /// `configure`: leaves so many processes in its group that ignore SIGINT and SIGTERM and keep
    /// its output open.
    config_children: number;
    /// `configure`: never ends (signals end it).
    config_hang: flag;
    /// `configure`: never ends and ignores SIGINT and SIGTERM.
    config_hang_hard: flag;
    /// `configure`: waits for a line on stdin; at its end it goes on.
    config_reads_stdin: flag;
    /// `configure`: a failure leaves `.runner` behind.
    config_writes_runner_then_fails: flag;
    /// `configure`: goes on for so long when everything is written.
    config_stays: ms;
    /// `configure`: exit 0 and nothing written.
    config_lies: flag;
    /// `configure`: refuses with the conflict text unless `--replace` is given without a value.
    config_needs_replace: flag;
    /// `configure`: the agent id, instead of the forge's.
    agent_id: number;
    /// `remove`: so long.
    remove: ms;
    /// `remove`: waits for a line on stdin, for ever if stdin stays open.
    remove_prompts: flag;
    /// `remove`: the exit code.
    remove_exit: number;
    /// `installdependencies.sh`: the exit code.
    deps_exit: number;
    /// `installdependencies.sh`: the first so many runs fail.
    deps_fail_times: number;
    /// `installdependencies.sh`: what it says (stderr when it fails).
    deps_text: text;
    /// `installdependencies.sh`: so long.
    deps: ms;
    /// `installdependencies.sh`: a file that it makes when it succeeds (a library, say).
    deps_creates: text;
}

impl RunnerScript {
    /// A script that does nothing special.
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens, takes one job after `wait`, is done with it after `length`.
    pub fn one_job(wait: Duration, length: Duration) -> Self {
        Self::new().job_after(wait).job(length)
    }

    /// Any key. The value is written as it is: use the named setters for text with escapes.
    #[must_use]
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.lines.retain(|(known, _)| known != key);
        self.lines.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Everything in `other` holds for the `nth` start (from 1) of its subcommand only.
    #[must_use]
    pub fn on_start(mut self, nth: u32, other: &Self) -> Self {
        for (key, value) in &other.lines {
            self = self.set(&format!("{key}.{nth}"), value);
        }
        self
    }

    /// Where events are posted. Without it the origin in `.runner` (or of `--url`) is used, if
    /// it is plain HTTP on loopback.
    #[must_use]
    pub fn events_url(self, url: &str) -> Self {
        self.set("events_url", url)
    }

    /// Talks to nobody.
    #[must_use]
    pub fn offline(self) -> Self {
        self.set("events_url", "none")
    }

    /// The file's text.
    pub(crate) fn text(&self, version: &str) -> String {
        let mut text = format!("version={version}\n");
        for (key, value) in &self.lines {
            let _ = writeln!(text, "{key}={value}");
        }
        text
    }

    /// Overwrites the script in a runner's home.
    pub fn write(&self, home: &Path) -> io::Result<()> {
        std::fs::write(home.join(".sim-script"), self.text("2.999.0"))
    }
}

/// `\n`, `\t`, `\\` and `\xHH`: the value stays on one line of ASCII.
fn escape(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\\' => text.push_str("\\\\"),
            0x20..=0x7e => text.push(char::from(*byte)),
            other => {
                let _ = write!(text, "\\x{other:02x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_on_one_line_and_the_last_one_holds() {
        let script = RunnerScript::new()
            .config_stderr(b"a\n\x1b[31m\xff\\")
            .job_after(Duration::from_secs(2))
            .job_after(Duration::from_secs(3))
            .on_start(2, &RunnerScript::new().exit_code(5));
        assert_eq!(
            script.text("1"),
            "version=1\nconfig_stderr=a\\n\\x1b[31m\\xff\\\\\njob_after_ms=3000\nexit_code.2=5\n"
        );
    }
}
