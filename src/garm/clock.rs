//! Our clock against GARM's.
//!
//! A clock that is wrong makes tokens expire and certificates invalid, and nothing says so. GARM dates
//! every answer, so the first one tells by how much we differ.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use tracing::warn;

/// `Date` has whole seconds, and an answer takes its time; below this nothing is meant by a difference.
const NOTICED_FROM: Duration = Duration::from_secs(30);

/// How far the clock here is from GARM's; it reads as a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skew {
    behind: bool,
    by: Duration,
}

/// What is known of it. Cloning shares the knowledge.
#[derive(Debug, Clone, Default)]
pub(super) struct Clock(Arc<OnceLock<Option<Skew>>>);

impl Skew {
    /// The difference, if it is worth a word.
    fn between(garm: SystemTime, here: SystemTime) -> Option<Self> {
        let (behind, by) = match garm.duration_since(here) {
            Ok(by) => (true, by),
            Err(ahead) => (false, ahead.duration()),
        };
        (by >= NOTICED_FROM).then_some(Self { behind, by })
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = if self.behind { "behind" } else { "ahead of" };
        let seconds = self.by.as_secs();
        let (count, unit) = match seconds {
            0..=119 => (seconds, "seconds"),
            120..=7199 => (seconds / 60, "minutes"),
            7200..=172_799 => (seconds / 3600, "hours"),
            _ => (seconds / 86_400, "days"),
        };
        write!(f, "the clock here is {count} {unit} {which} GARM's")
    }
}

impl Clock {
    /// Takes the measure at the first answer that is dated, and warns if it is off.
    pub(super) fn heard(&self, date: Option<SystemTime>) {
        let Some(date) = date else { return };
        self.0.get_or_init(|| {
            let skew = Skew::between(date, SystemTime::now());
            if let Some(skew) = skew {
                warn!("{skew}: tokens and certificates may be taken for expired or not valid yet");
            }
            skew
        });
    }

    pub(super) fn skew(&self) -> Option<Skew> {
        self.0.get().copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skew_reads_as_a_sentence_and_a_small_one_is_none() {
        let here = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let said = |garm: SystemTime| Skew::between(garm, here).map(|skew| skew.to_string());
        let later = |seconds| here + Duration::from_secs(seconds);
        let earlier = |seconds| here - Duration::from_secs(seconds);
        let table = [
            (later(29), None),
            (earlier(29), None),
            (later(90), Some("the clock here is 90 seconds behind GARM's")),
            (earlier(420), Some("the clock here is 7 minutes ahead of GARM's")),
            (later(7200), Some("the clock here is 2 hours behind GARM's")),
            (later(864_000), Some("the clock here is 10 days behind GARM's")),
        ];
        for (garm, expected) in table {
            assert_eq!(said(garm).as_deref(), expected);
        }
    }
}
