//! What a fleet reads while drives are down: copies, decoded values, and sub-plans that another reader runs.
//!
//! | module | subject |
//! |---|---|
//! | [`failover`] | [`FailoverDrive`](failover::FailoverDrive): a drive with failover to the others |
//! | [`reconstruct`], [`shard`] | [`Reconstructor`](reconstruct::Reconstructor): values decoded from code groups |
//! | [`degraded_storage`], [`copied`] | a drive's values as a store: its own, copies, or decoded ones |
//! | [`fallback`], [`replacement_engine`], [`replay_buffer`] | sub-plans of a drive that can't run them |
//! | [`missing_drive`] | [`MissingDrive`](missing_drive::MissingDrive): a drive that is not there at all |
//! | [`shared_reads`], [`read_sharing`], [`value_cache`] | values read or decoded once for several readers |
//! | [`look_ahead`], [`prefetch`], [`ordered_read`], [`read_in_order`] | prefetched shards |
//! | [`repair_io`] | damaged values, written again |
//!
//! Invariants: a value from here is verified, whether it was read, copied or decoded (I5). What a scheme covers comes
//! back, and what it does not cover is an error that names it (I11). This crate has no query engine: a
//! [`Fallback`](fallback::Fallback) brings it.
//!
//! ```
//! use std::sync::Arc;
//!
//! use skytether_common::{Key, Kind};
//! use skytether_device::{Storage, StorageOnly};
//! use skytether_recovery::missing_drive::MissingDrive;
//! use uuid::Uuid;
//!
//! let (id, key) = (Uuid::from_u128(1), Key::new("a/b")?);
//! let gone = MissingDrive::new(id, "drive-0", "its directory is gone".to_owned());
//! let error = futures::executor::block_on(gone.get(&key)).unwrap_err();
//! assert_eq!(error.kind(), Kind::Unavailable);
//! assert!(error.message().contains("its directory is gone"));
//!
//! // Only a drive with its id takes its place.
//! assert!(gone.succeed(Arc::new(StorageOnly::in_memory(Uuid::from_u128(2), "drive-0"))).is_err());
//! gone.succeed(Arc::new(StorageOnly::in_memory(id, "drive-0")))?;
//! assert_eq!(futures::executor::block_on(gone.stat(&key))?, None);
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/internals/degraded-reads.md`.

pub mod copied;
pub mod degraded_storage;
pub mod failover;
pub mod fallback;
pub mod look_ahead;
pub mod missing_drive;
pub mod ordered_read;
pub mod prefetch;
pub mod read_in_order;
pub mod read_sharing;
pub mod reconstruct;
pub mod repair_io;
pub mod replacement_engine;
pub mod replay_buffer;
pub mod shard;
pub mod shared_reads;
pub mod value_cache;
