//! The faults of a simulation, and at which requests they occur.

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
    /// The drive is gone until it is brought back, before or after the change is made.
    Drive { after: bool },
    /// The change is made, and the answer lost.
    Answer,
    /// As that, but the change is still on its way: it is made when so many more requests have come, to whichever
    /// hosts, and whether the one that wanted it lives or not.
    Late(u64),
    /// The disk is full.
    Full,
    /// The drive fails this once.
    Once,
    /// The drive fails so many more times, and is back then by itself.
    Flaps(u64),
    /// The drive takes its time.
    Slow,
}

impl Fault {
    /// All names, in the order of the table that is printed at the end.
    pub(super) const NAMES: [&'static str; 8] =
        ["host dies", "drive is gone", "answer is lost", "change is late", "disk is full", "fails once", "flaps", "is slow"];

    /// What it is called there.
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

/// How long a drive takes then: many times what it takes otherwise, and far from any deadline.
const SLOW: Duration = Duration::from_millis(40);

/// Who asks what of whom: the host, as the simulation counts them, the drive, and what. What waits at the same time is
/// in this order, whichever thread came first.
type Asked = (u64, String, String);

/// What a request has while it is carried out; the next one waits until it is dropped.
type Turn = oneshot::Sender<()>;

/// A request that waits for its turn.
struct Waiting {
    asked: Asked,
    go: oneshot::Sender<Turn>,
}

/// What is carried out late.
type Late = BoxFuture<'static, ()>;

/// The faults by number of the request, counted over all hosts and drives, and the order of requests.
#[derive(Default)]
pub(super) struct FaultPlan {
    pub(super) asked: AtomicU64,
    pub(super) planned: Mutex<BTreeMap<u64, Fault>>,
    pub(super) injected: Mutex<Vec<Fault>>,
    /// How many drives may be gone at a time.
    pub(super) most: AtomicU64,
    pub(super) gone: AtomicU64,
    waiting: Mutex<Vec<Waiting>>,
    arrived: Notify,
    /// Which of those that wait comes next.
    draws: Mutex<Option<Random>>,
    /// What is carried out late, and at which request.
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

    /// From now on `seed` says which of several requests comes first.
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

    /// Gives requests their turns, one after the other, for as long as the simulation lasts: otherwise threads would
    /// decide which of them a fault hits.
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
            // Nobody waits any more where the simulation is over.
            if next.go.send(turn).is_ok() {
                let _ = over.await;
            }
        }
    }

    /// Lets all come to where they wait who are on their way there.
    async fn settle(&self) {
        let (mut known, mut still) = (0, 0);
        while still < 4 {
            tokio::task::yield_now().await;
            let now = self.waiting.lock().len();
            (still, known) = (if now == known { still + 1 } else { 0 }, now);
        }
        // Whoever has just cut rows into slices is no task of the runtime for a moment. That is the one thing here that
        // is a matter of time: it takes some microseconds.
        let writes = |waiting: &Waiting| waiting.asked.2.starts_with("apply") && waiting.asked.2.contains("data.");
        if self.waiting.lock().iter().any(writes) {
            std::thread::sleep(Duration::from_micros(200));
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Carries out what is late and was due at request `by`.
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

    /// What befalls the request whose turn it is, and whether that `changes` anything.
    fn next_fault(&self, changes: bool) -> Option<Fault> {
        let at = self.asked.fetch_add(1, Ordering::SeqCst);
        let mut planned = self.planned.lock();
        let fault = planned.remove(&at)?;
        if matches!(fault, Fault::Late(_)) && !changes {
            // A read that is late is one that was lost: it waits for a change.
            let free = (at + 1..).find(|at| !planned.contains_key(at))?;
            planned.insert(free, fault);
            return None;
        }
        drop(planned);
        // No more than the fleet survives; but where it survives none, one that is back for the next step. One that
        // fails once, in a fleet that goes on without it, is away until it is taken in again: what changes meanwhile it
        // misses as one that is gone.
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
    /// What its disk can't read, until it is written anew.
    damaged: Mutex<BTreeSet<String>>,
}

impl SimulatedStore {
    pub(super) fn new(name: String) -> Arc<Self> {
        Arc::new(Self { name, memory: MemoryStore::new(), gone: AtomicBool::new(false), flaps: AtomicU64::new(0), damaged: Mutex::default() })
    }

    /// Damages what lies under `key`: its bytes are not what they were, or it is no longer there.
    pub(super) fn damage(&self, key: &Key, lost: bool) {
        if lost {
            self.memory.apply(vec![Op::Delete { key: key.clone(), expect: Expect::Any }]).unwrap();
        } else {
            self.damaged.lock().insert(key.as_str().to_owned());
        }
    }

    /// What it has under `key`, whether it is gone or not.
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
    /// Which host of the simulation it is.
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

/// A host's way to a drive.
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

    /// Has the drive carry `work` out, which `changes` something or not, or what befalls it instead.
    async fn asked<T: Send + 'static>(&self, what: String, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        self.living()?;
        let asked = (self.lifetime.number, self.store.name.clone(), what);
        let turn = self.faults.wait(asked.clone());
        let own = self.clone();
        // On its own: who asked may not listen while others ask, and what a drive has begun it ends, also when
        // nobody listens any more.
        let done = tokio::spawn(async move { own.in_turn(turn, asked, Box::pin(work)).await }).await.expect("no request to a drive panics");
        match done {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }

    /// As [`Self::asked`]; nothing where the host died of it.
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

/// What is asked, with the key of which it is, and how many more.
fn told<'k>(what: &str, keys: impl IntoIterator<Item = &'k str>) -> String {
    let mut keys: Vec<&str> = keys.into_iter().collect();
    keys.sort_unstable();
    format!("{what} {} {}", keys.len(), keys.first().unwrap_or(&""))
}

impl Storage for Link {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    /// As over a connection: it can be lost, and several hosts can reach it.
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
