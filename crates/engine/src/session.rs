//! A session: a sub-plan that runs slice by slice. `skytether_scheduler::drive` decides, and a [`Worker`] carries out.
//!
//! One task takes orders, sends heartbeats and closes. Each epoch has as many lanes as the worker wants. A lane is a
//! task that asks the state machine for slices. All tasks report events to the state machine under one lock, and send
//! its messages. The worker decides what a lane does with its slices: a drive's lanes are those of its engine.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use futures::stream::{self, PollNext};
use futures::{FutureExt, StreamExt};
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Error, Kind, Result};
use skytether_device::session::{Message, Session};
use skytether_device::size::batch_bytes;
use skytether_device::{Annotation, SubPlan};
use skytether_scheduler::drive::{Drive as Machine, Effect, Meters, Next, Pressure, Totals};
use skytether_scheduler::message::{Down, EpochId, PushdownLevel, Seconds, SliceCost, SliceId, Up, Why};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::AbortHandle;

use crate::execute::Engine;
use crate::split_execution::SplitExecution;

/// Time between heartbeats of epochs that run.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// KiB of batches that may wait for the receiver, of one session. Lanes go on while results are on their way; with
/// less, a lane on a slow link would send, and only then work on.
const WAITING: u32 = 4 << 10;

/// Bytes that a lane needs at least: a decoded batch, and what its operators hold for it.
const LANE: u64 = 4 << 20;

/// Divisors of [`LANE`]. The first gives the memory that must be free to process rows, the second the memory to send
/// raw slices ([`skytether_scheduler::drive::admit`] wants an eighth for rows).
const ROWS_LEFT: u64 = 2;
const SLICES_LEFT: u64 = 16;

/// When to ask again where the backlog is unknown.
const RELIEF: Seconds = 2.0;

/// The longest time after which a refused parent may ask again.
const LONGEST_RELIEF: Seconds = 30.0;

/// Processes the slices of a session: the engine of a drive, or the CSEs of an aggregator. As [`Meters`] it reports its
/// load.
pub trait Worker: Meters + fmt::Debug + Send + Sync + 'static {
    /// The sub-plan that it runs.
    fn execution(&self) -> &SplitExecution;
    /// Lanes of an epoch.
    fn lanes(&self) -> usize;
    /// What it did, as far as that is over.
    fn annotation(&self) -> Annotation;
    /// Exactly these slices come next. Slices that were prefetched and are not among them may be dropped.
    fn ahead(&self, next: &[(PushdownLevel, SliceId)]);
    /// An epoch has ended; its results are not needed any more.
    fn forgotten(&self, epoch: EpochId);
    /// Processes slices until `lane` has no more, and gives their results to it.
    ///
    /// # Errors
    /// Those of the sub-plan and of the slices.
    fn work(self: Arc<Self>, lane: Lane) -> BoxFuture<'static, Result<()>>;
}

/// What all sessions of a CSE share.
#[derive(Debug)]
pub struct Sessions {
    engine: Arc<Engine>,
    memory_limit: u64,
    /// The name of the emulated device in annotations, if there is one.
    device: Option<String>,
    /// Epochs that run or wait, of all sessions.
    epochs: AtomicU32,
    bounds: Bounds,
    /// How many times their processor time slices took of late, and since when that is known.
    load: Mutex<Option<Load>>,
    backlog: Mutex<Backlog>,
}

/// Bounds from which on a CSE refuses work, whatever memory it has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Epochs at a time.
    pub epochs: u32,
    /// How many times their processor time slices may take.
    pub load: f64,
}

/// The slices of all sessions of a CSE that wait or are being processed.
#[derive(Debug, Clone, Copy, Default)]
struct Backlog {
    slices: usize,
    /// Core seconds of a slice, the last ones counting most.
    cost: Option<f64>,
    /// Slices that are processed at a time.
    lanes: usize,
}

impl Backlog {
    /// Seconds until the backlog is processed, if slices take `load` times their processor time. A fixed guess where no
    /// cost is known.
    fn relief(self, load: f64) -> Seconds {
        match self.cost {
            Some(cost) if self.slices > 0 => (self.slices as f64 * cost * load / self.lanes.max(1) as f64).clamp(HEARTBEAT.as_secs_f64(), LONGEST_RELIEF),
            _ => RELIEF,
        }
    }
}

