//! The host: a facade over the drives of a fleet, with queries, ingest, export and maintenance.
//!
//! [`Host`] joins crates: `cluster` (the drives and what is known of them), `query` (from SQL or Substrait to rows),
//! `ingest`, `export`, and `maintenance` (scrub, repair, resize). Faces such as `flight` and `flight-sql` build on it.
//! The types of its calls are exported here again.
//!
//! Invariants: a host owns nothing durable. It reads what it knows of data sets from root records on the drives, and
//! what it writes becomes visible by one compare-and-set (I1). Drives are anything that implements
//! [`Cse`](skytether_device::Cse), in this process or behind a wire. A host never depends on crate `drive`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
//! use arrow::datatypes::Int64Type;
//! use skytether_device::{Cse, StorageOnly};
//! use skytether_host::{DatasetKind, Founding, Host, HostOptions, Placement, QueryOptions};
//! use uuid::Uuid;
//!
//! // These drives only store, so that the host runs their sub-plans. A drive of crate `drive` runs them itself.
//! let drives: Vec<Arc<dyn Cse>> =
//!     (0..2).map(|n| Arc::new(StorageOnly::in_memory(Uuid::from_u128(n + 1), format!("drive-{n}"))) as _).collect();
//! let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
//! let rows = RecordBatch::try_from_iter([("id", ids)])?;
//! tokio::runtime::Runtime::new()?.block_on(async {
//!     let (host, _) = Host::join(drives, HostOptions::default(), Founding::EmptyDrives).await?;
//!     let mut writer = host.writer(&"lab.runs".parse()?, DatasetKind::Table, false).await?;
//!     writer.write_table("data", Placement::Spread, rows.schema(), [Ok(rows)].into_iter()).await?;
//!     writer.commit().await?;
//!
//!     let query = host.sql("SELECT sum(id) FROM lab.runs", &QueryOptions::default()).await?;
//!     let receipt = query.receipt.clone();
//!     let answer = query.collect().await?;
//!     assert_eq!(answer[0].column(0).as_primitive::<Int64Type>().value(0), 4950);
//!     assert!(receipt.receipt().finished);
//!     Ok::<_, skytether_common::Error>(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also ARCHITECTURE.md, sections 5 and 6.

mod host;
mod service;

pub use host::Host;
pub use service::Reach;

pub use skytether_api::estimate::{DriveShare, Estimate, WorkSplit};
pub use skytether_api::explanation::Explanation;
pub use skytether_api::receipt::Receipt;
pub use skytether_api::receipt::ReceiptHandle;
pub use skytether_api::resize_report::{Load, ResizeOptions, ResizeReport};
pub use skytether_api::scrub_report::{Finding, Progress, RepairOptions, RepairReport, ScrubOptions, ScrubReport};
pub use skytether_api::service::{FleetService, OnProgress, Prepared, ViewParts, WriterParts};
pub use skytether_api::statement::Query;
pub use skytether_api::statement::QueryOptions;
pub use skytether_api::statement::Statement;
pub use skytether_api::statement::{Output, TableScan};
pub use skytether_api::status::DriveStatus;
pub use skytether_api::values::Values;
pub use skytether_catalog::indexes::{IndexInfo, ListIndexes, NewIndex, OldIndex};
pub use skytether_catalog::listing::Unreadable;
pub use skytether_catalog::listing::{DatasetInfo, Listing};
pub use skytether_catalog::records::code_map::RedundancyRecord;
pub use skytether_catalog::records::index::IndexRecord;
pub use skytether_catalog::records::membership::{Founding, Membership};
pub use skytether_catalog::records::membership::{MEMBERSHIP_KEY, Role};
pub use skytether_catalog::records::partition::PartitionRecord;
pub use skytether_catalog::records::partition::PartitionedBy;
pub use skytether_catalog::records::root::{DatasetKind, RootRecord};
pub use skytether_catalog::records::root::{MatrixRecord, TableRecord};
pub use skytether_catalog::rendezvous::rendezvous;
pub use skytether_catalog::root_store::Catalog;
pub use skytether_cluster::options::{AdaptiveMode, HostOptions};
pub use skytether_common::Pushdown;
pub use skytether_erasure::Scheme;
pub use skytether_export::parquet_view::Sink;
pub use skytether_export::parquet_view::{Exported, ParquetView};
pub use skytether_export::places::{Place, Places, Purpose, places};
pub use skytether_export::virtual_file::VirtualFile;
pub use skytether_ingest::dataset_writer::{DatasetWriter, IngestReport};
pub use skytether_maintenance::resize_nodes::host_of;
pub use skytether_partitioning::Placement;
pub use skytether_query::file_scan::FileScan;
pub use skytether_query::sql_limits::MAX_OPERATORS;
pub use skytether_query::substrait::LIMITS as SUBSTRAIT_LIMITS;
pub use skytether_recovery::missing_drive::UnavailableDrive;
pub use skytether_runtime::Ids;
