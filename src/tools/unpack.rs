//! From compressed bytes to a tree of files, in one pass and with little memory.
//!
//! Theory of operation. Inflating takes most of the time, and nothing can be done about that; so a
//! thread does it (and the cheap judging of entries) and as little else as can be:
//!
//! ```text
//!  calling thread:  bytes ─┬→ inflate → tar → policy ─┐
//!  hashing thread:         └→ sha256                  │ batches of 512 kB, eight at most
//!  writing thread:  mkdir, open, write, chown, link ←─┘
//! ```
//!
//! Invariants:
//! - nothing is inflated that does not begin as gzip does; what came instead is said;
//! - every entry passes [`Policy`] before the writer hears of it;
//! - the checksum is of all bytes up to the end of the input, those behind the archive included;
//! - the caller gets `Ok` only when the tree is whole, every gzip trailer and the checksum are right.
//!   After an error the folder holds anything: its owner ([`super::place::Staging`]) empties it.
//!
//! Must not: make a file's parent out of anything but a folder that it made itself, sync a file
//! (a tree that a crash tore is found out by its missing marker), or set times, which no runner needs.

mod hash;
mod input;
mod stream;
mod writer;

use std::cell::Cell;
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

pub use self::stream::{ByteSender, ByteStream, Closed, Pieces, byte_stream};

use self::input::{Allowance, Members, Source};
use self::writer::{Sink, Tree};
use super::digest::Sha256;
use super::disk_trouble;
use super::policy::{self, Admitted, Claim, Limits, Policy, Refusal, Rule};
use crate::host::users::Account;

/// So much of the beginning is looked at, to say what came if it is no archive.
const BEGINNING: u64 = 512;
/// The most that may stand between the contents of two entries: headers, long names, PAX records.
const HEADERS_MAX: u64 = 1 << 20;

/// How to unpack.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// `None`: the caller has said aloud that there is none.
    pub expected: Option<Sha256>,
    /// Who gets the files; only root can give them away.
    pub owner: Option<&'a Account>,
    pub limits: Limits,
    /// Looked at before each piece of the input. A wait for the next one is not ended: whoever
    /// feeds a [`ByteStream`] has to drop its sender as well.
    pub cancel: &'a CancellationToken,
}

/// What was unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unpacked {
    /// Regular files and links.
    pub files: u64,
    pub bytes: u64,
    pub compressed_bytes: u64,
    /// Of all compressed bytes.
    pub sha256: Sha256,
}

#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("unpack the runner: told to stop")]
    Cancelled,
    /// The bytes stopped coming; worth another attempt.
    #[error("read the archive after {compressed_bytes} bytes: {source}")]
    Input { compressed_bytes: u64, source: io::Error },
    #[error("unpack the runner: not a gzip archive, but {came}")]
    NotGzip { came: String },
    /// Worth another attempt, as a short body is.
    #[error("unpack the runner: the archive breaks off after {compressed_bytes} bytes")]
    Truncated { compressed_bytes: u64 },
    #[error("unpack the runner: the archive is damaged near byte {compressed_bytes}: {source}")]
    Corrupt { compressed_bytes: u64, source: io::Error },
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(
        "verify the archive: its sha256 is {found}, but {expected} was announced \
         ({compressed_bytes} bytes)"
    )]
    Checksum { expected: Sha256, found: Sha256, compressed_bytes: u64 },
    #[error("unpack into {}: {}", path.display(), disk_trouble(source))]
    Write { path: PathBuf, source: io::Error },
    #[error("unpack the runner: no thread could be started: {source}")]
    Threads { source: io::Error },
    #[error("unpack into {}: the folder is not empty", path.display())]
    NotEmpty { path: PathBuf },
}

/// The bytes that an archive of `compressed` bytes will take on disk, about: a real
/// runner's 150 to 220 MB become 450 to 700 MB.
pub fn expected_bytes(compressed: u64) -> u64 {
    compressed.saturating_mul(3)
}

/// Unpacks all of `input` into the empty folder `into`.
pub fn unpack(input: impl Pieces, into: &Path, order: &Order<'_>) -> Result<Unpacked, UnpackError> {
    let tree = Tree::open(into, order.owner)?;
    let (hasher, to_hash) = hash::channel();
    let (mut sink, to_write) = writer::channel();
    let mut source = Source::new(input, hasher, order.cancel);
    std::thread::scope(|scope| {
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let no_thread = |source| UnpackError::Threads { source };
        let hashing = thread("hash").spawn_scoped(scope, || to_hash.sum()).map_err(no_thread)?;
        let writing =
            thread("write").spawn_scoped(scope, || tree.build(to_write)).map_err(no_thread)?;
        let read = read_archive(&mut source, order.limits, &mut sink);
        let read = read.and_then(|counts| sink.finish().map(|()| counts));
        // Without this the writer would wait for more.
        drop(sink);
        let (files, bytes) = match (read, join(writing)) {
            // A writer that left its end of the channel has told why.
            (Err(Stop::Failed(error)), _) | (_, Err(error)) => return Err(error),
            (Err(Stop::Broken(error)), Ok(())) => return Err(source.explain(error)),
            (Err(Stop::WriterLeft), Ok(())) => return Err(UnpackError::Cancelled),
            (Ok(counts), Ok(())) => counts,
        };
        let compressed_bytes = source.count();
        // As above, for the hasher.
        drop(source);
        let found = join(hashing);
        match order.expected {
            Some(expected) if expected != found => {
                Err(UnpackError::Checksum { expected, found, compressed_bytes })
            }
            _ => Ok(Unpacked { files, bytes, compressed_bytes, sha256: found }),
        }
    })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Why reading ended before the archive did.
enum Stop {
    Failed(UnpackError),
    /// Reading or inflating failed; [`Source::explain`] knows which.
    Broken(io::Error),
    /// The writer thread has an error to tell.
    WriterLeft,
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Failed(UnpackError::Refused(refusal))
    }
}

