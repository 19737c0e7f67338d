//! The instance API, one function per endpoint.
//!
//! The token is attached here and nowhere else, so it goes to the metadata and the callback URL only.
//! Reads are retried within the boot's patience; what a status means for the boot is the caller's.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use url::Url;

use super::clock::Clock;
use super::metadata::{CertBundle, RunnerMetadata};
use super::{Claims, Refusal, Skew};
use crate::http::{Http, HttpError, Patience, Policy, display_url, retry};
use crate::secret::Secret;
use crate::text;

/// How often a connection may be closed without an answer before `runner-metadata` is taken for the
/// endpoint that a GARM bug breaks (garm-protocol §9, bug 1): four attempts, under four seconds.
const METADATA_DROPS: u32 = 4;

/// How long a look whether GARM is there may take.
const LOOK: Duration = Duration::from_secs(15);

/// Where GARM is, and what opens its door.
#[derive(Debug, Clone)]
pub struct Access {
    /// `…/api/v1/metadata`, without a slash at the end.
    pub metadata: Url,
    /// `…/api/v1/callbacks`, without `/status` and without a slash at the end.
    pub callback: Url,
    pub token: Secret,
    pub claims: Claims,
}

/// What became of `idle`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdleOutcome {
    Accepted,
    /// 401: GARM has it already (a reply was lost), or a job was faster.
    Known,
    /// 400 with and without the agent id; the text is GARM's.
    Refused(String),
}

/// The instance API of one GARM, for one instance.
#[derive(Debug, Clone)]
pub struct Garm {
    http: Http,
    access: Access,
    patience: Patience,
    clock: Clock,
}

/// How a call to GARM is retried.
pub(super) fn policy() -> Policy {
    Policy { whose: "GARM", ..Policy::default() }
}

fn once() -> Policy {
    Policy { attempts: Some(1), ..policy() }
}

/// Body of `POST {callback}/status`.
#[derive(Debug, Clone, Serialize)]
#[expect(clippy::struct_field_names, reason = "the field's name is GARM's")]
pub(super) struct Status<'a> {
    pub(super) status: &'a str,
    pub(super) message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agent_id: Option<u64>,
}

/// Body of `POST {callback}/system-info`.
#[derive(Debug, Clone, Serialize)]
struct SystemInfo<'a> {
    os_name: &'a str,
    os_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<u64>,
}

impl Access {
    pub fn new(metadata: &Url, callback: &Url, token: Secret) -> Self {
        let claims = Claims::read(token.expose());
        Self {
            metadata: without_suffix(metadata, &[]),
            callback: without_suffix(callback, &["/status", "/system-info"]),
            token,
            claims,
        }
    }
}

impl Garm {
    pub fn new(http: Http, access: Access, patience: Patience) -> Self {
        Self { http, access, patience, clock: Clock::default() }
    }

    /// Keeps no connection from now on: there is nothing to say for a long time.
    pub fn rest(&self) {
        self.http.rest();
    }

    pub fn access(&self) -> &Access {
        &self.access
    }

    pub fn patience(&self) -> &Patience {
        &self.patience
    }

    /// How far the clock here is from GARM's, once GARM has answered, and if it matters.
    pub fn skew(&self) -> Option<Skew> {
        self.clock.skew()
    }

    /// `GET system/service-name`, once: a question without an effect, which every GARM answers as long as
    /// it listens to the instance.
    pub async fn service_name(&self) -> Result<String, HttpError> {
        let body = self.read("system/service-name", &once()).await?;
        Ok(text::shorten(&text::one_line(&text::readable(&body)), 200))
    }

    /// `OPTIONS status`, once and without the token: whether the callback URL is answered.
    pub async fn reach_callback(&self) -> Result<(), HttpError> {
        let url = append(&self.access.callback, "status");
        let asked = self.fetch(self.http.request(Method::OPTIONS, url.clone()));
        self.patience.bound(Method::OPTIONS, &url, asked).await.map(|_| ())
    }

