//! What every store checks about a batch before it changes anything.

use std::collections::HashSet;

use skytether_common::{Detail, Error, Key, Result, units::human_bytes};

use crate::{Expect, MAX_VALUE, Op, Version};

/// Refuses a key named twice and values above [`MAX_VALUE`].
///
/// # Errors
/// `Invalid`, naming the key.
pub fn validate(batch: &[Op]) -> Result<()> {
    let mut seen = HashSet::with_capacity(batch.len());
    for op in batch {
        if !seen.insert(op.key().as_str()) {
            return Err(Error::invalid(format!("key {} is named twice in one batch: merge its changes into one", op.key())));
        }
        if let Op::Put { key, value, .. } = op
            && value.len() > MAX_VALUE
        {
            let (len, max) = (human_bytes(value.len() as u64), human_bytes(MAX_VALUE as u64));
            return Err(Error::invalid(format!("the value of key {key} has {len}, more than a store takes ({max}): split it")));
        }
    }
    for op in batch {
        if let Op::Link { from, .. } = op
            && seen.contains(from.as_str())
        {
            return Err(Error::invalid(format!("a batch links from key {from}, which it changes: send two batches")));
        }
    }
    Ok(())
}

/// Checks that what lies under `from`, of this length and CRC-32C, is what a link wants.
pub(crate) fn check_link(from: &Key, wanted: (u64, u32), found: Option<(u64, u32)>) -> Result<()> {
    match found {
        None => Err(Error::not_found(format!("there is no key {from}, from which another was to be linked: nothing was changed"))
            .with_detail(Detail::missing_key(from))),
        Some(found) if found != wanted => Err(Error::conflict(format!(
            "key {from} has a value of {} bytes (CRC-32C {:08x}), not the one of {} bytes ({:08x}) that was to be linked: nothing was changed",
            found.0, found.1, wanted.0, wanted.1
        ))),
        Some(_) => Ok(()),
    }
}

/// `Conflict` where `found`, the key's present version, is not what the writer expects.
///
/// # Errors
/// `Conflict`, naming the key and both versions.
pub fn check_expectation(key: &Key, expect: Expect, found: Option<Version>) -> Result<()> {
    let wrong = match (expect, found) {
        (Expect::Any, _) | (Expect::Absent, None) => return Ok(()),
        (Expect::Version(wanted), Some(found)) if wanted == found => return Ok(()),
        (Expect::Absent, Some(found)) => format!("key {key} was expected to be absent but has version {found}"),
        (Expect::Version(wanted), Some(found)) => format!("key {key} was expected at version {wanted} but has version {found}"),
        (Expect::Version(wanted), None) => format!("key {key} was expected at version {wanted} but is absent"),
    };
    Err(Error::conflict(wrong + ": nothing was changed; read it again and decide"))
}

/// `Exhausted` where a store of `capacity` bytes would hold `wanted` bytes of values.
pub(crate) fn check_capacity(store: &str, capacity: Option<u64>, wanted: u64) -> Result<()> {
    match capacity {
        Some(capacity) if wanted > capacity => Err(Error::exhausted(format!(
            "{store} is full: the batch would make it {} of values, and its capacity is {}; delete something or raise the capacity",
            human_bytes(wanted),
            human_bytes(capacity)
        ))),
        _ => Ok(()),
    }
}

/// Where the listing of `prefix` after `after` begins.
pub(crate) fn list_start<'a>(prefix: &'a str, after: Option<&'a Key>) -> std::ops::Bound<&'a str> {
    match after {
        Some(after) if after.as_str() >= prefix => std::ops::Bound::Excluded(after.as_str()),
        _ => std::ops::Bound::Included(prefix),
    }
}
