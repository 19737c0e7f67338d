//! The forge: the host that runners are downloaded from and that the fake Listener talks to.
//!
//! It serves the archive with ranges, keeps the registrations, and tells GARM of jobs as webhooks
//! would. It never asks GARM anything.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue, IF_RANGE, RANGE,
};
use axum::http::request::Parts;
use axum::http::{Method, Response, StatusCode};
use bytes::Bytes;

use crate::api::path::{Route, percent_decode};
use crate::controller::Controller;
use crate::endpoint::Endpoint;
use crate::options::Webhooks;
use crate::record::Record;

/// What a runner told the forge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerEvent {
    /// When, from the simulation's start.
    pub at: Duration,
    /// `registered`, `removed`, `online`, `job_started` or `job_completed`.
    pub event: String,
    /// The runner's name.
    pub runner: String,
    /// Everything it said: `job`, `result`, `labels`, `group`, `work`, `ephemeral`, …
    pub fields: HashMap<String, String>,
}

/// A runner registered with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The runner's name.
    pub name: String,
    /// The agent id that the forge gave.
    pub agent_id: i64,
    /// What it registered with: `labels`, `group`, `work`, `ephemeral`, `url`, …
    pub fields: HashMap<String, String>,
}

/// The forge's state.
#[derive(Debug)]
pub(crate) struct Forge {
    state: Mutex<State>,
    next_agent_id: AtomicI64,
    ranges: bool,
    webhooks: Webhooks,
}

#[derive(Debug, Default)]
struct State {
    events: Vec<RunnerEvent>,
    registrations: Vec<Registration>,
}

/// What a path of the forge is for.
pub(crate) fn route(path: &str) -> Route {
    let (endpoint, argument) = match path.strip_prefix("/_sim/") {
        Some(event) => (Endpoint::Forge, event),
        None if path.ends_with(".tar.gz") => (Endpoint::Download, path),
        None => (Endpoint::Unknown, path),
    };
    Route { endpoint, argument: argument.to_owned(), clean: None, under_api: false }
}

impl Forge {
    pub(crate) fn new(ranges: bool, webhooks: Webhooks) -> Self {
        Self { state: Mutex::default(), next_agent_id: AtomicI64::new(1001), ranges, webhooks }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn events(&self) -> Vec<RunnerEvent> {
        self.lock().events.clone()
    }

    pub(crate) fn registrations(&self) -> Vec<Registration> {
        self.lock().registrations.clone()
    }

    pub(crate) fn answer(
        &self,
        controller: &Arc<Controller>,
        record: &Arc<Record>,
        route: &Route,
        parts: &Parts,
        body: &Bytes,
    ) -> Response<Body> {
        match route.endpoint {
            Endpoint::Download => self.download(controller, &route.argument, parts),
            Endpoint::Forge => self.event(controller, record, &route.argument, body),
            _ => plain(StatusCode::NOT_FOUND, "Not Found"),
        }
    }

    fn download(&self, controller: &Controller, path: &str, parts: &Parts) -> Response<Body> {
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "");
        }
        let archive = controller.archive();
        let mut words = path.trim_start_matches('/').split('/');
        let allowed = match (words.next(), words.next()) {
            (Some("downloads"), _) => true,
            (Some("private"), Some(name)) => {
                let bearer = parts.headers.get(AUTHORIZATION);
                let bearer = bearer.and_then(|value| value.to_str().ok());
                let given = bearer.and_then(|value| value.strip_prefix("Bearer "));
                let wanted =
                    controller.with(name, |one| one.spec.temp_download_token.clone()).flatten();
                wanted.is_some() && given == wanted.as_deref()
            }
            _ => return plain(StatusCode::NOT_FOUND, "Not Found"),
        };
        if !allowed {
            return plain(StatusCode::UNAUTHORIZED, "Bad credentials");
        }
        let etag = format!("\"{}\"", &archive.sha256[..16]);
        let asked = parts.headers.get(RANGE).filter(|_| self.ranges);
        let same =
            parts.headers.get(IF_RANGE).is_none_or(|value| value.as_bytes() == etag.as_bytes());
        let size = archive.bytes.len();
        let mut reply = match asked.filter(|_| same).map(|value| range(value, size)) {
            None | Some(Asked::Everything) => Response::new(Body::from(archive.bytes.clone())),
            Some(Asked::Part(first, last)) => {
                let part = archive.bytes.slice(first..=last);
                let mut reply = Response::new(Body::from(part));
                *reply.status_mut() = StatusCode::PARTIAL_CONTENT;
                content_range(&mut reply, &format!("bytes {first}-{last}/{size}"));
                reply
            }
            Some(Asked::Nothing) => {
                let mut reply = plain(StatusCode::RANGE_NOT_SATISFIABLE, "");
                content_range(&mut reply, &format!("bytes */{size}"));
                reply
            }
        };
        let headers = reply.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if let Ok(etag) = HeaderValue::from_str(&etag) {
            headers.insert(ETAG, etag);
        }
        if self.ranges {
            headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        }
        reply
    }

    fn event(
        &self,
        controller: &Arc<Controller>,
        record: &Arc<Record>,
        event: &str,
        body: &Bytes,
    ) -> Response<Body> {
        let mut fields = HashMap::new();
        for line in String::from_utf8_lossy(body).lines() {
            if let Some((key, value)) = line.split_once('=') {
                fields.insert(key.to_owned(), percent_decode(value));
            }
        }
        let name = fields.get("name").cloned().unwrap_or_default();
        let token = fields.remove("token").unwrap_or_default();
        let mut answer = String::new();
        let event = match event {
            "register" => {
                if !knows_token(controller, &token) {
                    return plain(StatusCode::NOT_FOUND, "NotFound");
                }
                answer = self.register(&name, &fields);
                if answer == "conflict" {
                    return plain(StatusCode::CONFLICT, "conflict");
                }
                "registered"
            }
            "remove" => {
                self.lock().registrations.retain(|one| one.name != name);
                "removed"
            }
            "online" | "job_started" | "job_completed" => event,
            _ => return plain(StatusCode::NOT_FOUND, "Not Found"),
        };
        self.lock().events.push(RunnerEvent {
            at: record.now(),
            event: event.to_owned(),
            runner: name.clone(),
            fields,
        });
        record.ring();
        self.webhook(controller, record, event, name);
        plain(StatusCode::OK, &answer)
    }

    fn register(&self, name: &str, fields: &HashMap<String, String>) -> String {
        let mut state = self.lock();
        let taken = state.registrations.iter().any(|one| one.name == name);
        let replace = fields.get("replace").is_some_and(|value| value == "true");
        if taken && !replace {
            return "conflict".into();
        }
        state.registrations.retain(|one| one.name != name);
        let agent_id = self.next_agent_id.fetch_add(1, Ordering::Relaxed);
        state.registrations.push(Registration {
            name: name.to_owned(),
            agent_id,
            fields: fields.clone(),
        });
        format!("agent_id={agent_id}\n")
    }

    /// What GARM does when the forge tells it of a job.
    fn webhook(
        &self,
        controller: &Arc<Controller>,
        record: &Arc<Record>,
        event: &str,
        name: String,
    ) {
        let completed = match event {
            "job_started" => false,
            "job_completed" => true,
            _ => return,
        };
        if completed {
            // Every runner here is ephemeral: the forge forgets it with its job.
            self.lock().registrations.retain(|one| one.name != name);
        }
        let (controller, record) = (Arc::clone(controller), Arc::clone(record));
        let apply = move || {
            controller.with(&name, |one| {
                if completed {
                    one.runner_status = "terminated".into();
                    // GARM refuses this move while the provider has not returned.
                    if one.status != "creating" {
                        one.status = "pending_delete".into();
                    }
                } else {
                    one.runner_status = "active".into();
                }
            });
            record.ring();
        };
        match self.webhooks {
            Webhooks::Off => {}
            Webhooks::AtOnce => apply(),
            Webhooks::After(delay) => {
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    apply();
                });
            }
        }
    }
}

