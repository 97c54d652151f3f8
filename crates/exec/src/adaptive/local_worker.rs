//! The host as a worker: runs a sub-plan over slices that a drive sent raw, and its upper part over rows that a drive
//! filtered.
//!
//! Each drive has an engine on the host over its store, read over the network. The engine plans the same sub-plan as
//! the drive does. Lanes for slices, and other lanes for rows, start when the first of each arrive. Lanes run on their
//! own threads: they block while they read what else they need from the drive, such as names of genes and groups of
//! cells.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use datafusion::execution::memory_pool::MemoryPool;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_device::{Annotation, Cse, Storage, SubPlan};
use skytether_engine::feed::{FetchedSlice, SliceFeed};
use skytether_engine::meter::Meter;
use skytether_engine::remote::RemoteStore;
use skytether_engine::split_execution::{Lane, SplitExecution, Taken};
use skytether_engine::{Engine, Reader};
use skytether_runtime::threads::{Threads, spawn_blocking_thread};
use skytether_scheduler::kinds::Kinds;
use skytether_scheduler::message::{EpochId, PushdownLevel};
use tokio::sync::OnceCell;

use crate::adaptive::reconnect::reconnecting;
use crate::adaptive::spill_buffer::BufferedBatch;
use crate::adaptive::work_queue::{Queue, Waiting, WorkerHandle};

/// The engine over what a drive stores, built on first use. It keeps metadata and names for the next query.
#[derive(Debug)]
pub struct LocalExecutor {
    drive: Arc<dyn Cse>,
    pool: Arc<dyn MemoryPool>,
    deadline: Duration,
    /// Drives that share the memory for caches.
    drives: usize,
    /// Threads that wait for reads from drives; all drives share them.
    threads: Arc<Threads>,
    engine: Mutex<Option<Arc<Engine>>>,
    /// What each kind of operator costs on the drive, as queries have shown.
    kinds: Mutex<Kinds>,
}

impl LocalExecutor {
    /// An executor over the store of `drive`. `drives` is the number of drives that share the memory for caches.
    pub(crate) fn new(drive: Arc<dyn Cse>, pool: Arc<dyn MemoryPool>, deadline: Duration, drives: usize, threads: Arc<Threads>) -> Self {
        Self { drive, pool, deadline, drives, threads, engine: Mutex::default(), kinds: Mutex::default() }
    }

    /// What each kind of operator costs on the drive, as queries until now have shown.
    pub fn kinds(&self) -> Kinds {
        *self.kinds.lock()
    }

    /// Notes the costs that a query has shown.
    fn learnt(&self, kinds: Kinds) {
        *self.kinds.lock() = kinds;
    }

    /// Must be called in a runtime.
    fn engine(&self) -> Result<Arc<Engine>> {
        let mut engine = self.engine.lock();
        if let Some(engine) = &*engine {
            return Ok(Arc::clone(engine));
        }
        let storage: Arc<dyn Storage> = Arc::clone(&self.drive) as _;
        let reader = Reader::sharing(Arc::new(RemoteStore::new(storage, self.deadline)), self.drives).waiting_on(Arc::clone(&self.threads));
        let reader = Arc::new(reader);
        let made = Arc::new(Engine::new(self.drive.info().name.clone(), reader, Arc::clone(&self.pool), 1, 1)?);
        *engine = Some(Arc::clone(&made));
        Ok(made)
    }
}

/// What a lane reports.
#[derive(Debug)]
pub(crate) enum WorkDone {
    /// Rows or states, like those that the drive itself sends.
    Rows(RecordBatch),
    /// An epoch is processed; seconds of processor time that it took.
    Epoch(EpochId, f64),
    /// A lane has ended.
    Over(Result<()>),
}

/// Takes what a lane reports, on a thread that may block. Returns whether the task wants more.
pub(crate) type Tell = Arc<dyn Fn(WorkDone) -> bool + Send + Sync>;

/// The work for one drive.
pub(crate) struct LocalWorker {
    engine: Arc<LocalExecutor>,
    plan: SubPlan,
    /// The pushdown level up to which the host processes slices.
    top: PushdownLevel,
    divided: OnceCell<Arc<SplitExecution>>,
    tell: Tell,
    /// Lanes for slices, and for rows.
    lanes: usize,
    slices: Mutex<Option<Queue<FetchedSlice>>>,
    rows: Mutex<Option<Queue<BufferedBatch>>>,
    /// The meters of all lanes.
    meters: Mutex<Vec<Arc<Meter>>>,
    /// How long reads wait for a drive that is lost, as it may be restarting.
    patience: Duration,
}

impl fmt::Debug for LocalWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWorker").finish_non_exhaustive()
    }
}

impl LocalWorker {
    /// The work for the drive that `engine` reads: `plan` up to `top`, in `lanes` lanes for slices and as many for
    /// rows. Reads wait for a lost drive as long as `patience`.
    pub(crate) fn new(engine: Arc<LocalExecutor>, plan: SubPlan, tell: Tell, top: PushdownLevel, lanes: usize, patience: Duration) -> Arc<Self> {
        let (slices, rows, meters) = (Mutex::default(), Mutex::default(), Mutex::default());
        Arc::new(Self { engine, plan, top, divided: OnceCell::new(), tell, lanes, slices, rows, meters, patience })
    }

    /// The sub-plan as this side runs it.
    async fn divided(&self) -> Result<Arc<SplitExecution>> {
        reconnecting(self.patience, || self.divide()).await
    }

