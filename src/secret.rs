//! Tokens and keys, and the one place that takes them out of text.
//!
//! Owns: the type that every secret travels in, and the list of all secret values that this process
//! has seen. Must not: write a secret anywhere, or compare one.
//!
//! A [`Secret`] enters itself into that list when it is made, so text on its way to a log, to GARM or
//! to our stdout only has to pass [`redact`]; nobody has to remember which secrets exist.

use std::borrow::Cow;
use std::fmt;
use std::sync::{OnceLock, RwLock};

use secrecy::{ExposeSecret, SecretString};

/// What stands in a text where a secret was.
pub const MASK: &str = "***";

/// Shorter values are not masked: they would occur by chance in ordinary words.
const MASKED_FROM: usize = 8;

static KNOWN: OnceLock<RwLock<Vec<SecretString>>> = OnceLock::new();

/// A value that must never reach a job, a log, an argument list or a status message.
///
/// `Debug` shows [`MASK`]; the memory is wiped on drop (but for the copy that [`redact`] needs).
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps `value`, without the white space around it, and makes [`redact`] know it.
    pub fn new(value: &str) -> Self {
        let value = value.trim();
        learn(value);
        Self(SecretString::from(value.to_owned()))
    }

    /// The value itself: for a header, a child's private environment or a 0600 file, and nothing else.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    pub fn is_empty(&self) -> bool {
        self.expose().is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// Makes [`redact`] take `value` out of every later text.
pub fn learn(value: &str) {
    if value.len() < MASKED_FROM {
        return;
    }
    let known = KNOWN.get_or_init(RwLock::default);
    let mut known = known.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    if known.iter().all(|k| k.expose_secret() != value) {
        known.push(SecretString::from(value.to_owned()));
        // The longest first, so that a secret inside another one does not leave the rest behind.
        known.sort_by_key(|k| std::cmp::Reverse(k.expose_secret().len()));
    }
}

/// `text` with every secret that this process has seen replaced by [`MASK`].
pub fn redact(text: &str) -> Cow<'_, str> {
    let Some(known) = KNOWN.get() else { return Cow::Borrowed(text) };
    let known = known.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut text = Cow::Borrowed(text);
    for secret in known.iter() {
        if text.contains(secret.expose_secret()) {
            text = Cow::Owned(text.replace(secret.expose_secret(), MASK));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_taken_out_of_later_text() {
        let secret = Secret::new(" hunter2-hunter2\n");
        assert_eq!(secret.expose(), "hunter2-hunter2");
        assert_eq!(redact("token=hunter2-hunter2!"), "token=***!");
        assert_eq!(format!("{secret:?}"), "***");
    }

    #[test]
    fn the_longer_of_two_overlapping_secrets_goes_whole() {
        let _short = Secret::new("overlap-part");
        let _long = Secret::new("overlap-part-and-more");
        assert_eq!(redact("x overlap-part-and-more y"), "x *** y");
    }

    #[test]
    fn a_short_value_does_not_tear_ordinary_words() {
        let _short = Secret::new("idle");
        assert_eq!(redact("the runner is idle"), "the runner is idle");
    }
}
