//! JSON as Go reads and writes it.

use std::fmt;

use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Deserializer, Value};

use super::errors::ApiError;

/// What Go's `json.Encoder` writes: `<`, `>`, `&` escaped, a newline at the end.
pub(crate) fn go_json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("plain data always serialises");
    let mut out = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        match c {
            // Outside strings JSON has none of these.
            '<' => out.push_str("\\u003c"),
            '>' => out.push_str("\\u003e"),
            '&' => out.push_str("\\u0026"),
            '\u{2028}' => out.push_str("\\u2028"),
            '\u{2029}' => out.push_str("\\u2029"),
            other => out.push(other),
        }
    }
    out.push('\n');
    out
}

/// Go decodes no deeper.
const DEEPEST: usize = 10_000;
/// What the callbacks' fields are called; everything else is only skipped.
const FIELDS: [&str; 5] = ["status", "message", "agent_id", "os_name", "os_version"];

/// The fields of a posted object, as lenient as Go's decoder: `null` is an empty object, what
/// follows the first value is ignored, invalid UTF-8 and half a surrogate pair are replaced.
#[derive(Debug)]
pub(crate) struct Posted(Vec<(&'static str, Value)>);

impl Posted {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let text = String::from_utf8_lossy(body);
        let text = with_whole_surrogates(&text).ok_or_else(invalid)?;
        let mut values = Deserializer::from_str(&text).into_iter::<Option<Fields>>();
        match values.next() {
            Some(Ok(fields)) => Ok(Self(fields.unwrap_or_default().0)),
            _ => Err(invalid()),
        }
    }

    /// The last field of that name that is not `null`.
    fn field(&self, name: &str) -> Option<&Value> {
        let named = self.0.iter().filter(|(key, value)| *key == name && !value.is_null());
        named.map(|(_, value)| value).next_back()
    }

    pub(crate) fn text(&self, name: &str) -> Result<String, ApiError> {
        match self.field(name) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(invalid()),
        }
    }

    /// A 64-bit integer; `1000.0` and `"1000"` are refused as Go refuses them.
    pub(crate) fn integer(&self, name: &str) -> Result<Option<i64>, ApiError> {
        match self.field(name) {
            None => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(invalid),
        }
    }
}

/// The known fields in the order in which they stand.
#[derive(Default)]
struct Fields(Vec<(&'static str, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let key = fold(&key);
            match FIELDS.into_iter().find(|field| *field == key) {
                Some(field) => self.0.push((field, map.next_value()?)),
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(self)
    }
}

/// Names are compared without case, and two letters beyond ASCII are taken for s and k.
fn fold(key: &str) -> String {
    key.replace('\u{17f}', "s").replace('\u{212a}', "k").to_ascii_lowercase()
}

/// The text with every escaped half of a surrogate pair made U+FFFD; `None` when it is nested too
/// deep. What is not JSON is left for the decoder to refuse.
fn with_whole_surrogates(text: &str) -> Option<String> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let (mut quoted, mut depth) = (false, 0_usize);
    while let Some(c) = rest.chars().next() {
        let mut length = c.len_utf8();
        match c {
            '\\' if quoted => {
                let half =
                    |text: &str| u32::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
                match (half(rest), rest.get(6..).and_then(half)) {
                    (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => length = 12,
                    (Some(0xd800..=0xdfff), _) => {
                        out.push('\u{fffd}');
                        rest = &rest[6..];
                        continue;
                    }
                    _ => length += rest[1..].chars().next().map_or(0, char::len_utf8),
                }
            }
            '"' => quoted = !quoted,
            '[' | '{' if !quoted => depth += 1,
            ']' | '}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEEPEST {
            return None;
        }
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    Some(out)
}

pub(crate) fn invalid() -> ApiError {
    ApiError::BadRequest("invalid request".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(body: &[u8]) -> Result<(String, String, Option<i64>), ApiError> {
        let posted = Posted::read(body)?;
        Ok((posted.text("status")?, posted.text("message")?, posted.integer("agent_id")?))
    }

    #[test]
    fn go_accepts_what_is_sloppy() {
        for (body, status, message, agent_id) in [
            (&b"{}"[..], "", "", None),
            (b"null", "", "", None),
            (br#"{"status":"idle","agent_id":7,"other":[1]}"#, "idle", "", Some(7)),
            (br#"{"STATUS":"idle","Message":"x"}"#, "idle", "x", None),
            (br#"{"status":"idle"} trailing"#, "idle", "", None),
            (br#"{"status":"idle"}}"#, "idle", "", None),
            (br#"{"status":null,"message":null,"agent_id":null}"#, "", "", None),
            (b"{\"message\":\"a\xffb\"}", "", "a\u{fffd}b", None),
            (br#"{"message":"\u0000\n\t\""}"#, "", "\0\n\t\"", None),
            (br#"{"agent_id":0}"#, "", "", Some(0)),
            (br#"{"message":"a","MESSAGE":"b"}"#, "", "b", None),
            (br#"{"MESSAGE":"b","message":"a"}"#, "", "a", None),
            ("{\"\u{17f}tatus\":\"idle\"}".as_bytes(), "idle", "", None),
            (br#"{"x":1e999,"message":"x"}"#, "", "x", None),
            (br#"{"message":"a\ud800b\udc00"}"#, "", "a\u{fffd}b\u{fffd}", None),
            (
                br#"{"message":"\\ud800\ud83d\ude00\udc00\ud800"}"#,
                "",
                "\\ud800😀\u{fffd}\u{fffd}",
                None,
            ),
        ] {
            let wanted = (status.to_owned(), message.to_owned(), agent_id);
            assert_eq!(reads(body), Ok(wanted), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn what_is_not_asked_for_may_be_deep_but_not_bottomless() {
        let nested = |depth| {
            format!("{{\"x\":{}{},\"message\":\"m\"}}", "[".repeat(depth), "]".repeat(depth))
        };
        let wanted = (String::new(), "m".to_owned(), None);
        assert_eq!(reads(nested(9_000).as_bytes()), Ok(wanted));
        assert_eq!(reads(nested(20_000).as_bytes()), Err(invalid()));
    }

    #[test]
    fn go_refuses_what_is_wrong() {
        for body in [
            &b""[..],
            b"{\"message\":\"a\nb\"}",
            b"{\"status\":\"idle\"",
            b"[]",
            b"\"idle\"",
            b"7",
            br#"{"status":7}"#,
            br#"{"message":7}"#,
            br#"{"agent_id":"7"}"#,
            br#"{"agent_id":7.0}"#,
            br"{'status':'idle'}",
        ] {
            assert_eq!(reads(body), Err(invalid()), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn json_is_written_as_go_writes_it() {
        assert_eq!(go_json(&"<a> & b"), "\"\\u003ca\\u003e \\u0026 b\"\n");
    }
}
