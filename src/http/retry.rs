//! Which failures are worth another attempt, and when.
//!
//! Every wait of the boot is bounded by one deadline, not by a count, and ends at once when the boot is
//! told to stop. Pauses double from half a second to thirty and are drawn at random from the whole
//! range ("full jitter"): a fleet that boots at once must not come back at once.

use std::time::{Duration, Instant};

use reqwest::Method;
use tokio_util::sync::CancellationToken;
use tracing::info;
use url::Url;

use super::cause::Cause;
use super::error::{HttpError, display_url};

/// The longest pause that a server can ask for. Pages of "maintenance" name an hour by habit, which would
/// be the end of the boot although the server is back in a minute.
const LONGEST_ASKED: Duration = Duration::from_secs(120);

/// How long to try at all: what the whole boot shares.
#[derive(Debug, Clone)]
pub struct Patience {
    pub deadline: Instant,
    pub cancel: CancellationToken,
}

impl Patience {
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The same, but ending at the latest after `limit`.
    #[must_use]
    pub fn at_most(&self, limit: Duration) -> Self {
        Self { deadline: self.deadline.min(Instant::now() + limit), cancel: self.cancel.clone() }
    }

    /// One attempt at `method` `url`, which ends early when told to stop and when the deadline passes:
    /// a server that takes the request and never answers must not hold up the end.
    pub async fn bound<T>(
        &self,
        method: Method,
        url: &Url,
        attempt: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        let limit = self.left();
        tokio::select! {
            result = attempt => result,
            () = self.cancel.cancelled() => {
                Err(HttpError::Cancelled { method, url: display_url(url) })
            }
            () = tokio::time::sleep(limit) => {
                Err(HttpError::TimedOut { method, url: display_url(url), limit })
            }
        }
    }

    /// Sleeps; `false` when told to stop, or when the deadline would pass meanwhile.
    pub async fn pause(&self, pause: Duration) -> bool {
        if pause >= self.left() {
            return false;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = self.cancel.cancelled() => false,
        }
    }
}

/// How one kind of request is retried.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// Give up after so many connections in a row that were closed without an answer.
    pub drops: Option<u32>,
    /// Give up after so many attempts; `None`: the patience alone bounds them.
    pub attempts: Option<u32>,
    /// Whose server it is, as a log line names it.
    pub whose: &'static str,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(30),
            drops: None,
            attempts: None,
            whose: "",
        }
    }
}

/// What the classifier says of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Another attempt may succeed; not before the time that the server named, if it did.
    Retry { after: Option<Duration> },
    /// It will fail in the same way again.
    Final,
}

/// Whether another attempt is worth it.
pub fn verdict(error: &HttpError) -> Verdict {
    let retry = |yes: bool, after| if yes { Verdict::Retry { after } } else { Verdict::Final };
    match error {
        HttpError::Status { status, retry_after, .. } => {
            let code = status.as_u16();
            retry(matches!(code, 408 | 425 | 429 | 500..=599), *retry_after)
        }
        HttpError::Transport { source, .. } => {
            retry(!source.is_builder() && !source.is_redirect() && Cause::of(source).passes(), None)
        }
        HttpError::TimedOut { .. } | HttpError::Stalled { .. } => retry(true, None),
        HttpError::GaveUp { source, .. } => verdict(source),
        HttpError::Unexpected { .. } | HttpError::Cancelled { .. } => Verdict::Final,
    }
}

/// The pauses between attempts at one thing.
#[derive(Debug)]
pub struct Backoff {
    policy: Policy,
    count: u32,
}

impl Backoff {
    pub fn new(policy: Policy) -> Self {
        Self { policy, count: 0 }
    }

    /// Something went well: the next failure is a first one.
    pub fn reset(&mut self) {
        self.count = 0;
    }

    /// Says `why` there is to be another attempt and sleeps until then, at least `after`; `false` when
    /// there is to be none.
    pub async fn pause(
        &mut self,
        why: impl std::fmt::Display,
        after: Option<Duration>,
        patience: &Patience,
    ) -> bool {
        self.count += 1;
        let pause = asked(pause_before(self.count, &self.policy), after);
        if pause >= patience.left() {
            info!(attempt = self.count, pause_s = pause.as_secs_f32(), "{why}; no time is left");
            return false;
        }
        info!(attempt = self.count, pause_s = pause.as_secs_f32(), "{why}; trying again");
        patience.pause(pause).await
    }
}

