//! The phases of a boot and the time that each took.
//!
//! Owns: the list of phases, and `timeline.json` in the state folder. Times are of the monotonic clock;
//! only the start of the boot is a wall-clock time. Must not: decide what happens in a phase.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

/// A row of the design's boot table, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    Preflight,
    Discover,
    Fetch,
    Dependencies,
    Configure,
    Introduce,
    Start,
    Announce,
    Supervise,
    Finish,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Preflight => "preflight",
            Self::Discover => "discover",
            Self::Fetch => "fetch",
            Self::Dependencies => "dependencies",
            Self::Configure => "configure",
            Self::Introduce => "introduce",
            Self::Start => "start",
            Self::Announce => "announce",
            Self::Supervise => "supervise",
            Self::Finish => "finish",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One phase as `timeline.json` holds it. A phase without `seconds` was still on when it was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Span {
    pub phase: Phase,
    /// Seconds from the start of the boot.
    pub start: f64,
    pub seconds: Option<f64>,
    /// Bytes that came over the network in this phase, where it fetched something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// What it did side by side, where it did. The phase ended with the last of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

impl Span {
    /// The step that the phase waited for: it ended last.
    pub fn awaited(&self) -> Option<&Step> {
        let end = |step: &Step| step.start + step.seconds;
        self.steps.iter().max_by(|one, other| end(one).total_cmp(&end(other)))
    }
}

/// Work that a phase did beside other work.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    pub step: String,
    /// Seconds from the start of the boot.
    pub start: f64,
    pub seconds: f64,
}

/// The boot's clock.
#[derive(Debug)]
pub struct Timeline {
    began: Instant,
    began_at: SystemTime,
    spans: Vec<Span>,
}

/// What `timeline.json` holds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    /// RFC 3339, UTC.
    pub began_at: String,
    pub phases: Vec<Span>,
}

impl Timeline {
    pub fn start() -> Self {
        Self { began: Instant::now(), began_at: SystemTime::now(), spans: Vec::new() }
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn begin(&mut self, phase: Phase) {
        let start = self.elapsed().as_secs_f64();
        self.spans.push(Span { phase, start, seconds: None, bytes: None, steps: vec![] });
    }

    pub fn end(&mut self, phase: Phase) {
        let now = self.elapsed().as_secs_f64();
        if let Some(span) = self.open(phase) {
            span.seconds = Some(now - span.start);
        }
    }

    /// Notes that `phase`, which is on, got `bytes` over the network.
    pub fn add_bytes(&mut self, phase: Phase, bytes: u64) {
        if let Some(span) = self.open(phase) {
            *span.bytes.get_or_insert(0) += bytes;
        }
    }

    /// Notes that `phase`, which is on, has done `step` from `start` until now.
    pub fn add_step(&mut self, phase: Phase, step: &str, start: Duration) {
        let seconds = self.elapsed().saturating_sub(start).as_secs_f64();
        if let Some(span) = self.open(phase) {
            let (step, start) = (step.to_owned(), start.as_secs_f64());
            span.steps.push(Step { step, start, seconds });
        }
    }

    fn open(&mut self, phase: Phase) -> Option<&mut Span> {
        self.spans.iter_mut().rev().find(|s| s.phase == phase && s.seconds.is_none())
    }

    /// `8.2 s (fetch 5.1 s, configure 1.9 s, start 0.8 s)`: the whole, and the phases so far that took
    /// at least a twentieth of it, and long enough to be shown.
    pub fn summary(&self) -> String {
        let total = self.elapsed().as_secs_f64();
        let counts = (total / 20.0).max(0.05);
        let long: Vec<String> = self
            .spans
            .iter()
            .filter_map(|s| s.seconds.map(|seconds| (s.phase, seconds)))
            .filter(|(_, seconds)| *seconds >= counts)
            .map(|(phase, seconds)| format!("{phase} {seconds:.1} s"))
            .collect();
        if long.is_empty() {
            format!("{total:.1} s")
        } else {
            format!("{total:.1} s ({})", long.join(", "))
        }
    }

    pub fn record(&self) -> Record {
        Record {
            began_at: humantime::format_rfc3339_millis(self.began_at).to_string(),
            phases: self.spans.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_the_phases_that_count() {
        let mut timeline = Timeline::start();
        timeline.begin(Phase::Discover);
        timeline.end(Phase::Discover);
        timeline.spans.push(Span {
            phase: Phase::Fetch,
            start: 0.0,
            seconds: Some(5.14),
            bytes: None,
            steps: vec![],
        });
        assert!(
            timeline.summary().ends_with(" s (fetch 5.1 s)")
                || timeline.summary().contains("fetch 5.1 s")
        );
    }

    #[test]
    fn an_open_phase_is_recorded_without_a_duration() {
        let mut timeline = Timeline::start();
        timeline.begin(Phase::Fetch);
        timeline.add_bytes(Phase::Fetch, 10);
        let record = timeline.record();
        assert_eq!(record.phases[0].bytes, Some(10));
        assert!(record.phases[0].seconds.is_none());
    }
}
