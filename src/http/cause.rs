//! What a request that got no whole answer has failed at.
//!
//! Owns: reading the chain of causes below a reqwest error, once, for both the classifier and the text.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::CertificateError;
use rustls::Error as Tls;
use rustls::pki_types::UnixTime;
use url::Url;

/// Who is at the other end of the connection: the server itself, or a proxy before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    host: String,
    port: u16,
    is_proxy: bool,
}

impl Peer {
    pub(super) fn of(url: &Url, is_proxy: bool) -> Self {
        Self {
            host: url.host_str().unwrap_or_default().to_owned(),
            port: url.port_or_known_default().unwrap_or_default(),
            is_proxy,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.is_proxy { "the proxy at " } else { "" };
        write!(f, "{whose}{}:{}", self.host, self.port)
    }
}

/// What it failed at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// The name does not resolve, or not yet.
    Name,
    /// There is no way to the address, or not yet.
    Route,
    /// Nobody accepts connections there, or not yet.
    Connect,
    /// The server's certificate is not believed; the text says why.
    Certificate(String),
    /// The same, for it is not valid yet: a clock that is behind is often set in the first seconds of a
    /// machine.
    Early(String),
    /// The two have no version or algorithm of TLS in common.
    Incompatible,
    /// TLS was spoken, and something else came back.
    NotTls,
    /// HTTP was spoken, and something else came back.
    NotHttp,
    /// A proxy wants other credentials, or does not let us through.
    Proxy,
    /// Anything else; most of it passes.
    Other,
}

impl Cause {
    pub(super) fn of(error: &reqwest::Error) -> Self {
        if error.is_dns() {
            return Self::Name;
        }
        let tls = chain(error).find_map(|cause| cause.downcast_ref::<Tls>());
        if let Some(tls) = tls {
            return of_tls(tls);
        }
        if error.is_connect() {
            let texts = || chain(error).map(ToString::to_string);
            if texts().any(|text| text.contains("proxy authorization required")) {
                return Self::Proxy;
            }
            let io = chain(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
            let mut kinds = io.map(io::Error::kind);
            let no_route = |kind| {
                matches!(kind, io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable)
            };
            return if kinds.any(no_route) { Self::Route } else { Self::Connect };
        }
        // hyper tells this in words alone.
        let not_http =
            |cause: &(dyn StdError + 'static)| cause.to_string().starts_with("invalid HTTP ");
        if chain(error).any(not_http) { Self::NotHttp } else { Self::Other }
    }

    /// Whether another attempt may find it otherwise.
    pub(super) fn passes(&self) -> bool {
        match self {
            // A certificate that is not trusted now will not be trusted a second later.
            Self::Certificate(_) | Self::Incompatible | Self::NotTls | Self::Proxy => false,
            Self::Name
            | Self::Route
            | Self::Connect
            | Self::Early(_)
            | Self::NotHttp
            | Self::Other => true,
        }
    }

    /// What has to come about first, where that is all there is to wait for.
    pub(super) fn awaits(&self, peer: &Peer, whose: &str) -> Option<String> {
        let at = || match (peer.is_proxy, whose) {
            (true, _) | (_, "") => peer.to_string(),
            (false, whose) => format!("{whose} at {peer}"),
        };
        match self {
            Self::Name => Some(format!("the name {} to resolve", peer.host)),
            Self::Route => Some(format!("a route to {}", at())),
            Self::Connect => Some(format!("{} to accept connections", at())),
            _ => None,
        }
    }

    /// The sentence for a person; `error` has the details.
    pub(super) fn tell(&self, error: &reqwest::Error, peer: &Peer) -> String {
        let details = details(error);
        // The libraries' words for the way there say nothing; those of the system do.
        let system = chain(error).last().map(ToString::to_string).unwrap_or_default();
        match self {
            Self::Name => format!("the name {} does not resolve ({system})", peer.host),
            Self::Route => format!("there is no route to {peer} ({system})"),
            Self::Connect if error.is_timeout() => {
                format!("{peer} did not accept the connection in time")
            }
            Self::Connect => format!("{peer} does not accept connections ({system})"),
            Self::Certificate(why) | Self::Early(why) => why.clone(),
            Self::Incompatible => format!("no common version or algorithm of TLS ({details})"),
            Self::NotTls => {
                format!("{peer} does not speak TLS there; should the address begin with http://?")
            }
            Self::NotHttp => format!(
                "what {peer} answers is not HTTP ({details}); if TLS is spoken there, the address must begin with https://"
            ),
            Self::Proxy => format!(
                "{peer} asks for credentials that it accepts (407); they go into the proxy's address"
            ),
            Self::Other => details,
        }
    }
}

fn of_tls(tls: &Tls) -> Cause {
    match tls {
        Tls::InvalidCertificate(
            why @ (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }),
        ) => Cause::Early(certificate(why)),
        Tls::InvalidCertificate(why) => Cause::Certificate(certificate(why)),
        Tls::NoCertificatesPresented => {
            Cause::Certificate("the server shows no certificate".to_owned())
        }
        Tls::UnsupportedNameType | Tls::InvalidCertRevocationList(_) => {
            Cause::Certificate(tls.to_string())
        }
        Tls::PeerIncompatible(_) => Cause::Incompatible,
        Tls::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => Cause::NotTls,
        _ => Cause::Other,
    }
}

/// What is wrong with a server's certificate, and where to look.
fn certificate(why: &CertificateError) -> String {
    let now = || rfc3339(SystemTime::now());
    let at = |time: &UnixTime| rfc3339(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    match why {
        CertificateError::UnknownIssuer => "the server's certificate is not trusted: it was \
             signed by an authority that is not known here (--ca-file adds one)"
            .to_owned(),
        CertificateError::NotValidForName => {
            "the server's certificate is made out to another name".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => format!(
            "the server's certificate is not made out to {}, but to {}",
            expected.to_str(),
            presented.join(", ")
        ),
        CertificateError::Expired => {
            format!("the server's certificate has expired (the clock here says {})", now())
        }
        CertificateError::ExpiredContext { not_after, .. } => format!(
            "the server's certificate expired at {} (the clock here says {})",
            at(not_after),
            now()
        ),
        CertificateError::NotValidYet => {
            format!("the server's certificate is not valid yet (the clock here says {})", now())
        }
        CertificateError::NotValidYetContext { not_before, .. } => format!(
            "the server's certificate is not valid before {} (the clock here says {}; is it behind?)",
            at(not_before),
            now()
        ),
        other => format!("the server's certificate is not accepted: {other}"),
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// The causes below a reqwest error, most telling last, each said once. The error's own text is left
/// out: it repeats the URL, query and all.
fn details(error: &reqwest::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in chain(error).skip(1) {
        let text = cause.to_string();
        if !parts.iter().any(|p| p.contains(&text)) {
            parts.push(text);
        }
    }
    match parts.len() {
        0 if error.is_timeout() => "timed out".to_owned(),
        0 => "the connection failed".to_owned(),
        _ => parts.join(": "),
    }
}

/// `error` and everything below it. What an `io::Error` wraps is not its `source()`, so it is looked
/// for there too: streams wrap TLS and HTTP errors in it.
fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| below(*error))
}

fn below<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| error.source())
}
