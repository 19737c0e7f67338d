//! The folders of growing trees: made, locked, and removed when their maker is dead.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::parent_of;

/// What every growing tree has in its name.
pub(crate) const PARTIAL: &str = ".partial-";

/// Makes and locks the folder `prefix` + our pid.
pub(super) fn stage(prefix: &Path) -> io::Result<(PathBuf, File)> {
    for attempt in 0.. {
        let mut name = prefix.as_os_str().to_owned();
        name.push(std::process::id().to_string());
        if attempt > 0 {
            name.push(format!("-{attempt}"));
        }
        let path = PathBuf::from(name);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => {}
            Err(error) => return Err(error),
            Ok(()) => {
                let lock = File::open(&path)?;
                // A file system without locks does without them.
                let _ = lock.try_lock();
                return Ok((path, lock));
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Removes the folders whose names begin with `prefix` and that nobody has locked, but not `ours`.
pub(super) fn remove_stale(prefix: &Path, ours: &Path) {
    let start = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Ok(entries) = fs::read_dir(parent_of(prefix)) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path != ours) {
        let named = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&start));
        let folder = || fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        if named && folder() && !in_use(&path) {
            tracing::info!(path = %path.display(), "removing what an earlier run left unfinished");
            let _ = remove_tree(&path);
        }
    }
}

fn in_use(path: &Path) -> bool {
    File::open(path).is_ok_and(|folder| matches!(folder.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Removes the folder with all that is in it, read-only folders of an archive included.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            make_writable(path)?;
            fs::remove_dir_all(path)
        }
        other => other,
    }
}

fn make_writable(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_writable(&entry.path())?;
        }
    }
    Ok(())
}
