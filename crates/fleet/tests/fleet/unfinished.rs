//! What a break in the middle of a query costs: epochs that were complete count, and no slice of theirs is read or worked off once more.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use skytether_adapt::message::{EpochId, Rung, Up};
use skytether_adapt::query::{Limits, Policy};
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_drive::Drive;
use skytether_fleet::{DatasetKind, HostOptions, Moving, Placement, QueryOptions, Receipt};
use skytether_host::{Founding, Host};
use skytether_store::SliceStore;
use skytether_store::before::Before;
use skytether_store::memory::MemoryStore;
use skytether_wire::decorated::{Decorated, Decorator};
use skytether_wire::session::Message;
use skytether_wire::{Cse, Opened, Session, SubPlan};

use crate::util::{batches, lines, name, small_drive};

/// A store that notes which slices of `data` are read, once the drive over it has broken.
#[derive(Debug, Default)]
struct Noting {
    store: MemoryStore,
    read: Mutex<Option<BTreeSet<u32>>>,
}

impl Before for Noting {
    fn behind(&self) -> Result<&dyn SliceStore> {
        Ok(&self.store)
    }

    fn reads(&self, key: &Key) -> Result<()> {
        if let Some((partition, Some(number))) = PartitionName::parse(key)
            && partition.table == "data"
        {
            if let Some(read) = &mut *self.read.lock().unwrap() {
                read.insert(number);
            }
            // So that there is something left to do when it breaks.
            std::thread::sleep(READING);
        }
        Ok(())
    }
}

/// How long a slice takes to be read.
const READING: Duration = Duration::from_millis(5);

/// The stripes of a slice by its number in a session (ARCHITECTURE.md, "Runs").
fn stripes(slice: u32) -> Range<u32> {
    let first = slice & 0x00ff_ffff;
    first..first + (slice >> 24) + 1
}

/// What passed between a drive and its host. Slices are stripes.
#[derive(Debug, Default)]
struct Told {
    sessions: usize,
    survey: BTreeSet<u32>,
    /// Of each epoch of the first session the batches that came, and what it covers and in how many batches, once it ended.
    epochs: BTreeMap<EpochId, (u32, Option<(Vec<u32>, u32)>)>,
    /// Those that were complete before the break.
    complete: BTreeSet<EpochId>,
    covered: BTreeSet<u32>,
    /// Slices that were done before the break, whether or not what came of them arrived; and after it.
    done: BTreeSet<u32>,
    again: Vec<u32>,
}

/// A drive whose connection breaks once so many epochs are complete.
#[derive(Debug)]
struct Breaking {
    drive: Arc<Drive>,
    store: Arc<Noting>,
    after: usize,
    told: Arc<Mutex<Told>>,
}

impl Told {
    /// A message of the first session; whether the connection breaks after it.
    fn first(&mut self, message: &Message, after: usize) -> bool {
        let epoch = match message {
            Message::Batch { epoch, .. } => {
                self.epochs.entry(*epoch).or_default().0 += 1;
                *epoch
            }
            Message::Up(Up::EpochDone(end)) => {
                let covers = end.slices.iter().flat_map(|slice| stripes(slice.0)).collect();
                self.epochs.entry(end.epoch).or_default().1 = Some((covers, end.batches));
                end.epoch
            }
            Message::Up(Up::Progress { done, .. }) => {
                self.done.extend(done.iter().flat_map(|cost| stripes(cost.slice.0)));
                return false;
            }
            _ => return false,
        };
        if let Some((came, Some((covers, batches)))) = self.epochs.get(&epoch)
            && came == batches
            && self.complete.insert(epoch)
        {
            self.covered.extend(covers);
        }
        self.complete.len() >= after
    }
}

#[async_trait]
impl Decorator for Breaking {
    fn behind(&self) -> &dyn Cse {
        self.drive.as_ref()
    }

    async fn open(&self, plan: SubPlan) -> Result<Opened> {
        let Opened::Session(session) = self.drive.open(plan).await? else { panic!("it has several slices") };
        let first = {
            let mut told = self.told.lock().unwrap();
            told.sessions += 1;
            told.survey = session.survey.iter().flat_map(|stripe| stripes(stripe.stripe)).collect();
            told.sessions == 1
        };
        let (told, store, after) = (Arc::clone(&self.told), Arc::clone(&self.store), self.after);
        let messages = session.messages.scan((false, false), move |(breaks, broken), message: Result<Message>| {
            let next = if *broken {
                None
            } else if *breaks {
                *broken = true;
                Some(Err(Error::unavailable("the connection broke")))
            } else {
                let mut told = told.lock().unwrap();
                match &message {
                    Ok(message) if first => {
                        *breaks = told.first(message, after);
                        if *breaks {
                            *store.read.lock().unwrap() = Some(BTreeSet::new());
                        }
                    }
                    Ok(Message::Up(Up::Progress { done, .. })) => told.again.extend(done.iter().flat_map(|cost| stripes(cost.slice.0))),
                    _ => {}
                }
                Some(message)
            };
            std::future::ready(next)
        });
        Ok(Opened::Session(Session { messages: Box::pin(messages), ..session }))
    }
}