/// Reads the archive and hands its entries to `sink`, then reads the input to its end; the number of
/// files and of their bytes.
fn read_archive<P: Pieces>(
    source: &mut Source<'_, P>,
    limits: Limits,
    sink: &mut Sink,
) -> Result<(u64, u64), Stop> {
    let mut beginning = Vec::new();
    source.take(BEGINNING).read_to_end(&mut beginning).map_err(Stop::Broken)?;
    if let Some(came) = input::not_gzip(&beginning) {
        return Err(Stop::Failed(UnpackError::NotGzip { came }));
    }
    let mut packed = io::Cursor::new(beginning).chain(source);
    let allowed = Cell::new(HEADERS_MAX);
    let counts = {
        let inflated = Allowance::new(Members::new(&mut packed), &allowed);
        let mut archive = tar::Archive::new(inflated);
        let counts = read_entries(&mut archive, &allowed, limits, sink)?;
        // The padding behind the last entry, so that the gzip trailer is checked.
        allowed.set(limits.bytes);
        io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(Stop::Broken)?;
        counts
    };
    // Whatever follows belongs to the checksum.
    loop {
        let rest = packed.fill_buf().map_err(Stop::Broken)?.len();
        if rest == 0 {
            return Ok(counts);
        }
        packed.consume(rest);
    }
}

fn read_entries<R: Read>(
    archive: &mut tar::Archive<R>,
    allowed: &Cell<u64>,
    limits: Limits,
    sink: &mut Sink,
) -> Result<(u64, u64), Stop> {
    let mut policy = Policy::new(limits);
    let (mut files, mut bytes) = (0, 0);
    let mut last = PathBuf::new();
    let mut entries = archive.entries().map_err(Stop::Broken)?;
    loop {
        // What tar reads between two contents it may keep in memory.
        allowed.set(HEADERS_MAX);
        let mut entry = match entries.next() {
            None => return Ok((files, bytes)),
            Some(Err(_)) if allowed.get() == 0 => {
                let after = [b"(after) ", last.as_os_str().as_bytes()].concat();
                return Err(policy::refusal(&after, Rule::ExtensionSize(HEADERS_MAX)).into());
            }
            Some(entry) => entry.map_err(Stop::Broken)?,
        };
        let (size, mode) = (entry.size(), entry.header().mode().map_err(Stop::Broken)?);
        match admit(&mut policy, &mut entry, size, mode)? {
            Admitted::Nothing => {}
            Admitted::Folder(path) => sink.folder(path, mode)?,
            Admitted::Link { path, target } => {
                files += 1;
                sink.link(path, target)?;
            }
            Admitted::File(path) => {
                files += 1;
                last.clone_from(&path);
                sink.file(path, mode, size)?;
                allowed.set(u64::MAX);
                bytes += copy_contents(&mut entry, size, &last, &mut policy, sink)?;
            }
        }
    }
}

fn admit<R: Read>(
    policy: &mut Policy,
    entry: &mut tar::Entry<'_, R>,
    size: u64,
    mode: u32,
) -> Result<Admitted, Stop> {
    let path = entry.path_bytes().into_owned();
    let kind = entry.header().entry_type();
    let target = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
    let global = kind.is_pax_global_extensions();
    if let Some(records) = entry.pax_extensions().map_err(Stop::Broken)? {
        let keys = records.map(|record| record.ok().map(|r| r.key_bytes()));
        Policy::admit_extensions(&path, keys, global)?;
    }
    let claim = Claim { path: &path, kind, mode, size, target: target.as_deref() };
    Ok(policy.admit(&claim)?)
}

/// Hands the contents on, straight from the inflater into the batch; the number of bytes.
fn copy_contents<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    size: u64,
    path: &Path,
    policy: &mut Policy,
    sink: &mut Sink,
) -> Result<u64, Stop> {
    let mut left = size;
    while left > 0 {
        let room = sink.room()?;
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(room.len());
        let count = entry.read(&mut room[..most]).map_err(Stop::Broken)?;
        if count == 0 {
            return Err(Stop::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
        sink.filled(count);
        policy.count(path, count as u64)?;
        left -= count as u64;
    }
    Ok(size)
}

#[cfg(test)]
pub(super) mod tests;
