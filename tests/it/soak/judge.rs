//! What must hold for a boot, whatever has happened to it.

use garm_sim::archive::runner_runs;

use super::{Event, Trial};
use crate::support::after::{half_written, terminal_statuses};
use crate::support::read;
use crate::support::traces::processes_of;

/// Its exit code; or everything that is wrong with it, with what a person needs to see.
pub(super) fn judge(trial: &Trial) -> Result<i32, String> {
    let mut wrong = Vec::new();
    wrong.extend(exit_code(trial));
    wrong.extend(terminal_statuses(&trial.instance));
    wrong.extend(state_file(trial));
    wrong.extend(starts(trial));
    wrong.extend(traces(trial));
    if wrong.is_empty() {
        return Ok(trial.ended.code);
    }
    Err(format!(
        "seed {} (exit {}, {:?}): {}\n{}\nstderr:\n{}\njournal:\n{}",
        trial.seed,
        trial.ended.code,
        trial.plan,
        wrong.join("; "),
        trial.sim.calls_table(),
        trial.ended.stderr,
        trial.ended.journal()
    ))
}

/// The codes that the plan allows: a job or a drain; stopped while it booted; a job that was stopped, or
/// a Listener that was killed; and after a restart, what the next agent finds.
fn exit_code(trial: &Trial) -> Option<String> {
    let plan = &trial.plan;
    let asks = plan.asks() + usize::from(trial.told_enough);
    let killed = plan.has(Event::ListenerKilled);
    let allowed = match trial.ended.code {
        0 => true,
        40 => asks > 0,
        34 => killed || (asks > 1 && plan.job.is_some()),
        // GARM has heard `failed` of the agent before.
        11 | 41 => trial.restarted,
        _ => false,
    };
    (!allowed).then(|| format!("exit code {} for that plan", trial.ended.code))
}

/// `state.json` tells the same end as the exit code; a second start leaves the first one's alone.
fn state_file(trial: &Trial) -> Option<String> {
    if trial.ended.code == 41 {
        return None;
    }
    let text = read(&trial.ended.state().join("state.json"));
    let life: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let agrees = life["status"] == "ended" && life["exit"] == trial.ended.code;
    (!agrees).then(|| format!("state.json says {text}"))
}

/// A job is started at most once, and so is a Listener but for the restart of an agent that had not come
/// that far.
fn starts(trial: &Trial) -> Option<String> {
    let jobs = trial.sim.runner_events().iter().filter(|e| e.event == "job_started").count();
    let runs = runner_runs(&trial.ended.home()).len();
    (jobs > 1 || runs > 1).then(|| format!("{runs} starts of the runner, {jobs} jobs"))
}

fn traces(trial: &Trial) -> Vec<String> {
    let dir = trial.ended.dir.path();
    let mut wrong: Vec<String> =
        processes_of(dir).iter().map(|process| format!("a process is left: {process}")).collect();
    for path in half_written(&dir.join("work")) {
        wrong.push(format!("left behind: {}", path.display()));
    }
    for secret in trial.instance.secrets() {
        if trial.ended.output().contains(&secret) {
            wrong.push("a secret in the output".to_owned());
        }
    }
    wrong
}
