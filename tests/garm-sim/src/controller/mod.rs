//! GARM's own state: instances, their tokens, states and messages.
//!
//! It owns every rule that does not depend on HTTP: which token is good, which move of a runner's
//! state is legal, what is handed out once. It does not know sockets, faults or records; those who
//! change it ring the record's bell afterwards, never while its lock is held.

pub(crate) mod bootstrap;
pub(crate) mod instance;
pub(crate) mod jit;
pub(crate) mod messages;
pub(crate) mod token;
pub(crate) mod tools;
pub(crate) mod transitions;

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::api::errors::ApiError;
use crate::archive::{Built, build};
use crate::options::{InstanceSpec, SimOptions};
use crate::urls::Urls;
use instance::InstanceState;
use messages::{EventType, Message};
use token::Claims;

/// The controller.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) options: SimOptions,
    pub(crate) urls: Urls,
    pub(crate) uuid: String,
    /// PEM of the CA that signed GARM's own certificate.
    pub(crate) ca_pem: Option<String>,
    secret: String,
    archive: OnceLock<Built>,
    instances: Mutex<Vec<InstanceState>>,
}

/// What a callback to `status` says.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatusUpdate {
    pub(crate) status: String,
    pub(crate) message: String,
    pub(crate) agent_id: i64,
}

/// What a callback to `system-info` says.
#[derive(Clone, Debug, Default)]
pub(crate) struct SystemInfoUpdate {
    pub(crate) os_name: String,
    pub(crate) os_version: String,
    pub(crate) agent_id: Option<i64>,
}

impl Controller {
    pub(crate) fn new(options: SimOptions, urls: Urls, ca_pem: Option<String>) -> Self {
        Self {
            options,
            urls,
            uuid: token::uuid(),
            ca_pem,
            secret: format!("sim-jwt-secret-{}", token::uuid()),
            archive: OnceLock::new(),
            instances: Mutex::default(),
        }
    }

