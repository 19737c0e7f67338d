//! The status queue: what GARM is told, in which order, and how often.
//!
//! Theory of operation. One task sends; everyone else leaves a message with it. A status never holds
//! the boot up, so `installing` is fire and forget, and while GARM is away a newer message replaces the
//! one that still waits. The terminal status (`idle` or `failed`) is different: its sender waits until it
//! is delivered or the patience given with it ends.
//!
//! Invariants:
//! - `installing` is the first status ([`Reporter::first_contact`]), for GARM takes `idle` only after it.
//! - GARM gets at most one terminal status. `failed` takes the place of an `idle` that has not been
//!   delivered yet (the runner went away meanwhile); otherwise whatever is said after one is dropped.
//! - At most [`INSTALLING_LIMIT`] `installing` and one terminal status are sent: GARM keeps 30 rows per
//!   instance and prunes them at random, so that more would cost the last one (garm-protocol §5.3).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::api::{Garm, IdleOutcome, Status};
use crate::http::retry::{self, Verdict};
use crate::http::{HttpError, Patience};
use crate::text;

const INSTALLING_LIMIT: u32 = 10;
/// Longest message in characters: GARM stores any length, people read the first lines.
const MESSAGE_LIMIT: usize = 2000;
/// How long a terminal status waits for an `installing` that is under way.
const OVERTAKE_AFTER: Duration = Duration::from_secs(2);

/// How GARM answered the first `installing`, when it did not take it.
#[derive(Debug, thiserror::Error)]
pub enum FirstContact {
    #[error("introduce this instance: GARM does not know it (any more): {0}")]
    Superseded(HttpError),
    #[error("introduce this instance: {0}")]
    Refused(HttpError),
    #[error("reach GARM: {0}")]
    Unreachable(HttpError),
}

/// The sender's door. Cloning gives another handle on the same queue.
#[derive(Debug, Clone)]
pub struct Reporter {
    garm: Garm,
    queue: Arc<Queue>,
    gone: CancellationToken,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: std::sync::Mutex<Waiting>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    installing: Option<String>,
    terminal: Option<Terminal>,
    last_word: LastWord,
}

/// How far the terminal status has come.
#[derive(Debug, Default)]
enum LastWord {
    #[default]
    NotBegun,
    /// `idle` is ordered or under way; cancelling makes room for `failed`.
    Idle(CancellationToken),
    /// Nothing may follow.
    Said,
}

/// What became of the order of a terminal status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ordered {
    Taken,
    /// Another one came before it.
    Dropped,
}

#[derive(Debug)]
enum Terminal {
    Idle {
        message: String,
        agent_id: Option<u64>,
        patience: Patience,
        done: oneshot::Sender<Result<IdleOutcome, HttpError>>,
    },
    Failed {
        message: String,
        patience: Patience,
        done: oneshot::Sender<Result<(), HttpError>>,
    },
}

impl Reporter {
    /// Starts the sending task on the current runtime.
    pub fn start(garm: Garm) -> Self {
        let reporter = Self { garm, queue: Arc::default(), gone: CancellationToken::new() };
        tokio::spawn(Sender { reporter: reporter.clone(), sent: 0 }.run());
        reporter
    }

    /// Says `installing` for the first time and waits for the answer: it tells whether the token is
    /// good. 401 is believed only when it stays; GARM may not have moved the instance on yet.
    pub async fn first_contact(&self, message: &str) -> Result<(), FirstContact> {
        let status = Status { status: "installing", message, agent_id: None };
        let post = || self.garm.deliver(&status, self.garm.patience());
        let Err(error) = self.garm.past_401("installing", post).await else { return Ok(()) };
        Err(match error.status() {
            Some(401) => FirstContact::Superseded(error),
            Some(_) if retry::verdict(&error) == Verdict::Final => FirstContact::Refused(error),
            _ => FirstContact::Unreachable(error),
        })
    }

    /// Leaves an `installing` message to be sent when its turn comes.
    pub fn installing(&self, message: impl Into<String>) {
        let message = message.into();
        debug!("{message}");
        self.queue.change(|waiting| {
            if matches!(waiting.last_word, LastWord::NotBegun) {
                waiting.installing = Some(message);
            }
        });
    }

    /// Delivers `idle`. Fails only when GARM could not be asked before `patience` ended.
    pub async fn idle(
        &self,
        message: String,
        agent_id: Option<u64>,
        patience: Patience,
    ) -> Result<IdleOutcome, HttpError> {
        let (done, delivered) = oneshot::channel();
        let cancel = patience.cancel.child_token();
        let patience = Patience { cancel: cancel.clone(), ..patience };
        self.order(Terminal::Idle { message, agent_id, patience, done }, LastWord::Idle(cancel));
        // The sender is gone or was told something terminal before: GARM knows what it knows.
        delivered.await.unwrap_or(Ok(IdleOutcome::Known))
    }

    /// Delivers `failed`; `Ok` also when GARM would not hear it any more (401). An `idle` that is still
    /// under way is given up for it: GARM itself refuses the one that comes second.
    pub async fn failed(&self, message: &str, patience: Patience) -> Result<(), HttpError> {
        let (done, delivered) = oneshot::channel();
        let message = text::shorten(&text::readable(message.as_bytes()), MESSAGE_LIMIT);
        let order = Terminal::Failed { message: message.clone(), patience: patience.clone(), done };
        if self.order(order, LastWord::Said) == Ordered::Dropped {
            return Ok(());
        }
        match delivered.await {
            Ok(result) => result,
            // The sending task has come to grief; GARM must hear of it all the same.
            Err(_) => self.post_failed(&message, &patience).await,
        }
    }

