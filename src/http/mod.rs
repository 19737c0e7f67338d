//! HTTP as this program uses it: one client, one kind of error, one retry policy.
//!
//! Owns: trust roots, proxy, redirects, timeouts of one attempt, which failures are worth another one.
//! Must not: know GARM's endpoints, hold its token, or decide what a status means for the boot.

mod cause;
mod client;
mod error;
mod proxy;
pub mod retry;
mod roots;
mod tls;
mod trust;

pub use cause::Peer;
pub use client::{ClientError, Http, Reply, Timeouts};
pub use error::{HttpError, display_url};
pub use proxy::ProxySettings;
pub use retry::{Patience, Policy};
pub use roots::Store;
pub use trust::Trust;
