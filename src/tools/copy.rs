//! Brings a runner from the image's assets folder into the home.
//!
//! Owns: what of the folder is the runner, and what is the trace of an earlier use that must not
//! come along (an identity, a work folder, logs). Must not: change the assets folder.
//!
//! Files are copied by the kernel (`copy_file_range`, through std), which shares the blocks instead
//! where the file system can (btrfs, XFS) and never brings the bytes into this process where it
//! cannot. Several threads do it, for most files are small and wait for the disk.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use tokio_util::sync::CancellationToken;

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

/// Makes `home` a copy of `runner` that belongs to `owner`; nothing is done where it is that already.
pub fn bring(
    runner: &Runner,
    home: &Path,
    owner: Option<&Account>,
    cancel: &CancellationToken,
) -> Result<Runner, CopyError> {
    if locate::same(&runner.home, home) {
        return Ok(runner.clone());
    }
    let plan = Plan::of(&runner.home, home)?;
    let staging = Staging::beside(home, owner, Some(plan.bytes))?;
    plan.carry_out(&runner.home, staging.path(), owner, cancel)?;
    locate::inspect(staging.path())?;
    let files = (plan.files.len() + plan.links.len()) as u64;
    let mut marker = Marker::new(runner.version.clone(), files, plan.bytes);
    marker.sha256 = runner.marker.as_ref().and_then(|m| m.sha256.clone());
    let home = staging.commit(&marker)?;
    Ok(locate::inspect(&home)?)
}

