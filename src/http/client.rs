//! The one HTTP client.
//!
//! Keeps a few connections open and reuses them. Follows redirects, but never for a request to an API
//! prefix: GARM's `301` for an unclean path would turn a POST into a GET.

use std::time::Duration;

use bytes::Bytes;
use reqwest::redirect::Policy as Redirects;
use reqwest::{Client, Method, NoProxy, Proxy, RequestBuilder, Response};
use url::Url;

use super::error::read_details;
use super::{HttpError, Trust, display_url};

const USER_AGENT: &str = concat!("garm-bootstrap/", env!("CARGO_PKG_VERSION"));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// One attempt at a small request, answer included.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);
/// The longest silence in the middle of a download.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
/// GARM closes an idle connection after 60 s; ours are not reused that late.
const IDLE_TIMEOUT: Duration = Duration::from_secs(50);
/// Small answers are small; more than this is a fault of the other side.
const BODY_LIMIT: usize = 4 << 20;
const REDIRECTS: usize = 10;

/// Proxies, as the environment or GARM's bootstrap data name them. Credentials may stand in the URLs.
#[derive(Debug, Clone, Default)]
pub struct ProxySettings {
    pub http: Option<String>,
    pub https: Option<String>,
    /// Comma-separated hosts, domains and networks.
    pub no_proxy: Option<String>,
}

/// A client could not be made.
#[derive(Debug, thiserror::Error)]
#[error("set up the HTTP client: {0}")]
pub struct ClientError(String);

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
    client: Client,
}

impl Http {
    /// A client that believes `trust` on top of the usual roots. Redirects are not followed for
    /// addresses that begin with one of `api`.
    pub fn new(trust: &Trust, proxy: &ProxySettings, api: Vec<Url>) -> Result<Self, ClientError> {
        let certificates = trust
            .certificates()
            .map(|der| reqwest::Certificate::from_der(der))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| ClientError(error.to_string()))?;
        let mut builder = Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(CHUNK_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .tcp_nodelay(true)
            .redirect(redirects(api))
            .tls_certs_merge(certificates)
            .no_proxy();
        for proxy in proxies(proxy)? {
            builder = builder.proxy(proxy);
        }
        let client = builder.build().map_err(|error| ClientError(error.to_string()))?;
        Ok(Self { client })
    }

    pub fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.client.request(method, url)
    }

    /// One attempt at a request with a small answer. Anything but a 2xx is [`HttpError::Status`].
    pub async fn fetch(&self, request: RequestBuilder) -> Result<Reply, HttpError> {
        let attempt = Attempt::of(request)?;
        let (method, url) = (attempt.method.clone(), attempt.url.clone());
        let whole = async {
            let mut response = self.open(attempt).await?;
            let body = read_body(&mut response).await?;
            Ok(Reply { body, date: date_of(&response) })
        };
        tokio::time::timeout(ATTEMPT_TIMEOUT, whole).await.unwrap_or(Err(HttpError::TimedOut {
            method,
            url,
            limit: ATTEMPT_TIMEOUT,
        }))
    }

    /// One attempt at a request whose body is then streamed by the caller, up to its headers.
    pub async fn stream(&self, request: RequestBuilder) -> Result<Response, HttpError> {
        self.open(Attempt::of(request)?).await
    }

    async fn open(&self, attempt: Attempt) -> Result<Response, HttpError> {
        let Attempt { method, url, request } = attempt;
        let mut response = self.client.execute(request).await.map_err(|source| {
            HttpError::Transport { method: method.clone(), url: url.clone(), source }
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        // What the server says helps; that it could not be read does not.
        let details = read_body(&mut response).await.map(|body| read_details(&body));
        Err(HttpError::Status {
            method,
            url,
            status: response.status(),
            details: details.unwrap_or_default(),
            retry_after: retry_after(&response),
        })
    }
}

/// A request with what an error says of it.
struct Attempt {
    method: Method,
    url: String,
    request: reqwest::Request,
}

impl Attempt {
    fn of(request: RequestBuilder) -> Result<Self, HttpError> {
        let request = request.build().map_err(|source| HttpError::Transport {
            method: Method::GET,
            url: source.url().map(display_url).unwrap_or_default(),
            source,
        })?;
        Ok(Self { method: request.method().clone(), url: display_url(request.url()), request })
    }
}

async fn read_body(response: &mut Response) -> Result<Bytes, HttpError> {
    let url = display_url(response.url());
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() > BODY_LIMIT => {
                return Err(HttpError::Unexpected {
                    method: Method::GET,
                    url,
                    expected: "a small answer",
                    why: format!("it is longer than {BODY_LIMIT} bytes"),
                });
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body.into()),
            Err(source) => return Err(HttpError::Transport { method: Method::GET, url, source }),
        }
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

type MakeProxy = fn(&str) -> reqwest::Result<Proxy>;

fn proxies(settings: &ProxySettings) -> Result<Vec<Proxy>, ClientError> {
    // A link-local address (a cloud's metadata service) never lies behind a proxy.
    let bypass = ["169.254.0.0/16,fe80::/10", settings.no_proxy.as_deref().unwrap_or_default()];
    let no_proxy = NoProxy::from_string(&bypass.join(","));
    let mut proxies = Vec::new();
    let kinds: [(&Option<String>, MakeProxy); 2] =
        [(&settings.http, |url| Proxy::http(url)), (&settings.https, |url| Proxy::https(url))];
    for (url, make) in kinds {
        let Some(url) = url else { continue };
        // The text of the error would show the credentials in the URL.
        let proxy =
            make(url).map_err(|_| ClientError("a proxy's address is not a URL".to_owned()))?;
        proxies.push(proxy.no_proxy(no_proxy.clone()));
    }
    Ok(proxies)
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
