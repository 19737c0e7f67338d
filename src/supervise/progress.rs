//! What the runner is doing, by its own account: which events may change which state.
//!
//! An ephemeral runner has one job in its life, so the way leads only forward; only a runner that a person
//! has made to stay goes on from one job to the next. While a job runs only its own completion counts,
//! because the output of a job can hold any words.

use serde::{Deserialize, Serialize};

use crate::forge::{Event, JobResult};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum Progress {
    #[default]
    Starting,
    Listening,
    Running {
        name: String,
    },
    Finished {
        name: String,
        result: JobResult,
    },
}

impl Progress {
    /// The state after `event`; `None` if it changes nothing.
    pub(super) fn after(&self, event: Event) -> Option<Self> {
        match (self, event) {
            (Self::Starting, Event::Listening) => Some(Self::Listening),
            (
                Self::Starting | Self::Listening | Self::Finished { .. },
                Event::JobStarted { name },
            ) => Some(Self::Running { name }),
            // The beginning may have gone to an agent that has crashed with it.
            (Self::Starting | Self::Listening, Event::JobCompleted { name, result }) => {
                Some(Self::Finished { name, result })
            }
            (Self::Running { name }, Event::JobCompleted { name: done, result })
                if *name == done =>
            {
                Some(Self::Finished { name: done, result })
            }
            _ => None,
        }
    }

    /// The state after all of `events`.
    pub(super) fn through(events: impl IntoIterator<Item = Event>) -> Self {
        let step = |now: Self, event| now.after(event).unwrap_or(now);
        events.into_iter().fold(Self::default(), step)
    }

    pub(super) fn has_seen_job(&self) -> bool {
        matches!(self, Self::Running { .. } | Self::Finished { .. })
    }

    /// How far it is on the way of a runner that has one job.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Starting => 0,
            Self::Listening => 1,
            Self::Running { .. } => 2,
            Self::Finished { .. } => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event() -> impl Strategy<Value = Event> {
        let name = prop_oneof![Just("build".to_owned()), Just("test".to_owned())];
        let result = prop_oneof![Just(JobResult::Succeeded), Just(JobResult::Failed)];
        prop_oneof![
            Just(Event::Listening),
            Just(Event::Reconnected),
            name.clone().prop_map(|name| Event::JobStarted { name }),
            (name, result).prop_map(|(name, result)| Event::JobCompleted { name, result }),
        ]
    }

    #[test]
    fn the_words_of_another_job_do_not_end_the_running_one() {
        let running = Progress::Running { name: "build".to_owned() };
        let fake = Event::JobCompleted { name: "other".to_owned(), result: JobResult::Succeeded };
        assert_eq!(running.after(fake), None);
        assert_eq!(running.after(Event::Listening), None);
        assert_eq!(running.after(Event::JobStarted { name: "other".to_owned() }), None);
    }

    #[test]
    fn a_further_job_counts_and_listening_after_a_job_does_not() {
        let done = Progress::Finished { name: "build".to_owned(), result: JobResult::Failed };
        let next = Event::JobStarted { name: "test".to_owned() };
        assert_eq!(done.after(next), Some(Progress::Running { name: "test".to_owned() }));
        assert_eq!(done.after(Event::Listening), None);
    }

    #[test]
    fn a_job_counts_even_if_listening_was_not_seen() {
        let job = Event::JobStarted { name: "build".to_owned() };
        assert!(Progress::Starting.after(job).is_some_and(|p| p.has_seen_job()));
    }

    proptest! {
        #[test]
        fn no_order_of_events_leads_back(events in proptest::collection::vec(event(), 0..30)) {
            let mut now = Progress::Starting;
            for event in events {
                let Some(next) = now.after(event) else { continue };
                let further = now.rank() == 3 && next.rank() == 2;
                prop_assert!(further || next.rank() > now.rank(), "{now:?} -> {next:?}");
                if let (Progress::Running { name }, Progress::Finished { name: done, .. }) = (&now, &next) {
                    prop_assert_eq!(name, done);
                }
                now = next;
            }
        }
    }
}
