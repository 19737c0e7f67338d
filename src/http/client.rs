//! The one HTTP client.
//!
//! Keeps a few connections open and reuses them, until it is told to rest ([`Http::rest`]). Follows
//! redirects, but never for a request to an API prefix: GARM's `301` for an unclean path would turn a
//! POST into a GET.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::redirect::Policy as Redirects;
use reqwest::{Client, Method, Proxy, RequestBuilder, Response};
use url::Url;

use super::error::read_details;
use super::proxy::Routes;
use super::{HttpError, ProxySettings, Trust, display_url, tls};

const USER_AGENT: &str = concat!("garm-bootstrap/", env!("CARGO_PKG_VERSION"));
/// GARM closes an idle connection after 60 s; ours are not reused that late.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// Small answers are small; more than this is a fault of the other side.
const BODY_LIMIT: usize = 4 << 20;
const REDIRECTS: usize = 10;

/// How long one attempt may take; how long to try at all is [`super::Patience`]'s.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// From the name to the end of the TLS handshake. A host of several addresses has it for all.
    pub connect: Duration,
    /// A request with a small answer, answer included.
    pub attempt: Duration,
    /// The longest silence before and in the middle of a download.
    pub silence: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            attempt: Duration::from_secs(20),
            silence: Duration::from_secs(60),
        }
    }
}

/// A client could not be made.
#[derive(Debug, thiserror::Error)]
#[error("set up the HTTP client: {0}")]
pub struct ClientError(pub(super) String);

/// A successful small answer, read whole.
#[derive(Debug)]
pub struct Reply {
    pub body: Bytes,
    /// The server's `Date` header.
    pub date: Option<std::time::SystemTime>,
}

/// The client. Cloning shares its connections.
#[derive(Debug, Clone)]
pub struct Http {
    client: Arc<Mutex<Client>>,
    recipe: Arc<Recipe>,
}

/// What a client is made of.
#[derive(Debug)]
struct Recipe {
    tls: rustls::ClientConfig,
    routes: Routes,
    api: Vec<Url>,
    timeouts: Timeouts,
}

impl Recipe {
    fn client(&self, connections: Connections) -> Result<Client, ClientError> {
        let mut builder = Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(self.timeouts.connect)
            .read_timeout(self.timeouts.silence)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .tcp_nodelay(true)
            .redirect(redirects(self.api.clone()))
            // A download's address may hold a signature in its query; the next host need not have it.
            .referer(false)
            .tls_backend_preconfigured(self.tls.clone())
            .no_proxy();
        if let Connections::Closed = connections {
            builder = builder.pool_max_idle_per_host(0);
        }
        if !self.routes.is_empty() {
            let routes = self.routes.clone();
            builder = builder.proxy(Proxy::custom(move |url| routes.proxy_for(url).cloned()));
        }
        builder.build().map_err(|error| ClientError(error.to_string()))
    }
}

/// What becomes of a connection after its answer.
#[derive(Debug, Clone, Copy)]
enum Connections {
    Kept,
    Closed,
}

impl Http {
    /// A client that believes `trust`. Redirects are not followed for addresses that begin with one of
    /// `api`.
    pub fn new(trust: &Trust, proxy: &ProxySettings, api: Vec<Url>) -> Result<Self, ClientError> {
        Self::with_timeouts(trust, proxy, api, Timeouts::default())
    }

    pub fn with_timeouts(
        trust: &Trust,
        proxy: &ProxySettings,
        api: Vec<Url>,
        timeouts: Timeouts,
    ) -> Result<Self, ClientError> {
        let routes = Routes::read(proxy)?;
        let recipe = Recipe { tls: tls::config(trust)?, routes, api, timeouts };
        let client = recipe.client(Connections::Kept)?;
        Ok(Self { client: Arc::new(Mutex::new(client)), recipe: Arc::new(recipe) })
    }

    /// Closes the connections that nobody uses, and keeps none open from now on. For the long time in
    /// which there is nothing to say: a connection that is kept costs a look at it every minute, and after
    /// hours no router on its way knows it any more.
    pub fn rest(&self) {
        // It could be made once, so it can be made again; were it not so, the first one stays.
        if let Ok(client) = self.recipe.client(Connections::Closed) {
            *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
        }
    }

