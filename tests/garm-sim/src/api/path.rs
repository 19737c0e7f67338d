//! From a request's path to what it is for.

use axum::http::Method;

use crate::endpoint::Endpoint;

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) endpoint: Endpoint,
    /// A credential's file name or a tool's id, decoded.
    pub(crate) argument: String,
    /// Where GARM's router redirects to, when the path was not clean.
    pub(crate) clean: Option<String>,
    /// Whether the path lies under `/api/v1/`.
    pub(crate) under_api: bool,
}

/// Finds the endpoint. One trailing slash is allowed everywhere; names are case-sensitive.
pub(crate) fn route(path: &str) -> Route {
    let decoded = percent_decode(path);
    let cleaned = clean(&decoded);
    let mut route = Route {
        endpoint: Endpoint::Unknown,
        argument: String::new(),
        under_api: cleaned.starts_with("/api/v1/"),
        clean: None,
    };
    if let Some(rest) = cleaned.strip_prefix("/api/v1/") {
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        (route.endpoint, route.argument) = endpoint(rest);
    } else if matches!(cleaned.as_str(), "/agent" | "/agent/") {
        route.endpoint = Endpoint::Agent;
    }
    if cleaned != decoded {
        route.clean = Some(cleaned);
    }
    route
}

fn endpoint(path: &str) -> (Endpoint, String) {
    let words: Vec<&str> = path.split('/').collect();
    let (found, argument) = match words.as_slice() {
        ["callbacks", "status"] => (Endpoint::Status, ""),
        ["callbacks", "system-info"] => (Endpoint::SystemInfo, ""),
        ["metadata", "runner-metadata"] => (Endpoint::RunnerMetadata, ""),
        ["metadata", "runner-registration-token"] => (Endpoint::RegistrationToken, ""),
        ["metadata", "credentials", file @ "runner"] => (Endpoint::CredentialsRunner, *file),
        ["metadata", "credentials", file @ "credentials"] => {
            (Endpoint::CredentialsCredentials, *file)
        }
        ["metadata", "credentials", file @ "credentials_rsaparams"] => {
            (Endpoint::CredentialsRsaparams, *file)
        }
        ["metadata", "credentials", file] if !file.is_empty() => (Endpoint::Credentials, *file),
        ["metadata", "system", "service-name"] => (Endpoint::ServiceName, ""),
        ["metadata", "system", "cert-bundle"] => (Endpoint::CertBundle, ""),
        ["metadata", "systemd", "unit-file"] => (Endpoint::UnitFile, ""),
        ["metadata", "install-script"] => (Endpoint::InstallScript, ""),
        ["metadata", "tools", "garm-agent"] => (Endpoint::AgentTools, ""),
        ["metadata", "tools", "garm-agent", id] if !id.is_empty() => (Endpoint::AgentTool, *id),
        ["metadata", "tools", "garm-agent", id, "download"] => (Endpoint::AgentToolDownload, *id),
        _ => (Endpoint::Unknown, ""),
    };
    (found, argument.to_owned())
}

impl Endpoint {
    /// The one method that it takes.
    pub(crate) fn method(self) -> Method {
        match self {
            Self::Status | Self::SystemInfo => Method::POST,
            _ => Method::GET,
        }
    }

    /// Unknown to GARM 0.1.
    pub(crate) fn is_new_in_0_2(self) -> bool {
        matches!(
            self,
            Self::RunnerMetadata
                | Self::InstallScript
                | Self::AgentTools
                | Self::AgentTool
                | Self::AgentToolDownload
        )
    }
}

/// Go's `path.Clean` with a trailing slash kept, as gorilla's mux does it.
fn clean(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for word in path.split('/') {
        match word {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            word => kept.push(word),
        }
    }
    let mut clean = format!("/{}", kept.join("/"));
    if path.ends_with('/') && clean != "/" {
        clean.push('/');
    }
    clean
}

/// Decodes `%XX`; anything malformed stays as it is.
pub(crate) fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let code = tail
            .get(..2)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(code) if *byte == b'%' => {
                out.push(code);
                rest = &tail[2..];
            }
            _ => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// A query's first value of that name, decoded. Go leaves out a pair that it cannot decode, and one
/// with a semicolon in it.
pub(crate) fn query_value(query: &str, name: &str) -> Option<String> {
    query.split('&').filter(|pair| !pair.contains(';') && is_well_escaped(pair)).find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let decode = |text: &str| percent_decode(&text.replace('+', " "));
        (decode(key) == name).then(|| decode(value))
    })
}

fn is_well_escaped(text: &str) -> bool {
    let hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    text.split('%').skip(1).all(|rest| {
        let bytes = rest.as_bytes();
        hex(bytes.first()) && hex(bytes.get(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_trailing_slash_is_allowed_and_unclean_paths_move() {
        let status = "/api/v1/callbacks/status";
        assert_eq!(route(status).endpoint, Endpoint::Status);
        assert_eq!(route(&format!("{status}/")).endpoint, Endpoint::Status);
        assert_eq!(route(&format!("{status}/")).clean, None);
        for (unclean, to) in [
            ("/api/v1/callbacks//status", status.to_owned()),
            ("/api/v1/callbacks/./status", status.to_owned()),
            ("/api/v1/callbacks/status//", format!("{status}/")),
            ("/api/v1/metadata/../callbacks/status", status.to_owned()),
        ] {
            assert_eq!(route(unclean).clean, Some(to), "{unclean}");
        }
    }

    #[test]
    fn a_query_is_read_as_go_reads_it() {
        for (query, wanted) in [
            ("runAsUser=bob", Some("bob")),
            ("a=1&runAsUser=a+b%0Ac&runAsUser=d", Some("a b\nc")),
            ("run%41sUser=bob", Some("bob")),
            ("runAsUser", Some("")),
            ("runasuser=bob", None),
            ("runAsUser=%zz", None),
            ("runAsUser=%4", None),
            ("runAsUser=a;b&runAsUser=c", Some("c")),
        ] {
            assert_eq!(query_value(query, "runAsUser").as_deref(), wanted, "{query}");
        }
    }

    #[test]
    fn what_garm_does_not_know_is_unknown() {
        for path in [
            "/api/v1/callbacks",
            "/api/v1/callbacks/",
            "/api/v1/callbacks/Status",
            "/api/v1/callbacks/status/status",
            "/api/v1/metadata/",
            "/api/v1/metadata/credentials",
            "/api/v1/metadata/credentials/",
            "/api/v1/metadata/systemd/service-name",
            "/api/v1/metadata/system/unit-file",
            "/api/v1/",
        ] {
            let found = route(path);
            assert_eq!(found.endpoint, Endpoint::Unknown, "{path}");
            assert!(found.under_api, "{path}");
        }
        for path in ["/nope", "/api/v1", "/api/"] {
            assert!(!route(path).under_api, "{path}");
        }
    }
}
