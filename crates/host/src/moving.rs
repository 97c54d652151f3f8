//! A scan whose work moves: carries out what `skytether_adapt::query` decides (ARCHITECTURE.md, "Work that moves").
//!
//! One task per scan holds the machine. What drives say and what is worked off here comes to it through one channel; its actions go to the drives' sessions, to [`above`], and to the outputs, one per drive. A drive
//! that runs its sub-plan as a whole is read beside it, and has no slices in the machine's eyes.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use futures::StreamExt;
use skytether_adapt::cost::{MEASURED, Work};
use skytether_adapt::message::{Completed, CseId, Down, EpochId, Order, Rung, Slice, SliceCost, SliceId, Up};
use skytether_adapt::profile::Profile;
use skytether_adapt::query::{Action, Event, Limits, Policy, Query, Setup};
use skytether_common::{Error, Kind, Result};
use skytether_engine::feed::Fed;
use skytether_plan::error::to_datafusion;
use skytether_wire::session::{Message, Session};
use skytether_wire::size::batch_bytes;
use skytether_wire::{Annotation, Cse, Opened, SubPlan};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use crate::moving::above::{Above, EngineAbove, Worked};
use crate::scan::{Reading, adapt, check};

pub(crate) mod above;
pub(crate) mod work;

/// Rows that wait for whoever reads them, in bytes, before nothing more is taken in.
const WAITING: u64 = 32 << 20;

/// Milliseconds after which rows that nobody reads hold nothing up.
const STUCK: u64 = 1000;

/// Messages of all drives that wait for the machine.
const MESSAGES: usize = 64;

/// How long a drive that was lost has to come back, and the share of the silence that this is at most.
const COMING_BACK: (Duration, f64) = (Duration::from_secs(4), 0.8);

/// How often it is looked whether it has.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// How long drives may take to tell what they did, once nothing more is asked of them.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A drive that takes part.
pub(crate) struct Member {
    pub(crate) reading: Reading,
    pub(crate) plan: SubPlan,
    /// What works off what it hands out.
    pub(crate) engine: Arc<EngineAbove>,
    pub(crate) output: mpsc::Sender<DfResult<RecordBatch>>,
}

/// What a scan starts from.
pub(crate) struct Start {
    pub(crate) members: Vec<Member>,
    pub(crate) work: Work,
    pub(crate) policy: Policy,
    pub(crate) host: Profile,
    pub(crate) profiles: Vec<Profile>,
    pub(crate) limits: Limits,
    /// The columns of all that comes out.
    pub(crate) schema: SchemaRef,
}

/// What an epoch delivers.
#[derive(Debug)]
enum Batch {
    Rows(RecordBatch),
    Stored(Fed),
}

/// What the task hears.
enum Heard {
    Opened(usize, Box<Result<Opened>>),
    /// The message, or the end, of a drive's so-and-so-many-th session.
    Message(usize, u32, Option<Result<Message>>),
    Fetched(usize, EpochId, u32, Result<Fed>),
    Above(usize, Worked),
    Whole(Result<()>),
}

/// The rows of one drive on their way to whoever reads them.
struct Output {
    /// Rows, and the bytes that they count for.
    queue: mpsc::UnboundedSender<(RecordBatch, u64)>,
    closed: Arc<AtomicBool>,
}

/// Rows that wait for readers, of all drives.
struct Flow {
    began: Instant,
    bytes: AtomicU64,
    /// When something was last read, in milliseconds since `began`.
    read: AtomicU64,
    room: Notify,
    /// Bytes of filtered rows that wait to be worked off here, by their epochs.
    filtered: Mutex<BTreeMap<EpochId, u64>>,
}

