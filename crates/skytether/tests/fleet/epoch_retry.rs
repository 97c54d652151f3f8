//! A drive disconnects, falls silent or sends corrupt replies in the middle of a query: complete epochs count, and no
//! slice of theirs runs again.

use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use parking_lot::Mutex;
use skytether::{AdaptiveMode, DatasetKind, HostOptions, Placement, QueryOptions, Receipt};
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_device::session::Message;
use skytether_device::{Cse, CseInfo, Layer, OpenReply, Session, Storage, SubPlan};
use skytether_drive::{Drive, DriveOptions};
use skytether_host::{Founding, Host};
use skytether_scheduler::message::{Completed, EpochId, PushdownLevel, SliceId, Up};
use skytether_scheduler::query::{Limits, Policy};
use skytether_store::SliceStore;
use skytether_store::StoreLayer;
use skytether_store::memory::MemoryStore;

use crate::corrupt_reply::Garbage;
use crate::util::{batches, drive_over, lines, name};

/// A store that notes which slices of `data` are read, once the drive over it has failed.
#[derive(Debug, Default)]
struct Noting {
    store: MemoryStore,
    read: Mutex<Option<BTreeSet<u32>>>,
}

impl StoreLayer for Noting {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.store)
    }

    fn before_read(&self, key: &Key) -> Result<()> {
        if let Some((partition, Some(number))) = PartitionName::parse(key)
            && partition.table == "data"
        {
            if let Some(read) = &mut *self.read.lock() {
                read.insert(number);
            }
            // So that there is something left to do when it fails.
            std::thread::sleep(READING);
        }
        Ok(())
    }
}

/// How long a slice takes to be read.
const READING: Duration = Duration::from_millis(5);

/// The stripes of a slice by its number in a session (docs/internals/adaptive-execution.md, "Runs").
fn stripes(slice: u32) -> Range<u32> {
    let first = slice & 0x00ff_ffff;
    first..first + (slice >> 24) + 1
}

/// Messages between a drive and its host. Slices are stripes.
#[derive(Debug, Default)]
struct Told {
    sessions: usize,
    slice_manifest: BTreeSet<u32>,
    /// Epochs that were complete before the failure, and their slices.
    complete: BTreeSet<EpochId>,
    covered: BTreeSet<u32>,
    /// Slices that were done before the failure, whether or not their results arrived, and slices that were done after
    /// it.
    done: BTreeSet<u32>,
    again: Vec<u32>,
}

/// The failure of a drive.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// Its connection breaks.
    Breaks,
    /// The drive falls silent, while its connection stays open.
    Silent,
    /// It sends this garbage once, where a message allows it, and continues as if nothing had happened.
    Gives(Garbage),
}

impl Fate {
    /// Text that the reason for the failover contains.
    fn says(self) -> &'static str {
        match self {
            Self::Breaks => "the connection broke",
            Self::Silent => "has not answered",
            Self::Gives(garbage) => garbage.says(),
        }
    }
}

/// `message` as garbage of this kind; `None` where the message does not allow it.
fn spoilt(garbage: Garbage, message: &Message) -> Option<Result<Message>> {
    match message {
        Message::Batch { .. } if garbage == Garbage::Undecodable => Some(Err(Error::corrupt("a message can't be decoded"))),
        Message::Batch { epoch, number, rung, batch } => {
            garbage.of(batch).map(|batch| Ok(Message::Batch { epoch: *epoch, number: *number, rung: *rung, batch }))
        }
        Message::Up(Up::EpochDone(end)) if garbage == Garbage::NotAsked => {
            let mut end = end.clone();
            end.slices.push(SliceId(77_777));
            Some(Ok(Message::Up(Up::EpochDone(end))))
        }
        _ => None,
    }
}

/// A drive that fails once `after` epochs are complete.
#[derive(Debug)]
struct Failing {
    drive: Arc<Drive>,
    store: Arc<Noting>,
    fate: Fate,
    after: usize,
    told: Arc<Mutex<Told>>,
}

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Well,
    /// The given number of epochs is complete.
    Due,
    /// It has failed.
    Over,
}

/// Follows a session, and makes the first one fail.
struct Listening {
    told: Arc<Mutex<Told>>,
    store: Arc<Noting>,
    fate: Fate,
    after: usize,
    first: bool,
    stage: Stage,
    /// Batches of each epoch that arrived, and ends of epochs whose batches did not.
    came: BTreeMap<EpochId, u32>,
    ends: Vec<Completed>,
}

impl Listening {
    /// From now on the store notes reads.
    fn fails(&mut self) {
        self.stage = Stage::Over;
        *self.store.read.lock() = Some(BTreeSet::new());
    }

