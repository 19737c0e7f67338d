//! The wire: sockets, TLS and everything that can go wrong on them.
//!
//! A connection's [`control::Control`] is shared by its socket wrapper ([`io::WireIo`]) and by
//! the handlers. A handler arms a plan ("after 10 bytes of the body, reset"); the wrapper, which
//! alone sees the bytes as they go out, carries it out. Nothing here knows GARM.

pub(crate) mod control;
pub(crate) mod fault;
pub(crate) mod io;
pub(crate) mod listener;
pub(crate) mod shape;
pub(crate) mod storm;
pub(crate) mod tls;
