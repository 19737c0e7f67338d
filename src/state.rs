//! What must outlive this process: the lock, the used marker, the timeline, and how it ended.
//!
//! The lock (`lock`, held with flock, so that it ends with us however we end) keeps two starters from
//! booting at once. The used marker (`used.json`) says that an instance has had its run: a one-shot
//! runner is never started twice. It names the instance by a digest of its token and URL, so a state
//! folder that went into an image does not lock out the instances made from it.

mod life;

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::host::files::{FilesError, private_dir, replace, sweep, write_atomic};
use crate::timeline::Timeline;

pub use life::{Life, Status};

const LOCK: &str = "lock";
const USED: &str = "used.json";
pub const TIMELINE: &str = "timeline.json";
pub const LIFE: &str = "state.json";

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("{source}; name another folder with --state-dir or --runtime-dir")]
    Folder { source: FilesError },
    #[error("lock {}: {source}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("start: another garm-bootstrap is booting or supervising here (it holds {})", path.display())]
    Busy { path: PathBuf },
    #[error("start: this instance had its run at {at} ({} says so); nothing was touched", path.display())]
    Used { path: PathBuf, at: String },
    #[error(
        "start: this instance's runner is alive (pid {pid}), though the garm-bootstrap that started it is not; nothing was touched"
    )]
    Alive { pid: i32 },
    #[error(
        "start: another garm-bootstrap (pid {pid}) is configuring a runner in this home; nothing was touched"
    )]
    Configuring { pid: i32 },
    #[error(transparent)]
    Write(FilesError),
}

/// The state folder, locked for this process.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    _lock: File,
}

/// What `used.json` holds.
#[derive(Debug, Serialize, Deserialize)]
struct Used {
    instance: String,
    /// RFC 3339, UTC.
    at: String,
    /// Nothing where a job was faster than GARM's answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idle: Option<Told>,
}

/// What GARM has said to `idle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    Accepted,
    /// 401: it has it already, or a job was faster, or the instance is gone.
    Known,
    /// It has refused it, or could not be reached.
    Not,
}

/// Which instance this is: a digest, because a token must not lie in the state folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance(String);

impl Instance {
    /// Fit to be a file name.
    pub fn digest(&self) -> &str {
        &self.0
    }

    pub fn new(callback: &str, token: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update(callback);
        digest.update([0]);
        digest.update(token);
        Self(format!("{:x}", digest.finalize())[..32].to_owned())
    }
}

/// The first of `candidates` that can be made and is private to us.
pub fn folder(candidates: &[PathBuf]) -> Result<PathBuf, StateError> {
    let mut last = None;
    for path in candidates {
        match private_dir(path, 0o700) {
            Ok(()) => return Ok(path.clone()),
            Err(error) => last = last.or(Some(error)),
        }
    }
    // An empty list cannot come from the settings; it would be told as a missing folder.
    Err(StateError::Folder {
        source: last.unwrap_or(FilesError::MakeDir {
            path: PathBuf::new(),
            source: io::ErrorKind::NotFound.into(),
        }),
    })
}

/// What a look at the state folder tells, which neither makes nor locks anything.
#[derive(Debug)]
pub enum Past {
    Nothing,
    Busy { path: PathBuf },
    Used { path: PathBuf, at: String },
    Unreadable { path: PathBuf, why: String },
}

/// The file called `name` in the first of `candidates` that has it.
pub fn existing(candidates: &[PathBuf], name: &str) -> Option<PathBuf> {
    candidates.iter().map(|dir| dir.join(name)).find(|path| path.exists())
}

/// Where supervisors of any instance have noted how far their runners are.
pub fn runner_memories(candidates: &[PathBuf]) -> Vec<PathBuf> {
    let entries = candidates.iter().filter_map(|dir| std::fs::read_dir(dir).ok());
    let names = entries.flat_map(|entries| entries.flatten().map(|entry| entry.path()));
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("runner-") && name.ends_with(".json")
    };
    names.filter(is_one).collect()
}

/// What became of `instance` here, for a person.
pub fn look(candidates: &[PathBuf], instance: &Instance) -> Past {
    let Some(dir) = candidates.iter().find(|dir| dir.is_dir()) else { return Past::Nothing };
    if let Err(why) = std::fs::read_dir(dir) {
        return Past::Unreadable { path: dir.clone(), why: why.to_string() };
    }
    let lock = dir.join(LOCK);
    if is_held(&lock) {
        return Past::Busy { path: lock };
    }
    match refuse_used(dir, instance) {
        Err(StateError::Used { path, at }) => Past::Used { path, at },
        _ => Past::Nothing,
    }
}

