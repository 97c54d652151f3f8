//! Moves and copies while drives join and leave: nothing stored is lost, nothing leaks, and errors name the right
//! reason.

use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether::{DatasetKind, Fleet, Placement, QueryOptions, RepairOptions, ResizeOptions, ResizeReport, ScrubOptions};
use skytether_common::{Error, Generation, Key, Kind, PartitionName, Result};
use skytether_device::{CseInfo, Layer};
use skytether_drive::Cse;
use skytether_host::{DatasetWriter, Founding, Host, RootRecord};
use skytether_store::{Expect, Op, SliceStore, Version};
use tokio::sync::Semaphore;

use crate::repair::{Drives, FLEET, holds, options, retire, rows, store};
use crate::served::Server;
use crate::util::{batches, name};

/// What a drive is asked for.
enum Asked<'a> {
    Change(&'a [Op]),
    Value(&'a Key),
}

/// What it does then.
#[derive(Debug, Clone, Copy)]
enum Does {
    /// It does not answer, and nothing is changed.
    Fails,
    /// It waits until [`Watch::open`], whether anybody waits for it or not.
    Waits,
    /// It does it, and then this drive is gone until it is [back](Watch::back).
    Ends(usize),
}

type When = Box<dyn Fn(usize, &Asked<'_>) -> bool + Send + Sync>;

/// What befalls drives, each once.
struct Watch {
    rules: Mutex<Vec<(Does, When)>>,
    gone: Mutex<BTreeSet<usize>>,
    reached: Semaphore,
    open: Semaphore,
    done: Semaphore,
}

impl Watch {
    fn when(&self, does: Does, when: impl Fn(usize, &Asked<'_>) -> bool + Send + Sync + 'static) {
        self.rules.lock().push((does, Box::new(when)));
    }

    /// Whether all that was to befall them did; nothing else will.
    fn over(&self) -> bool {
        std::mem::take(&mut *self.rules.lock()).is_empty()
    }

    fn ends(&self, at: usize) {
        self.gone.lock().insert(at);
    }

    fn back(&self, at: usize) {
        self.gone.lock().remove(&at);
    }

    /// Until a drive waits.
    async fn reached(&self) {
        self.reached.acquire().await.unwrap().forget();
    }

    fn open(&self) {
        self.open.add_permits(1);
    }

    /// Until it has done what it waited with.
    async fn done(&self) {
        self.done.acquire().await.unwrap().forget();
    }

    fn does(&self, at: usize, asked: &Asked<'_>) -> Result<Option<Does>> {
        if self.gone.lock().contains(&at) {
            return Err(Error::unavailable(format!("drive-{at} is gone")));
        }
        let mut rules = self.rules.lock();
        let hit = rules.iter().position(|(_, when)| when(at, asked));
        Ok(hit.map(|hit| rules.remove(hit).0))
    }
}

/// A way to a drive that is watched.
struct Watched {
    drive: Arc<dyn Cse>,
    at: usize,
    watch: Arc<Watch>,
}

impl std::fmt::Debug for Watched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watched").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Watched {
    async fn did<T: Send + 'static>(&self, asked: &Asked<'_>, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        match self.watch.does(self.at, asked)? {
            None => work.await,
            Some(Does::Fails) => Err(Error::unavailable(format!("drive-{} did not answer", self.at))),
            Some(Does::Waits) => {
                let watch = Arc::clone(&self.watch);
                let waiting = tokio::spawn(async move {
                    watch.reached.add_permits(1);
                    watch.open.acquire().await.unwrap().forget();
                    let done = work.await;
                    watch.done.add_permits(1);
                    done
                });
                waiting.await.unwrap()
            }
            Some(Does::Ends(gone)) => {
                let done = work.await;
                self.watch.ends(gone);
                done
            }
        }
    }
}

impl Layer for Watched {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let (drive, own) = (Arc::clone(&self.drive), batch.clone());
            self.did(&Asked::Change(&batch), async move { drive.apply(own).await }).await
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let (drive, own) = (Arc::clone(&self.drive), key.clone());
            self.did(&Asked::Value(key), async move { drive.get(&own).await }).await
        })
    }
}

/// Drives in memory that are watched.
struct WatchedDrives {
    drives: Drives,
    watch: Arc<Watch>,
}

