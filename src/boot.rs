//! The story of a boot, phase by phase.
//!
//! | phase | does |
//! |---|---|
//! | preflight | takes the lock and asks the used marker, before a word to GARM |
//! | discover | says `installing`, and finds out who this instance is to be |
//! | fetch | finds, copies or downloads the runner; its papers are fetched beside it |
//! | dependencies | looks for the libraries that it needs, waits for Docker if asked to |
//! | configure | writes the JIT files, or registers with config.sh |
//! | introduce | tells GARM about the system, while GARM still listens |
//! | start | starts the Listener and waits until it listens |
//! | announce | says `idle` |
//! | supervise | leads the runner to its end |
//! | finish | says `failed` if GARM is still to hear it, and chooses the exit code |
//!
//! An installation ([`Goal::Install`]) goes from configure to finish.
//!
//! Owns: the order of things, and what is said to GARM at each. Must not: do any of it itself. Every way
//! out of here, a panic included, goes through [`Boot::finish`].

mod adopt;
mod assignment;
mod authorities;
mod deregister;
mod discover;
mod docker;
mod fetch;
mod finish;
mod kept;
mod leftovers;
mod live;
mod orphan;
mod signals;
mod start;
pub(crate) mod told;
mod watched;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use adopt::Adoptee;
use deregister::Registered;
use fetch::Fetched;
use leftovers::Leftovers;
pub use signals::Signals;

use crate::config::Config;
use crate::error::Error;
use crate::exit::Exit;
use crate::forge::github::configure;
use crate::forge::github::files;
use crate::garm::{Garm, Reporter};
use crate::host::service::{self, Service};
use crate::host::{memory, os};
use crate::http::{Http, Patience, Trust};
use crate::state::{self, Instance, Life, State, StateError, Told};
use crate::supervise::{self, End, Launch, Memory, Supervisor, Why};
use crate::timeline::{Phase, Timeline};
use crate::tools::{blocking, dependencies};

/// Less memory than this has never run a job; it is said, because the kernel's killer does not say it.
const LITTLE_MEMORY: u64 = 512 << 20;
/// The least that the last word is tried when the deadline has passed already.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Boots one runner, and leads it as far as `goal` says. `on_phase` hears of each phase as it begins; what
/// it does wrong counts as a fault of the phase.
///
/// # Errors
/// Why the boot could not even begin; GARM has heard nothing then.
pub async fn boot(
    goal: Goal,
    config: Config,
    signals: Signals,
    on_phase: impl Fn(Phase) + 'static,
) -> Result<Exit, Error> {
    let timeline = Timeline::start();
    // Before anything is said: a second starter must not speak for the first one.
    let service = Service::of(|name| config.environment.get(name));
    let kept = service::kept(|name| config.environment.get(name));
    let Claim { state, instance, adoptee, registered } = claim(&config, kept)?;
    tokio::spawn(watched::keep_informed(service.clone(), signals.clone()));
    let halt = CancellationToken::new();
    let patience =
        Patience { deadline: Instant::now() + config.times.deadline, cancel: halt.clone() };
    let api = vec![config.access.metadata.clone(), config.access.callback.clone()];
    let http = Http::new(&config.trust, &config.proxy, api)?;
    let garm = Garm::new(http.clone(), config.access.clone(), patience);
    let reporter = Reporter::start(garm.clone());
    tokio::spawn(halt_when(signals.clone(), reporter.clone(), halt));
    let trust = config.trust.clone();
    let boot = Boot {
        goal,
        config,
        signals,
        state,
        instance,
        service,
        garm,
        reporter,
        runner: RefCell::default(),
        http: RefCell::new(http),
        trust: RefCell::new(trust),
        defaults: RefCell::default(),
        registered: RefCell::new(registered),
        timeline: RefCell::new(timeline),
        life: RefCell::new(Life::begin()),
        phase: Cell::new(Phase::Preflight),
        told: Cell::default(),
        on_phase: Box::new(on_phase),
    };
    let story = async {
        match adoptee {
            Some(adoptee) => boot.resume(adoptee).await,
            None => boot.story().await,
        }
    };
    let story = AssertUnwindSafe(Box::pin(story)).catch_unwind().await;
    let outcome = story.unwrap_or_else(|panic| Err(Error::Panic(told::panic_text(&*panic))));
    Ok(boot.finish(outcome).await)
}

/// What a boot has to itself.
struct Claim {
    state: State,
    instance: Instance,
    adoptee: Option<Adoptee>,
    registered: Registered,
}

