//! A drive fails or is full at any operation of a change. The change is made, or an error names the drive. Every data
//! set is old or new and whole. Once the drive is well, a scrub repairs the rest and nothing leaks.
//!
//! Drives are real ones, in this process, over stores in memory with injected faults. A change first runs without a
//! fault, which lists its operations. Then it runs once with a fault at each operation, or at some of them where there
//! are many (`SKYTETHER_FAULTS=all` tries each).

mod lost_writes;

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether::{RepairOptions, ScrubOptions};
use skytether_common::{DatasetName, Error, Generation, Key, Kind, PartitionName, Result};
use skytether_device::{CseInfo, Layer};
use skytether_drive::{Cse, Drive, Storage};
use skytether_host::{Founding, Host};
use skytether_store::fault::{Fault, FaultStore, Operation, Rule, When};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, Version};
use tokio::sync::RwLock;

use crate::repair::{FLEET, holds, options, rows, store};
use crate::util::{name, small_drive};

const DRIVES: usize = 4;

/// What is changed, and what is not.
const VICTIM: &str = "lab.a";
const BYSTANDER: &str = "lab.b";

/// Rows of each of the four batches that [`store`] writes.
const OLD: usize = 400;
const NEW: usize = 150;
const OTHER: usize = 300;

/// Limit of operations tried for each fault, spread from the first to the last.
const MOST: u64 = 5;

fn most() -> u64 {
    match std::env::var("SKYTETHER_FAULTS") {
        Ok(all) if all == "all" => u64::MAX,
        Ok(other) => panic!("SKYTETHER_FAULTS={other}: it is `all`, or not set"),
        Err(_) => MOST,
    }
}

/// No case takes so long that does not hang.
const LIMIT: Duration = Duration::from_secs(60);

/// What is done while a drive fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Ingest,
    Replace,
    Drop,
    /// Of a fleet with damage.
    Scrub,
    /// Of a fleet with a blank drive.
    Repair,
}

impl Change {
    async fn make(self, host: &Host) -> Result<()> {
        match self {
            Self::Ingest | Self::Replace => store(host, VICTIM, NEW).await,
            Self::Drop => host.catalog().drop_dataset(&name(VICTIM)).await,
            Self::Scrub => host.scrub(&ScrubOptions::default(), &|_| ()).await.map(drop),
            Self::Repair => host.repair(&RepairOptions::default(), &|_| ()).await.map(drop),
        }
    }

    /// What the victim holds before and afterwards; nothing where there is none.
    fn between(self) -> (Option<String>, Option<String>) {
        match self {
            Self::Ingest => (None, Some(holds(NEW))),
            Self::Replace => (Some(holds(OLD)), Some(holds(NEW))),
            Self::Drop => (Some(holds(OLD)), None),
            Self::Scrub | Self::Repair => (Some(holds(OLD)), Some(holds(OLD))),
        }
    }

    /// Whether all can be read while one drive fails: no more is lost than the fleet survives.
    fn is_readable(self) -> bool {
        !matches!(self, Self::Scrub | Self::Repair)
    }
}

/// What is the matter with the drive.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// One operation fails by an I/O error.
    Once,
    /// All do from one on.
    Lasting,
    /// The medium can't read one value.
    Unreadable,
    /// The disk is full from one change on.
    Full,
}

const TROUBLES: [Trouble; 4] = [Trouble::Once, Trouble::Lasting, Trouble::Unreadable, Trouble::Full];

impl Trouble {
    /// What is counted.
    fn operation(self) -> Operation {
        match self {
            Self::Once | Self::Lasting => Operation::Any,
            Self::Unreadable => Operation::Get,
            Self::Full => Operation::Apply,
        }
    }

