//! What can go wrong with a request, and how it is told.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use reqwest::{Method, StatusCode};
use url::Url;

use super::cause::{Cause, Peer};
use crate::text;

/// Longest part of an error answer that is worth repeating.
const SAID_LIMIT: usize = 400;

/// The text of every variant reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No (whole) answer came.
    #[error("{method} {url}: {}", Cause::of(source).tell(source, peer))]
    Transport { method: Method, url: String, peer: Peer, source: reqwest::Error },
    /// No (whole) answer came in the time of one attempt.
    #[error("{method} {url}: no answer within {} s", tenths(*limit))]
    TimedOut { method: Method, url: String, limit: Duration },
    /// A body that comes too slowly to wait for its end.
    #[error("{method} {url}: stalled: {received} bytes came in the last {} s", over.as_secs_f64())]
    Stalled { method: Method, url: String, received: u64, over: Duration },
    /// An answer came, and it is not a success.
    #[error("{method} {url}: the server answered {status}{}", said(details))]
    Status {
        method: Method,
        url: String,
        status: StatusCode,
        /// What the server said, made readable.
        details: String,
        retry_after: Option<Duration>,
        /// The server's `Date` header.
        date: Option<SystemTime>,
    },
    /// A success whose body is not what it should be.
    #[error("{method} {url}: the answer is not {expected}: {why}")]
    Unexpected { method: Method, url: String, expected: &'static str, why: String },
    #[error("{source} (gave up after {attempts} attempts in {:.1} s)", spent.as_secs_f64())]
    GaveUp { attempts: u32, spent: Duration, source: Box<HttpError> },
    #[error("{method} {url}: told to stop")]
    Cancelled { method: Method, url: String },
}

impl HttpError {
    /// The status of the answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(status.as_u16()),
            Self::GaveUp { source, .. } => source.status(),
            _ => None,
        }
    }

    /// What the server said with an answer that is no success.
    pub fn details(&self) -> Option<&str> {
        match self {
            Self::Status { details, .. } => Some(details),
            Self::GaveUp { source, .. } => source.details(),
            _ => None,
        }
    }

    /// The server's `Date`, where an answer brought one.
    pub fn date(&self) -> Option<SystemTime> {
        match self {
            Self::Status { date, .. } => *date,
            Self::GaveUp { source, .. } => source.date(),
            _ => None,
        }
    }

    /// What has to come about before another attempt can get anywhere: a name, a route, a server that
    /// listens. `whose` says whose server it is.
    pub fn awaits(&self, whose: &str) -> Option<String> {
        match self {
            Self::Transport { peer, source, .. } => Cause::of(source).awaits(peer, whose),
            _ => None,
        }
    }

    /// Whether it is the server's certificate that is not believed.
    pub fn is_certificate(&self) -> bool {
        match self {
            Self::Transport { source, .. } => {
                matches!(Cause::of(source), Cause::Certificate(_) | Cause::Early(_))
            }
            Self::GaveUp { source, .. } => source.is_certificate(),
            _ => false,
        }
    }

    /// Whether the server may have acted on the request although no answer tells so.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Transport { source, .. } => !source.is_connect(),
            Self::TimedOut { .. } | Self::Stalled { .. } | Self::Cancelled { .. } => true,
            Self::Status { status, .. } => status.is_server_error(),
            Self::Unexpected { .. } => false,
            Self::GaveUp { source, .. } => source.is_outcome_unknown(),
        }
    }

    /// Whether a connection was made and then closed without an answer. A GARM whose handler panics
    /// does that to every such request (garm-protocol §9, bug 1).
    pub fn is_dropped(&self) -> bool {
        match self {
            Self::Transport { source, .. } => {
                !source.is_connect() && !source.is_timeout() && !source.is_body()
            }
            Self::GaveUp { source, .. } => source.is_dropped(),
            _ => false,
        }
    }
}

/// `url` without credentials and without the query, where tokens hide.
pub fn display_url(url: &Url) -> String {
    let mut shown = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
    if let Some(port) = url.port() {
        let _ = write!(shown, ":{port}");
    }
    shown.push_str(url.path());
    shown
}

/// What an error answer says: GARM's `{"error", "details"}`, else the beginning of the body.
pub(super) fn read_details(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Body {
        error: String,
        #[serde(default)]
        details: String,
    }
    let said = match serde_json::from_slice::<Body>(body) {
        Ok(body) if body.details.is_empty() => body.error,
        Ok(body) => format!("{}: {}", body.error, body.details),
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    text::shorten(&text::one_line(&text::readable(said.as_bytes())), SAID_LIMIT)
}

/// Seconds, as exactly as a person wants to know.
fn tenths(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

fn said(details: &str) -> String {
    if details.is_empty() { String::new() } else { format!(" ({details})") }
}
