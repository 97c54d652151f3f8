//! EXEC from outside. All tests are one program, because linking takes longer than most of them run.

#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod chunks;
mod compress;
mod digests;
mod format;
mod hostile;
mod limits;
mod query;
mod search;
mod sort;
mod thumbnail;
mod util;
mod words;
