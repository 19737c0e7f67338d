//! The runner downloads that GARM offers, and the garm-agent programs in its store.

use serde::Serialize;

use super::Controller;
use super::instance::InstanceState;
use crate::options::{AgentTools, Checksum};

/// A runner archive as GARM describes it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunnerTools {
    os: String,
    architecture: &'static str,
    download_url: String,
    filename: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    temp_download_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256_checksum: Option<String>,
}

/// A garm-agent program as GARM describes it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AgentTool {
    id: u64,
    name: String,
    size: u64,
    sha256sum: String,
    description: &'static str,
    created_at: &'static str,
    updated_at: &'static str,
    file_type: &'static str,
    version: &'static str,
    os_type: String,
    os_arch: String,
    download_url: String,
    origin: &'static str,
    source: &'static str,
}

/// The bytes of the one garm-agent program that the store can hold.
pub(crate) const AGENT_PROGRAM: &str = "#!/bin/sh\n# garm-agent, simulated\nexec sleep 86400\n";

/// The forge's name of an architecture that GARM names otherwise.
pub(crate) fn forge_arch(garm: &str) -> Option<&'static str> {
    match garm {
        "amd64" => Some("x64"),
        "arm64" => Some("arm64"),
        "arm" => Some("arm"),
        _ => None,
    }
}

impl Controller {
    fn runner_tools_of(&self, one: &InstanceState, arch: &'static str) -> RunnerTools {
        let archive = self.archive();
        let filename = format!("actions-runner-linux-{arch}-{}.tar.gz", archive.version);
        let download_url = match (&one.spec.download_url, &one.spec.temp_download_token) {
            (Some(url), _) => url.clone(),
            (None, Some(_)) => format!("{}/private/{}/{filename}", self.urls.forge, one.name),
            (None, None) => self.urls.download(&archive.version, &filename),
        };
        let sha256_checksum = match one.spec.sha256 {
            Checksum::Good => Some(archive.sha256.clone()),
            Checksum::UpperCase => Some(archive.sha256.to_uppercase()),
            Checksum::Wrong => Some("0123456789abcdef".repeat(4)),
            Checksum::Missing => None,
        };
        RunnerTools {
            os: one.spec.os_type.clone(),
            architecture: arch,
            download_url,
            filename,
            temp_download_token: one.spec.temp_download_token.clone(),
            sha256_checksum,
        }
    }

    /// The tools for the instance's platform.
    pub(crate) fn runner_tools(&self, one: &InstanceState) -> Option<RunnerTools> {
        if self.options.tools_missing {
            return None;
        }
        Some(self.runner_tools_of(one, forge_arch(&one.spec.arch)?))
    }

    /// The tools for every platform, as the provider gets them.
    pub(crate) fn all_runner_tools(&self, one: &InstanceState) -> Vec<RunnerTools> {
        if self.options.tools_missing {
            return Vec::new();
        }
        ["x64", "arm64", "arm"].into_iter().map(|arch| self.runner_tools_of(one, arch)).collect()
    }

    /// The garm-agent program for the instance, if GARM has any.
    pub(crate) fn agent_tool(&self, one: &InstanceState) -> Option<AgentTool> {
        let local = match self.options.agent_tools {
            AgentTools::None => return None,
            AgentTools::Local => true,
            AgentTools::Upstream => false,
        };
        let name = format!("garm-agent-linux-{}", one.spec.arch);
        let at = if local { "2026-12-01T02:12:08.479124296Z" } else { "0001-01-01T00:00:00Z" };
        Some(AgentTool {
            id: u64::from(local),
            size: AGENT_PROGRAM.len() as u64,
            sha256sum: if local {
                crate::archive::sha256_hex(AGENT_PROGRAM.as_bytes())
            } else {
                String::new()
            },
            description: "simulated",
            created_at: at,
            updated_at: at,
            file_type: "text/plain; charset=utf-8",
            version: "v0.9.9-sim",
            os_type: one.spec.os_type.clone(),
            os_arch: one.spec.arch.clone(),
            download_url: if local {
                format!("{}/tools/garm-agent/1/download", self.urls.metadata())
            } else {
                format!("{}/releases/{name}", self.urls.forge)
            },
            name,
            origin: "manual",
            source: if local { "local" } else { "upstream" },
        })
    }
}

impl AgentTool {
    /// `tools/garm-agent/{id}` leaves the source empty.
    pub(crate) fn without_source(mut self) -> Self {
        self.source = "";
        self
    }

    /// Whether it lies in GARM's own store.
    pub(crate) fn is_local(&self) -> bool {
        self.id != 0
    }
}
