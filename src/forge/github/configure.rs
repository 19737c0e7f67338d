//! config.sh: registration with a one-shot token.
//!
//! The token goes by environment (`ACTIONS_RUNNER_INPUT_TOKEN`), never by argument, and everything else
//! as an argument list, never through a shell. An attempt that fails may have registered half; its
//! local files are removed before the next one, for config.sh refuses to run over them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::{info, warn};
use url::Url;

use super::files::{self, RunnerFileError};
use crate::host::process::{ProcessError, Program};
use crate::host::users::Account;
use crate::http::Patience;
use crate::secret::Secret;
use crate::text;

const ATTEMPTS: u32 = 4;
/// One attempt: config.sh talks to the forge a few times, and has its own retries.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(5 * 60);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Registration tokens live an hour; an older one makes config.sh print a 404 (actions/runner#1882).
pub const TOKEN_LIFE: Duration = Duration::from_secs(3600);

/// What the runner is to be at the forge.
#[derive(Debug, Clone)]
pub struct Registration {
    pub url: Url,
    pub name: String,
    pub labels: Vec<String>,
    /// `None`: the forge's default group.
    pub group: Option<String>,
    pub work: Option<PathBuf>,
    pub ephemeral: bool,
    pub no_default_labels: bool,
    pub disable_update: bool,
    /// Take the place of a runner of this name.
    pub replace: bool,
}

/// Where and as whom config.sh runs.
#[derive(Debug)]
pub struct Place<'a> {
    pub home: &'a Path,
    /// The runner's user, when we are not that user already.
    pub switch_to: Option<&'a Account>,
    /// The environment that the Listener will have, too.
    pub env: Vec<(OsString, OsString)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigureError {
    #[error("configure the runner: config.sh ended with {ended} (attempt {attempts}){hint}")]
    Failed { ended: String, attempts: u32, hint: String, output: String },
    #[error("configure the runner: config.sh reported success, but: failed to {source}")]
    Lied { source: RunnerFileError, output: String },
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    File(#[from] RunnerFileError),
}

impl ConfigureError {
    /// The last lines that config.sh printed.
    pub fn output(&self) -> Option<&str> {
        match self {
            Self::Failed { output, .. }
            | Self::Lied { output, .. }
            | Self::Process(ProcessError::TimedOut { output, .. }) => Some(output),
            _ => None,
        }
    }
}

/// Registers the runner and returns its agent id.
///
/// `fetched` is when the token was handed out. Several attempts with growing pauses are made within
/// `patience`; each starts from a home without registration files.
pub async fn register(
    place: &Place<'_>,
    registration: &Registration,
    token: &Secret,
    fetched: Instant,
    patience: &Patience,
) -> Result<u64, ConfigureError> {
    let mut program = program(place, registration, token);
    let mut pause = FIRST_PAUSE;
    for attempt in 1.. {
        files::remove(place.home)?;
        let error = match attempt_once(place.home, &program, attempt, fetched, patience).await {
            Ok(agent_id) => return Ok(agent_id),
            Err(error) => error,
        };
        let _ = files::remove(place.home);
        let final_one = matches!(
            error,
            ConfigureError::Process(ProcessError::Start { .. } | ProcessError::Cancelled { .. })
        );
        let said = text::one_line(&text::shorten(error.output().unwrap_or_default(), 300));
        warn!("{error}: {said}");
        if final_one || attempt == ATTEMPTS || !patience.pause(pause).await {
            return Err(error);
        }
        // GARM's names are unique: what holds this one is an attempt of ours that failed half-way.
        let replace = OsString::from("--replace");
        if is_conflict(&error) && !program.args.contains(&replace) {
            program.args.push(replace);
        }
        info!("configuring again");
        pause *= 2;
    }
    unreachable!("the attempts are counted without an end")
}

async fn attempt_once(
    home: &Path,
    program: &Program,
    attempt: u32,
    fetched: Instant,
    patience: &Patience,
) -> Result<u64, ConfigureError> {
    let limit = ATTEMPT_LIMIT.min(patience.left());
    let finished = match program.run(limit, &patience.cancel).await {
        Ok(finished) => finished,
        // Its work may have been done when it was stopped: only who knows that can undo it.
        Err(error @ (ProcessError::Cancelled { .. } | ProcessError::TimedOut { .. })) => {
            return files::registered(home).map_err(|_| error.into());
        }
        Err(error) => return Err(error.into()),
    };
    let output = finished.output.text();
    if !finished.status.success() {
        let hint = token_hint(&output, fetched.elapsed());
        let ended = finished.ended();
        return Err(ConfigureError::Failed { ended, attempts: attempt, hint, output });
    }
    files::registered(home).map_err(|source| ConfigureError::Lied { source, output })
}

fn program(place: &Place<'_>, registration: &Registration, token: &Secret) -> Program {
    let mut env = place.env.clone();
    env.push(("ACTIONS_RUNNER_INPUT_TOKEN".into(), token.expose().into()));
    Program {
        path: place.home.join("config.sh"),
        args: arguments(registration),
        env,
        dir: place.home.to_owned(),
        user: place.switch_to.cloned(),
    }
}

/// The argument list. Values stand as they are, whatever characters they hold.
fn arguments(registration: &Registration) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["--unattended".into()];
    let mut pair = |flag: &str, value: OsString| {
        args.push(flag.into());
        args.push(value);
    };
    pair("--url", registration.url.as_str().trim_end_matches('/').into());
    pair("--name", registration.name.clone().into());
    if !registration.labels.is_empty() {
        pair("--labels", registration.labels.join(",").into());
    }
    if let Some(group) = &registration.group {
        pair("--runnergroup", group.into());
    }
    if let Some(work) = &registration.work {
        pair("--work", work.into());
    }
    let switches = [
        (registration.ephemeral, "--ephemeral"),
        (registration.no_default_labels, "--no-default-labels"),
        (registration.disable_update, "--disableupdate"),
        // Bare: a value after it is taken for an argument of its own (actions/runner#1021).
        (registration.replace, "--replace"),
    ];
    args.extend(switches.iter().filter(|(on, _)| *on).map(|(_, flag)| OsString::from(*flag)));
    args
}