/// The lock on the state folder, and the marker's word that this instance is unused; nothing of an
/// earlier boot runs any more, but perhaps a runner that is to be taken over.
fn claim(config: &Config, mut kept: BTreeMap<String, OwnedFd>) -> Result<Claim, Error> {
    let instance = Instance::new(config.access.callback.as_str(), config.access.token.expose());
    let state = State::lock(&state::folder(&config.dirs.state)?)?;
    let memory = Memory::read(&state.runner_memory(&instance));
    let registered = Registered::left(&mut kept, &instance);
    if let Some(adoptee) = Adoptee::of(kept, memory) {
        return Ok(Claim { state, instance, adoptee: Some(adoptee), registered });
    }
    state.refuse_used(&instance)?;
    let left = Leftovers::in_home(&config.home);
    if let Some(agent) = left.agent {
        return Err(StateError::Configuring { pid: agent.as_raw() }.into());
    }
    if let Some(runner) = left.runner {
        return Err(StateError::Alive { pid: runner.as_raw() }.into());
    }
    left.end_configuring();
    Ok(Claim { state, instance, adoptee: None, registered })
}

/// Ends the boot's waits when we are asked to leave or GARM has forgotten us. A runner that has been
/// started is beyond the reach of this.
async fn halt_when(signals: Signals, reporter: Reporter, halt: CancellationToken) {
    tokio::select! {
        _ = signals.more_than(0) => {}
        () = reporter.gone().cancelled() => {}
    }
    halt.cancel();
}

/// How far a boot goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal {
    /// To the end of a runner's life.
    Run,
    /// To a configured runner, which is left in its home for a later boot of the same instance: in another
    /// container perhaps, and with another state folder.
    Install,
}

/// How a boot ended that went well.
enum Outcome {
    Installed,
    Ended(Box<End>),
}

/// Everything that the phases share.
struct Boot {
    goal: Goal,
    config: Config,
    signals: Signals,
    state: State,
    instance: Instance,
    service: Service,
    garm: Garm,
    reporter: Reporter,
    /// Once it is started: whatever happens to the boot, it is not left alone.
    runner: RefCell<Option<Supervisor>>,
    /// Replaced when the forge turns out to have authorities of its own.
    http: RefCell<Http>,
    trust: RefCell<Trust>,
    /// What the runner needs in its environment, where nothing else sets it.
    defaults: RefCell<start::Variables>,
    /// Until a job has used the registration.
    registered: RefCell<Registered>,
    timeline: RefCell<Timeline>,
    life: RefCell<Life>,
    phase: Cell<Phase>,
    /// What GARM has said to `idle`, once it has.
    told: Cell<Option<Told>>,
    on_phase: Box<dyn Fn(Phase)>,
}

impl Boot {
    async fn story(&self) -> Result<Outcome, Error> {
        self.during(Phase::Preflight, async { self.preflight() }).await?;
        let assignment = self.during(Phase::Discover, Box::pin(self.discover())).await?;
        let papers = self.during(Phase::Fetch, Box::pin(self.fetch(assignment))).await?;
        self.during(Phase::Dependencies, self.needs()).await?;
        let agent_id = self.during(Phase::Configure, self.configure(papers)).await?;
        self.life.borrow_mut().agent_id = agent_id;
        if self.goal == Goal::Install {
            info!("the runner is installed; a later run of this instance finds it");
            return Ok(Outcome::Installed);
        }
        self.during(Phase::Introduce, self.introduce(agent_id)).await?;
        let runner = self.during(Phase::Start, self.start()).await?;
        self.live(runner, agent_id).await.map(Outcome::Ended)
    }

    /// Looks at the machine. Most of it is not worth a failure: what really does not work says so itself.
    fn preflight(&self) -> Result<(), Error> {
        let home = &self.config.home;
        let user = &self.config.user;
        info!(
            user = user.name,
            home = %home.display(),
            architecture = os::forge_arch(),
            free_mb = os::free_disk(home).map(|bytes| bytes >> 20),
            memory_mb = memory::total().map(|bytes| bytes >> 20),
            "booting a runner"
        );
        if user.is_root() {
            warn!("the runner and its jobs run as root");
        }
        if let Some(variable) = self.config.proxy.spoken_to_over_tls() {
            warn!(
                "{variable} names an https:// proxy; the runner cannot speak TLS to a proxy and will \
                 not get out: write http:// if the proxy takes it"
            );
        }
        if memory::total().is_some_and(|bytes| bytes < LITTLE_MEMORY) {
            warn!("there is little memory here; the kernel may kill a job for it");
        }
        match user.barred_from(home.parent().unwrap_or(home)) {
            Some(folder) if self.config.switch_to.is_some() => {
                Err(Error::Barred { user: user.name.clone(), home: home.clone(), folder })
            }
            _ => Ok(()),
        }
    }

    /// What the runner and its jobs need from the system.
    async fn needs(&self) -> Result<(), Error> {
        if self.goal == Goal::Install {
            // Docker and the store of certificates are those of the container that runs the jobs.
            return self.dependencies().await;
        }
        let packages = async {
            self.dependencies().await?;
            // Not beside it: a package manager runs the same tool.
            self.ca_certs().await;
            Ok(())
        };
        let (packages, docker) =
            tokio::join!(self.step("libraries", packages), self.step("docker", self.docker()));
        packages.and(docker)
    }

