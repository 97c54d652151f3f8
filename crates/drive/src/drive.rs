//! The drive itself: a store, an engine, and the traits that a host sees.

use std::collections::BTreeMap;
use std::future::Future;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, TrackConsumersPool};
use futures::future::BoxFuture;
use skytether_common::{Context, Error, Key, Kind, Result};
use skytether_device::verify::{Pace, Verifying};
use skytether_device::{Capabilities, Cse, CseInfo, DeliveryStream, OpenReply, ProgramKind, Storage, SubPlan, Verified, Verify};
use skytether_emulation::{Processor, paced};
use skytether_engine::indexed::{Costs, Indexes};
use skytether_engine::session::{Bounds, Sessions};
use skytether_engine::{Engine, Reader, blocking_on};
use skytether_index::State;
use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions};
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::executor::{ExecutionContext, Executor, SubstraitExecutor};
use crate::indexes::{Builder, IndexContext};
use crate::kept::KeptResults;
use crate::shared_reads::SharedReads;
use crate::throttle::{Device, SlowDisk, tag_device};

/// The version of a drive's on-disk format (docs/internals/formats/drive-directory.md).
pub const FORMAT: u32 = 1;

/// Epochs that may run or wait, for each sub-plan that may run.
const EPOCHS: u32 = 16;

/// The longest that slices may take before a drive refuses work, as a multiple of their processor time. Above this,
/// pushed-back work ends sooner nearly anywhere else.
const MAX_LOAD: f64 = 32.0;

/// The share of a disk that indexes leave free, unless said otherwise.
const INDEX_FREE: f64 = 0.02;

/// Bytes for kept results, unless said otherwise: some forty results of 20,000 genes and a dozen groups.
const KEPT_BYTES: u64 = 64 << 20;

/// The largest share (one in this many) of a drive's memory for searches of indexes: the rest is for the rows that they
/// find.
const SEARCH_SHARE: usize = 4;

/// The share (one in this many) of a drive's memory for slices that its sub-plans and another reader need at the same
/// time.
const BOTH_SHARE: usize = 8;

/// The metadata cache of index builds is smaller than that of queries by this factor.
const CACHE_SHARES: usize = 16;

/// What a drive may use.
#[derive(Debug, Clone, PartialEq)]
pub struct DriveOptions {
    /// Bytes that all sub-plans together may hold in groups, sorts and batches on their way. A sub-plan that needs
    /// more ends as `Exhausted`.
    pub memory_limit: u64,
    /// Partitions that one sub-plan is run in.
    pub threads: usize,
    /// Sub-plans that run at the same time; others wait.
    pub max_concurrent: usize,
    /// The load up to which the drive takes slices: the time that they take, as a multiple of their processor time.
    /// Above it the drive is too busy; it pushes slices back, and the host reads them instead.
    pub max_load: f64,
    /// The share of its disk that a drive's indexes leave free: where less is, they are dropped.
    pub index_free: f64,
    /// Bytes of its store that results may take which the drive keeps to answer the same sub-plan again; 0: none.
    pub kept_bytes: u64,
    /// The device that the drive emulates; `None`: none, at the machine's own speed.
    pub device: Option<Device>,
}

impl Default for DriveOptions {
    fn default() -> Self {
        Self { memory_limit: 512 << 20, threads: 1, max_concurrent: 4, max_load: MAX_LOAD, index_free: INDEX_FREE, kept_bytes: KEPT_BYTES, device: None }
    }
}

impl DriveOptions {
    /// Options of a drive that emulates `device`: its memory, but no more than `memory` bytes, and enough sub-plans at
    /// a time for its cores.
    #[must_use]
    pub fn like(device: Option<Device>, memory: Option<u64>) -> Self {
        let usual = Self::default();
        let (has, cores) = device.as_ref().map_or((usual.memory_limit, 1), |device| (device.profile.memory_bytes, device.profile.cores));
        let memory_limit = match (memory, &device) {
            (Some(memory), Some(_)) => memory.min(has),
            (Some(memory), None) => memory,
            (None, _) => has,
        };
        Self { memory_limit, max_concurrent: usual.max_concurrent.max(cores.min(64) as usize), device, ..usual }
    }
}

/// A store and an engine over it.
#[derive(Debug)]
pub struct Drive {
    info: CseInfo,
    /// Dropped first: its thread uses the other fields.
    indexes: Arc<Builder>,
    store: Arc<dyn SliceStore>,
    /// The same, for what others ask for.
    shared: Arc<SharedReads>,
    /// By the kinds of programs that they run.
    executors: BTreeMap<ProgramKind, Arc<dyn Executor>>,
    kept: Arc<KeptResults>,
    pub(crate) context: ExecutionContext,
    /// What annotations call the device.
    device: Option<String>,
    /// Partitions that one sub-plan is run in.
    pub(crate) threads: usize,
}

