//! Every call that came in, in order, and the table that people read.
//!
//! No token is ever stored: a call's `Authorization` is kept as a kind only.

use std::fmt::Write as _;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::endpoint::Endpoint;

/// Which of the simulation's hosts a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// GARM's API.
    Garm,
    /// The forge, which is the download host too.
    Forge,
}

/// What a call's `Authorization` header held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// No such header.
    None,
    /// An instance token signed by this simulation, of that instance, accepted or not.
    InstanceToken(String),
    /// The download token of an instance.
    DownloadToken,
    /// Anything else.
    Other,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// When it came, counted from the simulation's start.
    pub at: Duration,
    /// The connection's number; calls that share it shared a connection.
    pub connection: u64,
    /// Which host was called.
    pub host: Host,
    /// The method.
    pub method: String,
    /// The path as sent.
    pub path: String,
    /// The query as sent, empty for none.
    pub query: String,
    /// What the path is.
    pub endpoint: Endpoint,
    /// The status on the wire; `None` when nothing (or no HTTP) was answered.
    pub status: Option<u16>,
    /// The request's headers, lower case; `authorization` only as a kind.
    pub headers: Vec<(String, String)>,
    /// What the `Authorization` header held.
    pub authorization: Authorization,
    /// The body as text (invalid UTF-8 replaced).
    pub body: String,
    /// The instance whose token came along.
    pub instance: Option<String>,
    /// The fault that the call met.
    pub fault: Option<String>,
}

impl Call {
    /// A header's first value.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name)?;
        Some(&found.1)
    }

    /// A top-level value of a JSON body.
    pub fn json(&self, key: &str) -> Option<serde_json::Value> {
        let body: serde_json::Value = serde_json::from_str(&self.body).ok()?;
        body.get(key).cloned()
    }

    /// The `status` that the body posts.
    pub fn posted_status(&self) -> Option<String> {
        Some(self.json("status")?.as_str()?.to_owned())
    }

    /// The `message` that the body posts.
    pub fn posted_message(&self) -> Option<String> {
        Some(self.json("message")?.as_str()?.to_owned())
    }

    /// Its line of the table.
    pub fn row(&self) -> String {
        let status = self.status.map_or_else(|| "-".into(), |code| code.to_string());
        let host = match self.host {
            Host::Garm => "garm",
            Host::Forge => "forge",
        };
        let path = self.path.strip_prefix("/api/v1").unwrap_or(&self.path);
        let mut row = format!(
            "{:>8.3}  {host:<5}  {:<4}  {:<43}  {status:>4}  {}",
            self.at.as_secs_f64(),
            self.method,
            shorten(path, 43),
            self.note(),
        );
        if let Some(fault) = &self.fault {
            let _ = write!(row, "  [{fault}]");
        }
        row.truncate(row.trim_end().len());
        row
    }

    fn note(&self) -> String {
        const WIDTH: usize = 72;
        let Ok(serde_json::Value::Object(body)) = serde_json::from_str(&self.body) else {
            return shorten(self.body.trim_end(), WIDTH);
        };
        let words: Vec<String> = body
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| match value.as_str() {
                Some(text) if key == "status" => text.to_owned(),
                Some(text) if key == "message" => format!("\"{text}\""),
                Some(text) => format!("{key}={text}"),
                None => format!("{key}={value}"),
            })
            .collect();
        // `status` sorts after `message`; people want it first.
        let (first, rest): (Vec<_>, Vec<_>) = words
            .into_iter()
            .partition(|word| body.get("status").and_then(|s| s.as_str()) == Some(word));
        shorten(&[first, rest].concat().join(" "), WIDTH)
    }
}

/// The header line that belongs above [`Call::row`]s.
pub fn table_head() -> String {
    format!("{:>8}  {:<5}  {:<4}  {:<43}  {:>4}  said", "time/s", "host", "", "path", "")
}

fn shorten(text: &str, width: usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().count() <= width {
        return clean;
    }
    let kept: String = clean.chars().take(width.saturating_sub(1)).collect();
    kept + "…"
}

/// The list of calls, and a bell that rings at every change of the simulation.
#[derive(Debug)]
pub(crate) struct Record {
    start: Instant,
    calls: Mutex<Vec<Call>>,
    bell: Condvar,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), calls: Mutex::default(), bell: Condvar::new() }
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Call>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call that came in; the index is for [`Record::change`].
    pub(crate) fn begin(&self, call: Call) -> usize {
        let mut calls = self.lock();
        calls.push(call);
        self.bell.notify_all();
        calls.len() - 1
    }

    pub(crate) fn change(&self, index: usize, change: impl FnOnce(&mut Call)) {
        if let Some(call) = self.lock().get_mut(index) {
            change(call);
        }
        self.bell.notify_all();
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.lock().clone()
    }

    /// Something other than the calls changed: let those who wait look again.
    pub(crate) fn ring(&self) {
        // Taking the lock keeps a waiter from missing the bell between its look and its wait.
        drop(self.lock());
        self.bell.notify_all();
    }

    /// Waits until `holds` gives something; `None` after `limit`.
    pub(crate) fn wait<T>(
        &self,
        limit: Duration,
        mut holds: impl FnMut(&[Call]) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + limit;
        let mut calls = self.lock();
        loop {
            if let Some(found) = holds(&calls) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            calls = self.bell.wait_timeout(calls, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_the_status_first_and_stays_on_one_line() {
        let call = Call {
            at: Duration::from_millis(1234),
            connection: 1,
            host: Host::Garm,
            method: "POST".into(),
            path: "/api/v1/callbacks/status".into(),
            query: String::new(),
            endpoint: Endpoint::Status,
            status: Some(200),
            headers: Vec::new(),
            authorization: Authorization::None,
            body: r#"{"message":"a\nb","status":"idle","agent_id":7}"#.into(),
            instance: None,
            fault: Some("delay 5 ms".into()),
        };
        let row = call.row();
        assert!(row.contains("/callbacks/status  "), "{row}");
        assert!(row.ends_with("200  idle agent_id=7 \"a b\"  [delay 5 ms]"), "{row}");
    }
}
