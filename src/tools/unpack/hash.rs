//! The checksum, in a thread of its own: it costs a sixth of what inflating does, and inflating is
//! what everything else waits for.

use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use sha2::Digest;

use crate::tools::digest::Sha256;

/// Pieces on their way; each is as large as the reads of the input are (128 kB).
const QUEUED: usize = 4;

/// Both ends of the way to the hashing thread.
pub(super) fn channel() -> (Hasher, HashWork) {
    let (send, pieces) = mpsc::sync_channel(QUEUED);
    let (give_back, empty) = mpsc::channel();
    (Hasher { send, empty }, HashWork { pieces, give_back })
}

/// Takes the bytes in order; dropped, it says that all have come.
pub(super) struct Hasher {
    send: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
}

pub(super) struct HashWork {
    pieces: Receiver<Vec<u8>>,
    give_back: Sender<Vec<u8>>,
}

impl Hasher {
    pub(super) fn update(&self, bytes: &[u8]) {
        let mut piece = self.empty.try_recv().unwrap_or_default();
        piece.clear();
        piece.extend_from_slice(bytes);
        // The other end lives until this one is dropped; if it panicked, its join tells.
        let _ = self.send.send(piece);
    }
}

impl HashWork {
    /// Hashes until the last piece has come.
    pub(super) fn sum(self) -> Sha256 {
        let mut sum = sha2::Sha256::new();
        for piece in &self.pieces {
            sum.update(&piece);
            let _ = self.give_back.send(piece);
        }
        Sha256::new(sum.finalize().into())
    }
}
