//! The exit codes: a public contract, and the one table of them.
//!
//! The README's table and the end of `--help` are made from, or tested against, [`Exit::ALL`].

use std::process::ExitCode;

/// How garm-bootstrap ends, as the platform around it (systemd, Kubernetes, a script) sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    Usage = 2,
    Unreachable = 10,
    Superseded = 11,
    Refused = 12,
    Fetch = 20,
    Dependencies = 21,
    Configure = 22,
    NotReady = 23,
    NoJob = 30,
    RegistrationGone = 31,
    VersionRefused = 32,
    LimitPassed = 33,
    Killed = 34,
    Stopped = 40,
    AlreadyRun = 41,
    Internal = 70,
}

impl Exit {
    pub const ALL: [Self; 17] = [
        Self::Done,
        Self::Usage,
        Self::Unreachable,
        Self::Superseded,
        Self::Refused,
        Self::Fetch,
        Self::Dependencies,
        Self::Configure,
        Self::NotReady,
        Self::NoJob,
        Self::RegistrationGone,
        Self::VersionRefused,
        Self::LimitPassed,
        Self::Killed,
        Self::Stopped,
        Self::AlreadyRun,
        Self::Internal,
    ];

    pub fn code(self) -> u8 {
        self as u8
    }

    /// Short and stable, for machines and for GARM's status message; it never changes its meaning once
    /// released.
    pub fn reason(self) -> &'static str {
        match self {
            // Of a failure: the runner was drained before GARM had heard that it was idle.
            Self::Done | Self::Stopped => "stopped",
            Self::Usage => "bad_settings",
            Self::Unreachable => "garm_unreachable",
            Self::Superseded => "superseded",
            Self::Refused => "garm_refused",
            Self::Fetch => "runner_not_fetched",
            Self::Dependencies => "dependencies_missing",
            Self::Configure => "configure_failed",
            Self::NotReady => "runner_not_ready",
            Self::NoJob => "runner_ended",
            Self::RegistrationGone => "registration_gone",
            Self::VersionRefused => "version_refused",
            Self::LimitPassed => "limit_passed",
            Self::Killed => "killed",
            Self::AlreadyRun => "already_run",
            Self::Internal => "internal_fault",
        }
    }

    /// One line for people, as the README and `--help` print it.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Done => "the runner did its job, or was drained as asked",
            Self::Usage => "usage: bad flag, bad config file, missing setting",
            Self::Unreachable => "GARM unreachable until the deadline",
            Self::Superseded => "superseded: GARM does not (or no longer) know this instance",
            Self::Refused => "GARM refused: its answer says why",
            Self::Fetch => "the runner could not be fetched, verified or unpacked",
            Self::Dependencies => "dependencies could not be installed",
            Self::Configure => "the runner could not be configured",
            Self::NotReady => {
                "the runner did not come up (no \"Listening\" in time, or it died first)"
            }
            Self::NoJob => "the runner ended without having finished a job",
            Self::RegistrationGone => "registration gone, session conflict",
            Self::VersionRefused => "runner version refused",
            Self::LimitPassed => "a limit passed (idle, job, lifetime)",
            Self::Killed => "killed (signal, out of memory)",
            Self::Stopped => "stopped before it was ready",
            Self::AlreadyRun => {
                "this instance has had its run, or another garm-bootstrap is at it: nothing was touched"
            }
            Self::Internal => "a fault of our own",
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_ascending() {
        let codes: Vec<u8> = Exit::ALL.iter().map(|e| e.code()).collect();
        assert!(codes.windows(2).all(|w| w[0] < w[1]), "{codes:?}");
    }
}
