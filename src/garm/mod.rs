//! What is said to GARM, and what GARM says.
//!
//! Owns: the instance token and the two URLs that it may go to, the wire types of the instance API, and
//! the order and number of status messages. Must not: know how a runner is fetched or run.
//! Source of every shape and rule: the recorded protocol of GARM v0.1.2 to v0.2 and main.

mod api;
mod claims;
mod clock;
mod metadata;
mod refused;
mod report;
mod single;
pub(crate) mod wire;

pub use api::{Access, Garm, IdleOutcome};
pub use claims::Claims;
pub use clock::Skew;
pub use metadata::{RunnerMetadata, Tools};
pub use refused::Refusal;
pub use report::{FirstContact, Reporter};
pub use single::NotTaken;
