//! The one step from layers of text to a typed [`Config`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use url::Url;

use super::access::access;
use super::parse::{boolean, duration, parse_boolean, parse_duration, parse_http_url, read, value};
use super::settings::{self, Setting};
use super::{
    Action, Bootstrap, Config, ConfigError, Dirs, Found, Jit, Layers, OnExit, Origin, Times, When,
    Wishes, given,
};
use crate::garm::Claims;
use crate::host::users::Account;
use crate::http::{ProxySettings, Store, Trust};

pub(super) const DEADLINE: Duration = Duration::from_secs(20 * 60);
/// Kept between the boot's deadline and the end of the token, to say `failed` in.
const TOKEN_MARGIN: Duration = Duration::from_secs(30);
/// A token that is about to expire is still tried this long.
const SHORTEST_DEADLINE: Duration = Duration::from_secs(30);
const READY_TIMEOUT: Duration = Duration::from_secs(2 * 60);
const STOP_GRACE: Duration = Duration::from_secs(30);

/// Whom root drops to.
const DEFAULT_USER: &str = "runner";

/// Where garm-provider-k8s's image holds the runner, and where its pods have room for one.
const K8S_ASSETS: &str = "/home/runner"; // the image's own script has these two defaults
const K8S_HOME: &str = "/runner";

/// The bootstrap file, if one is named.
pub fn bootstrap(layers: &Layers) -> Result<Option<Bootstrap>, ConfigError> {
    layers
        .find(&settings::BOOTSTRAP_FILE)
        .map(|found| Bootstrap::read(Path::new(found.value())))
        .transpose()
}

impl Config {
    pub fn resolve(layers: &Layers, bootstrap: Option<Bootstrap>) -> Result<Self, ConfigError> {
        let access = access(layers, bootstrap.as_ref())?;
        let pod = is_garm_provider_k8s(layers);
        let Place { user, switch_to, home } = place(layers)?;
        Ok(Self {
            trust: trust(layers, bootstrap.as_ref())?,
            system_ca: boolean(layers, &settings::SYSTEM_CA)?.unwrap_or(true),
            proxy: proxy(layers, bootstrap.as_ref()),
            home,
            assets: path(layers, &settings::ASSETS)
                .or_else(|| pod.then(|| PathBuf::from(K8S_ASSETS))),
            downloads: downloads(layers)?,
            sha256: sha256(layers)?,
            command: layers
                .find(&settings::COMMAND)
                .map(|found| found.value().split_whitespace().map(str::to_owned).collect()),
            wait_for_docker: wait_for_docker(layers)?,
            update_ca_certs: boolean(layers, &settings::UPDATE_CA_CERTS)?.unwrap_or(false),
            registration: wishes(layers)?,
            jit: jit(layers, bootstrap.as_ref())?,
            times: times(layers, &access.claims)?,
            on_exit: on_exit(layers)?,
            dirs: dirs(layers, &Account::current()),
            environment: layers.env.clone(),
            switch_to,
            user,
            access,
            bootstrap,
        })
    }
}

/// Who the runner runs as, and where.
pub(super) struct Place {
    pub(super) user: Account,
    pub(super) switch_to: Option<Account>,
    pub(super) home: PathBuf,
}

pub(super) fn place(layers: &Layers) -> Result<Place, ConfigError> {
    let current = Account::current();
    let user = user(layers, &current)?;
    let home = home(layers, &user, is_garm_provider_k8s(layers))?;
    Ok(Place { switch_to: (user.uid != current.uid).then(|| user.clone()), user, home })
}

pub(super) fn downloads(layers: &Layers) -> Result<Vec<Url>, ConfigError> {
    layers.find(&settings::RUNNER_URL).map_or(Ok(vec![]), |found| urls(&found))
}

pub(super) fn sha256(layers: &Layers) -> Result<Option<String>, ConfigError> {
    read(layers, &settings::RUNNER_SHA256, "64 hexadecimal digits", parse_sha256)
}

/// Its pods carry `RUNNER_TOKEN=dummy` beside GARM's URLs; nothing else does.
fn is_garm_provider_k8s(layers: &Layers) -> bool {
    layers.env.get("RUNNER_TOKEN").as_deref() == Some("dummy")
        && layers.env.has("JIT_CONFIG_ENABLED")
        && layers.env.has("RUNNER_EPHEMERAL")
}

/// Who the runner runs as. Root drops to [`DEFAULT_USER`] where the image has that account; where it has
/// not and nobody named another, jobs run as root, as they do in such an image today, and that is said.
fn user(layers: &Layers, current: &Account) -> Result<Account, ConfigError> {
    let Some(found) = layers.find(&settings::USER) else {
        let default = current.is_root().then(|| Account::find(DEFAULT_USER).ok()).flatten();
        return Ok(default.unwrap_or_else(|| current.clone()));
    };
    let wanted = found.value().trim();
    if wanted == current.name || wanted == current.uid.to_string() {
        return Ok(current.clone());
    }
    let user = Account::find(wanted).map_err(|source| ConfigError::User { source })?;
    if !current.is_root() {
        let (wanted, current) = (wanted.to_owned(), current.name.clone());
        return Err(ConfigError::NotRoot { wanted, current });
    }
    Ok(user)
}

