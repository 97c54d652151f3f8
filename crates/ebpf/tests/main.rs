//! The crate from outside: what ends programs, programs of clang, helpers, and hostile bytes.
#![allow(clippy::unwrap_used, clippy::panic)]

mod drive;
mod helpers;
mod hostile;
mod objects;
mod refused;
mod traps;
mod values;
