//! The machine underneath: users, processes, files, facts about the operating system.
//!
//! Owns: every call that asks or changes the host outside of HTTP. Must not: know GARM, a runner or a
//! boot phase.

pub mod console;
pub mod container;
pub mod docker;
pub mod elf;
pub mod files;
pub mod memory;
pub mod names;
pub mod oom;
pub mod os;
pub mod pidfd;
pub mod power;
pub mod process;
pub mod processes;
pub mod service;
pub mod store;
pub mod users;
