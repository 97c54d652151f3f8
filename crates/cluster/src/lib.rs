//! The drives of a host with their catalog: how they join, which host may change them, and their status.
//!
//! - [`Cluster`](cluster::Cluster) joins drives, catalog, recovery and the fence. Query, ingest and maintenance build
//!   on it.
//! - [`join`] checks that the drives are all drives of one fleet and no others, and takes the fleet over.
//! - [`HostOptions`](options::HostOptions) are the limits of a host: memory, deadlines, redundancy, what may move.
//! - [`status`] asks each drive for its status.
//!
//! Invariants: a cluster owns nothing durable, so another host can take over at any time (I2). All drives that it
//! offers fail over to others, see `skytether_recovery`. It runs no sub-plans itself: the caller gives it a
//! [`Fallback`](skytether_recovery::fallback::Fallback) with a query engine (`skytether_exec` has one).
//!
//! ```
//! use std::sync::Arc;
//!
//! use skytether_catalog::records::membership::Founding;
//! use skytether_cluster::cluster::Cluster;
//! use skytether_cluster::options::HostOptions;
//! use skytether_common::{Error, Result};
//! use skytether_device::{Cse, Storage, StorageOnly};
//! use skytether_recovery::fallback::{Fallback, FallbackExecutor};
//! use uuid::Uuid;
//!
//! /// A cluster that only stores has no engine.
//! #[derive(Debug)]
//! struct NoEngine;
//!
//! impl Fallback for NoEngine {
//!     fn executor(&self, _: Arc<dyn Storage>, _: usize) -> Result<Arc<dyn FallbackExecutor>> {
//!         Err(Error::unsupported("this cluster runs no sub-plans"))
//!     }
//! }
//!
//! let drives: Vec<Arc<dyn Cse>> =
//!     (0..2).map(|n| Arc::new(StorageOnly::in_memory(Uuid::from_u128(n + 1), format!("drive-{n}"))) as _).collect();
//! let runtime = tokio::runtime::Runtime::new()?;
//! runtime.block_on(async {
//!     let joined = Cluster::join(drives, HostOptions::default(), Founding::EmptyDrives, Arc::new(NoEngine));
//!     let (cluster, deleted) = joined.await?;
//!     assert_eq!((cluster.drives().len(), cluster.lost(), deleted), (2, 0, 0));
//!     let status = cluster.status().await;
//!     assert!(status.iter().all(|drive| drive.error.is_none()));
//!     Ok::<_, Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also `docs/internals/membership-and-fencing.md`.

pub mod cluster;
pub mod join;
pub mod options;
mod read_only;
pub mod status;
