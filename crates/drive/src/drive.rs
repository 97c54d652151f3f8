//! The drive itself: a store, an engine, and the traits that a host sees.

use std::future::Future;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::execution::memory_pool::{GreedyMemoryPool, TrackConsumersPool};
use skytether_common::{Context, Error, Key, Result};
use skytether_engine::divide::Taken;
use skytether_engine::{Engine, Reader, blocking};
use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions};
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use skytether_wire::{Cse, CseInfo, DeliveryStream, Opened, Storage, SubPlan};
use tokio::net::TcpListener;

use crate::session::Sessions;

/// The version of a drive's on-disk format (ARCHITECTURE.md, "A drive's directory").
pub const FORMAT: u32 = 1;

/// Epochs that may run or wait, for each sub-plan that may run.
const EPOCHS: u32 = 16;

/// What a drive may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriveOptions {
    /// Bytes that all sub-plans together may hold in groups, sorts and batches on their way. A sub-plan that needs more ends as `Exhausted`.
    pub memory_limit: u64,
    /// Partitions that one sub-plan is run in.
    pub threads: usize,
    /// Sub-plans that run at the same time; others wait.
    pub max_concurrent: usize,
}

impl Default for DriveOptions {
    fn default() -> Self {
        Self { memory_limit: 512 << 20, threads: 1, max_concurrent: 4 }
    }
}

/// A store and an engine over it.
#[derive(Debug)]
pub struct Drive {
    info: CseInfo,
    store: Arc<dyn SliceStore>,
    engine: Arc<Engine>,
    sessions: Arc<Sessions>,
}

impl Drive {
    /// A drive over `store`, known as `info` says. The memory limit in `info` becomes that of `options`.
    ///
    /// # Errors
    /// Internal only, where DataFusion does not take our functions.
    pub fn new(store: Arc<dyn SliceStore>, info: CseInfo, options: DriveOptions) -> Result<Arc<Self>> {
        let info = CseInfo { memory_limit: options.memory_limit, ..info };
        let limit = usize::try_from(options.memory_limit).unwrap_or(usize::MAX);
        // The tracking names the largest users of memory in the error when it is spent.
        let pool = TrackConsumersPool::new(GreedyMemoryPool::new(limit), NonZeroUsize::MIN.saturating_add(2));
        let reader = Arc::new(Reader::new(Arc::clone(&store)));
        let engine = Engine::new(info.name.clone(), reader, Arc::new(pool), options.threads, options.max_concurrent)?;
        let engine = Arc::new(engine);
        let sessions = Sessions::new(Arc::clone(&engine), options.memory_limit, EPOCHS * u32::try_from(options.max_concurrent).unwrap_or(u32::MAX / EPOCHS));
        Ok(Arc::new(Self { info, store, engine, sessions }))
    }

    /// Opens the drive in `dir`, or makes it under `create`'s identity where there is none yet.
    ///
    /// # Errors
    /// As [`DiskStore::open`].
    pub fn open(dir: &Path, create: Option<DriveIdentity>, options: DriveOptions) -> Result<Arc<Self>> {
        let store = DiskStore::open(dir, OpenOptions { create, ..OpenOptions::default() })?;
        let DriveIdentity { id, name } = store.identity().clone();
        Self::new(Arc::new(store), CseInfo { id, name, format: FORMAT, memory_limit: options.memory_limit }, options)
    }

    /// The drive's store, for who runs in the same process.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn SliceStore> {
        &self.store
    }

    /// Plans on a task of its own, so that a panic stays a single sub-plan's error; it ends with its caller.
    async fn planned<T: Send + 'static>(&self, planning: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let mut task = tokio::task::JoinSet::new();
        task.spawn(planning);
        let planned = match task.join_next().await {
            Some(Ok(planned)) => planned,
            Some(Err(error)) if error.is_panic() => Err(Error::internal("a defect while planning the sub-plan").because(error)),
            _ => Err(Error::unavailable("the drive is shutting down")),
        };
        planned.map_err(|e| self.engine.named(e))
    }

    /// Calls the store on a thread that may block; errors name the drive.
    async fn stored<T: Send + 'static>(&self, call: impl FnOnce(&dyn SliceStore) -> Result<T> + Send + 'static) -> Result<T> {
        let store = Arc::clone(&self.store);
        blocking(move || call(store.as_ref())).await.context(|| self.info.name.clone())
    }
}

#[async_trait]
impl Storage for Drive {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.stored(move |store| store.apply(batch)).await
    }

    async fn get(&self, key: &Key) -> Result<Bytes> {
        let key = key.clone();
        self.stored(move |store| store.get(&key)).await
    }

    async fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (key, ranges) = (key.clone(), ranges.to_vec());
        self.stored(move |store| store.get_ranges_unverified(&key, &ranges)).await
    }

    async fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        let key = key.clone();
        self.stored(move |store| store.stat(&key)).await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.stored(move |store| store.list(&prefix, after.as_ref(), limit)).await
    }

    async fn usage(&self) -> Result<Usage> {
        self.stored(|store| store.usage()).await
    }
}

#[async_trait]
impl Cse for Drive {
    async fn execute(&self, plan: SubPlan) -> Result<DeliveryStream> {
        let engine = Arc::clone(&self.engine);
        self.planned(async move { engine.start(plan).await }).await
    }

    async fn open(&self, plan: SubPlan) -> Result<Opened> {
        let (engine, sessions) = (Arc::clone(&self.engine), Arc::clone(&self.sessions));
        self.planned(async move {
            Ok(match engine.take(plan.clone()).await? {
                Taken::Whole(stream) => Opened::Whole(stream),
                Taken::Divided(divided) => Opened::Session(sessions.open(&plan, *divided)),
            })
        })
        .await
    }

    /// A drive in this process lives as long as whoever asks it: silence is work, or the wait for a turn.
    fn watched(&self) -> bool {
        true
    }
}

/// Serves `drive` over Arrow Flight on `listener` until `shutdown` is ready.
///
/// # Errors
/// Unavailable where the listener fails.
pub async fn serve(drive: Arc<Drive>, listener: TcpListener, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    skytether_wire::flight::serve(drive, listener, shutdown).await
}