    /// The next message; the end of an epoch comes once all of its rows are there. Ends precede rows on the wire, and
    /// where rows wait for long, all epochs may end before one of them is complete.
    async fn in_order(&mut self, messages: &mut (impl futures::Stream<Item = Result<Message>> + Unpin)) -> Option<Result<Message>> {
        loop {
            if let Some(at) = self.ends.iter().position(|end| self.came.get(&end.epoch).copied().unwrap_or(0) == end.batches) {
                return Some(Ok(Message::Up(Up::EpochDone(self.ends.remove(at)))));
            }
            match messages.next().await? {
                Ok(Message::Up(Up::EpochDone(end))) => self.ends.push(end),
                message => {
                    if let Ok(Message::Batch { epoch, .. }) = &message {
                        *self.came.entry(*epoch).or_default() += 1;
                    }
                    return Some(message);
                }
            }
        }
    }

    /// Handles the next message.
    async fn next(&mut self, messages: &mut (impl futures::Stream<Item = Result<Message>> + Unpin)) -> Option<Result<Message>> {
        match (self.fate, self.stage) {
            (Fate::Breaks, Stage::Due) => {
                self.fails();
                return Some(Err(Error::unavailable("the connection broke")));
            }
            (Fate::Breaks, Stage::Over) => return None,
            (Fate::Silent, Stage::Due) => {
                self.fails();
                return std::future::pending().await;
            }
            _ => {}
        }
        let message = match self.in_order(messages).await? {
            Ok(message) => message,
            error => return Some(error),
        };
        if let (Fate::Gives(garbage), Stage::Due) = (self.fate, self.stage)
            && let Some(spoilt) = spoilt(garbage, &message)
        {
            self.fails();
            return Some(spoilt);
        }
        let told = Arc::clone(&self.told);
        let mut told = told.lock();
        match &message {
            // Messages after garbage do not count.
            message if self.first && self.stage != Stage::Over => {
                let due = told.first(message, self.after);
                self.stage = if due { Stage::Due } else { self.stage };
            }
            Message::Up(Up::Progress { done, .. }) if !self.first => told.again.extend(done.iter().flat_map(|cost| stripes(cost.slice.0))),
            _ => {}
        }
        Some(Ok(message))
    }
}

impl Told {
    /// Handles a message of the first session, where epochs end when they are complete. Gives whether `after` epochs
    /// are complete.
    fn first(&mut self, message: &Message, after: usize) -> bool {
        match message {
            Message::Up(Up::EpochDone(end)) => {
                self.complete.insert(end.epoch);
                self.covered.extend(end.slices.iter().flat_map(|slice| stripes(slice.0)));
            }
            Message::Up(Up::Progress { done, .. }) => self.done.extend(done.iter().flat_map(|cost| stripes(cost.slice.0))),
            _ => {}
        }
        self.complete.len() >= after
    }
}

impl Layer for Failing {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move {
            let OpenReply::Session(session) = self.drive.open(plan).await? else { panic!("it has several slices") };
            let first = {
                let mut told = self.told.lock();
                told.sessions += 1;
                told.slice_manifest = session.slice_manifest.iter().flat_map(|stripe| stripes(stripe.stripe)).collect();
                told.sessions == 1
            };
            let (told, store) = (Arc::clone(&self.told), Arc::clone(&self.store));
            let listening = Listening { told, store, fate: self.fate, after: self.after, first, stage: Stage::Well, came: BTreeMap::new(), ends: Vec::new() };
            let messages = stream::unfold((session.messages, listening), |(mut messages, mut listening)| async move {
                let message = listening.next(&mut messages).await?;
                Some((message, (messages, listening)))
            });
            Ok(OpenReply::Session(Session { messages: Box::pin(messages), ..session }))
        })
    }
}

const DRIVES: usize = 4;

/// The drive that fails.
const AT: usize = 1;

/// How long a drive may be silent: longer than a healthy one is on a busy machine.
const SILENCE: f64 = 2.0;

/// A host over drives on these stores. With `fails`, one drive fails after that many epochs.
async fn host(stores: &[Arc<Noting>], policy: Policy, redundancy: &str, fails: Option<(Fate, usize, &Arc<Mutex<Told>>)>) -> Host {
    let drives = stores.iter().enumerate().map(|(n, store)| {
        // It works at the requested pushdown level, however busy the machine is.
        let drive = drive_over(n, Arc::clone(store) as _, DriveOptions { memory_limit: 64 << 20, max_load: f64::INFINITY, ..DriveOptions::default() });
        match fails {
            Some((fate, after, told)) if n == AT => Arc::new(Failing { drive, store: Arc::clone(store), fate, after, told: Arc::clone(told) }) as Arc<dyn Cse>,
            _ => drive as Arc<dyn Cse>,
        }
    });
    let silence = if matches!(fails, Some((Fate::Silent, ..))) { SILENCE } else { Limits::default().silence };
    // Without memory for waiting results each epoch is one slice, whatever size its rows are expected to have.
    let limits = Limits { pause: 0.01, memory: 1, silence, ..Limits::default() };
    let mut options =
        HostOptions { moving: AdaptiveMode::Always(policy), redundancy: redundancy.parse().unwrap(), limits, threads: 2, ..HostOptions::default() };
    options.slices.target_bytes = 8 << 10;
    Host::join(drives.collect(), options, Founding::EmptyDrives).await.unwrap().0
}

