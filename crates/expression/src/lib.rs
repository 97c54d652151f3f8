//! Differential expression as plain query operators: groups of cells, grouped moments, t-tests and the ranking of
//! genes.
//!
//! Nothing here does I/O. A [`CellSource`] gives the cells (their names, obs columns and totals); everything else
//! arrives in the rows of a query.
//!
//! | module | subject |
//! |---|---|
//! | [`cells`] | [`CellSource`], the access to a data set's cells |
//! | [`spec`] | [`MomentsSpec`]: which cells form which group, and how a value is transformed |
//! | `prepared` | [`groups::Prepared`], a spec's groups as one small number per cell, and their cache |
//! | [`groups`] | resolves a spec's groups against the cells of a data set |
//! | `lanes` | exponentials, logarithms and erfc that become vector instructions |
//! | [`transform`] | what is done to a value before it counts |
//! | [`log1p`] | `log1p(x / (total / 1e4))`, the same bits on every machine |
//! | [`kernel`] | n, sum and sum of squares per group over one sparse row |
//! | [`store`] | running moments per row of an aggregate and group of cells, their state and their result |
//! | `state` | one row of that state as bytes |
//! | `aggregate` | the common part of the aggregates |
//! | `sparse` | the common part of the aggregates over sparse rows |
//! | [`moments`] | the aggregate `moments(idx, val, block, spec)` over sparse rows |
//! | [`cell_moments`] | the aggregate `cell_moments(cell, value, groups, transform)` over the dense view |
//! | [`midranks`], [`rank_sums`] | sums of midranks per group, and the aggregate `rank_sums(idx, val, block, spec)` |
//! | [`products`] | a sparse matrix times itself and times narrow dense ones, for principal components |
//! | [`cell_sums`] | the aggregate `cell_sums(idx, val, block, gene_id, spec)`: weighted sums over genes per cell |
//! | [`clipped_moments`] | the aggregate `clipped_moments(idx, val, block, gene_id, spec)` |
//! | [`entries`] | the scalar function `entries_of(idx, val, cells)`: a sparse row's entries of some cells |
//! | [`rewrite`] | the plan rewrite from the second to the first |
//! | [`ttest`], [`students`] | t-tests from moments, and Student's distribution |
//! | `pairs` | many t-tests at once |
//! | [`rank`] | genes ranked per group, as scanpy's `rank_genes_groups` |
//! | [`udf`] | the scalar function `t_test` and [`register`] |
//! | `shorten` | texts of callers in messages |
//! | `df_error` | our errors as DataFusion's |
//!
//! Invariants: moments merge in any order to the same ranking, and results equal scanpy's within the bounds that its
//! tests name.
//!
//! ```
//! use skytether_expression::ttest::{GroupMoments, Method, t_test};
//!
//! // Five cells with the values 1, 2, 3, 4, 5, and five with 2, 4, 6, 8, 10.
//! let group = GroupMoments::of_sums(5, 5, 15.0, 55.0);
//! let reference = GroupMoments::of_sums(5, 5, 30.0, 220.0);
//! let test = t_test(Method::Student, &group, &reference, "B", "rest")?;
//! assert!((test.t + 1.897_366_596_1).abs() < 1e-9);
//! assert_eq!(group.merged(&reference).mean, 4.5);
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/internals/grouped-moments.md` and `docs/internals/formats/expression-tables.md`.

mod aggregate;
pub mod cell_moments;
pub mod cell_sums;
pub mod cells;
pub mod clipped_moments;
mod df_error;
pub mod entries;
pub mod groups;
pub mod kernel;
mod lanes;
pub mod log1p;
pub mod midranks;
pub mod moments;
mod pairs;
mod prepared;
pub mod products;
pub mod rank;
pub mod rank_sums;
pub mod rewrite;
mod shorten;
mod sparse;
pub mod spec;
mod state;
pub mod store;
pub mod students;
pub mod transform;
pub mod ttest;
pub mod udf;

pub use cells::CellSource;
pub use moments::moments_udaf;
pub use rank::{Correction, RankOptions, Reference, Test, rank_genes};
pub use rank_sums::rank_sums_udaf;
pub use spec::{Groups, MomentsSpec};
pub use transform::Transform;
pub use ttest::{GroupMoments, Method};
pub use udf::register;
