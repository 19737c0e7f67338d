//! Talking to the forge: one HTTP/1.0 POST per event, and no harm if nobody listens.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::home::Home;
use crate::script::Script;

const PATIENCE: Duration = Duration::from_secs(10);

/// Who this runner is, and where it tells things.
#[derive(Default)]
pub struct Forge {
    pub name: String,
    pub agent_id: String,
    pub ephemeral: bool,
    address: Option<SocketAddr>,
}

impl Forge {
    /// From `.runner` of either kind.
    pub fn of_runner(home: &Home, script: &Script) -> Option<Self> {
        let text = home.read(".runner")?;
        let text = text.trim_start_matches('\u{feff}').trim();
        if !text.starts_with('{') || !text.ends_with('}') {
            return None;
        }
        let value = |key: &str| json_value(text, key).unwrap_or_default();
        let mut one = Self {
            name: value("AgentName"),
            agent_id: value("AgentId"),
            ephemeral: value("Ephemeral").eq_ignore_ascii_case("true"),
            address: None,
        };
        one.address = address(script.text("events_url").unwrap_or(&value("ServerUrl")));
        Some(one)
    }

    /// For a runner that is not registered yet.
    pub fn at(script: &Script, url: &str, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            address: address(script.text("events_url").unwrap_or(url)),
            ..Self::default()
        }
    }

    pub fn is_known(&self) -> bool {
        self.address.is_some()
    }

    /// Status and body of the answer; `None` when there was none.
    pub fn tell(&self, event: &str, fields: &[(&str, &str)]) -> Option<(u16, String)> {
        let address = self.address?;
        let mut body = format!("name={}\nagent_id={}\n", encode(&self.name), self.agent_id);
        for (key, value) in fields {
            body += &format!("{key}={}\n", encode(value));
        }
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let request = format!(
            "POST /_sim/{event} HTTP/1.0\r\nHost: {address}\r\nContent-Type: text/plain\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok()?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }
}

/// The address of a plain HTTP URL on loopback; anything else is not ours to call.
fn address(url: &str) -> Option<SocketAddr> {
    let rest = url.strip_prefix("http://")?;
    let host = rest.split('/').next()?;
    let host = host.replace("localhost", "127.0.0.1");
    let address: SocketAddr = host.parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// A top-level string, number or boolean of a flat JSON object, by its name in any case.
fn json_value(text: &str, wanted: &str) -> Option<String> {
    let mut rest = text;
    while let Some(start) = rest.find('"') {
        rest = &rest[start + 1..];
        let (key, after) = rest.split_once('"')?;
        let after_key = after.trim_start();
        let Some(value) = after_key.strip_prefix(':') else {
            rest = after;
            continue;
        };
        let value = value.trim_start();
        if key.eq_ignore_ascii_case(wanted) {
            return Some(match value.strip_prefix('"') {
                Some(quoted) => quoted.split('"').next()?.to_owned(),
                None => value
                    .split([',', '}', '\n', '\r'])
                    .next()?
                    .trim()
                    .to_owned(),
            });
        }
        // Over the value, so that its text is not taken for a key.
        rest = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?.1,
            None => value,
        };
    }
    None
}

pub fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => out += &format!("\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
