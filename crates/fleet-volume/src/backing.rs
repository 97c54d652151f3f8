//! [`FleetBacking`]: volumes over the drives of a fleet.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use skytether_catalog::root_store::Catalog;
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Result};
use skytether_device::verify::{Verified, Verify};
use skytether_erasure::Scheme;
use skytether_store::{Entry, Op, Version};
use skytether_volume::Backing;
use uuid::Uuid;

use crate::keys;
use crate::layout::{ExtentRecord, Shape};

/// Bytes of extent records in memory: those of some 100,000 extents.
const CACHED: u64 = 32 << 20;

#[derive(Debug, Clone)]
pub(crate) struct ByShards;

impl Weighter<Key, Arc<ExtentRecord>> for ByShards {
    fn weight(&self, key: &Key, record: &Arc<ExtentRecord>) -> u64 {
        (key.as_str().len() + 128 + 24 * record.shards.len()) as u64
    }
}

/// The drives of a fleet as what volumes need of a store. Several may be over one fleet: one that serves volumes, and
/// others that scrub them.
pub struct FleetBacking {
    pub(crate) catalog: Catalog,
    pub(crate) scheme: Scheme,
    /// Extent records by their keys. One may be older than that on the drives, where a scrub has written an extent
    /// again: then its shards are missing, and it is read once more.
    records: Cache<Key, Arc<ExtentRecord>, ByShards>,
    /// How often a change took a record from the cache or put one there. The lock is held while that is done, and while
    /// a reader puts one there.
    epoch: Mutex<u64>,
    /// Drives whose shards were decoded from others, since they were last read.
    pub(crate) decoded_for: Mutex<BTreeMap<Uuid, u64>>,
    pub(crate) degraded: AtomicU64,
}

impl fmt::Debug for FleetBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetBacking").field("scheme", &self.scheme).field("drives", &self.catalog.drives().len()).finish_non_exhaustive()
    }
}

impl FleetBacking {
    /// Over the drives of `catalog`, which are joined to a fleet. Volumes have the fleet's redundancy.
    ///
    /// # Errors
    /// `Unsupported` where that is on two levels.
    pub fn new(catalog: Catalog) -> Result<Self> {
        let scheme = catalog.health().scheme();
        Shape::of(scheme, 1, catalog.drives().len())?;
        let records = Cache::with_weighter(1 << 17, CACHED, ByShards);
        Ok(Self { catalog, scheme, records, epoch: Mutex::default(), decoded_for: Mutex::default(), degraded: AtomicU64::new(0) })
    }

    /// Makes the copies of all records equal, which a crash between two home drives leaves different. To be called
    /// before volumes are opened.
    ///
    /// # Errors
    /// Those of the drives.
    pub async fn settle(&self) -> Result<()> {
        self.catalog.await_presence().await?;
        self.catalog.reconcile_records(&[]).await
    }

    /// The redundancy of what is written.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Extents that were decoded so far, because a drive was down or a shard was damaged.
    #[must_use]
    pub fn degraded_reads(&self) -> u64 {
        self.degraded.load(Ordering::Relaxed)
    }

    /// The place of the drive with this id.
    pub(crate) fn place(&self, id: &Uuid) -> Option<usize> {
        self.catalog.drives().iter().position(|drive| drive.info().id == *id)
    }

    pub(crate) fn drive_name(&self, at: usize) -> &str {
        self.catalog.drives().get(at).map_or("?", |drive| drive.info().name.as_str())
    }

    /// The extent record under the key of a record, if it is in memory.
    pub(crate) fn known_record(&self, key: &Key) -> Option<Arc<ExtentRecord>> {
        self.records.get(key)
    }

    /// A record is about to change, or has changed: neither what is in memory counts, nor what a reader just gets.
    pub(crate) fn forget(&self, key: &Key) {
        let mut epoch = self.epoch.lock();
        *epoch += 1;
        self.records.remove(key);
    }

    /// A record was committed. A reader that asked the drives before does not put an older one in its place.
    pub(crate) fn keep(&self, key: &Key, record: Arc<ExtentRecord>) {
        let mut epoch = self.epoch.lock();
        *epoch += 1;
        self.records.insert(key.clone(), record);
    }

    /// The extent record under the key of a record, as it is on the drives, with the number of its change.
    pub(crate) async fn stored_record(&self, key: &Key) -> Result<Option<(Arc<ExtentRecord>, Version)>> {
        let before = *self.epoch.lock();
        let Some(found) = self.catalog.read_record(key).await? else {
            self.records.remove(key);
            return Ok(None);
        };
        let record = Arc::new(ExtentRecord::decode(key.as_str(), &found.body)?);
        let epoch = self.epoch.lock();
        // Otherwise a merge may have committed a newer one meanwhile.
        if *epoch == before {
            self.records.insert(key.clone(), Arc::clone(&record));
        }
        drop(epoch);
        Ok(Some((record, found.change)))
    }
}

impl Backing for FleetBacking {
    fn name(&self) -> String {
        format!("the fleet of {} drives ({})", self.catalog.health().members().len(), self.scheme)
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(self.write(batch))
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let record = keys::record_key(key)?;
            if keys::is_extent(key) {
                return self.read(&record).await;
            }
            let found = self.catalog.read_record(&record).await?;
            found.map(|found| found.body).ok_or_else(|| Error::not_found(format!("there is no key {key}")))
        })
    }

    fn get_range_unverified<'a>(&'a self, key: &'a Key, range: Range<u64>) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.read_range(&keys::record_key(key)?, range).await })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            let found = self.catalog.read_record(&keys::record_key(key)?).await?;
            Ok(found.map(|found| Entry { key: key.clone(), version: found.change, len: found.body.len() as u64, crc32c: crc32c(&found.body) }))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move {
            let (prefix, after) = (keys::record(prefix)?, after.map(keys::record_key).transpose()?);
            let page = self.catalog.list_records(&prefix, after.as_ref(), limit).await?;
            page.into_iter().map(|entry| Ok(Entry { key: keys::volume_key(&entry.key)?, ..entry })).collect()
        })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(self.verify_all(asked))
    }

    fn repair<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move { self.write_again(&keys::record_key(key)?).await })
    }

    /// Where a drive has none, an extent is copied.
    fn links(&self) -> bool {
        true
    }
}
