//! What was set, by whom, and what follows from it.

use super::{Finding, ok, warn};
use crate::config::settings::{self, Kind, Setting};
use crate::config::{self, Config, Found, Layers};
use crate::http::display_url;

/// Every setting that somebody has written, with its place. A token is never shown.
pub(super) fn written(layers: &Layers) -> Vec<Finding> {
    let mut findings: Vec<Finding> = settings::ALL
        .iter()
        .filter(|setting| setting.kind != Kind::Secret)
        .filter_map(|setting| {
            let found = layers.find(setting)?;
            let shown = shown(setting, &found);
            Some(ok("setting", format!("{} = {shown} ({})", setting.name, found.origin)))
        })
        .collect();
    findings.push(match layers.file() {
        Some(path) => ok("setting", format!("the config file is {}", path.display())),
        None => ok("setting", "there is no config file"),
    });
    findings
}

/// A proxy's address may hold a password.
fn shown(setting: &Setting, found: &Found) -> String {
    let proxies = [settings::HTTP_PROXY.name, settings::HTTPS_PROXY.name];
    if !proxies.contains(&setting.name) {
        return found.values.join(", ");
    }
    match url::Url::parse(found.value()) {
        Ok(url) if url.has_host() => display_url(&url),
        _ => "(an address that is not shown)".to_owned(),
    }
}

/// What nobody has written but counts all the same, and the token.
pub(super) fn resolved(layers: &Layers, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut by_default = |setting: &'static Setting, value: String| {
        if layers.find(setting).is_none() {
            findings.push(ok("setting", format!("{} = {value} (default)", setting.name)));
        }
    };
    by_default(&settings::HOME, config.home.display().to_string());
    by_default(&settings::USER, config.user.name.clone());
    let deadline = humantime::format_duration(config.times.deadline).to_string();
    by_default(&settings::DEADLINE, deadline);
    if let Some(bootstrap) = &config.bootstrap {
        let text = format!("the bootstrap file is that of the instance \"{}\"", bootstrap.name);
        findings.push(ok("setting", text));
    }
    if let Some(variable) = config.proxy.spoken_to_over_tls() {
        findings.push(warn(
            "proxy",
            format!("{variable} names an https:// proxy; the runner cannot speak TLS to a proxy"),
        ));
    }
    findings.push(token(layers, config));
    findings
}

fn token(layers: &Layers, config: &Config) -> Finding {
    let from = config::place_of_token(layers, config.bootstrap.as_ref())
        .map(|place| place.to_string())
        .unwrap_or_default();
    let claims = &config.access.claims;
    let whose = match &claims.name {
        Some(name) => format!("of the instance \"{name}\""),
        None => "that does not say whose it is".to_owned(),
    };
    let text = format!("a token {whose}, from {from}");
    match claims.time_left() {
        None => ok("token", text),
        Some(left) if left.is_zero() => {
            warn("token", format!("{text}; it has expired, if the clock here is right"))
        }
        Some(left) => {
            let minutes = left.as_secs().div_ceil(60);
            ok("token", format!("{text}; it is good for {minutes} min more"))
        }
    }
}