/// Makes attempts until one succeeds, fails for good, or `patience` ends.
///
/// `what` says in a log line what is being tried. The last error is returned, wrapped in
/// [`HttpError::GaveUp`] if there was more than one attempt.
pub async fn run<T, F>(
    what: &str,
    policy: &Policy,
    patience: &Patience,
    mut attempt: impl FnMut() -> F,
) -> Result<T, HttpError>
where
    F: Future<Output = Result<T, HttpError>>,
{
    let began = Instant::now();
    let mut drops_in_a_row = 0;
    let mut backoff = Backoff::new(*policy);
    for count in 1.. {
        let error = match attempt().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        drops_in_a_row = if error.is_dropped() { drops_in_a_row + 1 } else { 0 };
        let give_up = |error| match count {
            1 => Err(error),
            _ => Err(HttpError::GaveUp {
                attempts: count,
                spent: began.elapsed(),
                source: Box::new(error),
            }),
        };
        let Verdict::Retry { after } = verdict(&error) else { return give_up(error) };
        let reached = |limit: Option<u32>, count| limit.is_some_and(|limit| count >= limit);
        if reached(policy.drops, drops_in_a_row) || reached(policy.attempts, count) {
            return give_up(error);
        }
        let why = match error.awaits(policy.whose) {
            Some(awaited) => format!("waiting for {awaited} ({what}: {error})"),
            None => format!("{what}: {error}"),
        };
        if !backoff.pause(why, after, patience).await {
            return give_up(error);
        }
    }
    unreachable!("the attempts are counted without an end")
}

/// Our own pause, or the longer one that the server asks for.
fn asked(own: Duration, after: Option<Duration>) -> Duration {
    own.max(after.unwrap_or_default().min(LONGEST_ASKED))
}

/// The pause after attempt number `count` (from 1): anything up to the doubled first pause.
fn pause_before(count: u32, policy: &Policy) -> Duration {
    let doubled = policy.first_pause.saturating_mul(1 << count.saturating_sub(1).min(16));
    doubled.min(policy.longest_pause).mul_f64(random_fraction())
}

/// A number in `0.1..=1.0`. Spread matters here, quality does not: the hasher's random seed will do.
fn random_fraction() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(0);
    0.1 + 0.9 * f64::from(u32::try_from(random >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::{Method, StatusCode};

    use super::*;

    fn answered(status: u16, retry_after: Option<Duration>) -> HttpError {
        HttpError::Status {
            method: Method::GET,
            url: "http://garm.example/x".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            details: String::new(),
            retry_after,
            date: None,
        }
    }

    fn patience(limit: Duration) -> Patience {
        Patience { deadline: Instant::now() + limit, cancel: CancellationToken::new() }
    }

    #[test]
    fn of_all_error_statuses_only_the_passing_ones_are_retried() {
        let retried: Vec<u16> =
            (300..=499).filter(|code| verdict(&answered(*code, None)) != Verdict::Final).collect();
        assert_eq!(retried, [408, 425, 429]);
        assert!((500..=599).all(|code| verdict(&answered(code, None)) != Verdict::Final));
    }

    #[tokio::test]
    async fn a_final_failure_is_returned_as_it_came() {
        let mut calls = 0;
        let result: Result<(), _> =
            run("x", &Policy::default(), &patience(Duration::from_secs(9)), || {
                calls += 1;
                std::future::ready(Err(answered(404, None)))
            })
            .await;
        assert_eq!(calls, 1);
        assert_eq!(
            result.unwrap_err().to_string(),
            "GET http://garm.example/x: the server answered 404 Not Found"
        );
    }

    #[tokio::test]
    async fn a_passing_failure_is_retried_until_it_passes() {
        let policy = Policy { first_pause: Duration::from_millis(1), ..Policy::default() };
        let mut calls = 0;
        run("x", &policy, &patience(Duration::from_secs(9)), || {
            calls += 1;
            std::future::ready(if calls < 4 { Err(answered(503, None)) } else { Ok(()) })
        })
        .await
        .unwrap();
        assert_eq!(calls, 4);
    }

    #[tokio::test]
    async fn a_pause_beyond_the_deadline_is_not_begun() {
        let began = Instant::now();
        let wait = Some(Duration::from_secs(3600));
        let result: Result<(), _> =
            run("x", &Policy::default(), &patience(Duration::from_secs(5)), || {
                std::future::ready(Err(answered(429, wait)))
            })
            .await;
        assert_eq!(result.unwrap_err().status(), Some(429));
        assert!(began.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn a_server_that_asks_for_an_hour_is_asked_again_before_that() {
        let own = Duration::from_secs(3);
        let seconds = |after| asked(own, Some(Duration::from_secs(after))).as_secs();
        assert_eq!([seconds(0), seconds(20), seconds(3600), seconds(u64::MAX)], [3, 20, 120, 120]);
        assert_eq!(asked(own, None), own);
    }

    #[tokio::test]
    async fn a_stop_ends_the_pause() {
        let patience = patience(Duration::from_secs(600));
        patience.cancel.cancel();
        let policy = Policy {
            first_pause: Duration::from_secs(300),
            longest_pause: Duration::from_secs(300),
            ..Policy::default()
        };
        let result: Result<(), _> =
            run("x", &policy, &patience, || std::future::ready(Err(answered(503, None)))).await;
        assert_eq!(result.unwrap_err().status(), Some(503));
    }

    proptest! {
        #[test]
        fn a_pause_is_within_its_bounds(count in 1u32..100) {
            let policy = Policy::default();
            prop_assert!(pause_before(count, &policy) <= policy.longest_pause);
        }
    }
}
