//! What can happen to a boot, in every state that it can be in.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use garm_sim::InstanceSpec;
use garm_sim::archive::runner_runs;

use super::{Row, Scenario, State, row};
use crate::support::after::wait;

/// Its own log, when its job went to another runner (actions/runner#4617).
const GHOST: &str =
    "[2026-08-07 11:59:46Z INFO Runner] Skipping message Job. Job message already acquired '5f'.\n";
const SECOND: Duration = Duration::from_secs(1);

impl Scenario<'_> {
    /// Signals the agent, and waits until it has understood: two at once are one.
    pub(super) fn ask(&self, word: &str) {
        self.running.signal(Signal::SIGTERM);
        wait(self.running, self.sim, word, || self.running.stderr().contains(word));
    }

    pub(super) fn signal_listener(&self, signal: Signal) {
        let listener = runner_runs(&self.running.home())[0].pid;
        kill(Pid::from_raw(listener), signal).unwrap();
    }
}

fn term(scenario: &Scenario<'_>) {
    scenario.running.signal(Signal::SIGTERM);
}

fn term_twice(scenario: &Scenario<'_>) {
    scenario.ask("asked to leave");
    scenario.running.signal(Signal::SIGTERM);
}

fn nothing(_: &Scenario<'_>) {}

#[rustfmt::skip]
pub(super) fn rows() -> Vec<Row> {
    use State::{Busy, Fetching, Idle, Registering, Starting};
    vec![
        row(Fetching, "SIGTERM", "the download is given up, nothing of it is left", term),
        row(Registering, "SIGTERM", "config.sh is ended with its group; no half registration is left", term),
        row(Starting, "SIGTERM", "the runner is stopped before it was ready", term),
        Row { settings: &["--ready-timeout", "1s"], ..row(Starting, "the ready timeout passes", "the runner is stopped", nothing) },
        row(Idle, "SIGTERM", "drained: it has no job, so it leaves", term),
        Row { script: |s| s.job_after_sigint(Duration::from_millis(200)).job(SECOND), ..row(Idle, "SIGTERM, and a job comes just then", "the job is finished", term) },
        Row { spec: Some(InstanceSpec::with_token), ..row(Idle, "SIGTERM, registered with a token", "drained, and its registration is removed (config.sh remove)", term) },
        Row { script: garm_sim::RunnerScript::ignore_signals, ..row(Idle, "SIGTERM, to a Listener that is deaf to signals", "SIGINT, SIGTERM, then SIGKILL to its group, a grace between them", term) },
        row(Idle, "the Listener ends by itself with code 0", "there was no job: that is not success", |s| s.signal_listener(Signal::SIGINT)),
        row(Idle, "the Listener is killed (SIGKILL)", "said as what it is", |s| s.signal_listener(Signal::SIGKILL)),
        Row { script: |s| s.signal_exit_code(5), ..row(Idle, "the Listener ends with code 5", "somebody else has this runner's session", |s| s.signal_listener(Signal::SIGINT)) },
        Row { script: |s| s.signal_exit_code(7), ..row(Idle, "the Listener ends with code 7", "the forge refuses this version", |s| s.signal_listener(Signal::SIGINT)) },
        Row { settings: &["--idle-limit", "1s"], ..row(Idle, "the idle limit passes", "drained: a job that comes just then is finished", nothing) },
        Row { settings: &["--lifetime", "1s"], ..row(Idle, "its lifetime is over", "drained", nothing) },
        Row { script: |s| s.diag(GHOST), settings: &["--orphan-limit", "2s"], ..row(Idle, "the Listener's own log says that the forge has forgotten it, for as long as the orphan limit", "drained", nothing) },
        Row { script: |s| s.job(SECOND), ..row(Busy, "nothing", "the job runs to its end, and so do we", nothing) },
        Row { script: |s| s.job(SECOND).job_result("Failed"), ..row(Busy, "the job fails", "a failed job is a job that was run", nothing) },
        Row { script: |s| s.job(SECOND).no_result().exit_code(0), ..row(Busy, "the Listener ends with code 0 and no result", "the forge still waits for that job: not success", nothing) },
        Row { script: |s| s.job(SECOND).exit_code(2), ..row(Busy, "the Listener ends with code 2 after the job", "it is not started again: it has had its job", nothing) },
        row(Busy, "the Listener is killed (SIGKILL)", "its group is ended", |s| s.signal_listener(Signal::SIGKILL)),
        Row { script: |s| s.job(SECOND), ..row(Busy, "SIGTERM", "drained: the job is finished", term) },
        Row { script: |s| s.job(SECOND * 2), settings: &["--lifetime", "1s"], ..row(Busy, "its lifetime is over", "drained: the job is finished", nothing) },
        Row { settings: &["--job-limit", "1s"], ..row(Busy, "the job limit passes", "the job is cancelled", nothing) },
        row(Busy, "SIGTERM twice", "the job is cancelled", term_twice),
        Row { script: garm_sim::RunnerScript::ignore_signals, ..row(Busy, "SIGTERM twice, to a job that is deaf to signals", "SIGINT, SIGTERM, then SIGKILL to its group, a grace between them", term_twice) },
        Row { settings: &["--drain-timeout", "1s"], ..row(Busy, "SIGTERM, and the drain takes too long", "the job is cancelled", term) },
    ]
}
