//! `install --prepare-only`: a runner in an image, ready for whichever instance boots from it.
//!
//! Owns: the order of download, look and dependencies without a GARM. Must not: need or leave a secret,
//! an identity or a state folder. What it leaves is the runner with its marker (version, checksum,
//! architecture), and a boot looks at both before it trusts them.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::open;
use crate::config::{Layers, Preparing};
use crate::error::Error;
use crate::exit::Exit;
use crate::forge::github::files;
use crate::http::{Http, Patience};
use crate::state;
use crate::supervise::environment::{self, Sources};
use crate::tools::dependencies::{Installed, Installer, Search, names};
use crate::tools::digest::Sha256;
use crate::tools::download::{self, Candidate};
use crate::tools::locate::{self, Runner};
use crate::tools::{blocking, place};

const INSTALL_PAUSE: Duration = Duration::from_secs(5);

/// Prepares the image that this is called in.
pub async fn prepare(mut layers: Layers) -> Exit {
    match bake(&mut layers).await {
        Ok(()) => Exit::Done,
        Err(error) => {
            error!("failed to {error}");
            error.exit()
        }
    }
}

async fn bake(layers: &mut Layers) -> Result<(), Error> {
    let bootstrap = open(layers)?;
    let preparing = Preparing::resolve(layers, bootstrap.as_ref())?;
    let sha256 = preparing.sha256.as_deref().and_then(|hex| hex.parse().ok());
    let deadline = Instant::now() + preparing.time;
    let patience = Patience { deadline, cancel: CancellationToken::new() };
    if files::ALL.iter().any(|name| preparing.home.join(name).exists()) {
        return Err(Error::Registered { home: preparing.home });
    }
    let home = preparing.home.clone();
    let there = blocking(move || locate::inspect(&home)).await;
    match there {
        Ok(runner) if is_wanted(&runner, sha256) => {
            info!(version = runner.version, "the runner is in {} already", runner.home.display());
            blocking(move || place::sweep(&runner.home)).await;
        }
        _ => fetch(&preparing, sha256, &patience).await?,
    }
    install_dependencies(&preparing, &patience).await
}

/// Whether a runner that is there is the one to be had: by its checksum, where one was given.
fn is_wanted(runner: &Runner, sha256: Option<Sha256>) -> bool {
    let Some(wanted) = sha256 else { return true };
    let has = runner.marker.as_ref().and_then(|marker| marker.sha256.as_deref());
    has.and_then(|hex| hex.parse().ok()) == Some(wanted)
}

async fn fetch(
    preparing: &Preparing,
    sha256: Option<Sha256>,
    patience: &Patience,
) -> Result<(), Error> {
    let http = Http::new(&preparing.trust, &preparing.proxy, vec![])?;
    let candidate = |url: &url::Url| Candidate { url: url.clone(), sha256, token: None };
    let candidates: Vec<Candidate> = preparing.downloads.iter().map(candidate).collect();
    let (owner, pace) = (preparing.switch_to.as_ref(), download::Pace::default());
    let unpacked =
        Box::pin(download::download(&http, &candidates, &preparing.home, owner, pace, patience))
            .await?;
    info!(
        files = unpacked.files,
        sha256 = %unpacked.sha256,
        "the runner is in {}",
        preparing.home.display()
    );
    Ok(())
}

/// As in a boot, but that what cannot be installed here is for the image's author to mend.
async fn install_dependencies(preparing: &Preparing, patience: &Patience) -> Result<(), Error> {
    let work = state::folder(&preparing.dirs.runtime)?;
    let installer = Installer {
        home: &preparing.home,
        work: &work,
        env: environment_of_the_script(preparing),
        search: Search::here(|name| preparing.environment.get(name)),
        pause: INSTALL_PAUSE,
        deadline: patience.deadline,
    };
    let result = installer.install(&patience.cancel).await;
    leave_nothing(&work);
    match result? {
        Installed::NotNeeded => {}
        Installed::Done { attempts } => info!(attempts, "the dependencies are installed"),
        Installed::StillMissing(missing)
        | Installed::NotRoot(missing)
        | Installed::NoScript(missing) => {
            warn!(
                "the image lacks libraries that the runner needs: {}; install them in it, or call \
                 this as root",
                names(&missing)
            );
        }
    }
    Ok(())
}

fn environment_of_the_script(preparing: &Preparing) -> Vec<environment::Pair> {
    environment::environment(&Sources {
        ours: preparing.environment.pairs(),
        account: &preparing.user,
        home: &preparing.home,
        etc_environment: "",
        path_file: None,
        defaults: &[],
        extra: &preparing.proxy.variables(),
    })
}

/// Our own folder would only be ballast in the image; one that somebody else uses stays.
fn leave_nothing(work: &Path) {
    let _ = std::fs::remove_file(work.join("apt.conf"));
    let _ = std::fs::remove_dir(work);
}
