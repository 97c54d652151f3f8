//! A sub-plan that is worked off slice by slice: what `skytether_adapt::drive` decides, carried out by lanes of the engine.
//!
//! A task takes orders, beats, and closes; each epoch has as many lanes as the device has cores (without a device, as the engine has threads), tasks of their own that ask the machine for slices. Whoever knows something new tells the machine, under one
//! lock, and sends what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use skytether_adapt::drive::{Drive as Machine, Effect, Meters, Next, Pressure, Totals};
use skytether_adapt::message::{Down, EpochId, Rung, Seconds, SliceCost, SliceId, Up, Why};
use skytether_common::{Error, Kind, Result};
use skytether_engine::Engine;
use skytether_engine::divide::Divided;
use skytether_engine::feed::{Fed, Feed};
use skytether_engine::meter::{Meter, Reading};
use skytether_wire::session::{Message, Session, Stripe};
use skytether_wire::size::batch_bytes;
use skytether_wire::{Annotation, CseInfo, SubPlan};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tokio::task::{AbortHandle, JoinHandle};

/// Signs of life of epochs that run.
const HEARTBEAT: Duration = Duration::from_millis(50);

/// Batches that wait for the receiver.
const BATCHES: usize = 2;

/// Lanes of an epoch at most, whatever a device has.
const MAX_LANES: u32 = 64;

/// Bytes that a lane needs at least: a decoded batch, and what its operators hold for it.
const LANE: u64 = 4 << 20;

/// After running out of memory at a rung the drive takes less, for so long.
const RELIEF: Seconds = 2.0;

/// Processor time below which a load says nothing.
const TELLING: Duration = Duration::from_millis(1);

/// What all sessions of a drive share.
#[derive(Debug)]
pub(crate) struct Sessions {
    engine: Arc<Engine>,
    memory_limit: u64,
    /// What annotations call the device, where the drive is to be like one.
    device: Option<String>,
    /// Lanes of an epoch.
    lanes: usize,
    /// Speed of a core, relative to this machine's.
    speed: f64,
    /// Epochs that run or wait, of all sessions.
    epochs: AtomicU32,
    max_epochs: u32,
}

impl Sessions {
    pub(crate) fn new(engine: Arc<Engine>, info: &CseInfo, device: Option<String>, max_epochs: u32) -> Arc<Self> {
        let (lanes, speed) = info.profile.map_or((engine.threads(), 1.0), |profile| (profile.cores.min(MAX_LANES) as usize, profile.speed_per_core.min(1.0)));
        Arc::new(Self { engine, memory_limit: info.memory_limit, device, lanes, speed, epochs: AtomicU32::new(0), max_epochs })
    }

    /// Waits for orders about the stripes of `divided`, `plan` in parts.
    pub(crate) fn open(self: &Arc<Self>, plan: &SubPlan, divided: Divided) -> Session {
        let (orders, incoming) = mpsc::unbounded_channel();
        let (ups, ups_out) = mpsc::unbounded_channel();
        let (batches, batches_out) = mpsc::channel(BATCHES);
        let schema = divided.schema(Rung::Full);
        let lower = divided.has_upper().then(|| divided.schema(Rung::Filter));
        let survey = divided.survey().iter().map(|s| Stripe { stripe: s.stripe, rows: s.rows, bytes: s.bytes }).collect();
        let shared = Arc::new(Shared {
            sessions: Arc::clone(self),
            divided,
            began: Instant::now(),
            state: Mutex::new(State::new(self.speed)),
            changed: Notify::new(),
            exhausted: AtomicBool::new(false),
            ups,
            batches,
        });
        let bytes_received = plan.bytes() as u64;
        let task = Closing(tokio::spawn(Arc::clone(&shared).serve(incoming, bytes_received)).abort_handle(), shared);
        let ups = stream::unfold(ups_out, |mut ups| async move { ups.recv().await.map(|message| (message, ups)) });
        let batches = stream::unfold(batches_out, |mut batches| async move { batches.recv().await.map(|message| (message, batches)) });
        // What ends it comes with the messages of the machine; lanes that still hold on to the other channel have nothing to say any more.
        let messages = stream::unfold((stream::select(ups.boxed(), batches.boxed()), Some(task)), |(mut messages, task)| async move {
            let task = task?;
            let message: Result<Message> = messages.next().await?;
            let last = matches!(message, Ok(Message::Done(_)) | Err(_));
            Some((message, (messages, (!last).then_some(task))))
        });
        Session { schema, lower, survey, orders, messages: Box::pin(messages) }
    }
}

