//! What the tests share: a drive in memory, volumes with small bounds, and a model.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_common::Result;
use skytether_device::StorageOnly;
use skytether_store::fault::{Fault, FaultStore, Operation, Rule, When};
use skytether_store::memory::MemoryStore;
use skytether_volume::extents::ExtentCache;
use skytether_volume::files::Files;
use skytether_volume::open::{Context, create};
use skytether_volume::recovery::Recovery;
use skytether_volume::{BlockDevice, Durability, Options, StorageBacking, Volume, VolumeName};
use uuid::Uuid;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Small bounds, so that tests reach them.
pub(crate) fn small() -> Options {
    Options {
        extent: 64 << 10,
        segment_bytes: MIB + 8192,
        journal_bytes: 4 * (MIB + 8192),
        cache_bytes: 512 * KIB,
        dirty_extents: 512,
        merge_bytes: 256 * KIB,
        idle: Duration::from_secs(3600),
        stall: Duration::from_secs(20),
        discard_journal: Vec::new(),
    }
}

pub(crate) fn name(text: &str) -> VolumeName {
    text.parse().unwrap()
}

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

/// Runs `test` on a runtime with two threads, with a deadline.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let done = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(if is_soak() { 10_000 } else { 240 }), test).await });
    done.expect("a test hangs")
}

/// Bytes that follow from `seed`, not of a short period.
pub(crate) fn bytes(seed: u64, len: usize) -> Bytes {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut data = vec![0; len];
    random.fill(&mut data);
    data.into()
}

pub(crate) async fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let size = device.info().size;
    let mut all = Vec::new();
    while (all.len() as u64) < size {
        let len = (size - all.len() as u64).min(768 * KIB) as u32;
        all.extend_from_slice(&device.read(all.len() as u64, len).await.unwrap());
    }
    all
}

/// The first block in which the two differ.
pub(crate) fn differs(a: &[u8], b: &[u8]) -> Option<usize> {
    assert_eq!(a.len(), b.len());
    a.chunks(4096).zip(b.chunks(4096)).position(|(a, b)| a != b)
}

pub(crate) fn is_soak() -> bool {
    std::env::var_os("SKYTETHER_SOAK").is_some()
}

/// What a [`Backing`](skytether_volume::Backing) over another one, its field 0, passes on: all but changes and reads of
/// parts.
macro_rules! passes_on {
    () => {
        fn name(&self) -> String {
            self.0.name()
        }
        fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
            self.0.get(key)
        }
        fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
            self.0.stat(key)
        }
        fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
            self.0.list(prefix, after, limit)
        }
        fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
            self.0.verify(asked)
        }
        fn links(&self) -> bool {
            self.0.links()
        }
    };
}
pub(crate) use passes_on;

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
