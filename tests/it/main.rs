//! The integration tests: the real binary, real processes and sockets, against garm-sim.
//!
//! One binary, so that it links once. Each test gets a GARM, an instance and folders of its own; a test
//! that needs root says so and fails without it.

#![allow(clippy::disallowed_methods, reason = "tests start the programs that they test")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what they say is the test's own failure"
)]
#![allow(unreachable_pub, reason = "a test binary has no outside")]

mod boot;
mod crash;
mod matrix;
mod refusals;
mod registration;
mod storm;
mod support;