/// Whether the forge knows a runner of this name already (actions/runner 2.336 has these words).
fn is_conflict(error: &ConfigureError) -> bool {
    error.output().is_some_and(|output| output.contains("exists with the same name"))
}

/// What an old token looks like to people, if this may be one.
fn token_hint(output: &str, age: Duration) -> String {
    if !text::is_refusal(output) {
        return String::new();
    }
    let minutes = age.as_secs() / 60;
    let verdict = if age >= TOKEN_LIFE { "it has expired" } else { "they live an hour" };
    format!(
        "; the forge refused it: the registration token is {minutes} min old ({verdict}), or the URL is not this token's"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration() -> Registration {
        Registration {
            url: Url::parse("https://forge.example/acme/").unwrap(),
            name: "lab-1".to_owned(),
            labels: vec!["a b".to_owned(), "$(touch /tmp/pwn)".to_owned()],
            group: Some("Sample Group 1".to_owned()),
            work: None,
            ephemeral: true,
            no_default_labels: true,
            disable_update: false,
            replace: false,
        }
    }

    #[test]
    fn values_with_spaces_and_dollars_stay_one_argument_each() {
        assert_eq!(
            arguments(&registration()),
            [
                "--unattended",
                "--url",
                "https://forge.example/acme",
                "--name",
                "lab-1",
                "--labels",
                "a b,$(touch /tmp/pwn)",
                "--runnergroup",
                "Sample Group 1",
                "--ephemeral",
                "--no-default-labels",
            ]
        );
    }

    #[test]
    fn the_token_is_in_the_environment_and_not_in_the_arguments() {
        let token = Secret::new("registration-secret-1");
        let place = Place { home: Path::new("/h"), switch_to: None, env: vec![] };
        let program = program(&place, &registration(), &token);
        assert!(program.args.iter().all(|arg| arg != token.expose()));
        assert!(program.env.iter().any(|(_, value)| value == token.expose()));
    }

    #[test]
    fn a_not_found_hints_at_the_tokens_age() {
        let hint =
            token_hint("Http response code: NotFound from 'POST …'", Duration::from_secs(4000));
        assert!(hint.contains("66 min old (it has expired)"), "{hint}");
        assert_eq!(token_hint("libicu missing", Duration::ZERO), "");
    }
}
