//! From the runner's first "Listening" to its end.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Boot, LAST_WORD};
use crate::error::Error;
use crate::garm::IdleOutcome;
use crate::http::Patience;
use crate::supervise::{End, State, Supervisor, Why};
use crate::timeline::Phase;

/// How long the answer to an `idle` is awaited when the runner has ended meanwhile.
const IDLE_ON_ITS_WAY: Duration = Duration::from_secs(2);

impl Boot {
    /// Announces the runner and leads it to its end. The two run side by side: a GARM that cannot be
    /// reached must not keep a signal from a runner that has its job already.
    pub(super) async fn live(
        &self,
        runner: Supervisor,
        agent_id: Option<u64>,
    ) -> Result<Box<End>, Error> {
        if let State::Ended(end) = runner.state() {
            return Self::without_idle(end);
        }
        let lead = self.lead(&runner);
        let announce = self.during(Phase::Announce, self.announce(agent_id));
        tokio::pin!(lead, announce);
        let announced = tokio::select! {
            biased;
            announced = &mut announce => announced?,
            end = &mut lead => {
                // An `idle` that is on its way may have landed, and only its answer tells.
                return match tokio::time::timeout(IDLE_ON_ITS_WAY, announce).await {
                    Ok(Ok(true)) => Ok(end),
                    _ => Self::without_idle(end),
                };
            }
        };
        if !announced {
            warn!("the runner goes on, though GARM does not know that it is idle");
        }
        let end = self.during(Phase::Supervise, async { Ok(lead.await) }).await?;
        if announced { Ok(end) } else { Self::without_idle(end) }
    }

    /// A runner that was gone without GARM having taken `idle`: fine if it has had its job.
    fn without_idle(end: Box<End>) -> Result<Box<End>, Error> {
        if end.job.is_some() { Ok(end) } else { Err(Error::Ended(end)) }
    }

    /// Whether GARM knows now that the runner is idle.
    async fn announce(&self, agent_id: Option<u64>) -> Result<bool, Error> {
        let message = format!("runner ready in {}", self.timeline.borrow().summary());
        info!("{message}");
        // Not the boot's own patience: a signal drains the runner, and does not silence us.
        let deadline = self.garm.patience().deadline.max(Instant::now() + LAST_WORD);
        let patience = Patience { deadline, cancel: CancellationToken::new() };
        let known = match self.reporter.idle(message, agent_id, patience).await {
            Ok(IdleOutcome::Accepted) => true,
            Ok(IdleOutcome::Known) => {
                info!("GARM knows already that the runner is up (401)");
                true
            }
            Ok(IdleOutcome::Refused(why)) => {
                warn!("GARM refused \"idle\": {why}");
                false
            }
            Err(error) => {
                warn!("{error}");
                false
            }
        };
        self.mark_used();
        Ok(known)
    }

    /// Watches over the runner until it has ended, and passes on what we are asked to do.
    pub(super) async fn lead(&self, runner: &Supervisor) -> Box<End> {
        let mut seen = 0;
        let mut marked = false;
        loop {
            tokio::select! {
                biased;
                () = runner.wait_job(), if !marked => {
                    marked = true;
                    self.registered.take();
                    self.mark_used();
                }
                end = runner.wait_ended() => return end,
                count = self.signals.more_than(seen) => {
                    seen = count;
                    if count == 1 {
                        info!("asked to leave: taking no more jobs, and waiting for one that runs");
                        runner.drain(Why::Asked);
                    } else {
                        info!("asked again: stopping the runner now");
                        runner.stop(Why::Asked);
                    }
                }
            }
        }
    }

    fn mark_used(&self) {
        if let Err(error) = self.state.mark_used(&self.instance) {
            warn!("failed to {error}; a restart might start the runner again");
        }
    }
}