impl Flow {
    fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), bytes: AtomicU64::new(0), read: AtomicU64::new(0), room: Notify::new(), filtered: Mutex::default() })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether enough waits. Where nobody reads any of it for long, somebody may be waiting for the rows of another drive first.
    fn clogged(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > WAITING && self.now().saturating_sub(self.read.load(Ordering::Relaxed)) < STUCK
    }

    fn filtered(&self) -> std::sync::MutexGuard<'_, BTreeMap<EpochId, u64>> {
        self.filtered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the task is to take nothing more in: of rows for readers, or of rows that are to be aggregated here.
    fn full(&self) -> bool {
        self.clogged() || self.filtered().values().sum::<u64>() > WAITING
    }

    /// Filtered rows wait to be worked off.
    fn waits(&self, epoch: EpochId, bytes: u64) {
        self.filtered().insert(epoch, bytes);
    }

    /// An epoch is worked off.
    fn worked(&self, epoch: EpochId) {
        if self.filtered().remove(&epoch).is_some() {
            self.room.notify_waiters();
        }
    }

    fn more(&self, batch: &RecordBatch) {
        if self.bytes.fetch_add(batch_bytes(batch), Ordering::Relaxed) == 0 {
            self.read.store(self.now(), Ordering::Relaxed);
        }
    }

    fn less(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.read.store(self.now(), Ordering::Relaxed);
        self.room.notify_waiters();
    }
}

/// The task's view of a drive.
struct Drive {
    reading: Arc<Reading>,
    plan: SubPlan,
    cse: Arc<dyn Cse>,
    above: Arc<Above>,
    output: Output,
    /// Orders go here; nothing while it is being opened, and where it runs its sub-plan as a whole.
    orders: Option<mpsc::UnboundedSender<Down>>,
    /// Orders for a session that is being opened.
    held: Vec<Down>,
    sessions: u32,
    /// When the session was last heard of.
    heard: Instant,
    opening: bool,
    surveyed: bool,
    /// Stripes by the numbers of their slices, from `first` on.
    stripes: Vec<u32>,
    first: u32,
    places: HashMap<u32, u32>,
    trouble: Option<Arc<Error>>,
    whole: bool,
    /// Its own figures, once told.
    told: Option<Annotation>,
    handed_out: Handed,
}

/// What went up from a drive otherwise than as states.
#[derive(Debug, Clone, Copy, Default)]
struct Handed {
    slices: u64,
    bytes: u64,
    filtered: u64,
    full: u64,
}

/// Raw epochs that are being read.
struct Fetching {
    tasks: Vec<AbortHandle>,
    slices: Vec<SliceId>,
    came: u32,
    bytes: u64,
    began: Instant,
}

struct Task {
    drives: Vec<Drive>,
    query: Query<Batch>,
    began: Instant,
    inbox: mpsc::UnboundedSender<Heard>,
    messages: mpsc::Sender<Heard>,
    fetching: BTreeMap<EpochId, Fetching>,
    schema: SchemaRef,
    /// Events that follow from actions.
    follow: VecDeque<Event<Batch>>,
    next_slice: u32,
    flow: Arc<Flow>,
    /// What is to be ended with this.
    tasks: JoinSet<()>,
    /// Rows on their way to their readers.
    outlets: JoinSet<()>,
    /// How it ended; by the fault of which drive.
    outcome: Option<std::result::Result<(), (Option<usize>, Error)>>,
    silence: Duration,
    /// Lanes above, and drives that run their sub-plans as a whole, that are not over.
    left: usize,
}

/// Runs a scan to its end. Errors go to the first output that takes one.
pub(crate) async fn run(start: Start) {
    let outputs: Vec<_> = start.members.iter().map(|member| member.output.clone()).collect();
    if let Err(error) = work_off(start).await {
        for output in &outputs {
            if output.is_closed() {
                continue;
            }
            let _ = output.send(Err(to_datafusion(error))).await;
            return;
        }
    }
}