    async fn dependencies(&self) -> Result<(), Error> {
        let (home, search) = (self.config.home.clone(), start::search(&self.config));
        let missing = blocking(move || dependencies::missing_libraries(&home, &search)).await;
        if missing.is_empty() {
            return Ok(());
        }
        let names = dependencies::names(&missing);
        self.reporter.installing(format!("installing dependencies: {names}"));
        let defaults = self.defaults.borrow().clone();
        start::install_dependencies(&self.config, &defaults, self.garm.patience()).await
    }

    /// Makes the unpacked runner this instance's runner; its agent id, where it is known.
    async fn configure(&self, papers: Fetched) -> Result<Option<u64>, Error> {
        match papers {
            Fetched::Jit(jit) => {
                let (home, user) = (self.config.home.clone(), self.config.user.clone());
                blocking(move || {
                    files::remove(&home)?;
                    jit.write(&home, &user)?;
                    Ok(jit.agent_id())
                })
                .await
            }
            Fetched::Token { registration, token, at } => {
                self.reporter.installing("configuring the runner");
                let place = start::place(&self.config, &self.defaults.borrow());
                let patience = self.garm.patience();
                let id = configure::register(&place, &registration, &token, at, patience).await?;
                self.kept().keep_registration(id);
                info!(agent_id = id, "the runner is registered");
                self.is_registered_with(token, at);
                Ok(Some(id))
            }
            Fetched::Registered { agent_id } => {
                if matches!(*self.registered.borrow(), Registered::No) {
                    self.registered.replace(Registered::Before);
                }
                Ok(Some(agent_id))
            }
        }
    }

    /// Once a job comes in, GARM shuts the door; so this comes before the Listener.
    async fn introduce(&self, agent_id: Option<u64>) -> Result<(), Error> {
        match self.garm.system_info(&os::Os::read(), agent_id).await {
            Err(error) if error.status() == Some(401) => Err(Error::Superseded),
            // Told to stop: no runner is started for a boot that ends.
            Err(_) if self.garm.patience().cancel.is_cancelled() => Err(Error::Stopped),
            Err(error) => {
                warn!("GARM did not take the system info: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn start(&self) -> Result<Supervisor, Error> {
        self.reporter.installing("starting the runner");
        let sink = supervise::our_stdout().map_err(|source| start::no_stdout(&source))?;
        let (runner, _) = Supervisor::start(self.launch(), sink);
        self.runner.replace(Some(runner.clone()));
        self.until_up(&runner).await.map(|()| runner)
    }

    fn launch(&self) -> Launch {
        let memory = self.state.runner_memory(&self.instance);
        start::launch(&self.config, &self.defaults.borrow(), &self.service, memory)
    }

    /// Returns when the runner listens, in time.
    async fn until_up(&self, runner: &Supervisor) -> Result<(), Error> {
        let up = tokio::select! {
            up = runner.wait_up() => up,
            () = tokio::time::sleep(self.config.times.ready_timeout) => {
                runner.stop(Why::NotReady);
                Err(runner.wait_ended().await)
            }
            end = self.lead(runner) => Err(end),
        };
        up.map_err(Error::Ended)
    }

    /// Notes in `state.json` what has changed. A file that cannot be written costs nobody the runner.
    fn note(&self, change: impl FnOnce(&mut Life)) {
        change(&mut self.life.borrow_mut());
        if let Err(error) = self.state.write_life(&self.life.borrow()) {
            warn!("failed to {error}");
        }
        watched::tell(&self.service, &self.life.borrow());
    }

    /// Runs what a phase does beside other work, with its times noted.
    async fn step<T>(&self, name: &str, work: impl Future<Output = T>) -> T {
        let start = self.timeline.borrow().elapsed();
        let done = Box::pin(work).await;
        self.timeline.borrow_mut().add_step(self.phase.get(), name, start);
        done
    }

    /// Runs one phase, with its times noted.
    async fn during<T>(
        &self,
        phase: Phase,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let runner_is_up = matches!(phase, Phase::Announce | Phase::Supervise);
        if !runner_is_up && self.garm.patience().cancel.is_cancelled() {
            // Told to leave in a phase that had nothing to wait for: no other one is begun.
            return Err(Error::Stopped);
        }
        self.phase.set(phase);
        self.timeline.borrow_mut().begin(phase);
        self.note(|life| life.enter(phase));
        (self.on_phase)(phase);
        let result = work.await;
        // A phase that failed stays open, and is the one that is told.
        if result.is_ok() {
            self.timeline.borrow_mut().end(phase);
            if matches!(phase, Phase::Announce) {
                let _ = self.state.write_timeline(&self.timeline.borrow());
            }
        }
        result
    }
}