impl Drive {
    /// A drive over `store`, known as `info` says. The memory limit, the profile and its name in `info` become those of
    /// `options`. It runs Substrait plans.
    ///
    /// Its processor, disk and memory are those of the device in `options`. The link belongs to the connection:
    /// [`serve`] has one, and [`crate::throttle::linked`] for callers in the same process.
    ///
    /// # Errors
    /// Internal only, where DataFusion does not take our functions.
    pub fn new(store: Arc<dyn SliceStore>, info: CseInfo, options: DriveOptions) -> Result<Arc<Self>> {
        Self::with_executors(store, info, options, Vec::new())
    }

    /// As [`Self::new`], but it also runs the kinds of programs of `more`.
    ///
    /// # Errors
    /// Invalid where two executors run one kind; as there.
    pub fn with_executors(store: Arc<dyn SliceStore>, info: CseInfo, options: DriveOptions, more: Vec<Arc<dyn Executor>>) -> Result<Arc<Self>> {
        let profile = options.device.as_ref().map(|device| device.profile);
        let device = options.device.as_ref().map(|device| device.name.clone());
        let programs = std::iter::once(ProgramKind::Substrait).chain(more.iter().map(|executor| executor.kind())).collect();
        let capabilities = Capabilities { programs, ..Capabilities::default() };
        let info = CseInfo { memory_limit: options.memory_limit, profile, device: device.clone(), capabilities, ..info };
        let limit = usize::try_from(options.memory_limit).unwrap_or(usize::MAX);
        // The tracking names the largest users of memory in the error when it is spent.
        let pool = TrackConsumersPool::new(GreedyMemoryPool::new(limit), NonZeroUsize::MIN.saturating_add(2));
        let pool: Arc<dyn MemoryPool> = Arc::new(pool);
        let processor = profile.map(|profile| Arc::new(Processor::new(&profile)));
        let open = Arc::clone(&store);
        let store = match profile {
            Some(profile) => Arc::new(SlowDisk::new(store, &profile)) as _,
            None => store,
        };
        let shared = Arc::new(SharedReads::new(store, limit / BOTH_SHARE));
        let store: Arc<dyn SliceStore> = Arc::clone(&shared) as _;
        let indexes = Arc::new(Indexes::new(Arc::clone(&pool), limit / SEARCH_SHARE));
        let costs = profile.map_or_else(Costs::default, |profile| Costs {
            seek_s: profile.disk_seek_s,
            bytes_per_s: profile.disk_bytes_per_s,
            speed: profile.speed_per_core * f64::from(profile.cores),
        });
        let reader = Arc::new(Reader::new(Arc::clone(&store)).paced(processor.clone()));
        let engine = Engine::new(info.name.clone(), reader, Arc::clone(&pool), options.threads, options.max_concurrent)?;
        let engine = Arc::new(engine.with_indexes(Arc::clone(&indexes), costs));
        let context = IndexContext {
            store: Arc::clone(&store),
            reader: Arc::new(Reader::sharing(Arc::clone(&store), CACHE_SHARES).paced(processor.clone())),
            indexes,
            pool: Arc::clone(&pool),
            turns: Arc::clone(engine.turns()),
            limit,
            leave_free: options.index_free,
        };
        let indexes = Arc::new(Builder::begin(open.as_ref(), context));
        let kept = Arc::new(KeptResults::begin(open.as_ref(), Arc::clone(&store), options.kept_bytes));
        let epochs = EPOCHS.saturating_mul(u32::try_from(options.max_concurrent).unwrap_or(u32::MAX));
        let sessions = Sessions::new(Arc::clone(&engine), info.memory_limit, device.clone(), Bounds { epochs, load: options.max_load });
        let context = ExecutionContext { name: info.name.clone(), store: Arc::clone(&store), memory: pool, turns: Arc::clone(engine.turns()), processor };
        let mut executors: BTreeMap<ProgramKind, Arc<dyn Executor>> = BTreeMap::new();
        let substrait: Arc<dyn Executor> = Arc::new(SubstraitExecutor { engine, sessions, profile, kept: Arc::clone(&kept) });
        for executor in std::iter::once(substrait).chain(more) {
            let kind = executor.kind();
            if executors.insert(kind, executor).is_some() {
                return Err(Error::invalid(format!("{}: two executors run programs of kind {kind}; leave one out", info.name)));
            }
        }
        Ok(Arc::new(Self { info, indexes, store, shared, executors, kept, context, device, threads: options.threads }))
    }

    /// Opens the drive in `dir`, or makes it under `create`'s identity where there is none yet.
    ///
    /// # Errors
    /// As [`DiskStore::open`].
    pub fn open(dir: &Path, create: Option<DriveIdentity>, options: DriveOptions) -> Result<Arc<Self>> {
        let store = DiskStore::open(dir, OpenOptions { create, ..OpenOptions::default() })?;
        let DriveIdentity { id, name } = store.identity().clone();
        Self::new(
            Arc::new(store),
            CseInfo { id, name, format: FORMAT, memory_limit: options.memory_limit, profile: None, device: None, capabilities: Capabilities::default() },
            options,
        )
    }

