//! Brings a runner from the image's assets folder into the home.
//!
//! Owns: what of the folder is the runner, and what is the trace of an earlier use that must not
//! come along (an identity, a work folder, logs). Must not: change the assets folder.
//!
//! The cheapest way is taken that leaves the image's folder as it is. Where the file system can share
//! blocks (btrfs, XFS), the kernel does so for each file (`copy_file_range`, through std). Else a file that
//! nobody will write becomes a hard link ([`sharing`]). The rest is copied by the kernel without coming
//! through this process. Several threads do it, for most files are small and wait for the disk.

mod sharing;

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use tokio_util::sync::CancellationToken;

use self::sharing::Sharing;
use super::disk_trouble;
use super::locate::{self, Runner, Unusable};
use super::place::{MARKER, Marker, PARTIAL, PlaceError, Staging};
use crate::host::files;
use crate::host::users::Account;

/// Enough to hide the latency of many small files; a boot has other things to do, too.
const THREADS: usize = 4;

/// In the top folder: what an earlier use left there. `.credentials…` goes by its beginning.
const LEFT_BEHIND: [&str; 6] = ["_work", "_diag", "_update", ".runner", ".service", MARKER];

#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error("copy the runner: told to stop")]
    Cancelled,
    #[error("read {} of the runner's assets: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("copy {}: {}", path.display(), disk_trouble(source))]
    Copy { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("copy the runner: {0}")]
    Unusable(#[from] Unusable),
}

/// How to bring it.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// Who gets what is copied; only root can give it away.
    pub owner: Option<&'a Account>,
    /// Who the runner and its jobs run as.
    pub user: &'a Account,
    /// Whether the runner has one job and the image's folder no other use after it: then files may be shared.
    pub once: bool,
    pub cancel: &'a CancellationToken,
}

/// Makes `home` a copy of `runner`; nothing is done where it is that already.
pub fn bring(runner: &Runner, home: &Path, order: &Order<'_>) -> Result<Runner, CopyError> {
    if locate::same(&runner.home, home) {
        return Ok(runner.clone());
    }
    let mut plan = Plan::of(&runner.home, home)?;
    let staging = Staging::beside(home, order.owner, None)?;
    plan.share(&Sharing::between(&runner.home, staging.path(), order));
    staging.find_room(plan.bytes_to_copy())?;
    plan.carry_out(&runner.home, staging.path(), order)?;
    locate::inspect(staging.path())?;
    let files = (plan.files.len() + plan.links.len()) as u64;
    let bytes = plan.files.iter().map(|file| file.meta.len()).sum();
    let mut marker = Marker::new(runner.version.clone(), files, bytes);
    marker.sha256 = runner.marker.as_ref().and_then(|m| m.sha256.clone());
    let home = staging.commit(&marker)?;
    Ok(locate::inspect(&home)?)
}

/// What is to be copied; paths from the folder's root. A folder comes before what is in it.
#[derive(Debug, Default)]
struct Plan {
    folders: Vec<(PathBuf, u32)>,
    files: Vec<Regular>,
    links: Vec<(PathBuf, PathBuf)>,
}

/// A regular file.
#[derive(Debug)]
struct Regular {
    path: PathBuf,
    meta: Metadata,
    /// A hard link will do.
    shared: bool,
}

impl Regular {
    fn mode(&self) -> u32 {
        self.meta.permissions().mode() & 0o777
    }
}

impl Plan {
    /// Of all that is the runner in `root`; `home` may lie in there and is no part of it.
    fn of(root: &Path, home: &Path) -> Result<Self, CopyError> {
        let mut plan = Self::default();
        let mut next = 0;
        let home = home.canonicalize().ok();
        let home = home.as_deref().zip(root.canonicalize().ok());
        let home = home.and_then(|(home, root)| home.strip_prefix(root).ok());
        plan.scan(root, Path::new(""), home)?;
        while let Some((folder, _)) = plan.folders.get(next) {
            let folder = folder.clone();
            plan.scan(root, &folder, home)?;
            next += 1;
        }
        Ok(plan)
    }

