//! garm-bootstrap.
