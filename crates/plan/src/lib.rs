//! The planner: which part of a query goes down to the drives, and how it travels.
//!
//! Pure: nothing here does I/O, reads a clock or knows a drive. [`cut()`] takes a logical plan and gives the
//! *super-plan*. In it, each maximal part that can go down is one [`DriveScan`]; only small tables that travel with it
//! feed it. [`codec`] turns the *sub-plans* of these scans into Substrait and back. [`partial`] holds the two forms of
//! aggregates: one makes states on drives, the other merges them above.
//!
//! | module | subject |
//! |---|---|
//! | [`policy`] | how much may go down, where a table lies |
//! | [`expressions`] | the one list of expressions that can travel |
//! | [`partition`] | tables partitioned by key: which drive a row belongs to, and what plans keep of that |
//! | [`classify`](mod@classify) | which part of each operator goes down: all of it, a limit, a state, or nothing |
//! | [`cut`](mod@cut) | the walk over the plan, and what it does with joins and unions |
//! | [`super_plan`] | what a super-plan records of its operators |
//! | [`node`] | [`DriveScan`] |
//! | [`shared`] | parts of a super-plan that occur several times, computed once |
//! | `generated_names` | names that differ in each copy of a CTE |
//! | [`wide_projection`] | operators of many expressions |
//! | `nesting_limits` | how deep and how large expressions become |
//! | [`broadcast_join`] | small tables that travel with a sub-plan, for joins there |
//! | `column_source` | a table with only the columns that are used |
//! | `size` | how many bytes rows take, from what is known of the tables |
//! | `split` | aggregates in two halves |
//! | [`pushdown_level`] | a sub-plan in two parts; a drive may leave the upper one to its parent |
//! | [`combine`] | states into states, for aggregators |
//! | [`opaque`](mod@opaque) | operators conclude nothing from what a plan computes |
//! | `failing` | casts and divisors that can fail |
//! | [`pinned`](mod@pinned) | conditions that can fail or are random stay where they are |
//! | [`filter_before_project`] | rows are filtered before anything is computed from them, above and below |
//! | [`null_equal_joins`](mod@null_equal_joins) | joins that take NULLs for equal, next to others |
//! | [`kept_types`](mod@kept_types) | aggregates next to one of distinct values |
//! | [`float_keys`] | the value by which floats are compared |
//! | [`instants`] | the number by which times of two units are compared |
//! | [`opaque_values`] | values that DataFusion's rules see nothing of |
//! | `null_if` | `nullif`, of the type of its first argument |
//! | `literal_conditions` | constants that meet conditions late |
//! | [`masked_structs`] | structs that a query makes NULL |
//! | [`window_functions`], [`list_functions`], `list_sums`, `mended_functions` | functions that replace DataFusion's |
//! | `function_wrapper` | a function with something of ours around it |
//! | `list_elements` | elements of aggregated lists |
//! | [`operand_types`] | types of operands that DataFusion has no common type for |
//! | `nested_sorts` | sorts by lists and structs with a limit |
//! | `computed_equalities` | conditions that equate a column with something computed from it |
//! | [`sort_keys`](mod@sort_keys) | keys of sorts, windows and ordered aggregates |
//! | `wrapped_rules` | DataFusion's rules with something of ours around them |
//! | [`planning`] | what bounds the rules of the planner |
//! | [`physical_rule`] | the common form of our rules over physical plans |
//! | [`keys`] | sets of join keys, and the function that asks them |
//! | [`partial`] | `__f_state` and `__f_merge` |
//! | [`codec`] | Substrait out and in, with the checks for foreign bytes |
//! | [`substrait_import`] | plans of other producers |
//! | [`explain_text`] | plans as text |
//! | [`operator_metrics`] | what a physical operator did |
//! | [`error`] | DataFusion's errors and ours |
//!
//! Invariants: every cut gives the answer of one engine (I8); bytes from outside give a plan or an error within bounded
//! memory (I15). This crate sends nothing: `skytether_query` calls it, and `skytether_host` has an example. See also
//! `docs/internals/planning.md`, `docs/internals/joins.md` and `docs/internals/substrait-import.md`.

pub mod analysis;
pub mod barriers;
pub mod bounded_results;
pub mod broadcast_join;
pub mod classify;
pub mod codec;
mod column_source;
pub mod combine;
mod computed_equalities;
pub mod cut;
mod engine_words;
pub mod error;
pub mod explain_text;
pub mod expressions;
mod failing;
pub mod filter_before_project;
pub mod filters_above_aggregates;
pub mod float_keys;
mod function_wrapper;
mod generated_names;
pub mod instants;
pub mod join_types;
pub mod kept_types;
pub mod keys;
mod list_elements;
pub mod list_functions;
mod list_sums;
mod literal_conditions;
pub mod masked_structs;
mod mended_functions;
mod nested_sorts;
mod nesting_limits;
pub mod node;
pub mod null_equal_joins;
mod null_if;
pub mod opaque;
pub mod opaque_values;
pub mod operand_types;
pub mod operator_metrics;
mod own_functions;
pub mod partial;
pub mod partition;
pub mod physical_rule;
pub mod pinned;
pub mod planning;
pub mod policy;
pub mod pushdown_level;
mod rewriting;
pub mod shared;
mod size;
pub mod sort_keys;
mod split;
pub mod substrait_import;
pub mod super_plan;
pub mod wide_projection;
pub mod window_functions;
mod wrapped_rules;

pub use classify::{Class, classify};
pub use cut::{CutPlan, Note, cut};
pub use node::DriveScan;
pub use own_functions::{expr_planners, register as register_functions};
pub use policy::{Partitioning, Tables};
pub use skytether_common::Pushdown;
pub use skytether_partitioning::{ByKey, Placement};
