//! `GET {metadata}/runner-metadata`: who this instance is to be.
//!
//! Unknown fields are tolerated: a newer GARM must not break an older image.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::wire::{null_is_empty, secret};
use crate::secret::Secret;

/// GARM's answer (v0.2 and later; v0.1 does not have the endpoint).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct RunnerMetadata {
    /// `github` or `gitea`.
    pub forge_type: String,
    pub runner_registration_url: String,
    pub runner_name: String,
    /// Only for pools without JIT.
    #[serde(deserialize_with = "null_is_empty")]
    pub runner_labels: Vec<String>,
    pub jit_enabled: bool,
    pub runner_tools: Tools,
    /// PEM of the forge's authorities by name, each base64-encoded.
    #[serde(deserialize_with = "null_is_empty")]
    pub ca_bundles: BTreeMap<String, String>,
}

/// A runner to download, as GARM's metadata and its bootstrap JSON describe it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Tools {
    pub os: String,
    /// As the forge names it: `x64`, `arm64`, `arm`.
    pub architecture: String,
    pub download_url: String,
    pub filename: String,
    /// 64 hexadecimal digits; some forges give none.
    #[serde(deserialize_with = "null_is_empty")]
    pub sha256_checksum: String,
    /// For the download's host alone.
    #[serde(deserialize_with = "secret")]
    pub temp_download_token: Option<Secret>,
}

/// `GET {metadata}/system/cert-bundle`: one PEM certificate, base64-encoded, per serial number.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct CertBundle {
    #[serde(deserialize_with = "null_is_empty")]
    pub(super) root_certificates: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_answer_of_a_jit_pool_is_read() {
        let metadata: RunnerMetadata = serde_json::from_str(
            r#"{"metadata_access":{"callback_url":"http://g/c","metadata_url":"http://g/m","agent_url":"http://g/agent"},
            "forge_type":"github","runner_registration_url":"http://forge/acme/widgets","runner_name":"lab-jit-1",
            "agent_mode":false,"jit_enabled":true,"extra_specs":{"x":1},
            "runner_tools":{"os":"linux","architecture":"x64","download_url":"http://d/r.tar.gz",
            "filename":"r.tar.gz","sha256_checksum":null,"temp_download_token":"temp-download-secret"}}"#,
        )
        .unwrap();
        assert!(metadata.jit_enabled && metadata.runner_labels.is_empty());
        assert_eq!(metadata.runner_tools.sha256_checksum, "");
        assert_eq!(
            metadata.runner_tools.temp_download_token.unwrap().expose(),
            "temp-download-secret"
        );
    }
}
