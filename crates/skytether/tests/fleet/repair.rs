//! Changes of a fleet that a failing drive interrupts: the next host completes them, and nothing stored or dropped is
//! wrong afterwards.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use skytether::{DatasetKind, HostOptions, Placement, Pushdown, QueryOptions, ResizeOptions, ResizeReport, Scheme, ScrubOptions};
use skytether_common::{Detail, Error, Key, Kind, Result};
use skytether_device::{Capabilities, CseInfo, Layer};
use skytether_drive::{Cse, Drive, Storage};
pub(crate) use skytether_host::MEMBERSHIP_KEY as FLEET;
use skytether_host::Membership;
use skytether_host::{Founding, Host};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, Version};

use crate::util::{batches, lines, name, small_drive};

/// The record of the fleet's host.
const HOST: &str = "skytether-fleet-host";

/// Which change a drive does not answer: the next one of this key, made all the same or not.
#[derive(Debug, Clone, Copy)]
struct Fails {
    key: &'static str,
    made: bool,
}

/// A connection to a drive that fails on demand.
#[derive(Debug)]
struct Way {
    drive: Arc<Drive>,
    fails: Arc<Mutex<BTreeMap<usize, Fails>>>,
    at: usize,
}

impl Layer for Way {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { remote: true, ..self.drive.capabilities() }
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let fails = {
                let mut fails = self.fails.lock();
                let hit = fails.get(&self.at).is_some_and(|fails| batch.iter().any(|op| op.key().as_str() == fails.key && !matches!(op, Op::Check { .. })));
                if hit { fails.remove(&self.at) } else { None }
            };
            let Some(fails) = fails else { return self.drive.apply(batch).await };
            if fails.made {
                self.drive.apply(batch).await?;
            }
            Err(Error::unavailable(format!("drive-{} did not answer", self.at)))
        })
    }
}

/// Drives in memory, which hosts come and go over.
pub(crate) struct Drives {
    pub(crate) stores: Vec<Arc<MemoryStore>>,
    drives: Vec<Arc<Drive>>,
    fails: Arc<Mutex<BTreeMap<usize, Fails>>>,
}

impl Drives {
    pub(crate) fn new(count: usize) -> Self {
        let stores: Vec<Arc<MemoryStore>> = (0..count).map(|_| Arc::default()).collect();
        let drive = |(n, store): (usize, &Arc<MemoryStore>)| small_drive(n, Arc::clone(store) as _);
        Self { drives: stores.iter().enumerate().map(drive).collect(), stores, fails: Arc::default() }
    }

    pub(crate) fn way(&self, at: usize) -> Arc<dyn Cse> {
        Arc::new(Way { drive: Arc::clone(&self.drives[at]), fails: Arc::clone(&self.fails), at })
    }

    pub(crate) fn fail(&self, at: usize, key: &'static str, made: bool) {
        self.fails.lock().insert(at, Fails { key, made });
    }

    /// Whether what was to fail did; nothing is to fail any more.
    pub(crate) fn failed(&self) -> bool {
        std::mem::take(&mut *self.fails.lock()).is_empty()
    }

    pub(crate) async fn host(&self, of: &[usize], redundancy: &str) -> Result<Host> {
        Ok(Host::join(of.iter().map(|at| self.way(*at)).collect(), options(redundancy), Founding::EmptyDrives).await?.0)
    }

    pub(crate) fn is_blank(&self, at: usize) -> bool {
        self.stores[at].list("", None, 10).unwrap().is_empty()
    }
}

pub(crate) fn options(redundancy: &str) -> HostOptions {
    let mut options = HostOptions { storage_deadline: Duration::from_secs(20), redundancy: redundancy.parse::<Scheme>().unwrap(), ..HostOptions::default() };
    options.slices.target_bytes = 4 << 10;
    options
}

pub(crate) async fn store(host: &Host, dataset: &str, rows: usize) -> Result<()> {
    let mut writer = host.writer(&name(dataset), DatasetKind::Table, true).await?;
    let rows = batches(4, rows);
    writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await?;
    writer.commit().await.map(drop)
}

