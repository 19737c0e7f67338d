//! What an agent that takes over from a crashed one must know of the runner's life so far.
//!
//! A small file, replaced at every step of the runner and of ours, while a service manager keeps its
//! descriptors. Not synced: it is of use only as long as the runner's process lives. Its times are those of
//! the clock that nobody sets: a machine that learns the time of day in the middle of a job must not take
//! the job for one that is over its limit.

use std::path::Path;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getpgid, getpgrp};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Order;
use super::leave::Leave;
use super::limits::Clock;
use super::progress::Progress;
use super::record::Record;
use crate::host::files::{self, FilesError};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub pid: u32,
    /// Which start of the machine this is of; its process ids and its clock are no other one's.
    boot: String,
    starts: u32,
    clock: Clock,
    progress: Progress,
    asked: Option<Order>,
    #[serde(default)]
    leave: Leave,
    /// The log that was there before this start, and how long it was.
    log_before: Option<(String, u64)>,
}

impl Memory {
    /// What the file holds; `None` if there is none that makes sense here and now.
    pub fn read(path: &Path) -> Option<Self> {
        let memory: Self = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        (memory.boot == boot_id()).then_some(memory)
    }

    /// Whether its runner lives: a process that leads a group of its own, as each of ours does. In a container
    /// that was started again the number may be ours.
    pub fn is_of_the_living(&self) -> bool {
        let pid = i32::try_from(self.pid).ok().map(Pid::from_raw);
        pid.is_some_and(|pid| getpgid(Some(pid)) == Ok(pid) && getpgrp() != pid)
    }

    pub(super) fn write(&self, path: &Path) -> Result<(), FilesError> {
        files::replace(path, &serde_json::to_vec(self).unwrap_or_default(), 0o600)
    }

    pub(super) fn of(pid: u32, record: &Record, log_before: Option<(String, u64)>) -> Self {
        let Record { starts, clock, asked, leave, .. } = *record;
        let (boot, progress) = (boot_id(), record.progress.clone());
        Self { pid, boot, starts, clock, progress, asked, leave, log_before }
    }

    /// The life so far, as if we had seen it.
    pub(super) fn recall(&self) -> Record {
        let Self { starts, clock, asked, leave, .. } = *self;
        let leave = match leave {
            // Nobody knows whether it was still sent.
            Leave::Killed => Leave::Terminated { until: Instant::now() },
            leave => leave,
        };
        Record::recalled(self.progress.clone(), clock, starts, asked, leave)
    }

    pub(super) fn log_before(&self) -> Option<(String, u64)> {
        self.log_before.clone()
    }
}

/// An instant as milliseconds of the machine's own clock, which goes on from one process to the next.
pub(super) mod moment {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use super::{Duration, Instant, uptime};

    pub(crate) fn serialize<S: Serializer>(at: &Instant, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(millis(*at))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Instant, D::Error> {
        u64::deserialize(from).map(instant)
    }

    pub(super) fn millis(at: Instant) -> u64 {
        let now = Instant::now();
        let at = (uptime() + at.saturating_duration_since(now))
            .saturating_sub(now.saturating_duration_since(at));
        u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn instant(millis: u64) -> Instant {
        let (at, uptime, now) = (Duration::from_millis(millis), uptime(), Instant::now());
        let then = match at.checked_sub(uptime) {
            Some(ahead) => now.checked_add(ahead),
            None => now.checked_sub(uptime.saturating_sub(at)),
        };
        then.unwrap_or(now)
    }
}

/// The same of an instant that may not have come.
pub(super) mod maybe_moment {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::{Instant, moment};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(crate) fn serialize<S: Serializer>(at: &Option<Instant>, to: S) -> Result<S::Ok, S::Error> {
        at.map(moment::millis).serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Instant>, D::Error> {
        Option::<u64>::deserialize(from).map(|at| at.map(moment::instant))
    }
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

fn uptime() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::leave::Times;
    use super::super::{Manner, Why};
    use super::*;
    use crate::forge::{Event, JobResult};

    const TIMES: Times =
        Times { drain_timeout: Some(Duration::from_mins(10)), stop_grace: Duration::from_secs(30) };

    fn recalled(record: &Record) -> Record {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.json");
        Memory::of(7, record, None).write(&path).unwrap();
        Memory::read(&path).unwrap().recall()
    }

    #[test]
    fn a_life_is_recalled_as_it_was() {
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
                assert!(record.heard(event, TIMES, Instant::now()));
            }
            let again = recalled(&record);
            assert_eq!((&again.progress, again.starts), (&record.progress, 1));
            assert_eq!(again.state(), record.state());
        }
    }

    #[test]
    fn an_order_to_leave_is_recalled_with_the_rest_of_its_time() {
        let mut record = Record::default();
        record.started();
        let job = Event::JobStarted { name: "build".to_owned() };
        record.heard(job, TIMES, Instant::now());
        let order = Order { manner: Manner::Drain, why: Why::Asked };
        record.note(order);
        let asked_at = Instant::now();
        record.leave = record.leave.ordered(order.manner, record.work(), TIMES, asked_at).0;
        let again = recalled(&record);
        assert_eq!(again.asked, Some(order));
        let Leave::AfterJob { until: Some(until) } = again.leave else {
            panic!("{:?}", again.leave)
        };
        let rest = until - asked_at;
        assert!(rest.abs_diff(Duration::from_mins(10)) < Duration::from_secs(5), "{rest:?}");
    }

    #[test]
    fn the_times_are_those_of_a_clock_that_nobody_sets() {
        let mut record = Record::default();
        record.started();
        let json = serde_json::to_value(Memory::of(7, &record, None)).unwrap();
        let started = u128::from(json["clock"]["started"].as_u64().unwrap());
        assert!(started <= uptime().as_millis(), "{json}");
    }

    #[test]
    fn torn_notes_and_those_from_before_a_reboot_count_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runner.json");
        std::fs::write(&path, "{\"pid\":").unwrap();
        assert_eq!(Memory::read(&path), None);
        let mut memory = Memory::of(std::process::id(), &Record::default(), None);
        memory.write(&path).unwrap();
        assert!(Memory::read(&path).is_some());
        memory.boot = "of another start of the machine".to_owned();
        memory.write(&path).unwrap();
        assert_eq!(Memory::read(&path), None);
    }
}
