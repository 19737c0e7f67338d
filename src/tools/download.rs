//! The runner from the network, straight into the unpacker.
//!
//! The archive is never on disk: its bytes go through a short pipe to the thread that hashes, inflates
//! and unpacks them. A cut in the middle is mended by asking for the rest (`Range` with `If-Range`), so
//! the unpacker does not even notice; where the server cannot do that, the attempt starts again.
//! Must not: send anything of GARM's to a download host. A `temp_download_token` goes to the host that
//! it was given for, and reqwest drops it when a redirect leads elsewhere.

mod pace;

use std::path::Path;

use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, RANGE};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use url::Url;

pub use self::pace::Pace;
use self::pace::{Stalled, Watch};
use super::blocking;
use super::digest::Sha256;
use super::locate::{self, Unusable};
use super::place::{Marker, PlaceError, Staging};
use super::policy::Limits;
use super::unpack::{self, ByteSender, Order, UnpackError, Unpacked};
use crate::host::users::Account;
use crate::http::retry::{Backoff, Verdict};
use crate::http::{Http, HttpError, Patience, Policy, display_url, retry};
use crate::secret::Secret;

/// Pieces of the body between the network and the unpacker. A piece may have 400 kB, and what has been
/// used once stays with the process: 32 of them were 10 MB.
const PIECES: usize = 4;
/// Attempts at one address before the next is tried, where there are several.
const ATTEMPTS_EACH: u32 = 3;

/// One place to download the runner from.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub url: Url,
    pub sha256: Option<Sha256>,
    /// GARM's `temp_download_token`, for this URL's host alone.
    pub token: Option<Secret>,
}

