//! A sha256 sum, as GARM's tools carry it and as a download is held against it.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sha256([u8; 32]);

#[derive(Debug, thiserror::Error)]
#[error("read the sha256 checksum \"{text}\": it must be 64 hexadecimal digits")]
pub struct DigestError {
    text: String,
}

impl Sha256 {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

/// 64 hexadecimal digits of either case, with white space around them and the prefix `sha256:` (as
/// release assets have it) allowed.
impl FromStr for Sha256 {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let error = || DigestError { text: crate::text::shorten(&crate::text::one_line(text), 80) };
        let digits = text.trim();
        let digits = digits.strip_prefix("sha256:").unwrap_or(digits).as_bytes();
        if digits.len() != 64 {
            return Err(error());
        }
        let mut sum = [0; 32];
        for (byte, pair) in sum.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err(error());
            };
            *byte = u8::try_from(high << 4 | low).map_err(|_| error())?;
        }
        Ok(Self(sum))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_read_in_either_case_and_shown_in_lower_case() {
        let lower = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        for text in [lower.to_owned(), lower.to_uppercase(), format!(" sha256:{lower}\n")] {
            assert_eq!(text.parse::<Sha256>().unwrap().to_string(), lower);
        }
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for text in ["", "abc", &"g".repeat(64), &"é".repeat(32), &"0".repeat(65)] {
            let error = text.parse::<Sha256>().unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits"), "{error}");
        }
    }
}
