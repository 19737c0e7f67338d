//! garm-bootstrap.

pub mod exit;
pub mod forge;
pub mod host;
pub mod init;
pub mod secret;
pub mod supervise;
pub mod text;
pub mod timeline;
