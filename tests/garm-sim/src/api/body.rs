//! JSON as Go reads and writes it.

use serde::Serialize;
use serde_json::{Deserializer, Map, Value};

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

/// The fields of a posted object, as lenient as Go's decoder: `null` is an empty object, what
/// follows the first value is ignored, invalid UTF-8 is replaced. `None`: not decodable.
#[derive(Debug)]
pub(crate) struct Posted(Map<String, Value>);

impl Posted {
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let text = String::from_utf8_lossy(body);
        let mut values = Deserializer::from_str(&text).into_iter::<Value>();
        match values.next() {
            Some(Ok(Value::Object(fields))) => Ok(Self(fields)),
            Some(Ok(Value::Null)) => Ok(Self(Map::new())),
            _ => Err(invalid()),
        }
    }

    /// The last field of that name in any case that is not `null`.
    fn field(&self, name: &str) -> Option<&Value> {
        self.0
            .iter()
            .filter(|(key, value)| key.eq_ignore_ascii_case(name) && !value.is_null())
            .map(|(_, value)| value)
            .next_back()
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
        ] {
            let wanted = (status.to_owned(), message.to_owned(), agent_id);
            assert_eq!(reads(body), Ok(wanted), "{}", body.escape_ascii());
        }
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
