//! The layout of expression matrices: one row per gene and block of 65,536 cells, the cells'
//! numbers and values as lists.
//!
//! Written as plain Parquet in one fixed form (uncompressed, V2 data pages, one page per column, no
//! dictionary, `DELTA_BINARY_PACKED` integers), which [`SparseBatches`] reads page by page with its own
//! unpacking. The lists' offsets come from the `nnz` column, so list levels are never decoded: those are what
//! makes general readers slow here.

mod check;
mod encode;
mod footer;
mod pages;
mod read;
mod schema;

pub use encode::SparseSlicer;
pub use read::{SparseBatches, decode_sparse};
pub use schema::{Values, column, sparse_schema};
