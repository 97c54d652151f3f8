//! The layout of expression matrices: one row per gene and block of 65,536 cells, with the cells' numbers and values as
//! lists.
//!
//! Slices are plain Parquet in one fixed form: uncompressed, V2 data pages, one page per column, no dictionary,
//! `DELTA_BINARY_PACKED` integers. [`SparseBatches`] reads them page by page with its own decoder. The lists' offsets
//! come from the `nnz` column, so list levels are never decoded: they make general readers slow here.

mod check;
mod encode;
mod footer;
mod pages;
mod read;
mod schema;

pub use encode::SparseSlicer;
pub use read::{SparseBatches, decode_sparse};
pub use schema::{Values, column, sparse_schema};
