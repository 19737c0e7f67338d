//! What an archive may hold: the rules that every entry passes before it touches the disk.
//!
//! Owns: the judgement, entry by entry, and the memory of what came before. Must not: read or write
//! a file. Invariants, whatever the archive says:
//! - a path that was admitted is relative, has no `..`, and goes through folders of this very archive
//!   only (never through a link or a file of it);
//! - a link that was admitted leads to a place inside: it climbs first and descends then, so what
//!   the link is resolved to is what its text says, whatever other links lie on the way;
//! - the same path is admitted twice only as a folder;
//! - memory is bounded by [`Limits::entries`], folders that are only implied by a path included.
//!
//! Where readers of archives disagree (a key twice in a PAX header, sparse files), the archive is
//! refused rather than read in one of the ways (CVE-2025-62518, CVE-2026-33055).

mod rules;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tar::EntryType;

pub(crate) use self::rules::refusal;
pub use self::rules::{Admitted, Claim, Limits, Refusal, Rule};

use self::rules::{DEPTH_MAX, NAME_MAX, PATH_MAX};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
    Link,
}

/// What was admitted under a name.
#[derive(Debug, Clone, Copy)]
enum Node {
    /// Its index in [`Policy::folders`].
    Folder(usize),
    File,
    Link,
}

/// The judge of one archive; it is told of every entry in order.
#[derive(Debug)]
pub struct Policy {
    limits: Limits,
    /// What lies in each folder, by name; index 0 is the root. So a path of many parts costs no more
    /// than its parts, and to look one up takes no copy of it.
    folders: Vec<HashMap<OsString, Node>>,
    /// How many there are in all folders.
    nodes: usize,
    entries: usize,
    declared: u64,
    written: u64,
}

impl Policy {
    pub fn new(limits: Limits) -> Self {
        let folders = vec![HashMap::new()];
        Self { limits, folders, nodes: 0, entries: 0, declared: 0, written: 0 }
    }

    /// Judges the next entry.
    pub fn admit(&mut self, claim: &Claim<'_>) -> Result<Admitted, Refusal> {
        self.judge(claim).map_err(|rule| refusal(claim.path, rule))
    }

