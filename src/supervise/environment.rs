//! What a runner, and so every job, finds in its environment.
//!
//! Built from nothing, so that none of our own settings, addresses or tokens comes through. Merged in
//! this order, a later one wins:
//! 1. the caller's defaults;
//! 2. `/etc/environment`, as pam_env reads it: what a login would have;
//! 3. names of our own environment that are on the list below: what an image or a unit has set for the
//!    runner;
//! 4. `.path` of the runner's home, for PATH;
//! 5. HOME, USER, LOGNAME, SHELL of the account;
//! 6. what the caller adds.
//!
//! Through all of them, a name that is [forbidden](is_forbidden) and a value that holds a known secret
//! are left out; but a proxy's variable may hold what that proxy asks for. `.env` of the runner's home
//! is not ours: the Listener reads it itself.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::host::users::Account;
use crate::secret::redact;

pub type Pair = (OsString, OsString);

/// Where nothing names a PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Names of our own environment that the runner gets.
const ALLOWED: [&str; 40] = [
    "PATH",
    "LANG",
    "LANGUAGE",
    "TZ",
    // Of images: the runner and its actions look for them.
    "ImageOS",
    "ImageVersion",
    "RUNNER_TOOL_CACHE",
    "AGENT_TOOLSDIRECTORY",
    // Of the runner and its start scripts (a user's own command may be one of those).
    "RUNNER_ALLOW_RUNASROOT",
    "RUNNER_MANUALLY_TRAP_SIG",
    "RUNNER_UPDATE_CA_CERTS",
    "RUNNER_WAIT_FOR_DOCKER_IN_SECONDS",
    // The way out.
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "FTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    // Whom to trust.
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    // Docker beside the runner, or in another container.
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CONFIG",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "DOCKER_API_VERSION",
    "DOCKER_BUILDKIT",
    "CONTAINER_HOST",
    "TESTCONTAINERS_HOST_OVERRIDE",
    // Kubernetes, for the runner's container hooks.
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "KUBERNETES_SERVICE_PORT_HTTPS",
];

/// Beginnings of names of our own environment that the runner gets.
const ALLOWED_PREFIXES: [&str; 4] = ["LC_", "ACTIONS_RUNNER_", "GITHUB_ACTIONS_RUNNER_", "DOTNET_"];

/// Ours and GARM's: never in a job.
const FORBIDDEN: [&str; 10] = [
    "METADATA_URL",
    "CALLBACK_URL",
    "BEARER_TOKEN",
    "RUNNER_TOKEN",
    "JIT_CONFIG_ENABLED",
    "CREDENTIALS_DIRECTORY",
    // With these a job could tell the service manager that we are ready, or write into our log.
    "NOTIFY_SOCKET",
    "JOURNAL_STREAM",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];

const FORBIDDEN_PREFIXES: [&str; 3] = ["GARM_", "ACTIONS_RUNNER_INPUT_", "LISTEN_"];

/// What the environment is made from.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// Our own environment.
    pub ours: &'a [Pair],
    pub account: &'a Account,
    /// The runner's home: HOME for an account that has none.
    pub home: &'a Path,
    /// The text of `/etc/environment`; empty if there is none.
    pub etc_environment: &'a str,
    /// The text of `.path` in the runner's home.
    pub path_file: Option<&'a str>,
    /// Where nothing else sets them.
    pub defaults: &'a [Pair],
    /// Added by the caller: whatever the allow-list does not know.
    pub extra: &'a [Pair],
}

/// The whole environment of the runner, in the order of the names.
pub fn environment(sources: &Sources<'_>) -> Vec<Pair> {
    let Sources { ours, account, home, etc_environment, path_file, defaults, extra } = *sources;
    let mut all: BTreeMap<OsString, OsString> = BTreeMap::new();
    let mut set = |name: &OsStr, value: &OsStr| {
        if !is_forbidden(name) && !holds_secret(name, value) {
            all.insert(name.to_owned(), value.to_owned());
        }
    };
    set("PATH".as_ref(), DEFAULT_PATH.as_ref());
    for (name, value) in defaults {
        set(name, value);
    }
    for (name, value) in parse_etc_environment(etc_environment) {
        set(name.as_ref(), value.as_ref());
    }
    for (name, value) in ours.iter().filter(|(name, value)| is_allowed(name) && !value.is_empty()) {
        set(name, value);
    }
    if let Some(path) = path_file.map(str::trim).filter(|path| !path.is_empty()) {
        set("PATH".as_ref(), path.as_ref());
    }
    set("HOME".as_ref(), account.home.as_deref().unwrap_or(home).as_os_str());
    set("USER".as_ref(), account.name.as_ref());
    set("LOGNAME".as_ref(), account.name.as_ref());
    set("SHELL".as_ref(), account.shell.as_os_str());
    for (name, value) in extra {
        set(name, value);
    }
    all.into_iter().collect()
}

fn is_allowed(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        ALLOWED.contains(&name) || ALLOWED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// Whether a job must never have a variable of this name, wherever it comes from.
pub fn is_forbidden(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    FORBIDDEN.contains(&&*name) || FORBIDDEN_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether `value` holds a secret that is not in its place: the credentials in a proxy's address are.
fn holds_secret(name: &OsStr, value: &OsStr) -> bool {
    let value = value.to_string_lossy();
    let is_proxy = name.to_string_lossy().to_ascii_lowercase().ends_with("_proxy");
    let looked_at = match value.rsplit_once('@') {
        Some((_, host)) if is_proxy => host,
        _ => &value,
    };
    redact(looked_at) != looked_at
}

/// `/etc/environment` as pam_env(8) reads it: `KEY=VALUE` lines, perhaps with `export ` in front; `#`
/// begins a comment anywhere; one pair of quotes around a value goes; nothing is expanded.
fn parse_etc_environment(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let line = line.split('#').next().unwrap_or_default().trim();
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        let (name, value) = line.split_once('=')?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        (!name.is_empty() && name.chars().all(is_name)).then(|| (name, unquoted(value)))
    })
}

/// The opening quote goes, and with it a closing one at the very end (of either kind, as pam_env has it).
fn unquoted(value: &str) -> &str {
    const QUOTES: [char; 2] = ['"', '\''];
    value.strip_prefix(QUOTES).map_or(value, |rest| rest.strip_suffix(QUOTES).unwrap_or(rest))
}

#[cfg(test)]
mod tests;
