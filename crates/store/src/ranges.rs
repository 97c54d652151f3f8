//! Ranges of values, and their checks.

use std::ops::Range;

use bytes::Bytes;
use skytether_common::{Error, Key, Result};

/// Refuses ranges that are not within a value of `len` bytes.
///
/// # Errors
/// `Invalid`, with the key and the range.
pub fn check(key: &Key, len: u64, ranges: &[Range<u64>]) -> Result<()> {
    match ranges.iter().find(|range| range.start > range.end || range.end > len) {
        Some(range) => Err(Error::invalid(format!("bytes {} to {} of key {key} were asked for, which has {len}", range.start, range.end))),
        None => Ok(()),
    }
}

/// The bytes of `value` at `ranges`, which must be within it: see [`check`].
#[must_use]
pub fn cut(value: &Bytes, ranges: &[Range<u64>]) -> Vec<Bytes> {
    ranges.iter().map(|range| value.slice(range.start as usize..range.end as usize)).collect()
}
