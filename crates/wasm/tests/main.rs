//! The crate from outside: what ends programs, programs of clang, imports, and hostile bytes.
#![allow(clippy::unwrap_used, clippy::panic)]

mod drive;
mod ends;
mod hostile;
mod imports;
mod modules;
mod refused;
#[path = "../../ebpf/tests/values.rs"]
mod values;
