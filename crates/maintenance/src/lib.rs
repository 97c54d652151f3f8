//! Maintenance of a cluster while queries run: scrubs, repairs, and fleets that grow or shrink.
//!
//! | module | subject |
//! |---|---|
//! | [`scrub`], [`scrub_window`] | every drive verifies its values; damaged values are reconstructed |
//! | [`rebuild`], [`rebuild_copies`] | a blank drive gets the content of the lost one that it replaces |
//! | [`resize`], [`resize_members`], [`resize_nodes`] | drives that join and leave |
//! | [`rebalance`], [`rebalance_plan`], [`rebalance_parities`], [`two_level_layout`] | what moves, and where to |
//! | [`retention`] | replaced generations, which queries may still read |
//! | `volumes` | volumes in all of these |
//! | [`kept_again`] | results that drives kept, made again where the data lie now |
//!
//! Invariants: every step commits by compare-and-set, so that all work can be repeated after a crash. No two shards of
//! a code group come to be on one drive (I12). What a scheme does not cover is reported by name (I11). Nothing is
//! written that was not verified. Of sub-plans, this crate runs none but those whose results drives kept.
//!
//! ```
//! # use std::sync::Arc;
//! # use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! # use skytether_api::scrub_report::ScrubOptions;
//! # use skytether_catalog::records::membership::Founding;
//! # use skytether_catalog::records::root::DatasetKind;
//! # use skytether_cluster::cluster::Cluster;
//! # use skytether_cluster::options::HostOptions;
//! # use skytether_common::{DatasetName, Error, Generation, Result};
//! # use skytether_device::{Cse, Storage, StorageOnly};
//! # use skytether_ingest::dataset_writer::DatasetWriter;
//! # use skytether_maintenance::Maintenance;
//! # use skytether_partitioning::Placement;
//! # use skytether_recovery::fallback::{Fallback, FallbackExecutor};
//! # use skytether_slice::SliceOptions;
//! # use skytether_store::{Expect, Op};
//! # use uuid::Uuid;
//! # #[derive(Debug)]
//! # struct NoEngine;
//! # impl Fallback for NoEngine {
//! #     fn executor(&self, _: Arc<dyn Storage>, _: usize) -> Result<Arc<dyn FallbackExecutor>> {
//! #         Err(Error::unsupported("this cluster runs no sub-plans"))
//! #     }
//! # }
//! # let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
//! # let rows = RecordBatch::try_from_iter([("id", ids)])?;
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let drives: Vec<Arc<dyn Cse>> =
//!     (0..3).map(|n| Arc::new(StorageOnly::in_memory(Uuid::from_u128(n + 1), format!("drive-{n}"))) as _).collect();
//! let options = HostOptions { redundancy: "ec:2+1".parse()?, ..HostOptions::default() };
//! let (cluster, _) = Cluster::join(drives.clone(), options, Founding::EmptyDrives, Arc::new(NoEngine)).await?;
//! # let name: DatasetName = "lab.runs".parse()?;
//! # let (catalog, slices, kind) = (cluster.catalog().clone(), SliceOptions::default(), DatasetKind::Table);
//! # let mut writer = DatasetWriter::begin(catalog, slices, name.clone(), kind, false, Generation(1)).await?;
//! # writer.write_table("data", Placement::Spread, rows.schema(), [Ok(rows)].into_iter()).await?;
//! # writer.commit().await?;
//! // ... "lab.runs" is written, and then a value of it is damaged:
//! let damaged = drives[0].list(&name.prefix(), None, 1).await?.remove(0).key;
//! drives[0].apply(vec![Op::Put { key: damaged.clone(), value: "noise".into(), expect: Expect::Any }]).await?;
//!
//! let report = Maintenance::new(cluster).scrub(&ScrubOptions::default(), &|_| ()).await?;
//! assert_eq!((report.damaged, report.mended, report.left()), (1, 1, 0));
//! assert_ne!(drives[0].get(&damaged).await?, "noise");
//! # Ok::<_, Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also `docs/internals/scrub-and-repair.md` and `docs/internals/resize.md`.

use skytether_cluster::cluster::Cluster;

pub mod kept_again;
pub mod rebalance;
pub mod rebalance_parities;
pub mod rebalance_plan;
pub mod rebuild;
pub mod rebuild_copies;
pub mod resize;
pub mod resize_members;
pub mod resize_nodes;
pub mod retention;
pub mod scrub;
pub mod scrub_window;
pub mod two_level_layout;
mod volumes;

/// Maintenance of one cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Maintenance(pub(crate) Cluster);

impl Maintenance {
    /// Of this cluster.
    #[must_use]
    pub fn new(cluster: Cluster) -> Self {
        Self(cluster)
    }
}