/// Ends a session whose messages nobody reads any more.
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
    divided: Divided,
    began: Instant,
    state: Mutex<State>,
    /// Slices came or went, or an epoch is closing.
    changed: Notify,
    /// Whether a lane ran out of memory at `full`.
    exhausted: AtomicBool,
    ups: mpsc::UnboundedSender<Result<Message>>,
    batches: mpsc::Sender<Result<Message>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("divided", &self.divided).finish_non_exhaustive()
    }
}

struct State {
    machine: Machine,
    epochs: BTreeMap<EpochId, Run>,
    meters: Lanes,
    /// Slices that are read before a lane asks for them, and at which rung.
    ahead: BTreeMap<(Rung, SliceId), JoinHandle<Result<Fed>>>,
    rows_out: u64,
    bytes_out: u64,
    ended: bool,
}

impl State {
    fn new(speed: f64) -> Self {
        let meters = Lanes { speed, meters: Vec::new(), running: BTreeMap::new(), load: std::cell::Cell::new(1.0), counted: std::cell::Cell::default() };
        Self { machine: Machine::new(), epochs: BTreeMap::new(), meters, ahead: BTreeMap::new(), rows_out: 0, bytes_out: 0, ended: false }
    }
}

/// An epoch at work.
struct Run {
    lanes: Vec<AbortHandle>,
    left: usize,
    totals: Totals,
}

/// What the lanes of a session have taken.
struct Lanes {
    speed: f64,
    meters: Vec<(Arc<Meter>, Reading)>,
    running: BTreeMap<(EpochId, SliceId), (Arc<Meter>, Reading)>,
    load: std::cell::Cell<f64>,
    counted: std::cell::Cell<Reading>,
}

impl Lanes {
    fn all(&self) -> Reading {
        self.meters.iter().fold(Reading::default(), |sum, (meter, before)| {
            let one = meter.read(false).since(*before);
            Reading { cpu: sum.cpu + one.cpu, wall: sum.wall + one.wall }
        })
    }
}

impl Meters for Lanes {
    fn load(&self) -> f64 {
        let all = self.all();
        let new = all.since(self.counted.get());
        if new.cpu >= TELLING {
            self.counted.set(all);
            self.load.set((new.wall.as_secs_f64() / new.cpu.as_secs_f64()).clamp(1.0, 1000.0));
        }
        self.load.get().max(1.0)
    }

