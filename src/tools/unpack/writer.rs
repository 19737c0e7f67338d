//! The disk side: batches of steps, and the thread that takes them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::{Gid, Uid, fchownat, geteuid, symlinkat};

use super::{Stop, UnpackError};
use crate::host::files;
use crate::host::users::Account;

/// Contents and paths of one batch; with those queued and those at both ends 4 MB in all.
const BATCH: usize = 512 << 10;
const QUEUED: usize = 6;
/// What a step costs beside the bytes of its path.
const STEP: usize = 128;
/// From this size on the room for a file is taken before it is written.
const LARGE: u64 = 1 << 20;
/// The mode of a folder that has not been given another.
const FOLDER: u32 = 0o755;

enum Step {
    Folder {
        path: PathBuf,
        mode: u32,
    },
    File {
        path: PathBuf,
        mode: u32,
        size: u64,
    },
    /// So many bytes of the batch belong to the file that was last begun.
    Contents(usize),
    Link {
        path: PathBuf,
        target: PathBuf,
    },
}

struct Batch {
    bytes: Vec<u8>,
    used: usize,
    steps: Vec<Step>,
    steps_size: usize,
}

impl Batch {
    fn new() -> Self {
        Self { bytes: vec![0; BATCH], used: 0, steps: Vec::new(), steps_size: 0 }
    }

    fn is_full(&self) -> bool {
        self.used == BATCH || self.steps_size >= BATCH
    }
}

/// Both ends of the way to the writer.
pub(super) fn channel() -> (Sink, Work) {
    let (send, batches) = mpsc::sync_channel(QUEUED);
    let (give_back, empty) = mpsc::channel();
    (Sink { send, empty, batch: Batch::new() }, Work { batches, give_back })
}

/// The reader's end: it fills one batch after the other.
pub(super) struct Sink {
    send: SyncSender<Batch>,
    /// Batches that the writer is done with.
    empty: Receiver<Batch>,
    batch: Batch,
}

/// The writer's end.
pub(super) struct Work {
    batches: Receiver<Batch>,
    give_back: Sender<Batch>,
}

impl Sink {
    pub(super) fn folder(&mut self, path: PathBuf, mode: u32) -> Result<(), Stop> {
        self.push(path.as_os_str().len(), Step::Folder { path, mode })
    }

    pub(super) fn link(&mut self, path: PathBuf, target: PathBuf) -> Result<(), Stop> {
        let size = path.as_os_str().len() + target.as_os_str().len();
        self.push(size, Step::Link { path, target })
    }

    /// Begins a file; what is [`filled`](Self::filled) from now on are its contents, `size` bytes.
    pub(super) fn file(&mut self, path: PathBuf, mode: u32, size: u64) -> Result<(), Stop> {
        self.push(path.as_os_str().len(), Step::File { path, mode, size })
    }

    /// Where the next contents go; never empty.
    pub(super) fn room(&mut self) -> Result<&mut [u8], Stop> {
        if self.batch.is_full() {
            self.hand_over()?;
        }
        Ok(&mut self.batch.bytes[self.batch.used..])
    }

    /// Says that `count` bytes were put into the beginning of [`room`](Self::room).
    pub(super) fn filled(&mut self, count: usize) {
        self.batch.used += count;
        if let Some(Step::Contents(before)) = self.batch.steps.last_mut() {
            *before += count;
        } else {
            self.batch.steps.push(Step::Contents(count));
        }
    }

    /// Hands over what is left.
    pub(super) fn finish(&mut self) -> Result<(), Stop> {
        self.hand_over()
    }

    fn push(&mut self, size: usize, step: Step) -> Result<(), Stop> {
        if self.batch.is_full() {
            self.hand_over()?;
        }
        self.batch.steps_size += STEP + size;
        self.batch.steps.push(step);
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), Stop> {
        let next = self.empty.try_recv().unwrap_or_else(|_| Batch::new());
        let full = std::mem::replace(&mut self.batch, next);
        self.send.send(full).map_err(|_| Stop::WriterLeft)
    }
}

/// The tree that grows. Folders are walked by their open descriptors, without following a link.
pub(super) struct Tree<'a> {
    path: &'a Path,
    root: OwnedFd,
    owner: Option<&'a Account>,
    /// The bits that the umask takes from a new file's mode.
    umask: u32,
    /// Room in memory is had page by page; to ask for it in advance costs a tenth more.
    on_disk: bool,
    /// The way to the folder that was last used.
    open: Vec<(OsString, OwnedFd)>,
    file: Option<(PathBuf, File)>,
    /// Folders whose mode is still to be set, for a read-only one could not be filled.
    modes: BTreeMap<PathBuf, u32>,
}

impl<'a> Tree<'a> {
    pub(super) fn open(path: &'a Path, owner: Option<&'a Account>) -> Result<Self, UnpackError> {
        let error = |source| UnpackError::Write { path: path.to_owned(), source };
        if path.read_dir().map_err(error)?.next().is_some() {
            return Err(UnpackError::NotEmpty { path: path.to_owned() });
        }
        let root = File::open(path).map_err(error)?.into();
        let on_disk = fstatfs(&root).map_or(true, |fs| fs.filesystem_type() != TMPFS_MAGIC);
        let owner = owner.filter(|_| geteuid().is_root());
        let (open, file, modes) = (Vec::new(), None, BTreeMap::new());
        Ok(Self { path, root, owner, umask: umask(), on_disk, open, file, modes })
    }

