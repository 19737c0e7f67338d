//! How far we have gone in making the runner leave: a state machine without I/O.
//!
//! | step | by | until |
//! |---|---|---|
//! | `AfterJob` | nothing: a job runs, or came in after the SIGINT of a drain | the drain timeout |
//! | `AfterExit` | nothing: its job is done, and it is about to leave by itself | the grace |
//! | `Interrupted` | SIGINT to the Listener alone: it passes the cancellation on itself | the grace |
//! | `Terminated` | SIGTERM to the whole group | [`KILL_AFTER`], or the grace if that is shorter |
//! | `Killed` | SIGKILL to the whole group | |
//!
//! A drain goes past `AfterJob` only when its time has passed; and a job that comes before or after its SIGINT
//! leads back there. A stop begins with `Interrupted`; each
//! further stop skips the wait that it is in.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Manner;
use super::memory::{maybe_moment, moment};

/// How long a group may take to end after SIGTERM.
const KILL_AFTER: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum Leave {
    #[default]
    NotAsked,
    AfterJob {
        #[serde(with = "maybe_moment")]
        until: Option<Instant>,
    },
    AfterExit {
        #[serde(with = "moment")]
        until: Instant,
    },
    Interrupted {
        #[serde(with = "moment")]
        until: Instant,
        manner: Manner,
    },
    Terminated {
        #[serde(with = "moment")]
        until: Instant,
    },
    Killed,
}

/// What is to be done to the runner now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// SIGINT to the leader.
    Interrupt,
    /// SIGTERM to the group.
    Terminate,
    /// SIGKILL to the group.
    Kill,
}

/// What the runner is doing, as far as leaving is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    None,
    Job,
    /// The job is done, and the runner is about to leave by itself: a signal could keep it from telling
    /// the forge.
    JustDone,
}

/// The times that a person has set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) drain_timeout: Option<Duration>,
    pub(super) stop_grace: Duration,
}

impl Leave {
    /// An order came.
    pub(super) fn ordered(
        self,
        manner: Manner,
        work: Work,
        times: Times,
        now: Instant,
    ) -> (Self, Action) {
        match (manner, self) {
            (Manner::Drain, Self::NotAsked) => match work {
                Work::None => Self::interrupt(manner, times, now),
                Work::Job => (Self::await_job(times, now), Action::Nothing),
                Work::JustDone => (Self::await_exit(times, now), Action::Nothing),
            },
            (Manner::Drain, _) => (self, Action::Nothing),
            (Manner::Stop, Self::NotAsked | Self::AfterJob { .. } | Self::AfterExit { .. }) => {
                Self::interrupt(manner, times, now)
            }
            (Manner::Stop, _) => self.further(times, now),
        }
    }

    /// A job line came: after the SIGINT of a drain, or in place of the exit that it waits for, the job is
    /// waited for all the same.
    pub(super) fn job_started(self, times: Times, now: Instant) -> Self {
        match self {
            Self::Interrupted { manner: Manner::Drain, .. } | Self::AfterExit { .. } => {
                Self::await_job(times, now)
            }
            other => other,
        }
    }

    /// The job that a drain has waited for is done: the runner may take the grace to go by itself.
    pub(super) fn job_completed(self, times: Times, now: Instant) -> Self {
        match self {
            Self::AfterJob { .. } => Self::await_exit(times, now),
            other => other,
        }
    }