fn knows_token(controller: &Controller, token: &str) -> bool {
    !token.is_empty()
        && controller
            .lock()
            .iter()
            .any(|one| one.jit.is_none() && one.secrets.iter().any(|secret| secret == token))
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut reply = crate::api::ok("text/plain; charset=utf-8", text.to_owned());
    *reply.status_mut() = status;
    reply
}

fn content_range(reply: &mut Response<Body>, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        reply.headers_mut().insert(CONTENT_RANGE, value);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Everything,
    Part(usize, usize),
    Nothing,
}

/// A single byte range; several, and what is malformed, are ignored as the RFC allows.
fn range(value: &HeaderValue, size: usize) -> Asked {
    let spec = value.to_str().ok().and_then(|text| text.strip_prefix("bytes="));
    let Some((first, last)) = spec.and_then(|spec| spec.split_once('-')) else {
        return Asked::Everything;
    };
    match (first.trim(), last.trim()) {
        ("", last) => match last.parse::<usize>() {
            Ok(0) => Asked::Nothing,
            Ok(count) if size > 0 => Asked::Part(size.saturating_sub(count), size - 1),
            _ => Asked::Everything,
        },
        (first, last) => match (first.parse::<usize>(), last.parse::<usize>()) {
            (Ok(first), _) if first >= size => Asked::Nothing,
            (Ok(first), Err(_)) if last.is_empty() => Asked::Part(first, size - 1),
            (Ok(first), Ok(last)) if first <= last => Asked::Part(first, last.min(size - 1)),
            _ => Asked::Everything,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        for (text, wanted) in [
            ("bytes=0-9", Asked::Part(0, 9)),
            ("bytes=5-", Asked::Part(5, 99)),
            ("bytes=-10", Asked::Part(90, 99)),
            ("bytes=90-500", Asked::Part(90, 99)),
            ("bytes=100-", Asked::Nothing),
            ("bytes=9-5", Asked::Everything),
            ("bytes=0-1,5-6", Asked::Everything),
            ("items=0-1", Asked::Everything),
        ] {
            assert_eq!(range(&HeaderValue::from_static(text), 100), wanted, "{text}");
        }
    }
}