/// Whether somebody has the file locked, by the kernel's list (proc(5)): to try the lock, if only for a
/// moment, could turn away a boot that begins in it.
fn is_held(path: &Path) -> bool {
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let list = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = format!(":{}", meta.ino());
    list.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.contains(&"FLOCK") && fields.iter().any(|field| field.ends_with(&inode))
    })
}

impl State {
    /// Takes the lock on `dir`.
    pub fn lock(dir: &Path) -> Result<Self, StateError> {
        let path = dir.join(LOCK);
        let error = |source| StateError::Lock { path: path.clone(), source };
        let file = File::options().create(true).append(true).open(&path).map_err(error)?;
        match file.try_lock() {
            Ok(()) => {
                sweep(dir);
                Ok(Self { dir: dir.to_owned(), _lock: file })
            }
            Err(TryLockError::WouldBlock) => Err(StateError::Busy { path }),
            Err(TryLockError::Error(source)) => Err(error(source)),
        }
    }

    /// Fails if `instance` has had its run. A marker that cannot be read counts for every instance: to
    /// start a runner twice is worse than not at all.
    pub fn refuse_used(&self, instance: &Instance) -> Result<(), StateError> {
        refuse_used(&self.dir, instance)
    }

    /// Marks `instance` as used, durably, with what GARM has said to its `idle` so far.
    pub fn mark_used(&self, instance: &Instance, idle: Option<Told>) -> Result<(), StateError> {
        let at = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        self.write(USED, &Used { instance: instance.0.clone(), at, idle })
    }

    /// What the marker says that GARM has said to the `idle` of `instance`.
    pub fn idle_told(&self, instance: &Instance) -> Option<Told> {
        let used: Used = serde_json::from_slice(&std::fs::read(self.dir.join(USED)).ok()?).ok()?;
        used.idle.filter(|_| used.instance == instance.0)
    }

    pub fn write_timeline(&self, timeline: &Timeline) -> Result<(), StateError> {
        self.write(TIMELINE, &timeline.record())
    }

    /// Where the supervisor of `instance` notes how far its runner is.
    pub fn runner_memory(&self, instance: &Instance) -> PathBuf {
        self.dir.join(format!("runner-{}.json", instance.digest()))
    }

    /// Not synced: only the end is worth the disk's time.
    pub fn write_life(&self, life: &Life) -> Result<(), StateError> {
        if life.status == Status::Ended {
            return self.write(LIFE, life);
        }
        let json = serde_json::to_vec_pretty(life).unwrap_or_default();
        replace(&self.dir.join(LIFE), &json, 0o600).map_err(StateError::Write)
    }

    fn write(&self, name: &str, value: &impl Serialize) -> Result<(), StateError> {
        let json = serde_json::to_vec_pretty(value).unwrap_or_default();
        write_atomic(&self.dir.join(name), &json, 0o600, None).map_err(StateError::Write)
    }
}

fn refuse_used(dir: &Path, instance: &Instance) -> Result<(), StateError> {
    let path = dir.join(USED);
    let used: Used = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(_) => return Err(StateError::Used { path, at: "an unknown time".to_owned() }),
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(used) => used,
            Err(_) => return Err(StateError::Used { path, at: "an unknown time".to_owned() }),
        },
    };
    if used.instance == instance.0 {
        return Err(StateError::Used { path, at: used.at });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_starter_is_turned_away_while_the_first_lives() {
        let dir = tempfile::tempdir().unwrap();
        let first = State::lock(dir.path()).unwrap();
        assert!(matches!(State::lock(dir.path()), Err(StateError::Busy { .. })));
        drop(first);
        State::lock(dir.path()).unwrap();
    }

    #[test]
    fn a_used_instance_is_refused_and_another_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::lock(dir.path()).unwrap();
        let (this, other) = (Instance::new("http://g", "a"), Instance::new("http://g", "b"));
        state.refuse_used(&this).unwrap();
        state.mark_used(&this, None).unwrap();
        assert!(matches!(state.refuse_used(&this), Err(StateError::Used { .. })));
        assert_eq!(state.idle_told(&this), None);
        state.mark_used(&this, Some(Told::Known)).unwrap();
        assert_eq!((state.idle_told(&this), state.idle_told(&other)), (Some(Told::Known), None));
        state.refuse_used(&other).unwrap();
    }

    #[test]
    fn a_torn_marker_counts_as_used() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(USED), "{\"inst").unwrap();
        let state = State::lock(dir.path()).unwrap();
        assert!(state.refuse_used(&Instance::new("http://g", "a")).is_err());
    }

    #[test]
    fn the_next_folder_is_taken_where_the_first_cannot_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let good = dir.path().join("good");
        assert_eq!(folder(&[file.join("state"), good.clone()]).unwrap(), good);
        assert!(folder(&[file.join("state")]).is_err());
    }
}
