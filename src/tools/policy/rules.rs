//! What is asked of the policy and what it answers: claims, limits, rules.

use std::path::PathBuf;

use tar::EntryType;

use crate::text;

/// The longest path and link target, in bytes (PATH_MAX), and the longest part of one (NAME_MAX).
pub(super) const PATH_MAX: usize = 4096;
pub(super) const NAME_MAX: usize = 255;
/// The deepest folder: each level costs the unpacker an open file.
pub(super) const DEPTH_MAX: usize = 100;

/// How much an archive may ask for. A real one (2.336) has 9,000 entries and 700 MB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub entries: usize,
    /// Unpacked.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { entries: 50_000, bytes: 8 << 30 }
    }
}

/// An entry as the archive's header tells it.
#[derive(Debug, Clone, Copy)]
pub struct Claim<'a> {
    pub path: &'a [u8],
    pub kind: EntryType,
    pub mode: u32,
    pub size: u64,
    pub target: Option<&'a [u8]>,
}

/// What to do for an admitted entry; paths are relative to the new tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    /// The tree's own root, or a header that describes no file.
    Nothing,
    Folder(PathBuf),
    File(PathBuf),
    Link {
        path: PathBuf,
        target: PathBuf,
    },
}

/// An entry that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("accept the archive's entry \"{entry}\": {rule}")]
pub struct Refusal {
    pub entry: String,
    pub rule: Rule,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    #[error("its path is absolute")]
    Absolute,
    #[error("its path climbs out with \"..\"")]
    Climbs,
    #[error("its path is empty")]
    NoPath,
    #[error("its name holds a NUL byte")]
    Nul,
    #[error("its path is longer than {PATH_MAX} bytes, or a part of it than {NAME_MAX}")]
    TooLong,
    #[error("it lies deeper than {DEPTH_MAX} folders")]
    TooDeep,
    #[error("its path leads through a symbolic link of the same archive")]
    ThroughLink,
    #[error("its path leads through something that is a file in the same archive")]
    ThroughFile,
    #[error("the archive holds it twice")]
    Twice,
    #[error("it is a hard link")]
    HardLink,
    #[error("it is a device or a named pipe")]
    Special,
    #[error("it is a sparse file")]
    Sparse,
    #[error("it is of a kind that a runner does not have (type {0:?})")]
    Unknown(char),
    #[error("it would be setuid or setgid (mode {0:o})")]
    SetId(u32),
    #[error("it is a link without a target")]
    NoTarget,
    #[error("it is a link to an absolute path")]
    LinkAbsolute,
    #[error("it is a link that leads out of the archive")]
    LinkOut,
    #[error("it is a link whose target climbs after it has descended")]
    LinkWinding,
    #[error("it is a folder or a link, and yet has contents")]
    Contents,
    #[error("its extended header is malformed, names a key twice, or sets a path or size for all")]
    Extension,
    #[error("its extended headers are larger than {0} bytes")]
    ExtensionSize(u64),
    #[error("with it the archive has more than {0} entries")]
    TooMany(usize),
    #[error("with it the archive unpacks to more than {0} bytes")]
    TooLarge(u64),
}

/// A refusal of `path`, which is made readable for it.
pub(crate) fn refusal(path: &[u8], rule: Rule) -> Refusal {
    let entry = text::readable(&path[..path.len().min(PATH_MAX)]);
    Refusal { entry: text::shorten(&text::one_line(&entry), 120), rule }
}