impl WatchedDrives {
    fn new(count: usize) -> Self {
        let none = || Semaphore::new(0);
        let watch = Watch { rules: Mutex::default(), gone: Mutex::default(), reached: none(), open: none(), done: none() };
        Self { drives: Drives::new(count), watch: Arc::new(watch) }
    }

    fn way(&self, at: usize) -> Arc<dyn Cse> {
        Arc::new(Watched { drive: self.drives.way(at), at, watch: Arc::clone(&self.watch) })
    }

    async fn host(&self, count: usize, redundancy: &str) -> Host {
        Host::join((0..count).map(|at| self.way(at)).collect(), options(redundancy), Founding::EmptyDrives).await.unwrap_or_else(|e| panic!("{}", e.report())).0
    }

    async fn add(&self, host: &Host, at: usize) -> Result<ResizeReport> {
        host.resize(vec![self.way(at)], &ResizeOptions::default(), &|_| {}).await
    }

    fn keys(&self, at: usize) -> Vec<Key> {
        self.drives.stores[at].list("", None, 100_000).unwrap().into_iter().map(|entry| entry.key).collect()
    }

    /// The generations of a data set with values on a drive.
    fn generations(&self, at: usize, dataset: &str) -> BTreeSet<Generation> {
        let parts = self.keys(at).into_iter().filter_map(|key| PartitionName::parse(&key));
        parts.filter(|(partition, _)| partition.dataset == name(dataset)).map(|(partition, _)| partition.generation).collect()
    }

    /// The slices and parities of a data set at a drive: there are some.
    fn slices(&self, at: usize, dataset: &str) -> Vec<Key> {
        let is = |key: &Key| PartitionName::parse(key).is_some_and(|(partition, number)| partition.dataset == name(dataset) && number.is_some());
        let slices: Vec<Key> = self.keys(at).into_iter().filter(is).collect();
        assert!(!slices.is_empty(), "drive-{at} has nothing of {dataset}");
        slices
    }

    fn put(&self, at: usize, key: &Key, value: Bytes) {
        self.drives.stores[at].apply(vec![Op::Put { key: key.clone(), value, expect: Expect::Any }]).unwrap();
    }

    fn delete(&self, at: usize, key: &Key) {
        self.drives.stores[at].apply(vec![Op::Delete { key: key.clone(), expect: Expect::Any }]).unwrap();
    }

    /// Other bytes, as many.
    fn damage(&self, at: usize, key: &Key) {
        let value: Vec<u8> = self.drives.stores[at].get(key).unwrap().iter().map(|byte| !byte).collect();
        self.put(at, key, value.into());
    }

    /// A blank drive in its place, which has its id.
    fn replace(&self, at: usize) {
        self.keys(at).iter().for_each(|key| self.delete(at, key));
    }

    fn has(&self, at: usize, key: &str) -> Option<Bytes> {
        self.drives.stores[at].get(&Key::new(key).unwrap()).ok()
    }
}

async fn now(host: &Host, dataset: &str) -> RootRecord {
    host.catalog().read(&name(dataset)).await.unwrap_or_else(|e| panic!("{dataset}: {}", e.report())).0
}

async fn begun(host: &Host, dataset: &str, rows: usize, redundancy: &str) -> Result<DatasetWriter> {
    let mut writer = host.writer(&name(dataset), DatasetKind::Table, true).await?;
    writer.redundancy(redundancy.parse()?)?;
    write(&mut writer, "data", rows).await?;
    Ok(writer)
}

