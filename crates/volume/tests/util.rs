//! What the tests share: a drive in memory, volumes with small bounds, and a model.

use std::sync::Arc;

use skytether_common::Result;
use skytether_device::StorageOnly;
use skytether_store::fault::{Fault, FaultStore, Operation, Rule, When};
use skytether_store::memory::MemoryStore;
use skytether_volume::extents::ExtentCache;
use skytether_volume::files::Files;
use skytether_volume::open::{Context, create};
use skytether_volume::recovery::Recovery;
use skytether_volume::{BlockDevice, Durability, Options, StorageBacking, Volume};
use uuid::Uuid;

pub(crate) use crate::shared::*;

/// A store in memory that can fail, as a drive.
#[derive(Clone)]
pub(crate) struct Drive {
    pub(crate) store: Arc<FaultStore<MemoryStore>>,
    pub(crate) context: Context,
}

impl Drive {
    pub(crate) fn new(options: Options) -> Self {
        Self::over(Arc::new(FaultStore::new(MemoryStore::new())), options)
    }

    pub(crate) fn over(store: Arc<FaultStore<MemoryStore>>, options: Options) -> Self {
        let storage = StorageOnly::new(store.clone(), Uuid::from_u128(1), "drive-0");
        let backing = Arc::new(StorageBacking::new(Arc::new(storage)).unwrap());
        Self { store, context: Context { backing, cache: Arc::new(ExtentCache::new(options.cache_bytes)), options } }
    }

    /// The same drive in another process: what is in memory is forgotten.
    pub(crate) fn restarted(&self) -> Self {
        Self::over(Arc::clone(&self.store), self.context.options.clone())
    }

    pub(crate) async fn create(&self, name_: &str, size: u64) {
        create(&self.context, &name(name_), size).await.unwrap();
    }

    pub(crate) async fn open(&self, name_: &str, files: &(impl Files + Clone + 'static)) -> Result<(Arc<Volume>, Recovery)> {
        Volume::open(&self.context, &name(name_), Arc::new(files.clone())).await
    }
}

/// Volume `a` of 1 MiB, written and merged, whose extent 3 the drive then gives damaged.
pub(crate) async fn damaged(files: &(impl Files + Clone + 'static)) -> (Drive, Arc<Volume>) {
    let drive = Drive::new(small());
    drive.create("a", MIB).await;
    let (volume, _) = drive.open("a", files).await.unwrap();
    volume.write(0, bytes(1, MIB as usize), Durability::Cached).await.unwrap();
    volume.release().await.unwrap();
    let drive = drive.restarted();
    let (volume, _) = drive.open("a", files).await.unwrap();
    drive.store.add(Rule::new(Operation::Get, When::From(1), Fault::Corrupt).under("~vol/a/x/000000000003"));
    (drive, volume)
}