    fn cpu(&self, epoch: EpochId, slice: SliceId) -> Seconds {
        self.running.get(&(epoch, slice)).map_or(0.0, |(meter, before)| meter.read(false).since(*before).cpu.as_secs_f64() / self.speed)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Seconds {
        self.began.elapsed().as_secs_f64()
    }

    fn pressure(&self) -> Pressure {
        Pressure {
            epochs: self.sessions.epochs.load(Ordering::Relaxed),
            max_epochs: self.sessions.max_epochs,
            memory_used: self.sessions.engine.memory(),
            memory_limit: self.sessions.memory_limit,
            relief: RELIEF,
            ..Pressure::NONE
        }
    }

    fn say(&self, up: Up) {
        // Where nobody listens there is nobody to tell.
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
                    let mut state = self.state();
                    let State { machine, meters, .. } = &mut *state;
                    let said = machine.beat(self.now(), HEARTBEAT.as_secs_f64(), meters);
                    drop(state);
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
        let told = self.divided.annotation();
        let done = Annotation {
            cse: self.sessions.engine.name().to_owned(),
            rung: Some(Rung::Full),
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
        epochs.into_values().flat_map(|run| run.lanes).for_each(|lane| lane.abort());
        std::mem::take(&mut state.ahead).into_values().for_each(|read| read.abort());
    }

    fn order(self: &Arc<Self>, down: Down) {
        let lanes = self.sessions.lanes;
        let mut pressure = self.pressure();
        if self.exhausted.load(Ordering::Relaxed) {
            // What did not fit once will not fit again: rows only.
            pressure.memory_used = pressure.memory_used.max(pressure.memory_limit / 10 * 9 - LANE * lanes as u64 / 2);
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
                    }
                    state.meters.running.retain(|(of, _), _| *of != epoch);
                }
            }
        }
        self.read_ahead(&mut state);
    }

    /// Whether what runs may go on.
    fn reconsider(&self) {
        let pressure = self.pressure();
        let said = self.state().machine.reconsider(&pressure);
        if !said.is_empty() {
            self.changed.notify_waiters();
        }
        said.into_iter().for_each(|up| self.say(up));
    }

    /// Reads the slices that lanes will ask for next, and drops what none will.
    fn read_ahead(&self, state: &mut State) {
        let lanes = self.sessions.lanes;
        let next: Vec<(Rung, SliceId)> =
            state.machine.ahead().take(lanes).filter_map(|(epoch, slice)| Some((self.reads_at(state.machine.rung(epoch)?), slice))).collect();
        let wanted: BTreeSet<_> = next.iter().copied().collect();
        state.ahead.retain(|slice, read| {
            wanted.contains(slice) || {
                read.abort();
                false
            }
        });
        for (rung, slice) in next {
            let fetcher = self.divided.fetcher(rung).clone();
            state.ahead.entry((rung, slice)).or_insert_with(|| tokio::spawn(async move { fetcher.fetch(slice.0).await }));
        }
    }

    /// The rung that says which columns are read.
    fn reads_at(&self, rung: Rung) -> Rung {
        if self.divided.has_upper() { rung } else { Rung::Full }
    }

    /// Runs one of the lanes of an epoch, and ends the epoch if it is the last one.
    async fn lane(self: Arc<Self>, epoch: EpochId, rung: Rung) {
        let ended = match AssertUnwindSafe(self.work(epoch, rung)).catch_unwind().await {
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
            }
            Err(error) => self.failed(&mut state, epoch, rung, error),
        }
    }

    fn failed(&self, state: &mut State, epoch: EpochId, rung: Rung, error: Error) {
        let Some(run) = state.epochs.remove(&epoch) else { return };
        self.sessions.epochs.fetch_sub(1, Ordering::Relaxed);
        run.lanes.iter().for_each(AbortHandle::abort);
        state.meters.running.retain(|(of, _), _| *of != epoch);
        let kind = error.kind();
        let error = Arc::new(self.sessions.engine.named(error));
        let _ = self.ups.send(Ok(Message::Trouble { epoch, error }));
        let Some(failed) = state.machine.failed(epoch, !matches!(kind, Kind::Corrupt | Kind::NotFound | Kind::Invalid | Kind::Unsupported)) else { return };
        if kind == Kind::Exhausted {
            // Less of the sub-plan needs less memory: rows hold no states, and handing slices out holds next to nothing.
            let accepts = if rung == Rung::Full && self.divided.has_upper() { Rung::Filter } else { Rung::Raw };
            self.exhausted.store(true, Ordering::Relaxed);
            self.say(Up::Refused { epoch, accepts: Some(accepts), again: RELIEF, why: Why::Memory });
        } else {
            self.say(failed);
        }
    }

    async fn work(self: &Arc<Self>, epoch: EpochId, rung: Rung) -> Result<()> {
        let meter = Arc::new(Meter::default());
        self.state().meters.meters.push((Arc::clone(&meter), Reading::default()));
        let given = Arc::new(Mutex::new((0u64, 0u64)));
        let feed = LaneFeed(Arc::new(Feeding {
            shared: Arc::clone(self),
            epoch,
            rung,
            meter: Arc::clone(&meter),
            permit: Mutex::default(),
            last: Mutex::default(),
            given: Arc::clone(&given),
        }));
        let mut lane = self.divided.lane(rung, Arc::new(feed), meter)?;
        while let Some(batch) = lane.next().await? {
            {
                let mut sums = given.lock().unwrap_or_else(PoisonError::into_inner);
                *sums = (sums.0 + batch.num_rows() as u64, sums.1 + batch_bytes(&batch));
            }
            if !self.send(epoch, rung, batch).await {
                return Ok(());
            }
        }
        self.divided.ended(rung, &lane);
        Ok(())
    }

    /// Whether the epoch is still wanted.
    async fn send(&self, epoch: EpochId, rung: Rung, batch: RecordBatch) -> bool {
        let (rows, bytes) = (batch.num_rows() as u64, batch_bytes(&batch));
        let number = {
            let mut state = self.state();
            state.rows_out += rows;
            state.bytes_out += bytes;
            let Some(run) = state.epochs.get_mut(&epoch) else { return false };
            run.totals.rows += rows;
            run.totals.bytes += bytes;
            run.totals.batches += 1;
            run.totals.batches - 1
        };
        self.batches.send(Ok(Message::Batch { epoch, number, rung, batch })).await.is_ok()
    }
}

