//! A volume on a store in memory that can fail, which outlives targets over it.

use std::sync::Arc;

use skytether_device::StorageOnly;
use skytether_scsi::{Target, Unit};
use skytether_store::fault::FaultStore;
use skytether_store::memory::MemoryStore;
use skytether_volume::extents::ExtentCache;
use skytether_volume::open::{Context, create};
use skytether_volume::power::PowerFiles;
use skytether_volume::{Options, StorageBacking, Volume, VolumeName};
use uuid::Uuid;

use crate::bench::{BLOCKS, options};

/// With what the keys of its notes begin.
pub(crate) const NOTE: &str = "~vol/v/n/";

/// The store of volume `v` of [`BLOCKS`], and its journal.
pub(crate) struct Kept {
    pub(crate) store: Arc<FaultStore<MemoryStore>>,
    context: Context,
    files: PowerFiles,
    name: VolumeName,
}

impl Kept {
    pub(crate) async fn new() -> Self {
        let store = Arc::new(FaultStore::new(MemoryStore::new()));
        let storage = StorageOnly::new(store.clone(), Uuid::from_u128(1), "drive-0");
        let options = Options::default();
        let cache = Arc::new(ExtentCache::new(options.cache_bytes));
        let context = Context { backing: Arc::new(StorageBacking::new(Arc::new(storage)).unwrap()), cache, options };
        let name: VolumeName = "v".parse().unwrap();
        create(&context, &name, BLOCKS * 512).await.unwrap();
        Self { store, context, files: PowerFiles::new(), name }
    }

    /// A target after a loss of power, whose unit 0 is the volume. Its reservations are not read yet.
    pub(crate) async fn target(&self) -> Arc<Target> {
        let (volume, _) = Volume::open(&self.context, &self.name, Arc::new(self.files.clone())).await.unwrap();
        Target::new(vec![Unit { lun: 0, device: volume, exec: None }], options())
    }
}