/// Weight of the last slice's cost against the earlier ones.
const LAST: f64 = 0.2;

/// How busy lanes found the CSE.
#[derive(Debug, Clone, Copy)]
struct Load {
    /// The time of the last report.
    at: Instant,
    now: f64,
    /// What was measured before that; 1 where nothing was for long.
    before: f64,
}

/// How long a load counts without a new measurement.
const LOAD_COUNTS: Duration = Duration::from_secs(1);

/// How long a load counts as the one before: slices take that long on a CSE that is as busy as one
/// has to be to refuse work.
const LOAD_STAYS: Duration = Duration::from_secs(30);

impl Sessions {
    /// The sessions of a CSE whose `engine` may hold `memory_limit` bytes.
    #[must_use]
    pub fn new(engine: Arc<Engine>, memory_limit: u64, device: Option<String>, bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { engine, memory_limit, device, epochs: AtomicU32::new(0), bounds, load: Mutex::default(), backlog: Mutex::default() })
    }

    fn backlog(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock()
    }

    /// Seconds until waiting slices are processed, by the recent cost of slices and the load of the CSE.
    fn relief(&self) -> Seconds {
        let backlog = *self.backlog();
        backlog.relief(self.load())
    }

    fn known_load(&self) -> MutexGuard<'_, Option<Load>> {
        self.load.lock()
    }

    /// The load of the CSE by recent reports of its lanes. A single measurement may cover only a millisecond. Without a
    /// second one, it is no reason to refuse work for seconds.
    fn load(&self) -> f64 {
        self.known_load().filter(|load| load.at.elapsed() < LOAD_COUNTS).map_or(1.0, |load| load.now.min(load.before))
    }

    /// A lane reports a load that it measured now or before.
    fn notice(&self, load: f64) {
        let (mut known, at) = (self.known_load(), Instant::now());
        let before = match *known {
            Some(last) if last.at.elapsed() < LOAD_STAYS => {
                if last.now == load {
                    last.before
                } else {
                    last.now
                }
            }
            _ => 1.0,
        };
        *known = Some(Load { at, now: load, before });
    }

    /// Opens a session of `plan` that waits for orders about the stripes of `worker`.
    #[must_use]
    pub fn open(self: &Arc<Self>, plan: &SubPlan, worker: Arc<dyn Worker>) -> Session {
        let (orders, incoming) = mpsc::unbounded_channel();
        let (ups, ups_out) = mpsc::unbounded_channel();
        let (batches, batches_out) = mpsc::unbounded_channel();
        let execution = worker.execution();
        let schema = execution.schema(PushdownLevel::Full);
        let lower = execution.has_upper().then(|| execution.schema(PushdownLevel::Filter));
        let slice_manifest = execution.slice_manifest().to_vec();
        let shared = Arc::new(Shared {
            sessions: Arc::clone(self),
            worker,
            began: Instant::now(),
            state: Mutex::new(State { machine: Machine::new(), epochs: BTreeMap::new(), rows_out: 0, bytes_out: 0, ended: false, unfinished: 0 }),
            changed: Notify::new(),
            exhausted: AtomicU64::new(0),
            ups,
            batches,
            room: Arc::new(Semaphore::new(WAITING as usize)),
        });
        let bytes_received = plan.bytes() as u64;
        let task = Closing(tokio::spawn(Arc::clone(&shared).serve(incoming, bytes_received)).abort_handle(), shared);
        let ups = stream::unfold(ups_out, |mut ups| async move { ups.recv().await.map(|message| (message, ups)) });
        // Its room is free again when a batch is taken.
        let batches =
            stream::unfold(
                batches_out,
                |mut batches| async move { batches.recv().await.map(|(message, _room): (_, OwnedSemaphorePermit)| (message, batches)) },
            );
        // Messages go before rows that wait, because the parent must know what lanes have done to feed them. The last
        // message comes from the state machine; lanes that still hold the other channel send nothing after it.
        let messages = stream::unfold(
            (stream::select_with_strategy(ups.boxed(), batches.boxed(), |_: &mut ()| PollNext::Left), Some(task)),
            |(mut messages, task)| async move {
                let task = task?;
                let message: Result<Message> = messages.next().await?;
                let last = matches!(message, Ok(Message::Done(_)) | Err(_));
                Some((message, (messages, (!last).then_some(task))))
            },
        );
        Session { schema, lower, slice_manifest, orders, messages: Box::pin(messages) }
    }
}

