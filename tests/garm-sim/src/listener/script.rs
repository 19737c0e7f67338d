//! The script: `KEY=VALUE` lines; `KEY.N` holds for the N-th start of a subcommand only.

use std::collections::HashMap;
use std::time::Duration;

use crate::home::Home;

pub struct Script {
    values: HashMap<String, String>,
    nth: u32,
}

impl Script {
    pub fn read(home: &Home, nth: u32) -> Self {
        let text = home.read(".sim-script").unwrap_or_default();
        let values = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.trim().to_owned(), value.to_owned()))
            .collect();
        Self { values, nth }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.values
            .get(&format!("{key}.{}", self.nth))
            .or_else(|| self.values.get(key))
            .map(String::as_str)
    }

    /// As `text`, but a key without a number holds for the first start only.
    pub fn first_only(&self, key: &str) -> Option<&str> {
        let own = self.values.get(&format!("{key}.{}", self.nth));
        let any = self.values.get(key).filter(|_| self.nth == 1);
        own.or(any).map(String::as_str)
    }

    pub fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        self.text(key).map(unescape)
    }

    pub fn number(&self, key: &str) -> Option<i64> {
        self.text(key)?.trim().parse().ok()
    }

    pub fn time(&self, key: &str) -> Option<Duration> {
        u64::try_from(self.number(key)?)
            .ok()
            .map(Duration::from_millis)
    }

    pub fn is_set(&self, key: &str) -> bool {
        self.text(key)
            .is_some_and(|value| !matches!(value.trim(), "" | "0" | "false"))
    }
}

/// `\n`, `\t`, `\e`, `\\` and `\xHH`.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next() {
            Some(b'n') => out.push(b'\n'),
            Some(b't') => out.push(b'\t'),
            Some(b'e') => out.push(0x1b),
            Some(b'x') => {
                let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                out.push(u8::from_str_radix(&digits, 16).unwrap_or(b'?'));
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}