async fn write(writer: &mut DatasetWriter, table: &str, rows: usize) -> Result<()> {
    let rows = batches(4, rows);
    writer.write_table(table, Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await
}

async fn store_as(host: &Host, dataset: &str, rows: usize, redundancy: &str) -> Result<()> {
    begun(host, dataset, rows, redundancy).await?.commit().await.map(drop)
}

fn puts(asked: &Asked<'_>, is: impl Fn(&Key) -> bool) -> bool {
    matches!(asked, Asked::Change(batch) if batch.iter().any(|op| matches!(op, Op::Put { key, .. } if is(key))))
}

fn is_root(key: &Key) -> bool {
    key.as_str().split('/').count() == 2
}

/// A data set with redundancy raises the number of homes. A drive fails at any copy, and every later host finds all
/// records.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_records_are_copied_before_their_homes_change() {
    let names: Vec<String> = (0..6).map(|n| format!("lab.t{n}")).collect();
    let mut cut_off = 0;
    let ways = (0..3).flat_map(|at| [(at, false, 0), (at, true, 0), (at, false, 1)]);
    for ((fails, ends, nth), away) in ways.flat_map(|way| [(way, 0), (way, 1), (way, 2)]) {
        let what = format!("drive-{fails}, {ends}, {nth}, then without {away}");
        let watched = WatchedDrives::new(3);
        let host = watched.host(3, "none").await;
        for (n, dataset) in names.iter().enumerate() {
            store(&host, dataset, 20 + n).await.unwrap();
        }
        // The first data set that is to survive something: what was there before is copied, but not all of it.
        let seen = AtomicUsize::new(0);
        let does = if ends { Does::Ends(fails) } else { Does::Fails };
        let copied = |asked: &Asked<'_>| puts(asked, |key| is_root(key) && key.as_str() != "lab/safe");
        watched.watch.when(does, move |at, asked| at == fails && copied(asked) && seen.fetch_add(1, Ordering::SeqCst) == nth);
        let first = store_as(&host, "lab.safe", 50, "replicas:2").await;
        if !watched.watch.over() {
            first.unwrap();
            continue;
        }
        cut_off += 1;
        assert!(first.is_err(), "{what}");
        watched.watch.back(fails);
        store_as(&host, "lab.safe", 50, "replicas:2").await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        watched.watch.ends(away);
        store(&host, "lab.other", 10).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        for dataset in &names {
            now(&host, dataset).await;
        }
        watched.watch.back(away);
        // Takes it in again.
        store(&host, "lab.other", 20).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        for host in [&host, &watched.host(3, "none").await] {
            for (n, dataset) in names.iter().enumerate() {
                assert_eq!(rows(host, dataset).await.unwrap_or_else(|e| panic!("{what}, {dataset}: {}", e.report())), holds(20 + n), "{what}, {dataset}");
            }
            assert_eq!(rows(host, "lab.safe").await.unwrap(), holds(50), "{what}");
        }
    }
    assert!(cut_off >= 9, "{cut_off}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_during_a_change_of_homes_reaches_all_homes() {
    let watched = WatchedDrives::new(3);
    let host = watched.host(3, "none").await;
    for dataset in ["lab.a", "lab.b", "lab.c"] {
        store(&host, dataset, 30).await.unwrap();
    }
    let home = host.catalog().home(&name("lab.a"));
    watched.watch.when(Does::Waits, move |at, asked| at != home && puts(asked, |key| key.as_str() == "lab/a"));
    let before = now(&host, "lab.c").await.generation;
    let (raising, committing) = (host.clone(), host.clone());
    let raising = tokio::spawn(async move { store_as(&raising, "lab.safe", 50, "replicas:2").await });
    watched.watch.reached().await;
    let committing = tokio::spawn(async move { store(&committing, "lab.c", 90).await });
    while (0..3).all(|at| watched.generations(at, "lab.c").iter().all(|generation| *generation == before)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    watched.watch.open();
    raising.await.unwrap().unwrap();
    committing.await.unwrap().unwrap();
    let copies: Vec<Bytes> = (0..3).filter_map(|at| watched.has(at, "lab/c")).collect();
    assert!(copies.len() == 2 && copies[0] == copies[1], "{} copies", copies.len());
    assert_eq!(rows(&host, "lab.c").await.unwrap(), holds(90));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growth_that_loses_a_drive_undoes_its_copies() {
    for (count, redundancy) in [(3, "none"), (4, "ec:2+1")] {
        for victim in [None, Some(count)] {
            let what = format!("{redundancy}, {victim:?}");
            let watched = WatchedDrives::new(count + 1);
            let host = watched.host(count, redundancy).await;
            store_as(&host, "lab.a", 700, "none").await.unwrap();
            let before = now(&host, "lab.a").await.generation;
            let victim = victim.unwrap_or_else(|| host.catalog().home(&name("lab.a")));
            // The last that is written before the root record.
            let is_metadata = |key: &Key| matches!(PartitionName::parse(key), Some((_, None)));
            watched.watch.when(Does::Ends(victim), move |at, asked| at == count && puts(asked, is_metadata));
            let e = watched.add(&host, count).await.unwrap_err();
            assert!(watched.watch.over() && e.kind() == Kind::Unavailable, "{what}: {}", e.report());
            // What it has of the new generation goes when the fleet is opened.
            for at in (0..=count).filter(|at| *at != victim) {
                assert!(watched.generations(at, "lab.a").iter().all(|generation| *generation == before), "{what}: drive-{at}");
            }
            if victim < count {
                watched.watch.back(victim);
                store(&host, "lab.b", 10).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
            }
            assert_eq!(rows(&host, "lab.a").await.unwrap_or_else(|e| panic!("{what}: {}", e.report())), holds(700), "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_generation_is_deleted_although_a_move_fails() {
    let watched = WatchedDrives::new(4);
    let host = watched.host(3, "none").await;
    for dataset in ["lab.a", "lab.b", "lab.c"] {
        store(&host, dataset, 700).await.unwrap();
    }
    let before = now(&host, "lab.a").await.generation;
    let query = host.sql("SELECT * FROM lab.a", &QueryOptions::default()).await.unwrap();
    let home = host.catalog().home(&name("lab.c"));
    watched.watch.when(Does::Fails, move |at, asked| at == home && puts(asked, |key| key.as_str() == "lab/c"));
    watched.add(&host, 3).await.unwrap_err();
    assert!(watched.watch.over());
    let left = || (0..4).any(|at| watched.generations(at, "lab.a").contains(&before));
    assert!(now(&host, "lab.a").await.generation != before && left(), "the query may read it still");
    assert_eq!(query.collect().await.unwrap().iter().map(|batch| batch.num_rows()).sum::<usize>(), 2800);
    for _ in 0..500 {
        if !left() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(!left());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_with_a_lost_answer_counts() {
    let watched = WatchedDrives::new(4);
    let host = watched.host(3, "none").await;
    store(&host, "lab.a", 700).await.unwrap();
    watched.drives.fail(host.catalog().home(&name("lab.a")), "lab/a", true);
    let report = watched.add(&host, 3).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert!(watched.drives.failed() && report.datasets == 1 && report.left.is_empty(), "{report}");
    let record = now(&host, "lab.a").await;
    assert!((0..4).all(|at| watched.generations(at, "lab.a") == BTreeSet::from([record.generation])));
    assert_eq!(rows(&host, "lab.a").await.unwrap(), holds(700));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingest_during_which_a_drive_leaves_leaks_nothing() {
    let watched = WatchedDrives::new(4);
    let host = watched.host(4, "none").await;
    store(&host, "lab.a", 300).await.unwrap();
    // Through a connection, and in the process.
    let served = host.clone();
    let server = Server::start(move |listener| async move {
        skytether_flight::serve(served, listener, std::future::pending()).await.unwrap();
    });
    let client = Fleet::connect(&format!("grpc://{}", server.address)).await.unwrap();
    let mut far = client.writer(&name("lab.far"), DatasetKind::Table, false).await.unwrap();
    write(&mut far, "data", 300).await.unwrap();
    let mut near = host.writer(&name("lab.near"), DatasetKind::Table, false).await.unwrap();
    write(&mut near, "data", 300).await.unwrap();
    assert!((0..4).all(|at| !watched.generations(at, "lab.far").is_empty()));
    retire(&host, 3).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert!(watched.drives.is_blank(3));
    let e = write(&mut near, "more", 300).await.unwrap_err();
    assert!(e.kind() == Kind::Conflict && e.report().contains("drive-3 left the fleet"), "{}", e.report());
    near.abort().await.unwrap();
    let e = far.commit().await.unwrap_err();
    assert_eq!(e.kind(), Kind::Conflict, "{}", e.report());
    for dataset in ["lab.far", "lab.near"] {
        assert!((0..4).all(|at| watched.generations(at, dataset).is_empty()), "{dataset}");
    }
    assert!(watched.drives.is_blank(3));
    // A request to the current host is accepted.
    let mut again = client.writer(&name("lab.far"), DatasetKind::Table, false).await.unwrap();
    write(&mut again, "data", 300).await.unwrap();
    again.commit().await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert_eq!(rows(&host, "lab.far").await.unwrap(), holds(300));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partly_rebuilt_drive_is_blank_after_it_leaves() {
    let watched = WatchedDrives::new(4);
    let host = watched.host(4, "ec:2+1").await;
    store(&host, "lab.a", 700).await.unwrap();
    let (key, value) = {
        let key = watched.slices(3, "lab.a").remove(0);
        (key.clone(), watched.drives.stores[3].get(&key).unwrap())
    };
    watched.replace(3);
    watched.put(3, &key, value);
    let report = retire(&host, 3).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert!(report.retired == ["drive-3"] && watched.drives.is_blank(3), "{report}");
    assert_eq!(rows(&host, "lab.a").await.unwrap(), holds(700));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_still_in_flight_are_undone_too() {
    let watched = WatchedDrives::new(3);
    let host = watched.host(2, "none").await;
    store(&host, "lab.a", 700).await.unwrap();
    let before = now(&host, "lab.a").await.generation;
    let links = |asked: &Asked<'_>| matches!(asked, Asked::Change(batch) if batch.iter().any(|op| matches!(op, Op::Link { .. })));
    watched.watch.when(Does::Waits, move |at, asked| at == 0 && links(asked));
    watched.watch.when(Does::Fails, move |at, asked| at == 1 && links(asked));
    let opening = async {
        watched.watch.reached().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        watched.watch.open();
        watched.watch.done().await;
    };
    let (grown, ()) = tokio::join!(watched.add(&host, 2), opening);
    assert!(grown.is_err() && watched.watch.over());
    for at in 0..3 {
        assert!(watched.generations(at, "lab.a").iter().all(|generation| *generation == before), "drive-{at}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_slices_stay_and_all_others_move() {
    for (count, redundancy) in [(3, "none"), (4, "ec:2+1")] {
        let watched = WatchedDrives::new(count + 1);
        let host = watched.host(count, redundancy).await;
        for dataset in ["lab.a", "lab.b", "lab.c"] {
            store(&host, dataset, 700).await.unwrap();
        }
        // More than anything covers: without redundancy one slice of each drive is damaged, and with it all of them.
        let most = if redundancy == "none" { 1 } else { usize::MAX };
        for at in 0..count {
            watched.slices(at, "lab.a").into_iter().take(most).for_each(|key| watched.damage(at, &key));
            watched.slices(at, "lab.c").into_iter().take(most).for_each(|key| watched.delete(at, &key));
        }
        let before = [now(&host, "lab.a").await.generation, now(&host, "lab.c").await.generation];
        let report = watched.add(&host, count).await.unwrap_or_else(|e| panic!("{redundancy}: {}", e.report()));
        let told = |text: &str| text.contains("lab.a") && text.contains("lab.c");
        assert!(report.left.len() == 2 && told(&report.left.join("; ")), "{redundancy}: {report}");
        assert!(!watched.generations(count, "lab.b").is_empty(), "{redundancy}: {report}");
        for at in 0..=count {
            for (dataset, before) in ["lab.a", "lab.c"].iter().zip(before) {
                assert!(watched.generations(at, dataset).iter().all(|generation| *generation == before), "{redundancy}: {dataset} at drive-{at}");
            }
        }
        assert_eq!(rows(&host, "lab.b").await.unwrap(), holds(700));
        let e = retire(&host, 0).await.unwrap_err();
        assert!(e.kind() == Kind::Unavailable && told(&e.report()), "{redundancy}: {}", e.report());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_set_dropped_while_it_moves_is_gone() {
    let watched = WatchedDrives::new(4);
    let host = watched.host(3, "none").await;
    store(&host, "lab.a", 700).await.unwrap();
    watched
        .watch
        .when(Does::Waits, |_, asked| matches!(asked, Asked::Change(batch) if batch.iter().any(|op| matches!(op, Op::Delete { key, .. } if is_root(key)))));
    let dropping = host.clone();
    let dropping = tokio::spawn(async move { dropping.catalog().drop_dataset(&name("lab.a")).await });
    watched.watch.reached().await;
    let report = watched.add(&host, 3).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert_eq!(report.datasets, 1, "{report}");
    watched.watch.open();
    dropping.await.unwrap().unwrap_or_else(|e| panic!("{}", e.report()));
    assert!(host.catalog().names().await.unwrap().is_empty());
    assert!((0..4).all(|at| watched.generations(at, "lab.a").is_empty()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingest_with_slices_on_a_replaced_drive_is_not_committed() {
    for redundancy in ["ec:2+1", "none"] {
        let watched = WatchedDrives::new(4);
        let host = watched.host(4, "ec:2+1").await;
        store(&host, "lab.a", 100).await.unwrap();
        let writer = begun(&host, "lab.new", 300, redundancy).await.unwrap();
        watched.replace(3);
        let options = RepairOptions { drives: vec!["drive-3".into()], ..RepairOptions::default() };
        // The next operation notices that the drive is blank.
        store(&host, "lab.b", 10).await.unwrap();
        host.repair(&options, &|_| {}).await.unwrap_or_else(|e| panic!("{}", e.report()));
        let e = writer.commit().await.unwrap_err();
        assert!(e.kind() == Kind::Unavailable && e.report().contains("drive-3 was replaced"), "{redundancy}: {}", e.report());
        assert!((0..4).all(|at| watched.generations(at, "lab.new").is_empty()), "{redundancy}");
        store_as(&host, "lab.new", 300, redundancy).await.unwrap_or_else(|e| panic!("{}", e.report()));
        let scrubbed = host.scrub(&ScrubOptions::default(), &|_| {}).await.unwrap();
        assert!(scrubbed.damaged == 0 && scrubbed.skipped.is_empty() && scrubbed.unverified == 0, "{redundancy}: {scrubbed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_verifies_drives_that_join_meanwhile() {
    let watched = WatchedDrives::new(4);
    let host = watched.host(3, "none").await;
    for dataset in ["lab.a", "lab.b"] {
        store(&host, dataset, 700).await.unwrap();
    }
    // The second time that the first one's root record is read all drives have been counted.
    let reads = AtomicUsize::new(0);
    watched.watch.when(Does::Waits, move |_, asked| matches!(asked, Asked::Value(key) if key.as_str() == "lab/a") && reads.fetch_add(1, Ordering::SeqCst) == 1);
    let scrubbing = host.clone();
    let scrubbing = tokio::spawn(async move { scrubbing.scrub(&ScrubOptions::default(), &|_| {}).await });
    watched.watch.reached().await;
    watched.add(&host, 3).await.unwrap_or_else(|e| panic!("{}", e.report()));
    watched.damage(3, &watched.slices(3, "lab.b")[0]);
    watched.watch.open();
    let report = scrubbing.await.unwrap().unwrap();
    assert!(report.damaged == 1 && report.found[0].drive == "drive-3", "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_whose_join_was_cut_off_stays_listed() {
    let watched = WatchedDrives::new(4);
    let host = watched.host(3, "none").await;
    store(&host, "lab.a", 300).await.unwrap();
    let names_it = |op: &Op| matches!(op, Op::Put { key, value, .. } if key.as_str() == FLEET && String::from_utf8_lossy(value).contains("drive-3"));
    watched.watch.when(Does::Waits, move |at, asked| at == 1 && matches!(asked, Asked::Change(batch) if batch.iter().any(names_it)));
    let (coming, way) = (host.clone(), watched.way(3));
    let id = way.info().id;
    let coming = tokio::spawn(async move { coming.resize(vec![way], &ResizeOptions::default(), &|_| {}).await });
    watched.watch.reached().await;
    coming.abort();
    assert!(coming.await.unwrap_err().is_cancelled());
    // One of the drives knows it, and this host need not.
    assert!(!host.members().contains(&id) && host.listed().await.unwrap().is_some_and(|listed| listed.len() == 4 && listed.contains(&id)));
    watched.watch.open();
    let report = watched.add(&host, 3).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert!(report.left.is_empty(), "{report}");
    assert!(host.members().contains(&id));
    assert_eq!(rows(&watched.host(4, "none").await, "lab.a").await.unwrap(), holds(300));
    // And one that has left is in no list when it is empty.
    let other = watched.host(4, "none").await;
    retire(&other, 3).await.unwrap();
    assert_eq!(other.listed().await.unwrap().map(|listed| listed.len()), Some(3));
}
