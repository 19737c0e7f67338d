//! The end of the instance: what a person wants to become of the machine when we are done.
//!
//! It comes last: GARM has been told, the runner's output is written, `state.json` is on disk. Its own
//! failure is logged and changes no exit code. Must not: be called for a start that found another
//! garm-bootstrap at work here, for that one has a job to lead.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{Action, Environment, OnExit, When};
use crate::exit::Exit;
use crate::host::power::Power;
use crate::host::process::Program;
use crate::text::one_line;

/// How long the person's own command may take: it may have logs to save.
const COMMAND_LIMIT: Duration = Duration::from_secs(5 * 60);
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Does what `on_exit` says; `cancel` ends a command of the person's.
pub async fn of_instance(
    on_exit: &OnExit,
    exit: Exit,
    environment: &Environment,
    cancel: &CancellationToken,
) {
    let meant = match on_exit.when {
        When::Always => true,
        When::Success => exit == Exit::Done,
        When::Failure => exit != Exit::Done,
    };
    if !meant {
        return;
    }
    let power = match &on_exit.action {
        Action::None => return,
        Action::Poweroff => Power::Off,
        Action::Reboot => Power::Reboot,
        Action::Command(words) => return command(words, exit, environment, cancel).await,
    };
    info!(exit = exit.code(), "the end: {power:?} is asked for");
    if let Err(error) = power.switch().await {
        warn!("failed to {error}");
    }
}

async fn command(
    words: &[String],
    exit: Exit,
    environment: &Environment,
    cancel: &CancellationToken,
) {
    let Some((path, args)) = words.split_first() else { return };
    let reason = if exit == Exit::Done { "done" } else { exit.reason() };
    let env = [
        ("PATH", environment.get("PATH").unwrap_or_else(|| PATH.to_owned())),
        ("GARM_BOOTSTRAP_EXIT_CODE", exit.code().to_string()),
        ("GARM_BOOTSTRAP_REASON", reason.to_owned()),
    ];
    let program = Program {
        path: PathBuf::from(path),
        args: args.iter().map(Into::into).collect(),
        env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        dir: PathBuf::from("/"),
        user: None,
    };
    info!(exit = exit.code(), "the end: running {path}");
    match program.run(COMMAND_LIMIT, cancel).await {
        Ok(finished) => {
            let said = one_line(&finished.output.text());
            info!("{path} ended with {}: {said}", finished.status);
        }
        Err(error) => warn!("failed to {error}"),
    }
}
