//! [`FaultPlan`]: the faults of a simulation, and the requests at which they occur.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_common::{Error, Key, Result};
use skytether_device::{Capabilities, CseInfo, DeliveryStream, OpenReply, SubPlan, Verified, Verify};
use skytether_drive::{Cse, Drive, Storage};
use skytether_store::memory::MemoryStore;
use skytether_store::{Entry, Expect, Op, SliceStore, StoreLayer, Usage, Version};
use tokio::sync::{Notify, oneshot};

use crate::util::Random;

/// A fault of the drive that executes a request, or of the host that sends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The host dies, before or after the change is made.
    Host { after: bool },
    /// The drive goes down before or after the change, until the simulation brings it back.
    Drive { after: bool },
    /// The change happens, and the answer is lost.
    Answer,
    /// The answer is lost, and the change happens this many requests of any host later, whether or not its own host
    /// still lives.
    Late(u64),
    /// The disk is full.
    Full,
    /// The drive fails this once.
    Once,
    /// The drive fails this many more times, and then works again.
    Flaps(u64),
    /// The drive is slow.
    Slow,
}

impl Fault {
    /// All names, in the order of the table at the end.
    pub(super) const NAMES: [&'static str; 8] =
        ["host dies", "drive is gone", "answer is lost", "change is late", "disk is full", "fails once", "flaps", "is slow"];

    /// Its name in that table.
    pub(super) fn name(self) -> &'static str {
        Self::NAMES[match self {
            Fault::Host { .. } => 0,
            Fault::Drive { .. } => 1,
            Fault::Answer => 2,
            Fault::Late(_) => 3,
            Fault::Full => 4,
            Fault::Once => 5,
            Fault::Flaps(_) => 6,
            Fault::Slow => 7,
        }]
    }
}

/// How long a slow drive takes: many times the usual, and far from any deadline.
const SLOW: Duration = Duration::from_millis(40);

/// A request: the number of the host, the drive, and the operation. Requests that wait at the same time have this
/// order, whichever thread came first.
type Asked = (u64, String, String);

/// Held while a request is executed; the next request waits until it is dropped.
type Turn = oneshot::Sender<()>;

/// A request that waits for its turn.
struct Waiting {
    asked: Asked,
    go: oneshot::Sender<Turn>,
}

/// A late change.
type Late = BoxFuture<'static, ()>;

/// The faults by number of the request, counted over all hosts and drives, and the order of requests.
#[derive(Default)]
pub(super) struct FaultPlan {
    pub(super) asked: AtomicU64,
    pub(super) planned: Mutex<BTreeMap<u64, Fault>>,
    pub(super) injected: Mutex<Vec<Fault>>,
    /// How many drives may be down at a time.
    pub(super) most: AtomicU64,
    pub(super) gone: AtomicU64,
    waiting: Mutex<Vec<Waiting>>,
    arrived: Notify,
    /// Draws which waiting request comes next.
    draws: Mutex<Option<Random>>,
    /// Late changes, each with the request at which it happens.
    late: Mutex<Vec<(u64, Late)>>,
}

impl fmt::Debug for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultPlan").field("asked", &self.asked).field("planned", &self.planned).finish_non_exhaustive()
    }
}

impl FaultPlan {
    pub(super) fn new(most: u64) -> Self {
        Self { most: AtomicU64::new(most), ..Self::default() }
    }

    /// From now on `seed` determines the order of requests.
    pub(super) fn draw_from(&self, seed: u64) {
        *self.draws.lock() = Some(Random(seed));
    }

    /// Waits for a turn.
    fn wait(&self, asked: Asked) -> oneshot::Receiver<Turn> {
        let (go, turn) = oneshot::channel();
        self.waiting.lock().push(Waiting { asked, go });
        self.arrived.notify_one();
        turn
    }

    /// Gives requests their turns, one after the other, while the simulation lasts. Otherwise threads would decide
    /// which request a fault hits.
    pub(super) async fn give_turns(self: Arc<Self>) {
        loop {
            if self.waiting.lock().is_empty() {
                self.arrived.notified().await;
                continue;
            }
            self.catch_up(self.asked.load(Ordering::SeqCst)).await;
            self.settle().await;
            let next = {
                let mut waiting = self.waiting.lock();
                waiting.sort_by(|one, other| one.asked.cmp(&other.asked));
                let count = waiting.len();
                let at = self.draws.lock().as_mut().map_or(0, |random| random.below(count));
                waiting.remove(at)
            };
            let (turn, over) = oneshot::channel();
            // After the end of the simulation no request waits.
            if next.go.send(turn).is_ok() {
                let _ = over.await;
            }
        }
    }

