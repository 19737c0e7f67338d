//! HTTP as this program uses it: one client, one kind of error, one retry policy.
//!
//! Owns: trust roots, proxy, redirects, timeouts of one attempt, which failures are worth another one.
//! Must not: know GARM's endpoints, hold its token, or decide what a status means for the boot.

mod client;
mod error;
pub mod retry;
mod trust;

pub use client::{ClientError, Http, ProxySettings, Reply};
pub use error::{HttpError, display_url};
pub use retry::{Patience, Policy};
pub use trust::Trust;
