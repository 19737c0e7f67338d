//! The handle of one instance.

use std::sync::Arc;
use std::time::Duration;

use crate::controller::instance::InstanceState;
use crate::controller::messages::{Message, pruned};
use crate::server::Shared;

/// An instance of the simulated controller: what it was given, and what GARM knows of it.
#[derive(Clone, Debug)]
pub struct Instance {
    shared: Arc<Shared>,
    name: String,
}

/// What the instance told of its system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemInfo {
    /// The system's name.
    pub os_name: String,
    /// The system's version.
    pub os_version: String,
}

impl Instance {
    pub(crate) fn new(shared: Arc<Shared>, name: String) -> Self {
        Self { shared, name }
    }

    fn with<T>(&self, read: impl FnOnce(&mut InstanceState) -> T) -> T {
        let found = self.shared.controller.with(&self.name, read);
        found.expect("handles are made for instances that were created, and records are kept")
    }

    /// Its name, the runner's too.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The instance token of the current create attempt.
    pub fn token(&self) -> String {
        self.with(|one| one.token.clone())
    }

    /// `METADATA_URL`, `CALLBACK_URL` and `BEARER_TOKEN`.
    pub fn env(&self) -> Vec<(String, String)> {
        let urls = &self.shared.controller.urls;
        vec![
            ("METADATA_URL".into(), urls.metadata()),
            ("CALLBACK_URL".into(), urls.callback()),
            ("BEARER_TOKEN".into(), self.token()),
        ]
    }

    /// What GARM gives the provider on standard input.
    pub fn bootstrap_json(&self) -> String {
        let controller = &self.shared.controller;
        self.with(|one| controller.bootstrap(one)).to_string()
    }

    /// Every value that must not be seen anywhere: tokens (all attempts'), key material.
    pub fn secrets(&self) -> Vec<String> {
        self.with(|one| one.secrets.clone())
    }

    /// A JIT file's bytes by its name with the dot (`.runner`), for comparison.
    pub fn jit_file(&self, name: &str) -> Option<String> {
        self.with(|one| one.jit.as_ref()?.file(name).map(str::to_owned))
    }

    /// The registration token of a non-JIT instance, without taking it.
    pub fn registration_token(&self) -> String {
        self.with(|one| one.registration_token.clone())
    }

    /// The runner's state.
    pub fn runner_status(&self) -> String {
        self.with(|one| one.runner_status.clone())
    }

    /// The machine's state.
    pub fn status(&self) -> String {
        self.with(|one| one.status.clone())
    }

    /// Every status row in order, also those that GARM would have lost.
    pub fn messages(&self) -> Vec<Message> {
        self.with(|one| one.messages().to_vec())
    }

    /// The rows that a real GARM would still have (30, pruned by random id).
    pub fn messages_as_garm_keeps_them(&self) -> Vec<Message> {
        self.with(|one| pruned(one.messages()))
    }

    /// The agent id; 0 while unknown.
    pub fn agent_id(&self) -> i64 {
        self.with(|one| one.agent_id)
    }

    /// What it told of its system.
    pub fn system_info(&self) -> SystemInfo {
        self.with(|one| SystemInfo {
            os_name: one.os_name.clone(),
            os_version: one.os_version.clone(),
        })
    }

    /// How many callbacks were accepted (each would refresh `updated_at`).
    pub fn accepted_callbacks(&self) -> u64 {
        self.with(|one| one.updated)
    }

    /// Forces the runner's state, as a webhook does.
    pub fn set_runner_status(&self, status: &str) {
        self.with(|one| status.clone_into(&mut one.runner_status));
        self.shared.record.ring();
    }

    /// Forces the machine's state: `creating`, `running`, `error`, `pending_delete`, …
    pub fn set_status(&self, status: &str) {
        self.with(|one| status.clone_into(&mut one.status));
        self.shared.record.ring();
    }

    /// GARM creates the instance again: the old token dies. Gives the new one.
    pub fn requeue(&self) -> String {
        let token = self.shared.controller.requeue(&self.name);
        self.shared.record.ring();
        token.unwrap_or_default()
    }

    /// GARM forgets the instance: its token is refused. The handle keeps working.
    pub fn delete(&self) {
        self.with(|one| one.deleted = true);
        self.shared.record.ring();
    }

    /// Waits for the runner's state; false when it was not reached within `limit`.
    pub fn wait_for_runner_status(&self, status: &str, limit: Duration) -> bool {
        let found =
            self.shared.record.wait(limit, |_| (self.runner_status() == status).then_some(()));
        found.is_some()
    }
}
