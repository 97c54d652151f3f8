//! A drive loses acknowledged writes: its power fails, and it returns as it was some batches before, so fast that no
//! host notices its absence. Peers have what it lost, a scrub repairs it, and nothing leaks.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use skytether::ScrubOptions;
use skytether_common::{Error, Key, Kind, Result};
use skytether_device::{Capabilities, CseInfo, Layer, Storage};
use skytether_drive::{Cse, Drive};
use skytether_host::{Founding, Host};
use skytether_store::memory::MemoryStore;
use skytether_store::{Op, SliceStore, StoreLayer, Version};

use super::{BYSTANDER, Change, DRIVES, LIMIT, OLD, OTHER, VICTIM, Values, values};
use crate::repair::{holds, options, rows, store};
use crate::util::{name, small_drive};

/// How many batches of changes it forgets, and whether the host goes on or another one begins.
const FORGOTTEN: [(usize, bool); 6] = [(1, true), (1, false), (2, true), (2, false), (5, true), (5, false)];

/// What lies on a disk, and how it came there.
#[derive(Debug)]
struct Disk {
    first: Values,
    batches: Mutex<Vec<Vec<Op>>>,
    now: MemoryStore,
}

impl Disk {
    /// A disk with the values `first`, and then these batches.
    fn new(first: Values, batches: Vec<Vec<Op>>) -> Arc<Self> {
        let now = MemoryStore::new();
        let put = |(key, value): &(Key, Bytes)| Op::Put { key: key.clone(), value: value.clone(), expect: skytether_store::Expect::Any };
        now.apply(first.iter().map(put).collect()).unwrap();
        for batch in &batches {
            now.apply(batch.clone()).expect("what was taken once is taken again");
        }
        Arc::new(Self { first, batches: Mutex::new(batches), now })
    }

    /// The disk as it was `batches` batches before, versions included.
    fn before(&self, batches: usize) -> Arc<Self> {
        let all = self.batches.lock();
        Self::new(self.first.clone(), all[..all.len().saturating_sub(batches)].to_vec())
    }
}

impl StoreLayer for Disk {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.now)
    }

    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        let mut batches = self.batches.lock();
        let versions = self.now.apply(batch.clone())?;
        if batch.iter().any(|op| !matches!(op, Op::Check { .. })) {
            batches.push(batch);
        }
        Ok(versions)
    }
}

/// A host's way to a drive behind a wire, which may begin again meanwhile.
#[derive(Debug)]
struct Way {
    drive: Arc<Drive>,
    again: Arc<OnceLock<Arc<Drive>>>,
}

impl Layer for Way {
    fn info(&self) -> &CseInfo {
        self.again.get().unwrap_or(&self.drive).info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.again.get().unwrap_or(&self.drive).as_ref())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { remote: true, ..self.again.get().unwrap_or(&self.drive).capabilities() }
    }
}

/// A fleet; one of its drives loses writes.
struct Fleet {
    redundancy: &'static str,
    disks: Vec<Arc<Disk>>,
    again: Vec<Arc<OnceLock<Arc<Drive>>>>,
}

impl Fleet {
    fn new(redundancy: &'static str, fleet: &[Values]) -> Self {
        let disks = fleet.iter().map(|values| Disk::new(values.clone(), Vec::new())).collect();
        Self { redundancy, disks, again: (0..fleet.len()).map(|_| Arc::default()).collect() }
    }

    async fn host(&self, what: &str) -> Host {
        let way = |(n, disk): (usize, &Arc<Disk>)| {
            let way = Way { drive: small_drive(n, Arc::clone(disk) as _), again: Arc::clone(&self.again[n]) };
            Arc::new(way) as Arc<dyn Cse>
        };
        let drives = self.disks.iter().enumerate().map(way).collect();
        let joined = Host::join(drives, options(self.redundancy), Founding::KnownList).await;
        joined.unwrap_or_else(|e| panic!("{what}: the fleet can't be opened: {}", e.report())).0
    }

