//! What must hold for a boot, whatever the wire did to it.

use std::time::Duration;

use garm_sim::archive::runner_runs;
use garm_sim::{Call, Endpoint, Host};

use super::{DEADLINE, Trial};
use crate::support::after::terminal_statuses;
use crate::support::traces::{files_below, processes_of};

/// `failed` is tried so long after the deadline (the boot's last word), and the program may take a moment to leave.
const LAST_WORD: Duration = Duration::from_secs(5 + 3);
/// GARM prunes at random beyond this.
const ROWS: usize = 30;
/// The most statuses that a boot sends, as far as it can tell.
const STATUSES: usize = 12;

/// How the boot ended, in a word; or everything that is wrong with it, with what a person needs to see.
pub(super) fn judge(trial: &Trial) -> Result<&'static str, String> {
    let mut wrong = Vec::new();
    let outcome = outcome(trial).unwrap_or_else(|why| {
        wrong.push(why);
        "broken"
    });
    wrong.extend(terminal_statuses(&trial.instance));
    wrong.extend(number_of_statuses(trial));
    wrong.extend(time(trial));
    wrong.extend(starts(trial));
    wrong.extend(traces(trial));
    if wrong.is_empty() {
        return Ok(outcome);
    }
    Err(format!(
        "seed {} (exit {}, {:.1} s, {:?}): {}\n{}\nstderr:\n{}",
        trial.seed,
        trial.ended.code,
        trial.took.as_secs_f64(),
        trial.who,
        wrong.join("; "),
        trial.sim.calls_table(),
        trial.ended.stderr
    ))
}

/// Ended well: GARM knows the runner. Ended badly: GARM has one `failed` with a reason that is true, or
/// every attempt to tell it met a fault.
fn outcome(trial: &Trial) -> Result<&'static str, String> {
    let status = trial.instance.runner_status();
    if trial.ended.code == 0 {
        let known = ["idle", "active", "terminated"].contains(&status.as_str());
        return if known { Ok("ran") } else { Err(format!("exit 0, but GARM has \"{status}\"")) };
    }
    let failed: Vec<String> = trial
        .instance
        .messages()
        .into_iter()
        .filter(|row| row.status.as_deref() == Some("failed") && row.accepted)
        .map(|row| row.message)
        .collect();
    match failed.as_slice() {
        [] => silence(trial),
        [message] => truth(trial, message),
        _ => Err(format!("{} times failed", failed.len())),
    }
}

/// Nobody heard: only if nobody could.
fn silence(trial: &Trial) -> Result<&'static str, String> {
    let calls = trial.sim.calls();
    let said: Vec<&Call> =
        calls.iter().filter(|call| call.posted_status().as_deref() == Some("failed")).collect();
    if said.is_empty() {
        return Err(format!("exit {} and not a word to GARM", trial.ended.code));
    }
    if said.iter().all(|call| call.fault.is_some()) {
        return Ok("unheard");
    }
    Err("GARM has no failed, though an attempt met no fault".to_owned())
}

/// Whether the reason that GARM was told is what happened.
fn truth(trial: &Trial, message: &str) -> Result<&'static str, String> {
    let calls = trial.sim.calls();
    let to = |endpoint: Endpoint| calls.iter().filter(move |call| call.endpoint == endpoint);
    let last_met_a_fault =
        |endpoint| to(endpoint).next_back().is_some_and(|call| call.fault.is_some());
    let reason = message.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (exit, kind, holds) = match reason.map(|pair| pair.0) {
        // The last thing that was asked for was refused by the storm to the end of the deadline.
        Some("garm_unreachable") => {
            let mut asked = calls.iter().filter(|call| {
                call.host == Host::Garm && call.posted_status().as_deref() != Some("failed")
            });
            let met = asked.next_back().is_some_and(|call| call.fault.is_some());
            (10, "unreachable", met && trial.took > DEADLINE / 3)
        }
        // It was handed out once, in a reply that the storm took.
        Some("garm_refused") if message.contains("the token was handed out already") => {
            let lost = to(Endpoint::RegistrationToken).any(|call| call.fault.is_some());
            let refused = to(Endpoint::RegistrationToken).next_back().and_then(|call| call.status);
            (12, "token lost", lost && refused == Some(401))
        }
        // Nobody else knows what the metadata says.
        Some(reason @ ("runner_not_fetched" | "garm_refused"))
            if message.contains("GARM has not said it") || message.contains("no address") =>
        {
            let dropped = to(Endpoint::RunnerMetadata).count() >= 8;
            let exit = if reason == "garm_refused" { 12 } else { 20 };
            (exit, "metadata dropped", dropped && last_met_a_fault(Endpoint::RunnerMetadata))
        }
        Some("runner_not_fetched") => {
            let flipped = to(Endpoint::Download)
                .any(|call| call.fault.as_deref().is_some_and(|fault| fault.contains("flipped")));
            let kind = if flipped { "archive damaged" } else { "download cut off" };
            (20, kind, flipped || last_met_a_fault(Endpoint::Download))
        }
        _ => return Err(format!("a failure for which no fault is the cause: {message}")),
    };
    if trial.ended.code != exit {
        return Err(format!("exit {} with the reason of {exit}", trial.ended.code));
    }
    if holds { Ok(kind) } else { Err(format!("a reason that is not true: {message}")) }
}

/// What the boot knows to have arrived is limited by itself; what arrived unknown to it is not, and
/// must still be few enough for GARM to keep all.
fn number_of_statuses(trial: &Trial) -> Option<String> {
    let calls = trial.sim.calls();
    let sent = calls
        .iter()
        .filter(|call| call.endpoint == Endpoint::Status && call.status == Some(200))
        .filter(|call| call.fault.as_deref().is_none_or(|fault| fault.starts_with("delay")))
        .count();
    let rows = trial.instance.messages().len();
    (sent > STATUSES || rows > ROWS).then(|| format!("{sent} statuses sent, {rows} rows at GARM"))
}

fn time(trial: &Trial) -> Option<String> {
    (trial.took > DEADLINE + LAST_WORD).then(|| "past its deadline".to_owned())
}

fn starts(trial: &Trial) -> Option<String> {
    let runs = runner_runs(&trial.ended.home()).len();
    let jobs = trial.sim.runner_events().iter().filter(|e| e.event == "job_started").count();
    let wanted = usize::from(trial.ended.code == 0);
    ((runs, jobs) != (wanted, wanted)).then(|| format!("{runs} starts of the runner, {jobs} jobs"))
}

/// What is left in the file system and in the list of processes.
fn traces(trial: &Trial) -> Vec<String> {
    let mut wrong = Vec::new();
    let (dir, home) = (trial.ended.dir.path(), trial.ended.home());
    for process in processes_of(dir) {
        wrong.push(format!("a process is left: {process}"));
    }
    for name in files_below(dir).iter().filter(|name| name.contains(".partial-")) {
        wrong.push(format!("left behind: {name}"));
    }
    if home.exists() {
        let original = tempfile::tempdir().unwrap();
        trial.sim.unpack_runner(original.path()).unwrap();
        let (wanted, found) = (files_below(original.path()), files_below(&home));
        for missing in wanted.difference(&found) {
            wrong.push(format!("the home lacks {missing}"));
        }
    }
    for secret in trial.instance.secrets() {
        if trial.ended.output().contains(&secret) {
            wrong.push("a secret in the output".to_owned());
        }
    }
    wrong
}
