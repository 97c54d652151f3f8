//! How slices are cut.

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
