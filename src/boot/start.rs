//! What the runner is started with, and what it needs from the system before that.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tracing::{info, warn};

use crate::config::Config;
use crate::error::Error;
use crate::forge::Dialect;
use crate::forge::github::configure::Place;
use crate::host::files::read_plain;
use crate::host::process::Program;
use crate::host::service::Service;
use crate::http::Patience;
use crate::state;
use crate::supervise::environment::{self, Sources};
use crate::supervise::{Launch, Limits, Relaunch};
use crate::tools::dependencies::{Installed, Installer, Search, names};

/// How long our own Listener may stay after its one job. It closes its session and removes its files, which
/// takes a minute or so where the forge is slow; a start script of the user's may have more to do.
const AFTER_JOB: Duration = Duration::from_secs(5 * 60);
const INSTALL_PAUSE: Duration = Duration::from_secs(5);

pub(super) type Variables = Vec<(OsString, OsString)>;

/// The environment of config.sh and of the Listener; `defaults` where nothing else sets them.
pub(super) fn environment(config: &Config, defaults: &Variables) -> Variables {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let etc_environment = std::fs::read("/etc/environment").map(text).unwrap_or_default();
    let path_file = read_plain(&config.home.join(".path")).map(text).ok();
    let mut extra = Variables::new();
    if config.user.is_root() {
        extra.push(("RUNNER_ALLOW_RUNASROOT".into(), "1".into()));
    }
    extra.extend(config.proxy.variables());
    environment::environment(&Sources {
        ours: config.environment.pairs(),
        account: &config.user,
        home: &config.home,
        etc_environment: &etc_environment,
        path_file: path_file.as_deref(),
        defaults,
        extra: &extra,
    })
}

/// Where and as whom config.sh runs.
pub(super) fn place<'a>(config: &'a Config, defaults: &Variables) -> Place<'a> {
    Place {
        home: &config.home,
        switch_to: config.switch_to.as_ref(),
        env: environment(config, defaults),
    }
}

/// `memory` is where the notes for another agent go, if `service` keeps the rest for it.
pub(super) fn launch(
    config: &Config,
    defaults: &Variables,
    service: &Service,
    memory: PathBuf,
) -> Launch {
    let own = ["bin/Runner.Listener".to_owned(), "run".to_owned()];
    let words = config.command.as_deref().unwrap_or(&own);
    let (program, args) = words.split_first().unwrap_or((&own[0], &[]));
    // The exit codes of a start script mean nothing to us.
    let relaunch = config.command.is_none().then(Relaunch::default);
    Launch {
        program: Program {
            path: config.home.join(program),
            args: args.iter().map(OsString::from).collect(),
            env: environment(config, defaults),
            dir: config.home.clone(),
            user: config.switch_to.clone(),
        },
        home: config.home.clone(),
        dialect: Dialect::GitHub,
        drain_timeout: config.times.drain_timeout,
        stop_grace: config.times.stop_grace,
        limits: Limits {
            idle: config.times.idle_limit,
            job: config.times.job_limit,
            after_job: config.command.is_none().then_some(AFTER_JOB),
            lifetime: config.times.lifetime,
            stays: !config.registration.ephemeral,
        },
        // One that stays keeps its registration when it loses a job.
        ghost_limit: config.times.orphan_limit.filter(|_| config.registration.ephemeral),
        service: service.clone(),
        memory: service.keeps().then_some(memory),
        relaunch,
    }
}

pub(super) fn no_stdout(source: &std::io::Error) -> Error {
    Error::Panic(format!("stdout cannot be used: {source}"))
}

/// Where the runner's libraries are looked for.
pub(super) fn search(config: &Config) -> Search {
    Search::here(|name| config.environment.get(name))
}

/// Installs what is missing. Where that cannot be done here the runner is tried all the same: it knows
/// better than we what it can do without, and says so.
pub(super) async fn install_dependencies(
    config: &Config,
    defaults: &Variables,
    patience: &Patience,
) -> Result<(), Error> {
    let work = state::folder(&config.dirs.runtime)?;
    let installer = Installer {
        home: &config.home,
        work: &work,
        env: environment(config, defaults),
        search: search(config),
        pause: INSTALL_PAUSE,
        deadline: patience.deadline,
    };
    match installer.install(&patience.cancel).await? {
        Installed::NotNeeded => {}
        Installed::Done { attempts } => info!(attempts, "the dependencies are installed"),
        Installed::StillMissing(missing) => {
            warn!(
                "installdependencies.sh was content, but these are still missing: {}",
                names(&missing)
            );
        }
        Installed::NotRoot(missing) => {
            warn!(
                "only root can install what is missing: {}; put it into the image",
                names(&missing)
            );
        }
        Installed::NoScript(missing) => {
            warn!("the runner brings no script to install what is missing: {}", names(&missing));
        }
    }
    Ok(())
}
