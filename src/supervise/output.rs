//! The runner's two pipes, read as lines.
//!
//! They are read at any rate until their end, whatever the bytes: a runner whose pipe is full stands
//! still. A line has at most [`LONGEST`] bytes; what is beyond is dropped, not kept in memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Child;

use crate::secret;

const LONGEST: usize = 64 * 1024;
const CHUNK: usize = 32 * 1024;

/// Which of the two a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Stdout,
    Stderr,
}

pub(super) struct Output {
    stdout: Pipe<Receiver>,
    stderr: Pipe<Receiver>,
}

/// Lines that have come, to be taken with [`Lines::for_each`].
pub(super) struct Lines<'a> {
    pub(super) source: Source,
    /// Empty at the pipe's end.
    chunk: &'a [u8],
    cutter: &'a mut Cutter,
}

impl Output {
    pub(super) fn of(child: &mut Child) -> Self {
        // A pipe that cannot be read is one at its end.
        let out = child.stdout.take().and_then(|out| out.into_owned_fd().ok());
        let err = child.stderr.take().and_then(|err| err.into_owned_fd().ok());
        let pipe = |fd: Option<OwnedFd>| fd.and_then(|fd| Receiver::from_owned_fd(fd).ok());
        Self { stdout: Pipe::new(pipe(out)), stderr: Pipe::new(pipe(err)) }
    }

    /// The read ends of somebody else's child.
    pub(super) fn from_fds(stdout: OwnedFd, stderr: OwnedFd) -> io::Result<Self> {
        let pipe = |fd| Receiver::from_owned_fd(fd).map(Some).map(Pipe::new);
        Ok(Self { stdout: pipe(stdout)?, stderr: pipe(stderr)? })
    }

    /// Both read ends, where they are open.
    pub(super) fn fds(&self) -> (Option<BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        (self.stdout.from.as_ref().map(AsFd::as_fd), self.stderr.from.as_ref().map(AsFd::as_fd))
    }

    /// The next lines of either pipe; `None` when both are at their end. Nothing is lost if the future
    /// is dropped.
    pub(super) async fn next(&mut self) -> Option<Lines<'_>> {
        let Self { stdout, stderr } = self;
        let (source, count) = tokio::select! {
            count = stdout.read(), if stdout.is_open() => (Source::Stdout, count),
            count = stderr.read(), if stderr.is_open() => (Source::Stderr, count),
            else => return None,
        };
        Some(match source {
            Source::Stdout => stdout.lines(source, count),
            Source::Stderr => stderr.lines(source, count),
        })
    }
}

impl Lines<'_> {
    /// Calls `take` with each line that is complete now, without its line end.
    pub(super) fn for_each(self, take: impl FnMut(&[u8])) {
        if self.chunk.is_empty() {
            self.cutter.finish(take);
        } else {
            self.cutter.push(self.chunk, take);
        }
    }
}

struct Pipe<R> {
    from: Option<R>,
    buffer: Box<[u8]>,
    cutter: Cutter,
}

impl<R: AsyncRead + Unpin> Pipe<R> {
    fn new(from: Option<R>) -> Self {
        Self { from, buffer: vec![0; CHUNK].into(), cutter: Cutter::default() }
    }

    fn is_open(&self) -> bool {
        self.from.is_some()
    }

    /// How many bytes have come; 0 at the end, and the pipe is closed then.
    async fn read(&mut self) -> usize {
        let Some(from) = &mut self.from else { return 0 };
        let count = from.read(&mut self.buffer).await.unwrap_or(0);
        if count == 0 {
            self.from = None;
        }
        count
    }

    fn lines(&mut self, source: Source, count: usize) -> Lines<'_> {
        Lines { source, chunk: &self.buffer[..count], cutter: &mut self.cutter }
    }
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub struct Cutter {
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
}

impl Cutter {
    /// Calls `take` with each line that these bytes complete, without its line end.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) =
                piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            if ends && self.begun.is_empty() {
                take(text);
                continue;
            }
            let room = LONGEST - self.begun.len();
            self.begun.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                self.take_begun(&mut take);
            }
        }
    }

    /// The line that has begun is over.
    fn take_begun(&mut self, take: &mut impl FnMut(&[u8])) {
        let whole = self.begun.len() < LONGEST;
        take(if whole { &self.begun } else { secret::before_cut(&self.begun) });
        self.begun.clear();
    }

    /// The stream has ended: what has begun is the last line.
    pub fn finish(&mut self, mut take: impl FnMut(&[u8])) {
        if !self.begun.is_empty() {
            self.take_begun(&mut take);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut cutter, mut lines) = (Cutter::default(), Vec::new());
        for chunk in chunks {
            cutter.push(chunk, |line| lines.push(line.to_vec()));
        }
        cutter.finish(|line| lines.push(line.to_vec()));
        lines
    }

    #[test]
    fn a_line_without_an_end_is_cut_and_not_buffered() {
        let flood = vec![b'x'; LONGEST];
        let lines = cut(&[&flood, &flood, &flood, b"\nnext\n"]);
        assert_eq!(lines, [vec![b'x'; LONGEST], b"next".to_vec()]);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_arrive(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200),
            at in 0usize..200,
        ) {
            let (one, two) = bytes.split_at(at.min(bytes.len()));
            let expected: Vec<Vec<u8>> = bytes
                .split_inclusive(|b| *b == b'\n')
                .map(|line| line.strip_suffix(b"\n").unwrap_or(line).to_vec())
                .collect();
            prop_assert_eq!(cut(&[one, two]), expected);
        }
    }
}
