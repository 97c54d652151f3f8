//! The task of an adaptive scan: messages of drives become events of the state machine, and the task carries out its
//! actions.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::FutureExt;
use skytether_common::{Error, Result};
use skytether_device::OpenReply;
use skytether_device::negotiate::open_or_execute;
use skytether_device::session::Message;
use skytether_device::size::batch_bytes;
use skytether_engine::feed::FetchedSlice;
use skytether_plan::error::to_datafusion;
use skytether_scheduler::ledger::Dropped;
use skytether_scheduler::message::{Completed, CseId, Down, EpochId, Order, PushdownLevel, SliceCost, SliceId, Up};
use skytether_scheduler::query::{Action, Event, Policy, Query, Setup};
use skytether_scheduler::work;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::adaptive::backpressure::{Flow, OutputQueue};
use crate::adaptive::drive_state::{Drive, Handed};
use crate::adaptive::local_worker::{LocalWorker, WorkDone};
use crate::adaptive::reconnect::{self, reconnecting};
use crate::adaptive::scan_setup::SliceSource;
use crate::adaptive::scan_setup::{Member, Start};
use crate::adaptive::spill_buffer::{BufferedBatch, SpillBuffer};
use crate::adaptive::trace as traced;
use crate::drive_reader::WireCounters;
use crate::forecast;
use crate::forecast::MOST;
use skytether_api::estimate::{DriveShare, WorkSplit};
use skytether_device::conform::conform;

/// Capacity of the channel of all drives' messages.
const MESSAGES: usize = 64;

/// The share of the memory for waiting rows that the states of all lanes may take, by the estimated number of groups.
const STATES: f64 = 0.5;

/// What an epoch delivers.
#[derive(Debug)]
pub(crate) enum Batch {
    Rows(BufferedBatch),
    Stored(FetchedSlice),
}

/// What the task receives.
pub(crate) enum DriveReply {
    Opened(usize, Box<Result<OpenReply>>),
    /// A message, or the end, of a drive's session with this number.
    Message(usize, u32, Option<Result<Message>>),
    Fetched(usize, EpochId, u32, Result<FetchedSlice>),
    LocalWorker(usize, WorkDone),
    Whole(Result<()>),
}

/// A raw epoch whose slices are being read.
pub(crate) struct Fetching {
    tasks: Vec<AbortHandle>,
    slices: Vec<SliceId>,
    came: u32,
    bytes: u64,
    began: Instant,
}

pub(crate) struct Task {
    pub(crate) drives: Vec<Drive>,
    pub(crate) query: Query<Batch>,
    pub(crate) began: Instant,
    pub(crate) inbox: mpsc::UnboundedSender<DriveReply>,
    pub(crate) messages: mpsc::Sender<DriveReply>,
    pub(crate) fetching: BTreeMap<EpochId, Fetching>,
    pub(crate) schema: SchemaRef,
    /// Events that follow from actions.
    pub(crate) follow: VecDeque<Event<Batch>>,
    pub(crate) next_slice: u32,
    pub(crate) flow: Arc<Flow>,
    /// Where rows wait for their epochs to be complete, and for their readers.
    pub(crate) room: Arc<SpillBuffer>,
    /// Tasks that end together with this one.
    pub(crate) tasks: JoinSet<()>,
    /// Tasks that pass rows to their readers.
    pub(crate) outlets: JoinSet<()>,
    /// How the scan ended; for an error, the drive that caused it.
    pub(crate) outcome: Option<std::result::Result<(), (Option<usize>, Error)>>,
    pub(crate) silence: Duration,
    /// Lanes on the host, and drives that run their sub-plans as a whole, that have not ended.
    pub(crate) left: usize,
    /// How much of the sub-plan is wanted: `Full`, or `Filter` where the parent wants no more.
    pub(crate) top: PushdownLevel,
    /// Where the slices come from, if a parent feeds them.
    pub(crate) source: Option<Arc<dyn SliceSource>>,
    /// Whether the source has said that there are no more slices.
    pub(crate) fed: bool,
    /// Slices that are processed here, by epoch; kept to report them to the source.
    pub(crate) handed: BTreeMap<EpochId, Vec<u32>>,
    /// The scan's setup, until the forecast is made from it.
    pub(crate) expects: Option<Setup>,
    pub(crate) expected: Option<WorkSplit>,
}