#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error(
        "download the runner: nobody says where from: GARM's metadata names no address or cannot be \
         read, and neither --bootstrap-file nor --runner-url names one"
    )]
    NoCandidate,
    #[error("download the runner: {0}")]
    Http(#[from] HttpError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error("use the runner that was downloaded: {0}")]
    Unusable(#[from] Unusable),
    #[error(transparent)]
    Place(#[from] PlaceError),
}

/// Downloads the runner from the first candidate that has it, and makes it the home. Of several
/// candidates each gets a few attempts, and all get another turn as long as one may yet come right.
pub async fn download(
    http: &Http,
    candidates: &[Candidate],
    home: &Path,
    owner: Option<&Account>,
    pace: Pace,
    patience: &Patience,
) -> Result<Unpacked, DownloadError> {
    let several = candidates.len() > 1;
    let policy = Policy {
        whose: "the download host",
        attempts: several.then_some(ATTEMPTS_EACH),
        ..Policy::default()
    };
    let mut last = DownloadError::NoCandidate;
    let mut backoff = Backoff::new(policy);
    loop {
        let mut may_pass = false;
        for candidate in candidates {
            info!("downloading the runner from {}", display_url(&candidate.url));
            if candidate.sha256.is_none() {
                warn!("nobody gave a checksum for the runner, so it cannot be verified");
            }
            let source = Source { http, candidate, policy, pace, patience };
            last = match source.bring(home, owner).await {
                Ok(unpacked) => return Ok(unpacked),
                Err(error) => error,
            };
            if patience.cancel.is_cancelled() || matches!(last, DownloadError::Place(_)) {
                return Err(last);
            }
            may_pass |= last.may_pass();
            if several {
                warn!("failed to {last}");
            }
        }
        if !several || !may_pass || !backoff.pause("no address has it", None, patience).await {
            return Err(last);
        }
    }
}

impl DownloadError {
    /// Whether it may go well at another time.
    fn may_pass(&self) -> bool {
        match self {
            Self::Http(error) => retry::verdict(error) != Verdict::Final,
            Self::Unpack(error) => is_cut(error),
            Self::NoCandidate | Self::Unusable(_) | Self::Place(_) => false,
        }
    }
}

/// Whether the bytes only stopped coming.
fn is_cut(error: &UnpackError) -> bool {
    matches!(error, UnpackError::Input { .. } | UnpackError::Truncated { .. })
}

/// Makes the tree the home, after a look at what was unpacked.
fn move_in(staging: Staging, unpacked: &Unpacked) -> Result<(), DownloadError> {
    let runner = locate::inspect(staging.path())?;
    staging.commit(&Marker::of(unpacked, runner.version))?;
    Ok(())
}

/// One candidate, and how it is asked.
struct Source<'a> {
    http: &'a Http,
    candidate: &'a Candidate,
    policy: Policy,
    pace: Pace,
    patience: &'a Patience,
}

impl Source<'_> {
    /// Attempts, each from the beginning, until one is whole or fails for good.
    async fn bring(&self, home: &Path, owner: Option<&Account>) -> Result<Unpacked, DownloadError> {
        let mut backoff = Backoff::new(self.policy);
        for attempt in 1.. {
            let opened = self.open(&HeaderMap::new()).await?;
            let needed = opened.content_length().map(unpack::expected_bytes);
            let staging = Staging::beside(home, owner, needed)?;
            let error = match self.attempt(opened, &staging, owner).await {
                Ok(unpacked) => {
                    blocking(move || move_in(staging, &unpacked)).await?;
                    return Ok(unpacked);
                }
                Err(error) => error,
            };
            let last = self.policy.attempts.is_some_and(|limit| attempt >= limit);
            let why = format!("download: {error}; starting from the beginning");
            if last || !is_cut(&error) || !backoff.pause(why, None, self.patience).await {
                return Err(error.into());
            }
        }
        unreachable!("the attempts are counted without an end")
    }

    /// Asks for the archive, or for its rest if `headers` say so, until there is an answer.
    async fn open(&self, headers: &HeaderMap) -> Result<Response, HttpError> {
        let url = &self.candidate.url;
        retry::run("download", &self.policy, self.patience, || async {
            let mut request: RequestBuilder =
                self.http.request(Method::GET, url.clone()).headers(headers.clone());
            if let Some(token) = &self.candidate.token {
                request = request.bearer_auth(token.expose());
            }
            tokio::select! {
                response = self.http.stream(request) => response,
                () = self.patience.cancel.cancelled() => Err(HttpError::Cancelled {
                    method: Method::GET,
                    url: display_url(url),
                }),
            }
        })
        .await
    }

    /// One attempt: a body that is fed to an unpacker.
    async fn attempt(
        &self,
        opened: Response,
        staging: &Staging,
        owner: Option<&Account>,
    ) -> Result<Unpacked, UnpackError> {
        let (sender, stream) = unpack::byte_stream(PIECES);
        let unpacking = {
            let (into, owner) = (staging.path().to_owned(), owner.cloned());
            let (expected, cancel) = (self.candidate.sha256, self.patience.cancel.clone());
            blocking(move || {
                let order = Order {
                    expected,
                    owner: owner.as_ref(),
                    limits: Limits::default(),
                    cancel: &cancel,
                };
                unpack::unpack(stream, &into, &order)
            })
        };
        let (unpacked, ()) =
            tokio::join!(unpacking, self.feed(opened, sender, &self.patience.cancel));
        unpacked
    }

    /// Hands the body on piece by piece. Returning without `finish` tells the unpacker that it broke
    /// off; an unpacker that has gone has its own error to tell.
    async fn feed(&self, mut response: Response, sender: ByteSender, cancel: &CancellationToken) {
        let mut backoff = Backoff::new(self.policy);
        let whole = response.content_length();
        let mut received: u64 = 0;
        let mut watch = Watch::new(self.pace);
        loop {
            let chunk = tokio::select! {
                chunk = watch.wait(response.chunk()) => chunk,
                () = cancel.cancelled() => return,
            };
            let error = match chunk {
                Ok(Ok(Some(bytes))) => {
                    received += bytes.len() as u64;
                    backoff.reset();
                    if sender.send(bytes).await.is_err() {
                        return;
                    }
                    continue;
                }
                Ok(Ok(None)) => {
                    let _ = sender.finish().await;
                    return;
                }
                Ok(Err(source)) => self.http.transport(Method::GET, &self.candidate.url, source),
                Err(Stalled { received }) => self.stalled(received),
            };
            let again = retry::verdict(&error) != Verdict::Final
                && backoff.pause(format!("download: {error}"), None, self.patience).await;
            let rest = if again { self.rest(&response, received, whole).await } else { None };
            let Some(rest) = rest else {
                let _ = sender.fail(std::io::Error::other(error)).await;
                return;
            };
            info!("the download goes on after {received} bytes");
            watch = Watch::new(self.pace);
            response = rest;
        }
    }

    /// Asks for what is missing after `received` of the `whole` bytes; `None` if the server cannot be
    /// held to give the rest of the very same file.
    async fn rest(&self, broken: &Response, received: u64, whole: Option<u64>) -> Option<Response> {
        // A weak validator does not promise the same bytes (RFC 9110 §13.1.5).
        let validator =
            broken.headers().get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"))?;
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, format!("bytes={received}-").parse().ok()?);
        headers.insert(IF_RANGE, validator.clone());
        let response = self.open(&headers).await.ok()?;
        let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
        let continues = response.status() == StatusCode::PARTIAL_CONTENT
            && range.is_some_and(|range| is_rest(range, received, whole))
            && response.headers().get(ETAG) == Some(validator);
        continues.then_some(response)
    }

    fn stalled(&self, received: u64) -> HttpError {
        let url = display_url(&self.candidate.url);
        HttpError::Stalled { method: Method::GET, url, received, over: self.pace.over }
    }
}

/// Whether a `Content-Range` is that of the end of the file, from `received` on.
fn is_rest(range: &str, received: u64, whole: Option<u64>) -> bool {
    let Some(rest) = range.strip_prefix(&format!("bytes {received}-")) else { return false };
    let Some((last, size)) = rest.split_once('/') else { return false };
    let (last, size) = (last.parse::<u64>().ok(), size.parse::<u64>().ok());
    let Some(last) = last else { return false };
    let whole = whole.or(size);
    (size.is_none() || size == whole) && whole.is_none_or(|whole| last + 1 == whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_same_file_is_its_rest() {
        let table = [
            ("bytes 10-99/100", Some(100), true),
            ("bytes 10-99/*", Some(100), true),
            ("bytes 10-99/100", None, true),
            ("bytes 10-99/200", None, false),
            ("bytes 10-99/200", Some(100), false),
            ("bytes 10-98/100", Some(100), false),
            ("bytes 0-99/100", Some(100), false),
            ("bytes 100-199/200", Some(200), false),
            ("bytes 10-", Some(100), false),
            ("items 10-99/100", Some(100), false),
        ];
        for (range, whole, expected) in table {
            assert_eq!(is_rest(range, 10, whole), expected, "{range} of {whole:?}");
        }
    }
}
