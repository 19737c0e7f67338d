//! The three files of a just-in-time configuration, with made-up key material.

use serde_json::json;

use super::token;
use crate::options::InstanceSpec;
use crate::urls::Urls;

/// The files' bytes, decoded once, as GARM hands them out.
#[derive(Clone, Debug)]
pub(crate) struct JitFiles {
    runner: String,
    credentials: String,
    rsaparams: String,
    secrets: Vec<String>,
}

impl JitFiles {
    pub(crate) fn new(name: &str, agent_id: i64, spec: &InstanceSpec, urls: &Urls) -> Self {
        let pool = if spec.group.is_empty() { "Default" } else { &spec.group };
        // PascalCase, every value a string, no BOM: not what config.sh writes.
        let runner = json!({
            "AgentId": agent_id.to_string(),
            "AgentName": name,
            "DisableUpdate": "False",
            "Ephemeral": "True",
            "PoolId": "1",
            "PoolName": pool,
            "ServerUrl": format!("{}/", urls.events),
            "GitHubUrl": format!("{}/{}", urls.forge, spec.entity.url_path()),
            "WorkFolder": "_work",
        });
        let client = token::uuid();
        let credentials = json!({
            "Scheme": "OAuth",
            "Data": {
                "ClientId": client,
                "AuthorizationUrl": format!("{}/_sim/oauth", urls.events),
                "RequireFipsCryptography": "True",
            },
        });
        let mut rsaparams = serde_json::Map::new();
        let mut secrets = Vec::new();
        for part in ["d", "dp", "dq", "inverseQ", "modulus", "p", "q"] {
            // Letters and digits, a multiple of four of them: valid base64 that grep can find.
            let secret = format!("SIMRSA{}{}", token::hex(32), token::hex(10));
            rsaparams.insert(part.into(), secret.clone().into());
            secrets.push(secret);
        }
        rsaparams.insert("exponent".into(), "AQAB".into());
        Self {
            runner: runner.to_string(),
            credentials: credentials.to_string(),
            rsaparams: serde_json::Value::Object(rsaparams).to_string(),
            secrets,
        }
    }

    /// A file by its name with the leading dot.
    pub(crate) fn file(&self, name: &str) -> Option<&str> {
        match name {
            ".runner" => Some(&self.runner),
            ".credentials" => Some(&self.credentials),
            ".credentials_rsaparams" => Some(&self.rsaparams),
            _ => None,
        }
    }

    pub(crate) fn secrets(&self) -> Vec<String> {
        self.secrets.clone()
    }
}
