//! The host: a facade over the drives of a fleet, with queries, ingest, export and maintenance.
//!
//! A host owns nothing durable. It reads what it knows of data sets from root records on the drives, and what it writes
//! becomes visible by one compare-and-set. Drives are anything that implements [`skytether_device::Cse`], in this process or
//! behind a wire.
//!
//! The parts are crates of their own, and this one joins them: `cluster` (the drives and what is known of them), `query`
//! (from SQL or Substrait to rows), `ingest`, `export`, and `maintenance` (scrub, repair, resize). Faces such as `flight` and
//! `flight-sql` build on this crate.

mod host;
mod service;

pub use host::Host;
pub use service::Reach;

pub use skytether_api::estimate::{Division, DriveShare, Estimate};
pub use skytether_api::explanation::Explanation;
pub use skytether_api::receipt::Receipt;
pub use skytether_api::receipt::ReceiptHandle;
pub use skytether_api::resize_report::{GrowthOptions, GrowthReport, Load};
pub use skytether_api::scrub_report::{Finding, Progress, RepairOptions, RepairReport, ScrubOptions, ScrubReport};
pub use skytether_api::service::{FleetService, OnProgress, Prepared, ViewParts, WriterParts};
pub use skytether_api::statement::Asked;
pub use skytether_api::statement::Query;
pub use skytether_api::statement::QueryOptions;
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
pub use skytether_cluster::options::{HostOptions, Moving};
pub use skytether_common::Pushdown as Cut;
pub use skytether_export::parquet_view::Sink;
pub use skytether_export::parquet_view::{Door, Exported};
pub use skytether_export::virtual_file::PlainFile;
pub use skytether_ingest::dataset_writer::{DatasetWriter, IngestReport};
pub use skytether_maintenance::resize_nodes::host_of;
pub use skytether_partitioning::Placement;
pub use skytether_query::sql_limits::MAX_OPERATORS;
pub use skytether_query::substrait::LIMITS as SUBSTRAIT_LIMITS;
pub use skytether_recovery::missing_drive::Lost;
pub use skytether_redundancy::Scheme;
pub use skytether_runtime::Ids;
