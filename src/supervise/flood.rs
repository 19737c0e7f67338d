//! How much of the runner's output may pass: a runner that loops would fill the disk behind our stdout
//! (actions/runner#4569 logs a cancellation several times a second, for ever).
//!
//! A bucket of bytes: full at the start, so that no job that prints a lot is cut, and filled again at a
//! rate that a disk can bear for days. Once empty it stays shut for a while, so that what does pass comes
//! in readable pieces.

use std::time::Instant;

/// What may pass at once, and per second for ever.
const BURST: u64 = 16 << 20;
const PER_SECOND: u64 = 64 << 10;
/// How full an emptied bucket must be to be opened again.
const REOPEN: u64 = 4 * PER_SECOND;

#[derive(Debug)]
pub(super) struct Bucket {
    left: u64,
    filled: Instant,
    shut: bool,
}

impl Bucket {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: BURST, filled: now, shut: false }
    }

    /// Whether `bytes` more may pass.
    pub(super) fn admits(&mut self, bytes: usize, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_millis();
        let gained = u64::try_from(passed).unwrap_or(u64::MAX).saturating_mul(PER_SECOND) / 1000;
        if gained > 0 {
            self.left = self.left.saturating_add(gained).min(BURST);
            self.filled = now;
        }
        let bytes = bytes as u64;
        self.shut = if self.shut { self.left < REOPEN.max(bytes) } else { self.left < bytes };
        if !self.shut {
            self.left -= bytes;
        }
        !self.shut
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn passed(bucket: &mut Bucket, lines: u32, now: Instant) -> usize {
        (0..lines).filter(|_| bucket.admits(1024, now)).count()
    }

    #[test]
    fn a_burst_passes_and_a_flood_does_not() {
        let now = Instant::now();
        let mut bucket = Bucket::new(now);
        assert_eq!(passed(&mut bucket, 20_000, now), 16 << 10);
        // An hour of ten thousand lines a second.
        let hour: usize = (1..=3600)
            .map(|second| passed(&mut bucket, 10_000, now + Duration::from_secs(second)))
            .sum();
        let rate = hour / 3600;
        assert!((60..=64).contains(&rate), "{rate} kB a second");
    }

    #[test]
    fn what_was_emptied_is_full_again_after_a_quiet_time() {
        let now = Instant::now();
        let mut bucket = Bucket::new(now);
        passed(&mut bucket, 20_000, now);
        assert!(!bucket.admits(1, now + Duration::from_secs(1)));
        assert!(bucket.admits(1, now + Duration::from_secs(5)));
        assert_eq!(passed(&mut bucket, 20_000, now + Duration::from_secs(600)), 16 << 10);
    }
}
