//! Which way a request goes: straight, or through a proxy.
//!
//! Owns: how proxy addresses and `no_proxy` are read. They are read here and not by reqwest, so that an
//! error can say whether it was the proxy that did not answer.
//!
//! `no_proxy` is taken as people write it: separated by commas or spaces; `*`; a host or a domain, with
//! or without a leading dot or `*.` (both mean the domain and all below it); an address, in brackets or
//! not; a network (`10.0.0.0/8`); any of them with a port, which then has to match.

use std::ffi::OsString;
use std::net::IpAddr;

use url::{Host, Url};

use super::{ClientError, Peer};
use crate::secret;

/// Proxies, as the environment or GARM's bootstrap data name them. Credentials may stand in the URLs.
#[derive(Clone, Default)]
pub struct ProxySettings {
    pub http: Option<String>,
    pub https: Option<String>,
    pub no_proxy: Option<String>,
}

/// Without the addresses: credentials may stand in them.
impl std::fmt::Debug for ProxySettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxySettings")
            .field("http", &self.http.is_some())
            .field("https", &self.https.is_some())
            .field("no_proxy", &self.no_proxy)
            .finish()
    }
}

impl ProxySettings {
    /// Makes [`secret::redact`] know the credentials in the addresses, as written and decoded.
    pub fn learn_secrets(&self) {
        for url in [&self.http, &self.https].into_iter().flatten().filter_map(|text| parse(text)) {
            let Some(password) = url.password() else { continue };
            let decoded = percent_decoded(password);
            secret::learn(&format!("{}:{password}", url.username()));
            secret::learn(&format!("{}:{decoded}", percent_decoded(url.username())));
            secret::learn(password);
            secret::learn(&decoded);
        }
    }

    /// As variables for other programs, which look for either case.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        let pairs = [
            (["http_proxy", "HTTP_PROXY"], &self.http),
            (["https_proxy", "HTTPS_PROXY"], &self.https),
            (["no_proxy", "NO_PROXY"], &self.no_proxy),
        ];
        let set = pairs.into_iter().filter_map(|(names, value)| Some((names, value.as_ref()?)));
        set.flat_map(|(names, value)| names.map(|name| (name.into(), value.into()))).collect()
    }

    /// Which of the variables names a proxy that is itself spoken to over TLS. .NET, and so the runner,
    /// cannot do that (actions/runner#2000).
    pub fn spoken_to_over_tls(&self) -> Option<&'static str> {
        let named = [("http_proxy", &self.http), ("https_proxy", &self.https)];
        let over_tls = |text: &String| parse(text).is_some_and(|url| url.scheme() == "https");
        named
            .into_iter()
            .find(|(_, text)| text.as_ref().is_some_and(over_tls))
            .map(|(name, _)| name)
    }
}

/// The same, read.
#[derive(Clone, Default)]
pub(super) struct Routes {
    http: Option<Url>,
    https: Option<Url>,
    bypass: Vec<Bypass>,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").field("bypass", &self.bypass).finish_non_exhaustive()
    }
}

/// One entry of `no_proxy`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bypass {
    what: Pattern,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Everything,
    /// Lower case, without a dot in front.
    Domain(String),
    Network(IpAddr, u8),
}

impl Routes {
    pub(super) fn read(settings: &ProxySettings) -> Result<Self, ClientError> {
        settings.learn_secrets();
        let proxy = |name: &str, text: &Option<String>| {
            let Some(text) = text.as_deref().map(str::trim).filter(|t| !t.is_empty()) else {
                return Ok(None);
            };
            // Neither text may show the address: it may hold credentials.
            let url = parse(text).ok_or_else(|| {
                ClientError(format!("the address in {name} is not a URL that a proxy can have, such as http://host:3128"))
            })?;
            match url.scheme() {
                "http" | "https" => Ok(Some(url)),
                other => Err(ClientError(format!(
                    "the proxy in {name} is a {other}:// one; only http:// and https:// are spoken"
                ))),
            }
        };
        Ok(Self {
            http: proxy("http_proxy", &settings.http)?,
            https: proxy("https_proxy", &settings.https)?,
            bypass: bypasses(settings.no_proxy.as_deref().unwrap_or_default()),
        })
    }