    /// It comes with operation `n`.
    fn rule(self, n: u64) -> Rule {
        let (when, fault) = match self {
            Self::Once => (When::Nth(n), Fault::Fail(Kind::Unavailable)),
            Self::Lasting => (When::From(n), Fault::Fail(Kind::Unavailable)),
            Self::Unreadable => (When::Nth(n), Fault::Corrupt),
            Self::Full => (When::From(n), Fault::Fail(Kind::Exhausted)),
        };
        Rule::new(self.operation(), when, fault)
    }
}

type Disk = FaultStore<MemoryStore>;

/// What lies on a disk.
type Values = Vec<(Key, Bytes)>;

fn disk(values: &[(Key, Bytes)]) -> Arc<Disk> {
    let store = MemoryStore::new();
    store.apply(values.iter().map(|(key, value)| Op::Put { key: key.clone(), value: value.clone(), expect: Expect::Any }).collect()).unwrap();
    Arc::new(FaultStore::new(store))
}

fn values(store: &MemoryStore) -> Values {
    let entries = store.list("", None, usize::MAX).unwrap();
    entries.into_iter().map(|entry| (entry.key.clone(), store.get(&entry.key).unwrap())).collect()
}

/// A host's way to a drive of its own process, for as long as the host lives: what it has under way then changes
/// nothing any more, as in a process that ends.
#[derive(Debug)]
struct Way {
    drive: Arc<Drive>,
    lives: Arc<RwLock<bool>>,
}

impl Layer for Way {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let lives = self.lives.read().await;
            if *lives { self.drive.apply(batch).await } else { Err(Error::unavailable("the host has ended")) }
        })
    }
}

/// A host with the drives of its process.
struct Living {
    host: Host,
    lives: Arc<RwLock<bool>>,
}

impl Living {
    async fn end(self) {
        *self.lives.write().await = false;
    }
}

/// A new process over these disks.
async fn open(disks: &[Arc<Disk>], what: &str) -> Living {
    let lives = Arc::new(RwLock::new(true));
    let drives = disks.iter().enumerate().map(|(n, disk)| {
        let drive = small_drive(n, Arc::clone(disk) as _);
        Arc::new(Way { drive, lives: Arc::clone(&lives) }) as Arc<dyn Cse>
    });
    let joined = Host::join(drives.collect(), options("ec:2+1"), Founding::KnownList).await;
    let (host, _) = joined.unwrap_or_else(|e| panic!("{what}: the fleet can't be opened: {}", e.report()));
    Living { host, lives }
}

/// What the disks of a fleet hold in which these data sets were stored.
async fn founded(datasets: &[(&str, usize)]) -> Vec<Values> {
    let disks: Vec<_> = (0..DRIVES).map(|_| disk(&[])).collect();
    let living = open(&disks, "founded").await;
    for (dataset, rows) in datasets {
        store(&living.host, dataset, *rows).await.unwrap();
    }
    living.end().await;
    disks.iter().map(|disk| values(disk.inner())).collect()
}

/// Flips a bit of a slice of `dataset`, on the first of `drives` that has one.
fn damage(fleet: &mut [Values], dataset: &str, drives: &[usize]) {
    for at in drives {
        let is_slice = |key: &Key| PartitionName::parse(key).is_some_and(|(partition, slice)| partition.dataset == name(dataset) && slice.is_some());
        if let Some((_, value)) = fleet[*at].iter_mut().find(|(key, _)| is_slice(key)) {
            let mut bytes = value.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x40;
            *value = bytes.into();
            return;
        }
    }
    panic!("no drive has a slice of {dataset}");
}

/// A fleet before a change.
struct Scene {
    change: Change,
    fleet: Vec<Values>,
    /// The drives that are to fail, one at a time.
    faulty: Vec<usize>,
    blank: Option<usize>,
    before: Option<String>,
    after: Option<String>,
    bystander: String,
}

/// What became of a change.
struct Outcome {
    /// The fault was met.
    struck: bool,
    /// The change was made.
    made: bool,
}

