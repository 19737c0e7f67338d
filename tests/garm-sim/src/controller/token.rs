//! Instance tokens: HS256 JSON web tokens with GARM's claims, and the random ids in them.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Sha256, Sha512};

/// The claims of an instance token.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Claims {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) provider_id: String,
    pub(crate) scope: String,
    pub(crate) entity: String,
    pub(crate) create_attempt: i64,
    pub(crate) forge_type: String,
    pub(crate) is_agent: bool,
    pub(crate) iss: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exp: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nbf: Option<i64>,
}

impl Claims {
    /// Within its time.
    pub(crate) fn is_current(&self) -> bool {
        let now = unix_now();
        self.exp.is_none_or(|exp| now < exp) && self.nbf.is_none_or(|nbf| nbf <= now)
    }
}

pub(crate) fn unix_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}

pub(crate) fn sign(claims: &impl Serialize, secret: &str) -> String {
    let claims = serde_json::to_vec(claims).expect("claims are plain data");
    let head = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
    let signed = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims));
    let signature = hs256(secret, &signed);
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// The claims of a token with a good HS256 or HS512 signature, whatever its time.
pub(crate) fn verify(token: &str, secret: &str) -> Option<Claims> {
    let (signed, signature) = token.rsplit_once('.')?;
    let (head, claims) = signed.split_once('.')?;
    let head: serde_json::Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).ok()?).ok()?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    let good = match head.get("alg")?.as_str()? {
        "HS256" => hs256(secret, signed) == signature,
        "HS512" => hs512(secret, signed) == signature,
        _ => false,
    };
    if !good {
        return None;
    }
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()
}

fn hs256(secret: &str, text: &str) -> Vec<u8> {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hs512(secret: &str, text: &str) -> Vec<u8> {
    let mut mac =
        Hmac::<Sha512>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// A random number from the hasher's per-process keys; made-up values need no better.
pub(crate) fn random_id() -> u128 {
    let state = RandomState::new();
    (u128::from(state.hash_one(1u8)) << 64) | u128::from(state.hash_one(2u8))
}

pub(crate) fn hex(digits: usize) -> String {
    let mut text = format!("{:032x}", random_id());
    text.truncate(digits);
    text
}

pub(crate) fn uuid() -> String {
    let hex = hex(32);
    format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_only_with_its_secret_and_never_with_alg_none() {
        let claims = Claims { name: "one".into(), ..Claims::default() };
        let token = sign(&claims, "secret");
        assert_eq!(verify(&token, "secret").unwrap().name, "one");
        assert!(verify(&token, "other").is_none());
        let body = token.split('.').nth(1).unwrap();
        let none = format!("{}.{body}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#));
        assert!(verify(&none, "secret").is_none());
    }

    #[test]
    fn ids_differ() {
        assert_ne!(uuid(), uuid());
        assert_eq!(uuid().len(), 36);
    }
}
