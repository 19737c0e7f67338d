//! The compressed side: counted, handed to the hasher, told to stop, recognised, inflated.

use std::cell::Cell;
use std::io::{self, BufRead, Read};

use bytes::{Buf as _, Bytes};
use flate2::bufread::GzDecoder;
use tokio_util::sync::CancellationToken;

use super::hash::Hasher;
use super::{Pieces, UnpackError};
use crate::text;

/// The input itself. It remembers why it failed, for inflater and tar wrap errors in their own.
pub(super) struct Source<'a, P> {
    input: P,
    cancel: &'a CancellationToken,
    hasher: Hasher,
    /// What is left of the piece that came last.
    piece: Bytes,
    /// How many bytes were taken.
    count: u64,
    failed: Option<UnpackError>,
    at_end: bool,
}

impl<'a, P: Pieces> Source<'a, P> {
    pub(super) fn new(input: P, hasher: Hasher, cancel: &'a CancellationToken) -> Self {
        let (piece, count, failed, at_end) = (Bytes::new(), 0, None, false);
        Self { input, cancel, hasher, piece, count, failed, at_end }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    fn next_piece(&mut self) -> io::Result<()> {
        if self.cancel.is_cancelled() {
            self.failed = Some(UnpackError::Cancelled);
            return Err(io::Error::other("told to stop"));
        }
        match self.input.next() {
            Ok(piece) => {
                self.at_end = piece.is_empty();
                self.hasher.update(piece.clone());
                self.piece = piece;
                Ok(())
            }
            Err(source) => {
                let kind = source.kind();
                let compressed_bytes = self.count;
                self.failed = Some(UnpackError::Input { compressed_bytes, source });
                Err(kind.into())
            }
        }
    }

    /// What `error`, met while reading through us, really is.
    pub(super) fn explain(self, error: io::Error) -> UnpackError {
        let compressed_bytes = self.count;
        match self.failed {
            Some(own) => own,
            // Inflater and tar both run dry only when the input has ended before they have.
            None if self.at_end && ran_dry(&error) => UnpackError::Truncated { compressed_bytes },
            None => UnpackError::Corrupt { compressed_bytes, source: error },
        }
    }
}

/// tar's words for an end in its middle have the kind `Other`.
fn ran_dry(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
        || ["failed to read entire block", "unexpected EOF during skip"]
            .iter()
            .any(|words| error.to_string().contains(words))
}

impl<P: Pieces> BufRead for Source<'_, P> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.piece.is_empty() && !self.at_end {
            self.next_piece()?;
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, count: usize) {
        self.piece.advance(count);
        self.count += count as u64;
    }
}

impl<P: Pieces> Read for Source<'_, P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

/// gzip members, one behind the other; bytes behind the last that are no member are left alone, as
/// gzip leaves them.
pub(super) struct Members<R> {
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    pub(super) fn new(packed: R) -> Self {
        Self { member: Some(GzDecoder::new(packed)) }
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let count = member.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let Some(mut packed) = self.member.take().map(GzDecoder::into_inner) else { break };
            if packed.fill_buf()?.starts_with(&GZIP[..1]) {
                self.member = Some(GzDecoder::new(packed));
            }
        }
        Ok(0)
    }
}

/// Lets so many bytes through as its owner allows at the time; at 0 it fails.
pub(super) struct Allowance<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
}

impl<'a, R> Allowance<'a, R> {
    pub(super) fn new(inner: R, left: &'a Cell<u64>) -> Self {
        Self { inner, left }
    }
}

impl<R: Read> Read for Allowance<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 && !buffer.is_empty() {
            return Err(io::Error::other("more bytes than an archive may hold in this place"));
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.inner.read(&mut buffer[..most])?;
        self.left.set(left - count as u64);
        Ok(count)
    }
}

const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// What the bytes are, where they are not the beginning of a gzip stream.
pub(super) fn not_gzip(beginning: &[u8]) -> Option<String> {
    if beginning.starts_with(&GZIP) {
        return None;
    }
    let known: [(&[u8], &str); 6] = [
        (b"\x7fELF", "a program (ELF)"),
        (b"\xfd7zXZ\0", "an xz archive"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x28\xb5\x2f\xfd", "a zstd archive"),
        (b"BZh", "a bzip2 archive"),
        (b"\x1f\x8b", "a gzip stream that is cut off or of an unknown method"),
    ];
    if let Some((_, name)) = known.iter().find(|(magic, _)| beginning.starts_with(magic)) {
        return Some((*name).to_owned());
    }
    if beginning.is_empty() {
        return Some("nothing at all (0 bytes)".to_owned());
    }
    let printable = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    if !beginning.iter().all(printable) {
        let hex: Vec<String> = beginning.iter().take(8).map(|b| format!("{b:02x}")).collect();
        return Some(format!("unknown bytes (they begin with {})", hex.join(" ")));
    }
    let words = text::one_line(&text::readable(beginning));
    let lower = words.to_lowercase();
    if ["<!doctype html", "<html", "<head", "<body"].iter().any(|tag| lower.contains(tag)) {
        let title = lower.find("<title>").map(|at| at + "<title>".len());
        let title = title.and_then(|at| words.get(at..)?.split('<').next());
        let shown = title.filter(|t| !t.trim().is_empty()).unwrap_or(&words);
        return Some(format!("an HTML page: \"{}\"", text::shorten(shown.trim(), 100)));
    }
    Some(format!("text: \"{}\"", text::shorten(&words, 160)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_instead_of_an_archive_is_named() {
        let table: [(&[u8], &str); 8] = [
            (b"", "nothing at all (0 bytes)"),
            (b"Not Found", "text: \"Not Found\""),
            (
                b"{\"message\":\"Bad\n credentials\"}\n",
                "text: \"{\"message\":\"Bad | credentials\"}\"",
            ),
            (
                b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title>",
                "an HTML page: \"502 Bad Gateway\"",
            ),
            (b"<html>hello", "an HTML page: \"<html>hello\""),
            (b"\x7fELF\x02\x01\x01", "a program (ELF)"),
            (b"\x1f\x8b", "a gzip stream that is cut off or of an unknown method"),
            (b"\0\x01\x02", "unknown bytes (they begin with 00 01 02)"),
        ];
        for (bytes, name) in table {
            assert_eq!(not_gzip(bytes).as_deref(), Some(name));
        }
        assert_eq!(not_gzip(b"\x1f\x8b\x08\0"), None);
    }
}