    /// The drive's store, for callers in the same process. Reads take the time of the emulated disk.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn SliceStore> {
        &self.store
    }

    /// Plans on a task of its own, so that a panic fails one sub-plan only. The task ends with its caller.
    pub(crate) async fn planned<T: Send + Unpin + 'static>(&self, planning: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let planning = paced(self.context.processor.clone(), Box::pin(planning));
        let planned = match AbortOnDropHandle::new(tokio::spawn(async move { planning.await })).await {
            Ok(planned) => planned,
            Err(error) if error.is_panic() => Err(Error::internal("a defect while planning the sub-plan").with_source(error)),
            Err(_) => Err(Error::unavailable("the drive is shutting down")),
        };
        planned.context(|| self.info.name.clone())
    }

    /// What runs programs of `plan`'s kind.
    fn executor(&self, plan: &SubPlan) -> Result<Arc<dyn Executor>> {
        let kind = plan.program.kind();
        let wrong = || Error::unsupported(format!("{}: it does not run programs of kind {kind}; its capabilities name those that it runs", self.info.name));
        self.executors.get(&kind).cloned().ok_or_else(wrong)
    }

    /// What runs as a whole, with the device's name in its annotation.
    pub(crate) fn whole(&self, stream: DeliveryStream) -> DeliveryStream {
        match &self.device {
            Some(device) => tag_device(device, stream),
            None => stream,
        }
    }

    /// What sub-plans get their memory from.
    #[must_use]
    pub fn memory(&self) -> &Arc<dyn MemoryPool> {
        &self.context.memory
    }

    /// The cores of the emulated device, if any.
    #[must_use]
    pub fn processor(&self) -> Option<&Arc<Processor>> {
        self.context.processor.as_ref()
    }

    /// Calls the store on a thread that may block; errors name the drive.
    async fn stored<T: Send + 'static>(&self, call: impl FnOnce(&dyn SliceStore) -> Result<T> + Send + 'static) -> Result<T> {
        let store = Arc::clone(&self.store);
        blocking_on(self.context.processor.clone(), move || call(store.as_ref())).await.context(|| self.info.name.clone())
    }
}

impl Storage for Drive {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    /// A drive in this process lives as long as its caller: silence is work, or the wait for a turn.
    fn capabilities(&self) -> Capabilities {
        Capabilities { heartbeats: true, ..self.info.capabilities.clone() }
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let (indexes, kept) = (Arc::clone(&self.indexes), Arc::clone(&self.kept));
            let apply = move |store: &dyn SliceStore| {
                let full = |error: &Error| error.kind() == Kind::Exhausted;
                // What can be made again goes first: kept results before indexes, which take longer.
                let applied = match store.apply(batch.clone()) {
                    Err(error) if full(&error) && kept.takes_space() && kept.make_room() => store.apply(batch.clone()),
                    applied => applied,
                };
                let applied = match applied {
                    Err(error) if full(&error) && indexes.takes_space() && indexes.make_room(error.message()) => store.apply(batch.clone()),
                    applied => applied,
                };
                if applied.is_ok() {
                    indexes.changed(&batch);
                    kept.changed(&batch);
                }
                applied
            };
            self.stored(apply).await
        })
    }

    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move { Ok(self.indexes.states()) })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let (key, shared) = (key.clone(), Arc::clone(&self.shared));
            self.stored(move |_| shared.get_for_other(&key)).await
        })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            let (key, ranges) = (key.clone(), ranges.to_vec());
            self.stored(move |store| store.get_ranges_unverified(&key, &ranges)).await
        })
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        // An emulated processor must be waited for.
        if self.context.processor.is_some() { None } else { self.store.get_range_in_memory(key, range) }
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            let key = key.clone();
            self.stored(move |store| store.stat(&key)).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move {
            let (prefix, after) = (prefix.to_owned(), after.cloned());
            self.stored(move |store| store.list(&prefix, after.as_ref(), limit)).await
        })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.stored(|store| store.usage()).await })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move {
            let (mut verifying, mut pace) = (Verifying::new(&asked), Pace::new(asked.bytes_per_s));
            for (at, item) in asked.items.into_iter().enumerate() {
                let read = self.stored(move |store| {
                    let read = store.get(&item.key);
                    let bytes = verifying.take(at as u32, &item, read)?;
                    Ok((verifying, bytes))
                });
                let (own, bytes) = read.await?;
                verifying = own;
                pace.passed(bytes).await;
            }
            Ok(verifying.finish())
        })
    }
}

impl Cse for Drive {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let running = self.executor(&plan)?.execute(plan, self.context.clone());
            Ok(self.whole(self.planned(running).await?))
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let opening = self.executor(&plan)?.open(plan, self.context.clone());
            Ok(match self.planned(opening).await? {
                OpenReply::Whole(stream) => OpenReply::Whole(self.whole(stream)),
                session => session,
            })
        })
    }
}

/// Serves `drive` over Arrow Flight on `listener` until `shutdown` is ready.
///
/// # Errors
/// Unavailable where the listener fails.
pub fn serve(drive: Arc<Drive>, listener: TcpListener, shutdown: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, Result<()>> {
    skytether_flight_drive::serve(drive, listener, shutdown)
}
