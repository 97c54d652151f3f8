//! Execution of a host's plan: scans of drives, adaptive execution, and the collection of receipts.
//!
//! | module | subject |
//! |---|---|
//! | [`scan`] | [`DriveScanExec`](scan::DriveScanExec): one sub-plan at many drives, as an operator of DataFusion |
//! | [`shared_result`] | a result that several operators of a query read, computed once |
//! | [`drive_reader`] | what one drive answers: deadlines, figures, errors that name the drive |
//! | [`adaptive`] | scans whose work moves between drives and host while they run |
//! | [`local_executors`], [`fallback`] | engines in this process over what drives store, or over reconstructed values |
//! | [`subplan_encoder`], [`broadcast`], [`join_filter`] | what travels down: the sub-plan, small tables, join keys |
//! | [`estimate`], [`column_stats`], [`forecast`] | expected rows and times |
//! | [`profile`] | [`Collector`](profile::Collector), which gathers the receipt |
//! | [`query_runtime`], [`query_limits`], [`spill_dir`], [`sort_reserve`] | memory and disk of queries |
//!
//! Invariants: a slice counts once, whatever is late, duplicated or repeated elsewhere (I4). A query that needs more
//! memory than the host has ends with `Exhausted`, and names the operators that hold it. This crate decides nothing
//! about placement of work: `skytether_scheduler` does. It does not parse or plan: `skytether_query` does.
//!
//! `skytether_host` has an example. See also `docs/internals/adaptive-execution.md` and `docs/internals/receipts.md`.

pub mod adaptive;
pub mod broadcast;
pub mod column_stats;
pub mod drive_reader;
pub mod estimate;
pub mod fallback;
pub mod forecast;
pub mod join_filter;
pub mod local_executors;
pub mod profile;
pub mod query_limits;
pub mod query_runtime;
pub mod scan;
pub mod shared_result;
pub mod sort_reserve;
pub mod spill_dir;
pub mod subplan_encoder;