    /// Lets all tasks run until each waits for its turn.
    async fn settle(&self) {
        let (mut known, mut still) = (0, 0);
        while still < 4 {
            tokio::task::yield_now().await;
            let now = self.waiting.lock().len();
            (still, known) = (if now == known { still + 1 } else { 0 }, now);
        }
        // A thread that cuts rows into slices is no task of the runtime for some microseconds. This is the only place
        // where time matters.
        let writes = |waiting: &Waiting| waiting.asked.2.starts_with("apply") && waiting.asked.2.contains("data.");
        if self.waiting.lock().iter().any(writes) {
            std::thread::sleep(Duration::from_micros(200));
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Executes late changes that were due at request `by`.
    pub(super) async fn catch_up(&self, by: u64) {
        let due: Vec<Late> = {
            let mut late = self.late.lock();
            late.sort_by_key(|(at, _)| *at);
            let count = late.partition_point(|(at, _)| *at <= by);
            late.drain(..count).map(|(_, work)| work).collect()
        };
        for work in due {
            work.await;
        }
    }

    /// The fault of the request whose turn it is; `changes` says whether the request is a change.
    fn next_fault(&self, changes: bool) -> Option<Fault> {
        let at = self.asked.fetch_add(1, Ordering::SeqCst);
        let mut planned = self.planned.lock();
        let fault = planned.remove(&at)?;
        if matches!(fault, Fault::Late(_)) && !changes {
            // A late read is a lost one, so the fault moves to the next request.
            let free = (at + 1..).find(|at| !planned.contains_key(at))?;
            planned.insert(free, fault);
            return None;
        }
        drop(planned);
        // No more drives than the fleet survives; where it survives none, one that is back for the next step. In a
        // fleet with redundancy, a drive that fails once is down until it is taken in again, and misses changes as a
        // lost drive does.
        let most = self.most.load(Ordering::SeqCst);
        let counts = match fault {
            Fault::Drive { .. } => true,
            Fault::Answer | Fault::Late(_) | Fault::Once | Fault::Flaps(_) => most > 0,
            Fault::Host { .. } | Fault::Full | Fault::Slow => false,
        };
        if counts {
            self.gone.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |gone| (gone < most.max(1)).then_some(gone + 1)).ok()?;
        }
        self.injected.lock().push(fault);
        Some(fault)
    }
}

/// The store of a drive, in memory. It fails while the drive is gone.
#[derive(Debug)]
pub(super) struct SimulatedStore {
    pub(super) name: String,
    pub(super) memory: MemoryStore,
    pub(super) gone: AtomicBool,
    /// How many more requests fail.
    pub(super) flaps: AtomicU64,
    /// Keys that its disk can't read until they are written again.
    damaged: Mutex<BTreeSet<String>>,
}

impl SimulatedStore {
    pub(super) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, memory: MemoryStore::new(), gone: AtomicBool::new(false), flaps: AtomicU64::new(0), damaged: Mutex::default() })
    }

    /// Damages the value of `key`: other bytes, or (`lost`) none.
    pub(super) fn damage(&self, key: &Key, lost: bool) {
        if lost {
            self.memory.apply(vec![Op::Delete { key: key.clone(), expect: Expect::Any }]).unwrap();
        } else {
            self.damaged.lock().insert(key.as_str().to_owned());
        }
    }

    /// The value of `key`, also while the drive is down.
    pub(super) fn has(&self, key: &str) -> Option<Bytes> {
        self.memory.get(&Key::new(key).unwrap()).ok()
    }
}

impl StoreLayer for SimulatedStore {
    fn inner(&self) -> Result<&dyn SliceStore> {
        if self.gone.load(Ordering::SeqCst) { Err(Error::unavailable(format!("{} is gone", self.name))) } else { Ok(&self.memory) }
    }

    fn before_apply(&self, batch: &[Op]) -> Result<()> {
        self.inner()?;
        let mut damaged = self.damaged.lock();
        for op in batch.iter().filter(|op| !matches!(op, Op::Check { .. })) {
            damaged.remove(op.key().as_str());
        }
        Ok(())
    }

    fn before_read(&self, key: &Key) -> Result<()> {
        if self.damaged.lock().contains(key.as_str()) {
            return Err(Error::corrupt(format!("the value of key {key} does not match its checksum")));
        }
        Ok(())
    }
}

/// Whether a host is alive. Its end is the end of its [`Link`]s.
#[derive(Debug, Default)]
pub(super) struct HostLifetime {
    /// The number of the host in the simulation.
    number: u64,
    pub(super) over: AtomicBool,
    ended: Notify,
}

impl HostLifetime {
    pub(super) fn new(number: u64) -> Arc<Self> {
        Arc::new(Self { number, ..Self::default() })
    }

    pub(super) fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.ended.notify_waiters();
    }

    pub(super) async fn over(&self) {
        let ended = self.ended.notified();
        if !self.over.load(Ordering::SeqCst) {
            ended.await;
        }
    }
}

/// The connection of a host to a drive.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) drive: Arc<Drive>,
    pub(super) store: Arc<SimulatedStore>,
    pub(super) lifetime: Arc<HostLifetime>,
    pub(super) faults: Arc<FaultPlan>,
}

