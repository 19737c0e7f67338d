//! The registration of a runner that never had a job is taken back at the forge.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Boot, start};
use crate::forge::Dialect;
use crate::forge::github::remove::remove;

/// How long it may take; and when we were asked to leave, for no platform waits for ever.
const LIMIT: Duration = Duration::from_secs(20);
const LIMIT_WHEN_STOPPED: Duration = Duration::from_secs(10);

impl Boot {
    /// Does it once, if this boot has registered the runner and the forge has not taken the registration
    /// back by itself. Another signal ends it.
    pub(super) async fn deregister(&self) {
        let Some(token) = self.registered_with.take() else { return };
        if !Dialect::GitHub.is_registered(&self.config.home) {
            return;
        }
        let stopped = self.signals.count() > 0;
        let limit = if stopped { LIMIT_WHEN_STOPPED } else { LIMIT };
        let place = start::place(&self.config, &self.defaults.borrow());
        let cancel = CancellationToken::new();
        let removal = remove(&place, &token, limit, &cancel);
        let hurry = self.signals.more_than(self.signals.count().max(u32::from(stopped)));
        tokio::pin!(removal);
        let removed = tokio::select! {
            removed = &mut removal => removed,
            _ = hurry => {
                cancel.cancel();
                removal.await
            }
        };
        match removed {
            Ok(()) => info!("the runner had no job; its registration is removed"),
            Err(error) => warn!("failed to {error}; GARM will remove it"),
        }
    }
}
