//! A stripe of rows as it is written.

use bytes::Bytes;

use crate::stats::SliceStats;

/// A finished stripe of rows: one slice, or of wide tables one for each group of columns ([`crate::groups`]).
#[derive(Debug, Clone)]
pub struct Encoded {
    /// The first slice, which mostly is the only one.
    pub bytes: Bytes,
    /// The slices of the other groups of columns, in order.
    pub more: Vec<Bytes>,
    /// For each column of the table where its section ends in its slice ([`crate::Picked`]); not known of matrices, which are read whole.
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
