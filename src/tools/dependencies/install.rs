//! The runs of `bin/installdependencies.sh`.
//!
//! A mirror in the middle of its sync and a dpkg that another process holds both pass by themselves:
//! apt waits for the lock ([`APT_CONF`]), and the whole step is tried again after a pause.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use tokio_util::sync::CancellationToken;

use super::{Library, Search, missing_libraries, names};
use crate::host::files::{self, FilesError};
use crate::host::process::{ProcessError, Program};
use crate::text;

/// From the home.
pub const INSTALL_SCRIPT: &str = "bin/installdependencies.sh";
const ATTEMPTS: u32 = 5;
/// The pause doubles up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// apt's settings for a machine that boots, whose unattended updates hold dpkg's lock for a while
/// (actions/runner#3461).
const APT_CONF: &str = "DPkg::Lock::Timeout \"120\";\nAcquire::Retries \"3\";\n";
/// So much of what the script printed is told.
const OUTPUT: usize = 600;

/// How to install.
#[derive(Debug, Clone)]
pub struct Installer<'a> {
    pub home: &'a Path,
    /// For apt's settings: a folder of ours (0700).
    pub work: &'a Path,
    /// The environment beside `DEBIAN_FRONTEND` and `APT_CONFIG`: `PATH`, and a proxy where the
    /// instance needs one.
    pub env: Vec<(OsString, OsString)>,
    pub search: Search,
    /// The pause after the first failure.
    pub pause: Duration,
    pub deadline: Instant,
}

/// How it went; each but the first two is a warning for the caller to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// Nothing was missing.
    NotNeeded,
    Done {
        attempts: u32,
    },
    /// The script was content, and yet these are not found.
    StillMissing(Vec<Library>),
    /// Only root can install.
    NotRoot(Vec<Library>),
    /// The runner brings no script.
    NoScript(Vec<Library>),
}

#[derive(Debug, thiserror::Error)]
pub enum DependenciesError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Process(ProcessError),
    #[error("install the runner's dependencies: told to stop")]
    Cancelled,
    #[error(
        "install the runner's dependencies ({missing}) in {attempts} attempt(s): {how}; \
         the script said: {output}"
    )]
    Failed { missing: String, attempts: u32, how: String, output: String },
}

impl Installer<'_> {
    /// Looks for the libraries and runs the script if one is missing.
    pub async fn install(
        &self,
        cancel: &CancellationToken,
    ) -> Result<Installed, DependenciesError> {
        let missing = self.missing().await;
        if missing.is_empty() {
            return Ok(Installed::NotNeeded);
        }
        if !geteuid().is_root() {
            return Ok(Installed::NotRoot(missing));
        }
        if !self.home.join(INSTALL_SCRIPT).is_file() {
            return Ok(Installed::NoScript(missing));
        }
        tracing::info!(missing = names(&missing), "installing the runner's dependencies");
        let attempts = self.run_script(&names(&missing), cancel).await?;
        let missing = self.missing().await;
        if missing.is_empty() {
            Ok(Installed::Done { attempts })
        } else {
            Ok(Installed::StillMissing(missing))
        }
    }

    async fn missing(&self) -> Vec<Library> {
        let (home, search) = (self.home.to_owned(), self.search.clone());
        let look = tokio::task::spawn_blocking(move || missing_libraries(&home, &search));
        look.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
    }

    /// The number of the attempt that succeeded.
    async fn run_script(
        &self,
        missing: &str,
        cancel: &CancellationToken,
    ) -> Result<u32, DependenciesError> {
        let program = self.program()?;
        let mut pause = self.pause;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let left = self.deadline.saturating_duration_since(Instant::now());
            let (how, output) = match program.run(left, cancel).await {
                Ok(finished) if finished.status.success() => return Ok(attempts),
                Ok(finished) => (finished.ended(), finished.output.text()),
                Err(ProcessError::TimedOut { limit, output, .. }) => {
                    (format!("stopped at the deadline after {} s", limit.as_secs()), output)
                }
                Err(ProcessError::Cancelled { .. }) => return Err(DependenciesError::Cancelled),
                Err(error) => return Err(DependenciesError::Process(error)),
            };
            let output = text::shorten(&text::one_line(&output), OUTPUT);
            if attempts == ATTEMPTS || Instant::now() + pause >= self.deadline {
                let missing = missing.to_owned();
                return Err(DependenciesError::Failed { missing, attempts, how, output });
            }
            tracing::warn!(attempt = attempts, how, output, ?pause, "dependencies: trying again");
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = cancel.cancelled() => return Err(DependenciesError::Cancelled),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn program(&self) -> Result<Program, DependenciesError> {
        let conf: PathBuf = self.work.join("apt.conf");
        files::write_atomic(&conf, APT_CONF.as_bytes(), 0o644, None)?;
        let mut env = self.env.clone();
        env.push(("DEBIAN_FRONTEND".into(), "noninteractive".into()));
        env.push(("APT_CONFIG".into(), conf.into()));
        Ok(Program {
            path: self.home.join(INSTALL_SCRIPT),
            args: Vec::new(),
            env,
            dir: self.home.to_owned(),
            user: None,
        })
    }
}
