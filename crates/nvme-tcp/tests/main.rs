//! NVMe/TCP over real sockets: a small host of these tests, and Linux in a guest.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod blocks;
mod controllers;
mod durability;
mod exec;
mod guest;
mod host;
mod hostile;
mod reconnect;
mod sums;
mod support;