    /// Drive `at` loses its power, and is there again.
    fn forgets(&mut self, at: usize, batches: usize) {
        self.disks[at] = self.disks[at].before(batches);
        self.again[at].set(small_drive(at, Arc::clone(&self.disks[at]) as _)).unwrap();
        self.again[at] = Arc::default();
    }
}

/// What the disks of a fleet hold in which these data sets were stored.
async fn founded(redundancy: &'static str, datasets: &[(&str, usize)]) -> Vec<Values> {
    let fleet = Fleet::new(redundancy, &vec![Values::new(); DRIVES]);
    let host = fleet.host("founded").await;
    for (dataset, rows) in datasets {
        store(&host, dataset, *rows).await.unwrap();
    }
    drop(host);
    fleet.disks.iter().map(|disk| values(&disk.now)).collect()
}

/// The content of a data set.
async fn held(host: &Host, dataset: &str) -> Result<Option<String>> {
    match rows(host, dataset).await {
        Ok(held) => Ok(Some(held)),
        // A missing part is an error that names the drive without it.
        Err(e) if e.kind() == Kind::NotFound && !e.report().contains("drive-") => Ok(None),
        Err(e) => Err(e),
    }
}

/// A fleet before a change, and what its data sets hold before and afterwards.
struct Scene {
    redundancy: &'static str,
    change: Change,
    fleet: Vec<Values>,
}

impl Scene {
    async fn new(redundancy: &'static str, change: Change) -> Self {
        let all = [(VICTIM, OLD), (BYSTANDER, OTHER)];
        let fleet = founded(redundancy, if change == Change::Ingest { &all[1..] } else { &all }).await;
        Self { redundancy, change, fleet }
    }

    /// After the change was acknowledged, drive `at` loses `batches` batches. Then a host, the same one or another,
    /// opens the data sets.
    async fn after(&self, at: usize, batches: usize, same: bool) -> (String, Fleet, Host) {
        let host = if same { "the same host" } else { "another host" };
        let what = format!("{}, {:?}, drive-{at} forgets {batches} batches, {host}", self.redundancy, self.change);
        let mut fleet = Fleet::new(self.redundancy, &self.fleet);
        let host = fleet.host(&what).await;
        self.change.make(&host).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        fleet.forgets(at, batches);
        let host = if same { host } else { fleet.host(&what).await };
        (what, fleet, host)
    }

    /// Checks that all acknowledged changes are there and that a scrub repairs the drive, or says what is wrong. A host
    /// that ran before asks the drive first, and a scrub shows it the loss. A new host compares the records.
    async fn is_whole(&self, host: &Host, same: bool) -> Result<Outcome> {
        let (_, after) = self.change.between();
        let wrong = |text: String| Err(Error::internal(text));
        let mut outcome = Outcome::Whole;
        for round in 0..3 {
            // No record says that a data set was dropped. A home drive that lost the drop still has the root record, so
            // the data set exists again. The other drives have deleted their parts.
            if let (Change::Drop, Err(e)) = (self.change, held(host, VICTIM).await) {
                if e.kind() != Kind::Corrupt || !e.report().contains(&format!("drop {VICTIM}")) || outcome == Outcome::DroppedAgain {
                    return Err(e);
                }
                host.catalog().drop_dataset(&name(VICTIM)).await?;
                outcome = Outcome::DroppedAgain;
            }
            for (dataset, holds) in [(VICTIM, &after), (BYSTANDER, &Some(holds(OTHER)))] {
                match held(host, dataset).await {
                    Ok(held) if held == *holds => {}
                    _ if same && round == 0 && dataset == VICTIM => outcome = Outcome::WholeOnceScrubbed,
                    other => return wrong(format!("{dataset} holds {other:?} and not {holds:?} in round {round}")),
                }
            }
            let report = host.scrub(&ScrubOptions::default(), &|_| ()).await?;
            // It may have found out only now.
            let comes_back = self.change == Change::Drop && round == 0;
            if !report.skipped.is_empty() || (report.left() > 0 && !comes_back) || (round > 1 && report.damaged > 0) {
                return wrong(format!("scrub in round {round}: {report}"));
            }
        }
        Ok(outcome)
    }
}