    /// When [`Self::timed_out`] is due.
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            Self::AfterJob { until } => until,
            Self::AfterExit { until }
            | Self::Interrupted { until, .. }
            | Self::Terminated { until } => Some(until),
            Self::NotAsked | Self::Killed => None,
        }
    }

    /// The time of this step has passed.
    pub(super) fn timed_out(self, times: Times, now: Instant) -> (Self, Action) {
        self.further(times, now)
    }

    /// Whether the runner is being made to leave, no job being waited for.
    pub(super) fn is_under_way(self) -> bool {
        matches!(self, Self::Interrupted { .. } | Self::Terminated { .. } | Self::Killed)
    }

    /// What is being done, for the log.
    pub(super) fn describe(self, now: Instant) -> String {
        let (doing, until) = match self {
            Self::NotAsked => ("nothing", None),
            Self::AfterJob { until } => ("its job is waited for", until),
            Self::AfterExit { until } => ("its job is done, it may go by itself", Some(until)),
            Self::Interrupted { until, .. } => ("interrupted it with SIGINT", Some(until)),
            Self::Terminated { until } => ("sent SIGTERM to its process group", Some(until)),
            Self::Killed => ("sent SIGKILL to its process group", None),
        };
        until.map_or_else(
            || doing.to_owned(),
            |until| format!("{doing}, for at most {:.1?}", until.saturating_duration_since(now)),
        )
    }

    fn further(self, times: Times, now: Instant) -> (Self, Action) {
        match self {
            Self::NotAsked => (self, Action::Nothing),
            Self::AfterJob { .. } => Self::interrupt(Manner::Stop, times, now),
            Self::AfterExit { .. } => Self::interrupt(Manner::Drain, times, now),
            Self::Interrupted { .. } => (
                Self::Terminated { until: now + KILL_AFTER.min(times.stop_grace) },
                Action::Terminate,
            ),
            Self::Terminated { .. } | Self::Killed => (Self::Killed, Action::Kill),
        }
    }

    fn interrupt(manner: Manner, times: Times, now: Instant) -> (Self, Action) {
        (Self::Interrupted { until: now + times.stop_grace, manner }, Action::Interrupt)
    }

    fn await_job(times: Times, now: Instant) -> Self {
        Self::AfterJob { until: times.drain_timeout.map(|limit| now + limit) }
    }

    fn await_exit(times: Times, now: Instant) -> Self {
        Self::AfterExit { until: now + times.stop_grace }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: Times =
        Times { drain_timeout: Some(Duration::from_mins(10)), stop_grace: Duration::from_secs(30) };

    #[test]
    fn a_drain_interrupts_an_idle_runner_and_waits_for_a_job() {
        let now = Instant::now();
        let idle = Leave::NotAsked.ordered(Manner::Drain, Work::None, TIMES, now);
        assert_eq!(idle.1, Action::Interrupt);
        let busy = Leave::NotAsked.ordered(Manner::Drain, Work::Job, TIMES, now);
        assert_eq!(busy.1, Action::Nothing);
        assert_eq!(busy.0.until(), Some(now + Duration::from_mins(10)));
    }

    #[test]
    fn a_job_that_starts_after_the_interrupt_of_a_drain_is_waited_for() {
        let now = Instant::now();
        let (leave, _) = Leave::NotAsked.ordered(Manner::Drain, Work::None, TIMES, now);
        let leave = leave.job_started(TIMES, now);
        assert_eq!(leave, Leave::AfterJob { until: Some(now + Duration::from_mins(10)) });
        assert!(!leave.is_under_way());
    }

    #[test]
    fn a_job_that_starts_in_place_of_an_exit_is_waited_for() {
        let now = Instant::now();
        let (leave, action) = Leave::NotAsked.ordered(Manner::Drain, Work::JustDone, TIMES, now);
        assert_eq!((leave.until(), action), (Some(now + TIMES.stop_grace), Action::Nothing));
        let after_job = Leave::AfterJob { until: Some(now + Duration::from_mins(10)) };
        assert_eq!(leave.job_started(TIMES, now), after_job);
        let (leave, action) = leave.timed_out(TIMES, now);
        assert_eq!(action, Action::Interrupt);
        assert_eq!(leave.job_started(TIMES, now), after_job);
    }

    #[test]
    fn a_job_that_starts_after_a_stop_is_not_waited_for() {
        let now = Instant::now();
        let (leave, _) = Leave::NotAsked.ordered(Manner::Stop, Work::None, TIMES, now);
        assert_eq!(leave.job_started(TIMES, now), leave);
    }

    #[test]
    fn without_a_drain_timeout_a_job_is_waited_for_for_ever() {
        let times = Times { drain_timeout: None, ..TIMES };
        let now = Instant::now();
        let (leave, _) = Leave::NotAsked.ordered(Manner::Drain, Work::Job, times, now);
        assert_eq!(leave.until(), None);
        assert_eq!(leave.job_completed(times, now).until(), Some(now + times.stop_grace));
    }

    #[test]
    fn a_further_drain_changes_nothing_and_each_further_stop_skips_a_wait() {
        let now = Instant::now();
        let (leave, _) = Leave::NotAsked.ordered(Manner::Drain, Work::Job, TIMES, now);
        assert_eq!(leave.ordered(Manner::Drain, Work::Job, TIMES, now), (leave, Action::Nothing));
        let stop = |leave: Leave| leave.ordered(Manner::Stop, Work::Job, TIMES, now);
        let (leave, first) = stop(leave);
        let (leave, second) = stop(leave);
        let (leave, third) = stop(leave);
        assert_eq!([first, second, third], [Action::Interrupt, Action::Terminate, Action::Kill]);
        assert_eq!(leave.until(), None);
    }

    #[test]
    fn a_stop_takes_the_grace_and_then_ends_the_group() {
        let now = Instant::now();
        let (leave, _) = Leave::NotAsked.ordered(Manner::Stop, Work::Job, TIMES, now);
        assert_eq!(leave.until(), Some(now + TIMES.stop_grace));
        let (leave, action) = leave.timed_out(TIMES, now);
        assert_eq!((action, leave.until()), (Action::Terminate, Some(now + KILL_AFTER)));
        assert_eq!(leave.timed_out(TIMES, now), (Leave::Killed, Action::Kill));
    }
}
