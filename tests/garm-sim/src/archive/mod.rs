//! The runner archive: what it holds, how it is packed, and the script of the fake runner in it.
//!
//! Made at test time and never committed. It owns no server: [`crate::Sim`] serves the bytes.

pub(crate) mod build;
pub mod elf;
mod journal;
mod layout;
mod script;

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha256};

pub use journal::{RunnerStart, runner_runs, runner_starts};
pub use script::RunnerScript;

/// What the archive is to be like.
#[derive(Clone, Debug)]
pub struct ArchiveSpec {
    /// How much is in it.
    pub size: ArchiveSize,
    /// The runner's version.
    pub version: String,
    /// What the fake runner does.
    pub script: RunnerScript,
    /// What stands at `bin/Runner.Listener`.
    pub listener: ListenerFile,
    /// Libraries that `bin/libcoreclr.so` needs (`DT_NEEDED`), for dependency checks.
    pub needs: Vec<String>,
    /// A folder that everything lies in (the real archive has none).
    pub top_folder: Option<String>,
    /// Paths of the normal layout to leave out.
    pub without: Vec<String>,
    /// Put into the archive as they are, after everything else.
    pub extra_entries: Vec<ExtraEntry>,
    /// A folder where the packed file is kept and found again; a large one is worth it.
    pub cache: Option<PathBuf>,
}

impl Default for ArchiveSpec {
    fn default() -> Self {
        Self {
            size: ArchiveSize::Small,
            version: "2.999.0".into(),
            script: RunnerScript::default(),
            listener: ListenerFile::Fake,
            needs: Vec::new(),
            top_folder: None,
            without: Vec::new(),
            extra_entries: Vec::new(),
            cache: None,
        }
    }
}

impl ArchiveSpec {
    /// The default archive with that script.
    #[must_use]
    pub fn scripted(script: RunnerScript) -> Self {
        Self { script, ..Self::default() }
    }
}

/// How much is in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveSize {
    /// A few dozen files, under 3 MB.
    Small,
    /// About 160 MB packed, 460 MB and 8,000 files unpacked.
    Large,
}

/// What stands at `bin/Runner.Listener`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerFile {
    /// The fake Listener.
    Fake,
    /// The fake Listener with another machine in its ELF header (arm64 on x64 and the reverse).
    ForeignArch,
    /// An executable whose dynamic loader does not exist.
    MissingLoader,
    /// No bytes.
    Empty,
    /// The fake Listener without the executable bits.
    NotExecutable,
    /// These bytes, mode 0755.
    Bytes(Vec<u8>),
}

/// An entry with nothing checked: for archives that must be refused, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraEntry {
    /// The name as it stands in the header, up to 100 bytes.
    pub path: String,
    /// The permission bits, setuid and all.
    pub mode: u32,
    /// What it is.
    pub kind: EntryKind,
}

/// What an [`ExtraEntry`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A file with that content.
    File(Vec<u8>),
    /// A folder.
    Folder,
    /// A symbolic link to that target.
    Symlink(String),
    /// A hard link to that path.
    Hardlink(String),
    /// A character device.
    CharDevice(u32, u32),
    /// A block device.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// These bytes instead of a header and content (whole 512-byte blocks; the path is unused).
    Raw(Vec<u8>),
}

impl ExtraEntry {
    /// A file with mode 0644.
    pub fn file(path: &str, content: &[u8]) -> Self {
        Self::new(path, 0o644, EntryKind::File(content.to_vec()))
    }

    /// A symbolic link.
    pub fn symlink(path: &str, target: &str) -> Self {
        Self::new(path, 0o777, EntryKind::Symlink(target.into()))
    }

    /// Any entry.
    pub fn new(path: &str, mode: u32, kind: EntryKind) -> Self {
        Self { path: path.into(), mode, kind }
    }
}

/// A packed archive.
#[derive(Clone, Debug)]
pub struct Built {
    /// The tar.gz.
    pub bytes: Bytes,
    /// Its SHA-256, lower case.
    pub sha256: String,
    /// The runner's version.
    pub version: String,
}

/// Packs an archive, or finds it in the spec's cache.
pub fn build(spec: &ArchiveSpec) -> io::Result<Built> {
    build::build(spec)
}

/// Unpacks a trusted archive (one of ours) into `home`.
pub fn unpack(packed: &[u8], home: &Path) -> io::Result<()> {
    std::fs::create_dir_all(home)?;
    let mut archive = tar::Archive::new(GzDecoder::new(packed));
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(false);
    archive.unpack(home)
}

/// Writes the tree of an archive straight into `home`: a runner that an image brings.
pub fn write_tree(spec: &ArchiveSpec, home: &Path) -> io::Result<()> {
    unpack(&build(spec)?.bytes, home)
}

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
