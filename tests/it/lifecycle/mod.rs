//! The tables of docs/lifecycle.md: each row is a boot, and its cells are what that boot did.
//!
//! `UPDATE_DOCS=1` writes the tables; without it they must be as the page has them.

mod removal;
mod rows;

use std::fmt::Write as _;
use std::fs;

use garm_sim::archive::runner_runs;
use garm_sim::{
    ArchiveSpec, Endpoint, Fault, FaultKind, InstanceSpec, RunnerScript, Sim, SimOptions,
};

use crate::support::after::{
    Scene, assert_nothing_left, statuses, wait, wait_for_note, wait_for_start, wait_for_status,
};
use crate::support::{Boot, Ended, FOR_EVER, LONG, Running, garm_calls};

/// So many boots at once: they mostly wait.
const AT_ONCE: usize = 6;

/// Where a boot is when something happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fetching,
    Registering,
    Starting,
    Idle,
    Busy,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Fetching => "downloading the runner",
            Self::Registering => "registering (config.sh)",
            Self::Starting => "runner started, not listening yet",
            Self::Idle => "idle",
            Self::Busy => "running a job",
        }
    }

    /// What the runner does so that the boot stands still there.
    fn script(self) -> RunnerScript {
        match self {
            Self::Fetching | Self::Idle => RunnerScript::new(),
            Self::Registering => RunnerScript::new().config(FOR_EVER),
            Self::Starting => RunnerScript::new().listen_after(FOR_EVER),
            Self::Busy => RunnerScript::new().job_after(std::time::Duration::ZERO).job(FOR_EVER),
        }
    }

    fn spec(self) -> InstanceSpec {
        if self == Self::Registering { InstanceSpec::with_token() } else { InstanceSpec::default() }
    }

    fn hold(self, sim: &Sim) {
        if self == Self::Fetching {
            sim.fault(Fault::new(Endpoint::Download).kind(FaultKind::HangForever));
        }
    }

    fn wait(self, running: &Running, sim: &Sim) {
        match self {
            Self::Fetching => wait(running, sim, "the download has begun", || {
                // And all that goes beside it is done: two statuses, the metadata, three JIT files.
                let answered = garm_calls(sim).iter().filter(|call| call.status.is_some()).count();
                answered == 6 && sim.calls().iter().any(|call| call.endpoint == Endpoint::Download)
            }),
            Self::Registering => wait_for_start(running, sim, "configure"),
            Self::Starting => wait_for_start(running, sim, "run"),
            Self::Idle => wait_for_status(running, sim, "idle"),
            Self::Busy => {
                wait_for_status(running, sim, "idle");
                wait_for_note(running, sim, "job started");
            }
        }
    }
}

/// A thing that happens, as a row of the table tells it.
struct Row {
    state: State,
    event: &'static str,
    /// In words, what follows.
    follows: &'static str,
    /// Settings that the row needs: flags.
    settings: &'static [&'static str],
    script: fn(RunnerScript) -> RunnerScript,
    spec: Option<fn() -> InstanceSpec>,
    happen: fn(&Scenario<'_>),
    /// Whether processes of the boot may be left: where nobody is there to end them.
    leaves: bool,
}

/// A boot that has come to its state.
struct Scenario<'a> {
    running: &'a Running,
    sim: &'a Sim,
    instance: &'a garm_sim::Instance,
}

