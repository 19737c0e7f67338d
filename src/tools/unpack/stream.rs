//! A download's bytes on their way from the runtime to the thread that unpacks them.

use std::io::{self, Read};

use bytes::Bytes;
use tokio::sync::mpsc;

/// A pipe that holds at most `pieces` pieces.
pub fn byte_stream(pieces: usize) -> (ByteSender, ByteStream) {
    let (send, receive) = mpsc::channel(pieces.max(1));
    (ByteSender(send), ByteStream { receive, piece: Bytes::new(), ended: false })
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
    piece: Bytes,
    ended: bool,
}

impl Read for ByteStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.ended {
            match self.receive.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.piece = bytes,
                Some(Piece::Failed(error)) => return Err(error),
                Some(Piece::End) => self.ended = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let count = self.piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(mut stream: ByteStream) -> io::Result<Vec<u8>> {
        let read = tokio::task::spawn_blocking(move || {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).map(|_| all)
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
