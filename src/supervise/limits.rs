//! How long a runner may wait, work and live: the limits that a person has set. Without I/O.
//!
//! | limit | from | to | then |
//! |---|---|---|---|
//! | idle | its first "Listening" | its job | it is drained: a job that comes just then is finished |
//! | job | its job's first line | the job's last line | it is stopped |
//! | job, after the last line | the same | its end | it is drained: one that is to have one job has no use any more |
//! | after the job | its job's last line | its end, or another job | the same: what it has left to do takes it a minute or so |
//! | lifetime | its first start | its end | it is drained: a running job is finished |
//!
//! A relaunch before a job starts none of them anew: to whoever waits for the machine it is the same runner.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::memory::maybe_moment;
use super::progress::Progress;
use super::{Manner, Order, Why};

/// `None`: without that limit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    pub idle: Option<Duration>,
    pub job: Option<Duration>,
    /// How long it may take to leave by itself when its job is done.
    pub after_job: Option<Duration>,
    pub lifetime: Option<Duration>,
    /// Whether it stays after a job, for the next one.
    pub stays: bool,
}

/// When each of the limits began to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
// Notes may be of another version of this program, which was replaced beside a running job.
#[serde(default)]
pub(super) struct Clock {
    #[serde(with = "maybe_moment")]
    pub(super) started: Option<Instant>,
    #[serde(with = "maybe_moment")]
    pub(super) listening: Option<Instant>,
    #[serde(with = "maybe_moment")]
    pub(super) job: Option<Instant>,
    #[serde(with = "maybe_moment")]
    pub(super) done: Option<Instant>,
}

impl Clock {
    pub(super) fn started(&mut self, now: Instant) {
        self.started.get_or_insert(now);
    }

    pub(super) fn progressed(&mut self, progress: &Progress, now: Instant) {
        match progress {
            Progress::Starting => {}
            Progress::Finished { .. } => self.done = Some(now),
            Progress::Listening => {
                self.listening.get_or_insert(now);
            }
            Progress::Running { .. } => self.job = Some(now),
        }
    }

    /// The order that is due next, and when. `asked` is the strongest order so far: an order that is no
    /// stronger changes nothing any more.
    pub(super) fn next(
        &self,
        limits: Limits,
        progress: &Progress,
        asked: Option<Order>,
    ) -> Option<(Instant, Order)> {
        let waits = !progress.has_seen_job();
        let works = matches!(progress, Progress::Running { .. });
        let hangs = matches!(progress, Progress::Finished { .. }) && !limits.stays;
        let due = |from: Option<Instant>, limit: Option<Duration>| Some(from? + limit?);
        let all = [
            (due(self.listening, limits.idle), waits, Manner::Drain, Why::IdleLimit),
            (due(self.job, limits.job), works, Manner::Stop, Why::JobLimit),
            (due(self.job, limits.job), hangs, Manner::Drain, Why::JobLimit),
            (due(self.done, limits.after_job), hangs, Manner::Drain, Why::Lingers),
            (due(self.started, limits.lifetime), true, Manner::Drain, Why::Lifetime),
        ];
        all.into_iter()
            .filter(|(_, counts, manner, _)| {
                *counts && asked.is_none_or(|asked| *manner > asked.manner)
            })
            .filter_map(|(due, _, manner, why)| Some((due?, Order { manner, why })))
            .min_by_key(|(due, _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forge::JobResult;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: Limits = Limits {
        idle: Some(SECOND),
        job: Some(SECOND),
        after_job: None,
        lifetime: Some(Duration::from_secs(60)),
        stays: false,
    };

    fn running() -> Progress {
        Progress::Running { name: "build".to_owned() }
    }

    fn asked(manner: Manner) -> Order {
        Order { manner, why: Why::Asked }
    }

    #[test]
    fn without_a_limit_nothing_is_ever_due() {
        let now = Instant::now();
        let mut clock = Clock::default();
        clock.started(now);
        clock.progressed(&Progress::Listening, now);
        assert_eq!(clock.next(Limits::default(), &Progress::Listening, None), None);
    }

    #[test]
    fn an_idle_runner_is_drained_and_a_job_ends_that_limit() {
        let now = Instant::now();
        let mut clock = Clock::default();
        clock.started(now);
        clock.progressed(&Progress::Listening, now);
        let drain = Order { manner: Manner::Drain, why: Why::IdleLimit };
        assert_eq!(clock.next(LIMITS, &Progress::Listening, None), Some((now + SECOND, drain)));
        // Being started again is no new beginning.
        clock.progressed(&Progress::Listening, now + SECOND / 2);
        assert_eq!(clock.next(LIMITS, &Progress::Starting, None), Some((now + SECOND, drain)));
        let then = now + SECOND / 2;
        clock.progressed(&running(), then);
        let stop = Order { manner: Manner::Stop, why: Why::JobLimit };
        assert_eq!(clock.next(LIMITS, &running(), None), Some((then + SECOND, stop)));
    }

    #[test]
    fn a_runner_that_does_not_leave_after_its_one_job_is_drained() {
        let now = Instant::now();
        let mut clock = Clock::default();
        clock.progressed(&running(), now);
        let done = Progress::Finished { name: "build".to_owned(), result: JobResult::Succeeded };
        clock.progressed(&done, now + SECOND / 2);
        let drain = Order { manner: Manner::Drain, why: Why::JobLimit };
        assert_eq!(clock.next(LIMITS, &done, None), Some((now + SECOND, drain)));
        assert_eq!(clock.next(Limits { stays: true, ..LIMITS }, &done, None), None);
    }

    #[test]
    fn a_runner_that_lingers_after_its_job_is_drained_unless_it_has_another_one() {
        let now = Instant::now();
        let limits = Limits { after_job: Some(SECOND), ..Limits::default() };
        let mut clock = Clock::default();
        clock.progressed(&running(), now);
        assert_eq!(clock.next(limits, &running(), None), None);
        let done = Progress::Finished { name: "build".to_owned(), result: JobResult::Succeeded };
        clock.progressed(&done, now + SECOND);
        let drain = Order { manner: Manner::Drain, why: Why::Lingers };
        assert_eq!(clock.next(limits, &done, None), Some((now + SECOND * 2, drain)));
        assert_eq!(clock.next(limits, &running(), None), None);
    }

    #[test]
    fn the_job_limit_holds_while_a_drain_waits_and_not_after_a_stop() {
        let now = Instant::now();
        let mut clock = Clock::default();
        clock.started(now);
        clock.progressed(&running(), now);
        let why = |asked| clock.next(LIMITS, &running(), Some(asked)).map(|(_, order)| order.why);
        assert_eq!(why(asked(Manner::Drain)), Some(Why::JobLimit));
        assert_eq!(why(asked(Manner::Stop)), None);
    }
}