fn row(state: State, event: &'static str, follows: &'static str, happen: fn(&Scenario<'_>)) -> Row {
    let (settings, script): (_, fn(RunnerScript) -> RunnerScript) = (&[], |script| script);
    Row { state, event, follows, settings, script, spec: None, happen, leaves: false }
}

impl Row {
    fn play(&self) -> String {
        let script = (self.script)(self.state.script());
        let archive = ArchiveSpec::scripted(script);
        let sim = Sim::start(SimOptions { archive, ..SimOptions::default() });
        self.state.hold(&sim);
        let instance = sim.create(self.spec.map_or_else(|| self.state.spec(), |spec| spec()));
        let mut boot = Boot::of(&instance).env("GARM_STOP_GRACE", "500ms");
        for word in self.settings {
            boot = boot.arg(word);
        }
        let running = boot.spawn();
        self.state.wait(&running, &sim);
        (self.happen)(&Scenario { running: &running, sim: &sim, instance: &instance });
        let ended = running.wait(LONG);
        if !self.leaves {
            assert_nothing_left(&sim, &ended);
        }
        self.cells(&sim, &ended)
    }

    fn cells(&self, sim: &Sim, ended: &Ended) -> String {
        let exit = match ended.code {
            137 => "(killed)".to_owned(),
            code => code.to_string(),
        };
        let event = if self.settings.is_empty() {
            self.event.to_owned()
        } else {
            format!("{} (`{}`)", self.event, self.settings.join(" "))
        };
        let (gets, job) = runner_and_job(ended);
        let told = told(sim);
        let cells = [self.state.name(), &event, self.follows, &gets, &job, &exit, &told];
        assert!(cells.iter().all(|cell| !cell.contains('|')), "{cells:?}{}", Scene(sim, ended));
        format!("| {} |", cells.join(" | "))
    }
}

/// What the Listener's own journal tells of its signals and of its job.
fn runner_and_job(ended: &Ended) -> (String, String) {
    let runs = runner_runs(&ended.home());
    let Some(run) = runs.last() else { return ("not started".into(), "none".into()) };
    let name = |signal: &i32| match signal {
        2 => "SIGINT".to_owned(),
        15 => "SIGTERM".to_owned(),
        other => format!("signal {other}"),
    };
    let mut gets: Vec<String> = run.signals.iter().map(name).collect();
    if runs.len() > 1 {
        gets.insert(0, format!("started {} times", runs.len()));
    }
    if run.exit.is_none() {
        // It cannot write that down itself, and neither what it ignores.
        gets.push("SIGKILL".to_owned());
    }
    let gets = if gets.is_empty() { "no signal".to_owned() } else { gets.join(", ") };
    let job = run.notes.iter().find_map(|note| note.strip_prefix("job ended "));
    let began = run.notes.iter().any(|note| note.starts_with("job started"));
    let job = match job {
        Some(result) => result,
        None if began => "cut off",
        None => "none",
    };
    (gets, job.to_owned())
}

/// The last words that GARM heard, and their reason.
fn told(sim: &Sim) -> String {
    let statuses = statuses(sim);
    let Some((status, call)) = statuses.last() else { return "nothing".into() };
    let message = call.posted_message().unwrap_or_default();
    match message.split_once(']') {
        Some((reason, _)) if status == "failed" => format!("`failed` {reason}]"),
        _ => format!("`{status}`"),
    }
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec![String::new(); rows.len()];
    for (rows, lines) in rows.chunks(AT_ONCE).zip(lines.chunks_mut(AT_ONCE)) {
        std::thread::scope(|scope| {
            for (row, line) in rows.iter().zip(lines) {
                scope.spawn(move || *line = row.play());
            }
        });
    }
    let mut table = String::from(
        "| the boot is | event | what follows | the Listener gets | its job | exit code | GARM's last word from us |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for line in lines {
        writeln!(table, "{line}").unwrap();
    }
    table.trim().to_owned()
}

/// Holds a section of the page to what has happened.
fn check(section: &str, right: &str) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/lifecycle.md");
    let page = fs::read_to_string(file).unwrap();
    let (begin, end) = (format!("<!-- {section} -->\n"), format!("\n<!-- /{section} -->"));
    let (_, rest) = page.split_once(&begin).expect("the page has the section's beginning");
    let (stands, _) = rest.split_once(&end).expect("the page has the section's end");
    if stands == right {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(file, page.replacen(&format!("{begin}{stands}"), &format!("{begin}{right}"), 1))
            .unwrap();
        return;
    }
    panic!("\"{section}\" of docs/lifecycle.md is to be (UPDATE_DOCS=1 writes it):\n\n{right}\n");
}

#[test]
fn the_lifecycle_page_tells_what_happens() {
    check("events", &table(&rows::rows()));
}

#[test]
fn the_lifecycle_page_tells_what_an_instance_does_that_is_removed() {
    check("removal", &table(&removal::rows()));
}
