//! Ghosts: runners that listen on, though the forge has given their job away and forgotten them
//! (actions/runner#4617). Nothing but their own log tells; so it is looked at now and then, while a person
//! has set a limit and the runner has no job. A ghost that goes on with a job after all is none.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::diag::Diag;
use super::progress::Progress;
use super::{Manner, Order, Why};

/// How many looks fit into the limit, and the longest pause between two.
const LOOKS: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// When the next look is due, and what the last ones have shown.
pub(super) struct Watch {
    limit: Option<Duration>,
    due: Option<Instant>,
    seen: Option<Instant>,
}

impl Watch {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self { limit, due: None, seen: None }
    }

    /// The runner is started again.
    pub(super) fn starts(&mut self) {
        (self.due, self.seen) = (None, None);
    }

    /// Returns when it is time for a look; never without a limit, or beside a job.
    pub(super) async fn due(&mut self, progress: &Progress) {
        let Some(limit) = self.limit.filter(|_| *progress == Progress::Listening) else {
            return std::future::pending().await;
        };
        let pause = (limit / LOOKS).min(LONGEST_PAUSE);
        sleep_until(*self.due.get_or_insert_with(|| Instant::now() + pause)).await;
        self.due = None;
    }

    /// Looks; the order that follows, if the runner has been a ghost for the rest of the limit.
    pub(super) fn look(&mut self, diag: &mut Diag) -> Option<Order> {
        let limit = self.limit?;
        let now = Instant::now();
        if self.seen.is_none() && diag.has_lost_its_job() {
            tracing::warn!(
                "the runner has lost the job that it was given, and so its registration; it is \
                 drained if it gets no other one"
            );
            self.seen = Some(now);
        }
        // The look that has seen it may have come late by one pause.
        let rest = limit / LOOKS * (LOOKS - 1);
        let over = self.seen.is_some_and(|seen| now.duration_since(seen) >= rest);
        over.then_some(Order { manner: Manner::Drain, why: Why::Ghost })
    }
}