async fn work_off(start: Start) -> Result<()> {
    let (inbox, mut heard) = mpsc::unbounded_channel();
    let (messages, mut said) = mpsc::channel(MESSAGES);
    let setup = Setup { work: start.work, host: start.host, cses: start.profiles, policy: start.policy, limits: start.limits, priors: MEASURED };
    let mut task = Task {
        drives: Vec::new(),
        query: Query::new(setup),
        began: Instant::now(),
        inbox,
        messages,
        fetching: BTreeMap::new(),
        schema: start.schema,
        follow: VecDeque::new(),
        next_slice: 0,
        flow: Flow::new(),
        tasks: JoinSet::new(),
        outlets: JoinSet::new(),
        outcome: None,
        silence: Duration::from_secs_f64(start.limits.silence.clamp(0.001, 3600.0)),
        left: 0,
    };
    for (at, member) in start.members.into_iter().enumerate() {
        let drive = task.drive(at, member);
        task.drives.push(drive);
        task.open(at);
    }
    loop {
        if task.drives.iter().all(|drive| drive.output.closed.load(Ordering::Relaxed)) {
            // Nobody reads any more.
            return Ok(());
        }
        while let Some(event) = task.follow.pop_front() {
            task.handle(event);
        }
        match task.outcome.take() {
            Some(Ok(())) => return task.finish(&mut heard, &mut said).await,
            Some(Err((drive, error))) => {
                return Err(match drive.and_then(|at| task.drives.get(at)) {
                    Some(drive) => drive.reading.at_fault(&drive.plan, error).await,
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
            () = tokio::time::sleep(Duration::from_secs_f64(wake)) => {
                if clogged {
                    // That nothing is heard of them is our doing.
                    for at in 0..task.drives.len() {
                        task.handle(Event::Alive { cse: CseId(at as u32), epoch: None });
                    }
                }
                task.handle(Event::Tick);
            }
        }
    }
}

impl Task {
    fn drive(&mut self, at: usize, member: Member) -> Drive {
        let Member { reading, plan, engine, output } = member;
        let inbox = self.inbox.clone();
        let tells = Arc::clone(&self.flow);
        let tell = Arc::new(move |worked| {
            match &worked {
                Worked::Rows(batch) => {
                    // The thread is the lane's own.
                    while tells.clogged() && !inbox.is_closed() {
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    tells.more(batch);
                }
                Worked::Epoch(epoch, _) => tells.worked(*epoch),
                Worked::Over(_) => {}
            }
            inbox.send(Heard::Above(at, worked)).is_ok()
        });
        let (queue, mut waiting) = mpsc::unbounded_channel::<(RecordBatch, u64)>();
        let (closed, flow) = (Arc::new(AtomicBool::new(false)), Arc::clone(&self.flow));
        let (is_closed, reading) = (Arc::clone(&closed), Arc::new(reading));
        let records = Arc::clone(&reading);
        self.outlets.spawn(async move {
            while let Some((batch, bytes)) = waiting.recv().await {
                records.records(&batch);
                let sent = output.send(Ok(batch)).await;
                flow.less(bytes);
                if sent.is_err() {
                    break;
                }
            }
            is_closed.store(true, Ordering::Relaxed);
            flow.room.notify_waiters();
        });
        Drive {
            cse: Arc::clone(reading.drive()),
            above: Above::new(engine, plan.clone(), tell),
            reading,
            plan,
            output: Output { queue, closed },
            orders: None,
            held: Vec::new(),
            sessions: 0,
            heard: Instant::now(),
            opening: false,
            surveyed: false,
            stripes: Vec::new(),
            first: 0,
            places: HashMap::new(),
            trouble: None,
            whole: false,
            told: None,
            handed_out: Handed::default(),
        }
    }

    /// Opens a session at a drive, for the first time or again.
    fn open(&mut self, at: usize) {
        let drive = &mut self.drives[at];
        if drive.opening {
            return;
        }
        drive.opening = true;
        // Whoever was there before may be starting again.
        let until = drive.surveyed.then(|| Instant::now() + COMING_BACK.0.min(self.silence.mul_f64(COMING_BACK.1)));
        let (cse, plan, reading, inbox) = (Arc::clone(&drive.cse), drive.plan.clone(), Arc::clone(&drive.reading), self.inbox.clone());
        self.tasks.spawn(async move {
            let opened = loop {
                match reading.begun(&plan, cse.open(plan.clone())).await {
                    Err(e) if e.kind() == Kind::Unavailable && until.is_some_and(|until| Instant::now() < until) => tokio::time::sleep(ASK_AGAIN).await,
                    Err(e) => break Err(reading.at_fault(&plan, e).await),
                    opened => break opened,
                }
            };
            let _ = inbox.send(Heard::Opened(at, Box::new(opened)));
        });
    }

    fn handle(&mut self, event: Event<Batch>) {
        let now = self.began.elapsed().as_secs_f64();
        for action in self.query.handle(now, event) {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action<Batch>) {
        match action {
            Action::Send { cse, down } => self.send(cse.0 as usize, down),
            Action::Count { epoch, cse, rung, slices, batches } => self.count(epoch, cse.0 as usize, rung, &slices, batches),
            Action::Dropped { epoch, .. } => {
                if let Some(fetching) = self.fetching.remove(&epoch) {
                    fetching.tasks.iter().for_each(AbortHandle::abort);
                }
            }
            Action::Finish => self.outcome = Some(Ok(())),
            Action::Fail { cse, .. } => {
                let drive = &self.drives[cse.0 as usize];
                let name = &drive.cse.info().name;
                let error = match &drive.trouble {
                    Some(error) => Error::new(error.kind(), error.message()).because(Arc::clone(error)),
                    None => Error::unavailable(format!("{name} did not finish its part, and nobody else can read its slices")),
                };
                self.outcome = Some(Err((Some(cse.0 as usize), error)));
            }
        }
    }

    fn send(&mut self, at: usize, down: Down) {
        match &down.order {
            Order::Open { rung: Rung::Raw, slices, .. } => return self.fetch(at, down.epoch, slices.clone()),
            Order::Cancel => {
                if let Some(fetching) = self.fetching.remove(&down.epoch) {
                    fetching.tasks.iter().for_each(AbortHandle::abort);
                    return;
                }
            }
            _ => {}
        }
        let silence = self.silence;
        let drive = &mut self.drives[at];
        if matches!(down.order, Order::Open { .. }) && drive.orders.is_some() && drive.heard.elapsed() > silence {
            // The machine has given up what was there, if there was anything: whoever hangs is spoken to anew.
            drive.orders = None;
            drive.sessions += 1;
            let name = &drive.cse.info().name;
            drive.trouble = Some(Arc::new(Error::unavailable(format!("{name} has been silent for {:.1} s in the middle of a query", silence.as_secs_f64()))));
        }
        let order = match down.order {
            Order::Open { rung, slices, close } => Order::Open { rung, slices: drive.to_stripes(&slices), close },
            Order::Feed { slices } => Order::Feed { slices: drive.to_stripes(&slices) },
            Order::Take { slices } => Order::Take { slices: drive.to_stripes(&slices) },
            other => other,
        };
        let down = Down { order, ..down };
        match &drive.orders {
            Some(orders) => {
                // A session that has ended says so by itself.
                let _ = orders.send(down);
            }
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
                let _ = inbox.send(Heard::Fetched(at, epoch, number, fed));
            }));
        }
        self.fetching.insert(epoch, Fetching { tasks, slices, came: 0, bytes: 0, began: Instant::now() });
    }

    fn fetched(&mut self, at: usize, epoch: EpochId, number: u32, fed: Result<Fed>) {
        let cse = CseId(at as u32);
        match fed {
            Ok(fed) => {
                let bytes = fed.bytes();
                self.drives[at].handed_out.bytes += bytes;
                self.handle(Event::Batch { cse, epoch, number, bytes, batch: Batch::Stored(fed) });
                let Some(fetching) = self.fetching.get_mut(&epoch) else { return };
                fetching.came += 1;
                fetching.bytes += bytes;
                if fetching.came as usize == fetching.slices.len() {
                    let Some(done) = self.fetching.remove(&epoch) else { return };
                    let end = Completed {
                        epoch,
                        rung: Rung::Raw,
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
                let again = !matches!(error.kind(), Kind::Corrupt | Kind::NotFound | Kind::Invalid | Kind::Unsupported);
                self.drives[at].trouble = Some(Arc::new(error));
                if let Some(fetching) = self.fetching.remove(&epoch) {
                    fetching.tasks.iter().for_each(AbortHandle::abort);
                    self.handle(Event::Up { cse, up: Up::Failed { epoch: Some(epoch), again } });
                }
            }
        }
    }

    fn count(&mut self, epoch: EpochId, at: usize, rung: Rung, slices: &[SliceId], batches: Vec<Batch>) {
        let (mut rows, mut stored) = (Vec::new(), Vec::new());
        for batch in batches {
            match batch {
                Batch::Rows(batch) => rows.push(batch),
                Batch::Stored(fed) => stored.push(fed),
            }
        }
        let drive = &mut self.drives[at];
        let covered = slices.len() as u64;
        let has_upper = self.query.cost().has_upper();
        match rung {
            Rung::Raw => {
                drive.handed_out.slices += covered;
                drive.above.slices(epoch, stored);
            }
            Rung::Filter if has_upper => {
                drive.handed_out.filtered += covered;
                self.flow.waits(epoch, rows.iter().map(batch_bytes).sum());
                drive.above.rows(epoch, rows);
            }
            Rung::Filter | Rung::Full => {
                drive.handed_out.full += covered;
                for batch in rows {
                    self.give(at, batch);
                }
                self.follow.push_back(Event::Worked { epoch, cpu: 0.0, filtered: None, held: None });
            }
        }
    }

    /// Gives rows of drive `at` to whoever reads them.
    fn give(&mut self, at: usize, batch: RecordBatch) {
        self.flow.more(&batch);
        self.pass(at, batch);
    }

    /// Gives rows that are counted as waiting.
    fn pass(&mut self, at: usize, batch: RecordBatch) {
        let drive = &self.drives[at];
        let bytes = batch_bytes(&batch);
        let sent = match adapt(&batch, &self.schema, &drive.cse.info().name) {
            Ok(batch) if batch.num_rows() == 0 => false,
            Ok(batch) => drive.output.queue.send((batch, bytes)).is_ok(),
            Err(error) => {
                self.outcome = Some(Err((None, error)));
                false
            }
        };
        if !sent {
            self.flow.less(bytes);
        }
    }

    fn hear(&mut self, what: Heard) -> Result<()> {
        match what {
            Heard::Opened(at, opened) => self.opened(at, *opened)?,
            Heard::Message(at, session, message) => self.message(at, session, message),
            Heard::Fetched(at, epoch, number, fed) => self.fetched(at, epoch, number, fed),
            Heard::Above(at, worked) => match worked {
                Worked::Rows(batch) => self.pass(at, batch),
                Worked::Epoch(epoch, cpu) => self.handle(Event::Worked { epoch, cpu, filtered: None, held: None }),
                Worked::Over(over) => {
                    self.left = self.left.saturating_sub(1);
                    if let Err(error) = over {
                        self.outcome = Some(Err((Some(at), error)));
                    }
                }
            },
            Heard::Whole(over) => {
                self.left = self.left.saturating_sub(1);
                over?;
            }
        }
        Ok(())
    }

    fn opened(&mut self, at: usize, opened: Result<Opened>) -> Result<()> {
        let cse = CseId(at as u32);
        self.drives[at].opening = false;
        let first = !self.drives[at].surveyed;
        match opened {
            Err(error) if first => Err(error),
            Err(error) => {
                self.drives[at].trouble = Some(Arc::new(error));
                self.drives[at].held.clear();
                self.handle(Event::Lost { cse, again: false });
                Ok(())
            }
            Ok(Opened::Whole(stream)) if first => {
                let drive = &mut self.drives[at];
                (drive.surveyed, drive.whole) = (true, true);
                self.left += 1;
                let (reading, inbox, queue, flow) = (Arc::clone(&drive.reading), self.inbox.clone(), drive.output.queue.clone(), Arc::clone(&self.flow));
                let plan = drive.plan.clone();
                self.tasks.spawn(async move {
                    let give = |batch: RecordBatch| {
                        let (queue, flow) = (queue.clone(), Arc::clone(&flow));
                        async move {
                            while flow.clogged() {
                                let _ = tokio::time::timeout(Duration::from_millis(5), flow.room.notified()).await;
                            }
                            flow.more(&batch);
                            let bytes = batch_bytes(&batch);
                            queue.send((batch, bytes)).is_ok()
                        }
                    };
                    let over = match reading.deliver(stream, &plan, give).await {
                        Err(e) => Err(reading.at_fault(&plan, e).await),
                        done => done,
                    };
                    let _ = inbox.send(Heard::Whole(over));
                });
                self.handle(Event::Surveyed { cse, slices: Vec::new() });
                Ok(())
            }
            Ok(Opened::Session(session)) => self.begin(at, session),
            Ok(Opened::Whole(_)) => Err(Error::internal(format!("{} divides a sub-plan once and not again", self.drives[at].cse.info().name))),
        }
    }

    /// A session has begun.
    fn begin(&mut self, at: usize, session: Session) -> Result<()> {
        let cse = CseId(at as u32);
        let first = self.next_slice;
        let drive = &mut self.drives[at];
        let name = drive.cse.info().name.clone();
        check(&session.schema, &self.schema, &name)?;
        let stripes: Vec<u32> = session.survey.iter().map(|stripe| stripe.stripe).collect();
        let survey = if drive.surveyed {
            if drive.stripes != stripes {
                return Err(Error::unavailable(format!("{name} has other slices than before: the data set was replaced or dropped; ask again")));
            }
            None
        } else {
            drive.surveyed = true;
            drive.first = first;
            drive.places = stripes.iter().zip(first..).map(|(stripe, slice)| (*stripe, slice)).collect();
            if drive.places.len() != stripes.len() {
                return Err(Error::internal(format!("{name} names a stripe twice")));
            }
            drive.stripes = stripes;
            let slices = session.survey.iter().zip(first..).map(|(stripe, id)| Slice {
                id: SliceId(id),
                rows: u32::try_from(stripe.rows).unwrap_or(u32::MAX),
                bytes: stripe.bytes,
                readers: vec![cse],
            });
            Some(slices.collect::<Vec<_>>())
        };
        drive.sessions += 1;
        drive.heard = Instant::now();
        let number = drive.sessions;
        for down in drive.held.drain(..) {
            let _ = session.orders.send(down);
        }
        drive.orders = Some(session.orders);
        let messages = self.messages.clone();
        let mut incoming = session.messages;
        self.tasks.spawn(async move {
            loop {
                let message = incoming.next().await;
                let last = !matches!(&message, Some(Ok(message)) if !matches!(message, Message::Done(_)));
                if messages.send(Heard::Message(at, number, message)).await.is_err() || last {
                    break;
                }
            }
        });
        if let Some(slices) = survey {
            self.next_slice = first.saturating_add(u32::try_from(slices.len()).unwrap_or(u32::MAX));
            self.handle(Event::Surveyed { cse, slices });
        }
        Ok(())
    }

    fn message(&mut self, at: usize, session: u32, message: Option<Result<Message>>) {
        let cse = CseId(at as u32);
        let drive = &mut self.drives[at];
        if drive.sessions != session {
            return;
        }
        drive.heard = Instant::now();
        match message {
            Some(Ok(Message::Up(up))) => {
                let up = drive.to_slices(up);
                self.handle(Event::Up { cse, up });
            }
            Some(Ok(Message::Batch { epoch, number, batch, .. })) => {
                let bytes = batch_bytes(&batch);
                drive.reading.came(&batch, bytes);
                self.handle(Event::Batch { cse, epoch, number, bytes, batch: Batch::Rows(batch) });
            }
            Some(Ok(Message::Trouble { error, .. })) => drive.trouble = Some(error),
            // That somebody carries messages says nothing of the work; silence of epochs is for the machine to judge.
            Some(Ok(Message::Alive)) => {}
            Some(Ok(Message::Done(told))) => drive.told = Some(*told),
            Some(Err(error)) => {
                drive.orders = None;
                drive.trouble = Some(Arc::new(error));
                self.handle(Event::Lost { cse, again: true });
            }
            None => {
                drive.orders = None;
                if drive.told.is_none() {
                    drive.trouble = Some(Arc::new(Error::unavailable(format!("{} ended its answer without finishing it", drive.cse.info().name))));
                    self.handle(Event::Lost { cse, again: true });
                }
            }
        }
    }

    /// Everything is covered, or nothing more is to be done: lanes above give what they hold, drives tell what they did.
    async fn finish(mut self, heard: &mut mpsc::UnboundedReceiver<Heard>, said: &mut mpsc::Receiver<Heard>) -> Result<()> {
        for drive in &mut self.drives {
            self.left += drive.above.close();
            drive.orders = None;
        }
        while self.left > 0 {
            if let Some(what) = heard.recv().await {
                self.hear(what)?;
                if let Some(Err((_, error))) = self.outcome.take() {
                    return Err(error);
                }
            }
        }
        let deadline = tokio::time::sleep(LAST_WORDS);
        tokio::pin!(deadline);
        while self.drives.iter().any(|drive| !drive.whole && drive.told.is_none() && drive.sessions > 0) {
            tokio::select! {
                Some(what) = said.recv() => {
                    if let Heard::Message(at, session, message) = what
                        && self.drives[at].sessions == session
                    {
                        let drive = &mut self.drives[at];
                        match message {
                            Some(Ok(Message::Done(told))) => drive.told = Some(*told),
                            Some(Ok(_)) => {}
                            Some(Err(_)) | None => drive.told = Some(Annotation::default()),
                        }
                    }
                }
                () = &mut deadline => break,
            }
        }
        for drive in &mut self.drives {
            let told = drive.told.take().filter(|told| !told.cse.is_empty());
            drive.note(told);
        }
        // Outputs end when what waits in them is read.
        let Self { drives, mut outlets, .. } = self;
        drop(drives);
        while outlets.join_next().await.is_some() {}
        Ok(())
    }
}

impl Drive {
    /// The stripe of a slice.
    fn stripe(&self, slice: SliceId) -> Option<u32> {
        self.stripes.get(slice.0.checked_sub(self.first)? as usize).copied()
    }

    fn to_stripes(&self, slices: &[SliceId]) -> Vec<SliceId> {
        slices.iter().filter_map(|slice| self.stripe(*slice)).map(SliceId).collect()
    }

    /// The slice of a stripe; what the drive does not have is none of ours.
    fn slice(&self, stripe: SliceId) -> SliceId {
        SliceId(self.places.get(&stripe.0).copied().unwrap_or(u32::MAX))
    }

    fn slices(&self, stripes: Vec<SliceId>) -> Vec<SliceId> {
        stripes.into_iter().map(|stripe| self.slice(stripe)).collect()
    }

    /// A message with slices where the drive names stripes.
    fn to_slices(&self, up: Up) -> Up {
        match up {
            Up::Progress { epoch, done, running, load, waits, pending_rows, pending_bytes } => {
                let done = done.into_iter().map(|cost| SliceCost { slice: self.slice(cost.slice), ..cost }).collect();
                let running = running.into_iter().map(|(stripe, cpu)| (self.slice(stripe), cpu)).collect();
                Up::Progress { epoch, done, running, load, waits, pending_rows, pending_bytes }
            }
            Up::Taken { epoch, number, slices } => Up::Taken { epoch, number, slices: self.slices(slices) },
            Up::EpochDone(end) => Up::EpochDone(Completed { slices: self.slices(end.slices), ..end }),
            Up::Stopped { epoch, remaining, accepts, again, why } => Up::Stopped { epoch, remaining: self.slices(remaining), accepts, again, why },
            other => other,
        }
    }

    /// Writes into the receipt what this drive did, as `told` by itself.
    fn note(&self, told: Option<Annotation>) {
        if self.whole {
            return;
        }
        let Handed { slices, bytes, filtered, full, .. } = self.handed_out;
        let all = slices + filtered + full;
        let mut reasons = Vec::new();
        if slices > 0 {
            reasons.push(format!("{slices} of {all} slices were handed to the host as they are stored"));
        }
        if filtered > 0 {
            reasons.push(format!("{filtered} of {all} slices were filtered here and aggregated on the host"));
        }
        let rung = if slices > 0 {
            Rung::Raw
        } else if filtered > 0 {
            Rung::Filter
        } else {
            Rung::Full
        };
        let reason = (!reasons.is_empty()).then(|| reasons.join("; "));
        self.reading.end(told, |annotation| {
            annotation.rung = Some(rung);
            annotation.reason = reason;
            annotation.bytes_sent += bytes;
        });
    }
}

/// Starts a scan once, for all of its partitions.
#[derive(Default)]
pub(crate) struct Started(Mutex<Option<Partitions>>);

struct Partitions {
    outputs: Vec<Option<mpsc::Receiver<DfResult<RecordBatch>>>>,
    /// Nothing once all outputs are with their readers, who keep the task alive then.
    task: Option<Arc<Ends>>,
}

/// Ends the task with the last reader.
pub(crate) struct Ends(AbortHandle);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Rows, and what they keep alive.
pub(crate) type Outlet = (mpsc::Receiver<DfResult<RecordBatch>>, Arc<Ends>);

impl Started {
    /// The rows of `partition`, once. Whoever asks first starts the scan with `start`, which gets where they are to go.
    pub(crate) fn partition(
        &self,
        partition: usize,
        partitions: usize,
        start: impl FnOnce(Vec<mpsc::Sender<DfResult<RecordBatch>>>) -> AbortHandle,
    ) -> Option<Outlet> {
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Partitions { outputs, task } = started.get_or_insert_with(|| {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..partitions).map(|_| mpsc::channel(2)).map(|(sender, receiver)| (sender, Some(receiver))).unzip();
            Partitions { outputs: receivers, task: Some(Arc::new(Ends(start(senders)))) }
        });
        let output = outputs.get_mut(partition)?.take()?;
        let ends = Arc::clone(task.as_ref()?);
        if outputs.iter().all(Option::is_none) {
            *task = None;
        }
        Some((output, ends))
    }
}
