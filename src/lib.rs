//! garm-bootstrap.

pub mod cli;
pub mod config;
pub mod exit;
pub mod forge;
pub mod garm;
pub mod host;
pub mod http;
pub mod log;
pub mod secret;
pub mod state;
pub mod text;
pub mod timeline;
pub mod tools;