impl Scene {
    async fn new(change: Change) -> Self {
        let mut fleet = founded(&[(VICTIM, OLD), (BYSTANDER, OTHER)]).await;
        // Drives with its root record are asked for more than others.
        let root = name(VICTIM).root_key();
        let (mut faulty, others): (Vec<usize>, Vec<usize>) = (0..DRIVES).partition(|at| fleet[*at].iter().any(|(key, _)| *key == root));
        assert_eq!((faulty.len(), others.len()), (2, 2), "the root record lies on two drives");
        let mut blank = None;
        match change {
            Change::Ingest => fleet = founded(&[(BYSTANDER, OTHER)]).await,
            Change::Replace | Change::Drop => {}
            Change::Scrub => {
                // One of each data set: no group has lost more than it survives.
                damage(&mut fleet, VICTIM, &[others.clone(), faulty.clone()].concat());
                damage(&mut fleet, BYSTANDER, &[faulty.clone(), others].concat());
            }
            Change::Repair => {
                fleet[others[0]].clear();
                blank = Some(others[0]);
                // The blank one may fail as well.
                faulty.push(others[0]);
            }
        }
        let (before, after) = change.between();
        Self { change, fleet, faulty, blank, before, after, bystander: holds(OTHER) }
    }

    fn disks(&self) -> Vec<Arc<Disk>> {
        self.fleet.iter().map(|values| disk(values)).collect()
    }

    /// How many operations there are for each of [`TROUBLES`] at a drive while nothing fails.
    async fn calm(&self, drive: usize) -> [u64; TROUBLES.len()] {
        let disks = self.disks();
        let what = format!("{:?} without a fault", self.change);
        let living = open(&disks, &what).await;
        let counts = || TROUBLES.map(|trouble| disks[drive].count(trouble.operation()));
        let before = counts();
        self.change.make(&living.host).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        let after = counts();
        self.is_one_of(&living.host, std::slice::from_ref(&self.after), &what).await;
        living.end().await;
        std::array::from_fn(|at| after[at] - before[at])
    }

    /// That the victim holds one of these, and the other data set what it always did.
    async fn is_one_of(&self, host: &Host, may: &[Option<String>], what: &str) {
        let held = match rows(host, VICTIM).await {
            Ok(held) => Some(held),
            Err(e) if e.kind() == Kind::NotFound => None,
            Err(e) => panic!("{what}: {VICTIM} can't be read: {}", e.report()),
        };
        assert!(may.contains(&held), "{what}: {VICTIM} holds {held:?}, but may hold {may:?}");
        let other = rows(host, BYSTANDER).await.unwrap_or_else(|e| panic!("{what}: {BYSTANDER} can't be read: {}", e.report()));
        assert_eq!(other, self.bystander, "{what}");
    }

    /// Tries the change while drive `faulty` has `trouble` from its operation `n` on.
    async fn tried(&self, faulty: usize, trouble: Trouble, n: u64) -> Outcome {
        let what = &format!("{:?}, drive-{faulty}: {trouble:?} at operation {n}", self.change);
        let disks = self.disks();
        let living = open(&disks, what).await;
        disks[faulty].add(trouble.rule(n));
        let done = self.change.make(&living.host).await;
        let may = match &done {
            Ok(()) => vec![self.after.clone()],
            Err(e) => {
                assert!(e.report().contains(&format!("drive-{faulty}")), "{what}: the error does not name the drive: {}", e.report());
                vec![self.before.clone(), self.after.clone()]
            }
        };
        if self.change.is_readable() {
            self.is_one_of(&living.host, &may, what).await;
        }
        let struck = disks[faulty].injected() > 0;
        living.end().await;
        disks[faulty].heal();
        self.is_well(&disks, &may, what).await;
        Outcome { struck, made: done.is_ok() }
    }