const DRIVES: usize = 4;

/// The drive that breaks.
const AT: usize = 1;

/// A host over drives on these stores, one of which breaks after so many epochs.
async fn host(stores: &[Arc<Noting>], policy: Policy, redundancy: &str, breaks: Option<(usize, &Arc<Mutex<Told>>)>) -> Host {
    let drives = stores.iter().enumerate().map(|(n, store)| {
        let drive = small_drive(n, Arc::clone(store) as _);
        match breaks {
            Some((after, told)) if n == AT => Arc::new(Decorated(Breaking { drive, store: Arc::clone(store), after, told: Arc::clone(told) })) as Arc<dyn Cse>,
            _ => drive as Arc<dyn Cse>,
        }
    });
    // With next to no room for what waits each epoch is a slice.
    let limits = Limits { pause: 0.01, memory: 64, ..Limits::default() };
    let mut options = HostOptions { moving: Moving::Always(policy), redundancy: redundancy.parse().unwrap(), limits, threads: 2, ..HostOptions::default() };
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

/// Rows that drives give as they are, and such as are aggregated above.
const QUERIES: [(&str, Rung); 2] = [
    ("SELECT id, name FROM lab.t WHERE n % 5 = 3", Rung::Full),
    ("SELECT grp, count(*), sum(n), round(avg(x), 6), min(name) FROM lab.t WHERE n > -50 GROUP BY grp", Rung::Filter),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_costs_what_is_unfinished_and_no_slice_of_a_complete_epoch_is_done_again() {
    for redundancy in ["none", "ec:2+1"] {
        let stores: Vec<Arc<Noting>> = (0..DRIVES).map(|_| Arc::default()).collect();
        let whole = host(&stores, Policy::Static(Rung::Full), redundancy, None).await;
        let rows = batches(16, 1000);
        let mut writer = whole.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
        writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
        writer.commit().await.unwrap();
        let mut cases = Vec::new();
        for (sql, rung) in QUERIES {
            let (expected, _) = answer(&whole, sql).await.unwrap();
            cases.extend([1, 2, 3].map(|after| (sql, rung, after, expected.clone())));
        }
        drop(whole);
        for (sql, rung, after, expected) in cases {
            let what = format!("{redundancy}, {rung:?}, after {after}: {sql}");
            *stores[AT].read.lock().unwrap() = None;
            let told: Arc<Mutex<Told>> = Arc::default();
            let host = host(&stores, Policy::Static(rung), redundancy, Some((after, &told))).await;
            let (rows, receipt) = answer(&host, sql).await.unwrap_or_else(|e| panic!("{what}: {}", e.full_text()));
            assert_eq!(rows, expected, "{what}");
            let told = told.lock().unwrap();
            assert_eq!(told.complete.len(), after, "{what}: {told:?}");
            let unfinished: BTreeSet<u32> = told.survey.difference(&told.covered).copied().collect();
            assert!(told.covered.len() >= after && !unfinished.is_empty() && told.covered.is_subset(&told.survey), "{what}: {told:?}");
            let read = stores[AT].read.lock().unwrap().take().unwrap_or_else(|| panic!("{what}: it did not break"));
            let drive = &receipt.drives[AT];
            assert_eq!(drive.slices_total, Some(drive.slices + drive.slices_pruned + drive.slices_told), "{what}: {drive:?}");
            if redundancy == "none" {
                // The drive itself has done the rest, each slice of it once; also those that it had done of epochs that were not complete.
                assert_eq!((told.sessions, drive.stood_for.is_none()), (2, true), "{what}: {drive:?}");
                assert!(read.is_subset(&unfinished), "{what}: {read:?} was read after the break, when {:?} was covered", told.covered);
                let again: BTreeSet<u32> = told.again.iter().copied().collect();
                assert_eq!((&again, told.again.len()), (&unfinished, unfinished.len()), "{what}: {told:?}");
                assert!(told.done.intersection(&again).all(|slice| !told.covered.contains(slice)), "{what}: {told:?}");
            } else {
                // Who stands for it has; it reads in rows, and so perhaps some that are covered as well.
                assert!(!read.is_empty() && drive.slices_decoded as usize <= unfinished.len(), "{what}: {drive:?}");
                assert_eq!(told.sessions, 1, "{what}: {told:?}");
                assert!(drive.stood_for.as_ref().is_some_and(|why| why.contains("the connection broke")), "{what}: {drive:?}");
            }
        }
    }
}
