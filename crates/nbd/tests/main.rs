//! NBD over real sockets: a small client of these tests, and the clients that people have.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clients;
mod durability;
mod hostile;
mod mounted;
mod reconnect;
mod support;
mod wire;
