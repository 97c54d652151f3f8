//! The host: finds data sets, cuts queries, sends sub-plans to drives and finishes what comes back.
//!
//! A host owns nothing durable. What it knows of data sets it reads from root records on the drives ([`catalog`]); what it writes becomes
//! visible by one compare-and-set ([`writer`]). Drives are anything that implements [`skytether_wire::Cse`], in this process or behind
//! a wire.
//!
//! | room | subject |
//! |---|---|
//! | [`catalog`] | root records, home drives, commit, drop, garbage |
//! | `partitioned` | what root records say of tables that are partitioned by key |
//! | [`listing`] | the list of data sets |
//! | [`membership`] | which drives belong together |
//! | `fence` | of two hosts over them the older one changes nothing any more |
//! | [`writer`], `dealt`, `matrix_writer`, `outbox` | ingest |
//! | `tables` | from names in SQL to tables, schemas and views |
//! | `named_columns`, `in_parts`, `few_columns`, `joined_parts`, `star`, `select_shape` | wide tables and long lists of results, without what DataFusion's planner would take for them |
//! | [`session`], [`sql_limits`] | a query from its text to its rows, and how long and deep it may be |
//! | [`table_scan`] | one table as Arrow's datasets read it |
//! | [`substrait`] | a plan of another producer, instead of a text |
//! | `parameters` | `?` and `$1` in SQL |
//! | `dense`, `cells` | grouped moments over the dense view, and what the host must know of cells |
//! | [`scan`], `reading`, `scan_planner`, `sub_plan`, `shipped` | the operator that reads from drives; how it reads what one gives; how it is made of a sub-plan; what it sends; small tables beside it |
//! | `estimate`, `join_filter`, `key_filters` | which side of a join is small; what of its keys goes to the drives |
//! | [`ids`] | where ids, generations' numbers and seeds come from |
//! | [`growth`], `growing` | drives that come and go, and what moves then |
//! | [`redundant`] | data sets that survive the loss of drives, and who stands for a lost one |
//! | [`plain`] | a table as one Parquet file: its slices as they are stored |
//! | `moving` | a scan whose work moves between drives and host |
//! | `expected` | what such a scan was expected to take, beside what happened |
//! | `missing` | a part that a root record names and a drive lacks |
//! | `spill`, `sort_room` | what memory can't hold |
//! | `merge_once`, `turns`, `unnested` | what our plans do otherwise than DataFusion's |
//! | [`receipt`], [`explain`] | what ran where |
//! | `reasons`, `tree` | why an operator is on the host; all operators as one tree |
//! | [`branch`] | a host as a drive of another host |
//! | [`server`], [`client`] | the same over Arrow Flight |
//! | `flight_sql` | the same over Arrow Flight SQL |

pub mod api;
pub mod branch;
pub mod catalog;
pub mod cluster;
pub mod common;
pub mod exec;
pub mod export;
pub mod flight;
pub mod flight_sql;
pub mod ingest;
pub mod maintenance;
pub mod query;
pub mod recovery;

pub use crate::api::estimate::{Division, DriveShare, Estimate};
pub use crate::api::explanation::Explanation;
pub use crate::api::receipt::Receipt;
pub use crate::api::resize_report::{GrowthOptions, GrowthReport, Load};
pub use crate::api::scrub_report::{Finding, Progress, RepairOptions, RepairReport, ScrubOptions, ScrubReport};
pub use crate::branch::branch::Branch;
pub use crate::catalog::indexes::{IndexInfo, IndexRecord, ListIndexes, NewIndex, OldIndex};
pub use crate::catalog::listing::{DatasetInfo, Listing};
pub use crate::catalog::membership::{Founding, Membership};
pub use crate::catalog::root_store::{Catalog, DatasetKind, RootRecord};
pub use crate::cluster::options::{HostOptions, Moving, QueryOptions};
pub use crate::cluster::status::{DriveStatus, Unreadable};
pub use crate::common::ids::Ids;
pub use crate::exec::profile::ReceiptHandle;
pub use crate::export::parquet_view::{Door, Exported};
pub use crate::export::virtual_file::PlainFile;
pub use crate::flight::client::RemoteHost;
pub use crate::ingest::dataset_writer::{DatasetWriter, IngestReport};
pub use crate::maintenance::resize_nodes::host_of;
pub use crate::query::planner::{Host, Query};
pub use crate::query::substrait::Asked;
pub use crate::query::table_scan::{Output, TableScan};
pub use crate::recovery::missing_drive::Lost;
pub use skytether_plan::{Cut, Placement};
pub use skytether_redundancy::Scheme;

pub use crate::catalog::code_map::RedundancyRecord;
pub use crate::catalog::membership::{MEMBERSHIP_KEY, Role};
pub use crate::catalog::partitioning::PartitionedBy;
pub use crate::catalog::root_store::{MatrixRecord, PartitionRecord, TableRecord, rendezvous};
pub use crate::export::parquet_view::Sink;
pub use crate::flight::server::{Face, serve, serve_on};
pub use crate::query::sql_limits::MAX_OPERATORS;
pub use crate::query::substrait::LIMITS as SUBSTRAIT_LIMITS;
