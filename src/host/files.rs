//! Files written whole or not at all, and folders with an owner and a mode.
//!
//! Owns: the one way in which this program replaces a file. Must not: follow a symbolic link that
//! somebody put where the file is to be.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::unistd::geteuid;

use super::users::Account;

/// The runner's own small files have some hundred bytes.
const PLAIN_LIMIT: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("make the folder {}: {source}", path.display())]
    MakeDir { path: PathBuf, source: io::Error },
    #[error("use the folder {}: it belongs to uid {owner} with mode {mode:o}, so others could change it", path.display())]
    NotPrivate { path: PathBuf, owner: u32, mode: u32 },
}

/// Replaces the file at `path` in one step; it is synced, has `mode`, and belongs to `owner` if one is
/// given and we may give files away.
pub fn write_atomic(
    path: &Path,
    contents: &[u8],
    mode: u32,
    owner: Option<&Account>,
) -> Result<(), FilesError> {
    let error = |source| FilesError::Write { path: path.to_owned(), source };
    let temp = temp_name(path);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temp)?;
        file.write_all(contents)?;
        give_to(&file, owner)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&temp, path)?;
        path.parent().map_or(Ok(()), sync_dir)
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&temp);
        error(source)
    })
}

/// The same, but synced when it is in its place: for what a kill must not lose, though a power cut may tear it.
pub fn write_at_once(
    path: &Path,
    contents: &[u8],
    mode: u32,
    owner: Option<&Account>,
) -> Result<(), FilesError> {
    let temp = temp_name(path);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temp)?;
        file.write_all(contents)?;
        give_to(&file, owner)?;
        fs::rename(&temp, path)?;
        file.sync_all()?;
        path.parent().map_or(Ok(()), sync_dir)
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&temp);
        FilesError::Write { path: path.to_owned(), source }
    })
}

/// Makes `copy` a copy of `original` that has the same blocks until one of them is written (ioctl_ficlone(2)).
#[expect(unsafe_code, reason = "an ioctl")]
pub fn share_blocks(original: &File, copy: &File) -> io::Result<()> {
    nix::ioctl_write_int_bad!(ficlone, nix::request_code_write!(0x94, 9, size_of::<i32>()));
    // SAFETY: both are open files, and the call takes nothing but their numbers.
    unsafe { ficlone(copy.as_raw_fd(), original.as_raw_fd()) }?;
    Ok(())
}

/// Replaces the file at `path` in one step, as every reader sees it; a power cut may undo that.
pub fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<(), FilesError> {
    let temp = temp_name(path);
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temp)?;
        file.write_all(contents)?;
        fs::rename(&temp, path)
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&temp);
        FilesError::Write { path: path.to_owned(), source }
    })
}

/// What a file holds that lies where jobs may write: only a plain one that is not large is read. A link could
/// lead to what nobody but us may read, and a pipe would hold us up for ever.
pub fn read_plain(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() || meta.len() > PLAIN_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no small plain file"));
    }
    let mut bytes = Vec::new();
    file.take(PLAIN_LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes `path` and its missing parents; it gets `mode`, and must then be a folder that belongs to us
/// (or root) and that nobody else may write to.
pub fn private_dir(path: &Path, mode: u32) -> Result<(), FilesError> {
    let error = |source| FilesError::MakeDir { path: path.to_owned(), source };
    match DirBuilder::new().recursive(true).mode(mode).create(path) {
        Err(source) if !path.is_dir() => return Err(error(source)),
        _ => {}
    }
    let meta = fs::symlink_metadata(path).map_err(error)?;
    let ours = meta.uid() == geteuid().as_raw() || meta.uid() == 0;
    if !meta.is_dir() || !ours || meta.mode() & 0o022 != 0 {
        return Err(FilesError::NotPrivate {
            path: path.to_owned(),
            owner: meta.uid(),
            mode: meta.mode() & 0o7777,
        });
    }
    Ok(())
}

/// Makes `path` and its missing parents; each one made belongs to `owner`.
pub fn owned_dir(path: &Path, owner: Option<&Account>) -> Result<(), FilesError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        owned_dir(parent, owner)?;
    }
    let make = || -> io::Result<()> {
        fs::create_dir(path)?;
        give_to(&File::open(path)?, owner)
    };
    make().map_err(|source| FilesError::MakeDir { path: path.to_owned(), source })
}

/// Gives an open file to `owner`; only root can, and for anyone else the file is the owner's already.
pub fn give_to(file: &File, owner: Option<&Account>) -> io::Result<()> {
    match owner {
        Some(owner) if geteuid().is_root() => fchown(file, Some(owner.uid), Some(owner.gid)),
        _ => Ok(()),
    }
}

pub fn sync_dir(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path)?.sync_all()
}

/// Removes what a writer of files in `dir` has left that was killed on the way. Nobody else may be
/// writing there.
pub fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if is_temp_name(&entry.file_name().to_string_lossy()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A name as [`temp_name`] makes it.
fn is_temp_name(name: &str) -> bool {
    let pid = name.strip_prefix('.').and_then(|name| name.rsplit_once('.')).map(|(_, pid)| pid);
    pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

fn temp_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_no_temp_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        write_atomic(&path, b"one", 0o644, None).unwrap();
        write_atomic(&path, b"two", 0o600, None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_writer_has_left_is_swept_away_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let temp = temp_name(&dir.path().join("state.json"));
        let kept = ["state.json", ".hidden", ".runner", "lock", ".a.b"].map(|n| dir.path().join(n));
        for path in kept.iter().chain([&temp]) {
            fs::write(path, "").unwrap();
        }
        sweep(dir.path());
        assert!(!temp.exists() && kept.iter().all(|path| path.exists()));
    }

    #[test]
    fn a_symlink_at_the_files_place_is_replaced_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("f"));
        fs::write(&victim, "untouched").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        write_atomic(&path, b"new", 0o600, None).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"untouched");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn only_a_small_plain_file_is_read_where_jobs_may_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("plain"), "text").unwrap();
        std::os::unix::fs::symlink(path("plain"), path("link")).unwrap();
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        File::create(path("large")).unwrap().set_len(1 << 40).unwrap();
        assert_eq!(read_plain(&path("plain")).unwrap(), b"text");
        for name in ["link", "pipe", "large", "missing"] {
            assert!(read_plain(&path(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_not_private() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let error = private_dir(dir.path(), 0o700).unwrap_err();
        assert!(matches!(error, FilesError::NotPrivate { .. }), "{error}");
    }
}
