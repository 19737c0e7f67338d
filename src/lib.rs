//! garm-bootstrap: boots, announces and supervises a CI runner inside an instance that GARM created.
//!
//! Theory of operation. The program runs once per instance. [`config`] turns what was typed, what stands
//! in the environment and what a file says into one typed value; [`boot`] leads a runner from nothing to
//! idle and then to its end, in the phases of its table; on the way it lets [`garm`] say what is true,
//! [`tools`] bring the runner to disk, [`forge`] configure it, and [`supervise`] own its process. These
//! do not know each other: the boot joins them. Below them lie [`http`] and [`host`].
//!
//! As PID 1 the executable first becomes two processes ([`init`]): a tiny one that reaps and forwards
//! signals, and the agent, which is everything else.
//!
//! A module uses only modules of floors below its own:
//!
//! | floor | modules |
//! |---|---|
//! | 5 | [`boot`], [`commands`], [`cli`], [`end`] |
//! | 4 | [`config`], [`error`] |
//! | 3 | [`garm`], [`tools`], [`supervise`] |
//! | 2 | [`forge`], [`http`], [`log`] |
//! | 1 | [`host`], [`init`], [`state`], [`timeline`], [`text`], [`exit`], [`secret`] |

pub mod boot;
pub mod cli;
pub mod commands;
pub mod config;
pub mod end;
pub mod error;
pub mod exit;
pub mod forge;
pub mod garm;
pub mod host;
pub mod http;
pub mod init;
pub mod log;
pub mod secret;
pub mod state;
pub mod supervise;
pub mod text;
pub mod timeline;
pub mod tools;

mod program;

pub use program::run;
