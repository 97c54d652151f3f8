//! The `skytether` command as its users meet it: a process with arguments, two outputs and an exit status.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod aggregators;
mod commands;
mod index;
mod ingest_options;
mod lost_drives;
mod parquet_view;
mod processes;
mod profiles;
mod security;
mod util;
mod volumes;