    pub fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).request(method, url)
    }

    /// One attempt at a request with a small answer. Anything but a 2xx is [`HttpError::Status`].
    pub async fn fetch(&self, request: RequestBuilder) -> Result<Reply, HttpError> {
        let attempt = Attempt::of(request)?;
        let (method, url) = (attempt.method.clone(), attempt.url.clone());
        let whole = async {
            let mut response = self.open(attempt).await?;
            let body = self.read_body(&mut response).await?;
            Ok(Reply { body, date: date_of(&response) })
        };
        let limit = self.recipe.timeouts.attempt;
        tokio::time::timeout(limit, whole).await.unwrap_or(Err(HttpError::TimedOut {
            method,
            url,
            limit,
        }))
    }

    /// One attempt at a request whose body is then streamed by the caller, up to its headers.
    pub async fn stream(&self, request: RequestBuilder) -> Result<Response, HttpError> {
        self.open(Attempt::of(request)?).await
    }

    async fn open(&self, attempt: Attempt) -> Result<Response, HttpError> {
        let Attempt { client, method, url, request } = attempt;
        let asked = request.url().clone();
        let mut response = client.execute(request).await.map_err(|source| {
            // After a redirect it is another host that failed.
            let at = source.url().cloned().unwrap_or(asked);
            self.transport(method.clone(), &at, source)
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        // What the server says helps; that it could not be read does not.
        let body = self.read_body(&mut response).await;
        let mut details = body.map(|body| read_details(&body)).unwrap_or_default();
        if let Some(target) = target(&response) {
            details = format!("it leads to {}", display_url(&target));
        }
        Err(HttpError::Status {
            method,
            url,
            status: response.status(),
            details,
            retry_after: retry_after(&response),
            date: date_of(&response),
        })
    }

    /// That no (whole) answer came from `url`.
    pub fn transport(&self, method: Method, url: &Url, source: reqwest::Error) -> HttpError {
        let peer = self.recipe.routes.peer(url);
        HttpError::Transport { method, url: display_url(url), peer, source }
    }

    async fn read_body(&self, response: &mut Response) -> Result<Bytes, HttpError> {
        let url = response.url().clone();
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > BODY_LIMIT => {
                    return Err(HttpError::Unexpected {
                        method: Method::GET,
                        url: display_url(&url),
                        expected: "a small answer",
                        why: format!("it is longer than {BODY_LIMIT} bytes"),
                    });
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok(body.into()),
                Err(source) => return Err(self.transport(Method::GET, &url, source)),
            }
        }
    }
}

/// Where a redirect that is not followed leads.
fn target(response: &Response) -> Option<Url> {
    let location = response.headers().get(reqwest::header::LOCATION)?.to_str().ok()?;
    response.url().join(location).ok().filter(|_| response.status().is_redirection())
}

/// A request with what an error says of it.
struct Attempt {
    client: Client,
    method: Method,
    url: String,
    request: reqwest::Request,
}

impl Attempt {
    fn of(request: RequestBuilder) -> Result<Self, HttpError> {
        let (client, request) = request.build_split();
        let request = request.map_err(|source| HttpError::Unexpected {
            method: Method::GET,
            url: source.url().map(display_url).unwrap_or_default(),
            expected: "to be had",
            why: format!("the request cannot be made: {}", source.without_url()),
        })?;
        let (method, url) = (request.method().clone(), display_url(request.url()));
        Ok(Self { client, method, url, request })
    }
}

/// Redirects are followed up to [`REDIRECTS`] times, but not from one of `api`; reqwest itself takes
/// `Authorization` off when the host changes.
fn redirects(api: Vec<Url>) -> Redirects {
    Redirects::custom(move |attempt| {
        let first = attempt.previous().first();
        if first.is_some_and(|url| api.iter().any(|api| url.as_str().starts_with(api.as_str()))) {
            attempt.stop()
        } else if attempt.previous().len() > REDIRECTS {
            attempt.error(format!("more than {REDIRECTS} redirects"))
        } else {
            attempt.follow()
        }
    })
}

/// The `Retry-After` header: seconds, or a date (RFC 9110 §10.2.3).
fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(reqwest::header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    // Measured by the server's own clock where it says it; ours may be wrong.
    let now = date_of(response).unwrap_or_else(std::time::SystemTime::now);
    at.duration_since(now).ok()
}

fn date_of(response: &Response) -> Option<std::time::SystemTime> {
    let value = response.headers().get(reqwest::header::DATE)?.to_str().ok()?;
    httpdate::parse_http_date(value).ok()
}
