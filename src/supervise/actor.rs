//! The task that owns the runner.

mod fault;
mod hearing;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt as _;
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::diag::Diag;
use super::end::How;
use super::ends::{self, Verdict};
use super::forward::Forwarder;
use super::ghost::Watch;
use super::leave::{Action, Leave, Times, Work};
use super::memory::Memory;
use super::process::Runner;
use super::progress::Progress;
use super::record::Record;
use super::{Launch, Manner, Order, State, Why, update};
use crate::exit::Exit;
use crate::host::process::{Group, ProcessError};

/// How long our own reader may take for the rest.
const FLUSH: Duration = Duration::from_secs(2);

pub(super) struct Actor {
    launch: Launch,
    orders: mpsc::UnboundedReceiver<Order>,
    state: watch::Sender<State>,
    forward: Forwarder,
    record: Record,
    /// One that is taken over, until it is.
    adopted: Option<Runner>,
    /// Of the present process.
    pid: Option<u32>,
    diag: Diag,
    ghost: Watch,
    /// Until when a start that fails is put down to an updater that is still at the files.
    unsettled_until: Option<Instant>,
}

impl Actor {
    pub(super) fn new(
        launch: Launch,
        orders: mpsc::UnboundedReceiver<Order>,
        state: watch::Sender<State>,
        forward: Forwarder,
    ) -> Self {
        let (diag, ghost) = (Diag::of(&launch), Watch::new(launch.ghost_limit));
        let (record, adopted, pid) = (Record::default(), None, None);
        let unsettled_until = None;
        Self { launch, orders, state, forward, record, adopted, pid, diag, ghost, unsettled_until }
    }

    /// With a runner that another agent has started, and what that one knew of it.
    pub(super) fn adopting(mut self, runner: Runner, memory: &Memory) -> Self {
        self.record = memory.recall();
        self.diag.goes_on_after(memory.log_before());
        self.pid = runner.pid;
        self.adopted = Some(runner);
        // The last lines that were read may not have been noted any more.
        let logged = Progress::through(self.diag.events());
        let (stays, times) = (self.launch.limits.stays, self.times());
        if self.record.learn(logged, stays, times, Instant::now()) {
            tracing::info!("the runner's own log tells of it: {:?}", self.record.progress);
            self.remember();
        }
        self.publish();
        self
    }

    pub(super) async fn run(mut self) {
        if self.adopted.is_none() {
            update::forget(&self.launch.home);
        }
        let mut runner = None;
        let story = AssertUnwindSafe(self.live(&mut runner)).catch_unwind().await;
        let how = match story {
            Ok(how) => how,
            Err(_) => self.live_on(runner).await,
        };
        // A platform that stops everything at once may have ended the runner before we heard of it.
        while let Ok(order) = self.orders.try_recv() {
            self.record.note(order);
        }
        let mut end = self.record.end(how, &self.launch);
        tracing::info!(starts = end.starts, "{}", end.summary());
        if end.exit() != Exit::Done {
            end.log = self.diag.last_lines();
            if !end.log.is_empty() {
                tracing::warn!("the runner's own log ends with:\n{}", end.log);
            }
        }
        self.forward.finish(FLUSH).await;
        self.state.send_replace(State::Ended(Box::new(end)));
    }

    /// Every start of the runner, to the last one's end. The present one is `held` where a fault of ours
    /// does not take it along.
    async fn live(&mut self, held: &mut Option<Runner>) -> How {
        loop {
            let started = match self.adopted.take() {
                Some(runner) => Ok(runner),
                None => self.start(),
            };
            let runner = match started {
                Ok(runner) => held.insert(runner),
                Err(_) if self.is_unsettled() && self.pause(update::LOOK).await => continue,
                Err(error) => return How::NotStarted(error.to_string()),
            };
            let how = self.attend(runner).await;
            self.look_for_want_of_memory(&how, runner);
            let verdict = Verdict::of(&how);
            let updating = verdict == Verdict::Updating;
            if updating {
                // Its group stays: the updater runs in it.
                self.hear_rest(&mut runner.output).await;
            } else {
                self.bury(runner).await;
            }
            let Some(pause) = self.may_relaunch(verdict) else {
                if updating {
                    self.bury(runner).await;
                }
                return how;
            };
            self.begin_again();
            if updating && !self.await_update(runner).await {
                self.bury(runner).await;
                return if self.record.asked.is_some() { how } else { How::UpdateFailed };
            }
            tracing::info!(?how, "the runner is started again in {pause:?}");
            if !self.pause(pause).await {
                return how;
            }
        }
    }

    fn start(&mut self) -> Result<Runner, ProcessError> {
        self.diag.starts();
        self.ghost.starts();
        let runner = Runner::start(&self.launch.program, &self.launch.service)?;
        self.record.started();
        self.pid = runner.pid;
        self.remember();
        tracing::info!(pid = runner.pid, "the runner is started");
        Ok(runner)
    }

