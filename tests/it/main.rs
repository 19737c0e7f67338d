//! The integration tests: the real binary, real processes and sockets, against garm-sim.
//!
//! One binary, so that it links once. Each test gets a GARM, an instance and folders of its own; a test
//! that needs root says so and fails without it.

#![allow(clippy::disallowed_methods, reason = "tests start the programs that they test")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "what is not there fails the test"
)]
#![allow(
    clippy::format_collect,
    clippy::too_many_lines,
    clippy::type_complexity,
    clippy::unnecessary_wraps,
    clippy::wrong_self_convention,
    reason = "tables of scenes are long, and read as sentences"
)]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod adoption;
mod assets;
mod bad_input;
mod boot;
mod certificates;
mod check;
mod cloud_init;
mod configure;
mod containers;
mod crash;
mod deregister;
mod discover;
mod docker;
mod docs;
mod drain;
mod end;
mod exit_codes;
mod fetch;
mod field_reports;
mod install;
mod kubernetes;
mod last_words;
mod lifecycle;
mod limits;
mod matrix;
mod memory;
mod network;
mod orphan;
mod output;
mod packages;
mod pid1;
mod quiet;
mod readme;
mod refusals;
mod registration;
mod relaunch;
mod report;
mod retry;
mod secrets;
mod settings;
mod soak;
mod storm;
mod stuck;
mod support;
mod systemd;
mod templates;
