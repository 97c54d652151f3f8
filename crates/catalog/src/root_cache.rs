//! A cache of root records, which are used while they equal what lies on their home drive.
//!
//! Each query needs the root records of its data sets. The home drive confirms a cached record without reading it, by
//! the record's version there, its length and its checksum.

use std::sync::Arc;

use quick_cache::sync::Cache;
use skytether_common::DatasetName;
use skytether_store::Version;

use crate::records::root::RootRecord;

/// Records that are kept at most.
const MOST: usize = 256;

/// Bytes of a record that is kept at most, as it is stored.
const MOST_BYTES: u64 = 256 << 10;

/// What a drive says of a value: its version, length and checksum.
pub(crate) type Stamp = (Version, u64, u32);

/// Records by their data sets, each with the drive it was read from, and what that said of it.
#[derive(Debug)]
pub(crate) struct RootCache(Cache<DatasetName, (usize, Stamp, Arc<RootRecord>)>);

impl Default for RootCache {
    fn default() -> Self {
        Self(Cache::new(MOST))
    }
}

impl RootCache {
    /// Whether the record that drive `at` had of a data set is remembered.
    pub(crate) fn has(&self, at: usize, name: &DatasetName) -> bool {
        self.0.peek(name).is_some_and(|(from, ..)| from == at)
    }

    /// The record that drive `at` has, which it says `stamp` of.
    pub(crate) fn get(&self, at: usize, name: &DatasetName, stamp: &Stamp) -> Option<Arc<RootRecord>> {
        self.0.get(name).filter(|(from, is, _)| *from == at && is == stamp).map(|(.., record)| record)
    }

    /// Remembers what drive `at` has, which it says `stamp` of.
    pub(crate) fn put(&self, at: usize, stamp: Stamp, record: &Arc<RootRecord>) {
        if stamp.1 <= MOST_BYTES {
            self.0.insert(record.name.clone(), (at, stamp, Arc::clone(record)));
        }
    }

    /// Drops the cached record: the next query reads it from the drive.
    pub(crate) fn forget(&self, name: &DatasetName) {
        self.0.remove(name);
    }
}
