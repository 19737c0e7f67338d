//! What an instance does when GARM deletes it, forces it, forgets it, or is gone.

use super::{Row, Scenario, State, row};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::after::{statuses, wait};

/// What the Listener says then (actions/runner, `MessageListener`).
const DELETED: &str = "Failed to create a session. The runner registration has been deleted from the server, \
    please re-configure.\n";
const SECOND: Duration = Duration::from_secs(1);

/// GARM deletes the record; the next call is refused.
fn delete(scenario: &Scenario<'_>) {
    scenario.instance.delete();
}

/// The provider shuts the machine down: the platform sends SIGTERM.
fn delete_and_shut_down(scenario: &Scenario<'_>) {
    scenario.instance.delete();
    scenario.running.signal(Signal::SIGTERM);
}

#[rustfmt::skip]
pub(super) fn rows() -> Vec<Row> {
    use State::{Busy, Fetching, Idle};
    vec![
        row(Fetching, "GARM deletes the instance, and the provider shuts it down", "given up; `failed` is refused", delete_and_shut_down),
        row(Idle, "GARM deletes the instance, and the provider shuts it down", "drained", delete_and_shut_down),
        Row { script: |s| s.job(SECOND), ..row(Busy, "GARM deletes the instance by force, and the provider shuts it down", "the job is finished as far as the platform waits for us", delete_and_shut_down) },
        Row { script: |s| s.job(SECOND), ..row(Busy, "GARM forgets the instance, or loses its database", "nothing is noticed, and nothing done: the job is finished", delete) },
        Row { script: |s| s.job(SECOND), ..row(Busy, "GARM goes down and stays down", "the job is finished", |s| s.sim.garm_down()) },
        Row { script: |s| s.job_after(SECOND).job(SECOND), ..row(Idle, "GARM forgets the instance, or loses its database, and the forge still has a job for it", "nothing is noticed: the job is run", delete) },
        Row { settings: &["--orphan-limit", "2s"], ..row(Idle, "GARM goes down and stays down", "drained: nobody is left to answer to", |s| s.sim.garm_down()) },
        Row {
            script: |s| s.stderr(DELETED).signal_exit_code(1),
            ..row(Idle, "the runner is removed at the forge: the Listener says so, and ends with code 1", "it is not started again", |s| {
                s.instance.delete();
                s.signal_listener(Signal::SIGINT);
            })
        },
        Row {
            spec: Some(garm_sim::InstanceSpec::default),
            ..row(Idle, "GARM makes the instance anew (another create attempt) and this one is shut down", "drained", |s| {
                s.instance.requeue();
                wait(s.running, s.sim, "idle was taken", || !statuses(s.sim).is_empty());
                s.running.signal(Signal::SIGTERM);
            })
        },
    ]
}
