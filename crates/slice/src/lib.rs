//! Slices: the self-contained pieces that tables are stored in, and the metadata slice that describes a partition's slices.
//!
//! - [`table`] cuts record batches into slices of whole rows; [`sparse`] does the same for the rows of expression matrices,
//!   and reads them back several times faster than a general Parquet reader can.
//! - [`decode`] reads a slice of any layout; [`metadata`] writes and reads metadata slices.
//! - [`Picked`] says which parts of a slice to read for some of its columns, and verifies them; [`decode`] takes such parts as well.
//! - [`groups`]: a stripe of rows is one slice, or of wide tables one for each group of columns.
//! - [`plain`]: slices put together as one Parquet file.
//!
//! A slice is a Parquet file, so that any other tool can read it. This crate does no I/O: it turns batches into bytes and back.
//! Bytes that come in may be anything; wrong ones give [`skytether_common::Kind::Corrupt`] or, where every length and count agrees by chance,
//! some table of the right shape. Damage is recognised by the store, which keeps a checksum of every slice,
//! or by [`Picked::verify`] where parts of slices are read.
//!
//! The bytes are described in ARCHITECTURE.md, "A slice" and "A metadata slice".

pub mod decode;
mod delta;
pub mod groups;
mod guard;
pub mod layout;
pub mod metadata;
mod pieces;
pub mod plain;
mod sections;
pub mod sparse;
pub mod stats;
pub mod table;

use bytes::Bytes;

pub use groups::Groups;
pub use layout::{BLOCK, Layout, ValueType};
pub use metadata::{Metadata, MetadataBuilder, SliceEntry, StatsTable};
pub use pieces::Pieces;
pub use sections::{Picked, Sections};
pub use sparse::{SparseBatches, SparseSlicer, Values, decode_sparse, sparse_schema};
pub use stats::{ColumnStats, SliceStats};
pub use table::TableSlicer;

pub use decode::{Batches, MAX_DECODED, TableBatches, decode, decode_rows};

/// The most rows that a slice may hold. A megabyte of constant columns could otherwise claim billions.
pub const MAX_ROWS: u64 = 1 << 20;

/// How slices are cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceOptions {
    /// The size in bytes that slices approach and do not exceed, as long as one row fits.
    pub target_bytes: usize,
    /// Rows (genes' blocks in the sparse layout) that a slice holds at most, between 1 and [`MAX_ROWS`]: fewer spread small tables over more drives.
    pub max_rows: u64,
    /// ZSTD level of the table layout; the sparse layout is not compressed.
    pub zstd_level: i32,
}

impl SliceOptions {
    /// `max_rows` within what a slice may hold.
    pub(crate) fn most_rows(&self) -> u64 {
        self.max_rows.clamp(1, MAX_ROWS)
    }
}

impl Default for SliceOptions {
    fn default() -> Self {
        Self { target_bytes: 1 << 20, max_rows: MAX_ROWS, zstd_level: 1 }
    }
}

/// A finished stripe of rows: one slice, or of wide tables one for each group of columns ([`groups`]).
#[derive(Debug, Clone)]
pub struct Encoded {
    /// The first slice, which mostly is the only one.
    pub bytes: Bytes,
    /// The slices of the other groups of columns, in order.
    pub more: Vec<Bytes>,
    /// For each column of the table where its section ends in its slice ([`Picked`]); not known of matrices, which are read whole.
    pub ends: Option<Vec<u32>>,
    /// What the partition's metadata slice keeps about the rows.
    pub stats: SliceStats,
}

impl Encoded {
    /// All slices, in the order of their columns.
    pub fn slices(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.bytes).chain(&self.more)
    }
}
