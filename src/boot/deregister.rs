//! The registration of a runner that never had a job is taken back at the forge.
//!
//! Only after GARM has heard of the end: a boot that could not tell it leaves the registration to the next
//! start of this instance, which gets no other token. Never where the forge says that the registration is
//! gone, or somebody else has its session: then it is not ours any more.
//!
//! A service manager keeps the token for another agent, in memory and as long as the runner has no job. Elsewhere a
//! crash loses it, and removing the registration is left to GARM: on a disk a job could read it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Boot, kept, start};
use crate::exit::Exit;
use crate::forge::Dialect;
use crate::forge::github::configure::TOKEN_LIFE;
use crate::forge::github::remove::remove;
use crate::secret::Secret;
use crate::state::Instance;
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

impl Registered {
    /// With a token that an earlier boot of `instance` has left with the service manager.
    pub(super) fn left(kept: &mut BTreeMap<String, OwnedFd>, instance: &Instance) -> Self {
        let token = kept.remove(&token_name(instance)).and_then(kept::from_memory);
        token.map_or(Self::No, |(token, at)| Self::With { token, at })
    }
}

fn token_name(instance: &Instance) -> String {
    format!("token-{}", instance.digest())
}

impl Boot {
    /// Where the service manager keeps the token.
    fn registered_name(&self) -> String {
        token_name(&self.instance)
    }

    pub(super) fn is_registered_with(&self, token: Secret, at: Instant) {
        if self.service.keeps() {
            match kept::in_memory(&token, at) {
                Ok(fd) => self.service.keep(&self.registered_name(), fd.as_fd()),
                Err(error) => debug!("the token is not kept for another agent: {error}"),
            }
        }
        self.registered.replace(Registered::With { token, at });
    }

    /// The registration is used, not ours, or to be removed now: its token is to be found nowhere any more.
    pub(super) fn take_registered(&self) -> Registered {
        if self.service.keeps() {
            self.service.forget(&self.registered_name());
        }
        self.registered.take()
    }

    /// A registration that a job has used is the forge's to remove; one that it does not know, or that
    /// somebody else uses, is nobody's here.
    pub(super) fn note_end(&self, end: &End) {
        if end.job.is_some() || end.exit() == Exit::RegistrationGone {
            self.take_registered();
        }
    }

    /// Does it once, if the runner is registered still. Another signal ends it.
    pub(super) async fn deregister(&self) {
        let registered = self.take_registered();
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
