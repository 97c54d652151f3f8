//! A small iSCSI initiator (RFC 7143): one session of one connection, several commands under way, CHAP, digests.
//!
//! Error recovery level 0: a connection that breaks is given up, and its commands fail with `Unavailable`. The layer
//! above connects again.
//!
//! | module | subject |
//! |---|---|
//! | [`login`] | the way into a session |
//! | [`connection`] | commands and their answers, driven by one task |

pub mod connection;
pub mod login;
mod wire;

pub use connection::Connection;
