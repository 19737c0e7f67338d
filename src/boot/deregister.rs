//! The registration of a runner that never had a job is taken back at the forge.
//!
//! Only after GARM has heard of the end: a boot that could not tell it leaves the registration to the next
//! start of this instance, which gets no other token. Never where the forge says that the registration is
//! gone, or somebody else has its session: then it is not ours any more.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Boot, start};
use crate::exit::Exit;
use crate::forge::Dialect;
use crate::forge::github::configure::TOKEN_LIFE;
use crate::forge::github::remove::remove;
use crate::secret::Secret;
use crate::supervise::End;

/// How long it may take; and when we were asked to leave, for no platform waits for ever.
const LIMIT: Duration = Duration::from_secs(20);
const LIMIT_WHEN_STOPPED: Duration = Duration::from_secs(10);

/// How this boot could take its registration back.
#[derive(Debug, Default)]
pub(super) enum Registered {
    /// It has none, or it is not ours to take back.
    #[default]
    No,
    /// With this token, which was fetched then.
    With { token: Secret, at: Instant },
    /// An earlier boot has done it, and its token is gone.
    Before,
}

impl Boot {
    /// A registration that a job has used is the forge's to remove; one that it does not know, or that
    /// somebody else uses, is nobody's here.
    pub(super) fn note_end(&self, end: &End) {
        if end.job.is_some() || end.exit() == Exit::RegistrationGone {
            self.registered.take();
        }
    }

    /// Does it once, if the runner is registered still. Another signal ends it.
    pub(super) async fn deregister(&self) {
        let registered = self.registered.take();
        if !Dialect::GitHub.is_registered(&self.config.home) {
            return;
        }
        let token = match registered {
            Registered::No => return,
            Registered::With { token, at } if at.elapsed() < TOKEN_LIFE => token,
            Registered::With { .. } | Registered::Before => {
                info!(
                    "the runner had no job; GARM will remove its registration: the token is gone"
                );
                return;
            }
        };
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