/// Ends a session whose receiver is gone.
struct Closing(AbortHandle, Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.abort();
        self.1.end();
    }
}

/// A session.
struct Shared {
    sessions: Arc<Sessions>,
    worker: Arc<dyn Worker>,
    began: Instant,
    state: Mutex<State>,
    /// Slices came or went, or an epoch is closing.
    changed: Notify,
    /// How much less than [`LANE`] for each lane fits after one ran out of memory, as a divisor: less than at `full`,
    /// or than at `filter`; 0 where none did.
    exhausted: AtomicU64,
    ups: mpsc::UnboundedSender<Result<Message>>,
    /// Batches, as many as have room.
    batches: mpsc::UnboundedSender<(Result<Message>, OwnedSemaphorePermit)>,
    /// See [`WAITING`].
    room: Arc<Semaphore>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("worker", &self.worker).finish_non_exhaustive()
    }
}

struct State {
    machine: Machine,
    epochs: BTreeMap<EpochId, Run>,
    rows_out: u64,
    bytes_out: u64,
    ended: bool,
    /// How many of its slices are in the backlog.
    unfinished: usize,
}

/// An epoch at work.
struct Run {
    lanes: Vec<AbortHandle>,
    left: usize,
    totals: Totals,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn now(&self) -> Seconds {
        self.began.elapsed().as_secs_f64()
    }

    fn pressure(&self) -> Pressure {
        Pressure {
            epochs: self.sessions.epochs.load(Ordering::Relaxed),
            max_epochs: self.sessions.bounds.epochs,
            load: self.sessions.load(),
            max_load: self.sessions.bounds.load,
            memory_used: self.sessions.engine.memory(),
            memory_limit: self.sessions.memory_limit,
            relief: self.sessions.relief(),
        }
    }

    /// Keeps the backlog up to date.
    fn count(&self, state: &mut State) {
        let now = if state.ended { 0 } else { state.machine.unfinished() };
        let mut backlog = self.sessions.backlog();
        backlog.slices = (backlog.slices + now).saturating_sub(state.unfinished);
        backlog.lanes = self.worker.lanes();
        state.unfinished = now;
    }

    fn say(&self, up: Up) {
        // Without a receiver, the message is not needed.
        let _ = self.ups.send(Ok(Message::Up(up)));
    }