impl Link {
    fn living(&self) -> Result<()> {
        if self.lifetime.over.load(Ordering::SeqCst) { Err(Error::unavailable("the host is dead")) } else { Ok(()) }
    }

    /// Has the drive execute `work`, or the fault that hits it instead. `changes`: whether `work` is a change.
    async fn asked<T: Send + 'static>(&self, what: String, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        self.living()?;
        let asked = (self.lifetime.number, self.store.name.clone(), what);
        let turn = self.faults.wait(asked.clone());
        let own = self.clone();
        // In a task of its own: the caller may not poll while other requests run, and a drive ends what it has begun,
        // also after the caller left.
        let done = tokio::spawn(async move { own.in_turn(turn, asked, Box::pin(work)).await }).await.expect("no request to a drive panics");
        match done {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }

    /// As [`Self::asked`]; `None` where the host died of it.
    async fn in_turn<T: Send + 'static>(self, turn: oneshot::Receiver<Turn>, asked: Asked, work: BoxFuture<'static, Result<T>>) -> Option<Result<T>> {
        let lost = || Some(Err(Error::unavailable(format!("{} was lost", self.store.name))));
        let turn = turn.await.ok()?;
        if let Err(e) = self.living() {
            return Some(Err(e));
        }
        if self.store.flaps.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |flaps| flaps.checked_sub(1)).is_ok() {
            return lost();
        }
        match self.faults.next_fault(asked.2.starts_with("apply")) {
            None => Some(work.await),
            Some(Fault::Host { after }) => {
                if after {
                    let _ = work.await;
                }
                self.lifetime.end();
                None
            }
            Some(Fault::Drive { after }) => {
                if after {
                    let _ = work.await;
                }
                self.store.gone.store(true, Ordering::SeqCst);
                lost()
            }
            Some(Fault::Answer) => {
                let _ = work.await;
                lost()
            }
            Some(Fault::Late(after)) => {
                let at = self.faults.asked.load(Ordering::SeqCst) + after;
                self.faults.late.lock().push((at, Box::pin(async move { drop(work.await) })));
                lost()
            }
            Some(Fault::Full) => Some(Err(Error::exhausted(format!("{} is full", self.store.name)))),
            Some(Fault::Once) => lost(),
            Some(Fault::Flaps(times)) => {
                self.store.flaps.store(times, Ordering::SeqCst);
                lost()
            }
            Some(Fault::Slow) => {
                drop(turn);
                tokio::time::sleep(SLOW).await;
                let _turn = self.faults.wait(asked).await.ok()?;
                Some(if let Err(e) = self.living() { Err(e) } else { work.await })
            }
        }
    }
}

/// An operation as text: its name, the number of keys, and the first key.
fn told<'k>(what: &str, keys: impl IntoIterator<Item = &'k str>) -> String {
    let mut keys: Vec<&str> = keys.into_iter().collect();
    keys.sort_unstable();
    format!("{what} {} {}", keys.len(), keys.first().unwrap_or(&""))
}

impl Storage for Link {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    /// As a remote drive: its connection can break, and several hosts can reach it.
    fn capabilities(&self) -> Capabilities {
        Capabilities { remote: true, indexes: false, ..self.drive.capabilities() }
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let drive = Arc::clone(&self.drive);
            self.asked(told("apply", batch.iter().map(|op| op.key().as_str())), async move { drive.apply(batch).await }).await
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let (drive, key) = (Arc::clone(&self.drive), key.clone());
            self.asked(told("get", [key.as_str()]), async move { drive.get(&key).await }).await
        })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            let (drive, key, ranges) = (Arc::clone(&self.drive), key.clone(), ranges.to_vec());
            self.asked(told("ranges", [key.as_str()]), async move { drive.get_ranges_unverified(&key, &ranges).await }).await
        })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            let (drive, key) = (Arc::clone(&self.drive), key.clone());
            self.asked(told("stat", [key.as_str()]), async move { drive.stat(&key).await }).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move {
            let (drive, prefix, after) = (Arc::clone(&self.drive), prefix.to_owned(), after.cloned());
            self.asked(told("list", [prefix.as_str(), after.as_ref().map_or("", Key::as_str)]), async move { drive.list(&prefix, after.as_ref(), limit).await })
                .await
        })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move {
            let drive = Arc::clone(&self.drive);
            self.asked(told("usage", []), async move { drive.usage().await }).await
        })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move {
            let drive = Arc::clone(&self.drive);
            self.asked(told("verify", asked.items.iter().map(|item| item.key.as_str())), async move { drive.verify(asked).await }).await
        })
    }
}

impl Cse for Link {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let drive = Arc::clone(&self.drive);
            self.asked(told("execute", [plan.dataset.root_key().as_str()]), async move { drive.execute(plan).await }).await
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let drive = Arc::clone(&self.drive);
            self.asked(told("open", [plan.dataset.root_key().as_str()]), async move { drive.open(plan).await }).await
        })
    }
}
