//! From the command line to an exit code: parse, log, runtime, run.
//!
//! Owns: what happens before there is a [`Config`] to boot with, so also how bad input is told: to the
//! person in one sentence, and to GARM as `failed` where its address and token are at hand.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::boot::{self, Goal, Signals};
use crate::cli::{self, Invocation};
use crate::config::{self, Bootstrap, Config, Environment, Flags, Layers, LogSettings};
use crate::error::Error;
use crate::exit::Exit;
use crate::garm::{Garm, Reporter};
use crate::host::oom;
use crate::host::users::Account;
use crate::http::{Http, Patience, ProxySettings};
use crate::state::{self, Instance, State};
use crate::{commands, init, log};

/// How long GARM is asked to listen to a person's mistake.
const TELL_LIMIT: Duration = Duration::from_secs(10);

/// Runs the program; `args` begin with its name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Exit {
    // The provider is the process's; a second one in a test is no error.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let env = Environment::of_process();
    let args: Vec<OsString> = args.into_iter().collect();
    let invocation = match cli::parse(args.iter().cloned()) {
        Ok(invocation) => invocation,
        Err(error) => return typed_wrong(&error, env, cli::is_boot(&args)),
    };
    match invocation {
        Invocation::Run { flags } => in_runtime(boot(Layers::new(flags, env), Goal::Run)),
        Invocation::Install { flags } => in_runtime(boot(Layers::new(flags, env), Goal::Install)),
        Invocation::Prepare { flags } => {
            init::signals::release();
            in_runtime(commands::prepare::prepare(Layers::new(flags, env)))
        }
        Invocation::Check { flags } => {
            init::signals::release();
            in_runtime(commands::check::check(Layers::new(flags, env)))
        }
        Invocation::Timeline { flags, json } => {
            commands::timeline::timeline(Layers::new(flags, env), json)
        }
        Invocation::Report { flags, order } => {
            // A signal ends it at once, as it ends any program.
            init::signals::release();
            in_runtime(commands::report::report(Layers::new(flags, env), order))
        }
    }
}

async fn boot(mut layers: Layers, goal: Goal) -> Exit {
    oom::protect();
    let signals = Signals::listen();
    init::signals::release();
    let signals = match signals {
        Ok(signals) => signals,
        Err(source) => {
            error!("failed to listen to signals: {source}");
            return Exit::Internal;
        }
    };
    let mut bootstrap = None;
    let ended = match resolve(&mut layers, &mut bootstrap) {
        Ok(config) => Box::pin(boot::boot(goal, config, signals, |phase| debug!("{phase}"))).await,
        Err(error) => Err(error.into()),
    };
    match ended {
        Ok(exit) => exit,
        Err(error) => refuse(&layers, bootstrap.as_ref(), error).await,
    }
}

/// The settings; and in `bootstrap` the bootstrap file, which can be read only once (it may be stdin),
/// for whoever has to tell GARM what is wrong.
fn resolve(
    layers: &mut Layers,
    bootstrap: &mut Option<Bootstrap>,
) -> Result<Config, config::ConfigError> {
    let file = layers.read_file();
    // Logging comes up whatever the file says, for its fault is to be logged.
    let log = LogSettings::resolve(layers);
    log::init(log.as_ref().copied().unwrap_or_default(), &layers.env);
    let read = config::bootstrap(layers);
    bootstrap.clone_from(read.as_ref().unwrap_or(&None));
    file?;
    log?;
    Config::resolve(layers, read?)
}

/// A command line that was not understood, or a request for help: clap has the words. Only where it was
/// to be a boot is there something to tell GARM: the instance will have no runner.
fn typed_wrong(error: &clap::Error, env: Environment, is_boot: bool) -> Exit {
    let _ = error.print();
    if !error.use_stderr() {
        return Exit::Done;
    }
    if !is_boot {
        return Exit::Usage;
    }
    init::signals::release();
    let mut layers = Layers::new(Flags::new(), env);
    // Its own fault is a smaller one now.
    let _ = layers.read_file();
    log::init(LogSettings::default(), &layers.env);
    let text = what_was_wrong(&error.render().to_string());
    let bootstrap = config::bootstrap(&layers).unwrap_or_default();
    in_runtime(refuse(&layers, bootstrap.as_ref(), Error::Typed(text)))
}

/// Of clap's text the fault and the hint, without the usage below them.
fn what_was_wrong(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let told: Vec<&str> = lines
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .map(|line| line.trim_start_matches("error: ").trim_start_matches("tip: "))
        .collect();
    told.join("; ")
}

/// Says what is wrong, to the person and, where we know how, to GARM.
async fn refuse(layers: &Layers, bootstrap: Option<&Bootstrap>, error: Error) -> Exit {
    error!("failed to {error}");
    if error.exit() != Exit::AlreadyRun {
        tell_garm(layers, bootstrap, &error).await;
    }
    error.exit()
}

/// Sends `failed`, unless this is a second start: then the first one speaks.
async fn tell_garm(layers: &Layers, bootstrap: Option<&Bootstrap>, error: &Error) {
    let Ok(access) = config::access_to_report(layers, bootstrap) else { return };
    let instance = Instance::new(access.callback.as_str(), access.token.expose());
    let dirs = config::dirs(layers, &Account::current());
    let claimed = state::folder(&dirs.state)
        .and_then(|dir| State::lock(&dir))
        .and_then(|state| state.refuse_used(&instance).map(|()| state));
    match claimed {
        Err(state::StateError::Busy { .. } | state::StateError::Used { .. }) => return,
        Err(error) => warn!("failed to {error}"),
        Ok(_) => {}
    }
    // What is wrong may be one of these two; then it is tried without.
    let trust = config::trust(layers, bootstrap).unwrap_or_default();
    let client = |proxy: &ProxySettings| Http::new(&trust, proxy, vec![access.callback.clone()]);
    let http = client(&config::proxy(layers, bootstrap));
    let Ok(http) = http.or_else(|_| client(&ProxySettings::default())) else { return };
    let patience =
        Patience { deadline: Instant::now() + TELL_LIMIT, cancel: CancellationToken::new() };
    let reporter = Reporter::start(Garm::new(http, access, patience.clone()));
    let message = format!("[{}] preflight: failed to {error}", error.reason());
    if let Err(error) = reporter.failed(&message, patience).await {
        warn!("GARM could not be told: {error}");
    }
}

fn in_runtime(work: impl Future<Output = Exit>) -> Exit {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(16).build();
    match runtime {
        Ok(runtime) => {
            let exit = runtime.block_on(work);
            // What still blocks there (a name that does not resolve) must not keep us.
            runtime.shutdown_background();
            exit
        }
        Err(source) => {
            error!("failed to start the runtime: {source}");
            Exit::Internal
        }
    }
}
