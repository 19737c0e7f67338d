//! The runner on disk: found, fetched, unpacked, copied, and given the libraries that it needs.
//!
//! Owns: everything between a stream of compressed bytes and a whole runner in its home.
//! Must not: know GARM, a phase of the boot or a running Listener. Invariants: what an archive asks
//! for passes [`policy`] before it touches the disk; a tree grows in a [`place::Staging`] folder and
//! becomes the home only when it is whole; a home without a proof of that is looked at closely by
//! [`locate`].
//!
//! Everything here blocks, and belongs on the blocking pool, but for [`dependencies::Installer::install`].

pub mod copy;
pub mod dependencies;
pub mod digest;
pub mod download;
pub mod locate;
pub mod place;
pub mod policy;
pub mod unpack;

use std::io;

use nix::errno::Errno;

/// Runs `work` on the blocking pool; a panic in it is the caller's own.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Why the disk refused, in words that lead to what a person can do.
pub(crate) fn disk_trouble(error: &io::Error) -> String {
    let hint = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOSPC) => {
            "the disk is full: free some space or give the instance a larger one"
        }
        Some(Errno::EDQUOT) => "the user's disk quota is used up: raise it or free some space",
        Some(Errno::EROFS) => {
            "the file system is read-only: choose another home or mount it writable"
        }
        Some(Errno::EACCES | Errno::EPERM) => {
            "permission denied: run as root, or give the folder to the user that runs this"
        }
        Some(Errno::EMFILE | Errno::ENFILE) => "too many open files: raise the limit (nofile)",
        _ => return error.to_string(),
    };
    hint.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_on_the_blocking_pool_is_a_panic_of_whoever_waits() {
        let work = tokio::spawn(blocking(|| panic!("provoked in the unpacker")));
        let panic = work.await.unwrap_err().into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"provoked in the unpacker"));
    }
}