    /// Cancelled when GARM answers 401 to an `installing` after the first one: it has deleted the
    /// instance or made another attempt at it.
    pub fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Leaves a terminal status with the sending task. One that is dropped drops the channel that its
    /// sender waits on.
    fn order(&self, terminal: Terminal, word: LastWord) -> Ordered {
        self.queue.change(|waiting| {
            match (&waiting.last_word, &word) {
                (LastWord::NotBegun, _) => {}
                (LastWord::Idle(cancel), LastWord::Said) => cancel.cancel(),
                _ => return Ordered::Dropped,
            }
            waiting.last_word = word;
            waiting.installing = None;
            waiting.terminal = Some(terminal);
            Ordered::Taken
        })
    }

    async fn post_failed(&self, message: &str, patience: &Patience) -> Result<(), HttpError> {
        let status = Status { status: "failed", message, agent_id: None };
        match self.garm.deliver(&status, patience).await {
            Err(error) if error.status() == Some(401) => {
                info!("GARM does not listen to this instance any more (401)");
                Ok(())
            }
            other => other,
        }
    }
}

impl Queue {
    fn change<T>(&self, change: impl FnOnce(&mut Waiting) -> T) -> T {
        let mut waiting = self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let result = change(&mut waiting);
        self.changed.notify_waiters();
        self.changed.notify_one();
        result
    }

    fn look<T>(&self, look: impl FnOnce(&mut Waiting) -> T) -> T {
        look(&mut self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Returns when something terminal has been ordered.
    async fn terminal(&self) {
        while !self.look(|waiting| waiting.terminal.is_some()) {
            self.changed.notified().await;
        }
    }
}

/// The task that sends.
struct Sender {
    reporter: Reporter,
    sent: u32,
}

impl Sender {
    async fn run(mut self) {
        loop {
            let (terminal, installing) =
                self.reporter.queue.look(|w| (w.terminal.take(), w.installing.take()));
            match (terminal, installing) {
                (Some(Terminal::Idle { message, agent_id, patience, done }), _) => {
                    let idle = self.idle(&message, agent_id, &patience).await;
                    let delivered = matches!(idle, Ok(IdleOutcome::Accepted | IdleOutcome::Known));
                    let _ = done.send(idle);
                    if delivered {
                        return self.close();
                    }
                }
                (Some(Terminal::Failed { message, patience, done }), _) => {
                    let _ = done.send(self.reporter.post_failed(&message, &patience).await);
                    return;
                }
                (None, Some(message)) => self.installing(message).await,
                (None, None) => self.reporter.queue.changed.notified().await,
            }
        }
    }

    /// GARM has `idle`: a `failed` that was ordered in that moment comes too late.
    fn close(&self) {
        let late = self.reporter.queue.look(|waiting| {
            waiting.last_word = LastWord::Said;
            waiting.terminal.take()
        });
        if let Some(Terminal::Failed { done, .. }) = late {
            let _ = done.send(Ok(()));
        }
    }

    /// Sends `message`, or the newest one that comes while GARM is away.
    async fn installing(&mut self, mut message: String) {
        if self.sent >= INSTALLING_LIMIT {
            return;
        }
        self.sent += 1;
        let patience = self.reporter.garm.patience().clone();
        let mut pause = Duration::from_millis(500);
        loop {
            let status = Status { status: "installing", message: &message, agent_id: None };
            let queue = &self.reporter.queue;
            let result = tokio::select! {
                result = self.reporter.garm.attempt(&status, &patience) => result,
                () = async { queue.terminal().await; tokio::time::sleep(OVERTAKE_AFTER).await } => return,
            };
            let Err(error) = result else { return };
            if error.status() == Some(401) {
                warn!("GARM does not know this instance any more: {error}");
                return self.reporter.gone.cancel();
            }
            if retry::verdict(&error) == Verdict::Final {
                return warn!("GARM did not take the status \"installing\": {error}");
            }
            info!("status \"installing\": {error}; trying again");
            let newer = tokio::select! {
                () = queue.terminal() => return,
                go_on = patience.pause(pause) => {
                    if !go_on {
                        return;
                    }
                    queue.look(|w| w.installing.take())
                }
            };
            message = newer.unwrap_or(message);
            pause = (pause * 2).min(Duration::from_secs(30));
        }
    }

    /// Sends `idle` until GARM has it. After an attempt of unknown outcome 401 means that it landed; and
    /// without one it means that a job was faster, so 401 is a success either way.
    async fn idle(
        &self,
        message: &str,
        agent_id: Option<u64>,
        patience: &Patience,
    ) -> Result<IdleOutcome, HttpError> {
        match self.reporter.garm.deliver_idle(message, agent_id, patience).await {
            Ok(()) => Ok(IdleOutcome::Accepted),
            Err(error) if error.status() == Some(401) => Ok(IdleOutcome::Known),
            Err(error) if retry::verdict(root(&error)) == Verdict::Final => {
                Ok(IdleOutcome::Refused(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }
}

/// The failure itself, below the count of attempts.
fn root(error: &HttpError) -> &HttpError {
    match error {
        HttpError::GaveUp { source, .. } => root(source),
        error => error,
    }
}
