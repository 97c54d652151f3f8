//! A store in memory: for ephemeral fleets and for tests of its callers.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use bytes::Bytes;
use parking_lot::{RwLock, RwLockReadGuard};
use skytether_common::checksum::crc32c;
use skytether_common::{Detail, Error, Key, Result};

use crate::{Entry, Op, SliceStore, Usage, Version, batch, ranges};

/// Values in an ordered map under one lock. Nothing survives the process.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: RwLock<MemoryState>,
    capacity: Option<u64>,
}

#[derive(Debug, Default)]
struct MemoryState {
    values: BTreeMap<String, (Entry, Bytes)>,
    last_version: Version,
    value_bytes: u64,
}

impl MemoryStore {
    /// An empty store without a limit.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store whose values may take `capacity` bytes together; what goes beyond is `Exhausted`.
    #[must_use]
    pub fn with_capacity(capacity: u64) -> Self {
        Self { capacity: Some(capacity), ..Self::default() }
    }

    // A panic can't leave the state half changed: `apply` checks everything first, and what follows can't fail.
    fn read(&self) -> RwLockReadGuard<'_, MemoryState> {
        self.state.read()
    }
}

impl SliceStore for MemoryStore {
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        batch::validate(&batch)?;
        let mut state = self.state.write();
        let mut value_bytes = state.value_bytes;
        for op in &batch {
            let found = state.values.get(op.key().as_str()).map(|(entry, _)| entry);
            batch::check_expectation(op.key(), op.expect(), found.map(|entry| entry.version))?;
            value_bytes -= if matches!(op, Op::Check { .. }) { 0 } else { found.map_or(0, |entry| entry.len) };
            match op {
                Op::Put { value, .. } => value_bytes += value.len() as u64,
                Op::Link { from, len, crc32c, .. } => {
                    batch::check_link(from, (*len, *crc32c), state.values.get(from.as_str()).map(|(entry, _)| (entry.len, entry.crc32c)))?;
                    value_bytes += len;
                }
                Op::Delete { .. } | Op::Check { .. } => {}
            }
        }
        if value_bytes > state.value_bytes {
            batch::check_capacity("the memory store", self.capacity, value_bytes)?;
        }
        state.value_bytes = value_bytes;
        let mut versions = Vec::with_capacity(batch.len());
        for op in batch {
            match op {
                Op::Put { key, value, .. } => {
                    state.last_version += 1;
                    let entry = Entry { version: state.last_version, len: value.len() as u64, crc32c: crc32c(&value), key };
                    versions.push(entry.version);
                    // A copy: the caller's value may be a view into something much larger, which it would keep alive.
                    state.values.insert(entry.key.as_str().to_owned(), (entry, Bytes::copy_from_slice(&value)));
                }
                Op::Link { key, from, len, crc32c, .. } => {
                    state.last_version += 1;
                    let entry = Entry { version: state.last_version, len, crc32c, key };
                    versions.push(entry.version);
                    let value = state.values.get(from.as_str()).map(|(_, value)| value.clone()).unwrap_or_default();
                    state.values.insert(entry.key.as_str().to_owned(), (entry, value));
                }
                Op::Delete { key, .. } => {
                    state.values.remove(key.as_str());
                    versions.push(0);
                }
                Op::Check { .. } => versions.push(0),
            }
        }
        Ok(versions)
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        let value = self.read().values.get(key.as_str()).map(|(_, value)| value.clone());
        value.ok_or_else(|| Error::not_found(format!("there is no key {key}")).with_detail(Detail::missing_key(key)))
    }

    fn get_ranges_unverified(&self, key: &Key, wanted: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let value = self.get(key)?;
        ranges::check(key, value.len() as u64, wanted)?;
        Ok(ranges::cut(&value, wanted))
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        self.get_ranges_unverified(key, std::slice::from_ref(&range)).ok()?.pop()
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.read().values.get(key.as_str()).map(|(entry, _)| entry.clone()))
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        let state = self.read();
        let from = state.values.range::<str, _>((batch::list_start(prefix, after), Bound::Unbounded));
        Ok(from.take_while(|(key, _)| key.starts_with(prefix)).take(limit).map(|(_, (entry, _))| entry.clone()).collect())
    }

    fn usage(&self) -> Result<Usage> {
        let state = self.read();
        Ok(Usage { keys: state.values.len() as u64, value_bytes: state.value_bytes, stored_bytes: state.value_bytes })
    }
}
