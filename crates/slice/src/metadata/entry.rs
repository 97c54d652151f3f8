//! What a partition's metadata say about a slice.

use serde::{Deserialize, Serialize};

/// What is known about one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceEntry {
    /// Rows.
    pub rows: u64,
    /// Length in bytes.
    pub len: u64,
    /// CRC-32C of the bytes.
    pub crc32c: u32,
}
