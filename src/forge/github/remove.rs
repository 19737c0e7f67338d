//! `config.sh remove`: a registration is taken back that no job has used.
//!
//! Best effort, once, and bounded: GARM removes the runner at the forge in the end as well; this only
//! spares people the stale entry until then. GARM gives no removal token, and the forge takes a
//! registration token for it as well, as long as that lives (gitpod-io/gce-github-runner#14, iterative/cml#318).
//! Never for a JIT runner, which config.sh cannot remove (actions/runner#2920).

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::configure::Place;
use crate::host::process::{ProcessError, Program};
use crate::secret::Secret;
use crate::text;

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("remove the registration: config.sh remove ended with {ended}: {output}")]
    Failed { ended: String, output: String },
    #[error("remove the registration: failed to {0}")]
    Process(#[from] ProcessError),
}

/// Removes the runner at the forge, and its registration files. Its stdin is empty, so that it cannot
/// wait for an answer.
pub async fn remove(
    place: &Place<'_>,
    token: &Secret,
    limit: Duration,
    cancel: &CancellationToken,
) -> Result<(), RemoveError> {
    let mut env = place.env.clone();
    env.push(("ACTIONS_RUNNER_INPUT_TOKEN".into(), token.expose().into()));
    // Not as an argument: for this command it is an unknown one.
    env.push(("ACTIONS_RUNNER_INPUT_UNATTENDED".into(), "true".into()));
    let program = Program {
        path: place.home.join("config.sh"),
        args: vec!["remove".into()],
        env,
        dir: place.home.to_owned(),
        user: place.switch_to.cloned(),
    };
    let finished = program.run(limit, cancel).await?;
    if finished.status.success() {
        return Ok(());
    }
    let output = text::one_line(&text::shorten(&finished.output.text(), 300));
    Err(RemoveError::Failed { ended: finished.ended(), output })
}