    /// The runner archive, made at its first use.
    pub(crate) fn archive(&self) -> &Built {
        self.archive.get_or_init(|| {
            let mut spec = self.options.archive.clone();
            if self.options.forge_tls {
                // The fake Listener speaks no TLS; otherwise it derives this from `.runner`.
                spec.script = spec.script.events_url(&self.urls.events);
            }
            build::build(&spec).expect("the archive is made in memory or in a writable folder")
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<InstanceState>> {
        self.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes the newest instance of that name, a deleted one included.
    pub(crate) fn with<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut InstanceState) -> T,
    ) -> Option<T> {
        let mut instances = self.lock();
        let found = instances.iter_mut().rev().find(|one| one.name == name)?;
        Some(change(found))
    }

    pub(crate) fn create(&self, spec: InstanceSpec) -> String {
        let mut instances = self.lock();
        let ordinal = instances.len() + 1;
        let mut one = InstanceState::new(spec, ordinal, &self.urls);
        one.token = self.instance_token(&one);
        one.secrets.push(one.token.clone());
        let name = one.name.clone();
        instances.push(one);
        name
    }

    fn instance_token(&self, one: &InstanceState) -> String {
        let claims = Claims {
            id: one.id.clone(),
            name: one.name.clone(),
            provider_id: if one.spec.scale_set { String::new() } else { one.pool_id.clone() },
            scope: one.spec.entity.scope().into(),
            entity: one.spec.entity.label(),
            create_attempt: one.create_attempt,
            forge_type: one.spec.forge.word().into(),
            is_agent: false,
            iss: "garm".into(),
            exp: Some(token::unix_now().saturating_add(seconds(one.spec.token_ttl))),
            nbf: None,
        };
        self.sign(&claims)
    }

    /// Signs any claims with this controller's secret.
    pub(crate) fn sign(&self, claims: &impl serde::Serialize) -> String {
        token::sign(claims, &self.secret)
    }

    /// The instance that a token was made for, whether or not it is still accepted.
    pub(crate) fn owner_of(&self, bearer: &str) -> Option<String> {
        token::verify(bearer, &self.secret).map(|claims| claims.name)
    }

    /// GARM's instance middleware: the instance's name, or nothing for a 401.
    pub(crate) fn authenticate(&self, header: Option<&str>) -> Option<String> {
        let mut words = header?.split(' ');
        let (_scheme, bearer) = (words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        let claims = token::verify(bearer, &self.secret)?;
        if !claims.is_current() || claims.is_agent {
            return None;
        }
        let accepted = self.with(&claims.name, |one| {
            !one.deleted
                && matches!(one.runner_status.as_str(), "pending" | "installing")
                && claims.create_attempt == one.create_attempt
                && matches!(one.status.as_str(), "creating" | "running")
        })?;
        accepted.then_some(claims.name)
    }

    /// A callback to `status`. The message is kept even when the move is refused.
    pub(crate) fn update_status(
        &self,
        name: &str,
        update: StatusUpdate,
        at: Duration,
    ) -> Result<(), ApiError> {
        let wrap = "error updating runner agent ID: error updating instance: ";
        self.with(name, |one| {
            let checked = one
                .check_agent_id(update.agent_id)
                .and_then(|()| one.check_move(&update.status))
                .map_err(|text| ApiError::BadRequest(format!("{wrap}{text}")));
            one.add_message(Message {
                at,
                event: EventType::Status,
                message: update.message,
                status: Some(update.status.clone()).filter(|status| !status.is_empty()),
                accepted: checked.is_ok(),
                id: token::random_id(),
            });
            checked?;
            one.adopt_agent_id(update.agent_id);
            if !update.status.is_empty() {
                one.runner_status = update.status;
            }
            one.updated += 1;
            Ok(())
        })
        .unwrap_or(Err(ApiError::AuthenticationFailed))
    }

    /// A callback to `system-info`.
    pub(crate) fn update_system_info(
        &self,
        name: &str,
        update: SystemInfoUpdate,
    ) -> Result<(), ApiError> {
        let wrap = "error updating runner system info: error updating instance: ";
        let SystemInfoUpdate { os_name, os_version, agent_id } = update;
        if os_name.is_empty() && os_version.is_empty() && agent_id.is_none() {
            return Ok(());
        }
        self.with(name, |one| {
            let agent_id = agent_id.unwrap_or(0);
            one.check_agent_id(agent_id)
                .map_err(|text| ApiError::BadRequest(format!("{wrap}{text}")))?;
            one.adopt_agent_id(agent_id);
            if !os_name.is_empty() {
                one.os_name = os_name;
            }
            if !os_version.is_empty() {
                one.os_version = os_version;
            }
            one.updated += 1;
            Ok(())
        })
        .unwrap_or(Err(ApiError::AuthenticationFailed))
    }

    /// Hands the registration token out, once per create attempt.
    pub(crate) fn take_registration_token(
        &self,
        name: &str,
        at: Duration,
    ) -> Result<String, ApiError> {
        self.with(name, |one| {
            if one.token_fetched || one.jit.is_some() || one.spec.scale_set {
                return Err(ApiError::NotAuthorized);
            }
            one.token_fetched = true;
            one.add_message(Message {
                at,
                event: EventType::FetchToken,
                message: "runner registration token was retrieved".into(),
                status: None,
                accepted: true,
                id: token::random_id(),
            });
            Ok(one.registration_token.clone())
        })
        .unwrap_or(Err(ApiError::AuthenticationFailed))
    }

    /// GARM tries again to create the instance: new token, state back to the start.
    pub(crate) fn requeue(&self, name: &str) -> Option<String> {
        self.with(name, |one| {
            one.create_attempt += 1;
            one.runner_status = "pending".into();
            one.status.clone_from(&one.spec.status);
            one.token_fetched = false;
            one.new_registration_token();
            one.token = self.instance_token(one);
            one.secrets.push(one.token.clone());
            one.token.clone()
        })
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}
