//! The entry of a slice in its partition's metadata.

use serde::{Deserialize, Serialize};

/// Size and checksum of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceEntry {
    /// Rows.
    pub rows: u64,
    /// Length in bytes.
    pub len: u64,
    /// CRC-32C of the bytes.
    pub crc32c: u32,
}
