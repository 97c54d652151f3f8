//! Shards of a code group: which one a read needs, and what was read or decoded.

use std::ops::Range;

use bytes::Bytes;
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_erasure::map::{Place, Role};

use skytether_catalog::records::code_map::Level;

/// A value, and the bytes that were read to make it if it had to be made.
#[derive(Debug, Clone)]
pub(crate) struct Reconstructed {
    pub(crate) value: Bytes,
    pub(crate) read: u64,
    /// Whether only drives of its own node were read for it, on two levels.
    pub(crate) within: bool,
}

/// Parts of a value, as [`Reconstructed`].
#[derive(Debug)]
pub(crate) struct ReconstructedRanges {
    pub(crate) parts: Vec<Bytes>,
    pub(crate) read: u64,
    pub(crate) within: bool,
}

/// How to reconstruct a shard that its drive can't give. Each level asks only for levels before it, so the recursion
/// ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParitySource {
    /// Not at all.
    None,
    /// From other shards of its node.
    LocalGroup,
    /// From shards of other nodes, which their own nodes may reconstruct.
    GlobalGroup,
}

/// A shard to read or reconstruct.
pub(crate) struct Wanted<'a> {
    pub(crate) level: &'a Level,
    /// A partition of the table.
    pub(crate) table: &'a PartitionName,
    pub(crate) place: Place,
    /// These parts of it, or the whole, verified.
    pub(crate) ranges: Option<&'a [Range<u64>]>,
    /// How others of its group are made that can't be read.
    pub(crate) or: ParitySource,
}

/// The role of the shard at `place` of a group with `data` data shards.
pub fn role(place: usize, data: usize) -> Role {
    if place < data { Role::Data } else { Role::Parity }
}

/// As much of `range` as a shard of `len` bytes has.
pub(crate) fn within_shard(range: &Range<u64>, len: u64) -> Range<u64> {
    range.start.min(len)..range.end.min(len)
}

/// Parts of the value of `key`.
///
/// # Errors
/// Invalid for ranges that are not within it.
pub(crate) fn parts(key: &Key, value: &Bytes, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let part = |range: &Range<u64>| {
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        (start <= end && end <= value.len()).then(|| value.slice(start..end))
    };
    let wrong = || Error::invalid(format!("a range of {key} is not within its {} bytes", value.len()));
    ranges.iter().map(|range| part(range).ok_or_else(wrong)).collect()
}
