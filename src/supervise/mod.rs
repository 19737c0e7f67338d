//! The runner's life: started, watched, led to its end.
//!
//! Theory of operation: one task (the actor, `actor.rs`) owns the runner's process. Everybody else holds
//! a [`Supervisor`], which sends it orders, and reads the [`State`] that it publishes; nobody else
//! signals the process, and there is no lock around it. What has happened so far is in its `record`,
//! which rests on three small state machines without any I/O: `progress` (what the runner says that it is
//! doing), `leave` (how far we have gone in making it leave) and `limits` (how long it may go on). The
//! actor waits for the next input (a chunk of output, the end of the process, an order, the clock), asks
//! them what follows, and does it.
//!
//! The process need not be our own child (`process`): where a service manager keeps its pipes and a handle,
//! an agent takes over the runner of one that has crashed, with what that one has noted (`memory`).
//!
//! A runner may be started several times in one life: after an update of itself, and, as long as no
//! job was seen, after an end that it calls retryable (`ends.rs`). An order to leave ends that, too.
//!
//! Invariants:
//! - The runner's pipes are read at any rate until its end, and no reader of ours can hold it up.
//! - Only the runner's own lines change the state, and never back from a job to before it; from a finished job
//!   at most to the next one.
//! - A running job is signalled only after a stop was asked for, or a limit that a person set has passed.
//! - After the end, a fault of our own included, nothing of the runner's process group is left.
//!
//! Owns: the runner's process group, its output, its environment. Must not: know GARM, or how the
//! runner came to be on disk.

mod actor;
mod diag;
mod end;
mod ends;
pub mod environment;
mod flood;
mod forward;
mod ghost;
mod leave;
mod limits;
mod memory;
pub mod output;
mod process;
mod progress;
mod record;
mod update;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::forge::Dialect;
use crate::host::process::Program;
use crate::host::service::Service;
use process::Runner;

pub use end::{End, How, Job};
pub use ends::Relaunch;
pub use forward::{Forwarder, our_stdout};
pub use limits::Limits;
pub use memory::Memory;
pub use process::{KEPT, Orphan};

/// Everything that the supervisor needs to know, resolved by the caller.
#[derive(Debug, Clone)]
pub struct Launch {
    /// `bin/Runner.Listener run`, or the user's own command.
    pub program: Program,
    /// The runner's home: where its registration and its update marker lie.
    pub home: PathBuf,
    pub dialect: Dialect,
    /// How long a drain waits for a running job; `None`: as long as the job takes.
    pub drain_timeout: Option<Duration>,
    /// How long the runner may take to leave after SIGINT.
    pub stop_grace: Duration,
    pub limits: Limits,
    /// How long a runner may listen on that the forge has forgotten; `None`: that is not looked for.
    pub ghost_limit: Option<Duration>,
    /// Keeps what another agent would need, if this one crashes.
    pub service: Service,
    /// Where that other agent finds how far the runner is; `None` where nobody keeps the rest.
    pub memory: Option<PathBuf>,
    /// `None`: every end is the end. For a command of the user's own, whose exit codes mean nothing
    /// to us.
    pub relaunch: Option<Relaunch>,
}

/// What the runner is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Started (again), and not online yet.
    Starting,
    Listening,
    Running {
        job: String,
    },
    /// Its job is done, and it has not gone yet.
    Finishing {
        job: Job,
    },
    /// It was told to leave, and no job is waited for.
    Stopping {
        why: Why,
    },
    Ended(Box<End>),
}

/// How the runner is asked to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Manner {
    /// Take no job any more; one that runs, or comes in that moment, is waited for.
    Drain,
    /// Leave now, job or not.
    Stop,
}

