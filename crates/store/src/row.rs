//! What an index says of a key, as bytes; and what a batch does to keys whose values are in place already.
//!
//! Indexes differ in where they are: a file of redb's, an omap of Ceph's. Their rows do not.

use skytether_common::Key;
use skytether_common::checksum::{crc32c, crc32c_append};

use crate::{Entry, Expect, Version};

/// An index's entry of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The key's version.
    pub version: Version,
    /// Which file or object has the value.
    pub number: u64,
    /// The value's length in bytes.
    pub len: u32,
    /// Its CRC-32C.
    pub crc32c: u32,
}

impl Row {
    /// The length of an encoded row.
    pub const BYTES: usize = 28;

    /// Version, number, length, CRC-32C of the value, CRC-32C of the key and all before; little endian.
    #[must_use]
    pub fn encode(&self, key: &str) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.version.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.crc32c.to_le_bytes());
        let check = crc32c_append(crc32c(key.as_bytes()), &bytes[..24]);
        bytes[24..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The row of `key` in `bytes`; `None` where they are damaged, or of another key.
    #[must_use]
    pub fn decode(key: &str, bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let row = Self { version: u64_at(bytes, 0), number: u64_at(bytes, 8), len: u32_at(bytes, 16), crc32c: u32_at(bytes, 20) };
        (row.encode(key) == *bytes).then_some(row)
    }

    /// The row's share of the sum of an index's checksums.
    #[must_use]
    pub fn share(&self, key: &str) -> u64 {
        u64::from(u32_at(&self.encode(key), 24))
    }

    /// The entry of `key`, as listings tell it.
    #[must_use]
    pub fn entry(&self, key: Key) -> Entry {
        Entry { key, version: self.version, len: u64::from(self.len), crc32c: self.crc32c }
    }
}

/// One change of a batch whose values are in their files or objects already.
#[derive(Debug)]
pub struct Change<'a> {
    /// The key.
    pub key: &'a Key,
    /// The change's condition.
    pub expect: Expect,
    /// What becomes of the key.
    pub to: To,
}

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// It gets this; the version in it is not used.
    Be(Row),
    /// It is removed.
    Go,
    /// Nothing.
    Stay,
}

/// The number that begins at byte `at`, which is at most `bytes.len() - 8`; little endian.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// The number that begins at byte `at`, which is at most `bytes.len() - 4`; little endian.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}