    /// Waits for the process to end, and meanwhile hears, obeys, and keeps the times.
    async fn attend(&mut self, runner: &mut Runner) -> How {
        let Runner { process, group, output, .. } = runner;
        let mut output_open = true;
        if self.record.leave.until().is_some() {
            // An order of an earlier agent: what has come since then may have changed it.
            self.hear_unread(output).await;
        }
        loop {
            let until = self.record.leave.until();
            let limit = self.next_limit();
            tokio::select! {
                how = process.wait() => return how,
                Some(order) = self.orders.recv() => {
                    self.hear_unread(output).await;
                    self.obey(order, *group);
                }
                order = at(limit) => {
                    self.hear_unread(output).await;
                    if self.next_limit().is_some_and(|(_, now)| now == order) {
                        self.obey(order, *group);
                    }
                }
                () = self.ghost.due(&self.record.progress), if self.record.asked.is_none() => {
                    if let Some(order) = self.ghost.look(&mut self.diag) {
                        self.hear_unread(output).await;
                        self.obey(order, *group);
                    }
                }
                () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    self.hear_unread(output).await;
                    if self.record.leave.until().is_some_and(|until| until <= Instant::now()) {
                        self.time_passed(*group);
                    }
                }
                lines = output.next(), if output_open => match lines {
                    Some(lines) => self.hear(lines),
                    None => output_open = false,
                },
            }
        }
    }

    /// Notes for another agent how far the runner is.
    fn remember(&self) {
        if let (Some(path), Some(pid)) = (&self.launch.memory, self.pid)
            && let Err(error) = Memory::of(pid, &self.record, self.diag.before()).write(path)
        {
            tracing::warn!("failed to {error}; the runner could not be taken over after a crash");
        }
    }

    /// A kill that was none of ours may have been the kernel's.
    fn look_for_want_of_memory(&mut self, how: &How, runner: &mut Runner) {
        let kills = runner.memory.kills();
        let killed = how.is_kill() && self.record.leave != Leave::Killed;
        self.record.out_of_memory = killed && runner.memory.has_killed(runner.pid);
        if kills > 0 {
            tracing::warn!(kills, "the kernel has killed processes here for want of memory");
        }
    }

    fn next_limit(&self) -> Option<(Instant, Order)> {
        let Record { clock, progress, asked, .. } = &self.record;
        clock.next(self.launch.limits, progress, *asked)
    }

    fn obey(&mut self, order: Order, group: Group) {
        self.record.note(order);
        let leave = self.record.leave;
        let (manner, work, now) = (order.manner, self.record.work(), Instant::now());
        let next = leave.ordered(manner, work, self.times(), now);
        tracing::info!(?manner, why = ?order.why, "told to leave: {}", next.0.describe(now));
        self.go(next, group);
    }

    fn time_passed(&mut self, group: Group) {
        let (leave, now) = (self.record.leave, Instant::now());
        if matches!(leave, Leave::AfterJob { .. }) && self.record.work() == Work::Job {
            self.record.note(Order { manner: Manner::Stop, why: Why::DrainTimeout });
        }
        let next = leave.timed_out(self.times(), now);
        tracing::warn!("the runner has not left in time: {}", next.0.describe(now));
        self.go(next, group);
    }

    fn go(&mut self, (leave, action): (Leave, Action), group: Group) {
        self.record.leave = leave;
        // Before it is done: to do it twice could cost a job that has come meanwhile.
        self.remember();
        match action {
            Action::Nothing => true,
            Action::Interrupt => group.signal_leader(Signal::SIGINT),
            Action::Terminate => group.signal(Signal::SIGTERM),
            // The leader by itself, too: it may have gone over to another group.
            Action::Kill => group.signal(Signal::SIGKILL) | group.signal_leader(Signal::SIGKILL),
        };
        self.publish();
    }

    /// Whether the update came to its end in time and nobody wants the runner to leave. Its updater
    /// still has the pipes of the process that it replaces, so these are read on.
    async fn await_update(&mut self, runner: &mut Runner) -> bool {
        let Some(policy) = self.launch.relaunch else { return false };
        tracing::info!("the runner is updating itself");
        let (home, program) = (self.launch.home.clone(), self.launch.program.path.clone());
        self.unsettled_until = Some(Instant::now() + policy.update_limit);
        let finished = timeout(policy.update_limit, update::finished(&home, &program));
        tokio::pin!(finished);
        let mut output_open = true;
        loop {
            tokio::select! {
                result = &mut finished => return result.is_ok(),
                Some(order) = self.orders.recv() => {
                    self.record.note(order);
                    return false;
                }
                lines = runner.output.next(), if output_open => match lines {
                    Some(lines) => self.hear(lines),
                    None => output_open = false,
                },
            }
        }
    }

    /// The pause before the next start; `None`: there is none.
    fn may_relaunch(&self, verdict: Verdict) -> Option<Duration> {
        let Launch { home, dialect, relaunch, .. } = &self.launch;
        let may = self.record.asked.is_none()
            && ends::may_start_again(&self.record.progress, *dialect, home);
        (*relaunch).filter(|_| may)?.after(verdict, self.record.starts)
    }

    /// A runner that had no job has ended, and is to be started again.
    fn begin_again(&mut self) {
        self.record.progress = Progress::default();
        self.publish();
    }

    fn is_unsettled(&self) -> bool {
        self.unsettled_until.is_some_and(|until| Instant::now() < until)
    }

    /// Whether the pause has passed without an order to leave.
    async fn pause(&mut self, pause: Duration) -> bool {
        tokio::select! {
            biased;
            Some(order) = self.orders.recv() => {
                self.record.note(order);
                false
            }
            () = sleep(pause) => true,
        }
    }

    fn times(&self) -> Times {
        let Launch { drain_timeout, stop_grace, .. } = self.launch;
        Times { drain_timeout, stop_grace }
    }

    fn publish(&self) {
        let state = self.record.state();
        self.state.send_if_modified(|now| {
            let changed = *now != state;
            if changed {
                tracing::debug!("the runner: {state:?}");
                *now = state;
            }
            changed
        });
    }
}

/// The order, when it is due; never without one.
async fn at(due: Option<(Instant, Order)>) -> Order {
    let Some((at, order)) = due else { return std::future::pending().await };
    sleep_until(at).await;
    order
}
