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

pub mod branch;
pub mod catalog;
mod cells;
pub mod client;
mod dealt;
mod dense;
mod estimate;
mod expected;
pub mod explain;
mod fence;
mod few_columns;
mod flight_sql;
mod forward;
mod growing;
pub mod growth;
pub mod ids;
mod in_parts;
pub mod indexes;
mod join_filter;
mod joined_parts;
mod key_filters;
pub mod listing;
mod long_work;
mod matrix_writer;
pub mod membership;
mod merge_once;
mod missing;
mod moving;
mod named_columns;
pub mod options;
mod outbox;
mod parameters;
mod partitioned;
pub mod plain;
mod protocol;
mod reading;
mod reasons;
pub mod receipt;
pub mod redundant;
pub mod scan;
mod scan_planner;
mod select_shape;
pub mod server;
pub mod session;
mod shipped;
mod sort_room;
mod spill;
pub mod sql_limits;
mod star;
pub mod status;
mod sub_plan;
pub mod substrait;
pub mod table_scan;
mod tables;
mod travelling;
mod tree;
mod turns;
mod unnested;
pub mod writer;

pub use branch::Branch;
pub use catalog::{Catalog, DatasetKind, RootRecord};
pub use client::RemoteHost;
pub use expected::{Division, DriveShare, Estimate};
pub use explain::Explanation;
pub use growth::{GrowthOptions, GrowthReport, Load, host_of};
pub use ids::Ids;
pub use indexes::{IndexInfo, IndexRecord, ListIndexes, NewIndex, OldIndex};
pub use listing::{DatasetInfo, Listing};
pub use membership::{Founding, Membership};
pub use options::{HostOptions, Moving, QueryOptions};
pub use plain::{Door, Exported, PlainFile};
pub use receipt::{Receipt, ReceiptHandle};
pub use redundant::{Finding, Lost, Progress, RepairOptions, RepairReport, ScrubOptions, ScrubReport};
pub use session::{Host, Query};
pub use skytether_plan::{Cut, Placement};
pub use skytether_redundancy::Scheme;
pub use status::{DriveStatus, Unreadable};
pub use substrait::Asked;
pub use table_scan::{Output, TableScan};
pub use writer::{DatasetWriter, IngestReport};
