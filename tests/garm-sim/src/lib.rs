//! A strict simulation of GARM's instance API, of a forge with runners to download, and of
//! everything that can go wrong on the wire between them and an instance.
//!
//! # Theory of operation
//!
//! [`Sim::start`] binds two listeners on loopback, GARM's and the forge's, and serves both on a
//! runtime of its own; dropping the [`Sim`] ends them. A call goes through `server`: its body
//! is read, it is written to the `record`, a [`Fault`] may take it over, and otherwise `api`
//! (GARM's HTTP face, over the `controller`'s state) or `forge` answers. Faults that a handler
//! cannot express are armed on the connection's cell and carried out by the socket wrapper in
//! `wire`, which alone sees the bytes leave.
//!
//! The runner [`archive`] has the layout of the real one and a fake Listener in it: a small static
//! program (`src/listener/`, compiled by `build.rs`, no crates) that does what a `KEY=VALUE` file
//! in its home tells it ([`RunnerScript`]). It tells the forge when it registers, listens, starts
//! and ends a job; the forge tells the controller, as webhooks do.
//!
//! Everything can be waited for with a condition ([`Sim::wait_until`]); nothing needs a sleep.

// A test tool: it stops at the first thing that cannot be, and says which.
#![allow(clippy::expect_used)]

mod api;
pub mod archive;
mod controller;
mod endpoint;
mod forge;
mod instance;
mod options;
mod record;
mod server;
mod sim;
mod urls;
mod wire;

pub use archive::{ArchiveSpec, RunnerScript};
pub use controller::messages::{EventType, Message};
pub use endpoint::Endpoint;
pub use forge::{Registration, RunnerEvent};
pub use instance::{Instance, SystemInfo};
pub use options::{
    AgentTools, Checksum, Entity, ForgeType, InstanceSpec, Proxy, ServerCertificate, SimOptions,
    Webhooks,
};
pub use record::{Authorization, Call, Host, table_head};
pub use sim::Sim;
pub use wire::fault::{Fault, FaultKind};
pub use wire::storm::Storm;
pub use wire::tls::PrivateCa;