    /// Judges the keys of an entry's extended header: `None` stands for a record that could not be
    /// read. `global`: the header is for all entries that follow.
    pub fn admit_extensions<'k>(
        entry: &[u8],
        keys: impl Iterator<Item = Option<&'k [u8]>>,
        global: bool,
    ) -> Result<(), Refusal> {
        let refuse = |rule| Err(refusal(entry, rule));
        let mut seen = Vec::new();
        for key in keys {
            match key {
                None => return refuse(Rule::Extension),
                Some(key) if key.starts_with(b"GNU.sparse.") => return refuse(Rule::Sparse),
                Some(key @ (b"path" | b"linkpath" | b"size")) => {
                    if global || seen.contains(&key) {
                        return refuse(Rule::Extension);
                    }
                    seen.push(key);
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Notes that `bytes` of the contents of `path` came out of the archive, whatever it declared.
    pub fn count(&mut self, path: &Path, bytes: u64) -> Result<(), Refusal> {
        self.written = self.written.saturating_add(bytes);
        if self.written > self.limits.bytes {
            return Err(refusal(path.as_os_str().as_bytes(), Rule::TooLarge(self.limits.bytes)));
        }
        Ok(())
    }

    fn judge(&mut self, claim: &Claim<'_>) -> Result<Admitted, Rule> {
        self.entries += 1;
        if self.entries > self.limits.entries {
            return Err(Rule::TooMany(self.limits.entries));
        }
        let kind = match claim.kind {
            EntryType::XGlobalHeader => return Ok(Admitted::Nothing),
            EntryType::Directory => Kind::Folder,
            EntryType::Regular => Kind::File,
            EntryType::Symlink => Kind::Link,
            EntryType::Link => return Err(Rule::HardLink),
            EntryType::Char | EntryType::Block | EntryType::Fifo => return Err(Rule::Special),
            EntryType::GNUSparse => return Err(Rule::Sparse),
            other => return Err(Rule::Unknown(char::from(other.as_byte()))),
        };
        let parts = parts(claim.path)?;
        // The mode of a symbolic link means nothing.
        if kind != Kind::Link && claim.mode & 0o6000 != 0 {
            return Err(Rule::SetId(claim.mode & 0o7777));
        }
        self.declared = self.declared.saturating_add(claim.size);
        if self.declared > self.limits.bytes {
            return Err(Rule::TooLarge(self.limits.bytes));
        }
        if kind != Kind::File && claim.size != 0 {
            return Err(Rule::Contents);
        }
        let Some((name, above)) = parts.split_last() else {
            return if kind == Kind::Folder { Ok(Admitted::Nothing) } else { Err(Rule::NoPath) };
        };
        if kind == Kind::File && claim.path.ends_with(b"/") {
            return Err(Rule::NoPath);
        }
        let target = match kind {
            Kind::Link => Some(target(claim.target.unwrap_or_default(), above.len())?),
            _ => None,
        };
        let mut folder = 0;
        for part in above {
            folder = self.enter(folder, part)?;
        }
        self.place(folder, name, kind)?;
        let mut path = PathBuf::with_capacity(claim.path.len());
        path.extend(&parts);
        Ok(match (kind, target) {
            (Kind::Link, Some(target)) => Admitted::Link { path, target },
            (Kind::Folder, _) => Admitted::Folder(path),
            _ => Admitted::File(path),
        })
    }

    /// The folder `name` in `folder`; one that only this path implies is noted, too.
    fn enter(&mut self, folder: usize, name: &OsStr) -> Result<usize, Rule> {
        match self.folders[folder].get(name) {
            None => self.add_folder(folder, name),
            Some(Node::Folder(inner)) => Ok(*inner),
            Some(Node::File) => Err(Rule::ThroughFile),
            Some(Node::Link) => Err(Rule::ThroughLink),
        }
    }

    fn place(&mut self, folder: usize, name: &OsStr, kind: Kind) -> Result<(), Rule> {
        match (self.folders[folder].get(name), kind) {
            (None, Kind::Folder) => self.add_folder(folder, name).map(drop),
            (None, Kind::File) => self.add(folder, name, Node::File),
            (None, Kind::Link) => self.add(folder, name, Node::Link),
            (Some(Node::Folder(_)), Kind::Folder) => Ok(()),
            (Some(_), _) => Err(Rule::Twice),
        }
    }

    fn add_folder(&mut self, folder: usize, name: &OsStr) -> Result<usize, Rule> {
        let inner = self.folders.len();
        self.add(folder, name, Node::Folder(inner))?;
        self.folders.push(HashMap::new());
        Ok(inner)
    }

    fn add(&mut self, folder: usize, name: &OsStr, node: Node) -> Result<(), Rule> {
        if self.nodes >= self.limits.entries {
            return Err(Rule::TooMany(self.limits.entries));
        }
        self.nodes += 1;
        self.folders[folder].insert(name.to_owned(), node);
        Ok(())
    }
}

/// The parts of an entry's path; none for the root itself (`./`).
fn parts(path: &[u8]) -> Result<Vec<&OsStr>, Rule> {
    if path.is_empty() {
        return Err(Rule::NoPath);
    }
    check_bytes(path)?;
    if path.starts_with(b"/") {
        return Err(Rule::Absolute);
    }
    let parts: Vec<&OsStr> = path
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(OsStr::from_bytes)
        .collect();
    if parts.iter().any(|part| *part == "..") {
        return Err(Rule::Climbs);
    }
    if parts.len() > DEPTH_MAX {
        return Err(Rule::TooDeep);
    }
    Ok(parts)
}

/// A link's target, when the link lies `depth` folders below the root.
fn target(target: &[u8], depth: usize) -> Result<PathBuf, Rule> {
    if target.is_empty() {
        return Err(Rule::NoTarget);
    }
    check_bytes(target)?;
    if target.starts_with(b"/") {
        return Err(Rule::LinkAbsolute);
    }
    let mut climbed = 0;
    let mut descended = false;
    for part in target.split(|byte| *byte == b'/').filter(|p| !p.is_empty() && *p != b".") {
        if part != b".." {
            descended = true;
        } else if descended {
            return Err(Rule::LinkWinding);
        } else {
            climbed += 1;
        }
    }
    if climbed > depth {
        return Err(Rule::LinkOut);
    }
    Ok(PathBuf::from(OsStr::from_bytes(target)))
}

fn check_bytes(path: &[u8]) -> Result<(), Rule> {
    if path.contains(&0) {
        return Err(Rule::Nul);
    }
    let long_part = path.split(|byte| *byte == b'/').any(|part| part.len() > NAME_MAX);
    if path.len() >= PATH_MAX || long_part {
        return Err(Rule::TooLong);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
