//! Queries: from SQL, a Substrait plan or a scan to a physical plan over drives, and to rows.
//!
//! | module | subject |
//! |---|---|
//! | [`planner`] | [`Planner`](planner::Planner): one query from its text to its rows |
//! | [`file_scan`] | a scan of files as one sub-plan |
//! | [`tables`], [`table_scan`], [`substrait`], [`parameters`] | what a query names, and what may come from others |
//! | [`scan_planner`], [`pruning`], [`host_side`] | which drives a scan asks, and what they may read |
//! | [`cells`], [`dense`] | grouped moments: what the host must know, and the rewrite from the dense view |
//! | [`star`], [`narrow_table`], [`mentioned_columns`] | tables of many columns |
//! | [`select_shape`], [`chunked`], [`chunk_merge`] | long lists of results |
//! | [`join_key_routing`], [`cooperative_join`], [`single_phase_merge`], [`unnest`] | rules over plans |
//! | [`explain`], [`host_reasons`] | how a query is cut, and why |
//! | [`result_stream`], [`sql_limits`] | rows as they come; limits of a query's text |
//!
//! Invariants: every pushdown policy over any number of drives gives the answer of one engine (I8). A text or plan from
//! outside gives a plan or an error within bounded memory and stack (I15). This crate opens no session with a drive:
//! `skytether_exec` does. How plans are split is in `skytether_plan`, which knows no drive.
//!
//! `skytether_host` has an example. See also ARCHITECTURE.md, section 5, and `docs/internals/planning.md`.

pub(crate) mod bare_tables;
pub mod cells;
pub mod chunk_merge;
pub mod chunked;
mod constant_inputs;
pub mod cooperative_join;
pub mod dense;
mod distinct_from;
mod expansion;
pub mod explain;
mod far_times;
pub mod file_scan;
pub mod host_reasons;
pub mod host_side;
mod identifiers;
mod ignored_clauses;
pub(crate) mod information_schema;
pub mod join_key_routing;
mod join_numbers;
mod kept;
mod list_quantifiers;
mod long_numbers;
mod matrix_parts;
pub mod mentioned_columns;
mod merged_keys;
pub mod narrow_table;
pub mod order_names;
mod outer_aliases;
mod parameters;
mod patterns;
pub mod planner;
mod planning_threads;
pub mod pruning;
pub mod result_stream;
pub mod scan_planner;
pub mod select_shape;
mod set_operations;
mod side_keys;
mod signed_intervals;
pub mod single_phase_merge;
pub mod sql_limits;
pub mod star;
pub mod substrait;
pub mod table_scan;
pub mod tables;
pub mod unnest;
