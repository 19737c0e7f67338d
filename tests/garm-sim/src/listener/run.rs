//! `run`: from the start over "Listening for Jobs" to the exit code.

use std::fs;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use crate::forge::Forge;
use crate::home::{CONFIGURED, Home};
use crate::job::{self, Ended};
use crate::script::Script;
use crate::{clock, system};

/// What all of a run shares.
pub struct Run<'a> {
    pub home: &'a Home,
    pub script: &'a Script,
    pub forge: Forge,
    pub traces: bool,
}

impl Run<'_> {
    /// One of the Listener's own lines, and its trace copies if asked for.
    pub fn line(&self, text: &str) {
        let line = format!("{}: {text}", clock::line_time());
        // The real one's Terminal traces first, too.
        self.home.diag(
            format!(
                "[{} INFO Terminal] WRITE LINE: {line}\n",
                clock::line_time()
            )
            .as_bytes(),
        );
        out(&format!("{line}\n"));
        if self.traces {
            self.trace("RUNNER", "Terminal", &format!("WRITE LINE: {line}"));
        }
    }

    pub fn trace(&self, program: &str, class: &str, text: &str) {
        out(&format!(
            "[{program} {} INFO {class}] {text}\n",
            clock::line_time()
        ));
    }

    pub fn signalled(&self, number: i32) {
        self.home.note(&format!("signal {number}"));
    }
}

pub fn out(text: &str) {
    // A reader that went away is no reason to die.
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}

pub fn run(home: &Home, script: &Script, nth: u32) -> i32 {
    let mut ignore = Vec::new();
    if script.is_set("ignore_signals") {
        ignore.extend([system::SIGINT, system::SIGTERM]);
    }
    if script.is_set("ignore_sigint") {
        ignore.push(system::SIGINT);
    }
    system::catch_signals(&ignore);
    if let Some(text) = script.bytes("stdout") {
        out(&String::from_utf8_lossy(&text));
    }
    if let Some(text) = script.bytes("stderr") {
        let _ = io::stderr().write_all(&text);
    }
    let readable = CONFIGURED
        .iter()
        .all(|name| fs::read(home.path(name)).is_ok_and(|file| !file.is_empty()));
    let forge = Forge::of_runner(home, script).filter(|_| readable);
    let Some(forge) = forge else {
        out("Not configured. Run Config.(sh/cmd) to configure the runner.\n");
        return 1;
    };
    let printed = std::env::var_os("ACTIONS_RUNNER_PRINT_LOG_TO_STDOUT");
    let this = Run {
        home,
        script,
        forge,
        traces: script.is_set("trace") || printed.is_some_and(|value| value == "1"),
    };
    let code = script.number("exit_code").unwrap_or(0) as i32;
    if script.is_set("exit_before_listening") {
        this.diag_text();
        return code;
    }
    if let Some(code) = listed_code(script, nth).filter(|code| *code != 0) {
        this.diag_text();
        return code;
    }
    out("\n√ Connected to GitHub\n\n");
    let version = script.text("version").unwrap_or_default();
    out(&format!("Current runner version: '{version}'\n"));
    let waited = if script.is_set("hang_before_listening") {
        system::wait(None)
    } else {
        system::sleep(script.time("listen_after_ms").unwrap_or_default())
    };
    if let Some(number) = waited {
        return this.stop(number);
    }
    if this.traces {
        this.trace("RUNNER", "MessageListener", "Listening for Jobs");
        this.trace("RUNNER", "JobDispatcher", "Running job: traced");
    }
    this.forge.tell("online", &[]);
    this.line("Listening for Jobs");
    this.diag_text();
    this.orphans();
    if let Some(time) = script
        .first_only("update_ms")
        .and_then(|text| text.parse().ok())
    {
        return this.update(Duration::from_millis(time), code);
    }
    this.listen(code)
}

fn listed_code(script: &Script, nth: u32) -> Option<i32> {
    let codes: Vec<i32> = script
        .text("exit_codes")?
        .split(',')
        .filter_map(|code| code.trim().parse().ok())
        .collect();
    codes.get(nth as usize - 1).or(codes.last()).copied()
}

