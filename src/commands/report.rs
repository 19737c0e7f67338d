//! `report`: one status from a script, delivered as a boot delivers it.
//!
//! Owns: where the text comes from, how long is tried, and the exit code. No lock is taken and no folder
//! needed, so it can be called at any time, beside a boot too. The exit code tells whether GARM has it.

use std::ffi::OsString;
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::open;
use crate::config::settings::BOOTSTRAP_FILE;
use crate::config::{Layers, Telling};
use crate::error::Error;
use crate::exit::Exit;
use crate::forge::github::files;
use crate::garm::{Garm, IdleOutcome};
use crate::host::os::Os;
use crate::http::{Http, Patience};
use crate::text::{self, Tail};

/// Longest message in characters, as in a boot.
const MESSAGE_LIMIT: usize = 2000;
/// How long a status that is only news is tried: a script has other things to do.
const TIME_FOR_NEWS: Duration = Duration::from_secs(30);
/// How long a stdin is read that nobody named: it may be one that never ends (ssh, a service manager).
const TIME_FOR_STDIN: Duration = Duration::from_secs(60);

/// What is to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Installing,
    Idle,
    Failed,
    SystemInfo,
}

/// One call of the command.
#[derive(Debug)]
pub struct Order {
    pub status: Status,
    /// The words of the text; `-` alone stands for stdin.
    pub words: Vec<OsString>,
    pub agent_id: Option<u64>,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Installing => "installing",
            Self::Idle => "idle",
            Self::Failed => "failed",
            Self::SystemInfo => "system-info",
        }
    }

    /// What is said where nobody gave a text.
    fn default_text(self) -> &'static str {
        match self {
            Self::Installing => "installing the runner",
            Self::Idle => "the runner is ready",
            Self::Failed => "the installation has failed; what reported it did not say why",
            Self::SystemInfo => "",
        }
    }
}

/// Says it, and whether GARM has it.
pub async fn report(mut layers: Layers, order: Order) -> Exit {
    match deliver(&mut layers, order).await {
        Ok(()) => Exit::Done,
        Err(error) => {
            error!("failed to {error}");
            error.exit()
        }
    }
}

async fn deliver(layers: &mut Layers, order: Order) -> Result<(), Error> {
    let bootstrap = open(layers)?;
    let telling = Telling::resolve(layers, bootstrap.as_ref())?;
    let stdin_is_taken = layers.find(&BOOTSTRAP_FILE).is_some_and(|found| found.value() == "-");
    let time = telling.deadline.unwrap_or(match order.status {
        Status::Installing | Status::SystemInfo => TIME_FOR_NEWS,
        // GARM gives the instance up without these.
        Status::Idle | Status::Failed => telling.time_of_boot,
    });
    let text = read_text(&order, stdin_is_taken, time).await?;
    let http = Http::new(&telling.trust, &telling.proxy, vec![telling.access.callback.clone()])?;
    let patience = Patience { deadline: Instant::now() + time, cancel: CancellationToken::new() };
    let garm = Garm::new(http, telling.access, patience);
    let agent_id = || order.agent_id.or_else(|| files::agent_id(telling.home.as_deref()?));
    let name = order.status.name();
    match order.status {
        Status::Installing | Status::Failed => garm.say(name, &text).await?,
        Status::SystemInfo => garm.say_system(&Os::read(), agent_id()).await?,
        Status::Idle => {
            if let IdleOutcome::Known = garm.say_idle(&text, agent_id()).await? {
                warn!(
                    "GARM does not take \"idle\" (any more), which counts as success (401): an \
                     earlier one has landed or a job was faster, if GARM took \"installing\" before"
                );
                return Ok(());
            }
        }
    }
    info!("GARM has taken \"{name}\"");
    Ok(())
}

/// The text, readable and not too long.
async fn read_text(order: &Order, stdin_is_taken: bool, time: Duration) -> Result<String, Error> {
    let named = order.words.len() == 1 && order.words[0] == "-";
    if named && stdin_is_taken {
        let why = "the text and --bootstrap-file cannot both come from stdin";
        return Err(Error::Typed(why.to_owned()));
    }
    let unread = order.status == Status::SystemInfo || stdin_is_taken;
    let bytes = if named {
        read_stdin(time).await
    } else if !order.words.is_empty() {
        order.words.join(" ".as_ref()).as_bytes().to_vec()
    } else if unread || std::io::stdin().is_terminal() {
        Vec::new()
    } else {
        read_stdin(TIME_FOR_STDIN).await
    };
    let text = text::shorten(&text::readable(&bytes), MESSAGE_LIMIT);
    Ok(if text.is_empty() { order.status.default_text().to_owned() } else { text })
}

/// What stdin holds, its beginning and its end if that is much, or what of it has come in `time`.
async fn read_stdin(time: Duration) -> Vec<u8> {
    let (sender, mut pieces) = mpsc::channel::<Vec<u8>>(4);
    // Nobody waits for the thread: a stdin that never ends must not keep us.
    tokio::task::spawn_blocking(move || {
        let mut buffer = [0; 8192];
        let mut stdin = std::io::stdin().lock();
        while let Ok(count @ 1..) = stdin.read(&mut buffer) {
            if sender.blocking_send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    });
    let mut tail = Tail::default();
    let all = async {
        while let Some(piece) = pieces.recv().await {
            tail.push(&piece);
        }
    };
    if tokio::time::timeout(time, all).await.is_err() {
        warn!("stdin does not end; going on with what has come so far");
    }
    tail.text().into_bytes()
}