    /// `GET runner-metadata`. Gives up early when the connection is dropped every time.
    pub async fn runner_metadata(&self) -> Result<RunnerMetadata, HttpError> {
        self.read_metadata(&Policy { drops: Some(METADATA_DROPS), ..policy() }).await
    }

    /// The same, but one attempt only.
    pub async fn runner_metadata_once(&self) -> Result<RunnerMetadata, HttpError> {
        self.read_metadata(&once()).await
    }

    async fn read_metadata(&self, policy: &Policy) -> Result<RunnerMetadata, HttpError> {
        let body = self.read("runner-metadata", policy).await?;
        serde_json::from_slice(&body).map_err(|why| HttpError::Unexpected {
            method: Method::GET,
            url: display_url(&append(&self.access.metadata, "runner-metadata")),
            expected: "runner metadata",
            why: why.to_string(),
        })
    }

    /// `GET credentials/<name>`: a JIT file, byte for byte; `name` is without its leading dot.
    pub async fn credential(&self, name: &str) -> Result<Vec<u8>, HttpError> {
        self.read(&format!("credentials/{name}"), &policy()).await.map(Vec::from)
    }

    /// `GET runner-registration-token`: handed out once per instance. A refusal may pass, but not after
    /// an answer that was lost: that was the one with the token.
    pub async fn registration_token(&self) -> Result<Secret, HttpError> {
        let path = "runner-registration-token";
        let lost = Cell::new(false);
        let ask = async || {
            let answer = self.ask(path).await;
            let unheard =
                |error: &HttpError| error.status().is_none() && error.is_outcome_unknown();
            lost.set(lost.get() || answer.as_ref().is_err_and(unheard));
            answer
        };
        let policy = policy();
        let retried = || retry::run(path, &policy, &self.patience, &ask);
        let body = Refusal::Handler.outlast(path, &self.patience, || !lost.get(), retried).await?;
        let text = String::from_utf8_lossy(&body);
        let token = text.trim().trim_matches('"');
        if token.is_empty() || token.len() > 1024 || token.contains(['<', ' ', '\n']) {
            return Err(HttpError::Unexpected {
                method: Method::GET,
                url: display_url(&append(&self.access.metadata, path)),
                expected: "a registration token",
                why: format!("{} bytes of something else", body.len()),
            });
        }
        Ok(Secret::new(token))
    }

    /// `GET system/cert-bundle`: the forge's own authorities, base64 of PEM by serial number; none
    /// where it has none.
    pub async fn cert_bundle(&self) -> Result<BTreeMap<String, String>, HttpError> {
        let body = self.read("system/cert-bundle", &policy()).await?;
        // A bundle that cannot be read is not worth a boot; a TLS error will name the real trouble.
        let bundle: CertBundle = serde_json::from_slice(&body).unwrap_or_default();
        Ok(bundle.root_certificates)
    }

    /// `POST system-info`: the one call that may fail without harm. GARM takes nothing of it when it
    /// knows the instance under another agent id; the system is then told without the id.
    pub async fn system_info(
        &self,
        os: &crate::host::os::Os,
        agent_id: Option<u64>,
    ) -> Result<(), HttpError> {
        self.post_system_info(os, agent_id, &self.patience.at_most(Duration::from_secs(15))).await
    }

    pub(super) async fn post_system_info(
        &self,
        os: &crate::host::os::Os,
        agent_id: Option<u64>,
        patience: &Patience,
    ) -> Result<(), HttpError> {
        let mut info = SystemInfo { os_name: &os.name, os_version: &os.version, agent_id };
        let url = append(&self.access.callback, "system-info");
        loop {
            let post = || patience.bound(Method::POST, &url, self.post("system-info", &info));
            match retry::run("system-info", &policy(), patience, post).await {
                Err(error) if error.status() == Some(400) && info.agent_id.is_some() => {
                    warn!(
                        "GARM refused this runner's agent id: {error}; saying the system without"
                    );
                    info.agent_id = None;
                }
                result => return result,
            }
        }
    }

