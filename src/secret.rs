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
    for secret in known.iter().map(ExposeSecret::expose_secret) {
        // A search for all of a long value takes preparation, which costs more than to look for its beginning.
        if text.contains(beginning(secret)) && text.contains(secret) {
            text = Cow::Owned(text.replace(secret, MASK));
        }
    }
    text
}

fn beginning(secret: &str) -> &str {
    &secret[..secret.floor_char_boundary(MASKED_FROM)]
}

/// `text`, whose end was cut off, without the beginning of a secret that may stand there:
/// [`redact`] would not know it.
pub fn before_cut(text: &[u8]) -> &[u8] {
    let begun = longest_part(|secret, length| text.ends_with(&secret[..length]));
    &text[..text.len() - begun]
}

/// `text`, whose beginning was cut off, without the rest of a secret that may stand there.
pub fn after_cut(text: &[u8]) -> &[u8] {
    let rest = longest_part(|secret, length| text.starts_with(&secret[secret.len() - length..]));
    &text[rest..]
}

/// The greatest length, below its own, at which `is_there` is true of a known secret; 0 if of none.
fn longest_part(is_there: impl Fn(&[u8], usize) -> bool) -> usize {
    let Some(known) = KNOWN.get() else { return 0 };
    let known = known.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let part_of = |secret: &SecretString| {
        let secret = secret.expose_secret().as_bytes();
        (MASKED_FROM..secret.len()).rev().find(|length| is_there(secret, *length))
    };
    known.iter().filter_map(part_of).max().unwrap_or(0)
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
    fn a_secret_is_known_by_all_of_it_and_not_by_its_beginning() {
        let _secrets = ["begun-as-one", "begun-as-two", "aéééééé"].map(Secret::new);
        assert_eq!(
            redact("begun-as-three, begun-as-two, begun-as-one"),
            "begun-as-three, ***, ***"
        );
        assert_eq!(redact("aéééé, aéééééé"), "aéééé, ***");
    }

    #[test]
    fn what_a_cut_has_left_of_a_secret_goes_as_well() {
        let _secret = Secret::new("cut-in-the-middle-of-it");
        assert_eq!(before_cut(b"token=cut-in-the-mid"), b"token=");
        assert_eq!(after_cut(b"middle-of-it, it said"), b", it said");
        assert_eq!(before_cut(b"a clear-cut"), b"a clear-cut");
    }

    #[test]
    fn a_short_value_does_not_tear_ordinary_words() {
        let _short = Secret::new("idle");
        assert_eq!(redact("the runner is idle"), "the runner is idle");
    }
}
