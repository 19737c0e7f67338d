//! The bootstrap file: the JSON that GARM gives a provider on stdin, put into the instance as it is.
//!
//! Its key style is mixed, as GARM's is (`callback-url`, `repo_url`). Unknown fields are tolerated.

use std::path::Path;

use serde::Deserialize;

use super::{ConfigError, given};
use crate::garm::Tools;
use crate::garm::wire::{null_is_empty, secret};
use crate::secret::Secret;

/// What garm-bootstrap uses of it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Bootstrap {
    pub name: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub tools: Vec<Tools>,
    pub repo_url: String,
    #[serde(rename = "callback-url")]
    pub callback_url: String,
    #[serde(rename = "metadata-url")]
    pub metadata_url: String,
    #[serde(rename = "instance-token", deserialize_with = "secret")]
    pub instance_token: Option<Secret>,
    #[serde(rename = "github-runner-group")]
    pub runner_group: String,
    /// Base64 of PEM: the authorities of the forge and of GARM itself.
    #[serde(rename = "ca-cert-bundle", deserialize_with = "null_is_empty")]
    pub ca_cert_bundle: String,
    #[serde(deserialize_with = "null_is_empty")]
    pub labels: Vec<String>,
    pub jit_config_enabled: Option<bool>,
    pub proxy_config: ProxyConfig,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_field_names, reason = "the fields' names are GARM's")]
pub struct ProxyConfig {
    pub http_proxy: String,
    pub https_proxy: String,
    pub no_proxy: String,
}

impl Bootstrap {
    /// Reads the file, or stdin if `path` is `-`.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let bytes = given::read(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        serde_json::from_slice(&bytes).map_err(|error| ConfigError::Bootstrap {
            path: path.to_owned(),
            // The text of a serde error can hold a value; the place is what helps.
            why: format!("line {}, column {}", error.line(), error.column()),
        })
    }

    /// The download for this machine's processor.
    pub fn tools_for(&self, arch: &str) -> Option<&Tools> {
        self.tools.iter().find(|t| (t.os.is_empty() || t.os == "linux") && t.architecture == arch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = r#"{
        "name": "lab-jit-1", "tools": [
          {"os":"linux","architecture":"arm64","download_url":"http://d/arm64.tar.gz"},
          {"os":"linux","architecture":"x64","download_url":"http://d/x64.tar.gz","sha256_checksum":"ab"}],
        "repo_url": "http://127.0.0.1:9980/acme/widgets",
        "callback-url": "http://g/api/v1/callbacks", "metadata-url": "http://g/api/v1/metadata",
        "instance-token": "a-secret-instance-token", "ssh-keys": null, "extra_specs": {"a": 1},
        "github-runner-group": "", "ca-cert-bundle": "", "arch": "amd64", "labels": null,
        "jit_config_enabled": true, "proxy_config": {"http_proxy": "http://us%20er@127.0.0.1:3128"}}"#;

    #[test]
    fn the_recorded_bootstrap_is_read() {
        let bootstrap: Bootstrap = serde_json::from_str(RECORDED).unwrap();
        assert_eq!(bootstrap.tools_for("x64").unwrap().sha256_checksum, "ab");
        assert!(bootstrap.tools_for("arm").is_none());
        assert_eq!(bootstrap.jit_config_enabled, Some(true));
        assert_eq!(bootstrap.proxy_config.http_proxy, "http://us%20er@127.0.0.1:3128");
    }
}