    /// That all is as it should be once the fault is over.
    async fn is_well(&self, disks: &[Arc<Disk>], may: &[Option<String>], what: &str) {
        let living = open(disks, what).await;
        let host = &living.host;
        if self.blank.is_some_and(|at| disks[at].inner().get(&Key::new(FLEET).unwrap()).is_err()) {
            let report = host.repair(&RepairOptions::default(), &|_| ()).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            assert!(report.left.is_empty() && report.lost.is_empty() && report.drives.len() == 1, "{what}\n{report}");
        }
        self.is_one_of(host, may, what).await;
        let scrubbed = async || host.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        let report = scrubbed().await;
        assert!(report.left() == 0 && report.skipped.is_empty(), "{what}\n{report}");
        let report = scrubbed().await;
        assert!(report.damaged == 0 && report.skipped.is_empty(), "{what}\n{report}");
        self.is_one_of(host, may, what).await;
        nothing_leaks(host, disks, what).await;
        living.end().await;
    }
}

/// The generations that root records name.
async fn generations(host: &Host) -> BTreeMap<DatasetName, Generation> {
    let mut generations = BTreeMap::new();
    for name in host.catalog().names().await.unwrap() {
        let generation = host.catalog().read(&name).await.unwrap().0.generation;
        generations.insert(name, generation);
    }
    generations
}

/// Whether what lies under `key` is of one of these, or of no data set at all.
fn is_named(key: &Key, generations: &BTreeMap<DatasetName, Generation>) -> bool {
    match PartitionName::parse(key) {
        Some((partition, _)) => generations.get(&partition.dataset) == Some(&partition.generation),
        None => !key.as_str().contains('/') || generations.keys().any(|name| name.root_key() == *key),
    }
}

/// That nothing is stored but what root records name.
async fn nothing_leaks(host: &Host, disks: &[Arc<Disk>], what: &str) {
    let generations = generations(host).await;
    for (at, disk) in disks.iter().enumerate() {
        for (key, _) in values(disk.inner()) {
            assert!(is_named(&key, &generations), "{what}: drive-{at} still has {key}");
        }
    }
}

/// Tries a change with each fault at each of some operations of each of some drives. `fails` says whether some of these
/// must keep it from being made.
async fn survives(change: Change, fails: bool) {
    let scene = Scene::new(change).await;
    let (mut cases, mut struck, mut made) = (0, 0, 0);
    for faulty in scene.faulty.iter().copied() {
        let calm = scene.calm(faulty).await;
        println!("{change:?}, drive-{faulty}: {calm:?} operations for {TROUBLES:?}");
        for (trouble, operations) in TROUBLES.into_iter().zip(calm) {
            let step = usize::try_from(operations.div_ceil(most()).max(1)).unwrap();
            for n in (1..=operations).step_by(step) {
                let tried = tokio::time::timeout(LIMIT, Box::pin(scene.tried(faulty, trouble, n))).await;
                let Ok(tried) = tried else { panic!("{change:?}, drive-{faulty}: {trouble:?} at operation {n} takes more than {LIMIT:?}") };
                cases += 1;
                struck += usize::from(tried.struck);
                made += usize::from(tried.made);
            }
        }
    }
    println!("{change:?}: {struck} of {cases} cases were struck, and {made} changes were made");
    assert!(cases >= 8 * scene.faulty.len() && struck * 4 >= cases * 3, "{struck} of {cases} cases were struck: faults that strike nothing show nothing");
    assert!(made > 0 && (made < cases || !fails), "{made} of {cases} changes were made");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingest_over_a_failing_or_full_drive_is_all_or_nothing() {
    survives(Change::Ingest, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacement_over_a_failing_or_full_drive_is_old_or_new() {
    survives(Change::Replace, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_over_a_failing_or_full_drive_is_all_or_nothing() {
    survives(Change::Drop, true).await;
}

/// The scrub repairs what it can. The next one repairs the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_resumes_after_drive_failure_or_enospc() {
    survives(Change::Scrub, false).await;
}

/// The repair goes on once the drive is well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_resumes_after_drive_failure_or_enospc() {
    survives(Change::Repair, true).await;
}
