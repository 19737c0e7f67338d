//! The runner from the network, straight into the unpacker.
//!
//! The archive is never on disk: its bytes go through a short pipe to the thread that hashes, inflates
//! and unpacks them. A cut in the middle is mended by asking for the rest (`Range` with `If-Range`), so
//! the unpacker does not even notice; where the server cannot do that, the attempt starts again.
//! Must not: send anything of GARM's to a download host. A `temp_download_token` goes to the host that
//! it was given for, and reqwest drops it when a redirect leads elsewhere.

use std::path::Path;

use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, RANGE};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use url::Url;

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

/// Pieces of the body between the network and the unpacker.
const PIECES: usize = 32;
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

/// Downloads the runner from the first candidate that has it, and makes it the home.
pub async fn download(
    http: &Http,
    candidates: &[Candidate],
    home: &Path,
    owner: Option<&Account>,
    patience: &Patience,
) -> Result<Unpacked, DownloadError> {
    let mut last = DownloadError::NoCandidate;
    for candidate in candidates {
        let url = display_url(&candidate.url);
        info!("downloading the runner from {url}");
        if candidate.sha256.is_none() {
            warn!("nobody gave a checksum for the runner, so it cannot be verified");
        }
        last = match from_one(http, candidate, home, owner, patience).await {
            Ok(unpacked) => return Ok(unpacked),
            Err(error) => error,
        };
        if patience.cancel.is_cancelled() || matches!(last, DownloadError::Place(_)) {
            break;
        }
        if candidates.len() > 1 {
            warn!("failed to {last}");
        }
    }
    Err(last)
}

/// Attempts at one candidate, each from the beginning, until one is whole or fails for good.
async fn from_one(
    http: &Http,
    candidate: &Candidate,
    home: &Path,
    owner: Option<&Account>,
    patience: &Patience,
) -> Result<Unpacked, DownloadError> {
    let mut backoff = Backoff::new(Policy::default());
    loop {
        let opened = open(http, candidate, &HeaderMap::new(), patience).await?;
        let needed = opened.content_length().map(unpack::expected_bytes);
        let staging = Staging::beside(home, owner, needed)?;
        let job = Job { http, candidate, patience };
        match job.run(opened, &staging, owner).await {
            Ok(unpacked) => {
                blocking(move || move_in(staging, &unpacked)).await?;
                return Ok(unpacked);
            }
            Err(error @ (UnpackError::Input { .. } | UnpackError::Truncated { .. })) => {
                if !backoff.pause("download", &error, None, patience).await {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Makes the tree the home, after a look at what was unpacked.
fn move_in(staging: Staging, unpacked: &Unpacked) -> Result<(), DownloadError> {
    let runner = locate::inspect(staging.path())?;
    staging.commit(&Marker::of(unpacked, runner.version))?;
    Ok(())
}

/// Asks for the archive, or for its rest if `headers` say so, until there is an answer.
async fn open(
    http: &Http,
    candidate: &Candidate,
    headers: &HeaderMap,
    patience: &Patience,
) -> Result<Response, HttpError> {
    retry::run("download", &Policy::default(), patience, || async {
        let mut request: RequestBuilder =
            http.request(Method::GET, candidate.url.clone()).headers(headers.clone());
        if let Some(token) = &candidate.token {
            request = request.bearer_auth(token.expose());
        }
        tokio::select! {
            response = http.stream(request) => response,
            () = patience.cancel.cancelled() => Err(HttpError::Cancelled {
                method: Method::GET,
                url: display_url(&candidate.url),
            }),
        }
    })
    .await
}

/// One attempt: a body that is fed to an unpacker.
struct Job<'a> {
    http: &'a Http,
    candidate: &'a Candidate,
    patience: &'a Patience,
}

impl Job<'_> {
    async fn run(
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
        let mut backoff = Backoff::new(Policy::default());
        let mut received: u64 = 0;
        loop {
            let chunk = tokio::select! {
                chunk = response.chunk() => chunk,
                () = cancel.cancelled() => return,
            };
            match chunk {
                Ok(Some(bytes)) => {
                    received += bytes.len() as u64;
                    backoff.reset();
                    if sender.send(bytes).await.is_err() {
                        return;
                    }
                }
                Ok(None) => {
                    let _ = sender.finish().await;
                    return;
                }
                Err(source) => {
                    let error = self.broken(source);
                    let again = retry::verdict(&error) != Verdict::Final
                        && backoff.pause("download", &error, None, self.patience).await;
                    let rest = if again { self.rest(&response, received).await } else { None };
                    let Some(rest) = rest else {
                        let _ = sender.fail(std::io::Error::other(error)).await;
                        return;
                    };
                    response = rest;
                }
            }
        }
    }

    /// Asks for what is missing after `received` bytes; `None` if the server cannot be held to give the
    /// rest of the very same file.
    async fn rest(&self, broken: &Response, received: u64) -> Option<Response> {
        // A weak validator does not promise the same bytes (RFC 9110 §13.1.5).
        let validator =
            broken.headers().get(ETAG).filter(|tag| !tag.as_bytes().starts_with(b"W/"))?;
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, format!("bytes={received}-").parse().ok()?);
        headers.insert(IF_RANGE, validator.clone());
        let response = open(self.http, self.candidate, &headers, self.patience).await.ok()?;
        let begins_at = format!("bytes {received}-");
        let continues = response.status() == StatusCode::PARTIAL_CONTENT
            && response
                .headers()
                .get(CONTENT_RANGE)
                .is_some_and(|range| range.as_bytes().starts_with(begins_at.as_bytes()))
            && response.headers().get(ETAG) == Some(validator);
        continues.then_some(response)
    }

    fn broken(&self, source: reqwest::Error) -> HttpError {
        HttpError::Transport { method: Method::GET, url: display_url(&self.candidate.url), source }
    }
}
