//! Guards of the workspace's structure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod circles;
mod crate_graph;
mod declared;
mod error_texts;
mod examples;
mod features;
mod imports;
mod storage_crates;
mod test_names;
mod workspace;
