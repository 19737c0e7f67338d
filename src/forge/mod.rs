//! What differs between forges: the runner's files, its configuration, its command and its words.
//!
//! Must not: know GARM, or own a process for longer than a configuration takes.

pub mod github;
