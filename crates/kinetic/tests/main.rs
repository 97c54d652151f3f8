//! Tests of crate `kinetic`, against hostile listeners and the Java simulator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod hostile;
mod simulator;