    /// The proxy for `url`, if it goes through one.
    pub(super) fn proxy_for(&self, url: &Url) -> Option<&Url> {
        let proxy = if url.scheme() == "https" { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !is_link_local(url) && !self.bypass.iter().any(|b| b.covers(url)))
    }

    /// Who is connected to for `url`.
    pub(super) fn peer(&self, url: &Url) -> Peer {
        match self.proxy_for(url) {
            Some(proxy) => Peer::of(proxy, true),
            None => Peer::of(url, false),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.http.is_none() && self.https.is_none()
    }
}

/// A link-local address (a cloud's metadata service) never lies behind a proxy.
fn is_link_local(url: &Url) -> bool {
    match address(url) {
        Some(IpAddr::V4(address)) => address.is_link_local(),
        Some(IpAddr::V6(address)) => address.is_unicast_link_local(),
        None => false,
    }
}

fn address(url: &Url) -> Option<IpAddr> {
    match url.host()? {
        Host::Ipv4(address) => Some(address.into()),
        Host::Ipv6(address) => Some(address.to_canonical()),
        Host::Domain(_) => None,
    }
}

/// An address as curl takes it: `http://` may be left out.
fn parse(text: &str) -> Option<Url> {
    let text = text.trim();
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    Url::parse(&whole).ok().filter(Url::has_host)
}

fn bypasses(text: &str) -> Vec<Bypass> {
    let entries = text.split(|c: char| c == ',' || c.is_whitespace());
    entries.filter(|entry| !entry.is_empty()).map(Bypass::read).collect()
}

impl Bypass {
    fn read(entry: &str) -> Self {
        // A whole address that was written by mistake still says which host is meant.
        let entry = entry.split_once("://").map_or(entry, |(_, rest)| rest).trim_end_matches('/');
        if entry == "*" {
            return Self { what: Pattern::Everything, port: None };
        }
        if let Some(what) = network(entry) {
            return Self { what, port: None };
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                (host, port.parse().ok())
            }
            _ => (entry, None),
        };
        let what = network(host).unwrap_or_else(|| {
            let name = host.strip_prefix('*').unwrap_or(host).trim_matches('.');
            Pattern::Domain(name.to_ascii_lowercase())
        });
        Self { what, port }
    }

    fn covers(&self, url: &Url) -> bool {
        if self.port.is_some() && self.port != url.port_or_known_default() {
            return false;
        }
        match &self.what {
            Pattern::Everything => true,
            Pattern::Network(base, bits) => {
                address(url).is_some_and(|address| contains(*base, *bits, address))
            }
            Pattern::Domain(domain) => url.host_str().is_some_and(|host| {
                let host = host.trim_end_matches('.');
                !domain.is_empty()
                    && host
                        .strip_suffix(domain.as_str())
                        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }),
        }
    }
}

