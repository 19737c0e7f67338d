//! GARM, as it can be seen without a word that changes anything.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::{Finding, fail, ok, warn};
use crate::config::Config;
use crate::error::Error;
use crate::exit::Exit;
use crate::garm::Garm;
use crate::http::{Http, HttpError, Patience};

/// A person is waiting.
const LIMIT: Duration = Duration::from_secs(15);

pub(super) async fn findings(config: &Config) -> Vec<Finding> {
    let api = vec![config.access.metadata.clone(), config.access.callback.clone()];
    let http = match Http::new(&config.trust, &config.proxy, api).map_err(Error::from) {
        Ok(http) => http,
        Err(error) => return vec![fail("GARM", error.exit(), format!("failed to {error}"))],
    };
    let patience = Patience { deadline: Instant::now() + LIMIT, cancel: CancellationToken::new() };
    let garm = Garm::new(http, config.access.clone(), patience);
    let (known, callback, metadata) =
        tokio::join!(garm.service_name(), garm.reach_callback(), garm.runner_metadata_once());
    let mut findings = vec![
        instance(known.as_ref().map(String::as_str)),
        match callback {
            Ok(()) => ok("GARM", "the callback URL is answered"),
            Err(error) => not_reached("callback", &error),
        },
    ];
    if known.is_ok() {
        findings.push(match metadata {
            Ok(metadata) => {
                let kind = if metadata.jit_enabled { "with JIT files" } else { "with config.sh" };
                let text = format!(
                    "it calls this runner \"{}\" of {}, to be registered {kind}, and offers {}",
                    metadata.runner_name,
                    metadata.runner_registration_url,
                    metadata.runner_tools.filename
                );
                ok("GARM", text)
            }
            Err(error) => {
                let text = format!(
                    "it does not say who this instance is to be, so the settings count: {error}"
                );
                warn("GARM", text)
            }
        });
    }
    if let Some(skew) = garm.skew() {
        findings.push(warn("clock", skew.to_string()));
    } else if known.as_ref().err().is_none_or(answered) {
        findings.push(ok("clock", "it agrees with GARM's"));
    }
    findings
}

fn instance(known: Result<&str, &HttpError>) -> Finding {
    match known {
        Ok(service) => ok("GARM", format!("it listens to this instance, and calls it {service}")),
        Err(error) if error.status() == Some(401) => fail(
            "GARM",
            Exit::Superseded,
            format!(
                "it does not listen to this instance: it does not know it (any more), or the token has \
                 expired, or the runner is idle or active already, after which GARM listens no more: \
                 {error}"
            ),
        ),
        Err(error) => not_reached("metadata", error),
    }
}

fn not_reached(which: &str, error: &HttpError) -> Finding {
    if answered(error) {
        return warn("GARM", format!("the {which} URL is answered, but not as GARM does: {error}"));
    }
    fail("GARM", Exit::Unreachable, format!("the {which} URL is not answered: {error}"))
}

fn answered(error: &HttpError) -> bool {
    error.status().is_some()
}
