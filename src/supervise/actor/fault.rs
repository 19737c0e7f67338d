//! The runner after a fault of our own.
//!
//! It is led on by the simplest means, for whatever has failed would fail again: no limits, no relaunch. A job
//! is waited for, its lines are read, and an order to stop still counts; without a job the runner is ended.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep_until, timeout};

use super::super::Manner;
use super::super::end::How;
use super::super::leave::Work;
use super::super::output::Lines;
use super::super::process::Runner;
use super::Actor;
use super::hearing::LAST_WORDS;

impl Actor {
    /// Leads the runner to its end, if it lives.
    pub(super) async fn live_on(&mut self, runner: Option<Runner>) -> How {
        tracing::error!(
            "a fault of our own: from here on only the end of the runner is waited for"
        );
        if let Some(mut runner) = runner {
            self.nurse(&mut runner).await;
            runner.group.end_rest().await;
            let _ = timeout(LAST_WORDS, async {
                while let Some(lines) = runner.output.next().await {
                    self.try_to_hear(lines);
                }
            })
            .await;
        }
        How::Unknown("the supervisor itself has failed".to_owned())
    }

    async fn nurse(&mut self, runner: &mut Runner) {
        let Runner { process, group, output, .. } = runner;
        let (mut output_open, mut stopped, mut kill_at) = (true, false, None);
        loop {
            let has_job = self.record.work() == Work::Job && !stopped;
            if has_job {
                kill_at = None;
            } else if kill_at.is_none() {
                group.signal_leader(Signal::SIGINT);
                kill_at = Some(Instant::now() + self.launch.stop_grace);
            }
            tokio::select! {
                _ = process.wait() => return,
                Some(order) = self.orders.recv() => {
                    self.record.note(order);
                    stopped |= order.manner == Manner::Stop;
                }
                () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                    let _ = group.signal(Signal::SIGKILL) | group.signal_leader(Signal::SIGKILL);
                    let _ = process.wait().await;
                    return;
                }
                lines = output.next(), if output_open => match lines {
                    Some(lines) => self.try_to_hear(lines),
                    None => output_open = false,
                },
            }
        }
    }

    /// It may be this that has failed.
    fn try_to_hear(&mut self, lines: Lines<'_>) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.hear(lines)));
    }
}
