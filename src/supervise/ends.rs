//! What follows when the runner's process has ended: the table of its exit codes.

use std::path::Path;
use std::time::Duration;

use super::end::How;
use super::progress::Progress;
use crate::forge::Dialect;

/// How often, and after which pauses, a runner that had no job yet is started again.
#[derive(Debug, Clone, Copy)]
pub struct Relaunch {
    /// Starts after the first one, for whatever reason.
    pub limit: u32,
    /// Before the first one; doubled each time.
    pub pause: Duration,
    /// How long an update may take until the new runner can be started.
    pub update_limit: Duration,
}

impl Default for Relaunch {
    fn default() -> Self {
        Self { limit: 4, pause: Duration::from_secs(2), update_limit: Duration::from_mins(1) }
    }
}

/// What the runner's exit code asks for (actions/runner, `Constants.Runner.ReturnCode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// That was it.
    Over,
    /// 2: retryable.
    Retry,
    /// 3, 4: it is replacing itself; the updater runs in its process group.
    Updating,
    /// 6: its configuration was refreshed.
    Refreshed,
}

impl Verdict {
    pub(super) fn of(how: &How) -> Self {
        match how {
            How::Exited(2) => Self::Retry,
            How::Exited(3 | 4) => Self::Updating,
            How::Exited(6) => Self::Refreshed,
            _ => Self::Over,
        }
    }
}

impl Relaunch {
    /// The pause before start number `starts + 1`; `None`: there is to be none.
    pub(super) fn after(self, verdict: Verdict, starts: u32) -> Option<Duration> {
        if starts > self.limit {
            return None;
        }
        match verdict {
            Verdict::Over => None,
            Verdict::Retry => Some(self.pause * 2_u32.saturating_pow(starts.saturating_sub(1))),
            Verdict::Updating | Verdict::Refreshed => Some(Duration::ZERO),
        }
    }
}

/// Whether the runner may be started again at all: it had no job, and is still registered.
/// An ephemeral runner that had one is unknown to the forge, and could never connect (actions/runner#3822).
pub(super) fn may_start_again(progress: &Progress, dialect: Dialect, home: &Path) -> bool {
    !progress.has_seen_job() && dialect.is_registered(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_codes_mean_what_the_runners_source_says() {
        let table = [
            (How::Exited(0), Verdict::Over),
            (How::Exited(1), Verdict::Over),
            (How::Exited(2), Verdict::Retry),
            (How::Exited(3), Verdict::Updating),
            (How::Exited(4), Verdict::Updating),
            (How::Exited(5), Verdict::Over),
            (How::Exited(6), Verdict::Refreshed),
            (How::Exited(7), Verdict::Over),
            (How::Exited(137), Verdict::Over),
            (How::Signalled(9), Verdict::Over),
        ];
        for (how, verdict) in table {
            assert_eq!(Verdict::of(&how), verdict, "{how:?}");
        }
    }

    #[test]
    fn the_pauses_grow_and_the_starts_are_counted() {
        let policy = Relaunch { limit: 3, ..Relaunch::default() };
        let pauses: Vec<_> = (1..=4)
            .map(|starts| policy.after(Verdict::Retry, starts).map(|p| p.as_secs()))
            .collect();
        assert_eq!(pauses, [Some(2), Some(4), Some(8), None]);
        assert_eq!(policy.after(Verdict::Updating, 4), None);
    }
}
