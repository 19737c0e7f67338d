//! Faults as tests ask for them, and the choice of the one that a call meets.

use std::ops::{Bound, RangeBounds};
use std::time::Duration;

use crate::endpoint::Endpoint;

/// What goes wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Another answer; GARM's handler does not run.
    Status {
        /// The status code.
        code: u16,
        /// The body.
        body: String,
        /// Further headers, `Retry-After` for one.
        headers: Vec<(String, String)>,
    },
    /// The right answer, late.
    Delay(Duration),
    /// Accepted, read, never answered.
    HangForever,
    /// A TCP reset instead of the answer; the handler does not run.
    ResetBeforeReply,
    /// A TCP reset after the head and so many bytes of the right answer's body.
    ResetAfter(u64),
    /// A FIN after the head and so many bytes of the right answer's body.
    CloseAfter(u64),
    /// Closed with no byte sent; the handler does not run.
    EmptyReply,
    /// The handler runs and GARM's state changes, then closed with no byte sent.
    EmptyReplyAfterApplying,
    /// The right answer under a `Content-Length` of so many bytes (more than it has), then a FIN.
    WrongLength(u64),
    /// These bytes instead of an answer, then a FIN.
    Garbage(Vec<u8>),
    /// A 302 to that URL.
    RedirectTo(String),
    /// A redirect with another code (301, 303, 307, 308).
    RedirectWith(u16, String),
    /// The right answer, its body at that pace.
    SlowBody {
        /// At least 1.
        bytes_per_sec: u64,
    },
    /// The right answer with the byte at that offset of its body inverted.
    FlipByte(u64),
    /// The right answer with another body of the same status and type.
    Body(Vec<u8>),
    /// A captive portal: 200 with a log-in page.
    CaptivePortal,
}

impl FaultKind {
    /// An answer with that status and GARM's opaque 500 body.
    pub fn status(code: u16) -> Self {
        Self::Status {
            code,
            body: "{\"error\":\"Server error\",\"details\":\"\"}\n".into(),
            headers: vec![("content-type".into(), "application/json".into())],
        }
    }

    /// An answer with that status and body.
    pub fn answer(code: u16, body: &str) -> Self {
        Self::Status { code, body: body.into(), headers: Vec::new() }
    }

    /// GARM's 401 for a token that it does not accept.
    pub fn unauthorized() -> Self {
        Self::Status {
            code: 401,
            body: crate::api::errors::AUTHENTICATION_FAILED.into(),
            headers: vec![("content-type".into(), "application/json".into())],
        }
    }

    /// An answer with that status and a `Retry-After` in seconds.
    pub fn retry_after(code: u16, seconds: u64) -> Self {
        Self::Status {
            code,
            body: String::new(),
            headers: vec![("retry-after".into(), seconds.to_string())],
        }
    }

    /// For the record: one short word or two.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Status { code, .. } => format!("status {code}"),
            Self::Delay(time) => format!("delay {} ms", time.as_millis()),
            Self::HangForever => "hang".into(),
            Self::ResetBeforeReply => "reset".into(),
            Self::ResetAfter(bytes) => format!("reset after {bytes} B"),
            Self::CloseAfter(bytes) => format!("close after {bytes} B"),
            Self::EmptyReply => "empty reply".into(),
            Self::EmptyReplyAfterApplying => "lost reply".into(),
            Self::WrongLength(bytes) => format!("declares {bytes} B"),
            Self::Garbage(_) => "garbage".into(),
            Self::RedirectTo(_) | Self::RedirectWith(..) => "redirect".into(),
            Self::SlowBody { bytes_per_sec } => format!("{bytes_per_sec} B/s"),
            Self::FlipByte(offset) => format!("byte {offset} flipped"),
            Self::Body(_) => "other body".into(),
            Self::CaptivePortal => "captive portal".into(),
        }
    }
}

/// A fault: where, which of the calls there, and what. Every fault counts the calls that it could
/// concern by itself, from 1; of several that fit one call the earliest made applies.
#[derive(Clone, Debug)]
pub struct Fault {
    endpoint: Endpoint,
    posted: Option<String>,
    instance: Option<String>,
    first: u64,
    last: u64,
    kind: FaultKind,
    seen: u64,
}

impl Fault {
    /// A 500 on every call to `endpoint`, until told otherwise.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            posted: None,
            instance: None,
            first: 1,
            last: u64::MAX,
            kind: FaultKind::status(500),
            seen: 0,
        }
    }

    /// Only the calls with these numbers, the first being 1: `.nth(2..=3)`, `.nth(2..)`.
    #[must_use]
    pub fn nth(mut self, calls: impl RangeBounds<u64>) -> Self {
        self.first = match calls.start_bound() {
            Bound::Included(first) => *first,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 1,
        };
        self.last = match calls.end_bound() {
            Bound::Included(last) => *last,
            Bound::Excluded(after) => after.saturating_sub(1),
            Bound::Unbounded => u64::MAX,
        };
        self
    }

    /// The first `count` calls.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        self.nth(1..=count)
    }

    /// The first call only.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// Every call.
    #[must_use]
    pub fn always(self) -> Self {
        self.nth(..)
    }

    /// Only calls whose body posts that `status` (`idle`, `failed`, …).
    #[must_use]
    pub fn posting(mut self, status: &str) -> Self {
        self.posted = Some(status.into());
        self
    }

    /// Only calls with that instance's token.
    #[must_use]
    pub fn for_instance(mut self, name: &str) -> Self {
        self.instance = Some(name.into());
        self
    }

    /// What goes wrong.
    #[must_use]
    pub fn kind(mut self, kind: FaultKind) -> Self {
        self.kind = kind;
        self
    }

    /// Counts a call; gives the fault's kind if the call is one of those that it is for.
    pub(crate) fn meets(
        &mut self,
        endpoint: Endpoint,
        posted: Option<&str>,
        instance: Option<&str>,
    ) -> Option<FaultKind> {
        let fits = self.endpoint.covers(endpoint)
            && self.posted.as_deref().is_none_or(|wanted| posted == Some(wanted))
            && self.instance.as_deref().is_none_or(|wanted| instance == Some(wanted));
        if !fits {
            return None;
        }
        self.seen += 1;
        (self.first..=self.last).contains(&self.seen).then(|| self.kind.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_counts_its_own_calls() {
        let mut second = Fault::new(Endpoint::Status).nth(2..=2).posting("idle");
        let met: Vec<bool> = ["installing", "idle", "installing", "idle", "idle"]
            .into_iter()
            .map(|status| second.meets(Endpoint::Status, Some(status), None).is_some())
            .collect();
        assert_eq!(met, [false, false, false, true, false]);
    }
}
