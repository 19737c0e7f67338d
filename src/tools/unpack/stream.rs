//! A download's bytes on their way from the runtime to the thread that unpacks them.

use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;

/// Where an archive's bytes come from. Nobody copies them on their way: inflater and hasher look at the
/// same ones.
pub trait Pieces {
    /// The next bytes, as many as are there; none when all have come.
    fn next(&mut self) -> io::Result<Bytes>;
}

/// Bytes that are all there; they come in pieces all the same, so that the hasher works beside.
impl Pieces for &[u8] {
    fn next(&mut self) -> io::Result<Bytes> {
        const PIECE: usize = 128 << 10;
        let (piece, rest) = self.split_at(self.len().min(PIECE));
        *self = rest;
        Ok(Bytes::copy_from_slice(piece))
    }
}

/// A pipe that holds at most `pieces` pieces.
pub fn byte_stream(pieces: usize) -> (ByteSender, ByteStream) {
    let (send, receive) = mpsc::channel(pieces.max(1));
    (ByteSender(send), ByteStream { receive, ended: false })
}

/// The asynchronous end. Dropped without [`finish`](Self::finish), it leaves a stream that broke off.
#[derive(Debug)]
pub struct ByteSender(mpsc::Sender<Piece>);

/// The reader is gone: it has failed, and its error is the one to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("hand on the archive's bytes: nobody reads them any more")]
pub struct Closed;

#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    Failed(io::Error),
    End,
}

impl ByteSender {
    /// Waits until there is room.
    pub async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        self.0.send(Piece::Bytes(bytes)).await.map_err(|_| Closed)
    }

    /// Says that all bytes have come.
    pub async fn finish(self) -> Result<(), Closed> {
        self.0.send(Piece::End).await.map_err(|_| Closed)
    }

    /// Says why no more bytes come.
    pub async fn fail(self, error: io::Error) -> Result<(), Closed> {
        self.0.send(Piece::Failed(error)).await.map_err(|_| Closed)
    }
}

/// The blocking end; must not be read on a thread of the runtime.
#[derive(Debug)]
pub struct ByteStream {
    receive: mpsc::Receiver<Piece>,
    ended: bool,
}

impl Pieces for ByteStream {
    fn next(&mut self) -> io::Result<Bytes> {
        while !self.ended {
            match self.receive.blocking_recv() {
                Some(Piece::Bytes(bytes)) if bytes.is_empty() => {}
                Some(Piece::Bytes(bytes)) => return Ok(bytes),
                Some(Piece::Failed(error)) => return Err(error),
                Some(Piece::End) => self.ended = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(Bytes::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(mut stream: ByteStream) -> io::Result<Vec<u8>> {
        let read = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            loop {
                match stream.next()? {
                    piece if piece.is_empty() => return Ok(all),
                    piece => all.extend_from_slice(&piece),
                }
            }
        });
        read.await.unwrap()
    }

    #[tokio::test]
    async fn pieces_arrive_in_order_and_the_end_mark_ends_them() {
        let (sender, stream) = byte_stream(1);
        let read = tokio::spawn(read_all(stream));
        for piece in [&b"one "[..], b"", b"two"] {
            sender.send(Bytes::from_static(piece)).await.unwrap();
        }
        sender.finish().await.unwrap();
        assert_eq!(read.await.unwrap().unwrap(), b"one two");
    }

    #[tokio::test]
    async fn a_sender_that_is_dropped_leaves_a_stream_that_broke_off() {
        let (sender, stream) = byte_stream(4);
        sender.send(Bytes::from_static(b"half")).await.unwrap();
        drop(sender);
        let error = read_all(stream).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_failure_arrives_as_it_was() {
        let (sender, stream) = byte_stream(4);
        sender.fail(io::Error::other("reset by peer")).await.unwrap();
        assert_eq!(read_all(stream).await.unwrap_err().to_string(), "reset by peer");
    }

    #[tokio::test]
    async fn a_reader_that_left_is_noticed() {
        let (sender, stream) = byte_stream(4);
        drop(stream);
        assert_eq!(sender.send(Bytes::from_static(b"x")).await, Err(Closed));
    }
}
