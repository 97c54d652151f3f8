//! Limits of a slice, and the options by which writers cut slices.

/// The most rows that a slice may hold. Without this limit a megabyte of constant columns could claim billions of rows.
pub const MAX_ROWS: u64 = 1 << 20;

/// Options of the writers of slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceOptions {
    /// Target size in bytes: a slice stays below it, unless its only row is larger.
    pub target_bytes: usize,
    /// The most rows of a slice (genes' blocks in the sparse layout), between 1 and [`MAX_ROWS`].
    /// A smaller limit spreads small tables over more drives.
    pub max_rows: u64,
    /// ZSTD level of the table layout; the sparse layout is not compressed.
    pub zstd_level: i32,
}

impl SliceOptions {
    /// `max_rows`, clamped to what a slice may hold.
    pub(crate) fn most_rows(&self) -> u64 {
        self.max_rows.clamp(1, MAX_ROWS)
    }
}

impl Default for SliceOptions {
    fn default() -> Self {
        Self { target_bytes: 1 << 20, max_rows: MAX_ROWS, zstd_level: 1 }
    }
}
