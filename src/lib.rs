//! garm-bootstrap.

pub mod exit;
pub mod host;
pub mod secret;
pub mod text;
pub mod timeline;
pub mod tools;