    /// Takes orders until there will be no more.
    async fn serve(self: Arc<Self>, mut orders: mpsc::UnboundedReceiver<Down>, bytes_received: u64) {
        let mut beat = tokio::time::interval(HEARTBEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                down = orders.recv() => match down {
                    Some(down) => self.order(down),
                    None => break,
                },
                _ = beat.tick() => {
                    let said = self.state().machine.beat(self.now(), HEARTBEAT.as_secs_f64(), &*self.worker);
                    said.into_iter().for_each(|up| self.say(up));
                    self.reconsider();
                }
            }
        }
        self.end();
        let (rows_out, bytes_sent) = {
            let state = self.state();
            (state.rows_out, state.bytes_out)
        };
        let told = self.worker.annotation();
        let done = Annotation {
            cse: self.sessions.engine.name().to_owned(),
            rung: Some(PushdownLevel::Full),
            profile: self.sessions.device.clone(),
            bytes_received,
            rows_out,
            bytes_sent,
            ..told
        };
        let _ = self.ups.send(Ok(Message::Done(Box::new(done))));
    }

    /// Forgets everything that still runs.
    fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        let epochs = std::mem::take(&mut state.epochs);
        self.sessions.epochs.fetch_sub(u32::try_from(epochs.len()).unwrap_or(0), Ordering::Relaxed);
        for (epoch, run) in epochs {
            run.lanes.iter().for_each(AbortHandle::abort);
            self.worker.forgotten(epoch);
        }
        self.count(&mut state);
        self.worker.ahead(&[]);
    }

    fn order(self: &Arc<Self>, down: Down) {
        let lanes = self.worker.lanes();
        let mut pressure = self.pressure();
        // What did not fit once will not fit again.
        if let Some(left) = (LANE * lanes as u64).checked_div(self.exhausted.load(Ordering::Relaxed)) {
            pressure.memory_used = pressure.memory_used.max((pressure.memory_limit / 10 * 9).saturating_sub(left));
        }
        let mut state = self.state();
        if state.ended {
            return;
        }
        let effects = state.machine.order(self.now(), down, LANE * lanes as u64, &pressure);
        for effect in effects {
            match effect {
                Effect::Say(up) => self.say(up),
                Effect::Look => self.changed.notify_waiters(),
                Effect::Begin { epoch, rung } => {
                    self.sessions.epochs.fetch_add(1, Ordering::Relaxed);
                    let lanes = (0..lanes).map(|_| tokio::spawn(Arc::clone(self).lane(epoch, rung)).abort_handle()).collect::<Vec<_>>();
                    state.epochs.insert(epoch, Run { left: lanes.len(), lanes, totals: Totals::default() });
                }
                Effect::Forget { epoch } => {
                    if let Some(run) = state.epochs.remove(&epoch) {
                        self.sessions.epochs.fetch_sub(1, Ordering::Relaxed);
                        run.lanes.iter().for_each(AbortHandle::abort);
                        self.worker.forgotten(epoch);
                    }
                }
            }
        }
        self.count(&mut state);
        self.ahead(&state);
    }

    /// Whether what runs may go on.
    fn reconsider(&self) {
        let pressure = self.pressure();
        let said = {
            let mut state = self.state();
            let said = state.machine.reconsider(&pressure);
            self.count(&mut state);
            said
        };
        if !said.is_empty() {
            self.changed.notify_waiters();
        }
        said.into_iter().for_each(|up| self.say(up));
    }

    /// Reports to the worker which slices lanes will take next.
    fn ahead(&self, state: &State) {
        let next = state.machine.ahead().take(self.worker.lanes()).filter_map(|(epoch, slice)| Some((state.machine.rung(epoch)?, slice)));
        self.worker.ahead(&next.collect::<Vec<_>>());
    }

    /// Runs one of the lanes of an epoch, and ends the epoch if it is the last one.
    async fn lane(self: Arc<Self>, epoch: EpochId, rung: PushdownLevel) {
        let ended = match AssertUnwindSafe(Arc::clone(&self.worker).work(Lane { shared: Arc::clone(&self), epoch, rung })).catch_unwind().await {
            Ok(ended) => ended,
            Err(_) => Err(Error::internal("a defect while running the sub-plan")),
        };
        let mut state = self.state();
        match ended {
            Ok(()) => {
                let Some(run) = state.epochs.get_mut(&epoch) else { return };
                run.left -= 1;
                if run.left > 0 {
                    return;
                }
                let totals = run.totals;
                state.epochs.remove(&epoch);
                self.sessions.epochs.fetch_sub(1, Ordering::Relaxed);
                if let Some(up) = state.machine.finished(self.now(), epoch, totals) {
                    self.say(up);
                }
                self.count(&mut state);
            }
            Err(error) => self.failed(&mut state, epoch, rung, error),
        }
    }

    fn failed(&self, state: &mut State, epoch: EpochId, rung: PushdownLevel, error: Error) {
        let Some(run) = state.epochs.remove(&epoch) else { return };
        self.sessions.epochs.fetch_sub(1, Ordering::Relaxed);
        run.lanes.iter().for_each(AbortHandle::abort);
        self.worker.forgotten(epoch);
        let kind = error.kind();
        let error = Arc::new(self.sessions.engine.named(error));
        let _ = self.ups.send(Ok(Message::EpochError { epoch, error }));
        let failed = state.machine.failed(epoch, !kind.is_permanent());
        self.count(state);
        let Some(failed) = failed else { return };
        if kind == Kind::Exhausted {
            // A lower level of the sub-plan needs less memory: rows hold no states, and sending raw slices needs hardly
            // any.
            let accepts = if rung == PushdownLevel::Full && self.worker.execution().has_upper() { PushdownLevel::Filter } else { PushdownLevel::Raw };
            self.exhausted.fetch_max(if accepts == PushdownLevel::Filter { ROWS_LEFT } else { SLICES_LEFT }, Ordering::Relaxed);
            self.say(Up::Refused { epoch, accepts: Some(accepts), again: self.sessions.relief(), why: Why::Memory });
        } else {
            self.say(failed);
        }
    }
}

