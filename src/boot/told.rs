//! How a failure is told to GARM and to people.

use std::any::Any;
use std::fmt::Write as _;

use tracing::debug;

use crate::error::Error;
use crate::garm::{Refusal, Skew};
use crate::host::console;
use crate::http::HttpError;
use crate::secret::redact;
use crate::text;
use crate::timeline::Phase;

/// Longest part of a failing program's output in a message.
const OUTPUT_LIMIT: usize = 900;
/// The same for the end of the runner's own log.
const LOG_LIMIT: usize = 700;

/// The reason, the phase, the chain of causes, and what the failing program printed last.
pub(super) fn failure(error: &Error, phase: Phase, skew: Option<Skew>) -> String {
    let mut message = format!("[{}] {phase}: failed to {error}", error.reason());
    if let Some(skew) = skew.filter(|_| error.may_be_the_clocks()) {
        let _ = write!(message, "; mind that {skew}");
    }
    if let Some(output) = error.output() {
        message.push_str("\nlast output: ");
        message.push_str(&text::shorten(output, OUTPUT_LIMIT));
    }
    if let Some(log) = error.runner_log() {
        message.push_str("\nthe runner's own log: ");
        message.push_str(&text::shorten(log, LOG_LIMIT));
    }
    message
}

/// On the machine's console, for whoever looks at an instance that GARM cannot hear.
pub(crate) fn on_console(message: &str) {
    if let Err(error) = console::tell(&redact(message)) {
        debug!("failed to write to the console: {error}");
    }
}

/// 401 after an `installing` that GARM took says that it has forgotten this instance since.
pub(super) fn garm(what: &'static str, source: HttpError) -> Error {
    let hint = match source.status() {
        Some(401) => return Error::Superseded,
        Some(404) => " (this instance has none: GARM did not make it for JIT)",
        _ => "",
    };
    Error::Garm { what, source, hint }
}

/// 401 from the handler has three meanings here (garm-protocol §4.6); they are all said. One from the
/// gate before it means what it means everywhere.
pub(super) fn registration_token(source: HttpError) -> Error {
    let hint = match Refusal::of(&source) {
        Some(Refusal::Gate) => return Error::Superseded,
        Some(Refusal::Handler) => {
            " (the token was handed out already, perhaps in a reply that was lost; or this is a JIT \
             instance; or the forge refuses GARM's own credentials)"
        }
        None => "",
    };
    Error::Garm { what: "the registration token", source, hint }
}

/// What a panic said.
pub(super) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "it did not say why".to_owned())
}
