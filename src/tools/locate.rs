//! Is there a usable runner on disk already?
//!
//! Owns: what "usable" means, and the words for why a runner is not. Must not: change anything, start
//! a program, or care whether the runner was configured before (that is a matter of its own).
//!
//! A tree that this program built says of itself whether it is whole ([`Marker`]). For one that came
//! with the image there is only its look: the files that every runner has are there, have contents,
//! and are for this machine (a cut-off unpacking or a failed self-update leaves empty ones behind).

use std::fmt::Display;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::place::{MARKER, Marker, PARTIAL};
use crate::host::elf::{self, Elf, Machine};
use crate::host::{files, os};

/// The program that listens for jobs, from the home.
pub const LISTENER: &str = "bin/Runner.Listener";

/// A usable runner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runner {
    pub home: PathBuf,
    /// From the marker, the Listener's own description, or the name of its folder.
    pub version: Option<String>,
    /// `None`: it came with the image.
    pub marker: Option<Marker>,
}

/// Where a usable runner was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    InHome(Runner),
    InAssets(Runner),
    /// Nowhere; why, for each folder that was looked at.
    Nothing(Vec<Unusable>),
}

/// Why a folder holds no usable runner; reads as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {why}", dir.display())]
pub struct Unusable {
    pub dir: PathBuf,
    pub why: Why,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    #[error("does not exist")]
    Missing,
    #[error("is not a folder")]
    NotAFolder,
    #[error("cannot be read: {0}")]
    Unreadable(String),
    #[error("is an empty folder")]
    Empty,
    #[error("was left half done by an earlier run")]
    HalfDone,
    #[error("has no {0}")]
    NoFile(&'static str),
    #[error("has an empty {0} (cut off while it was unpacked or updated)")]
    EmptyFile(&'static str),
    #[error("has a {0} that is not a regular file")]
    NotAFile(&'static str),
    #[error("has a {LISTENER} that is not executable")]
    NotExecutable,
    #[error("has a {LISTENER} that is neither a program nor a script")]
    NotAProgram,
    #[error("has a {LISTENER} that is damaged: {0}")]
    Damaged(String),
    #[error("holds an {found} runner on an {host} machine")]
    WrongMachine { found: Machine, host: Machine },
    #[error("was unpacked for {found} machines, as {MARKER} in it says; this one is {host}")]
    MarkedFor { found: String, host: &'static str },
    #[error("has a {LISTENER} that needs the dynamic loader {}, which is missing", .0.display())]
    NoLoader(PathBuf),
}

/// Every runner has these.
const NEEDED: [&str; 3] = [LISTENER, "config.sh", "run.sh"];
/// Most have these; one that is there must not be empty.
const KEY_FILES: [&str; 8] = [
    "env.sh",
    "run-helper.sh.template",
    "safe_sleep.sh",
    "bin/Runner.Listener.dll",
    "bin/Runner.Worker",
    "bin/installdependencies.sh",
    "bin/libcoreclr.so",
    "bin/runsvc.sh",
];

/// The home if it holds a usable runner, else the assets folder if that does.
pub fn find(home: &Path, assets: Option<&Path>) -> Found {
    let in_home = match inspect(home) {
        Ok(runner) => return Found::InHome(runner),
        Err(unusable) => unusable,
    };
    match assets.filter(|assets| !same(home, assets)).map(inspect) {
        Some(Ok(runner)) => Found::InAssets(runner),
        Some(Err(in_assets)) => Found::Nothing(vec![in_home, in_assets]),
        None => Found::Nothing(vec![in_home]),
    }
}

/// The runner in `dir`, if it is usable on this machine.
pub fn inspect(dir: &Path) -> Result<Runner, Unusable> {
    judge(dir).map_err(|why| Unusable { dir: dir.to_owned(), why })
}

/// Whether both paths lead to the same folder.
pub(crate) fn same(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

fn judge(dir: &Path) -> Result<Runner, Why> {
    let names = names(dir)?;
    if names.is_empty() {
        return Err(Why::Empty);
    }
    let marker = Marker::read(dir);
    let half_done = match &marker {
        Some(marker) => !marker.whole,
        None => names.iter().any(|name| name.contains(PARTIAL)),
    };
    if half_done {
        return Err(Why::HalfDone);
    }
    // A start script looks the same on every machine.
    if let Some(marker) = &marker
        && marker.architecture != os::forge_arch()
    {
        let found = marker.architecture.clone();
        return Err(Why::MarkedFor { found, host: os::forge_arch() });
    }
    for name in NEEDED {
        check(dir, name)?.ok_or(Why::NoFile(name))?;
    }
    for name in KEY_FILES {
        check(dir, name)?;
    }
    check_listener(&dir.join(LISTENER))?;
    let version = marker.as_ref().and_then(|m| m.version.clone());
    let version = version.or_else(|| described_version(dir)).or_else(|| version_of_link(dir));
    Ok(Runner { home: dir.to_owned(), version, marker })
}

fn names(dir: &Path) -> Result<Vec<String>, Why> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Why::Missing,
        io::ErrorKind::NotADirectory => Why::NotAFolder,
        _ => Why::Unreadable(error.to_string()),
    };
    let entries = fs::read_dir(dir).map_err(unreadable)?;
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned()).map_err(unreadable)
    };
    entries.map(name).collect()
}

/// The file's metadata, links followed (a self-update makes `bin` a link to `bin.2.336.0`); `None`
/// where it is not there.
fn check(dir: &Path, name: &'static str) -> Result<Option<Metadata>, Why> {
    match fs::metadata(dir.join(name)) {
        Ok(meta) if !meta.is_file() => Err(Why::NotAFile(name)),
        Ok(meta) if meta.len() == 0 => Err(Why::EmptyFile(name)),
        Ok(meta) => Ok(Some(meta)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(Why::Unreadable(format!("{name}: {error}"))),
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn check_listener(path: &Path) -> Result<(), Why> {
    let unreadable = |error: &dyn Display| Why::Unreadable(format!("{LISTENER}: {error}"));
    let meta = fs::metadata(path).map_err(|e| unreadable(&e))?;
    if meta.permissions().mode() & 0o111 == 0 {
        return Err(Why::NotExecutable);
    }
    match elf::read(path) {
        Ok(Some(elf)) => check_machine(&elf),
        Ok(None) if is_script(path).map_err(|e| unreadable(&e))? => Ok(()),
        Ok(None) => Err(Why::NotAProgram),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Why::Damaged(error.to_string()))
        }
        Err(error) => Err(unreadable(&error)),
    }
}

fn check_machine(elf: &Elf) -> Result<(), Why> {
    let host = elf::machine_of_host();
    if elf.machine != host {
        return Err(Why::WrongMachine { found: elf.machine, host });
    }
    match elf.missing_loader() {
        Some(loader) => Err(Why::NoLoader(loader.to_owned())),
        None => Ok(()),
    }
}

fn is_script(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(fs::File::open(path)?, 2), &mut start)?;
    Ok(start == b"#!")
}

/// The version in the description that .NET keeps beside a program: the library entry
/// `Runner.Listener/2.336.0`.
fn described_version(dir: &Path) -> Option<String> {
    let text = files::read_plain(&dir.join("bin/Runner.Listener.deps.json")).ok()?;
    let json: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let libraries = json.get("libraries")?.as_object()?;
    let version = libraries.keys().find_map(|key| key.strip_prefix("Runner.Listener/"))?;
    is_version(version).then(|| version.to_owned())
}

/// The version in the name of the folder that `bin` is a link to.
fn version_of_link(dir: &Path) -> Option<String> {
    let target = fs::read_link(dir.join("bin")).ok()?;
    let version = target.file_name()?.to_str()?.strip_prefix("bin.")?;
    is_version(version).then(|| version.to_owned())
}

fn is_version(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('.') && text.len() < 40
}

#[cfg(test)]
pub(crate) mod tests;
