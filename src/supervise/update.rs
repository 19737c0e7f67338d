//! The runner's update of itself, seen from outside.
//!
//! It ends with code 3 or 4 and leaves an updater behind in its process group, which swaps `bin` and
//! then writes [`MARKER`] into the home. Files are looked at every [`LOOK`] here: inotify instances are
//! counted per user and often used up in containers, and an update takes seconds.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

const MARKER: &str = "update.finished";
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// Removes the marker: an old one, which an image may hold, would be taken for the end of the next
/// update.
pub(super) fn forget(home: &Path) {
    if let Err(error) = std::fs::remove_file(home.join(MARKER))
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!("failed to remove {} from {}: {error}", MARKER, home.display());
    }
}

/// Returns when the update is done and the program can be started. The caller sets the limit.
pub(super) async fn finished(home: &Path, program: &Path) {
    while !home.join(MARKER).exists() {
        sleep(LOOK).await;
    }
    forget(home);
    // `bin` is a link that is swapped, and is missing in between.
    while !program.exists() {
        sleep(LOOK).await;
    }
}
