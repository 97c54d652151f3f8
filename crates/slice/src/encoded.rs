//! An encoded stripe of rows.

use bytes::Bytes;

use crate::stats::SliceStats;

/// An encoded stripe of rows: one slice, or one slice for each group of columns of a wide table ([`crate::groups`]).
#[derive(Debug, Clone)]
pub struct Encoded {
    /// The slice of the first group of columns; most tables have only this group.
    pub bytes: Bytes,
    /// The slices of the other groups, in order.
    pub more: Vec<Bytes>,
    /// For each column of the table, the end of its section in its slice ([`crate::Picked`]).
    /// `None` for matrices, whose slices are read whole.
    pub ends: Option<Vec<u32>>,
    /// The statistics of the rows for the partition's metadata slice.
    pub stats: SliceStats,
}

impl Encoded {
    /// All slices, in the order of their columns.
    pub fn slices(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.bytes).chain(&self.more)
    }
}
