//! Reads extents from the store, through a bounded cache.
//!
//! A read that misses takes the whole extent, which the store verifies, and keeps it. It also notes the CRC-32C of each
//! block. Where the extent was evicted since, small reads take their blocks alone and verify them by these.
//!
//! A load is a task of its own, which ends also where its readers go away. The bytes of all loads under way are bounded
//! by those of the cache.
//!
//! Invariant: what the cache holds is what the store holds. A merge changes the store first, then the cache, then the
//! index; a load that began before the change keeps nothing, because the generation has moved on.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Kind, Result};
use tokio::sync::Semaphore;

use crate::backing::Backing;
use crate::device::PHYSICAL;
use crate::names::extent_key;

const BLOCK: usize = PHYSICAL as usize;

/// Extents that merges deleted which are remembered.
const DELETED: usize = 1024;

/// The number of a device, and that of an extent.
type CacheKey = (u32, u64);

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<CacheKey, Bytes> for ByBytes {
    fn weight(&self, _: &CacheKey, value: &Bytes) -> u64 {
        value.len() as u64 + 64
    }
}

impl Weighter<CacheKey, Arc<[u32]>> for ByBytes {
    fn weight(&self, _: &CacheKey, value: &Arc<[u32]>) -> u64 {
        4 * value.len() as u64 + 96
    }
}

/// Extents in memory, for all devices of a drive together.
pub struct ExtentCache {
    whole: Cache<CacheKey, Bytes, ByBytes>,
    blocks: Cache<CacheKey, Arc<[u32]>, ByBytes>,
    next_owner: AtomicU32,
    /// Blocks that may be loaded at a time, and how many there are at most.
    loading: Semaphore,
    most_loading: u32,
}

impl fmt::Debug for ExtentCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtentCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl ExtentCache {
    /// A cache of at most `bytes`, a sixteenth of them for checksums of blocks.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        fn cache<V: Clone>(bytes: u64, item: u64) -> Cache<CacheKey, V, ByBytes>
        where
            ByBytes: Weighter<CacheKey, V>,
        {
            let items = (bytes / item).clamp(1, 1 << 24) as usize;
            // One item must fit into a shard.
            let shards = if bytes / item >= 64 { 4 } else { 1 };
            let options = OptionsBuilder::new().estimated_items_capacity(items).weight_capacity(bytes).shards(shards).build();
            match options {
                Ok(options) => Cache::with_options(options, ByBytes, DefaultHashBuilder::default(), quick_cache::sync::DefaultLifecycle::default()),
                // All options are given.
                Err(_) => Cache::with_weighter(items, bytes, ByBytes),
            }
        }
        // At least one extent of the largest size.
        let most_loading = (bytes / BLOCK as u64).clamp(256, 1 << 24) as u32;
        Self {
            whole: cache(bytes - bytes / 16, 1 << 20),
            blocks: cache(bytes / 16, 1 << 10),
            next_owner: AtomicU32::new(0),
            loading: Semaphore::new(most_loading as usize),
            most_loading,
        }
    }

    /// Bytes that it holds now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.whole.weight() + self.blocks.weight()
    }
}

type Load = Shared<BoxFuture<'static, Result<Bytes, Arc<Error>>>>;

/// Reads the extents below one prefix.
pub(crate) struct Extents {
    /// For errors: `volume a`.
    pub(crate) what: String,
    pub(crate) prefix: String,
    pub(crate) extent: u64,
    pub(crate) backing: Arc<dyn Backing>,
    owner: u32,
    cache: Arc<ExtentCache>,
    /// By the extents' numbers; several share one.
    generations: [AtomicU64; 64],
    loads: Mutex<HashMap<u64, (u64, Load)>>,
    /// Where the last small read ended.
    last_end: AtomicU64,
    /// Extents of zeros that are being removed, or whose removal has an unknown outcome: where they are missing, they
    /// are zeros.
    pub(crate) unsure: Mutex<BTreeSet<u64>>,
    /// Extents whose last change was that a merge deleted them: a reader that found one in the index before may miss it
    /// in the store. The newest [`DELETED`] are kept.
    deleted: Mutex<VecDeque<u64>>,
}

impl fmt::Debug for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extents").field("what", &self.what).field("backing", &self.backing).finish_non_exhaustive()
    }
}

