//! The story of a boot, phase by phase.
//!
//! | phase | does |
//! |---|---|
//! | preflight | takes the lock and asks the used marker, before a word to GARM |
//! | discover | says `installing`, and finds out who this instance is to be |
//! | fetch | finds, copies or downloads the runner; its papers are fetched beside it |
//! | dependencies | looks for the libraries that it needs |
//! | configure | writes the JIT files, or registers with config.sh |
//! | introduce | tells GARM about the system, while GARM still listens |
//! | start | starts the Listener and waits until it listens |
//! | announce | says `idle` |
//! | supervise | leads the runner to its end |
//! | finish | says `failed` if GARM is still to hear it, and chooses the exit code |
//!
//! Owns: the order of things, and what is said to GARM at each. Must not: do any of it itself. Every way
//! out of here, a panic included, goes through [`Boot::finish`].

mod assignment;
mod kept;
mod leftovers;
mod signals;
mod start;
mod told;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

pub use signals::Signals;

use self::kept::Kept;
use self::leftovers::Leftovers;
use crate::config::{Config, Jit};
use crate::error::Error;
use crate::exit::Exit;
use crate::forge::github::configure::{self, Place, Registration};
use crate::forge::github::files::{self, JitFiles};
use crate::garm::{Access, Garm, IdleOutcome, Reporter, RunnerMetadata};
use crate::host::{memory, os};
use crate::http::{Http, Patience, ProxySettings, Trust};
use crate::secret::Secret;
use crate::state::{self, Instance, State, StateError};
use crate::supervise::{self, End, Supervisor, Why};
use crate::timeline::{Phase, Timeline};
use crate::tools::download::{self, Candidate};
use crate::tools::locate::{self, Found};
use crate::tools::{blocking, copy, dependencies, place};

/// Less memory than this has never run a job; it is said, because the kernel's killer does not say it.
const LITTLE_MEMORY: u64 = 512 << 20;
/// How long `failed` is tried after a stop: the platform will not wait for ever.
const LAST_WORD_WHEN_STOPPED: Duration = Duration::from_secs(8);
/// The least that `failed` is tried when the deadline has passed already.
const LAST_WORD: Duration = Duration::from_secs(5);
/// How long it is tried when the boot cannot even begin.
const LAST_WORD_AT_ONCE: Duration = Duration::from_secs(10);

/// Boots, supervises and ends one runner. `on_phase` hears of each phase as it begins; what it does wrong
/// counts as a fault of the phase.
pub async fn boot(config: Config, signals: Signals, on_phase: impl Fn(Phase) + 'static) -> Exit {
    let timeline = Timeline::start();
    // Before anything is said: a second starter must not speak for the first one.
    let claimed = claim(&config);
    let (state, instance) = match claimed {
        Ok(claimed) => claimed,
        Err(error) => return refuse(&error, &config).await,
    };
    let halt = CancellationToken::new();
    let patience =
        Patience { deadline: Instant::now() + config.times.deadline, cancel: halt.clone() };
    let api = vec![config.access.metadata.clone(), config.access.callback.clone()];
    let http = match Http::new(&config.trust, &config.proxy, api) {
        Ok(http) => http,
        Err(error) => return refuse(&error.into(), &config).await,
    };
    let garm = Garm::new(http.clone(), config.access.clone(), patience);
    let reporter = Reporter::start(garm.clone());
    tokio::spawn(halt_when(signals.clone(), reporter.clone(), halt));
    let boot = Boot {
        config,
        signals,
        state,
        instance,
        garm,
        reporter,
        runner: RefCell::default(),
        http: RefCell::new(http),
        timeline: RefCell::new(timeline),
        phase: Cell::new(Phase::Preflight),
        on_phase: Box::new(on_phase),
    };
    let story = AssertUnwindSafe(boot.story()).catch_unwind().await;
    let outcome = story.unwrap_or_else(|panic| Err(Error::Panic(told::panic_text(&*panic))));
    boot.finish(outcome).await
}

/// The lock on the state folder, and the marker's word that this instance is unused; nothing of an
/// earlier boot runs any more.
fn claim(config: &Config) -> Result<(State, Instance), Error> {
    let instance = Instance::new(config.access.callback.as_str(), config.access.token.expose());
    let state = State::lock(&state::folder(&config.dirs.state)?)?;
    state.refuse_used(&instance)?;
    let left = Leftovers::in_home(&config.home);
    if let Some(runner) = left.runner {
        return Err(StateError::Alive { pid: runner.as_raw() }.into());
    }
    left.end_configuring();
    Ok((state, instance))
}