/// An address with or without brackets, or a network.
fn network(text: &str) -> Option<Pattern> {
    let (base, bits) = match text.split_once('/') {
        Some((base, bits)) => (base, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let base = base.strip_prefix('[').and_then(|b| b.strip_suffix(']')).unwrap_or(base);
    let base: IpAddr = base.parse().ok()?;
    let longest = if base.is_ipv4() { 32 } else { 128 };
    Some(Pattern::Network(base, bits.unwrap_or(longest).min(longest)))
}

fn contains(base: IpAddr, bits: u8, address: IpAddr) -> bool {
    let same = |a: u128, b: u128, width: u32| {
        let shift = width - u32::from(bits).min(width);
        shift == width || a >> shift == b >> shift
    };
    match (base, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

fn percent_decoded(text: &str) -> String {
    // What form data calls encoding, but for the plus sign, which stands for itself here.
    let text = format!("v={}", text.replace('+', "%2B"));
    url::form_urlencoded::parse(text.as_bytes())
        .next()
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(no_proxy: &str) -> Routes {
        let proxy = Some("proxy.example:3128".to_owned());
        let settings = ProxySettings {
            http: proxy.clone(),
            https: proxy,
            no_proxy: Some(no_proxy.to_owned()),
        };
        Routes::read(&settings).unwrap()
    }

    #[test]
    fn no_proxy_is_read_as_people_write_it() {
        let table = [
            ("", "https://garm.example", false),
            ("*", "https://garm.example", true),
            ("garm.example", "https://garm.example", true),
            ("garm.example", "https://a.garm.example/x", true),
            ("garm.example", "https://notgarm.example", false),
            (".example", "https://garm.example", true),
            ("*.example", "https://garm.example", true),
            ("*.garm.example", "https://garm.example", true),
            ("GARM.Example.", "https://garm.example", true),
            ("a, b ,garm.example", "https://garm.example", true),
            ("a b garm.example", "https://garm.example", true),
            ("garm.example:443", "https://garm.example", true),
            ("garm.example:8443", "https://garm.example", false),
            ("garm.example:8443", "https://garm.example:8443", true),
            ("https://garm.example/", "https://garm.example", true),
            ("10.1.2.3", "http://10.1.2.3", true),
            ("10.1.2.3:80", "http://10.1.2.3", true),
            ("10.0.0.0/8", "http://10.1.2.3", true),
            ("10.0.0.0/8", "http://11.1.2.3", false),
            ("0.0.0.0/0", "http://11.1.2.3", true),
            ("fd00::/8", "http://[fd12::1]:80", true),
            ("[fd12::1]", "http://[fd12::1]", true),
            ("[fd12::1]:81", "http://[fd12::1]", false),
            ("fd12::1", "http://[fd12::1]", true),
            ("127.0.0.1,localhost,::1", "http://localhost:99", true),
            (",.,", "http://garm.example", false),
            ("", "http://169.254.169.254/latest", true),
            ("", "http://[fe80::1]/", true),
        ];
        for (no_proxy, url, direct) in table {
            let found = routes(no_proxy).proxy_for(&Url::parse(url).unwrap()).is_none();
            assert_eq!(found, direct, "no_proxy={no_proxy:?} for {url}");
        }
    }

    #[test]
    fn an_address_without_a_scheme_is_http_and_credentials_are_known_secrets() {
        let settings = ProxySettings {
            https: Some("us%40er:correct%40horse@proxy.example:3128".to_owned()),
            ..ProxySettings::default()
        };
        let routes = Routes::read(&settings).unwrap();
        let url = Url::parse("https://garm.example").unwrap();
        assert_eq!(routes.peer(&url).to_string(), "the proxy at proxy.example:3128");
        assert_eq!(secret::redact("x correct@horse correct%40horse"), "x *** ***");
        assert!(!format!("{settings:?} {routes:?}").contains("horse"));
    }

    #[test]
    fn what_is_no_proxy_address_is_told_without_showing_it() {
        for (text, said) in [
            (
                "http://",
                "the address in https_proxy is not a URL that a proxy can have, such as http://host:3128",
            ),
            ("socks5://u:secret-secret@h", "the proxy in https_proxy is a socks5:// one"),
        ] {
            let settings =
                ProxySettings { https: Some(text.to_owned()), ..ProxySettings::default() };
            let error = Routes::read(&settings).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("secret-"), "{error}");
        }
    }

    #[test]
    fn a_proxy_that_is_spoken_to_over_tls_is_found_for_the_runners_sake() {
        let with = |https: &str| ProxySettings {
            https: Some(https.to_owned()),
            ..ProxySettings::default()
        };
        assert_eq!(with("https://proxy:3129").spoken_to_over_tls(), Some("https_proxy"));
        assert_eq!(with("http://proxy:3128").spoken_to_over_tls(), None);
    }
}
