//! One status, on its own: what a script has to say.
//!
//! A boot knows what it has said before and leaves its statuses with the [`super::Reporter`]. A script is
//! a new process each time, so here every word stands alone: it is delivered, or the reason is returned.
//!
//! Two answers need reading. 401 to a first word may mean that GARM has not moved the instance on yet, so
//! it is believed only when it stays. And 401 to `idle` is no failure: GARM takes `idle` only after an
//! `installing`, so whoever says it has been known before; what has come since then is an earlier `idle`
//! whose reply was lost, or a job that was faster.

use tracing::warn;

use super::Refusal;
use super::api::{Garm, IdleOutcome, Status, policy};
use crate::host::os::Os;
use crate::http::retry::{self, Verdict};
use crate::http::{HttpError, Patience};

/// Why GARM has not taken a status.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    #[error(
        "tell GARM \"{status}\": it does not know this instance (any more), or its runner is up or \
         has failed already: {source}"
    )]
    Superseded { status: &'static str, source: HttpError },
    #[error("tell GARM \"{status}\": {source}")]
    Refused { status: &'static str, source: HttpError },
    #[error("tell GARM \"{status}\": {source}")]
    Unreachable { status: &'static str, source: HttpError },
}

impl NotTaken {
    fn of(status: &'static str, source: HttpError) -> Self {
        match source.status() {
            Some(401) => Self::Superseded { status, source },
            Some(_) if retry::verdict(&source) == Verdict::Final => {
                Self::Refused { status, source }
            }
            _ => Self::Unreachable { status, source },
        }
    }
}

impl Garm {
    /// Says `installing` or `failed`.
    pub async fn say(&self, status: &'static str, message: &str) -> Result<(), NotTaken> {
        let body = Status { status, message, agent_id: None };
        let said = self.past_401(status, || self.deliver(&body, self.patience())).await;
        said.map_err(|source| NotTaken::of(status, source))
    }

    /// Says `idle`.
    pub async fn say_idle(
        &self,
        message: &str,
        agent_id: Option<u64>,
    ) -> Result<IdleOutcome, NotTaken> {
        let said = self.deliver_idle(message, agent_id, self.patience()).await;
        match said {
            Ok(()) => Ok(IdleOutcome::Accepted),
            Err(error) if error.status() == Some(401) => Ok(IdleOutcome::Known),
            Err(source) => Err(NotTaken::of("idle", source)),
        }
    }

    /// Says what the system is.
    pub async fn say_system(&self, os: &Os, agent_id: Option<u64>) -> Result<(), NotTaken> {
        let post = || self.post_system_info(os, agent_id, self.patience());
        let said = self.past_401("system-info", post).await;
        said.map_err(|source| NotTaken::of("system-info", source))
    }

    /// Posts `status` until GARM has it, refuses it, or `patience` ends.
    pub(super) async fn deliver(
        &self,
        status: &Status<'_>,
        patience: &Patience,
    ) -> Result<(), HttpError> {
        retry::run(status.status, &policy(), patience, || self.attempt(status, patience)).await
    }

    /// Posts `idle`; without the agent id where GARM refuses it with one.
    pub(super) async fn deliver_idle(
        &self,
        message: &str,
        agent_id: Option<u64>,
        patience: &Patience,
    ) -> Result<(), HttpError> {
        let mut status = Status { status: "idle", message, agent_id };
        loop {
            match self.deliver(&status, patience).await {
                Err(error) if error.status() == Some(400) && status.agent_id.is_some() => {
                    warn!(
                        "GARM refused \"idle\" with this runner's agent id: {error}; saying it without"
                    );
                    status.agent_id = None;
                }
                result => return result,
            }
        }
    }

    /// One attempt, within `patience`.
    pub(super) async fn attempt(
        &self,
        status: &Status<'_>,
        patience: &Patience,
    ) -> Result<(), HttpError> {
        patience.bound(reqwest::Method::POST, &self.access().callback, self.status(status)).await
    }

    /// Does `post` again while the gate's 401 may be too early to believe.
    pub(super) async fn past_401<F>(
        &self,
        what: &str,
        post: impl Fn() -> F,
    ) -> Result<(), HttpError>
    where
        F: Future<Output = Result<(), HttpError>>,
    {
        Refusal::Gate.outlast(what, self.patience(), || true, post).await
    }
}
