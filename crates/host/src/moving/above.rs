//! The level above as a worker: runs a sub-plan over slices that a drive handed out, and its upper part over rows that a drive filtered.
//!
//! For each drive there is an engine over what that drive stores, read from afar; it plans the same sub-plan as the drive does. A lane for slices and one for rows are started when the first ones come. They run on threads of
//! their own: what they need beside the slices (names of genes, groups of cells) is read from the drive in the middle of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::record_batch::RecordBatch;
use datafusion::execution::memory_pool::MemoryPool;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use skytether_adapt::message::{EpochId, Rung};
use skytether_common::{Error, Result};
use skytether_engine::divide::{Divided, Lane, Taken};
use skytether_engine::feed::{Fed, Feed};
use skytether_engine::meter::{Meter, Reading as Time};
use skytether_engine::remote::RemoteStore;
use skytether_engine::threads::{Threads, alone};
use skytether_engine::{Engine, Reader};
use skytether_wire::{Cse, Storage, SubPlan};
use tokio::sync::{OnceCell, mpsc};

/// The engine over what a drive stores, made when it is first needed; it keeps what it has read of metadata and names for the next query.
#[derive(Debug)]
pub(crate) struct EngineAbove {
    drive: Arc<dyn Cse>,
    pool: Arc<dyn MemoryPool>,
    deadline: Duration,
    /// Drives that share the memory for caches.
    drives: usize,
    /// The threads that wait for what drives read, of all of them.
    threads: Arc<Threads>,
    engine: Mutex<Option<Arc<Engine>>>,
}

impl EngineAbove {
    /// Over what `drive`, one of so many `drives`, stores.
    pub(crate) fn new(drive: Arc<dyn Cse>, pool: Arc<dyn MemoryPool>, deadline: Duration, drives: usize, threads: Arc<Threads>) -> Self {
        Self { drive, pool, deadline, drives, threads, engine: Mutex::default() }
    }

    /// Must be called in a runtime.
    fn engine(&self) -> Result<Arc<Engine>> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
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

/// What comes of the work.
#[derive(Debug)]
pub(super) enum Worked {
    /// Rows or states, like those that the drive itself sends.
    Rows(RecordBatch),
    /// An epoch is worked off, in so many seconds of processor time.
    Epoch(EpochId, f64),
    /// A lane is over.
    Over(Result<()>),
}

/// Called with what comes, on a thread that may block; whether more is wanted.
pub(super) type Tell = Arc<dyn Fn(Worked) -> bool + Send + Sync>;

/// The work for one drive.
pub(super) struct Above {
    engine: Arc<EngineAbove>,
    plan: SubPlan,
    /// The rung that slices are worked off to.
    top: Rung,
    divided: OnceCell<Arc<Divided>>,
    tell: Tell,
    slices: Mutex<Option<mpsc::UnboundedSender<(EpochId, Vec<Fed>)>>>,
    rows: Mutex<Option<mpsc::UnboundedSender<(EpochId, Vec<RecordBatch>)>>>,
}

impl fmt::Debug for Above {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Above").finish_non_exhaustive()
    }
}

impl Above {
    pub(super) fn new(engine: Arc<EngineAbove>, plan: SubPlan, tell: Tell, top: Rung) -> Arc<Self> {
        Arc::new(Self { engine, plan, top, divided: OnceCell::new(), tell, slices: Mutex::default(), rows: Mutex::default() })
    }

    /// The sub-plan as this side runs it.
    async fn divided(&self) -> Result<Arc<Divided>> {
        let planned = self.divided.get_or_try_init(|| async {
            let (engine, plan) = (self.engine.engine()?, self.plan.clone());
            // Planning reads metadata from the drive, and waits for it.
            match alone(move || futures::executor::block_on(engine.take(plan))).await? {
                Taken::Divided(divided) => Ok(Arc::new(*divided)),
                Taken::Whole(_) => Err(Error::internal("the host does not divide a sub-plan that a drive divides: do they have the same version?")),
            }
        });
        planned.await.cloned()
    }

    /// Reads a stripe as it is stored.
    ///
    /// # Errors
    /// As the drive's storage.
    pub(super) async fn fetch(&self, stripe: u32) -> Result<Fed> {
        self.divided().await?.fetcher(self.top).fetch(stripe).await
    }

