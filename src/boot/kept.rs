//! What a boot that is killed leaves to the next one of the same instance: its registration.
//!
//! GARM hands the registration token out once, so a boot that dies between the token and the end of
//! config.sh would take the instance with it. The token is kept in a file of the runtime folder (0600,
//! in memory on a usual system), under the digest of the instance, so that no other instance takes it.
//! As soon as the runner is registered the file says only that, and under which agent id; the next boot
//! then neither needs a token nor registers twice.
//!
//! Invariant: the file is gone when the boot has ended for good. A folder that cannot be written to
//! costs the next boot its token, and this one nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::host::files::write_atomic;
use crate::secret::Secret;
use crate::state::Instance;

/// The file of one instance.
#[derive(Debug)]
pub(super) struct Kept {
    path: PathBuf,
}

/// What was kept.
#[derive(Debug)]
pub(super) enum Found {
    /// The token, and when it was handed out. config.sh may have been at work with it.
    Token { token: Secret, at: Instant },
    /// config.sh had done its work.
    Registered { agent_id: u64 },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Note {
    Token {
        token: String,
        /// Seconds since 1970.
        fetched: u64,
    },
    Registered {
        agent_id: u64,
    },
}

impl Kept {
    pub(super) fn new(runtime: &Path, instance: &Instance) -> Self {
        Self { path: runtime.join(format!("registration-token-{}", instance.digest())) }
    }

    /// What an earlier boot of this instance has left. A file that makes no sense counts as none.
    pub(super) fn find(&self) -> Option<Found> {
        let note = serde_json::from_slice(&std::fs::read(&self.path).ok()?).ok()?;
        Some(match note {
            Note::Registered { agent_id } => Found::Registered { agent_id },
            Note::Token { token, fetched } => {
                let age = now().saturating_sub(Duration::from_secs(fetched));
                let at = Instant::now();
                Found::Token { token: Secret::new(&token), at: at.checked_sub(age).unwrap_or(at) }
            }
        })
    }

    pub(super) fn keep_token(&self, token: &Secret) {
        self.write(&Note::Token { token: token.expose().to_owned(), fetched: now().as_secs() });
    }

    /// Replaces the token.
    pub(super) fn keep_registration(&self, agent_id: u64) {
        self.write(&Note::Registered { agent_id });
    }

    pub(super) fn forget(&self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                warn!("failed to remove {}: {error}", self.path.display());
            }
            _ => {}
        }
    }

    fn write(&self, note: &Note) {
        let json = serde_json::to_vec(note).unwrap_or_default();
        if let Err(error) = write_atomic(&self.path, &json, 0o600, None) {
            // What the file held before is not true any more.
            self.forget();
            warn!("failed to {error}; a restart would be without the registration");
        }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn instance(token: &str) -> Instance {
        Instance::new("http://garm.example", token)
    }

    #[test]
    fn a_kept_token_is_found_by_the_same_instance_alone() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(dir.path(), &instance("a"));
        kept.keep_token(&Secret::new("kept-registration-token"));
        assert!(Kept::new(dir.path(), &instance("b")).find().is_none());
        let Some(Found::Token { token, at }) = kept.find() else { panic!("no token") };
        assert_eq!(token.expose(), "kept-registration-token");
        assert!(at.elapsed() < Duration::from_secs(5));
        let mode = std::fs::metadata(&kept.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_registration_takes_the_place_of_its_token() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(dir.path(), &instance("a"));
        kept.keep_token(&Secret::new("kept-registration-token"));
        kept.keep_registration(42);
        assert!(matches!(kept.find(), Some(Found::Registered { agent_id: 42 })));
        assert!(!std::fs::read_to_string(&kept.path).unwrap().contains("kept-registration"));
        kept.forget();
        assert!(kept.find().is_none());
    }

    #[test]
    fn a_torn_file_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::new(dir.path(), &instance("a"));
        std::fs::write(&kept.path, "{\"token\":{\"tok").unwrap();
        assert!(kept.find().is_none());
    }
}
