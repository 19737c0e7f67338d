//! What can end a boot, and how it is told: a stable reason, an exit code, a sentence for a person.
//!
//! The text of an error reads after "failed to". The reason is for machines and for GARM's status
//! message; it never changes its meaning once released.

use std::path::PathBuf;

use crate::config::ConfigError;
use crate::exit::Exit;
use crate::forge::github::configure::ConfigureError;
use crate::forge::github::files::RunnerFileError;
use crate::garm::{FirstContact, NotTaken};
use crate::http::{ClientError, HttpError};
use crate::state::StateError;
use crate::supervise::End;
use crate::text;
use crate::tools::copy::CopyError;
use crate::tools::dependencies::DependenciesError;
use crate::tools::download::DownloadError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What was typed is not a command line; the text is clap's.
    #[error("understand the command line: {0}")]
    Typed(String),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("use the home {}: the user \"{user}\" may not enter {}; choose another home, or open that folder (chmod o+x)", home.display(), folder.display())]
    Barred { user: String, home: PathBuf, folder: PathBuf },
    #[error("read the timeline {}: {why}; a boot writes it once the runner is idle, and at its end (--state-dir says where)", path.display())]
    NoTimeline { path: PathBuf, why: String },
    #[error("prepare {}: a runner is registered there, and an image must not carry its identity; remove .runner and .credentials*, or name another --home", home.display())]
    Registered { home: PathBuf },
    #[error(transparent)]
    FirstContact(#[from] FirstContact),
    #[error(transparent)]
    NotTaken(#[from] NotTaken),
    #[error("go on: GARM does not know this instance any more (it was deleted, or made anew)")]
    Superseded,
    #[error("ask GARM for {what}: {source}{hint}")]
    Garm { what: &'static str, source: HttpError, hint: &'static str },
    #[error("find out {what}: GARM has not said it; {how}")]
    NotTold { what: &'static str, how: &'static str },
    #[error("read {what}: \"{value}\" is not {expected}")]
    Nonsense { what: &'static str, value: String, expected: &'static str },
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Dependencies(#[from] DependenciesError),
    #[error(
        "find a Docker at {engine} within {waited} s: {why}; start it, name it with DOCKER_HOST, or give it more time with --wait-for-docker"
    )]
    NoDocker { engine: String, waited: u64, why: std::io::Error },
    #[error(transparent)]
    JitFiles(#[from] RunnerFileError),
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    #[error("keep the runner running: {}", .0.summary())]
    Ended(Box<End>),
    #[error("finish the boot: told to stop")]
    Stopped,
    #[error("carry on: a fault in garm-bootstrap itself: {0}")]
    Panic(String),
}

impl Error {
    pub fn exit(&self) -> Exit {
        match self {
            Self::State(
                StateError::Busy { .. }
                | StateError::Used { .. }
                | StateError::Alive { .. }
                | StateError::Configuring { .. },
            ) => Exit::AlreadyRun,
            Self::Config(_)
            | Self::Typed(_)
            | Self::State(_)
            | Self::Client(_)
            | Self::Barred { .. }
            | Self::Registered { .. }
            | Self::NoTimeline { .. } => Exit::Usage,
            Self::FirstContact(FirstContact::Superseded(_))
            | Self::NotTaken(NotTaken::Superseded { .. })
            | Self::Superseded => Exit::Superseded,
            Self::FirstContact(FirstContact::Unreachable(_))
            | Self::NotTaken(NotTaken::Unreachable { .. }) => Exit::Unreachable,
            Self::Garm { source, .. } => match source.status() {
                Some(300..=499) => Exit::Refused,
                _ if matches!(source, HttpError::Unexpected { .. }) => Exit::Refused,
                _ => Exit::Unreachable,
            },
            Self::FirstContact(FirstContact::Refused(_))
            | Self::NotTaken(NotTaken::Refused { .. })
            | Self::NotTold { .. }
            | Self::Nonsense { .. } => Exit::Refused,
            Self::Download(_) | Self::Copy(_) => Exit::Fetch,
            Self::Dependencies(_) | Self::NoDocker { .. } => Exit::Dependencies,
            Self::JitFiles(_) | Self::Configure(_) => Exit::Configure,
            Self::Ended(end) => end.exit(),
            Self::Stopped => Exit::Stopped,
            Self::Panic(_) => Exit::Internal,
        }
    }

    /// Short and stable: `runner_not_fetched`, `configure_failed`, …
    pub fn reason(&self) -> &'static str {
        self.exit().reason()
    }

    /// Whether a clock that is wrong could be behind it: something was taken for expired, not valid yet
    /// or unknown.
    pub fn may_be_the_clocks(&self) -> bool {
        let refused =
            |error: &HttpError| matches!(error.status(), Some(401 | 403)) || error.is_certificate();
        match self {
            Self::FirstContact(FirstContact::Superseded(_)) | Self::Superseded => true,
            Self::FirstContact(FirstContact::Refused(error) | FirstContact::Unreachable(error))
            | Self::Garm { source: error, .. }
            | Self::Download(DownloadError::Http(error)) => refused(error),
            Self::Configure(_) | Self::Ended(_) => self.output().is_some_and(text::is_refusal),
            _ => false,
        }
    }

    /// The last lines that the failing program printed, if one did.
    pub fn output(&self) -> Option<&str> {
        let output = match self {
            Self::Configure(error) => error.output(),
            Self::Ended(end) => Some(end.last_words.as_str()),
            _ => None,
        };
        output.filter(|text| !text.is_empty())
    }

    /// The last lines of the runner's own log, if it came so far as to write one.
    pub fn runner_log(&self) -> Option<&str> {
        match self {
            Self::Ended(end) => Some(end.log.as_str()).filter(|log| !log.is_empty()),
            _ => None,
        }
    }
}
