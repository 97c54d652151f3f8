//! A run on a machine that can contain it.

mod child;
mod filter;
pub(crate) mod init;
mod plan;
mod start;
mod step;
pub(crate) mod watch;