impl Run<'_> {
    fn listen(&self, code: i32) -> i32 {
        const TICK: Duration = Duration::from_millis(20);
        let script = self.script;
        let start = Instant::now();
        let at = |key: &str| script.time(key).map(|time| start + time);
        let (mut job_at, exit_at) = (at("job_after_ms"), at("exit_after_ms"));
        let mut reconnect_at = at("reconnect_after_ms");
        let flood = script.number("flood_lines_per_sec").unwrap_or(0);
        let mut flood_at = (flood > 0).then_some(start);
        let mut jobs_left = script.number("jobs").unwrap_or(1);
        loop {
            let next = [job_at, exit_at, reconnect_at, flood_at];
            let next = next.into_iter().flatten().min();
            if let Some(number) = system::wait(next) {
                return self.stop(number);
            }
            let now = Instant::now();
            if flood_at.is_some_and(|at| at <= now) {
                let lines = (flood / 50).max(1);
                let text = format!(
                    "[RUNNER {} INFO JobDispatcher] Cancel the job\n",
                    clock::line_time()
                );
                out(&text.repeat(lines as usize));
                flood_at = Some(now + TICK.max(Duration::from_secs(1) / (flood as u32).min(50)));
            }
            if reconnect_at.is_some_and(|at| at <= now) {
                eprintln!(
                    "{}: Runner connect error: The HTTP request timed out. Retrying until reconnected.",
                    clock::line_time()
                );
                self.line("Runner reconnected.");
                reconnect_at = None;
            }
            if job_at.is_some_and(|at| at <= now) {
                if let Ended::BySignal(code) = job::run(self) {
                    return code;
                }
                jobs_left -= 1;
                if jobs_left > 0 {
                    job_at = script
                        .time("job_after_ms")
                        .map(|time| Instant::now() + time);
                } else if self.forge.ephemeral {
                    return code;
                } else {
                    job_at = None;
                }
            }
            if exit_at.is_some_and(|at| at <= now) {
                return code;
            }
        }
    }

    /// Asked to leave while idle.
    pub fn stop(&self, number: i32) -> i32 {
        self.signalled(number);
        if let Some(time) = self.script.time("job_after_sigint_ms") {
            // Handed a job in the very moment it was told to stop.
            if let Some(number) = system::sleep(time) {
                self.signalled(number);
            } else {
                job::run(self);
                return 0;
            }
        }
        out("Exiting...\n");
        if let Some(time) = self.script.time("stop_takes_ms") {
            let until = Instant::now() + time;
            while let Some(number) = system::wait(Some(until)) {
                self.signalled(number);
            }
        }
        self.script.number("signal_exit_code").unwrap_or(0) as i32
    }

    fn diag_text(&self) {
        if let Some(text) = self.script.bytes("diag") {
            self.home.diag(&text);
        }
    }

    /// Short processes whose parent is gone: whoever is above has to reap them.
    fn orphans(&self) {
        let life = self
            .script
            .time("orphan_ms")
            .unwrap_or(Duration::from_millis(100));
        for _ in 0..self.script.number("orphans").unwrap_or(0) {
            let parent = system::spawn(|| {
                system::spawn(|| std::thread::sleep(life));
            });
            system::reap(parent);
        }
    }

    fn update(&self, time: Duration, code: i32) -> i32 {
        self.line("Runner update in progress, do not shutdown runner.");
        let (bin, away) = (self.home.path("bin"), self.home.path(".sim-bin-away"));
        let finished = self.home.path("update.finished");
        let never = self.script.is_set("update_never_finishes");
        system::spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            let _ = fs::rename(&bin, &away);
            if never {
                return;
            }
            std::thread::sleep(time);
            let _ = fs::rename(&away, &bin);
            let _ = fs::write(&finished, "update finished\n");
        });
        if code == 0 { 3 } else { code }
    }
}
