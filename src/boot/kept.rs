//! What a boot that is killed, or one that only installs, leaves to the next one of the same instance: its
//! registration.
//!
//! GARM hands the registration token out once, so a boot that dies between the token and the end of
//! config.sh would take the instance with it. Its file is in place within a millisecond of GARM's answer; what
//! is killed in that one has lost it. The token is kept in a file of the runtime folder (0600,
//! in memory on a usual system), under the digest of the instance, so that no other instance takes it.
//! As soon as the runner is registered the file says only that, and under which agent id; the next boot
//! then neither needs a token nor registers twice. An installation in an init container shares nothing
//! with the boot that follows it but the runner's home; it keeps its file there, for the runner's user.
//!
//! Invariants: there is one file at most, in the place that was written last; the token is in none when a
//! Listener starts, and no file is left when a boot, other than an installation, has ended for good. A
//! folder that cannot be written to costs the next boot its token, and this one nothing.

use std::fs::File;
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::host::files::write_at_once;
use crate::host::users::Account;
use crate::secret::Secret;
use crate::state::Instance;

/// A folder that may hold the file.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Runtime(PathBuf),
    /// The runner's home, and the account that a later boot may be.
    Home(PathBuf, Account),
}

/// The file of one instance: it is looked for in all places, and written in the first.
#[derive(Debug)]
pub(super) struct Kept {
    files: Vec<(PathBuf, Option<Account>)>,
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

/// The token in memory alone, for whoever is given the descriptor: a service manager can keep it where no job can
/// look.
pub(super) fn in_memory(token: &Secret, at: Instant) -> io::Result<OwnedFd> {
    let fd = memfd_create("registration-token", MFdFlags::MFD_CLOEXEC)?;
    let fetched = now().saturating_sub(at.elapsed()).as_secs();
    let note = Note::Token { token: token.expose().to_owned(), fetched };
    File::from(fd.try_clone()?).write_all(&serde_json::to_vec(&note).unwrap_or_default())?;
    Ok(fd)
}

/// What such a descriptor holds.
pub(super) fn from_memory(fd: OwnedFd) -> Option<(Secret, Instant)> {
    let mut bytes = vec![0; 4096];
    // From the beginning, wherever the last reader stopped.
    let count = File::from(fd).read_at(&mut bytes, 0).ok()?;
    match serde_json::from_slice(&bytes[..count]).ok()? {
        Note::Token { token, fetched } => Some((Secret::new(&token), fetched_at(fetched))),
        Note::Registered { .. } => None,
    }
}

impl Kept {
    pub(super) fn new(places: Vec<Place>, instance: &Instance) -> Self {
        let file = |place| match place {
            Place::Runtime(dir) => {
                (dir.join(format!("registration-token-{}", instance.digest())), None)
            }
            Place::Home(dir, user) => {
                let name = format!(".garm-bootstrap.registration-{}", instance.digest());
                (dir.join(name), Some(user))
            }
        };
        Self { files: places.into_iter().map(file).collect() }
    }

    /// What an earlier boot of this instance has left. A file that makes no sense counts as none.
    pub(super) fn find(&self) -> Option<Found> {
        let read = |(path, _): &(PathBuf, _)| match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).ok(),
            Err(error) => {
                if error.kind() == ErrorKind::PermissionDenied {
                    warn!(
                        "{} says how an earlier start of this instance has registered the runner, but \
                         it cannot be read: {error}; let both run as the same user, or this one as root",
                        path.display()
                    );
                }
                None
            }
        };
        Some(match self.files.iter().find_map(read)? {
            Note::Registered { agent_id } => Found::Registered { agent_id },
            Note::Token { token, fetched } => {
                Found::Token { token: Secret::new(&token), at: fetched_at(fetched) }
            }
        })
    }

    pub(super) fn keep_token(&self, token: &Secret) {
        self.write(&Note::Token { token: token.expose().to_owned(), fetched: now().as_secs() });
    }

    /// Replaces the token, wherever it is.
    pub(super) fn keep_registration(&self, agent_id: u64) {
        self.write(&Note::Registered { agent_id });
    }

    pub(super) fn forget(&self) {
        self.remove(0);
    }

    fn write(&self, note: &Note) {
        let json = serde_json::to_vec(note).unwrap_or_default();
        let written = self
            .files
            .first()
            .map(|(path, owner)| write_at_once(path, &json, 0o600, owner.as_ref()));
        match written {
            Some(Ok(())) => self.remove(1),
            // What the files held before is not true any more.
            Some(Err(error)) => {
                self.forget();
                warn!("failed to {error}; a restart would be without the registration");
            }
            None => {}
        }
    }

    /// Removes the files but for the first `all_but`.
    fn remove(&self, all_but: usize) {
        for (path, _) in self.files.iter().skip(all_but) {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    warn!("failed to remove {}: {error}", path.display());
                }
                _ => {}
            }
        }
    }
}

