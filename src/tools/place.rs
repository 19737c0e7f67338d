//! Where a new tree grows, and how it becomes the home.
//!
//! Theory of operation. A tree is built in a folder of its own on the file system of the home, and
//! becomes the home by renames alone. Where the home is not there yet, or is an empty folder, the
//! new tree grows beside it and takes its place in one step. Where the home is a mount point (a
//! pod's volume), holds other files, or its parent is not ours to write, the tree grows inside the
//! home and its top-level entries are moved up one by one, the [`Marker`] last.
//!
//! Invariants:
//! - a home whose marker says `whole` is whole; before the first entry is moved up, the marker says
//!   that it is not, so a boot that was killed in the middle leaves a home that the next one finishes;
//! - files of the home that the new tree does not have are never touched;
//! - a growing tree is locked (flock) and 0700; one that nobody has locked was left by a dead run,
//!   whatever its pid was (in a container it is 1 again), and is removed by the next;
//! - what is not committed is removed on drop.
//!
//! Must not: know what the tree holds.

mod marker;
mod partial;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;

pub use self::marker::{MARKER, Marker};

pub(crate) use self::partial::PARTIAL;

use self::partial::{remove_stale, remove_tree, stage};
use super::disk_trouble;
use crate::host::files::{self, FilesError};
use crate::host::os;
use crate::host::users::Account;

/// The name of one that grows inside the home.
const INSIDE: &str = ".garm-bootstrap";
/// In the growing tree: entries of the home that are being replaced.
const REPLACED: &str = ".garm-bootstrap.replaced";

#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    #[error(transparent)]
    Files(FilesError),
    #[error("make the folder {}: {}", path.display(), disk_trouble(source))]
    MakeDir { path: PathBuf, source: io::Error },
    #[error("use {} as the runner's home: {}", home.display(), disk_trouble(source))]
    Home { home: PathBuf, source: io::Error },
    #[error("use {} as the runner's home: it is not a folder", home.display())]
    NotAFolder { home: PathBuf },
    #[error("make a folder for the new runner in {}: {}", parent.display(), disk_trouble(source))]
    Stage { parent: PathBuf, source: io::Error },
    #[error(
        "find room for the runner in {}: it needs {} MB and {} MB are free; give the instance a \
         larger disk or choose another home", folder.display(), needed >> 20, free >> 20
    )]
    NoRoom { folder: PathBuf, needed: u64, free: u64 },
    #[error("empty {}: {}", path.display(), disk_trouble(source))]
    Clear { path: PathBuf, source: io::Error },
    #[error("put {} into its place: {}", path.display(), disk_trouble(source))]
    Move { path: PathBuf, source: io::Error },
}

/// A growing tree.
#[derive(Debug)]
pub struct Staging {
    path: PathBuf,
    home: PathBuf,
    inside: bool,
    owner: Option<Account>,
    /// Holds the flock that says that somebody is at it.
    _lock: File,
}

impl Staging {
    /// Makes the folder for a tree that is to become `home`, and `home`'s missing parents, for
    /// `owner`. `needed`: the bytes that the whole tree will take, where they are known.
    pub fn beside(
        home: &Path,
        owner: Option<&Account>,
        needed: Option<u64>,
    ) -> Result<Self, PlaceError> {
        let home = resolve(home, owner)?;
        let folder = if home.exists() { home.clone() } else { parent_of(&home) };
        find_room(&folder, needed.unwrap_or(0))?;
        let outer = prefix_beside(&home);
        let beside = if may_be_replaced(&home)? {
            match stage(&outer) {
                Ok(made) => Some(made),
                // The parent is not ours: the home itself may be.
                Err(_) if home.is_dir() => None,
                Err(source) => return Err(PlaceError::Stage { parent: parent_of(&home), source }),
            }
        } else {
            None
        };
        let inside = beside.is_none();
        let (path, lock) = match beside {
            Some(made) => made,
            None => stage(&prefix_inside(&home))
                .map_err(|source| PlaceError::Home { home: home.clone(), source })?,
        };
        let staging = Self { path, home, inside, owner: owner.cloned(), _lock: lock };
        // Only now: until ours is there, a stale one is what marks the home as unfinished.
        for stale in [outer, prefix_inside(&staging.home)] {
            remove_stale(&stale, &staging.path);
        }
        Ok(staging)
    }