    async fn divide(&self) -> Result<Arc<SplitExecution>> {
        let planned = self.divided.get_or_try_init(|| async {
            let (engine, plan) = (self.engine.engine()?, self.plan.clone());
            // Planning reads metadata from the drive, and waits for it.
            let taken = async move {
                Ok(match engine.take(plan).await? {
                    Taken::Split(divided) => Some(divided.finishing().await?),
                    Taken::Whole(_) => None,
                })
            };
            match spawn_blocking_thread(move || futures::executor::block_on(taken)).await? {
                Some(divided) => Ok(Arc::new(divided)),
                None => Err(Error::internal("the host does not divide a sub-plan that a drive divides: do they have the same version?")),
            }
        });
        planned.await.cloned()
    }

    /// Keeps what this query has shown of the drive for the next one.
    pub(crate) fn learnt(&self, kinds: Kinds) {
        self.engine.learnt(kinds);
    }

    /// Processor time of all lanes.
    pub(crate) fn time(&self) -> Duration {
        self.meters.lock().iter().map(|meter| meter.spent()).sum()
    }

    /// Figures of the reads for this drive, and of the lanes over slices that have ended; `None` before the first work.
    pub(crate) fn told(&self) -> Option<Annotation> {
        self.divided.get().map(|divided| divided.annotation())
    }

    /// Reads a stripe as it is stored.
    ///
    /// # Errors
    /// As the drive's storage.
    pub(crate) async fn fetch(&self, stripe: u32) -> Result<FetchedSlice> {
        reconnecting(self.patience, || async { self.divide().await?.fetcher(self.top)?.fetch(stripe).await }).await
    }

    /// Processes slices that [`Self::fetch`] returned.
    pub(crate) fn slices(self: &Arc<Self>, epoch: EpochId, fed: Vec<FetchedSlice>) {
        let mut queue = self.slices.lock();
        let queue = queue.get_or_insert_with(|| {
            let queue = Queue::new(Arc::clone(&self.tell));
            for _ in 0..self.lanes {
                let top = self.top;
                self.start(Some(top), queue.line(), move |divided, meter, place| divided.lane(top, Arc::new(Stored(place)), meter));
            }
            queue
        });
        queue.push(epoch, fed);
    }

    /// Processes rows that the drive filtered.
    pub(crate) fn rows(self: &Arc<Self>, epoch: EpochId, batches: Vec<BufferedBatch>) {
        let mut queue = self.rows.lock();
        let queue = queue.get_or_insert_with(|| {
            let queue = Queue::new(Arc::clone(&self.tell));
            for _ in 0..self.lanes {
                let name = self.engine.drive.info().name.clone();
                self.start(None, queue.line(), move |divided, meter, place| {
                    let schema = divided.schema(PushdownLevel::Filter);
                    // A request for the next rows shows that the lane is done with those before.
                    let rows = stream::unfold(place, |place| async move {
                        place.done();
                        Some((Arc::clone(&place).next().await?, place))
                    });
                    let rows = rows.then(BufferedBatch::load);
                    divided.above(rows.map(move |batch| skytether_device::conform::conform(&batch?, &schema, &name)).boxed(), meter)
                });
            }
            queue
        });
        queue.push(epoch, batches);
    }

    /// Starts a lane. The lane does not keep this alive: its queue closes with this, and the lane ends then. For a lane
    /// over slices, `reads` is the pushdown level up to which it runs. It takes its work at `line`.
    fn start<T: Send + 'static>(
        self: &Arc<Self>,
        reads: Option<PushdownLevel>,
        line: Waiting<T>,
        lane: impl FnOnce(&SplitExecution, Arc<Meter>, Arc<WorkerHandle<T>>) -> Result<Lane> + Send + 'static,
    ) {
        let (above, tell) = (Arc::clone(self), Arc::clone(&self.tell));
        let meter = Arc::new(Meter::default());
        self.meters.lock().push(Arc::clone(&meter));
        tokio::spawn(async move {
            let divided = above.divided().await;
            drop(above);
            let over = match divided {
                Ok(divided) => {
                    let gives = Arc::clone(&tell);
                    let work = spawn_blocking_thread(move || {
                        let place = line.metered(Arc::clone(&meter));
                        let mut lane = lane(&divided, meter, Arc::clone(&place))?;
                        let over = futures::executor::block_on(async {
                            while let Some(batch) = lane.next().await? {
                                if !gives(WorkDone::Rows(batch)) {
                                    break;
                                }
                            }
                            place.rest().await;
                            Ok::<_, Error>(())
                        });
                        if let Some(rung) = reads {
                            divided.ended(rung, &lane);
                        }
                        over
                    });
                    work.await
                }
                Err(error) => Err(error),
            };
            tell(WorkDone::Over(over));
        });
    }

    /// No more will come; the number of lanes that will say [`WorkDone::Over`].
    pub(crate) fn close(&self) -> usize {
        let slices = self.slices.lock().take().map_or(0, |_| self.lanes);
        let rows = self.rows.lock().take().map_or(0, |_| self.lanes);
        slices + rows
    }
}

/// Feeds a lane with slices that a drive sent raw.
#[derive(Debug)]
struct Stored(Arc<WorkerHandle<FetchedSlice>>);

impl SliceFeed for Stored {
    fn next(&self) -> BoxFuture<'static, Option<Result<FetchedSlice>>> {
        Arc::clone(&self.0).next().map(|fed| fed.map(Ok)).boxed()
    }

    fn done(&self, _: u32) {
        self.0.done();
    }
}
