//! The last phase: `failed` if GARM is still to hear it, what is left to clean up, and the exit code.
//!
//! Invariant: the runner that was started is led to its end before this returns, whatever has failed.

use std::time::{Duration, Instant};

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{Boot, LAST_WORD, Outcome, told};
use crate::error::Error;
use crate::exit::Exit;
use crate::http::Patience;
use crate::supervise::{self, Supervisor, Why};
use crate::timeline::Phase;

/// How long it may take until it shows whether a runner has got a job.
const JOB_SHOWS: Duration = Duration::from_secs(1);
/// How long `failed` is tried after a stop: the platform will not wait for ever.
const LAST_WORD_WHEN_STOPPED: Duration = Duration::from_secs(8);

impl Boot {
    /// Says what is to be said, gives back what was taken, and chooses the exit code.
    pub(super) async fn finish(&self, outcome: Result<Outcome, Error>) -> Exit {
        let stopped = self.signals.count() > 0;
        let last = self.phase.get();
        self.timeline.borrow_mut().end(last);
        self.timeline.borrow_mut().begin(Phase::Finish);
        let (exit, over) = match outcome {
            Ok(Outcome::Installed) => {
                self.note(|life| life.end(Exit::Done, None, "the runner is installed"));
                (Exit::Done, false)
            }
            Ok(Outcome::Ended(end)) => {
                self.note_end(&end);
                let exit = end.exit();
                let reason = (exit != Exit::Done).then(|| exit.reason());
                self.note(|life| life.end(exit, reason, &end.summary()));
                (exit, true)
            }
            Err(error) => {
                let error = self.cause(error);
                let message = told::failure(&error, last, self.garm.skew());
                error!("{message}");
                self.note(|life| life.end(error.exit(), Some(error.reason()), &message));
                told::on_console(&message);
                let heard = match self.runner.take() {
                    None => self.say_failed(&message, stopped).await,
                    Some(runner) => self.fail_beside(&runner, &message, stopped).await,
                };
                (error.exit(), heard)
            }
        };
        // What is kept, and the registration itself, is for another start of this instance: the one that
        // follows an installation, or the next one if GARM could not be told of a failure.
        if over {
            self.deregister().await;
            self.kept().forget();
        }
        self.timeline.borrow_mut().end(Phase::Finish);
        if let Err(error) = self.state.write_timeline(&self.timeline.borrow()) {
            warn!("failed to {error}");
        }
        // Not before: another agent would find an instance that had its run, and could not say how it ended.
        supervise::forget(&self.service, &self.state.runner_memory(&self.instance));
        exit
    }

    /// Leads the runner of a boot that has failed to its end, and tells GARM of the failure: at once, but not
    /// beside a job, for GARM would have the machine deleted under it. Whether GARM has heard all it needs.
    async fn fail_beside(&self, runner: &Supervisor, message: &str, stopped: bool) -> bool {
        runner.drain(Why::BootFailed);
        let has_job = tokio::select! {
            biased;
            () = runner.wait_job() => true,
            _ = runner.wait_ended() => false,
            () = sleep(JOB_SHOWS) => false,
        };
        if has_job {
            warn!(
                "the runner has a job: it is led to its end, and GARM is not told that it has failed"
            );
            self.note_end(&*self.lead(runner).await);
            return true;
        }
        let heard = self.say_failed(message, stopped).await;
        self.note_end(&*self.lead(runner).await);
        heard
    }

    /// What an error comes down to: a phase that was told to stop has failed for that reason alone.
    fn cause(&self, error: Error) -> Error {
        let halted = self.garm.patience().cancel.is_cancelled();
        match error {
            Error::Ended(_) | Error::Panic(_) | Error::Superseded => error,
            _ if halted && self.signals.count() > 0 => Error::Stopped,
            _ if halted => Error::Superseded,
            error => error,
        }
    }

    /// Whether GARM has heard it.
    async fn say_failed(&self, message: &str, stopped: bool) -> bool {
        let now = Instant::now();
        let deadline = if stopped {
            now + LAST_WORD_WHEN_STOPPED
        } else {
            self.garm.patience().deadline.max(now + LAST_WORD)
        };
        let patience = Patience { deadline, cancel: CancellationToken::new() };
        let hurry = self.signals.more_than(self.signals.count().max(u32::from(stopped)));
        tokio::select! {
            delivered = self.reporter.failed(message, patience) => {
                if let Err(error) = &delivered {
                    warn!("GARM could not be told of the failure: {error}");
                }
                delivered.is_ok()
            }
            _ = hurry => {
                warn!("asked again to leave: GARM was not told of the failure");
                false
            }
        }
    }
}
