//! What an agent that takes over from a crashed one must know of the runner's life so far.
//!
//! A small file, replaced at every step of the runner, while a service manager keeps its descriptors. Not
//! synced: it is of use only as long as the runner's process lives.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::limits::Clock;
use super::progress::Progress;
use super::record::Record;
use crate::forge::JobResult;
use crate::host::files::{self, FilesError};

/// Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub pid: u32,
    starts: u32,
    started: Option<u64>,
    listening: Option<u64>,
    job: Option<SeenJob>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SeenJob {
    name: String,
    since: Option<u64>,
    result: Option<String>,
}

impl Memory {
    /// What the file holds; `None` if there is none that makes sense.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), FilesError> {
        files::replace(path, &serde_json::to_vec(self).unwrap_or_default(), 0o600)
    }

    pub(super) fn of(pid: u32, record: &Record) -> Self {
        let Clock { started, listening, job } = record.clock;
        let seen = |name: &String, result: Option<JobResult>| SeenJob {
            name: name.clone(),
            since: job.map(to_seconds),
            result: result.map(|result| result.name().to_owned()),
        };
        Self {
            pid,
            starts: record.starts,
            started: started.map(to_seconds),
            listening: listening.map(to_seconds),
            job: match &record.progress {
                Progress::Starting | Progress::Listening => None,
                Progress::Running { name } => Some(seen(name, None)),
                Progress::Finished { name, result } => Some(seen(name, Some(*result))),
            },
        }
    }

    /// The life so far, as if we had seen it.
    pub(super) fn recall(&self) -> Record {
        let progress = match &self.job {
            None if self.listening.is_some() => Progress::Listening,
            None => Progress::Starting,
            Some(job) => {
                let name = job.name.clone();
                match job.result.as_deref().and_then(JobResult::named) {
                    Some(result) => Progress::Finished { name, result },
                    None => Progress::Running { name },
                }
            }
        };
        let clock = Clock {
            started: self.started.map(from_seconds),
            listening: self.listening.map(from_seconds),
            job: self.job.as_ref().and_then(|job| job.since).map(from_seconds),
        };
        Record::recalled(progress, clock, self.starts)
    }
}

fn to_seconds(at: Instant) -> u64 {
    (now().saturating_sub(at.elapsed())).as_secs()
}

fn from_seconds(at: u64) -> Instant {
    let age = now().saturating_sub(Duration::from_secs(at));
    let now = Instant::now();
    now.checked_sub(age).unwrap_or(now)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::leave::Times;
    use super::*;
    use crate::forge::Event;

    #[test]
    fn a_life_is_recalled_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (path, times) = (
            dir.path().join("runner.json"),
            Times { drain_timeout: None, stop_grace: Duration::from_secs(1) },
        );
        let mut record = Record::default();
        record.started();
        let name = "build".to_owned();
        let events = [
            Event::Listening,
            Event::JobStarted { name: name.clone() },
            Event::JobCompleted { name, result: JobResult::Failed },
        ];
        for event in [None].into_iter().chain(events.map(Some)) {
            if let Some(event) = event {
                assert!(record.heard(event, times, Instant::now()));
            }
            Memory::of(7, &record).write(&path).unwrap();
            let recalled = Memory::read(&path).unwrap().recall();
            assert_eq!((&recalled.progress, recalled.starts), (&record.progress, 1));
            assert_eq!(recalled.state(), record.state());
        }
        std::fs::write(&path, "{\"pid\":").unwrap();
        assert_eq!(Memory::read(&path), None);
    }
}
