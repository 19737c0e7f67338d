//! From the runner's first "Listening" to its end.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Boot, LAST_WORD};
use crate::error::Error;
use crate::garm::IdleOutcome;
use crate::host::memory;
use crate::http::Patience;
use crate::state::{Life, Told};
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
                    Ok(Ok(Told::Accepted | Told::Known)) => Ok(end),
                    _ => Self::without_idle(end),
                };
            }
        };
        if announced == Told::Not {
            warn!("the runner goes on, though GARM does not know that it is idle");
        }
        let end = self.during(Phase::Supervise, self.led(lead, &runner, announced)).await?;
        if announced == Told::Not { Self::without_idle(end) } else { Ok(end) }
    }

    /// Leads a runner of which GARM knows to its end.
    pub(super) async fn supervise(
        &self,
        runner: &Supervisor,
        told: Told,
    ) -> Result<Box<End>, Error> {
        self.during(Phase::Supervise, self.led(self.lead(runner), runner, told)).await
    }

    /// `lead`, and beside it whatever may ask the runner to leave.
    async fn led(
        &self,
        lead: impl Future<Output = Box<End>>,
        runner: &Supervisor,
        told: Told,
    ) -> Result<Box<End>, Error> {
        self.rest();
        tokio::select! {
            end = lead => Ok(end),
            never = self.drain_orphan(runner, told) => match never {},
        }
    }

    /// From here on the machine is the job's: no connection is kept, and no memory that is not used.
    fn rest(&self) {
        self.garm.rest();
        self.http.borrow().rest();
        memory::give_back();
    }

    /// A runner that was gone without GARM having taken `idle`: fine if it has had its job.
    fn without_idle(end: Box<End>) -> Result<Box<End>, Error> {
        if end.job.is_some() { Ok(end) } else { Err(Error::Ended(end)) }
    }

    /// What GARM says to it that the runner is idle.
    async fn announce(&self, agent_id: Option<u64>) -> Result<Told, Error> {
        let message = format!("runner ready in {}", self.timeline.borrow().summary());
        info!("{message}");
        // Not the boot's own patience: a signal drains the runner, and does not silence us.
        let deadline = self.garm.patience().deadline.max(Instant::now() + LAST_WORD);
        let patience = Patience { deadline, cancel: CancellationToken::new() };
        let told = match self.reporter.idle(message, agent_id, patience).await {
            Ok(IdleOutcome::Accepted) => Told::Accepted,
            Ok(IdleOutcome::Known) => {
                info!("GARM knows already that the runner is up (401)");
                Told::Known
            }
            Ok(IdleOutcome::Refused(why)) => {
                warn!("GARM refused \"idle\": {why}");
                Told::Not
            }
            Err(error) => {
                warn!("{error}");
                Told::Not
            }
        };
        self.told.set(Some(told));
        self.mark_used();
        if told != Told::Not {
            self.note(Life::announced);
        }
        Ok(told)
    }

    /// Watches over the runner until it has ended, and passes on what we are asked to do.
    pub(super) async fn lead(&self, runner: &Supervisor) -> Box<End> {
        let mut seen = 0;
        let mut marked = false;
        let mut shown = runner.state();
        loop {
            tokio::select! {
                biased;
                () = runner.wait_job(), if !marked => {
                    marked = true;
                    self.take_registered();
                    self.mark_used();
                    self.show(&runner.state());
                }
                end = runner.wait_ended() => return end,
                state = runner.wait_other_than(&shown) => {
                    self.show(&state);
                    shown = state;
                }
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

    /// Notes which job it is at; one that stays waits for the next one after each.
    fn show(&self, state: &State) {
        match state {
            State::Running { job } => self.note(|life| life.run(job)),
            State::Finishing { .. } if !self.config.registration.ephemeral => {
                self.note(Life::become_idle);
            }
            _ => {}
        }
    }

    fn mark_used(&self) {
        if let Err(error) = self.state.mark_used(&self.instance, self.told.get()) {
            warn!("failed to {error}; a restart might start the runner again");
        }
    }
}
