//! The orphan rule: an idle runner whose GARM has forgotten it does not stay for ever.
//!
//! From `idle` on GARM answers 401 to every call of an instance, whether it still knows that one or not
//! (garm-protocol §2). So a 401 after an `idle` that GARM has taken says that GARM is alive, and nothing
//! more; taken for "forgotten" it would end every healthy runner of a warm pool. What does count, if it
//! lasts for the whole limit while the runner has no job:
//! - GARM has never taken `idle` (it said 401, refused it, or could not be reached), and no job has come.
//!   Either a job was faster, and then its line comes; or the instance is gone;
//! - where GARM was, there is nothing: no connection, or an answer that is not GARM's (404, 410, or what a
//!   proxy says whose backend is gone). One answer of GARM's starts the time anew.
//!
//! What the forge has forgotten is `supervise`'s to see (its `ghost`).

use std::convert::Infallible;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::Boot;
use crate::state::Told;
use crate::supervise::{Supervisor, Why};

/// How many looks fit into the limit.
const LOOKS: u32 = 4;

impl Boot {
    /// Drains the runner when it has been an orphan for as long as it may. Never returns.
    pub(super) async fn drain_orphan(&self, runner: &Supervisor, told: Told) -> Infallible {
        if let Some(limit) = self.config.times.orphan_limit {
            tokio::select! {
                () = runner.wait_job() => {}
                () = self.forgotten(limit, told) => runner.drain(Why::Forgotten),
            }
        }
        std::future::pending().await
    }

    /// Returns when GARM has forgotten this instance for `limit`.
    async fn forgotten(&self, limit: Duration, told: Told) {
        if told != Told::Accepted {
            sleep(limit).await;
            warn!("GARM has not taken this runner as idle, and no job has come for {limit:?}");
            return;
        }
        let pause = limit / LOOKS;
        let mut since = None;
        loop {
            sleep(pause).await;
            match self.garm.is_there().await {
                Ok(()) => {
                    if since.take().is_some() {
                        info!("GARM is there again");
                    }
                }
                Err(error) => {
                    let gone = since.get_or_insert_with(Instant::now).elapsed();
                    debug!("GARM is not there for {gone:?}: {error}");
                    if gone + pause >= limit {
                        warn!("GARM is gone for {limit:?}: {error}");
                        return;
                    }
                }
            }
        }
    }
}