    /// Does what the batches say until the last one has come.
    pub(super) fn build(mut self, work: Work) -> Result<(), UnpackError> {
        // Dropped with us, so that the reader of a failed writer stops, too.
        let Work { batches, give_back } = work;
        for mut batch in batches {
            let mut from = 0;
            for step in batch.steps.drain(..) {
                self.take(step, &batch.bytes, &mut from)?;
            }
            (batch.used, batch.steps_size) = (0, 0);
            // The reader may be done and gone.
            let _ = give_back.send(batch);
        }
        self.file = None;
        self.set_folder_modes()
    }

    fn take(&mut self, step: Step, bytes: &[u8], from: &mut usize) -> Result<(), UnpackError> {
        let error =
            |root: &Path, path: &Path, source| UnpackError::Write { path: root.join(path), source };
        match step {
            Step::Contents(count) => {
                let part = &bytes[*from..*from + count];
                *from += count;
                match &mut self.file {
                    Some((path, file)) => {
                        file.write_all(part).map_err(|e| error(self.path, path, e))
                    }
                    None => Ok(()),
                }
            }
            Step::File { path, mode, size } => {
                let file = self.begin(&path, mode, size).map_err(|e| error(self.path, &path, e))?;
                self.file = Some((path, file));
                Ok(())
            }
            Step::Folder { path, mode } => {
                self.enter(&path).map(drop).map_err(|e| error(self.path, &path, e))?;
                self.modes.insert(path, mode & 0o777);
                Ok(())
            }
            Step::Link { path, target } => {
                self.link(&path, &target).map_err(|e| error(self.path, &path, e))
            }
        }
    }

    fn begin(&mut self, path: &Path, mode: u32, size: u64) -> io::Result<File> {
        let mode = mode & 0o777;
        let (owner, umask, on_disk) = (self.owner, self.umask, self.on_disk);
        let (folder, name) = self.parent(path)?;
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = File::from(openat(folder, name, flags, Mode::from_bits_truncate(mode))?);
        files::give_to(&file, owner)?;
        if mode & umask != 0 {
            file.set_permissions(PermissionsExt::from_mode(mode))?;
        }
        if on_disk && size >= LARGE {
            reserve(&file, size)?;
        }
        Ok(file)
    }

    fn link(&mut self, path: &Path, target: &Path) -> io::Result<()> {
        let owner = self.owner;
        let (folder, name) = self.parent(path)?;
        symlinkat(target, folder, name)?;
        if let Some(owner) = owner {
            let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
            fchownat(folder, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn parent<'p>(&mut self, path: &'p Path) -> io::Result<(&OwnedFd, &'p OsStr)> {
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let folder = self.enter(path.parent().unwrap_or_else(|| Path::new("")))?;
        Ok((folder, name))
    }

    /// The folder at `path`, made where it is missing. The way to the last one is reused as far as
    /// it is the same, which in an archive it mostly is.
    fn enter(&mut self, path: &Path) -> io::Result<&OwnedFd> {
        let same =
            self.open.iter().zip(path.iter()).take_while(|((name, _), part)| name == part).count();
        self.open.truncate(same);
        for part in path.iter().skip(same) {
            let here = self.open.last().map_or(&self.root, |(_, fd)| fd);
            let next = match open_folder(here, part) {
                Err(Errno::ENOENT) => {
                    mkdirat(here, part, Mode::from_bits_truncate(FOLDER))?;
                    let folder = File::from(open_folder(here, part)?);
                    files::give_to(&folder, self.owner)?;
                    folder.into()
                }
                other => other?,
            };
            self.open.push((part.to_owned(), next));
        }
        Ok(self.open.last().map_or(&self.root, |(_, fd)| fd))
    }

    /// The deepest first: an outer one may become one that we cannot enter.
    fn set_folder_modes(mut self) -> Result<(), UnpackError> {
        for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
            if mode == FOLDER & !self.umask {
                continue;
            }
            self.set_mode(&path, mode)
                .map_err(|source| UnpackError::Write { path: self.path.join(&path), source })?;
        }
        Ok(())
    }

    fn set_mode(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        let folder = File::from(self.enter(path)?.try_clone()?);
        folder.set_permissions(PermissionsExt::from_mode(mode))
    }
}

/// Takes the room for a file at once. Not every file system can; that the disk is full or the quota used
/// up is true all the same.
fn reserve(file: &File, size: u64) -> io::Result<()> {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    match fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(full @ (Errno::ENOSPC | Errno::EDQUOT)) => Err(full.into()),
        _ => Ok(()),
    }
}

fn open_folder(at: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Our umask, which can be asked for without changing it only here (proc(5)); where it cannot, every
/// mode is set once more.
fn umask() -> u32 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
            u32::from_str_radix(line.trim(), 8).ok()
        })
        .unwrap_or(0o777)
}
