//! garm-sim against raw sockets and its own fake runner.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod api;
mod archive;
mod client;
mod configure;
mod faults;
mod metadata;
mod runner;
mod scene;
mod tls;