fn home(layers: &Layers, user: &Account, pod: bool) -> Result<PathBuf, ConfigError> {
    let home = match (path(layers, &settings::HOME), &user.home) {
        (Some(home), _) => home,
        (None, _) if pod => PathBuf::from(K8S_HOME),
        (None, Some(home)) if home != Path::new("/") => home.join("actions-runner"),
        (None, _) => return Err(ConfigError::NoHome { user: user.name.clone() }),
    };
    Ok(std::path::absolute(&home).unwrap_or(home))
}

fn path(layers: &Layers, setting: &'static Setting) -> Option<PathBuf> {
    layers.find(setting).map(|found| PathBuf::from(found.value()))
}

/// What is believed on top of the usual roots.
pub fn trust(layers: &Layers, bootstrap: Option<&Bootstrap>) -> Result<Trust, ConfigError> {
    let store = Store {
        file: layers.env.get("SSL_CERT_FILE").map(PathBuf::from),
        folders: layers.env.get("SSL_CERT_DIR"),
    };
    let mut trust = Trust::of_system(&store);
    if let Some(path) = path(layers, &settings::CA_FILE) {
        let pem = given::read(&path)
            .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        trust.add_pem(&pem, &path.display().to_string());
        if trust.is_empty() {
            return Err(ConfigError::NoCertificate { path });
        }
    }
    if let Some(bundle) = bootstrap.map(|b| b.ca_cert_bundle.as_str()).filter(|b| !b.is_empty()) {
        // Whoever puts it into YAML may break its lines.
        let bundle: String = bundle.split_whitespace().collect();
        match base64::engine::general_purpose::STANDARD.decode(bundle) {
            Ok(pem) => {
                trust.add_pem(&pem, "the bootstrap file's CA bundle");
            }
            Err(why) => tracing::warn!("the bootstrap file's CA bundle is not base64: {why}"),
        }
    }
    Ok(trust)
}

/// The proxies that the environment or the bootstrap file name.
pub fn proxy(layers: &Layers, bootstrap: Option<&Bootstrap>) -> ProxySettings {
    let pick = |setting: &'static Setting, told: Option<&String>| {
        let found = layers.find(setting).map(|found| found.value().to_owned());
        found.or_else(|| told.filter(|text| !text.is_empty()).cloned())
    };
    let told = bootstrap.map(|b| &b.proxy_config);
    // As with curl, if it is of a kind that we speak.
    let for_all = || {
        let all = layers.env.get("all_proxy").or_else(|| layers.env.get("ALL_PROXY"))?;
        (!all.starts_with("socks")).then_some(all)
    };
    ProxySettings {
        http: pick(&settings::HTTP_PROXY, told.map(|p| &p.http_proxy)).or_else(for_all),
        https: pick(&settings::HTTPS_PROXY, told.map(|p| &p.https_proxy)).or_else(for_all),
        no_proxy: pick(&settings::NO_PROXY, told.map(|p| &p.no_proxy)),
    }
}

fn wishes(layers: &Layers) -> Result<Wishes, ConfigError> {
    let text = |setting| layers.find(setting).map(|found| found.value().trim().to_owned());
    let labels = text(&settings::LABELS).map(|labels| split_labels(&labels));
    Ok(Wishes {
        url: registration_url(layers)?,
        name: text(&settings::NAME),
        labels,
        group: text(&settings::GROUP),
        work: path(layers, &settings::WORK),
        ephemeral: boolean(layers, &settings::EPHEMERAL)?.unwrap_or(true),
        no_default_labels: boolean(layers, &settings::NO_DEFAULT_LABELS)?.unwrap_or(true),
        disable_update: boolean(layers, &settings::DISABLE_UPDATE)?.unwrap_or(false),
        replace: boolean(layers, &settings::REPLACE)?.unwrap_or(false),
    })
}

fn split_labels(labels: &str) -> Vec<String> {
    labels.split(',').map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect()
}

/// `--url`, or `--github-url` with whichever of owner, repository and enterprise are set.
fn registration_url(layers: &Layers) -> Result<Option<Url>, ConfigError> {
    let expected = "an http:// or https:// address";
    if let Some(url) = read(layers, &settings::URL, expected, parse_http_url)? {
        return Ok(Some(url));
    }
    let Some(found) = layers.find(&settings::GITHUB_URL) else { return Ok(None) };
    let text = |setting| layers.find(setting).map(|found| found.value().trim().to_owned());
    let path = match (text(&settings::ORG), text(&settings::REPO), text(&settings::ENTERPRISE)) {
        // A repository is written as owner/name, or as a name beside its owner.
        (Some(org), Some(repo), _) if !repo.contains('/') => format!("{org}/{repo}"),
        (_, Some(repo), _) => repo,
        (Some(org), None, _) => org,
        (None, None, Some(enterprise)) => format!("enterprises/{enterprise}"),
        (None, None, None) => return Ok(None),
    };
    value(&found, expected, |base| {
        parse_http_url(&format!("{}/{path}", base.trim_end_matches('/')))
    })
    .map(Some)
}

