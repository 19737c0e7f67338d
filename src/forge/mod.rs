//! What differs between the forges: how a runner is configured, and what its own words mean.
//!
//! Owns: the words that every forge's runner says in its own dialect ([`Event`], [`Cause`]). Must not:
//! start anything, or decide what follows from an event; that is `supervise`'s.

pub mod github;

use std::path::Path;

use serde::{Deserialize, Serialize};

/// Which runner software it is, and so how its output and its folder are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// actions/runner.
    GitHub,
}

/// What the runner said about itself in one line of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It is online and waits for a job.
    Listening,
    JobStarted {
        name: String,
    },
    JobCompleted {
        name: String,
        result: JobResult,
    },
    /// The connection to the forge was lost and is there again.
    Reconnected,
}

/// How a job ended, as the forge names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobResult {
    Succeeded,
    Failed,
    Canceled,
    Skipped,
    Abandoned,
}

impl JobResult {
    pub fn named(name: &str) -> Option<Self> {
        use JobResult::{Abandoned, Canceled, Failed, Skipped, Succeeded};
        [Succeeded, Failed, Canceled, Skipped, Abandoned].into_iter().find(|r| r.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
            Self::Skipped => "Skipped",
            Self::Abandoned => "Abandoned",
        }
    }
}

/// Why the runner gave up, as far as its last words tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The forge does not know this runner (any more).
    RegistrationGone,
    /// The runner's home holds no registration.
    NotConfigured,
    /// Another process holds this runner's session.
    SessionConflict,
    /// The forge refuses this version of the runner.
    VersionRefused,
}

/// What only the runner's own log tells, while it listens on: that the forge has forgotten it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// Its job went to nobody or to another runner, and an ephemeral runner's registration with it. Said once.
    JobLost,
    /// The forge does not know the registration. Said again and again for as long as that is so.
    Unknown,
}

impl Dialect {
    /// What `line` (of the runner's stdout) says, if it is one of the runner's own state lines.
    pub fn read_line(self, line: &str) -> Option<Event> {
        match self {
            Self::GitHub => github::output::read_line(line),
        }
    }

    /// The cause of an end that `text`, the runner's last words, gives.
    pub fn cause(self, text: &str) -> Option<Cause> {
        match self {
            Self::GitHub => github::output::cause(text),
        }
    }

    /// The folder in the runner's home that holds its own logs.
    pub fn diag_folder(self) -> &'static str {
        match self {
            Self::GitHub => github::diag::FOLDER,
        }
    }

    /// Whether a file of that folder is the log of a runner (and not of a job).
    pub fn is_diag_log(self, name: &str) -> bool {
        match self {
            Self::GitHub => github::diag::is_log(name),
        }
    }

    /// The line of the runner's stdout that `line` of that log repeats, if it is one of its own state lines.
    pub fn read_log_line(self, line: &str) -> Option<Event> {
        match self {
            Self::GitHub => github::diag::state_line(line).and_then(github::output::read_line),
        }
    }

    /// What `line` of that log says of the runner's registration.
    pub fn sign(self, line: &str) -> Option<Sign> {
        match self {
            Self::GitHub => github::diag::sign(line),
        }
    }

    /// Whether `home` holds a registration.
    pub fn is_registered(self, home: &Path) -> bool {
        self.registration_files().iter().all(|file| home.join(file).exists())
    }

    /// The files in the runner's home without which it cannot be started (again).
    pub fn registration_files(self) -> &'static [&'static str] {
        match self {
            Self::GitHub => &[".runner", ".credentials"],
        }
    }
}
