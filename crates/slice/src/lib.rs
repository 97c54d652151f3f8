//! Slices: the self-contained files that tables are stored in, and the metadata slice that describes a partition's
//! slices.
//!
//! - [`table`] cuts record batches into slices of whole rows; [`sparse`] does the same for the rows of expression
//!   matrices, and reads them back several times faster than a general Parquet reader can.
//! - [`decode`](mod@decode) reads a slice of any layout; [`metadata`] writes and reads metadata slices.
//! - [`Picked`] names and verifies the parts of a slice that some columns need; [`decode()`] takes such parts as well.
//! - [`groups`]: a stripe of rows is one slice, or in wide tables one per group of columns.
//! - [`plain`]: slices assembled into one Parquet file.
//!
//! Invariants: a slice is a Parquet file, so any other tool can read it. This crate does no I/O: it turns batches into
//! bytes and back. Input bytes may be anything (I15): wrong ones give [`skytether_common::Kind::Corrupt`] or, where
//! every length and count agrees by chance, some table of the right shape. The store finds damage by its checksum of
//! every slice, and [`Picked::verify`] finds it where parts of slices are read.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! use skytether_slice::{Layout, SliceOptions, TableSlicer, decode};
//!
//! let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
//! let rows = RecordBatch::try_from_iter([("id", ids)])?;
//! let mut slicer = TableSlicer::new(rows.schema(), SliceOptions::default());
//! let mut stripes = slicer.push(&rows)?;
//! stripes.extend(slicer.finish()?);
//! assert_eq!((stripes.len(), stripes[0].stats.rows), (1, 100));
//!
//! let back = decode(stripes[0].bytes.clone(), &Layout::Table, &rows.schema(), &[0], 1000)?;
//! assert_eq!(back.collect::<Result<Vec<_>, _>>()?, [rows]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! See also `docs/internals/formats/slice.md` and `docs/internals/formats/metadata-slice.md`.

mod batches;
pub mod decode;
mod delta;
mod encoded;
pub mod groups;
mod guard;
pub mod layout;
pub mod metadata;
mod options;
mod pieces;
pub mod plain;
mod sections;
pub mod sparse;
pub mod stats;
pub mod table;

pub use batches::{MAX_DECODED, TableBatches};
pub use decode::{Batches, decode, decode_range, decode_rows};
pub use encoded::Encoded;
pub use groups::Groups;
pub use layout::{BLOCK, Layout, ValueType};
pub use metadata::Metadata;
pub use metadata::builder::MetadataBuilder;
pub use metadata::entry::SliceEntry;
pub use metadata::stats_table::StatsTable;
pub use options::{MAX_ROWS, SliceOptions};
pub use pieces::Pieces;
pub use sections::{Picked, Sections};
pub use sparse::{SparseBatches, SparseSlicer, Values, decode_sparse, sparse_schema};
pub use stats::{ColumnStats, SliceStats};
pub use table::TableSlicer;