    /// Works slices off that [`Self::fetch`] gave.
    pub(super) fn slices(self: &Arc<Self>, epoch: EpochId, fed: Vec<Fed>) {
        let mut lane = self.slices.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = lane.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.start(move |above, divided, meter| {
                let feed = Stored(Arc::new(Storing {
                    receiver: tokio::sync::Mutex::new(receiver),
                    state: Mutex::default(),
                    meter: Arc::clone(&meter),
                    tell: Arc::clone(&above.tell),
                }));
                divided.lane(above.top, Arc::new(feed), meter)
            });
            sender
        });
        // A lane that failed has told so.
        let _ = sender.send((epoch, fed));
    }

    /// Works rows off that the drive filtered.
    pub(super) fn rows(self: &Arc<Self>, epoch: EpochId, batches: Vec<RecordBatch>) {
        let mut lane = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = lane.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.start(move |above, divided, meter| {
                let tell = Arc::clone(&above.tell);
                let (schema, measured) = (divided.schema(Rung::Filter), Arc::clone(&meter));
                let epochs = stream::unfold((receiver, None::<(EpochId, Time)>), move |(mut receiver, before)| {
                    let (tell, measured) = (Arc::clone(&tell), Arc::clone(&measured));
                    async move {
                        // Whoever asks for the next rows is done with those before.
                        if let Some((epoch, began)) = before {
                            tell(Worked::Epoch(epoch, measured.read(true).since(began).cpu.as_secs_f64()));
                        }
                        let (epoch, batches): (EpochId, Vec<RecordBatch>) = receiver.recv().await?;
                        Some((stream::iter(batches), (receiver, Some((epoch, measured.read(true))))))
                    }
                });
                let rows = epochs.flatten().map(move |batch| crate::reading::adapt(&batch, &schema, "a drive")).boxed();
                divided.above(rows, meter)
            });
            sender
        });
        let _ = sender.send((epoch, batches));
    }

    fn start(self: &Arc<Self>, lane: impl FnOnce(&Self, &Divided, Arc<Meter>) -> Result<Lane> + Send + 'static) {
        let above = Arc::clone(self);
        tokio::spawn(async move {
            let over = match above.divided().await {
                Ok(divided) => {
                    let tell = Arc::clone(&above.tell);
                    let work = alone(move || {
                        let mut lane = lane(&above, &divided, Arc::new(Meter::default()))?;
                        futures::executor::block_on(async {
                            while let Some(batch) = lane.next().await? {
                                if !(above.tell)(Worked::Rows(batch)) {
                                    break;
                                }
                            }
                            Ok(())
                        })
                    });
                    tell(Worked::Over(work.await));
                    return;
                }
                Err(error) => Err(error),
            };
            (above.tell)(Worked::Over(over));
        });
    }

    /// No more will come; the number of lanes that will say [`Worked::Over`].
    pub(super) fn close(&self) -> usize {
        let slices = self.slices.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take().is_some();
        usize::from(slices) + usize::from(rows)
    }
}

/// Gives a lane slices that were handed out.
#[derive(Debug)]
struct Stored(Arc<Storing>);

struct Storing {
    receiver: tokio::sync::Mutex<mpsc::UnboundedReceiver<(EpochId, Vec<Fed>)>>,
    state: Mutex<StoringState>,
    meter: Arc<Meter>,
    tell: Tell,
}

#[derive(Default)]
struct StoringState {
    /// Slices that were not asked for yet, with their epochs.
    waiting: std::collections::VecDeque<(EpochId, Fed)>,
    /// Slices of each epoch that are not done.
    left: BTreeMap<EpochId, (usize, f64)>,
    working: Option<EpochId>,
    last: Time,
}

impl fmt::Debug for Storing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storing").finish_non_exhaustive()
    }
}

impl Storing {
    fn state(&self) -> std::sync::MutexGuard<'_, StoringState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn next(self: Arc<Self>) -> Option<Result<Fed>> {
        loop {
            {
                let mut state = self.state();
                if let Some((epoch, fed)) = state.waiting.pop_front() {
                    state.working = Some(epoch);
                    state.last = self.meter.read(true);
                    return Some(Ok(fed));
                }
            }
            let (epoch, fed) = self.receiver.lock().await.recv().await?;
            let mut state = self.state();
            if fed.is_empty() {
                drop(state);
                (self.tell)(Worked::Epoch(epoch, 0.0));
                continue;
            }
            state.left.insert(epoch, (fed.len(), 0.0));
            state.waiting.extend(fed.into_iter().map(|fed| (epoch, fed)));
        }
    }
}

impl Feed for Stored {
    fn next(&self) -> BoxFuture<'static, Option<Result<Fed>>> {
        Arc::clone(&self.0).next().boxed()
    }

    fn done(&self, _: u32) {
        let now = self.0.meter.read(true);
        let mut state = self.0.state();
        let cpu = now.since(state.last).cpu.as_secs_f64();
        state.last = now;
        let Some(epoch) = state.working.take() else { return };
        let Some((left, sum)) = state.left.get_mut(&epoch) else { return };
        *left -= 1;
        *sum += cpu;
        if *left == 0 {
            let sum = *sum;
            state.left.remove(&epoch);
            drop(state);
            if !(self.0.tell)(Worked::Epoch(epoch, sum)) {
                self.0.state().waiting.clear();
            }
        }
    }
}