/// What is to be copied; paths from the folder's root. A folder comes before what is in it.
#[derive(Debug, Default)]
struct Plan {
    folders: Vec<(PathBuf, u32)>,
    files: Vec<(PathBuf, u32)>,
    links: Vec<(PathBuf, PathBuf)>,
    bytes: u64,
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
            let mode = meta.permissions().mode() & 0o777;
            if meta.is_dir() {
                self.folders.push((path, mode));
            } else if meta.is_symlink() {
                let target = fs::read_link(&full).map_err(|e| error(&full, e))?;
                self.links.push((path.clone(), inward(target, root, &path)));
            } else if meta.is_file() {
                self.bytes += meta.len();
                self.files.push((path, mode));
            }
            // A socket or a device is no part of a runner.
        }
        Ok(())
    }

    fn carry_out(
        &self,
        from: &Path,
        to: &Path,
        owner: Option<&Account>,
        cancel: &CancellationToken,
    ) -> Result<(), CopyError> {
        let error = |path: &Path| {
            let path = to.join(path);
            move |source| CopyError::Copy { path, source }
        };
        for (path, _) in &self.folders {
            fs::create_dir(to.join(path)).map_err(error(path))?;
        }
        self.copy_files(from, to, owner, cancel)?;
        let owner_of_links = owner.filter(|_| geteuid().is_root());
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
                files::give_to(&folder, owner)?;
                folder.set_permissions(Permissions::from_mode(*mode))
            };
            finish().map_err(error(path))?;
        }
        Ok(())
    }

    fn copy_files(
        &self,
        from: &Path,
        to: &Path,
        owner: Option<&Account>,
        cancel: &CancellationToken,
    ) -> Result<(), CopyError> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), CopyError> {
            while let Some((path, mode)) = self.files.get(next.fetch_add(1, Ordering::Relaxed)) {
                if cancel.is_cancelled() {
                    return Err(CopyError::Cancelled);
                }
                copy_file(&from.join(path), &to.join(path), *mode, owner).inspect_err(|_| {
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
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn assets() -> tempfile::TempDir {
        let dir = locate::tests::runner();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("externals/node/bin")).unwrap();
        fs::create_dir_all(at("_work/repo")).unwrap();
        for name in [".runner", ".credentials", ".credentials_rsaparams", ".env", ".path"] {
            fs::write(at(name), "x").unwrap();
        }
        fs::write(at("externals/node/tool"), vec![7; 300_000]).unwrap();
        fs::set_permissions(at("externals/node/tool"), Permissions::from_mode(0o555)).unwrap();
        fs::set_permissions(at("externals/node"), Permissions::from_mode(0o555)).unwrap();
        symlink("../tool", at("externals/node/bin/relative")).unwrap();
        symlink(at("externals/node/tool"), at("externals/node/bin/absolute")).unwrap();
        nix::unistd::mkfifo(&at("bin/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        dir
    }

    #[test]
    fn the_runner_comes_over_and_the_traces_of_an_earlier_use_do_not() {
        let (assets, dir) = (assets(), tempfile::tempdir().unwrap());
        let home = dir.path().join("home");
        let found = locate::inspect(assets.path()).unwrap();
        let cancel = CancellationToken::new();
        let runner = bring(&found, &home, None, &cancel).unwrap();
        assert!(runner.marker.is_some_and(|m| m.whole && m.files == 8));
        let tool = fs::metadata(home.join("externals/node/tool")).unwrap();
        assert_eq!((tool.len(), tool.mode() & 0o777), (300_000, 0o555));
        assert_eq!(fs::metadata(home.join("externals/node")).unwrap().mode() & 0o777, 0o555);
        for link in ["relative", "absolute"] {
            let target = fs::read_link(home.join("externals/node/bin").join(link)).unwrap();
            assert!(target.is_relative(), "{}", target.display());
            assert!(home.join("externals/node/bin").join(link).exists());
        }
        for kept in [".env", ".path"] {
            assert!(home.join(kept).exists(), "{kept}");
        }
        for left in [".runner", ".credentials", ".credentials_rsaparams", "_work", "bin/fifo"] {
            assert!(!home.join(left).exists(), "{left}");
        }
    }

    #[test]
    fn the_same_folder_is_used_as_it_is() {
        let assets = assets();
        let found = locate::inspect(assets.path()).unwrap();
        let home = assets.path().join("externals/..");
        let runner = bring(&found, &home, None, &CancellationToken::new()).unwrap();
        assert_eq!(runner, found);
        assert!(assets.path().join(".runner").exists());
    }

    #[test]
    fn a_home_inside_the_assets_is_not_copied_into_itself() {
        let assets = assets();
        let home = assets.path().join("actions-runner");
        fs::create_dir(&home).unwrap();
        fs::write(home.join("mine"), "").unwrap();
        let found = locate::inspect(assets.path()).unwrap();
        bring(&found, &home, None, &CancellationToken::new()).unwrap();
        assert!(home.join("mine").exists() && !home.join("actions-runner").exists());
    }

    #[test]
    fn a_cancelled_copy_leaves_nothing() {
        let (assets, dir) = (assets(), tempfile::tempdir().unwrap());
        let cancel = CancellationToken::new();
        cancel.cancel();
        let found = locate::inspect(assets.path()).unwrap();
        let error = bring(&found, &dir.path().join("home"), None, &cancel).unwrap_err();
        assert!(matches!(error, CopyError::Cancelled), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn root_gives_the_copy_to_the_owner_and_anyone_else_keeps_it() {
        let owner = Account {
            name: "somebody".into(),
            uid: 4711,
            gid: 4712,
            groups: vec![4712],
            home: None,
            shell: "/bin/sh".into(),
        };
        let root = geteuid().is_root();
        let expected = if root { 4711 } else { geteuid().as_raw() };
        let (assets, dir) = (assets(), tempfile::tempdir().unwrap());
        let home = dir.path().join("home");
        let found = locate::inspect(assets.path()).unwrap();
        bring(&found, &home, Some(&owner), &CancellationToken::new()).unwrap();
        for path in ["", "run.sh", "externals", "externals/node/bin/relative", MARKER] {
            let uid = fs::symlink_metadata(home.join(path)).unwrap().uid();
            assert_eq!(uid, expected, "{path}");
        }
    }
}
