//! `check`: what a person with a sick instance wants to know.
//!
//! Owns: the list of findings, their order, and the exit code: that with which a boot would end here, as
//! far as one can tell without booting. Must not: change anything, here or at GARM. GARM is asked two
//! questions that leave no trace: `GET system/service-name`, which every GARM answers as long as it
//! listens to the instance, and `OPTIONS` of the callback, which needs no token; then `runner-metadata`.

mod garm;
mod machine;
mod settings;

use tracing::error;

use super::{open, print};
use crate::config::{Config, Layers};
use crate::error::Error;
use crate::exit::Exit;
use crate::secret;

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    verdict: Verdict,
    about: &'static str,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// A boot would go on, but a person may want to know.
    Warn,
    /// A boot would end with this.
    Fail(Exit),
}

fn ok(about: &'static str, text: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Ok, about, text: text.into() }
}

fn warn(about: &'static str, text: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Warn, about, text: text.into() }
}

fn fail(about: &'static str, exit: Exit, text: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Fail(exit), about, text: text.into() }
}

/// Looks at everything, prints a line for each finding, and says how a boot would end.
pub async fn check(mut layers: Layers) -> Exit {
    let mut findings = Vec::new();
    let config = resolve(&mut layers, &mut findings);
    match &config {
        Ok(config) => {
            findings.extend(machine::findings(config));
            findings.extend(machine::state(config));
            findings.extend(Box::pin(garm::findings(config)).await);
        }
        Err(error) => findings.push(fail("settings", error.exit(), format!("failed to {error}"))),
    }
    let lines: String = findings.iter().map(line).collect();
    print(&lines);
    let worst = findings.iter().find_map(|finding| match finding.verdict {
        Verdict::Fail(exit) => Some(exit),
        _ => None,
    });
    if let Some(exit) = worst {
        error!("a boot would end with {} ({})", exit.code(), exit.meaning());
    }
    worst.unwrap_or(Exit::Done)
}

fn resolve(layers: &mut Layers, findings: &mut Vec<Finding>) -> Result<Config, Error> {
    let bootstrap = open(layers);
    findings.extend(settings::written(layers));
    let bootstrap = bootstrap?;
    let config = Config::resolve(layers, bootstrap)?;
    config.proxy.learn_secrets();
    findings.extend(settings::resolved(layers, &config));
    Ok(config)
}

fn line(finding: &Finding) -> String {
    let verdict = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail(_) => "FAIL",
    };
    format!("{verdict:<6}{:<12}{}\n", finding.about, secret::redact(&finding.text))
}