/// Why it was asked to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// A signal: a person or the platform.
    Asked,
    /// It did not listen in time.
    NotReady,
    IdleLimit,
    JobLimit,
    Lifetime,
    /// Its job is done, and it did not go.
    Lingers,
    /// A drain has waited for its job for as long as it may.
    DrainTimeout,
    /// GARM does not know this instance any more.
    Forgotten,
    /// The forge gave its job to nobody or to another runner, and took its registration away.
    Ghost,
    /// The boot failed beside it.
    BootFailed,
}

/// An order to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub manner: Manner,
    pub why: Why,
}

/// The handle of the actor. It lives on without one.
#[derive(Debug, Clone)]
pub struct Supervisor {
    orders: mpsc::UnboundedSender<Order>,
    state: watch::Receiver<State>,
}

impl Supervisor {
    /// Starts the runner; its output goes to `sink`, line by line and with secrets masked. Must be called
    /// inside a runtime.
    pub fn start(
        launch: Launch,
        sink: impl Write + Send + 'static,
    ) -> (Self, watch::Receiver<State>) {
        let (orders, inbox) = mpsc::unbounded_channel();
        let (publish, state) = watch::channel(State::Starting);
        tokio::spawn(actor::Actor::new(launch, inbox, publish, Forwarder::start(sink)).run());
        (Self { orders, state: state.clone() }, state)
    }

    /// Takes over a runner that another agent has started, and leads it as if it were our own.
    pub fn adopt(
        launch: Launch,
        orphan: Orphan,
        memory: &Memory,
        sink: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let runner = Runner::adopt(orphan)?;
        let (orders, inbox) = mpsc::unbounded_channel();
        let (publish, state) = watch::channel(State::Starting);
        let actor = actor::Actor::new(launch, inbox, publish, Forwarder::start(sink));
        tokio::spawn(actor.adopting(runner, memory).run());
        Ok(Self { orders, state })
    }

    /// Asks the runner to leave when it has no job. Once is enough; more often changes nothing.
    pub fn drain(&self, why: Why) {
        self.order(Manner::Drain, why);
    }

    /// Asks the runner to leave now. Each further call skips the wait that the stop is in.
    pub fn stop(&self, why: Why) {
        self.order(Manner::Stop, why);
    }

    /// Returns when the runner listens, or is beyond that; its end if it did not get there.
    pub async fn wait_up(&self) -> Result<(), Box<End>> {
        let up = |state: &State| !matches!(state, State::Starting | State::Stopping { .. });
        match self.wait_for(up).await {
            State::Ended(end) if !end.was_listening => Err(end),
            _ => Ok(()),
        }
    }

    /// Returns when a job has been seen; never if the runner ends without one.
    pub async fn wait_job(&self) {
        let had_one = |state: &State| match state {
            State::Running { .. } | State::Finishing { .. } => true,
            State::Ended(end) => end.job.is_some(),
            _ => false,
        };
        if self.state.clone().wait_for(had_one).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the next state that is another one.
    pub async fn wait_other_than(&self, known: &State) -> State {
        self.wait_for(|state| state != known).await
    }

    /// Returns how the runner ended, when it has.
    pub async fn wait_ended(&self) -> Box<End> {
        match self.wait_for(|state| matches!(state, State::Ended(_))).await {
            State::Ended(end) => end,
            _ => Box::new(End::lost()),
        }
    }

    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    async fn wait_for(&self, wanted: impl FnMut(&State) -> bool) -> State {
        let lost = || State::Ended(Box::new(End::lost()));
        self.state.clone().wait_for(wanted).await.map_or_else(|_| lost(), |state| state.clone())
    }

    fn order(&self, manner: Manner, why: Why) {
        // The actor is gone only after the end, and then there is nothing to do.
        let _ = self.orders.send(Order { manner, why });
    }
}

/// Nobody is to take over a runner whose end has been told: what `service` keeps of it, and the notes at `memory`,
/// are of no use any more.
pub fn forget(service: &Service, memory: &Path) {
    if service.keeps() {
        process::forget(service);
        let _ = std::fs::remove_file(memory);
    }
}

#[cfg(test)]
mod tests;