/// The outcome for a fleet with a drive that lost writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Whole,
    WholeOnceScrubbed,
    /// Once the data set that came back was dropped again.
    DroppedAgain,
}

/// That of everything acknowledged nothing is lost when one drive forgets some of it.
async fn survives(redundancy: &'static str, change: Change, forgotten: &[(usize, bool)]) {
    let scene = Scene::new(redundancy, change).await;
    let (mut cases, mut wrong, mut outcome) = (0, Vec::new(), BTreeMap::new());
    for at in 0..DRIVES {
        for (batches, same) in forgotten.iter().copied() {
            let tried = tokio::time::timeout(LIMIT, async {
                let (what, fleet, host) = scene.after(at, batches, same).await;
                let whole = scene.is_whole(&host, same).await.map_err(|e| format!("{what}: {}", e.report()))?;
                drop(host);
                // The next open deletes the values that the drive has again.
                let host = fleet.host(&what).await;
                let left = leaks(&host, &fleet).await;
                if left.is_empty() { Ok(whole) } else { Err(format!("{what}: there are still {left:?}")) }
            });
            cases += 1;
            match tried.await.unwrap_or_else(|_| Err(format!("drive-{at}, {batches}, {same}: takes more than {LIMIT:?}"))) {
                Ok(what) => *outcome.entry(what).or_insert(0) += 1,
                Err(e) => wrong.push(e),
            }
        }
    }
    println!("{redundancy}, {change:?}: {cases} cases: {outcome:?}, {} wrong", wrong.len());
    assert!(wrong.is_empty(), "{} of {cases}:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is stored that no root record names.
async fn leaks(host: &Host, fleet: &Fleet) -> BTreeMap<String, Vec<String>> {
    let mut left = BTreeMap::new();
    let named = super::generations(host).await;
    for (at, disk) in fleet.disks.iter().enumerate() {
        let keys: Vec<_> = values(&disk.now).into_iter().map(|(key, _)| key).filter(|key| !super::is_named(key, &named)).collect();
        if !keys.is_empty() {
            left.insert(format!("drive-{at}"), keys.iter().map(|key| key.as_str().to_owned()).collect());
        }
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_writes_of_an_ingest_are_recovered_from_peers() {
    survives("ec:2+1", Change::Ingest, &FORGOTTEN).await;
    survives("replicas:2", Change::Ingest, &FORGOTTEN[2..4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_writes_of_a_replacement_are_recovered_from_peers() {
    survives("ec:2+1", Change::Replace, &FORGOTTEN).await;
    survives("replicas:2", Change::Replace, &FORGOTTEN[2..4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_writes_of_a_drop_are_recovered_from_peers() {
    survives("ec:2+1", Change::Drop, &FORGOTTEN).await;
    survives("replicas:2", Change::Drop, &FORGOTTEN[2..4]).await;
}

/// The data set is old or new, or an error names the drive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_writes_without_redundancy_are_old_new_or_named() {
    let (mut kept, mut old, mut told) = (0, 0, 0);
    for change in [Change::Ingest, Change::Replace, Change::Drop] {
        let scene = Scene::new("none", change).await;
        let (before, after) = change.between();
        for at in 0..DRIVES {
            for (batches, same) in FORGOTTEN.into_iter().skip(1).step_by(2) {
                let (what, _fleet, host) = scene.after(at, batches, same).await;
                match held(&host, VICTIM).await {
                    Ok(held) if held == after => kept += 1,
                    Ok(held) if held == before => old += 1,
                    Ok(held) => panic!("{what}: {VICTIM} holds {held:?}, and never did"),
                    Err(e) => {
                        println!("{what}: {}", e.report());
                        assert!(e.report().contains("drive-"), "{what}: the error names no drive: {}", e.report());
                        told += 1;
                    }
                }
                assert_eq!(held(&host, BYSTANDER).await.unwrap_or_else(|e| panic!("{what}: {}", e.report())), Some(holds(OTHER)), "{what}");
            }
        }
    }
    println!("of {} cases {kept} hold what was acknowledged, {old} what was before, {told} tell what is missing", kept + old + told);
    assert!(kept > 0 && told > 0);
}