/// Ends a boot that could not begin. GARM hears of it, but not from a second starter: the first one
/// speaks for this instance.
async fn refuse(error: &Error, config: &Config) -> Exit {
    let message = told::failure(error, Phase::Preflight);
    error!("{message}");
    if error.exit() != Exit::AlreadyRun
        && let Err(why) = tell(&message, config.access.clone(), config).await
    {
        warn!("GARM could not be told of the failure: {why}");
    }
    error.exit()
}

async fn tell(message: &str, access: Access, config: &Config) -> Result<(), Error> {
    let api = vec![access.callback.clone()];
    // What is wrong may be the very settings of the client.
    let http = Http::new(&config.trust, &config.proxy, api.clone())
        .or_else(|_| Http::new(&Trust::default(), &ProxySettings::default(), api))?;
    let deadline = Instant::now() + LAST_WORD_AT_ONCE;
    let patience = Patience { deadline, cancel: CancellationToken::new() };
    let reporter = Reporter::start(Garm::new(http, access, patience.clone()));
    let said = reporter.failed(message, patience).await;
    said.map_err(|source| Error::Garm { what: "to listen", source, hint: "" })
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

/// Who the runner is to be.
struct Assignment {
    candidates: Vec<Candidate>,
    papers: Papers,
}

/// How the runner proves who it is.
enum Papers {
    Jit,
    /// Boxed, for it is much larger than nothing.
    Token(Box<Registration>),
}

/// The same, fetched.
enum Fetched {
    Jit(JitFiles),
    Token {
        registration: Box<Registration>,
        token: Secret,
        at: Instant,
    },
    /// An earlier boot, which was killed, has registered the runner.
    Registered {
        agent_id: u64,
    },
}

/// Everything that the phases share.
struct Boot {
    config: Config,
    signals: Signals,
    state: State,
    instance: Instance,
    garm: Garm,
    reporter: Reporter,
    /// Once it is started: whatever happens to the boot, it is not left alone.
    runner: RefCell<Option<Supervisor>>,
    /// Replaced when the forge turns out to have authorities of its own.
    http: RefCell<Http>,
    timeline: RefCell<Timeline>,
    phase: Cell<Phase>,
    on_phase: Box<dyn Fn(Phase)>,
}

impl Boot {
    async fn story(&self) -> Result<Box<End>, Error> {
        let preflight = async {
            self.preflight();
            Ok(())
        };
        self.during(Phase::Preflight, preflight).await?;
        let assignment = self.during(Phase::Discover, self.discover()).await?;
        let papers = self.during(Phase::Fetch, self.fetch(assignment)).await?;
        self.during(Phase::Dependencies, self.dependencies()).await?;
        let agent_id = self.during(Phase::Configure, self.configure(papers)).await?;
        self.during(Phase::Introduce, self.introduce(agent_id)).await?;
        let runner = self.during(Phase::Start, self.start()).await?;
        self.live(runner, agent_id).await
    }

    /// Looks at the machine. Nothing here is worth a failure: what really does not work says so itself.
    fn preflight(&self) {
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
        if memory::total().is_some_and(|bytes| bytes < LITTLE_MEMORY) {
            warn!("there is little memory here; the kernel may kill a job for it");
        }
    }

    /// Says `installing`, and asks GARM who this is to be. A GARM that cannot say (v0.1 does not know
    /// the question, and one with a CA bundle drops the connection) is taken at what was given.
    async fn discover(&self) -> Result<Assignment, Error> {
        let system = os::Os::read();
        let message = format!(
            "garm-bootstrap {} is booting on {} {} ({})",
            env!("CARGO_PKG_VERSION"),
            system.name,
            system.version,
            os::forge_arch()
        );
        self.reporter.first_contact(&message).await?;
        let metadata = match self.garm.runner_metadata().await {
            Ok(metadata) => Some(metadata),
            Err(error) if error.status() == Some(401) || error.is_dropped() => {
                info!(
                    "GARM cannot say who this instance is to be; going by what was given: {error}"
                );
                None
            }
            Err(source) => return Err(told::garm("the runner's metadata", source)),
        };
        self.trust_the_forge(metadata.as_ref()).await?;
        let candidates = assignment::candidates(&self.config, metadata.as_ref())?;
        let papers = if self.is_jit(metadata.as_ref()).await? {
            Papers::Jit
        } else {
            Papers::Token(Box::new(assignment::registration(&self.config, metadata.as_ref())?))
        };
        Ok(Assignment { candidates, papers })
    }

    async fn is_jit(&self, metadata: Option<&RunnerMetadata>) -> Result<bool, Error> {
        match (self.config.jit, metadata) {
            (Jit::Wanted(jit), _) | (Jit::Guessed(jit), None) => Ok(jit),
            (_, Some(metadata)) => Ok(metadata.jit_enabled),
            // Every GARM knows this question, and its answer tells the kind.
            (Jit::Unknown, None) => match self.garm.credential("runner").await {
                Ok(_) => Ok(true),
                Err(error) if error.status() == Some(404) => Ok(false),
                Err(source) => Err(told::garm("the JIT files", source)),
            },
        }
    }

    /// Makes the forge's own authorities known, where GARM has some.
    async fn trust_the_forge(&self, metadata: Option<&RunnerMetadata>) -> Result<(), Error> {
        let bundles = match metadata {
            Some(metadata) => metadata.ca_bundles.clone(),
            None => self.garm.cert_bundle().await.unwrap_or_else(|error| {
                warn!("GARM's certificates of the forge are not known: {error}");
                std::collections::BTreeMap::default()
            }),
        };
        let mut trust = self.config.trust.clone();
        let mut added = 0;
        for pem in assignment::pem_texts(&bundles) {
            added += trust.add_pem(&pem, "GARM's CA bundle");
        }
        if added > 0 {
            info!("trusting {added} more certificate authorities of the forge");
            self.http.replace(Http::new(&trust, &self.config.proxy, vec![])?);
        }
        Ok(())
    }

    /// Brings the runner to its home, and its papers beside it.
    async fn fetch(&self, assignment: Assignment) -> Result<Fetched, Error> {
        let Assignment { candidates, papers } = assignment;
        // Both are let run to an end of their own: dropping one half-way would leave its threads behind.
        let (runner, papers) =
            tokio::join!(self.fetch_runner(&candidates), self.fetch_papers(papers));
        runner?;
        papers
    }

    async fn fetch_runner(&self, candidates: &[Candidate]) -> Result<(), Error> {
        let (home, assets) = (self.config.home.clone(), self.config.assets.clone());
        let owner = self.config.switch_to.clone();
        let found = blocking(move || locate::find(&home, assets.as_deref())).await;
        let home = self.config.home.clone();
        match found {
            Found::InHome(runner) => {
                let version = runner.version.unwrap_or_default();
                info!(version, "the runner is in its home already");
                blocking(move || place::sweep(&home)).await;
            }
            Found::InAssets(runner) => {
                info!(
                    version = runner.version,
                    "copying the runner from {}",
                    runner.home.display()
                );
                self.reporter.installing("copying the runner from the image");
                let cancel = self.garm.patience().cancel.clone();
                blocking(move || copy::bring(&runner, &home, owner.as_ref(), &cancel)).await?;
            }
            Found::Nothing(reasons) => {
                for reason in reasons {
                    info!("no runner to use: {reason}");
                }
                self.reporter.installing("downloading the runner");
                let http = self.http.borrow().clone();
                let patience = self.garm.patience();
                let unpacked =
                    download::download(&http, candidates, &home, owner.as_ref(), patience).await?;
                self.timeline.borrow_mut().add_bytes(Phase::Fetch, unpacked.compressed_bytes);
                info!(files = unpacked.files, bytes = unpacked.bytes, "the runner is unpacked");
            }
        }
        Ok(())
    }

    async fn fetch_papers(&self, papers: Papers) -> Result<Fetched, Error> {
        match papers {
            Papers::Jit => {
                let file = async |name| {
                    let file = self.garm.credential(name).await;
                    file.map_err(|source| told::garm("the JIT files", source))
                };
                let (runner, credentials) = (file("runner").await?, file("credentials").await?);
                let rsa_params = file("credentials_rsaparams").await?;
                Ok(Fetched::Jit(JitFiles::check(runner, credentials, rsa_params)?))
            }
            Papers::Token(registration) => self.registration_token(registration).await,
        }
    }

    /// The registration token, which GARM hands out once: an earlier boot of this instance, which was
    /// killed, may have it.
    async fn registration_token(
        &self,
        mut registration: Box<Registration>,
    ) -> Result<Fetched, Error> {
        let kept = self.kept();
        match kept.as_ref().and_then(Kept::find) {
            Some(kept::Found::Registered { agent_id })
                if files::registered(&self.config.home).is_ok_and(|id| id == agent_id) =>
            {
                info!(agent_id, "the runner was registered by an earlier start of this instance");
                return Ok(Fetched::Registered { agent_id });
            }
            Some(kept::Found::Token { token, at }) => {
                info!("an earlier start of this instance has fetched the registration token");
                // It may have registered under our name, which is nobody else's.
                registration.replace = true;
                return Ok(Fetched::Token { registration, token, at });
            }
            _ => {}
        }
        let token = self.garm.registration_token().await.map_err(told::registration_token)?;
        if let Some(kept) = kept {
            kept.keep_token(&token);
        }
        Ok(Fetched::Token { registration, token, at: Instant::now() })
    }

    /// Where the registration is kept over a restart; `None` where there is no private place for it.
    fn kept(&self) -> Option<Kept> {
        match state::folder(&self.config.dirs.runtime) {
            Ok(folder) => Some(Kept::new(&folder, &self.instance)),
            Err(error) => {
                warn!("failed to {error}; a restart would be without the registration");
                None
            }
        }
    }

    async fn dependencies(&self) -> Result<(), Error> {
        let (home, search) = (self.config.home.clone(), start::search(&self.config));
        let missing = blocking(move || dependencies::missing_libraries(&home, &search)).await;
        if missing.is_empty() {
            return Ok(());
        }
        let names = dependencies::names(&missing);
        self.reporter.installing(format!("installing dependencies: {names}"));
        start::install_dependencies(&self.config, self.garm.patience()).await
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
                let place = Place {
                    home: &self.config.home,
                    switch_to: self.config.switch_to.as_ref(),
                    env: start::environment(&self.config),
                };
                let patience = self.garm.patience();
                let id = configure::register(&place, &registration, &token, at, patience).await?;
                if let Some(kept) = self.kept() {
                    kept.keep_registration(id);
                }
                info!(agent_id = id, "the runner is registered");
                Ok(Some(id))
            }
            Fetched::Registered { agent_id } => Ok(Some(agent_id)),
        }
    }

    /// Once a job comes in, GARM shuts the door; so this comes before the Listener.
    async fn introduce(&self, agent_id: Option<u64>) -> Result<(), Error> {
        match self.garm.system_info(&os::Os::read(), agent_id).await {
            Err(error) if error.status() == Some(401) => Err(Error::Superseded),
            Err(error) => {
                warn!("GARM did not take the system info: {error}");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    async fn start(&self) -> Result<Supervisor, Error> {
        self.reporter.installing("starting the runner");
        let launch = start::launch(&self.config);
        let sink = supervise::our_stdout().map_err(|source| start::no_stdout(&source))?;
        let (runner, _) = Supervisor::start(launch, sink);
        self.runner.replace(Some(runner.clone()));
        let up = tokio::select! {
            up = runner.wait_up() => up,
            () = tokio::time::sleep(self.config.times.ready_timeout) => {
                runner.stop(Why::NotReady);
                Err(runner.wait_ended().await)
            }
            end = self.lead(&runner) => Err(end),
        };
        up.map(|()| runner).map_err(Error::Ended)
    }

    /// Announces the runner and leads it to its end. The two run side by side: a GARM that cannot be
    /// reached must not keep a signal from a runner that has its job already.
    async fn live(&self, runner: Supervisor, agent_id: Option<u64>) -> Result<Box<End>, Error> {
        let lead = self.lead(&runner);
        tokio::pin!(lead);
        self.phase.set(Phase::Announce);
        let announced = tokio::select! {
            announced = self.during(Phase::Announce, self.announce(agent_id)) => announced?,
            end = &mut lead => return Self::without_idle(end),
        };
        if !announced {
            warn!("the runner goes on, though GARM does not know that it is idle");
        }
        let end = self.during(Phase::Supervise, async { Ok(lead.await) }).await?;
        if announced { Ok(end) } else { Self::without_idle(end) }
    }

    /// A runner that was gone without GARM having taken `idle`: fine if it has had its job.
    fn without_idle(end: Box<End>) -> Result<Box<End>, Error> {
        if end.job.is_some() { Ok(end) } else { Err(Error::Ended(end)) }
    }

    /// Whether GARM knows now that the runner is idle.
    async fn announce(&self, agent_id: Option<u64>) -> Result<bool, Error> {
        let message = format!("runner ready in {}", self.timeline.borrow().summary());
        info!("{message}");
        // Not the boot's own patience: a signal drains the runner, and does not silence us.
        let deadline = self.garm.patience().deadline.max(Instant::now() + LAST_WORD);
        let patience = Patience { deadline, cancel: CancellationToken::new() };
        let known = match self.reporter.idle(message, agent_id, patience).await {
            Ok(IdleOutcome::Accepted) => true,
            Ok(IdleOutcome::Known) => {
                info!("GARM knows already that the runner is up (401)");
                true
            }
            Ok(IdleOutcome::Refused(why)) => {
                warn!("GARM refused \"idle\": {why}");
                false
            }
            Err(error) => {
                warn!("{error}");
                false
            }
        };
        self.mark_used();
        Ok(known)
    }

    /// Watches over the runner until it has ended, and passes on what we are asked to do.
    async fn lead(&self, runner: &Supervisor) -> Box<End> {
        let mut seen = 0;
        let mut marked = false;
        loop {
            tokio::select! {
                biased;
                () = runner.wait_job(), if !marked => {
                    marked = true;
                    self.mark_used();
                }
                end = runner.wait_ended() => return end,
                count = self.signals.more_than(seen) => {
                    seen = count;
                    if count == 1 {
                        info!("asked to leave: taking no more jobs, and waiting for one that runs");
                        runner.drain(Why::Asked);
                    } else {
                        info!("asked again: stopping the runner now");
                        runner.stop(Why::Asked);
                    }
                }
            }
        }
    }

    fn mark_used(&self) {
        if let Err(error) = self.state.mark_used(&self.instance) {
            warn!("failed to {error}; a restart might start the runner again");
        }
    }

    async fn finish(&self, outcome: Result<Box<End>, Error>) -> Exit {
        let stopped = self.signals.count() > 0;
        let (exit, heard) = match outcome {
            Ok(end) => (end.exit(), true),
            Err(error) => {
                let error = self.cause(error);
                let message = told::failure(&error, self.phase.get());
                error!("{message}");
                let runner = self.runner.take();
                if let Some(runner) = &runner {
                    runner.drain(Why::BootFailed);
                }
                let heard = self.say_failed(&message, stopped).await;
                if let Some(runner) = &runner {
                    self.lead(runner).await;
                }
                (error.exit(), heard)
            }
        };
        // A GARM that could not be told may still take another start of this instance.
        if heard && let Some(kept) = self.kept() {
            kept.forget();
        }
        self.timeline.borrow_mut().end(self.phase.get());
        if let Err(error) = self.state.write_timeline(&self.timeline.borrow()) {
            warn!("failed to {error}");
        }
        exit
    }

    /// What an error comes down to: a phase that was told to stop has failed for that reason alone.
    fn cause(&self, error: Error) -> Error {
        let halted = self.garm.patience().cancel.is_cancelled();
        match error {
            Error::Ended(_) | Error::Panic(_) | Error::Superseded => error,
            _ if halted && self.signals.count() > 0 => Error::Stopped,
            _ if halted => Error::Superseded,
            error => error,
        }
    }

    /// Whether GARM has heard it.
    async fn say_failed(&self, message: &str, stopped: bool) -> bool {
        let now = Instant::now();
        let deadline = if stopped {
            now + LAST_WORD_WHEN_STOPPED
        } else {
            self.garm.patience().deadline.max(now + LAST_WORD)
        };
        let patience = Patience { deadline, cancel: CancellationToken::new() };
        let hurry = self.signals.more_than(self.signals.count().max(u32::from(stopped)));
        tokio::select! {
            delivered = self.reporter.failed(message, patience) => {
                if let Err(error) = &delivered {
                    warn!("GARM could not be told of the failure: {error}");
                }
                delivered.is_ok()
            }
            _ = hurry => {
                warn!("asked again to leave: GARM was not told of the failure");
                false
            }
        }
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
        (self.on_phase)(phase);
        let result = work.await;
        // A phase that failed stays open in the timeline, and is the one that is told.
        if result.is_ok() {
            self.timeline.borrow_mut().end(phase);
            if matches!(phase, Phase::Announce) {
                let _ = self.state.write_timeline(&self.timeline.borrow());
            }
        }
        result
    }
}
