//! What the instance token says of itself.
//!
//! Must not: verify the signature (only GARM can), or decide anything by a claim but how long to try
//! and what to say in a message.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

/// The claims of GARM's instance token (a JWT) that matter here; all optional, for a token that cannot
/// be read is still a token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Claims {
    /// The instance's name.
    pub name: Option<String>,
    /// `github` or `gitea`.
    pub forge_type: Option<String>,
    /// Seconds since the epoch after which GARM refuses the token.
    pub exp: Option<u64>,
}

impl Claims {
    pub fn read(token: &str) -> Self {
        let payload = token.split('.').nth(1).unwrap_or_default().trim_end_matches('=');
        URL_SAFE_NO_PAD
            .decode(payload)
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .unwrap_or_default()
    }

    /// How long the token is still good; zero when it has expired, `None` when it does not say.
    pub fn time_left(&self) -> Option<Duration> {
        let expires = UNIX_EPOCH.checked_add(Duration::from_secs(self.exp?))?;
        Some(expires.duration_since(SystemTime::now()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_claims_of_a_garm_token_are_read() {
        let payload = URL_SAFE_NO_PAD.encode(
            r#"{"id":"u","name":"lab-1","create_attempt":0,"forge_type":"github","iss":"garm","exp":32503680000}"#,
        );
        let claims = Claims::read(&format!("e30.{payload}.sig"));
        assert_eq!(claims.name.as_deref(), Some("lab-1"));
        assert!(claims.time_left().unwrap() > Duration::from_secs(3600));
    }

    proptest! {
        #[test]
        fn any_text_is_a_token_without_claims_at_worst(text: String) {
            let _ = Claims::read(&text).time_left();
            let _ = Claims::read(&format!("a.{text}.b"));
        }
    }
}
