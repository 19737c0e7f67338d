//! Which files of the image need no copy, because a hard link is as good.
//!
//! Theory of operation. A file that nobody will write is shared: one call in the place of seven, no bytes, no
//! room on the disk. The folders are always the home's own and belong to the runner's account, so that a
//! self-update of the runner, which renames and deletes, changes the home alone. What is shared stays its
//! root's, with its mode. So it must be of use to the runner's account as it is (readable, and executable
//! where it is a program) and out of everybody's reach: root's own, and not to be written by others. In the top
//! folder nothing is shared, for there the runner and its scripts write (`.env`, `.path`, `run-helper.sh`).
//!
//! A job that becomes root could write into the image's folder through the link. So files are shared only by a
//! runner that has one job, after which its machine goes; a folder that a second boot may use is copied from.
//!
//! Must not: change an owner or a mode, or insist. A link that cannot be made (another file system, too many
//! links, a kernel that forbids it) is a copy.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::sys::statfs::{OVERLAYFS_SUPER_MAGIC, statfs};
use nix::unistd::geteuid;

use super::Order;
use crate::host::files;
use crate::tools::locate::LISTENER;

/// The name of the file with which is tried what can be shared.
const TRIAL: &str = ".garm-bootstrap.trial";
const ROOT: u32 = 0;
const SET_ID: u32 = 0o6000;
/// By anyone but the owner: of what group, and by what list of access rights, does not matter.
const OTHERS_WRITE: u32 = 0o022;

/// What may be shared between the two folders.
#[derive(Debug)]
pub(super) struct Sharing {
    possible: bool,
}

impl Sharing {
    /// Between the image's folder and the one that grows.
    pub(super) fn between(image: &Path, growing: &Path, order: &Order<'_>) -> Self {
        let possible = order.once
            && geteuid().is_root()
            && !order.user.is_root()
            // A link there copies the file up first, so that a copy alone is cheaper.
            && statfs(growing).is_ok_and(|fs| fs.filesystem_type() != OVERLAYFS_SUPER_MAGIC)
            && !shares_blocks(image, growing)
            && takes_links(image, growing);
        Self { possible }
    }

    /// Whether the file at `path`, from the image's folder, will do as it is.
    pub(super) fn takes(&self, path: &Path, meta: &Metadata) -> bool {
        self.possible && path.components().count() > 1 && is_of_use_and_safe(meta)
    }
}

fn is_of_use_and_safe(meta: &Metadata) -> bool {
    let mode = meta.mode();
    // By group and others alike, for which of the two the account is does not matter then.
    let readable = mode & 0o044 == 0o044;
    let runnable = mode & 0o011 == 0o011 || mode & 0o111 == 0;
    readable && runnable && mode & (OTHERS_WRITE | SET_ID) == 0 && meta.uid() == ROOT
}

/// Whether the file system gives a copy the blocks of its original.
fn shares_blocks(image: &Path, growing: &Path) -> bool {
    tried(growing, |trial| {
        let original = File::open(image.join(LISTENER))?;
        let copy = OpenOptions::new().write(true).create_new(true).mode(0o600).open(trial)?;
        files::share_blocks(&original, &copy)
    })
}

/// Whether a link can lead from one folder to the other: not across mounts, though the disk be the same.
fn takes_links(image: &Path, growing: &Path) -> bool {
    tried(growing, |trial| fs::hard_link(image.join(LISTENER), trial))
}

/// Whether `attempt` could make the file that it is given.
fn tried(growing: &Path, attempt: impl FnOnce(&Path) -> io::Result<()>) -> bool {
    let trial = growing.join(TRIAL);
    let made = attempt(&trial).is_ok();
    let _ = fs::remove_file(&trial);
    made
}
