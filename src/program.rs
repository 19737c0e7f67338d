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
use crate::garm::{Access, Garm, Reporter};
use crate::host::oom;
use crate::host::users::Account;
use crate::http::{Http, Patience, ProxySettings};
use crate::state::{self, Instance, Life, State, StateError};
use crate::supervise::Memory;
use crate::{commands, end, init, log};

/// How long GARM is asked to listen to a person's mistake.
const TELL_LIMIT: Duration = Duration::from_secs(10);

/// Runs the program; `args` begin with its name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> Exit {
    let exit = run_command(&args.into_iter().collect::<Vec<_>>());
    log::finish();
    exit
}

fn run_command(args: &[OsString]) -> Exit {
    let env = Environment::of_process();
    let invocation = match cli::parse(args.iter().cloned()) {
        Ok(invocation) => invocation,
        Err(error) => return typed_wrong(&error, env, cli::is_boot(args)),
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
        Ok(config) => {
            Box::pin(boot::boot(goal, config, signals.clone(), |phase| debug!("{phase}"))).await
        }
        Err(error) => Err(error.into()),
    };
    let exit = match ended {
        Ok(exit) => exit,
        Err(error) => match refuse(&layers, bootstrap.as_ref(), error).await {
            Refusal::Ours(exit) => exit,
            Refusal::SecondStart(exit) => return exit,
        },
    };
    // An installation is not the end of the instance.
    if goal == Goal::Run {
        end_instance(&layers, exit, &signals).await;
    }
    exit
}

/// Does what is wanted at the very end, where that much of the settings can be read.
async fn end_instance(layers: &Layers, exit: Exit, signals: &Signals) {
    let Ok(on_exit) = config::on_exit(layers) else { return };
    let (cancel, seen) = (CancellationToken::new(), signals.count());
    let end = end::of_instance(&on_exit, exit, &layers.env, &cancel);
    tokio::pin!(end);
    tokio::select! {
        () = &mut end => {}
        _ = signals.more_than(seen) => {
            cancel.cancel();
            end.await;
        }
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
    in_runtime(async {
        match refuse(&layers, bootstrap.as_ref(), Error::Typed(text)).await {
            Refusal::Ours(exit) => {
                if let Ok(signals) = Signals::listen() {
                    end_instance(&layers, exit, &signals).await;
                }
                exit
            }
            Refusal::SecondStart(exit) => exit,
        }
    })
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

/// Why nothing was booted.
enum Refusal {
    Ours(Exit),
    /// Another garm-bootstrap is at work here, or was: the instance is that one's to lead and to end.
    SecondStart(Exit),
}

/// Says what is wrong: to the person, in `state.json`, on the console and, where we know how, to GARM.
/// A second start says it to the person alone.
async fn refuse(layers: &Layers, bootstrap: Option<&Bootstrap>, error: Error) -> Refusal {
    error!("failed to {error}");
    let exit = error.exit();
    let access = config::access_to_report(layers, bootstrap).ok();
    if exit == Exit::AlreadyRun || !is_first_start(layers, access.as_ref(), &error) {
        return Refusal::SecondStart(exit);
    }
    let message = format!("[{}] preflight: failed to {error}", error.reason());
    boot::told::on_console(&message);
    if let Some(access) = access {
        tell_garm(layers, bootstrap, access, &message).await;
    }
    Refusal::Ours(exit)
}

/// Whether nobody else has booted or is booting here; if so, the end is noted in `state.json`.
fn is_first_start(layers: &Layers, access: Option<&Access>, error: &Error) -> bool {
    let dirs = config::dirs(layers, &Account::current());
    let memories = state::runner_memories(&dirs.state);
    let mut memories = memories.iter().filter_map(|path| Memory::read(path));
    if let Some(memory) = memories.find(Memory::is_of_the_living) {
        // It was started by one of us that has gone, and may have a job.
        warn!(pid = memory.pid, "the runner of an earlier start is alive; it is left alone");
        return false;
    }
    let claim = || -> Result<(), StateError> {
        let state = State::lock(&state::folder(&dirs.state)?)?;
        if let Some(access) = access {
            let instance = Instance::new(access.callback.as_str(), access.token.expose());
            state.refuse_used(&instance)?;
        }
        let mut life = Life::begin();
        life.end(error.exit(), Some(error.reason()), &format!("failed to {error}"));
        state.write_life(&life)
    };
    match claim() {
        Err(StateError::Busy { .. } | StateError::Used { .. }) => false,
        Err(error) => {
            warn!("failed to {error}");
            true
        }
        Ok(()) => true,
    }
}

/// Sends `failed`.
async fn tell_garm(layers: &Layers, bootstrap: Option<&Bootstrap>, access: Access, message: &str) {
    // What is wrong may be one of these two; then it is tried without.
    let trust = config::trust(layers, bootstrap).unwrap_or_default();
    let client = |proxy: &ProxySettings| Http::new(&trust, proxy, vec![access.callback.clone()]);
    let http = client(&config::proxy(layers, bootstrap));
    let Ok(http) = http.or_else(|_| client(&ProxySettings::default())) else { return };
    let patience =
        Patience { deadline: Instant::now() + TELL_LIMIT, cancel: CancellationToken::new() };
    let reporter = Reporter::start(Garm::new(http, access, patience.clone()));
    if let Err(error) = reporter.failed(message, patience).await {
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