/// A flag, our own variable and the file are a person's word; an image's variable and the bootstrap
/// file only say how things stood when the instance was made.
fn jit(layers: &Layers, bootstrap: Option<&Bootstrap>) -> Result<Jit, ConfigError> {
    let Some(found) = layers.find(&settings::JIT) else {
        let told = bootstrap.and_then(|b| b.jit_config_enabled);
        return Ok(told.map_or(Jit::Unknown, Jit::Guessed));
    };
    let jit = value(&found, "true or false", parse_boolean)?;
    Ok(match found.origin {
        Origin::Env("JIT_CONFIG_ENABLED") => Jit::Guessed(jit),
        _ => Jit::Wanted(jit),
    })
}

/// How long there is time for what must happen while GARM listens.
pub(super) fn time_of_token(claims: &Claims) -> Duration {
    match claims.time_left() {
        // GARM is asked whether it has expired: our clock may be hours ahead of its own.
        None | Some(Duration::ZERO) => DEADLINE,
        Some(left) => left.saturating_sub(TOKEN_MARGIN).max(SHORTEST_DEADLINE),
    }
}

fn times(layers: &Layers, claims: &Claims) -> Result<Times, ConfigError> {
    Ok(Times {
        deadline: duration(layers, &settings::DEADLINE)?.unwrap_or(time_of_token(claims)),
        ready_timeout: duration(layers, &settings::READY_TIMEOUT)?.unwrap_or(READY_TIMEOUT),
        drain_timeout: duration(layers, &settings::DRAIN_TIMEOUT)?,
        stop_grace: duration(layers, &settings::STOP_GRACE)?.unwrap_or(STOP_GRACE),
        idle_limit: duration(layers, &settings::IDLE_LIMIT)?,
        job_limit: duration(layers, &settings::JOB_LIMIT)?,
        lifetime: duration(layers, &settings::LIFETIME)?,
        orphan_limit: duration(layers, &settings::ORPHAN_LIMIT)?,
    })
}

/// The runner's own name for it gives a bare number of seconds.
fn wait_for_docker(layers: &Layers) -> Result<Option<Duration>, ConfigError> {
    let expected = "a duration such as 90s or 5m, or a number of seconds";
    let wait = read(layers, &settings::WAIT_FOR_DOCKER, expected, |text| {
        let seconds = text.parse::<u64>().is_ok().then(|| format!("{text}s"));
        parse_duration(seconds.as_deref().unwrap_or(text))
    })?;
    Ok(wait.filter(|wait| !wait.is_zero()))
}

/// What is done at the very end, and after which ends.
pub fn on_exit(layers: &Layers) -> Result<OnExit, ConfigError> {
    let expected = "none, poweroff, reboot or a command that begins with /";
    let action = read(layers, &settings::ON_EXIT, expected, |text| match text {
        "none" => Some(Action::None),
        "poweroff" => Some(Action::Poweroff),
        "reboot" => Some(Action::Reboot),
        command => command
            .starts_with('/')
            .then(|| Action::Command(command.split_whitespace().map(str::to_owned).collect())),
    })?;
    let expected = "one of always, success, failure";
    let when = read(layers, &settings::ON_EXIT_WHEN, expected, |text| match text {
        "always" => Some(When::Always),
        "success" => Some(When::Success),
        "failure" => Some(When::Failure),
        _ => None,
    })?;
    Ok(OnExit { action: action.unwrap_or(Action::None), when: when.unwrap_or(When::Always) })
}

/// Our folders. Where nobody named one and the usual place cannot be used (no home, a read-only root),
/// a private folder below /tmp must do.
pub fn dirs(layers: &Layers, current: &Account) -> Dirs {
    let fallback = PathBuf::from(format!("/tmp/garm-bootstrap-{}", current.uid));
    let place = |setting, root: &str, xdg: &str, below_home: Option<&str>| {
        if let Some(path) = path(layers, setting) {
            return vec![path];
        }
        let usual = if current.is_root() {
            Some(PathBuf::from(root))
        } else {
            let home = layers.env.get("HOME").map(PathBuf::from).or_else(|| current.home.clone());
            let xdg = layers.env.get(xdg).map(PathBuf::from);
            xdg.or_else(|| Some(home?.join(below_home?)))
        };
        usual
            .map(|path| path.join("garm-bootstrap"))
            .into_iter()
            .chain([fallback.clone()])
            .collect()
    };
    let state = place(&settings::STATE_DIR, "/var/lib", "XDG_STATE_HOME", Some(".local/state"));
    let runtime = place(&settings::RUNTIME_DIR, "/run", "XDG_RUNTIME_DIR", None);
    Dirs { state, runtime }
}

fn urls(found: &Found) -> Result<Vec<Url>, ConfigError> {
    let single = |text: &String| Found { values: vec![text.clone()], origin: found.origin.clone() };
    found
        .values
        .iter()
        .map(|text| value(&single(text), "an http:// or https:// address", parse_http_url))
        .collect()
}

fn parse_sha256(text: &str) -> Option<String> {
    let hex = text.strip_prefix("sha256:").unwrap_or(text);
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| hex.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