/// Gives a lane its slices.
#[derive(Debug)]
struct LaneFeed(Arc<Feeding>);

#[derive(Debug)]
struct Feeding {
    shared: Arc<Shared>,
    epoch: EpochId,
    rung: Rung,
    meter: Arc<Meter>,
    /// While it works on a slice.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// When its last slice was done.
    last: Mutex<Reading>,
    /// Rows and bytes that the lane has given since then.
    given: Arc<Mutex<(u64, u64)>>,
}

impl Feeding {
    /// Waits for a slice and a turn, and reads it; `None` at the end of the epoch.
    async fn next(self: Arc<Self>) -> Option<Result<Fed>> {
        let shared = &self.shared;
        let slice = loop {
            let waiting = Instant::now();
            let permit = Arc::clone(shared.sessions.engine.turns()).acquire_owned().await.ok()?;
            self.meter.waited(waiting.elapsed());
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let next = {
                let mut state = shared.state();
                let next = state.machine.next(shared.now(), self.epoch);
                if let Next::Slice(slice) = next {
                    let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
                    state.meters.running.insert((self.epoch, slice), (Arc::clone(&self.meter), last));
                }
                next
            };
            match next {
                Next::Slice(slice) => {
                    *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
                    break slice;
                }
                Next::End => return None,
                Next::Wait => {
                    drop(permit);
                    changed.await;
                }
            }
        };
        let rung = shared.reads_at(self.rung);
        let read = {
            let mut state = shared.state();
            let read = state.ahead.remove(&(rung, slice));
            shared.read_ahead(&mut state);
            read
        };
        Some(match read {
            Some(read) => read.await.unwrap_or_else(|e| Err(Error::internal("a task that reads the store stopped").because(e))),
            None => shared.divided.fetcher(rung).fetch(slice.0).await,
        })
    }
}

impl Feed for LaneFeed {
    fn next(&self) -> BoxFuture<'static, Option<Result<Fed>>> {
        Arc::clone(&self.0).next().boxed()
    }

    fn done(&self, stripe: u32) {
        let Feeding { shared, epoch, meter, permit, last, given, .. } = self.0.as_ref();
        permit.lock().unwrap_or_else(PoisonError::into_inner).take();
        let now = meter.read(true);
        let before = std::mem::replace(&mut *last.lock().unwrap_or_else(PoisonError::into_inner), now);
        let (rows_out, bytes_out) = std::mem::take(&mut *given.lock().unwrap_or_else(PoisonError::into_inner));
        let slice = SliceId(stripe);
        let cost = SliceCost { slice, cpu: now.since(before).cpu.as_secs_f64() / shared.sessions.speed, rows_out, bytes_out };
        let mut state = shared.state();
        let State { machine, meters, .. } = &mut *state;
        meters.running.remove(&(*epoch, slice));
        let said = machine.slice_done(shared.now(), *epoch, cost, (0, shared.divided.memory()), meters);
        drop(state);
        // The last one to end an epoch that others wait for.
        shared.changed.notify_waiters();
        said.into_iter().for_each(|up| shared.say(up));
    }
}
