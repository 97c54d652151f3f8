//! The crate from outside: a recorded conversation, any bytes, and the memory that they take.
#![allow(clippy::unwrap_used, clippy::panic)]

mod conversation;
mod generated;
mod memory;