    fn scan(&mut self, root: &Path, folder: &Path, home: Option<&Path>) -> Result<(), CopyError> {
        let full = root.join(folder);
        let error = |path: &Path, source| CopyError::Read { path: path.to_owned(), source };
        for entry in fs::read_dir(&full).map_err(|e| error(&full, e))? {
            let entry = entry.map_err(|e| error(&full, e))?;
            let path = folder.join(entry.file_name());
            if is_left_behind(&path) || home == Some(&path) {
                continue;
            }
            let full = entry.path();
            let meta = entry.metadata().map_err(|e| error(&full, e))?;
            if meta.is_dir() {
                self.folders.push((path, meta.permissions().mode() & 0o777));
            } else if meta.is_symlink() {
                let target = fs::read_link(&full).map_err(|e| error(&full, e))?;
                self.links.push((path.clone(), inward(target, root, &path)));
            } else if meta.is_file() {
                self.files.push(Regular { path, meta, shared: false });
            }
            // A socket or a device is no part of a runner.
        }
        Ok(())
    }

    fn share(&mut self, sharing: &Sharing) {
        for file in &mut self.files {
            file.shared = sharing.takes(&file.path, &file.meta);
        }
    }

    fn bytes_to_copy(&self) -> u64 {
        self.files.iter().filter(|file| !file.shared).map(|file| file.meta.len()).sum()
    }

    fn carry_out(&self, from: &Path, to: &Path, order: &Order<'_>) -> Result<(), CopyError> {
        let error = |path: &Path| {
            let path = to.join(path);
            move |source| CopyError::Copy { path, source }
        };
        for (path, _) in &self.folders {
            fs::create_dir(to.join(path)).map_err(error(path))?;
        }
        self.bring_files(from, to, order)?;
        let owner_of_links = order.owner.filter(|_| geteuid().is_root());
        for (path, target) in &self.links {
            let at = to.join(path);
            symlink(target, &at)
                .and_then(|()| match owner_of_links {
                    Some(owner) => lchown(&at, Some(owner.uid), Some(owner.gid)),
                    None => Ok(()),
                })
                .map_err(error(path))?;
        }
        // The deepest first: an outer one may become one that we cannot enter.
        for (path, mode) in self.folders.iter().rev() {
            let finish = || -> io::Result<()> {
                let folder = File::open(to.join(path))?;
                files::give_to(&folder, order.owner)?;
                folder.set_permissions(Permissions::from_mode(*mode))
            };
            finish().map_err(error(path))?;
        }
        Ok(())
    }

    fn bring_files(&self, from: &Path, to: &Path, order: &Order<'_>) -> Result<(), CopyError> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), CopyError> {
            while let Some(file) = self.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                if order.cancel.is_cancelled() {
                    return Err(CopyError::Cancelled);
                }
                let (from, to) = (from.join(&file.path), to.join(&file.path));
                if file.shared && fs::hard_link(&from, &to).is_ok() {
                    continue;
                }
                copy_file(&from, &to, file.mode(), order.owner).inspect_err(|_| {
                    // The others need not go on.
                    next.store(self.files.len(), Ordering::Relaxed);
                })?;
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            others.into_iter().fold(work(), |sum, other| {
                let other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                sum.and(other)
            })
        })
    }
}

fn copy_file(from: &Path, to: &Path, mode: u32, owner: Option<&Account>) -> Result<(), CopyError> {
    let no_follow = OFlag::O_NOFOLLOW.bits();
    let mut source = OpenOptions::new()
        .read(true)
        .custom_flags(no_follow)
        .open(from)
        .map_err(|source| CopyError::Read { path: from.to_owned(), source })?;
    let mut copy = || -> io::Result<()> {
        let mut copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
        io::copy(&mut source, &mut copy)?;
        files::give_to(&copy, owner)?;
        copy.set_permissions(Permissions::from_mode(mode))
    };
    copy().map_err(|source| CopyError::Copy { path: to.to_owned(), source })
}

fn is_left_behind(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes();
    !name.contains(&b'/')
        && (LEFT_BEHIND.iter().any(|left| name == left.as_bytes())
            || name.starts_with(b".credentials")
            || path.to_string_lossy().contains(PARTIAL))
}

/// The target of the link at `path`, where it is an absolute one into the folder itself (a
/// self-update makes `bin` such a link), as a relative one; else as it is.
fn inward(target: PathBuf, root: &Path, path: &Path) -> PathBuf {
    match target.strip_prefix(root) {
        Ok(inside) => {
            let up = path.components().skip(1).map(|_| "..");
            up.collect::<PathBuf>().join(inside)
        }
        Err(_) => target,
    }
}

#[cfg(test)]
mod tests;