pub(crate) async fn rows(host: &Host, dataset: &str) -> Result<String> {
    let query = host.sql(&format!("SELECT count(*), sum(n) FROM {dataset}"), &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await?;
    Ok(lines(&query.collect().await?).remove(0))
}

/// The result of [`rows`] for this number.
pub(crate) fn holds(rows: usize) -> String {
    use arrow::array::AsArray;
    use arrow::datatypes::Int32Type;
    let sum: i64 = batches(4, rows).iter().flat_map(|batch| batch.column(4).as_primitive::<Int32Type>().values().to_vec()).map(i64::from).sum();
    format!("{} | {sum}", 4 * rows)
}

pub(crate) async fn retire(host: &Host, drive: usize) -> Result<ResizeReport> {
    host.resize(Vec::new(), &ResizeOptions { retire: vec![format!("drive-{drive}")], ..ResizeOptions::default() }, &|_| {}).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_see_what_another_host_has_written() {
    for redundancy in ["none", "ec:2+1"] {
        let drives = Drives::new(3);
        let before = drives.host(&[0, 1, 2], redundancy).await.unwrap();
        store(&before, "lab.t", 40).await.unwrap();
        // It remembers the root record from the first on.
        for _ in 0..3 {
            assert_eq!(rows(&before, "lab.t").await.unwrap(), holds(40));
        }
        let after = drives.host(&[0, 1, 2], redundancy).await.unwrap();
        for rows_of in [300, 7] {
            store(&after, "lab.t", rows_of).await.unwrap();
            for host in [&before, &after, &before] {
                assert_eq!(rows(host, "lab.t").await.unwrap(), holds(rows_of), "{redundancy}");
            }
        }
        after.catalog().drop_dataset(&name("lab.t")).await.unwrap();
        for host in [&before, &after] {
            assert_eq!(rows(host, "lab.t").await.unwrap_err().kind(), Kind::NotFound, "{redundancy}");
        }
    }
}

const BEFORE: [(&str, usize); 4] = [("lab.a", 300), ("lab.b", 40), ("lab.c", 700), ("lab.d", 5)];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partly_recorded_retirement_is_finished_by_the_next_host() {
    for redundancy in ["none", "ec:2+1"] {
        for (fails, made) in [(0, false), (1, false), (1, true), (2, false), (2, true), (3, true)] {
            let what = format!("{redundancy}, drive-{fails}, {made}");
            let drives = Drives::new(4);
            let host = drives.host(&[0, 1, 2, 3], redundancy).await.unwrap();
            for (dataset, rows) in BEFORE {
                store(&host, dataset, rows).await.unwrap();
            }
            drives.fail(fails, FLEET, made);
            let first = retire(&host, 3).await;
            assert!(drives.failed() && first.is_err(), "{what}: {first:?}");
            // Whichever it is, what is stored now is there afterwards.
            store(&host, "lab.new", 200).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            store(&host, "lab.b", 60).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            let report = retire(&host, 3).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            assert_eq!((report.retired, report.left), (vec!["drive-3".to_owned()], Vec::new()), "{what}");
            assert!(drives.is_blank(3), "{what}");
            let again = drives.host(&[0, 1, 2], redundancy).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            for host in [&host, &again] {
                for (dataset, rows_of) in [("lab.a", 300), ("lab.b", 60), ("lab.c", 700), ("lab.d", 5), ("lab.new", 200)] {
                    assert_eq!(rows(host, dataset).await.unwrap_or_else(|e| panic!("{what}, {dataset}: {}", e.report())), holds(rows_of), "{what}, {dataset}");
                }
            }
            // It is as any blank drive.
            let came = again.resize(vec![drives.way(3)], &ResizeOptions::default(), &|_| {}).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            assert_eq!(came.added, ["drive-3"], "{what}");
            assert!(!drives.is_blank(3));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partly_recorded_join_is_finished_by_the_next_host() {
    for redundancy in ["none", "ec:2+1"] {
        for (fails, made) in [(0, false), (0, true), (1, true), (2, false), (3, false), (3, true)] {
            let what = format!("{redundancy}, drive-{fails}, {made}");
            let drives = Drives::new(4);
            let host = drives.host(&[0, 1, 2], redundancy).await.unwrap();
            for (dataset, rows) in BEFORE {
                store(&host, dataset, rows).await.unwrap();
            }
            drives.fail(fails, FLEET, made);
            let first = host.resize(vec![drives.way(3)], &ResizeOptions::default(), &|_| {}).await;
            assert!(drives.failed() && first.is_err(), "{what}: {first:?}");
            store(&host, "lab.new", 200).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            host.resize(vec![drives.way(3)], &ResizeOptions::default(), &|_| {}).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            let again = drives.host(&[0, 1, 2, 3], redundancy).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            for host in [&host, &again] {
                for (dataset, rows_of) in BEFORE.into_iter().chain([("lab.new", 200)]) {
                    assert_eq!(rows(host, dataset).await.unwrap_or_else(|e| panic!("{what}, {dataset}: {}", e.report())), holds(rows_of), "{what}, {dataset}");
                }
            }
        }
    }
}

/// Data sets are dropped between a retirement that failed and its second attempt. Root records that the first one
/// copied do not revive them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_data_set_stays_dropped_after_a_retried_retirement() {
    for redundancy in ["none", "ec:2+1"] {
        let drives = Drives::new(4);
        let host = drives.host(&[0, 1, 2, 3], redundancy).await.unwrap();
        let names: Vec<String> = (0..12).map(|n| format!("lab.t{n}")).collect();
        for name in &names {
            store(&host, name, 30).await.unwrap();
        }
        // The root records are on their new home drives. The membership record that names these is not written.
        drives.fail(0, FLEET, false);
        retire(&host, 3).await.unwrap_err();
        assert!(drives.failed());
        for dataset in &names[..6] {
            host.catalog().drop_dataset(&name(dataset)).await.unwrap();
        }
        for dataset in &names[6..9] {
            store(&host, dataset, 50).await.unwrap();
        }
        retire(&host, 3).await.unwrap();
        let again = drives.host(&[0, 1, 2], redundancy).await.unwrap();
        for host in [&host, &again] {
            let there: Vec<String> = host.catalog().names().await.unwrap().iter().map(ToString::to_string).collect();
            let mut due = names[6..].to_vec();
            due.sort();
            assert_eq!(there, due, "{redundancy}");
            for (n, dataset) in names.iter().enumerate().skip(6) {
                assert_eq!(rows(host, dataset).await.unwrap(), holds(if n < 9 { 50 } else { 30 }), "{redundancy}, {dataset}");
            }
        }
    }
}

/// Whether the silent drive made the change or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_whose_first_home_is_silent_is_decided_by_the_next() {
    for made in [true, false] {
        let drives = Drives::new(4);
        let begin = async || drives.host(&[0, 1, 2, 3], "ec:2+1").await.unwrap();
        let first = begin().await;
        store(&first, "lab.a", 100).await.unwrap();
        let home = first.catalog().home(&name("lab.a"));
        drives.fail(home, "lab/a", made);
        store(&first, "lab.a", 200).await.unwrap_or_else(|e| panic!("{made}: {}", e.report()));
        assert!(drives.failed());
        assert_eq!(rows(&first, "lab.a").await.unwrap(), holds(200), "{made}");
        // And so it is for who comes next, with all drives back.
        let second = begin().await;
        assert_eq!(rows(&second, "lab.a").await.unwrap(), holds(200), "{made}");
        drives.fail(home, "lab/a", made);
        second.catalog().drop_dataset(&name("lab.a")).await.unwrap_or_else(|e| panic!("{made}: {}", e.report()));
        assert!(drives.failed());
        let third = begin().await;
        assert_eq!(rows(&third, "lab.a").await.unwrap_err().kind(), Kind::NotFound, "{made}");
        store(&third, "lab.a", 300).await.unwrap();
        // That another host has the fleet is not told as a matter of the data set.
        for done in [store(&second, "lab.a", 1).await, second.catalog().drop_dataset(&name("lab.a")).await] {
            let e = done.unwrap_err();
            assert!(e.kind() == Kind::Conflict && !e.report().contains("somebody else"), "{}", e.report());
        }
        assert_eq!(rows(&third, "lab.a").await.unwrap(), holds(300), "{made}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_that_missed_a_takeover_is_not_trusted() {
    for made in [false, true] {
        let drives = Drives::new(4);
        let older = drives.host(&[0, 1, 2, 3], "ec:2+1").await.unwrap();
        store(&older, "lab.a", 100).await.unwrap();
        // All but its commit is done when the other one begins, which the home of the data set does not hear of.
        let mut writer = older.writer(&name("lab.a"), DatasetKind::Table, true).await.unwrap();
        let more = batches(4, 300);
        writer.write_table("data", Placement::Spread, more[0].schema(), more.into_iter().map(Ok)).await.unwrap();
        drives.fail(older.catalog().home(&name("lab.a")), HOST, made);
        let newer = drives.host(&[0, 1, 2, 3], "ec:2+1").await.unwrap();
        assert!(drives.failed());
        let committed = writer.commit().await;
        // Whatever became of it is whole.
        let again = drives.host(&[0, 1, 2, 3], "ec:2+1").await.unwrap();
        let now = rows(&again, "lab.a").await.unwrap_or_else(|e| panic!("{made}: {}", e.report()));
        assert!(now == holds(100) || now == holds(300), "{now}");
        assert!(committed.is_err() || now == holds(300), "{made}: what was acknowledged is there");
        let e = store(&newer, "lab.a", 1).await.unwrap_err();
        assert!(matches!(e.detail(), Some(Detail::Fenced { .. })), "{}", e.report());

        let drives = Drives::new(3);
        let older = drives.host(&[0, 1, 2], "none").await.unwrap();
        store(&older, "lab.a", 100).await.unwrap();
        drives.fail(1, HOST, made);
        let e = drives.host(&[0, 1, 2], "none").await.unwrap_err();
        assert_eq!(e.kind(), Kind::Unavailable, "a fleet that survives no loss is not taken over by parts: {}", e.report());
        assert_eq!(rows(&drives.host(&[0, 1, 2], "none").await.unwrap(), "lab.a").await.unwrap(), holds(100));
    }
}

/// A note that came late is only on the drive that it names. That drive is taken in as if all drives had the note, and
/// afterwards all have the same record (seed 5277 of `dst`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_that_alone_records_its_absence_is_taken_in() {
    let drives = Drives::new(4);
    store(&drives.host(&[0, 1, 2, 3], "ec:2+1").await.unwrap(), "lab.t", 100).await.unwrap();
    let key = Key::new(FLEET).unwrap();
    let record = |at: usize| serde_json::from_slice::<Membership>(&drives.stores[at].get(&key).unwrap()).unwrap();
    let mut late = record(0);
    let id = drives.way(0).info().id;
    (late.change, late.absent) = (late.change + 1, vec![id]);
    drives.stores[0].apply(vec![Op::Put { key: key.clone(), value: serde_json::to_vec(&late).unwrap().into(), expect: Expect::Any }]).unwrap();
    let host = drives.host(&[0, 1, 2, 3], "ec:2+1").await.unwrap();
    store(&host, "lab.t", 200).await.unwrap();
    let report = host.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
    assert!(report.left() == 0 && report.damaged == 0 && report.skipped.is_empty(), "{report}");
    let known: Vec<Membership> = (0..4).map(record).collect();
    assert!(known.iter().all(|one| *one == known[0] && one.absent.is_empty() && one.change > late.change), "{known:?}");
    assert!(rows(&host, "lab.t").await.unwrap().starts_with("800 | "));
}
