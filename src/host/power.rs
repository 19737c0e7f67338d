//! Switching the machine off, or starting it anew.
//!
//! By the service manager where there is one, so that every service comes to its end; else by the
//! system's own program, else by the kernel. Must not: decide when.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::reboot::{RebootMode, reboot};
use tokio_util::sync::CancellationToken;

use super::container::is_container;
use super::process::Program;

/// They only pass the wish on.
const LIMIT: Duration = Duration::from_secs(30);
/// The sign of systemd as the init (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
const SYSTEMCTL: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Power {
    Off,
    Reboot,
}

#[derive(Debug, thiserror::Error)]
pub enum PowerError {
    #[error("{0} the machine: this is a container, and its machine is not ours")]
    Container(&'static str),
    #[error("{0} the machine: only root can")]
    NotRoot(&'static str),
    #[error("{word} the machine: {why}")]
    Failed { word: &'static str, why: String },
}

impl Power {
    fn word(self) -> &'static str {
        match self {
            Self::Off => "power off",
            Self::Reboot => "reboot",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Off => "poweroff",
            Self::Reboot => "reboot",
        }
    }

    /// Passes the wish on; the machine takes its time.
    pub async fn switch(self) -> Result<(), PowerError> {
        let word = self.word();
        if is_container() {
            return Err(PowerError::Container(word));
        }
        if !nix::unistd::geteuid().is_root() {
            return Err(PowerError::NotRoot(word));
        }
        let failed = |why| PowerError::Failed { word, why };
        let systemctl = SYSTEMCTL.iter().find(|path| Path::new(path).exists());
        if let Some(systemctl) = systemctl.filter(|_| Path::new(SYSTEMD).is_dir()) {
            return run(systemctl, &["--no-block", self.program()]).await.map_err(failed);
        }
        for folder in ["/usr/sbin", "/sbin"] {
            let program = format!("{folder}/{}", self.program());
            if Path::new(&program).exists() {
                return run(&program, &[]).await.map_err(failed);
            }
        }
        nix::unistd::sync();
        let mode = match self {
            Self::Off => RebootMode::RB_POWER_OFF,
            Self::Reboot => RebootMode::RB_AUTOBOOT,
        };
        let Err(error) = reboot(mode);
        Err(failed(error.to_string()))
    }
}

async fn run(path: &str, args: &[&str]) -> Result<(), String> {
    let program = Program {
        path: PathBuf::from(path),
        args: args.iter().map(Into::into).collect(),
        env: vec![("PATH".into(), PATH.into())],
        dir: PathBuf::from("/"),
        user: None,
    };
    let finished =
        program.run(LIMIT, &CancellationToken::new()).await.map_err(|error| error.to_string())?;
    if finished.status.success() {
        return Ok(());
    }
    let said = crate::text::one_line(&finished.output.text());
    Err(format!("{path} ended with {}: {said}", finished.status))
}
