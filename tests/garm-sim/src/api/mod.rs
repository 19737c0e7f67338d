//! GARM's HTTP face for instances: which call is which, and what each answers.
//!
//! Status codes, headers and bodies are those of a real GARM, byte for byte where a client could
//! tell. No state lives here; no fault is known here.

pub(crate) mod body;
pub(crate) mod callbacks;
pub(crate) mod certificates;
pub(crate) mod errors;
pub(crate) mod metadata;
pub(crate) mod path;

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;

use crate::controller::Controller;
use crate::endpoint::Endpoint;
use errors::ApiError;
use path::Route;

/// What Go's server reads of a body that the handler left before it gives the connection up.
const LONGEST_UNREAD: usize = 256 << 10;

/// A call with its body, stripped of everything that GARM ignores.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a Method,
    pub(crate) route: &'a Route,
    pub(crate) query: &'a str,
    pub(crate) authorization: Option<&'a str>,
    pub(crate) body: &'a Bytes,
    /// The time, for what gets stored.
    pub(crate) at: Duration,
}

/// GARM's answer; `Err` is a handler's panic, which closes the connection without a word.
pub(crate) struct Panicked;

/// Answers a call to GARM.
pub(crate) fn answer(
    controller: &Controller,
    request: &Request<'_>,
) -> Result<Response<Body>, Panicked> {
    let route = request.route;
    // Answered in front of the router, so before it cleans a path.
    if *request.method == Method::OPTIONS {
        return Ok(Response::default());
    }
    if let Some(clean) = &route.clean {
        let mut location = clean.clone();
        if !request.query.is_empty() {
            location = format!("{location}?{}", request.query);
        }
        return Ok(moved(&location));
    }
    let (known, expected) = (route.endpoint != Endpoint::Unknown, route.endpoint.method());
    if !known && !route.under_api {
        return Ok(not_found());
    }
    let routed: &[Method] = match route.endpoint {
        Endpoint::Agent => &[Method::GET],
        _ => &[Method::GET, Method::POST, Method::PUT, Method::DELETE],
    };
    if !routed.contains(request.method) {
        return Ok(method_not_allowed());
    }
    if route.endpoint == Endpoint::Agent {
        // The websocket: not simulated, so every token is a wrong one.
        return Ok(ApiError::AuthenticationFailed.reply());
    }
    // An unknown path and a wrong method both fall through to the admin's router, which rejects
    // the instance token: it looks exactly like a bad one.
    let lacking = controller.options.no_runner_metadata && route.endpoint.is_new_in_0_2();
    if !known || request.method != expected || lacking {
        return Ok(ApiError::AuthenticationFailed.reply());
    }
    let Some(name) = controller.authenticate(request.authorization) else {
        let mut reply = ApiError::AuthenticationFailed.reply();
        if request.body.len() > LONGEST_UNREAD {
            reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        return Ok(reply);
    };
    let answer = match route.endpoint {
        Endpoint::Status => callbacks::status(controller, &name, request),
        Endpoint::SystemInfo => callbacks::system_info(controller, &name, request),
        Endpoint::RunnerMetadata if controller.options.ca_bundle.is_some() => {
            return Err(Panicked);
        }
        Endpoint::InstallScript => match metadata::install_script(controller, &name) {
            Some(answer) => answer,
            None => return Err(Panicked),
        },
        _ => metadata::answer(controller, &name, request),
    };
    Ok(answer.unwrap_or_else(|error| error.reply()))
}

/// A 200 with that content type.
pub(crate) fn ok(kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut reply = Response::new(body.into());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

fn moved(location: &str) -> Response<Body> {
    let mut reply = Response::default();
    *reply.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(value) = HeaderValue::from_str(location) {
        reply.headers_mut().insert(LOCATION, value);
    }
    reply
}

fn method_not_allowed() -> Response<Body> {
    let mut reply = Response::default();
    *reply.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    reply.headers_mut().remove(ALLOW);
    reply
}

fn not_found() -> Response<Body> {
    let mut reply = ok("text/plain; charset=utf-8", "404 page not found\n");
    *reply.status_mut() = StatusCode::NOT_FOUND;
    reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}
