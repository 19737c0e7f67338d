//! One instance's state and the rules that concern it alone.

use super::jit::JitFiles;
use super::messages::Message;
use super::{token, transitions};
use crate::options::InstanceSpec;
use crate::urls::Urls;

/// What GARM knows of an instance.
#[derive(Debug)]
pub(crate) struct InstanceState {
    pub(crate) spec: InstanceSpec,
    pub(crate) name: String,
    pub(crate) id: String,
    pub(crate) pool_id: String,
    pub(crate) status: String,
    pub(crate) runner_status: String,
    pub(crate) create_attempt: i64,
    pub(crate) token: String,
    /// 0 while unknown.
    pub(crate) agent_id: i64,
    pub(crate) token_fetched: bool,
    pub(crate) registration_token: String,
    pub(crate) jit: Option<JitFiles>,
    pub(crate) os_name: String,
    pub(crate) os_version: String,
    /// Accepted callbacks: what would have refreshed `updated_at`.
    pub(crate) updated: u64,
    pub(crate) deleted: bool,
    /// Every value that must never be seen in a log, an argument list or a job's environment.
    pub(crate) secrets: Vec<String>,
    messages: Vec<Message>,
}

/// The agent ids that GARM got from the forge for JIT instances start here.
const FIRST_JIT_AGENT_ID: i64 = 4200;

impl InstanceState {
    pub(crate) fn new(spec: InstanceSpec, ordinal: usize, urls: &Urls) -> Self {
        let name = if spec.name.is_empty() {
            format!("sim-runner-{}", token::hex(12))
        } else {
            spec.name.clone()
        };
        let pool_id =
            if spec.scale_set { format!("sim-set-{}", token::uuid()) } else { token::uuid() };
        let ordinal = i64::try_from(ordinal).unwrap_or(0);
        let agent_id = match spec.agent_id {
            Some(id) => id,
            None if spec.jit => FIRST_JIT_AGENT_ID + ordinal,
            None => 0,
        };
        let jit = spec.jit.then(|| JitFiles::new(&name, agent_id, &spec, urls));
        let mut secrets = jit.as_ref().map(JitFiles::secrets).unwrap_or_default();
        secrets.extend(spec.temp_download_token.clone());
        let mut one = Self {
            name,
            id: token::uuid(),
            pool_id,
            status: spec.status.clone(),
            runner_status: spec.runner_status.clone(),
            create_attempt: 0,
            token: String::new(),
            agent_id,
            token_fetched: false,
            registration_token: String::new(),
            jit,
            os_name: String::new(),
            os_version: String::new(),
            updated: 0,
            deleted: false,
            secrets,
            messages: Vec::new(),
            spec,
        };
        one.new_registration_token();
        one
    }

    pub(crate) fn new_registration_token(&mut self) {
        if self.jit.is_none() {
            self.registration_token = format!("SIMREGISTRATION{}", token::hex(14)).to_uppercase();
            self.secrets.push(self.registration_token.clone());
        }
    }

    pub(crate) fn check_agent_id(&self, posted: i64) -> Result<(), String> {
        if self.agent_id != 0 && posted != 0 && self.agent_id != posted {
            return Err("agent ID mismatch".into());
        }
        Ok(())
    }

    pub(crate) fn adopt_agent_id(&mut self, posted: i64) {
        if posted != 0 {
            self.agent_id = posted;
        }
    }

    pub(crate) fn check_move(&self, to: &str) -> Result<(), String> {
        let from = &self.runner_status;
        if transitions::allowed(from, to) {
            return Ok(());
        }
        Err(format!("invalid runner status transition from {from} to {to}"))
    }

    pub(crate) fn add_message(&mut self, message: Message) {
        self.messages.push(message);
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The name that GARM tells the instance.
    pub(crate) fn runner_name(&self) -> String {
        self.spec.runner_name.clone().unwrap_or_else(|| self.name.clone())
    }

    /// The pool's tags and GARM's own labels; none for JIT and scale sets.
    pub(crate) fn labels(&self, controller_id: &str) -> Vec<String> {
        if self.jit.is_some() || self.spec.scale_set {
            return Vec::new();
        }
        let mut labels = self.spec.labels.clone();
        labels.push(format!("runner-controller-id={controller_id}"));
        labels.push(format!("runner-pool-id={}", self.pool_id));
        labels
    }

    pub(crate) fn registration_url(&self, urls: &Urls) -> String {
        match &self.spec.registration_url {
            Some(url) => url.clone(),
            None => format!("{}/{}", urls.forge, self.spec.entity.url_path()),
        }
    }
}
