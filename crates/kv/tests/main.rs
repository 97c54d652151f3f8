//! The key-value store from outside, over both backends. All tests are one program, because linking takes longer than
//! most of them run.

#![allow(clippy::unwrap_used)]

mod basic;
mod concurrency;
mod crash;
mod damage;
mod erase;
mod memory;
mod model;
mod power;
mod util;
