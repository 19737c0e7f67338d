//! The checksum, in a thread of its own: it costs a sixth of what inflating does, and inflating is
//! what everything else waits for.

use std::sync::mpsc::{self, Receiver, SyncSender};

use bytes::Bytes;
use sha2::Digest;

use crate::tools::digest::Sha256;

/// Pieces on their way; they are the inflater's as well, so that most of them cost nothing.
const QUEUED: usize = 4;

/// Both ends of the way to the hashing thread.
pub(super) fn channel() -> (Hasher, HashWork) {
    let (send, pieces) = mpsc::sync_channel(QUEUED);
    (Hasher(send), HashWork(pieces))
}

/// Takes the bytes in order; dropped, it says that all have come.
pub(super) struct Hasher(SyncSender<Bytes>);

pub(super) struct HashWork(Receiver<Bytes>);

impl Hasher {
    pub(super) fn update(&self, bytes: Bytes) {
        // The other end lives until this one is dropped; if it panicked, its join tells.
        let _ = self.0.send(bytes);
    }
}

impl HashWork {
    /// Hashes until the last piece has come.
    pub(super) fn sum(self) -> Sha256 {
        let mut sum = sha2::Sha256::new();
        for piece in self.0 {
            sum.update(&piece);
        }
        Sha256::new(sum.finalize().into())
    }
}