    /// Whether GARM is where it was, known instance or not: one request. The error is what stands in its
    /// place.
    pub async fn is_there(&self) -> Result<(), HttpError> {
        let url = append(&self.access.metadata, "runner-metadata");
        let request =
            self.http.request(Method::GET, url.clone()).bearer_auth(self.access.token.expose());
        let patience =
            Patience { deadline: Instant::now() + LOOK, cancel: CancellationToken::new() };
        match patience.bound(Method::GET, &url, self.fetch(request)).await {
            Err(error) if matches!(error.status(), None | Some(404 | 410 | 502..=504)) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// One attempt at `POST status`; the reporter has rules of its own for another one.
    pub(super) async fn status(&self, status: &Status<'_>) -> Result<(), HttpError> {
        self.post("status", status).await
    }

    async fn post(&self, path: &str, body: &impl Serialize) -> Result<(), HttpError> {
        let url = append(&self.access.callback, path);
        let json = serde_json::to_vec(body).unwrap_or_default();
        let request = self
            .http
            .request(Method::POST, url.clone())
            .bearer_auth(self.access.token.expose())
            .header(reqwest::header::CONTENT_TYPE, "application/json")
            .body(json);
        let answer = self.fetch(request).await?;
        // GARM's own is empty. A log-in page in its place would be taken for GARM's word that it knows.
        if answer.trim_ascii_start().starts_with(b"<") {
            return Err(HttpError::Unexpected {
                method: Method::POST,
                url: display_url(&url),
                expected: "GARM's",
                why: "it is a web page, as a log-in in front of GARM would send it".to_owned(),
            });
        }
        Ok(())
    }

    async fn fetch(&self, request: reqwest::RequestBuilder) -> Result<bytes::Bytes, HttpError> {
        let reply = self.http.fetch(request).await;
        self.clock.heard(reply.as_ref().map_or_else(HttpError::date, |reply| reply.date));
        reply.map(|reply| reply.body)
    }

    async fn read(&self, path: &str, policy: &Policy) -> Result<bytes::Bytes, HttpError> {
        retry::run(path, policy, &self.patience, || self.ask(path)).await
    }

    /// One attempt at `GET path`.
    async fn ask(&self, path: &str) -> Result<bytes::Bytes, HttpError> {
        let url = append(&self.access.metadata, path);
        let request =
            self.http.request(Method::GET, url.clone()).bearer_auth(self.access.token.expose());
        self.patience.bound(Method::GET, &url, self.fetch(request)).await
    }
}

/// `base` with `path` appended to its own path.
fn append(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/{path}", base.path().trim_end_matches('/')));
    url
}

/// `url` as a base: people write it with and without slashes and endpoint names at its end, and an
/// unclean path costs a POST its body (garm-protocol §5).
fn without_suffix(url: &Url, suffixes: &[&str]) -> Url {
    let mut path = url.path().trim_end_matches('/');
    for suffix in suffixes {
        path = path.strip_suffix(suffix).unwrap_or(path).trim_end_matches('/');
    }
    let path = path.to_owned();
    let mut url = url.clone();
    url.set_path(&path);
    url.set_query(None);
    url.set_fragment(None);
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_with_and_without_their_endings() {
        let metadata = Url::parse("http://g/api/v1/metadata//").unwrap();
        for written in ["/callbacks", "/callbacks/", "/callbacks/status", "/callbacks/status/"] {
            let callback = Url::parse(&format!("http://g/api/v1{written}")).unwrap();
            let access = Access::new(&metadata, &callback, Secret::new("t"));
            assert_eq!(
                append(&access.callback, "status").as_str(),
                "http://g/api/v1/callbacks/status"
            );
            assert_eq!(access.metadata.as_str(), "http://g/api/v1/metadata");
        }
    }
}