async fn answer(host: &Host, sql: &str) -> Result<(Vec<String>, Receipt)> {
    let query = host.sql(sql, &QueryOptions::default()).await?;
    let receipt = query.receipt.clone();
    let mut rows = lines(&query.collect().await?);
    rows.sort();
    Ok((rows, receipt.receipt()))
}

/// A query whose drives send rows as they are, and one whose rows are aggregated above.
const QUERIES: [(&str, PushdownLevel); 2] = [
    ("SELECT id, name FROM lab.t WHERE n % 5 = 3", PushdownLevel::Full),
    ("SELECT grp, count(*), sum(n), round(avg(x), 6), min(name) FROM lab.t WHERE n > -50 GROUP BY grp", PushdownLevel::Filter),
];

/// Lets a drive fail after each number of epochs in `afters`, in fleets with and without redundancy.
async fn costs_what_is_unfinished(fates: &[Fate], afters: &[usize]) {
    for redundancy in ["none", "ec:2+1"] {
        let stores: Vec<Arc<Noting>> = (0..DRIVES).map(|_| Arc::default()).collect();
        let whole = host(&stores, Policy::Static(PushdownLevel::Full), redundancy, None).await;
        let rows = batches(32, 1000);
        let mut writer = whole.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
        writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
        writer.commit().await.unwrap();
        let mut cases = Vec::new();
        for (sql, rung) in QUERIES {
            let (expected, _) = answer(&whole, sql).await.unwrap();
            cases.extend(fates.iter().flat_map(|fate| afters.iter().map(|after| (sql, rung, *fate, *after, expected.clone()))));
        }
        drop(whole);
        for (sql, rung, fate, after, expected) in cases {
            let what = format!("{redundancy}, {rung:?}, {fate:?} after {after}: {sql}");
            *stores[AT].read.lock() = None;
            let told: Arc<Mutex<Told>> = Arc::default();
            let host = host(&stores, Policy::Static(rung), redundancy, Some((fate, after, &told))).await;
            let (rows, receipt) = answer(&host, sql).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            assert_eq!(rows, expected, "{what}");
            let told = told.lock();
            // Garbage waits for a message that allows it.
            let complete = told.complete.len();
            assert!(if matches!(fate, Fate::Gives(_)) { complete >= after } else { complete == after }, "{what}: {told:?}");
            let unfinished: BTreeSet<u32> = told.slice_manifest.difference(&told.covered).copied().collect();
            assert!(told.covered.len() >= after && !unfinished.is_empty() && told.covered.is_subset(&told.slice_manifest), "{what}: {told:?}");
            let read = stores[AT].read.lock().take().unwrap_or_else(|| panic!("{what}: it did not fail"));
            let drive = &receipt.drives[AT];
            assert_eq!(drive.slices_total, Some(drive.slices + drive.slices_pruned + drive.slices_told), "{what}: {drive:?}");
            if redundancy == "none" {
                // The drive itself has done the rest, each slice once. That includes slices of incomplete epochs.
                assert_eq!((told.sessions, drive.served_by_fallback.is_none()), (2, true), "{what}: {drive:?}");
                assert!(read.is_subset(&unfinished), "{what}: {read:?} was read after it failed, when {:?} was covered", told.covered);
                let again: BTreeSet<u32> = told.again.iter().copied().collect();
                assert_eq!((&again, told.again.len()), (&unfinished, unfinished.len()), "{what}: {told:?}");
                assert!(told.done.intersection(&again).all(|slice| !told.covered.contains(slice)), "{what}: {told:?}");
            } else {
                // The fallback executor has. It reads whole rows of slices, and so perhaps some that are covered as
                // well.
                assert!(!read.is_empty() && drive.slices_decoded as usize <= unfinished.len(), "{what}: {drive:?}");
                assert_eq!(told.sessions, 1, "{what}: {told:?}");
                assert!(drive.served_by_fallback.as_ref().is_some_and(|why| why.contains(fate.says())), "{what}: {drive:?}");
            }
        }
    }
}

/// Complete epochs count. No slice of theirs is read or processed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_retries_only_incomplete_epochs() {
    costs_what_is_unfinished(&[Fate::Breaks], &[1, 2, 3]).await;
}

/// As after a disconnect, when the deadline has passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_retries_only_incomplete_epochs() {
    costs_what_is_unfinished(&[Fate::Silent], &[2]).await;
}

/// As after a disconnect, for each kind of corrupt message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupt_reply_retries_only_incomplete_epochs() {
    // An end that names what was not asked for, rows with other columns and values, and what is no message at all.
    let kinds = [Garbage::NotAsked, Garbage::OtherColumns, Garbage::OtherValues, Garbage::Undecodable];
    costs_what_is_unfinished(&kinds.map(Fate::Gives), &[1, 3]).await;
}