    /// Fails where there is no room for `bytes` more.
    pub fn find_room(&self, bytes: u64) -> Result<(), PlaceError> {
        find_room(&self.path, bytes)
    }

    /// The folder to build in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes whatever was built so far, for another attempt.
    pub fn clear(&self) -> Result<(), PlaceError> {
        let clear = || -> io::Result<()> {
            fs::read_dir(&self.path)?.try_for_each(|entry| remove(&entry?.path()))
        };
        clear().map_err(|source| PlaceError::Clear { path: self.path.clone(), source })
    }

    /// Makes the tree, which must be whole, the home; the home's path, resolved.
    pub fn commit(self, marker: &Marker) -> Result<PathBuf, PlaceError> {
        if self.inside {
            self.move_up(marker)?;
        } else {
            self.take_the_place(marker)?;
        }
        Ok(self.home.clone())
    }

    fn take_the_place(&self, marker: &Marker) -> Result<(), PlaceError> {
        let error = |source| PlaceError::Move { path: self.home.clone(), source };
        self.write(marker)?;
        let old = fs::metadata(&self.home).ok();
        let mode = old.as_ref().map_or(0o755, |meta| meta.mode() & 0o7777);
        let folder = File::open(&self.path).map_err(error)?;
        match &old {
            Some(old) if self.owner.is_none() && nix::unistd::geteuid().is_root() => {
                std::os::unix::fs::fchown(&folder, Some(old.uid()), Some(old.gid()))
            }
            _ => files::give_to(&folder, self.owner.as_ref()),
        }
        .map_err(error)?;
        folder.set_permissions(fs::Permissions::from_mode(mode)).map_err(error)?;
        fs::rename(&self.path, &self.home).map_err(error)
    }

    fn move_up(&self, marker: &Marker) -> Result<(), PlaceError> {
        let error = |path: &Path, source| PlaceError::Move { path: path.to_owned(), source };
        let entries: Vec<_> = fs::read_dir(&self.path)
            .and_then(Iterator::collect::<io::Result<Vec<_>>>)
            .map_err(|e| error(&self.path, e))?;
        self.put_marker(&marker.unfinished())?;
        let replaced = self.path.join(REPLACED);
        fs::create_dir(&replaced).map_err(|e| error(&replaced, e))?;
        for entry in entries.iter().filter(|entry| entry.file_name() != MARKER) {
            let (from, to) = (entry.path(), self.home.join(entry.file_name()));
            set_aside(&to, &replaced.join(entry.file_name())).map_err(|e| error(&to, e))?;
            fs::rename(from, &to).map_err(|e| error(&to, e))?;
        }
        let home = File::open(&self.home).map_err(|e| error(&self.home, e))?;
        files::give_to(&home, self.owner.as_ref()).map_err(|e| error(&self.home, e))?;
        self.put_marker(marker)
    }

    fn put_marker(&self, marker: &Marker) -> Result<(), PlaceError> {
        self.write(marker)?;
        let (from, to) = (self.path.join(MARKER), self.home.join(MARKER));
        fs::rename(from, &to).map_err(|source| PlaceError::Move { path: to, source })
    }

    fn write(&self, marker: &Marker) -> Result<(), PlaceError> {
        let path = self.path.join(MARKER);
        let write = || -> io::Result<()> {
            // An archive may have brought something of this name, if only to lead us elsewhere.
            if fs::symlink_metadata(&path).is_ok() {
                remove(&path)?;
            }
            // Not synced on purpose: that would write out the whole tree with it.
            fs::write(&path, marker.to_json())?;
            files::give_to(&File::open(&path)?, self.owner.as_ref())
        };
        write().map_err(|source| PlaceError::Move { path: path.clone(), source })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a commit beside the home it is not there any more.
        if let Err(error) = remove_tree(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "a half-built folder stays behind");
        }
    }
}

