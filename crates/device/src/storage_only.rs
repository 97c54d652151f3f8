//! The smallest CSE: a store that runs no programs.
//!
//! It shows what a door to other storage needs to offer. Examples and tests of the crates above build on it, because it
//! needs no query engine.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::{Error, Key, Result};
use skytether_store::memory::MemoryStore;
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use uuid::Uuid;

use crate::capabilities::Capabilities;
use crate::cse::{Cse, CseInfo, Storage};
use crate::delivery::DeliveryStream;
use crate::subplan::SubPlan;

/// The version that [`CseInfo::format`] gives.
const FORMAT: u32 = 1;

/// Bytes that an engine in its place may use for a sub-plan.
const MEMORY: u64 = 256 << 20;

/// A CSE that only stores. Its calls use the store on the caller's thread, so it suits stores that do not block.
#[derive(Debug, Clone)]
pub struct StorageOnly {
    info: CseInfo,
    store: Arc<dyn SliceStore>,
}

impl StorageOnly {
    /// Over `store`, known as `name` with this id.
    #[must_use]
    pub fn new(store: Arc<dyn SliceStore>, id: Uuid, name: impl Into<String>) -> Self {
        // A store in this process gives each call its answer: silence can not mean loss. Every store has links.
        let capabilities = Capabilities { heartbeats: true, link: true, ..Capabilities::storage_only() };
        Self { info: CseInfo { id, name: name.into(), format: FORMAT, memory_limit: MEMORY, profile: None, device: None, capabilities }, store }
    }

    /// Over an empty store in memory.
    #[must_use]
    pub fn in_memory(id: Uuid, name: impl Into<String>) -> Self {
        Self::new(Arc::new(MemoryStore::new()), id, name)
    }
}

impl Storage for StorageOnly {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move { self.store.apply(batch) })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.store.get(key) })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move { self.store.get_ranges_unverified(key, ranges) })
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        self.store.get_range_in_memory(key, range)
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.store.stat(key) })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.store.list(prefix, after, limit) })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.store.usage() })
    }
}

impl Cse for StorageOnly {
    fn execute(&self, _: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move { Err(Error::unsupported(format!("{}: it stores and runs no programs; ask its capabilities first", self.info.name))) })
    }
}
