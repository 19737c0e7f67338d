//! Ghosts: runners that listen on, though the forge has forgotten them. Nothing but their own log tells
//! ([`Sign`]); so it is looked at now and then, while a person has set a limit and the runner has no job.
//!
//! A lost job is said once, and held against the runner until it has another one, for then it is no ghost
//! (actions/runner#4617). An unknown registration is said again with each attempt, at least once a minute;
//! when that stops, the forge knows the runner again.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::diag::Diag;
use super::progress::Progress;
use super::{Manner, Order, Why};
use crate::forge::Sign;

/// How many looks fit into the limit, and the longest pause between two.
const LOOKS: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long the runner may be silent between two attempts to connect, looks included.
const SILENCE: Duration = Duration::from_secs(120);

/// When the next look is due, and what the last ones have shown.
pub(super) struct Watch {
    limit: Option<Duration>,
    due: Option<Instant>,
    lost: Option<Instant>,
    /// The first and the last time.
    unknown: Option<(Instant, Instant)>,
}

impl Watch {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self { limit, due: None, lost: None, unknown: None }
    }

    /// The runner is started again.
    pub(super) fn starts(&mut self) {
        *self = Self::new(self.limit);
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
        let now = Instant::now();
        diag.for_each_sign(|sign| self.seen(sign, now));
        self.is_over(now).then_some(Order { manner: Manner::Drain, why: Why::Ghost })
    }

    fn seen(&mut self, sign: Sign, now: Instant) {
        match sign {
            Sign::JobLost if self.lost.is_none() => {
                tracing::warn!(
                    "the runner has lost the job that it was given, and so its registration; it is \
                     drained if it gets no other one"
                );
                self.lost = Some(now);
            }
            Sign::JobLost => {}
            Sign::Unknown => {
                if self.unknown.is_none() {
                    tracing::warn!(
                        "the forge does not know the runner's registration; it is drained if that \
                         goes on"
                    );
                }
                let (first, _) = self.unknown.unwrap_or((now, now));
                self.unknown = Some((first, now));
            }
        }
    }

    fn is_over(&mut self, now: Instant) -> bool {
        let Some(limit) = self.limit else { return false };
        self.unknown = self.unknown.filter(|(_, last)| now.duration_since(*last) < SILENCE);
        // The look that has seen it first may have come late by one pause.
        let rest = limit / LOOKS * (LOOKS - 1);
        let since = [self.lost, self.unknown.map(|(first, _)| first)];
        since.into_iter().flatten().any(|since| now.duration_since(since) >= rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn an_unknown_registration_counts_for_as_long_as_it_is_said_again() {
        let now = Instant::now();
        let mut watch = Watch::new(Some(MINUTE * 8));
        for minute in 0..6 {
            watch.seen(Sign::Unknown, now + MINUTE * minute);
            assert!(!watch.is_over(now + MINUTE * minute));
        }
        watch.seen(Sign::Unknown, now + MINUTE * 6);
        assert!(watch.is_over(now + MINUTE * 6));
    }

    #[test]
    fn a_registration_that_is_known_again_does_not_count() {
        let now = Instant::now();
        let mut watch = Watch::new(Some(MINUTE * 8));
        watch.seen(Sign::Unknown, now);
        assert!(!watch.is_over(now + MINUTE * 2));
        watch.seen(Sign::Unknown, now + MINUTE * 6);
        assert!(!watch.is_over(now + MINUTE * 6));
    }

    #[test]
    fn a_lost_job_counts_though_it_is_said_once() {
        let now = Instant::now();
        let mut watch = Watch::new(Some(MINUTE * 8));
        watch.seen(Sign::JobLost, now);
        assert!(!watch.is_over(now + MINUTE * 5));
        assert!(watch.is_over(now + MINUTE * 6));
    }
}
