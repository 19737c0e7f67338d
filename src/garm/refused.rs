//! What a 401 of GARM says, and for how long it need not be believed.
//!
//! Two sides of GARM answer 401 (garm-protocol §3), and only the text tells them apart. The gate refuses
//! a token or an instance: it may be early at first contact, and is final ever after. A handler refuses
//! what was asked for: the registration token was handed out before, the instance is a JIT one, or the
//! forge does not take GARM's own credentials; the last clears up (garm-protocol §4.6).
//!
//! Owns: these rules and their windows. Must not: know which request it is that is refused.

use std::time::{Duration, Instant};

use tracing::info;

use crate::http::{HttpError, Patience};

/// Who it is that refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The one that checks tokens. A 401 in words that are not GARM's counts as this one.
    Gate,
    /// The one that answers the request.
    Handler,
}

impl Refusal {
    /// Whose 401 `error` is, if it is one.
    pub fn of(error: &HttpError) -> Option<Self> {
        let by_handler = error.details().is_some_and(|text| text.starts_with("Not Authorized"));
        let whose = if by_handler { Self::Handler } else { Self::Gate };
        (error.status() == Some(401)).then_some(whose)
    }

    /// How long it may pass by itself.
    fn window(self) -> Duration {
        match self {
            // GARM may not have moved the instance on yet.
            Self::Gate => Duration::from_secs(8),
            // An app's token that is being renewed, a forge that is short of breath; credentials that a
            // person has to mend take longer than an instance should keep GARM waiting.
            Self::Handler => Duration::from_secs(45),
        }
    }

    fn longest_pause(self) -> Duration {
        match self {
            Self::Gate => Duration::from_millis(1500),
            Self::Handler => Duration::from_secs(10),
        }
    }

    /// Does `ask` again while the answer is this refusal, for as long as it may pass, `hopeful` says so,
    /// and `patience` lasts.
    pub(super) async fn outlast<T, F>(
        self,
        what: &str,
        patience: &Patience,
        hopeful: impl Fn() -> bool,
        mut ask: impl FnMut() -> F,
    ) -> Result<T, HttpError>
    where
        F: Future<Output = Result<T, HttpError>>,
    {
        let began = Instant::now();
        let window = patience.at_most(self.window());
        let mut pause = Duration::from_millis(200);
        for attempts in 1.. {
            let error = match ask().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let again = Self::of(&error) == Some(self) && hopeful();
            if again {
                info!("{what}: {error}; that may pass, trying again");
            }
            if !again || !window.pause(pause).await {
                let (spent, source) = (began.elapsed(), Box::new(error));
                return Err(match attempts {
                    1 => *source,
                    _ => HttpError::GaveUp { attempts, spent, source },
                });
            }
            pause = (pause * 2).min(self.longest_pause());
        }
        unreachable!("the attempts are counted without an end")
    }
}