fn find_room(folder: &Path, needed: u64) -> Result<(), PlaceError> {
    match os::free_disk(folder) {
        Some(free) if free < needed => {
            Err(PlaceError::NoRoom { folder: folder.to_owned(), needed, free })
        }
        _ => Ok(()),
    }
}

/// Removes what dead runs left beside and in a home that is used as it is.
pub fn sweep(home: &Path) {
    let home = home.canonicalize().unwrap_or_else(|_| home.to_owned());
    for stale in [prefix_beside(&home), prefix_inside(&home)] {
        remove_stale(&stale, Path::new(""));
    }
}

/// The home without links in its path, so that what is beside it is on its file system; its parents
/// are made.
fn resolve(home: &Path, owner: Option<&Account>) -> Result<PathBuf, PlaceError> {
    let error = |source| PlaceError::Home { home: home.to_owned(), source };
    let name = match home.file_name() {
        _ if home.exists() => {
            let home = home.canonicalize().map_err(error)?;
            return if home.is_dir() { Ok(home) } else { Err(PlaceError::NotAFolder { home }) };
        }
        Some(name) => name,
        None => return Err(error(io::ErrorKind::InvalidInput.into())),
    };
    let parent = parent_of(home);
    files::owned_dir(&parent, owner).map_err(|error| match error {
        FilesError::MakeDir { path, source } => PlaceError::MakeDir { path, source },
        other => PlaceError::Files(other),
    })?;
    Ok(parent.canonicalize().map_err(error)?.join(name))
}

fn parent_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        Some(_) => PathBuf::from("."),
        None => PathBuf::from("/"),
    }
}

/// Whether another folder can be renamed to `home`: nothing is there, or an empty folder that is no
/// mount point.
fn may_be_replaced(home: &Path) -> Result<bool, PlaceError> {
    if !home.exists() {
        return Ok(true);
    }
    let mut entries =
        fs::read_dir(home).map_err(|source| PlaceError::Home { home: home.to_owned(), source })?;
    Ok(entries.next().is_none() && !is_mount_point(home))
}

/// Whether something is mounted at `folder`, which has no links in its path. A bind mount has the
/// device number of its parent, so only the kernel's list tells.
fn is_mount_point(folder: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    if device(folder) != device(&parent_of(folder)) {
        return true;
    }
    let list = fs::read("/proc/self/mountinfo").unwrap_or_default();
    mount_points(&String::from_utf8_lossy(&list)).any(|point| Path::new(&point) == folder)
}

/// The mount points of a `mountinfo` (proc(5)), with its octal escapes resolved.
fn mount_points(list: &str) -> impl Iterator<Item = String> {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    list.lines().filter_map(|line| line.split(' ').nth(4)).map(move |point| {
        escapes.iter().fold(point.to_owned(), |point, (code, char)| point.replace(code, char))
    })
}

fn prefix_beside(home: &Path) -> PathBuf {
    let name = home.file_name().unwrap_or_default().to_string_lossy();
    home.with_file_name(format!(".{name}{PARTIAL}"))
}

fn prefix_inside(home: &Path) -> PathBuf {
    home.join(format!("{INSIDE}{PARTIAL}"))
}

/// Moves `old` to `aside`, if it is there. A folder of an image's lower layer cannot be moved
/// (overlayfs says EXDEV); it is removed, which the unfinished marker allows for.
fn set_aside(old: &Path, aside: &Path) -> io::Result<()> {
    match fs::rename(old, aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.raw_os_error() == Some(Errno::EXDEV as i32) => remove(old),
        other => other,
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { remove_tree(path) } else { fs::remove_file(path) }
}

#[cfg(test)]
pub(crate) mod tests;
