//! `state.json`: where this instance's runner is, or how it has ended, for people and for other programs.
//!
//! It is replaced at every change, so that a reader never sees half of it. It holds no secret. It decides
//! nothing: whether an instance is used says the marker alone.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::exit::Exit;
use crate::secret::redact;
use crate::timeline::Phase;

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Booting,
    /// GARM has been told that the runner is idle.
    Idle,
    Running,
    Ended,
}

/// What `state.json` holds. Times are RFC 3339, UTC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    pub version: String,
    /// The agent's process id.
    pub pid: u32,
    pub status: Status,
    pub phase: Phase,
    pub began_at: String,
    /// Of the status or the phase, whichever changed last.
    pub since: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// Short and stable, where it ended badly: `runner_not_fetched`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// In words: how it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Life {
    pub fn begin() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            status: Status::Booting,
            phase: Phase::Preflight,
            began_at: now(),
            since: now(),
            agent_id: None,
            job: None,
            exit: None,
            reason: None,
            message: None,
        }
    }

    pub fn enter(&mut self, phase: Phase) {
        (self.phase, self.since) = (phase, now());
    }

    /// GARM has heard that it is idle; a job may have been faster than its answer.
    pub fn announced(&mut self) {
        if self.status == Status::Booting {
            self.become_idle();
        }
    }

    pub fn become_idle(&mut self) {
        (self.status, self.since) = (Status::Idle, now());
    }

    pub fn run(&mut self, job: &str) {
        (self.status, self.since) = (Status::Running, now());
        self.job = Some(redact(job).into_owned());
    }

    /// `reason` where it ended badly. The phase stays the one in which it ended.
    pub fn end(&mut self, exit: Exit, reason: Option<&str>, message: &str) {
        (self.status, self.since) = (Status::Ended, now());
        self.exit = Some(exit.code());
        self.reason = reason.map(str::to_owned);
        self.message = Some(redact(message).into_owned());
    }
}

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