impl Extents {
    pub(crate) fn new(what: String, prefix: String, extent: u64, backing: Arc<dyn Backing>, cache: Arc<ExtentCache>) -> Self {
        let owner = cache.next_owner.fetch_add(1, Ordering::Relaxed);
        let generations = std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            what,
            prefix,
            extent,
            backing,
            owner,
            cache,
            generations,
            loads: Mutex::default(),
            last_end: AtomicU64::new(0),
            unsure: Mutex::default(),
            deleted: Mutex::default(),
        }
    }

    fn generation(&self, extent: u64) -> &AtomicU64 {
        &self.generations[(extent % self.generations.len() as u64) as usize]
    }

    /// The bytes of an extent in `range`, whose ends are whole blocks. It must be in the store.
    ///
    /// # Errors
    /// `Corrupt` where it is damaged or missing; `Unavailable`.
    pub(crate) async fn read(self: &Arc<Self>, extent: u64, range: Range<usize>) -> Result<Bytes> {
        if let Some(whole) = self.cache.whole.get(&(self.owner, extent)) {
            return Ok(whole.slice(range));
        }
        if range.len() * 4 <= self.extent as usize
            && let Some(bytes) = self.read_blocks(extent, range.clone()).await?
        {
            return Ok(bytes);
        }
        Ok(self.whole(extent).await?.slice(range))
    }

    /// Some blocks alone, verified by checksums that are known from earlier. `None` where the whole is to be read.
    async fn read_blocks(&self, extent: u64, range: Range<usize>) -> Result<Option<Bytes>> {
        let place = extent * self.extent + range.start as u64;
        let before = self.last_end.swap(place + range.len() as u64, Ordering::Relaxed);
        let Some(known) = self.cache.blocks.get(&(self.owner, extent)).filter(|_| before != place) else { return Ok(None) };
        let key = extent_key(&self.prefix, extent)?;
        let part = range.start as u64..range.end as u64;
        // A change of threads, and back, takes longer than the read itself.
        let read = match self.backing.get_range_in_memory(&key, part.clone()) {
            Some(bytes) => Ok(bytes),
            None => self.backing.get_range_unverified(&key, part).await,
        };
        match read {
            // Other bytes: damage, or a merge came between. Reading the whole tells.
            Ok(bytes) => Ok(Some(bytes).filter(|bytes| bytes.chunks(BLOCK).map(crc32c).eq(known[range.start / BLOCK..range.end / BLOCK].iter().copied()))),
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound | Kind::Invalid) => Ok(None),
            Err(error) => Err(self.failed(extent, &error)),
        }
    }

    /// A whole extent, verified. Reads of the same one at the same time share the work.
    pub(crate) async fn whole(self: &Arc<Self>, extent: u64) -> Result<Bytes> {
        if let Some(whole) = self.cache.whole.get(&(self.owner, extent)) {
            return Ok(whole);
        }
        let load = {
            let mut loads = self.loads.lock();
            let generation = self.generation(extent).load(Ordering::Acquire);
            match loads.get(&extent) {
                // One of an earlier generation may bring what a merge has replaced since.
                Some((of, load)) if *of == generation => load.clone(),
                _ => {
                    let task = tokio::spawn(Arc::clone(self).load(extent, generation));
                    let ended = |e| Err(Arc::new(Error::internal("a load ended early").with_source(e)));
                    let load = task.map(move |done| done.unwrap_or_else(ended)).boxed().shared();
                    loads.insert(extent, (generation, load.clone()));
                    load
                }
            }
        };
        load.await.map_err(|error| self.failed(extent, &error))
    }

    async fn load(self: Arc<Self>, extent: u64, generation: u64) -> Result<Bytes, Arc<Error>> {
        let blocks = ((self.extent / BLOCK as u64) as u32).min(self.cache.most_loading);
        let room = self.cache.loading.acquire_many(blocks).await;
        let loaded = self.get(extent).await;
        drop(room);
        if let Ok(bytes) = &loaded {
            self.keep(extent, bytes, Some(generation));
        }
        let mut loads = self.loads.lock();
        if loads.get(&extent).is_some_and(|(of, _)| *of == generation) {
            loads.remove(&extent);
        }
        loaded.map_err(Arc::new)
    }

    async fn get(&self, extent: u64) -> Result<Bytes> {
        let key = extent_key(&self.prefix, extent)?;
        let mut read = self.backing.get(&key).await;
        if matches!(&read, Err(error) if error.kind() == Kind::NotFound) {
            // A merge deletes it, or has deleted it since the index was asked. A merge notes the second before it ends
            // the first.
            let deleted = self.unsure.lock().contains(&extent) || self.deleted.lock().contains(&extent);
            if deleted {
                // Another merge may have written it again.
                read = match self.backing.get(&key).await {
                    Err(error) if error.kind() == Kind::NotFound => Ok(Bytes::from(vec![0; self.extent as usize])),
                    again => again,
                };
            }
        }
        let bytes = read?;
        if bytes.len() as u64 != self.extent {
            return Err(Error::corrupt(format!("its value has {} bytes instead of {}", bytes.len(), self.extent)));
        }
        Ok(bytes)
    }

    /// Keeps what was loaded, unless the extent has changed since that `generation`.
    fn keep(&self, extent: u64, bytes: &Bytes, generation: Option<u64>) {
        let known: Arc<[u32]> = bytes.chunks(BLOCK).map(crc32c).collect();
        let key = (self.owner, extent);
        let _order = self.loads.lock();
        if generation.is_none_or(|generation| self.generation(extent).load(Ordering::Acquire) == generation) {
            self.cache.whole.insert(key, bytes.clone());
            self.cache.blocks.insert(key, known);
        }
    }

    /// How many loads are under way.
    pub(crate) fn loads(&self) -> usize {
        self.loads.lock().len()
    }

    /// The store has other content for an extent now: `bytes`, or none.
    pub(crate) fn changed(&self, extent: u64, bytes: Option<&Bytes>) {
        {
            let _order = self.loads.lock();
            self.generation(extent).fetch_add(1, Ordering::AcqRel);
            self.cache.whole.remove(&(self.owner, extent));
            self.cache.blocks.remove(&(self.owner, extent));
            let mut deleted = self.deleted.lock();
            deleted.retain(|other| *other != extent);
            if bytes.is_none() {
                deleted.push_back(extent);
            }
            if deleted.len() > DELETED {
                deleted.pop_front();
            }
        }
        if let Some(bytes) = bytes {
            let generation = self.generation(extent).load(Ordering::Acquire);
            self.keep(extent, bytes, Some(generation));
        }
    }

    /// `error` with the volume, the extent and its place in front. A missing extent is damage.
    fn failed(&self, extent: u64, error: &Error) -> Error {
        let kind = if error.kind() == Kind::NotFound { Kind::Corrupt } else { error.kind() };
        let (from, to) = (extent * self.extent, (extent + 1) * self.extent);
        let text = format!("{}: extent {extent} (bytes {from} to {to}) can't be read on {}", self.what, self.backing.name());
        Error::new(kind, text).with_source(error.flattened())
    }
}
