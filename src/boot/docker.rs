//! What run.sh would do for the jobs before it starts the Listener, where a person has asked for it: wait
//! for Docker, and make the system's certificate store anew.

use std::path::Path;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Boot, start};
use crate::error::Error;
use crate::host::docker::Engine;
use crate::host::files::read_plain;
use crate::host::store::SystemStore;

/// Between two attempts: what is waited for is a container beside us.
const PAUSE: Duration = Duration::from_millis(500);

impl Boot {
    /// Returns when Docker answers.
    pub(super) async fn docker(&self) -> Result<(), Error> {
        let Some(limit) = self.config.wait_for_docker else { return Ok(()) };
        let env = start::environment(&self.config, &self.defaults.borrow());
        // The Listener puts it over its environment.
        let file = read_plain(&self.config.home.join(".env")).unwrap_or_default();
        let file = String::from_utf8_lossy(&file);
        let value = |wanted: &str| {
            let in_file = file.lines().filter_map(|line| line.split_once('='));
            let over = in_file.rev().find(|(name, _)| *name == wanted);
            let under = env.iter().find(|(name, _)| name == wanted);
            over.map(|(_, value)| value.to_owned())
                .or_else(|| under.map(|(_, value)| value.to_string_lossy().into_owned()))
        };
        let tls = value("DOCKER_TLS_VERIFY").is_some_and(|value| !value.is_empty());
        let engine = match Engine::named(value("DOCKER_HOST").as_deref(), tls) {
            Ok(engine) => engine,
            Err(named) => {
                warn!("DOCKER_HOST is {named}; that Docker cannot be waited for");
                return Ok(());
            }
        };
        let (patience, began) = (self.garm.patience(), Instant::now());
        let until = patience.deadline.min(began + limit);
        let mut told = false;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let answer = tokio::select! {
                answer = engine.ping(left) => answer,
                () = patience.cancel.cancelled() => return Err(Error::Stopped),
            };
            let Err(why) = answer else { break };
            if Instant::now() + PAUSE > until {
                let waited = began.elapsed().as_secs();
                return Err(Error::NoDocker { engine: engine.to_string(), waited, why });
            }
            if !told {
                info!(%engine, %why, "waiting for Docker");
                self.reporter.installing(format!("waiting for Docker at {engine}"));
                told = true;
            }
            if !patience.pause(PAUSE).await {
                return Err(Error::Stopped);
            }
        }
        info!(%engine, "Docker answers");
        Ok(())
    }

    /// Lets the distribution's tool take up the certificates that an image or a volume has put into its
    /// folder. A failure is no reason not to start: the tool may be missing on purpose.
    pub(super) async fn ca_certs(&self) {
        if !self.config.update_ca_certs {
            return;
        }
        if !nix::unistd::geteuid().is_root() {
            warn!("only root can update the system's certificates; they stay as they are");
            return;
        }
        let Some(store) = SystemStore::find(Path::new("/")) else {
            warn!(
                "there is no update-ca-certificates here; the system's certificates stay as they are"
            );
            return;
        };
        match store.update(&self.garm.patience().cancel).await {
            Ok(()) => info!("the system's certificates are updated"),
            Err(error) => warn!("failed to {error}"),
        }
    }
}