/// One of the tasks that work an epoch off.
#[derive(Debug)]
pub struct Lane {
    shared: Arc<Shared>,
    epoch: EpochId,
    rung: PushdownLevel,
}

impl Lane {
    /// Its epoch.
    #[must_use]
    pub fn epoch(&self) -> EpochId {
        self.epoch
    }

    /// Its rung.
    #[must_use]
    pub fn rung(&self) -> PushdownLevel {
        self.rung
    }

    /// The next slice, which begins now; `begun` is called under the lock, before another lane can ask.
    pub fn next(&self, begun: impl FnOnce(SliceId)) -> Next {
        let mut state = self.shared.state();
        let next = state.machine.next(self.shared.now(), self.epoch);
        if let Next::Slice(slice) = next {
            begun(slice);
        }
        next
    }

    /// Reports to the worker which slices come next.
    pub fn ahead(&self) {
        self.shared.ahead(&self.shared.state());
    }

    /// Ready when slices came or went since the call, or an epoch is closing. Call it before [`Self::next`], and await
    /// it where that returns [`Next::Wait`].
    pub fn changed(&self) -> impl Future<Output = ()> + '_ {
        let mut changed = Box::pin(self.shared.changed.notified());
        changed.as_mut().enable();
        changed
    }

    /// A slice is done, at `cost` (in seconds of the device's cores); `pending` are the states that the
    /// epoch holds, and their bytes.
    pub fn done(&self, cost: SliceCost, pending: (u64, u64)) {
        let shared = &self.shared;
        let said = {
            let mut state = shared.state();
            let said = state.machine.slice_done(shared.now(), self.epoch, cost, pending, &*shared.worker);
            shared.count(&mut state);
            said
        };
        {
            let mut backlog = shared.sessions.backlog();
            backlog.cost = Some(backlog.cost.map_or(cost.cpu, |before| before + LAST * (cost.cpu - before)));
        }
        if let Some(Up::Progress { load, .. }) = &said {
            shared.sessions.notice(*load);
        }
        // The last one to end an epoch that others wait for.
        shared.changed.notify_waiters();
        said.into_iter().for_each(|up| shared.say(up));
    }

    /// Sends what came of slices; whether the epoch is still wanted.
    pub async fn send(&self, batch: RecordBatch) -> bool {
        let (rows, bytes) = (batch.num_rows() as u64, batch_bytes(&batch));
        // A batch that is larger than all the room goes by itself. The semaphore is never closed.
        let wants = u32::try_from(bytes >> 10).unwrap_or(WAITING).clamp(1, WAITING);
        let Ok(room) = Arc::clone(&self.shared.room).acquire_many_owned(wants).await else { return false };
        let number = {
            let mut state = self.shared.state();
            state.rows_out += rows;
            state.bytes_out += bytes;
            let Some(run) = state.epochs.get_mut(&self.epoch) else { return false };
            run.totals.rows += rows;
            run.totals.bytes += bytes;
            run.totals.batches += 1;
            run.totals.batches - 1
        };
        self.shared.batches.send((Ok(Message::Batch { epoch: self.epoch, number, rung: self.rung, batch }), room)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_waits_the_later_to_ask_again() {
        let relief = |slices, cost, lanes, load| Backlog { slices, cost, lanes }.relief(load);
        let near = |given: f64, wanted: f64| assert!((given / wanted - 1.0).abs() < 1e-12, "{given} s, not {wanted} s");
        for (slices, wanted) in [(10, 0.2), (100, 2.0), (1000, 20.0)] {
            near(relief(slices, Some(0.02), 1, 1.0), wanted);
        }
        // More cores are through it sooner, busy ones later.
        near(relief(100, Some(0.02), 4, 1.0), 0.5);
        near(relief(100, Some(0.02), 4, 8.0), 4.0);
        near(relief(100, Some(0.02), 0, 1.0), 2.0);
        // The time is bounded, so that a parent neither asks all the time nor stays away for good.
        assert_eq!((relief(1, Some(1e-6), 1, 1.0), relief(1_000_000, Some(0.02), 1, 1.0)), (HEARTBEAT.as_secs_f64(), LONGEST_RELIEF));
        assert_eq!((relief(1000, None, 1, 8.0), relief(0, Some(0.02), 1, 8.0)), (RELIEF, RELIEF), "a guess");
    }
}