fn fetched_at(fetched: u64) -> Instant {
    let (age, now) = (now().saturating_sub(Duration::from_secs(fetched)), Instant::now());
    now.checked_sub(age).unwrap_or(now)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;

    fn instance(token: &str) -> Instance {
        Instance::new("http://garm.example", token)
    }

    fn kept_in(dir: &Path, token: &str) -> Kept {
        Kept::new(vec![Place::Runtime(dir.to_owned())], &instance(token))
    }

    fn path(kept: &Kept) -> &Path {
        &kept.files[0].0
    }

    #[test]
    fn a_kept_token_is_found_by_the_same_instance_alone() {
        let dir = tempfile::tempdir().unwrap();
        let kept = kept_in(dir.path(), "a");
        kept.keep_token(&Secret::new("kept-registration-token"));
        assert!(kept_in(dir.path(), "b").find().is_none());
        let Some(Found::Token { token, at }) = kept.find() else { panic!("no token") };
        assert_eq!(token.expose(), "kept-registration-token");
        assert!(at.elapsed() < Duration::from_secs(5));
        let mode = std::fs::metadata(path(&kept)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_registration_takes_the_place_of_its_token() {
        let dir = tempfile::tempdir().unwrap();
        let kept = kept_in(dir.path(), "a");
        kept.keep_token(&Secret::new("kept-registration-token"));
        kept.keep_registration(42);
        assert!(matches!(kept.find(), Some(Found::Registered { agent_id: 42 })));
        assert!(!std::fs::read_to_string(path(&kept)).unwrap().contains("kept-registration"));
        kept.forget();
        assert!(kept.find().is_none());
    }

    #[test]
    fn a_token_in_memory_is_read_as_often_as_it_is_passed_on() {
        let at = Instant::now().checked_sub(Duration::from_secs(100)).unwrap();
        let fd = in_memory(&Secret::new("kept-registration-token"), at).unwrap();
        for _ in 0..2 {
            let (token, then) = from_memory(fd.try_clone().unwrap()).unwrap();
            assert_eq!(token.expose(), "kept-registration-token");
            assert!((99..105).contains(&then.elapsed().as_secs()), "{then:?}");
        }
    }

    #[test]
    fn a_torn_file_counts_as_none() {
        let dir = tempfile::tempdir().unwrap();
        let kept = kept_in(dir.path(), "a");
        std::fs::write(path(&kept), "{\"token\":{\"tok").unwrap();
        assert!(kept.find().is_none());
    }

    #[test]
    fn what_an_installation_keeps_in_the_home_is_found_and_replaced_in_the_runtime_folder() {
        let (home, runtime) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let in_home = || Place::Home(home.path().to_owned(), Account::current());
        let in_runtime = || Place::Runtime(runtime.path().to_owned());
        let installing = Kept::new(vec![in_home(), in_runtime()], &instance("a"));
        let running = Kept::new(vec![in_runtime(), in_home()], &instance("a"));
        let count = |dir: &Path| std::fs::read_dir(dir).unwrap().count();

        installing.keep_token(&Secret::new("kept-registration-token"));
        assert!(matches!(running.find(), Some(Found::Token { .. })));
        running.keep_registration(42);
        // The token is nowhere any more.
        assert_eq!((count(home.path()), count(runtime.path())), (0, 1));
        assert!(matches!(installing.find(), Some(Found::Registered { agent_id: 42 })));
        running.forget();
        assert_eq!((count(home.path()), count(runtime.path())), (0, 0));
    }
}