pub(crate) async fn work_off(start: Start) -> Result<()> {
    let (inbox, mut heard) = mpsc::unbounded_channel();
    let (messages, mut said) = mpsc::channel(MESSAGES);
    let setup = start.setup;
    let adaptive = setup.policy == Policy::Adaptive && start.source.is_none();
    let silence = setup.limits.silence;
    let lanes = lanes(&setup, start.members.len());
    let query = Query::new(setup.clone());
    let query = match start.source.as_ref().and_then(|source| source.known()) {
        Some(cost) => query.with_cost(cost),
        None => query,
    };
    let mut task = Task {
        drives: Vec::new(),
        query,
        began: Instant::now(),
        inbox,
        messages,
        fetching: BTreeMap::new(),
        schema: start.schema,
        follow: VecDeque::new(),
        next_slice: 0,
        flow: Flow::new(),
        room: SpillBuffer::new(start.runtime, start.spills),
        tasks: JoinSet::new(),
        outlets: JoinSet::new(),
        outcome: None,
        silence: Duration::from_secs_f64(silence.clamp(0.001, 3600.0)),
        left: 0,
        top: start.top,
        source: start.source,
        fed: false,
        handed: BTreeMap::new(),
        expects: adaptive.then_some(setup),
        expected: None,
    };
    for (at, member) in start.members.into_iter().enumerate() {
        let drive = task.drive(at, member, lanes);
        task.drives.push(drive);
        task.open(at);
    }
    loop {
        if task.drives.iter().all(|drive| drive.output.reading.closed.load(Ordering::Relaxed)) {
            // No reader is left.
            return Ok(());
        }
        // Changes from here on wake the select below.
        let source = task.source.clone().filter(|_| !task.fed);
        let changed = source.as_ref().map(|source| source.changed());
        task.feed()?;
        task.expect();
        while let Some(event) = task.follow.pop_front() {
            task.handle(event);
        }
        match task.outcome.take() {
            Some(Ok(())) => return task.finish(&mut heard, &mut said).await,
            Some(Err((drive, error))) => {
                return Err(match drive.and_then(|at| task.drives.get(at)) {
                    Some(drive) => drive.reading.attribute_error(&drive.plan, error).await,
                    None => error,
                });
            }
            None => {}
        }
        let now = task.began.elapsed().as_secs_f64();
        let wake = task.query.wake().map_or(0.05, |at| (at - now).clamp(0.0, 1.0));
        let flow = Arc::clone(&task.flow);
        let clogged = flow.full();
        tokio::select! {
            Some(what) = heard.recv() => task.hear(what)?,
            Some(what) = said.recv(), if !clogged => task.hear(what)?,
            () = flow.room.notified(), if clogged => {}
            () = changed.unwrap_or_else(|| futures::future::pending().boxed()), if source.is_some() => {}
            () = tokio::time::sleep(Duration::from_secs_f64(wake)) => {
                if clogged {
                    // These drives are silent because the task does not read their messages.
                    for at in 0..task.drives.len() {
                        task.handle(Event::Alive { cse: CseId(at as u32), epoch: None });
                    }
                }
                task.handle(Event::Tick);
            }
        }
    }
}

/// Lanes on the host for the raw slices of one drive. Cores are shared evenly among `drives`. Each lane has its own
/// states, so there are fewer lanes where states would take more than [`STATES`] of the memory.
fn lanes(setup: &Setup, drives: usize) -> usize {
    let drives = drives.max(1);
    let cores = setup.host.cores as usize / drives;
    let states = match setup.work.result {
        work::Output::Groups { groups, bytes_per_group } => groups * bytes_per_group * drives as f64,
        work::Output::Rows { .. } => 0.0,
    };
    let most = setup.limits.memory as f64 * STATES / states.max(1.0);
    cores.min(most as usize).max(1)
}

