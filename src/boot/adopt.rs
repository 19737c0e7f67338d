//! Taking over a runner whose agent has crashed, or was replaced by a newer one.
//!
//! The service manager has kept the read ends of the runner's output and a handle of its process, and the
//! agent's own notes say how far the runner was. So the job goes on as if nothing had happened: its output
//! is read, its end is seen and told. Without all of that a runner that lives is left alone.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use tracing::info;

use super::{Boot, Outcome, start};
use crate::error::Error;
use crate::forge::github::files;
use crate::state::{Life, Told};
use crate::supervise::{self, KEPT, Memory, Orphan, State, Supervisor};
use crate::timeline::Phase;

/// A runner that can be taken over.
pub(super) struct Adoptee {
    orphan: Orphan,
    memory: Memory,
}

impl Adoptee {
    /// From what the service manager has `kept` and the agent has noted; `None` if either is missing.
    pub(super) fn of(mut kept: BTreeMap<String, OwnedFd>, memory: Option<Memory>) -> Option<Self> {
        let memory = memory?;
        let [process, stdout, stderr] = KEPT.map(|name| kept.remove(name));
        let pid = memory.pid;
        Some(Self {
            orphan: Orphan { pid, process: process?, stdout: stdout?, stderr: stderr? },
            memory,
        })
    }
}

impl Boot {
    /// Leads the runner on from where it is.
    pub(super) async fn resume(&self, adoptee: Adoptee) -> Result<Outcome, Error> {
        let Adoptee { orphan, memory } = adoptee;
        info!(pid = orphan.pid, "taking over the runner of an agent that has gone");
        let agent_id = files::agent_id(&self.config.home);
        self.life.borrow_mut().agent_id = agent_id;
        let sink = supervise::our_stdout().map_err(|source| start::no_stdout(&source))?;
        let runner = Supervisor::adopt(self.launch(), orphan, &memory, sink)
            .map_err(|source| start::no_stdout(&source))?;
        self.runner.replace(Some(runner.clone()));
        let told = self.state.idle_told(&self.instance).filter(|told| *told != Told::Not);
        self.told.set(told);
        let Some(told) = told else {
            // GARM has not heard of it yet, or its answer was lost with the agent that waited for it.
            self.during(Phase::Start, self.until_up(&runner)).await?;
            return self.live(runner, agent_id).await.map(Outcome::Ended);
        };
        match runner.state() {
            State::Running { job } => self.note(|life| life.run(&job)),
            _ => self.note(Life::become_idle),
        }
        self.supervise(&runner, told).await.map(Outcome::Ended)
    }
}
