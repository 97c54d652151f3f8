//! The engine: runs sub-plans over slices, wherever they come from.
//!
//! A drive runs it over its own store; a host runs it over raw slices that drives send. It knows nothing of hosts, data
//! sets or placement: a sub-plan's ticket names the partitions that it may read.
//!
//! | module | subject |
//! |---|---|
//! | [`reader`] | partitions, slices and whole columns out of a store, with caches |
//! | [`remote`], [`threads`] | a remote store for readers; threads for work that blocks |
//! | `ticket`, `ticket_catalog` | which partitions a sub-plan may read, and how DataFusion looks them up |
//! | [`broadcast`] | the small tables that travel with a sub-plan |
//! | `table`, [`prune`], `prefilter` | a partition as a table; stripes, and rows of a stripe, that a filter keeps |
//! | [`indexed`], `ranges`, [`indexing`] | rows that an index keeps; bounds that filters give; how it is built |
//! | `scan_spec`, `scan` | what a scan reads, and the operator that reads it |
//! | `slice_loader`, `stripe`, `dense` | stripes to batches; rows of several slices; the dense view of a matrix |
//! | [`statistics`] | what metadata says about the rows |
//! | [`feed`], `stripe_coalescing` | stripes that come to a scan one by one; small ones that are read together |
//! | `cells` | the cells for grouped moments |
//! | `metadata_aggregates` | aggregates that metadata answers |
//! | `passing_filters` | filters over lists pass every batch on |
//! | [`split_execution`] | a sub-plan stripe by stripe, at several pushdown levels |
//! | [`session`], [`lane_pool`] | a sub-plan slice by slice, as its parent orders; lanes over the engine's own store |
//! | [`meter`], `throttle` | how long work takes; operators on tasks of their own, at the speed of a device |
//! | `plan_cache` | the operators of a sub-plan, which the drives of a process may share |
//! | [`execute`], `batches`, `annotate` | running a sub-plan, delivering, reporting what happened |
//!
//! Invariants: no byte reaches a decoder unverified (I5); a sub-plan sees the partitions of its ticket and nothing else
//! (I9); a slice counts once (I4). `skytether_host` has an example. See also `docs/internals/planning.md`, section "How
//! a drive optimises", and `docs/internals/adaptive-execution.md`.

mod annotate;
mod batches;
pub mod broadcast;
pub mod cache;
mod cells;
mod dense;
pub mod execute;
pub mod feed;
pub mod indexed;
pub mod indexing;
pub mod lane_pool;
mod metadata_aggregates;
pub mod meter;
mod passing_filters;
mod plan_cache;
mod prefilter;
pub mod prune;
mod ranges;
pub mod reader;
pub mod remote;
mod scan;
mod scan_spec;
pub mod session;
mod slice_loader;
pub mod split_execution;
pub mod statistics;
mod stripe;
mod stripe_coalescing;
mod table;
pub mod threads;
mod throttle;
mod ticket;
mod ticket_catalog;

pub use execute::Engine;
pub use reader::Reader;
pub use threads::{blocking, blocking_on};
pub use ticket::tables_beside;