impl Task {
    /// The state for drive `at`; the host processes its slices in `lanes` lanes.
    fn drive(&mut self, at: usize, member: Member, lanes: usize) -> Drive {
        let Member { reading, plan, faults, engine, output } = member;
        let inbox = self.inbox.clone();
        let tells = Arc::clone(&self.flow);
        let tell = Arc::new(move |worked| {
            match &worked {
                WorkDone::Rows(batch) => {
                    // This blocks the lane's own thread only.
                    while tells.clogged() && !inbox.is_closed() {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    tells.more(batch_bytes(batch));
                }
                WorkDone::Epoch(epoch, _) => tells.worked(*epoch),
                WorkDone::Over(_) => {}
            }
            inbox.send(DriveReply::LocalWorker(at, worked)).is_ok()
        });
        let (mouth, mut waiting) = OutputQueue::new(&output);
        self.flow.leads_to(&mouth);
        let (flow, reading, schema) = (Arc::clone(&self.flow), Arc::new(reading), Arc::clone(&self.schema));
        let (records, reads) = (Arc::clone(&reading), Arc::clone(&mouth.reading));
        self.outlets.spawn(async move {
            while let Some((rows, bytes)) = waiting.recv().await {
                let batch = rows.load().await.and_then(|batch| conform(&batch, &schema, &records.drive().info().name));
                let (failed, sent) = match batch {
                    Ok(batch) if batch.num_rows() == 0 => (false, true),
                    Ok(batch) => {
                        records.records(&batch);
                        (false, output.send(Ok(batch)).await.is_ok())
                    }
                    Err(error) => (true, output.send(Err(to_datafusion(error))).await.is_ok()),
                };
                flow.read(&reads, bytes);
                if failed || !sent {
                    break;
                }
            }
            reads.closed.store(true, Ordering::Relaxed);
            flow.room.notify_waiters();
        });
        Drive {
            cse: Arc::clone(reading.drive()),
            faults,
            above: LocalWorker::new(engine, plan.clone(), tell, self.top, lanes, reconnect::patience(self.silence)),
            reading,
            plan,
            output: mouth,
            orders: None,
            held: Vec::new(),
            sessions: 0,
            heard: Instant::now(),
            opening: false,
            is_surveyed: false,
            misannounced: false,
            stored: Vec::new(),
            top: self.top,
            lower: None,
            opened: HashMap::new(),
            owes: HashSet::new(),
            stripes: Vec::new(),
            first: 0,
            places: HashMap::new(),
            silent: false,
            trouble: None,
            whole: false,
            told: None,
            before: WireCounters::default(),
            told_above: Duration::ZERO,
            handed_out: Handed::default(),
        }
    }

    /// Makes the forecast, once all drives have announced their slices.
    fn expect(&mut self) {
        if self.expects.is_none() || !self.drives.iter().all(|drive| drive.is_surveyed) {
            return;
        }
        if self.drives.iter().map(|drive| drive.stored.len()).sum::<usize>() > MOST {
            self.expects = None;
            return;
        }
        if let Some(setup) = self.expects.take() {
            let names: Vec<_> = self.drives.iter().map(|drive| drive.cse.info().name.as_str()).collect();
            self.expected = Some(forecast::expected(setup, &names, self.drives.iter().map(|drive| drive.stored.clone()).collect()));
        }
    }

    /// What happened, in the form of the forecast.
    pub(crate) fn actual(&self) -> WorkSplit {
        let drives = self.drives.iter().enumerate().map(|(at, drive)| {
            let Handed { slices, filtered, full, .. } = drive.handed_out;
            // The level at which the drive processed most of its slices.
            let rung = if filtered > full { Some(PushdownLevel::Filter) } else { (full > 0).then_some(self.top) };
            let (slices_filtered, seconds_per_slice) = (if full > 0 { filtered } else { 0 }, self.query.slice(at, rung));
            DriveShare { name: drive.cse.info().name.clone(), rung, slices: filtered + full, slices_filtered, handed_out: slices, seconds_per_slice }
        });
        WorkSplit { seconds: self.began.elapsed().as_secs_f64(), drives: drives.collect() }
    }

    /// Opens a session at a drive, for the first time or again.
    pub(crate) fn open(&mut self, at: usize) {
        let drive = &mut self.drives[at];
        if drive.opening {
            return;
        }
        drive.opening = true;
        // A drive that was there before may be restarting.
        let known = drive.is_surveyed || self.source.is_some();
        let patience = if known { reconnect::patience(self.silence) } else { Duration::ZERO };
        let (cse, plan, reading, inbox) = (Arc::clone(&drive.cse), drive.plan.clone(), Arc::clone(&drive.reading), self.inbox.clone());
        self.tasks.spawn(async move {
            let open = || reading.start(&plan, open_or_execute(cse.as_ref(), plan.clone()));
            let opened = match reconnecting(patience, open).await {
                Err(e) => Err(reading.attribute_error(&plan, e).await),
                opened => opened,
            };
            let _ = inbox.send(DriveReply::Opened(at, Box::new(opened)));
        });
    }

    pub(crate) fn handle(&mut self, event: Event<Batch>) {
        let now = self.began.elapsed().as_secs_f64();
        traced::event(now, &event);
        for action in self.query.handle(now, event) {
            traced::action(now, &action);
            self.act(action);
        }
    }

    fn act(&mut self, action: Action<Batch>) {
        match action {
            Action::Send { cse, down } => self.send(cse.0 as usize, down),
            Action::Count { epoch, cse, rung, slices, batches } => self.count(epoch, cse.0 as usize, rung, &slices, batches),
            Action::Stuck { cse, seconds } => {
                let drive = &mut self.drives[cse.0 as usize];
                let name = &drive.cse.info().name;
                let text = format!(
                    "{name} has done nothing for {seconds:.1} s in the middle of a query, although it gives signs of life: its disk may hang; see its log"
                );
                drive.faults.stalled(&drive.plan, &text);
                drive.trouble = Some(Arc::new(Error::unavailable(text)));
                // The rest of this session is ignored; the next order opens another session.
                if drive.orders.take().is_some() {
                    drive.sessions += 1;
                }
            }
            Action::Dropped { epoch, why } => {
                if let Some(fetching) = self.fetching.remove(&epoch) {
                    fetching.tasks.iter().for_each(AbortHandle::abort);
                }
                let of = self.drives.iter().position(|drive| drive.opened.contains_key(&epoch));
                if let (Dropped::Garbage, Some(at)) = (why, of) {
                    let name = &self.drives[at].cse.info().name;
                    let text =
                        format!("{name} told of slices or rows that it was not asked for in the middle of a query: do host and drive have the same version?");
                    self.garbled(at, Error::corrupt(text));
                }
            }
            Action::Finish => self.outcome = Some(Ok(())),
            Action::Fail { cse, .. } => {
                let drive = &self.drives[cse.0 as usize];
                let name = &drive.cse.info().name;
                let error = match &drive.trouble {
                    Some(error) => Error::new(error.kind(), error.message()).with_source(Arc::clone(error)),
                    None => Error::unavailable(format!("{name} did not finish its part, and nobody else can read its slices")),
                };
                self.outcome = Some(Err((Some(cse.0 as usize), error)));
            }
        }
    }

    fn send(&mut self, at: usize, down: Down) {
        match &down.order {
            Order::Open { rung: PushdownLevel::Raw, slices, .. } => return self.fetch(at, down.epoch, slices.clone()),
            Order::Cancel => {
                if let Some(fetching) = self.fetching.remove(&down.epoch) {
                    fetching.tasks.iter().for_each(AbortHandle::abort);
                    // The epoch was given up because nothing came. The next read fails over, if the drive has a
                    // fallback.
                    let waited = fetching.began.elapsed();
                    if waited > self.silence && fetching.came == 0 {
                        let drive = &mut self.drives[at];
                        let (name, seconds) = (&drive.cse.info().name, waited.as_secs_f64());
                        let text = format!(
                            "{name} has done nothing for {seconds:.1} s in the middle of a query, when a slice was read from it: its disk may hang; see its log"
                        );
                        drive.faults.stalled(&drive.plan, &text);
                        drive.trouble = Some(Arc::new(Error::unavailable(text)));
                    }
                    return;
                }
            }
            _ => {}
        }
        let (silence, top) = (self.silence, self.top);
        let drive = &mut self.drives[at];
        if matches!(down.order, Order::Open { .. }) && drive.orders.is_some() && drive.heard.elapsed() > silence {
            // The machine has given up all open epochs of this drive. A drive that hangs gets a new session.
            drive.orders = None;
            drive.sessions += 1;
            let name = &drive.cse.info().name;
            drive.trouble = Some(Arc::new(Error::unavailable(format!("{name} has been silent for {:.1} s in the middle of a query", silence.as_secs_f64()))));
        }
        let order = match down.order {
            Order::Open { rung, slices, close } => {
                // Above the wanted level nothing of the sub-plan is left, which the machine does not know.
                drive.opened.insert(down.epoch, rung);
                drive.owes.insert(down.epoch);
                Order::Open { rung: rung.min(top), slices: drive.to_stripes(&slices), close }
            }
            Order::Feed { slices } => Order::Feed { slices: drive.to_stripes(&slices) },
            Order::Take { slices } => Order::Take { slices: drive.to_stripes(&slices) },
            other => other,
        };
        let down = Down { order, ..down };
        match &drive.orders {
            Some(orders) => {
                // A session that has ended reports that itself.
                let _ = orders.send(down);
            }
            // The order was not sent yet. Cancelling it must not open a session.
            None if matches!(down.order, Order::Cancel) => drive.held.retain(|held| held.epoch != down.epoch),
            None => {
                drive.held.push(down);
                self.open(at);
            }
        }
    }

    /// Reads slices as they are stored.
    fn fetch(&mut self, at: usize, epoch: EpochId, slices: Vec<SliceId>) {
        let cse = CseId(at as u32);
        self.follow.push_back(Event::Up { cse, up: Up::Accepted { epoch } });
        let mut tasks = Vec::with_capacity(slices.len());
        for (number, slice) in (0u32..).zip(&slices) {
            let (above, inbox) = (Arc::clone(&self.drives[at].above), self.inbox.clone());
            let stripe = self.drives[at].stripe(*slice);
            tasks.push(self.tasks.spawn(async move {
                let fed = match stripe {
                    Some(stripe) => above.fetch(stripe).await,
                    None => Err(Error::internal("a slice that the drive does not have was to be read")),
                };
                let _ = inbox.send(DriveReply::Fetched(at, epoch, number, fed));
            }));
        }
        self.fetching.insert(epoch, Fetching { tasks, slices, came: 0, bytes: 0, began: Instant::now() });
    }

    fn fetched(&mut self, at: usize, epoch: EpochId, number: u32, fed: Result<FetchedSlice>) {
        let cse = CseId(at as u32);
        match fed {
            Ok(fed) => {
                let bytes = fed.bytes();
                let drive = &mut self.drives[at];
                drive.handed_out.bytes += bytes;
                drive.reading.on_raw_bytes(bytes);
                self.handle(Event::Batch { cse, epoch, number, bytes, batch: Batch::Stored(fed) });
                let Some(fetching) = self.fetching.get_mut(&epoch) else { return };
                fetching.came += 1;
                fetching.bytes += bytes;
                if fetching.came as usize == fetching.slices.len() {
                    let Some(done) = self.fetching.remove(&epoch) else { return };
                    let end = Completed {
                        epoch,
                        rung: PushdownLevel::Raw,
                        slices: done.slices,
                        batches: done.came,
                        rows: 0,
                        bytes: done.bytes,
                        cpu: 0.0,
                        wall: done.began.elapsed().as_secs_f64(),
                        bytes_read: done.bytes,
                    };
                    self.handle(Event::Up { cse, up: Up::EpochDone(end) });
                }
            }
            Err(error) => {
                let again = !error.kind().is_permanent();
                self.drives[at].trouble = Some(Arc::new(error));
                if let Some(fetching) = self.fetching.remove(&epoch) {
                    fetching.tasks.iter().for_each(AbortHandle::abort);
                    self.handle(Event::Up { cse, up: Up::Failed { epoch: Some(epoch), again } });
                }
            }
        }
    }

    fn count(&mut self, epoch: EpochId, at: usize, rung: PushdownLevel, slices: &[SliceId], batches: Vec<Batch>) {
        let (mut rows, mut stored) = (Vec::new(), Vec::new());
        for batch in batches {
            match batch {
                Batch::Rows(kept) => rows.push(kept),
                Batch::Stored(fed) => stored.push(fed),
            }
        }
        let drive = &mut self.drives[at];
        let covered = slices.len() as u64;
        if let Some(source) = &self.source {
            let stripes = slices.iter().filter_map(|slice| drive.stripe(*slice));
            match rung {
                PushdownLevel::Raw => drop(self.handed.insert(epoch, stripes.collect())),
                PushdownLevel::Filter | PushdownLevel::Full => {
                    stripes.for_each(|stripe| source.done(SliceCost { slice: SliceId(stripe), cpu: 0.0, rows_out: 0, bytes_out: 0 }))
                }
            }
        }
        let has_upper = self.query.cost().has_upper();
        match rung {
            PushdownLevel::Raw => {
                drive.handed_out.take(covered, &stored);
                drive.above.slices(epoch, stored);
            }
            PushdownLevel::Filter if has_upper => {
                drive.handed_out.filtered += covered;
                self.flow.waits(epoch, rows.iter().map(BufferedBatch::bytes).sum());
                drive.above.rows(epoch, rows);
            }
            PushdownLevel::Filter | PushdownLevel::Full => {
                drive.handed_out.full += covered;
                for batch in rows {
                    self.give(at, batch);
                }
                let drive = &self.drives[at];
                if self.source.is_none() && drive.handed_out.full == drive.stripes.len() as u64 {
                    drive.output.reading.over.store(true, Ordering::Relaxed);
                }
                self.follow.push_back(Event::Worked { epoch, cpu: 0.0, filtered: None, held: None });
            }
        }
    }

    /// Queues rows of drive `at` for their reader.
    fn give(&mut self, at: usize, rows: BufferedBatch) {
        match waiting(&self.flow, &self.room, rows) {
            Ok((rows, bytes)) => drop(self.flow.give(&self.drives[at].output, rows, bytes)),
            Err(error) => self.outcome = Some(Err((None, error))),
        }
    }

    /// Queues rows that the lane has counted as waiting.
    pub(crate) fn pass(&mut self, at: usize, batch: RecordBatch) {
        let bytes = batch_bytes(&batch);
        self.flow.give(&self.drives[at].output, BufferedBatch::loose(batch), bytes);
    }

    pub(crate) fn hear(&mut self, what: DriveReply) -> Result<()> {
        match what {
            DriveReply::Opened(at, opened) => self.opened(at, *opened)?,
            DriveReply::Message(at, session, message) => self.message(at, session, message),
            DriveReply::Fetched(at, epoch, number, fed) => self.fetched(at, epoch, number, fed),
            DriveReply::LocalWorker(at, worked) => match worked {
                WorkDone::Rows(batch) => self.pass(at, batch),
                WorkDone::Epoch(epoch, cpu) => {
                    self.worked(epoch, cpu);
                    self.drives[at].tell_above();
                    self.handle(Event::Worked { epoch, cpu, filtered: None, held: None });
                }
                WorkDone::Over(over) => {
                    self.left = self.left.saturating_sub(1);
                    self.drives[at].tell_above();
                    if let Err(error) = over {
                        self.outcome = Some(Err((Some(at), error)));
                    }
                }
            },
            DriveReply::Whole(over) => {
                self.left = self.left.saturating_sub(1);
                over?;
            }
        }
        Ok(())
    }
}

/// Rows for a reader, and the bytes of memory that they count for: in memory up to the bound, the rest on disk.
pub(crate) fn waiting(flow: &Flow, room: &SpillBuffer, rows: BufferedBatch) -> Result<(BufferedBatch, u64)> {
    let rows = match rows.in_memory() {
        Some(batch) if flow.is_full() => room.put_aside(batch)?,
        _ => rows,
    };
    let bytes = rows.bytes();
    flow.more(bytes);
    Ok((rows, bytes))
}
