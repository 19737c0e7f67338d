//! garm-bootstrap.

pub mod exit;
pub mod forge;
pub mod garm;
pub mod host;
pub mod http;
pub mod secret;
pub mod text;
pub mod timeline;
