//! GARM's error bodies.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde::Serialize;

/// The 47 bytes of the auth middleware, newline included.
pub(crate) const AUTHENTICATION_FAILED: &str =
    "{\"error\":\"Authentication failed\",\"details\":\"\"}\n";

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiError {
    /// 401 of the middleware: bad token, unknown path, wrong method.
    AuthenticationFailed,
    /// 401 of a handler.
    NotAuthorized,
    BadRequest(String),
    NotFound(String),
    Conflict(String),
    /// 500; GARM keeps the reason to itself.
    ServerError,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    details: &'a str,
}

impl ApiError {
    pub(crate) fn reply(&self) -> Response<Body> {
        let (status, error, details) = match self {
            Self::AuthenticationFailed => (StatusCode::UNAUTHORIZED, "Authentication failed", ""),
            Self::NotAuthorized => (StatusCode::UNAUTHORIZED, "Not Authorized", ""),
            Self::BadRequest(details) => (StatusCode::BAD_REQUEST, "Bad Request", details.as_str()),
            Self::NotFound(details) => (StatusCode::NOT_FOUND, "Not Found", details.as_str()),
            Self::Conflict(details) => (StatusCode::CONFLICT, "Conflict", details.as_str()),
            Self::ServerError => (StatusCode::INTERNAL_SERVER_ERROR, "Server error", ""),
        };
        let body = super::body::go_json(&ErrorBody { error, details });
        let mut reply = super::ok("application/json", body);
        *reply.status_mut() = status;
        reply
    }
}
