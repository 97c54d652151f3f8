//! Rebuilds read each drive in the order of storage. A drive that falls silent delays no other, and a slice for a query
//! and for decoding is read once.

use futures::future::BoxFuture;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether::{AdaptiveMode, HostOptions, Pushdown, QueryOptions, RepairOptions};
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_device::{CseInfo, Layer};
use skytether_drive::{Cse, Drive, Storage};
use skytether_host::{Founding, Host};
use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::query::Policy;
use skytether_store::memory::MemoryStore;

use crate::repair::{options, store};
use crate::util::{lines, small_drive};

/// A connection to a drive that notes the requested slices, and answers no request after `left` of them.
#[derive(Debug)]
struct Noting {
    drive: Arc<Drive>,
    asked: Mutex<Vec<(PartitionName, u32)>>,
    left: AtomicUsize,
}

impl Noting {
    /// The slices that it was asked for since this was asked.
    fn taken(&self) -> Vec<(PartitionName, u32)> {
        std::mem::take(&mut *self.asked.lock())
    }
}

impl Layer for Noting {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            if let Some((partition, Some(number))) = PartitionName::parse(key) {
                self.asked.lock().push((partition, number));
                if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err() {
                    return Err(Error::unavailable("it does not answer"));
                }
            }
            self.drive.get(key).await
        })
    }
}

type Way = Arc<Noting>;

struct Drives(Vec<Way>);

impl Drives {
    fn new(count: usize) -> Self {
        Self((0..count).map(Self::blank).collect())
    }

    fn blank(n: usize) -> Way {
        let drive = small_drive(n, Arc::new(MemoryStore::default()));
        Arc::new(Noting { drive, asked: Mutex::default(), left: AtomicUsize::new(usize::MAX) })
    }

    /// A host with so much memory.
    async fn host(&self, redundancy: &str, memory_limit: usize) -> Host {
        self.host_with(HostOptions { memory_limit, ..options(redundancy) }).await
    }

    async fn host_with(&self, mut options: HostOptions) -> Host {
        options.slices.target_bytes = 16 << 10;
        let ways = self.0.iter().map(|way| Arc::clone(way) as Arc<dyn Cse>);
        Host::join(ways.collect(), options, Founding::EmptyDrives).await.unwrap().0
    }

    /// How many slices drive `n` was asked for since this was asked, and for how many of them a disk moves its head.
    fn ways(&self, n: usize) -> (usize, usize) {
        let asked = self.0[n].taken();
        let moves = |pair: &&[(PartitionName, u32)]| pair[0].0 != pair[1].0 || pair[0].1.abs_diff(pair[1].1) > 2;
        (asked.len(), asked.windows(2).filter(moves).count())
    }
}

const SQL: &str = "SELECT count(*), sum(id), sum(n), sum(x), count(name), max(grp) FROM lab.t";

async fn answer(host: &Host) -> Vec<String> {
    let query = host.sql(SQL, &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await.unwrap();
    lines(&query.collect().await.unwrap())
}

async fn filled(redundancy: &str, drives: &Drives) -> Vec<String> {
    let host = drives.host(redundancy, 256 << 20).await;
    store(&host, "lab.t", 45_000).await.unwrap();
    answer(&host).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rebuild_reads_drives_in_storage_order() {
    let mut drives = Drives::new(5);
    let due = filled("ec:4+1", &drives).await;
    drives.0[2] = Drives::blank(2);

    // Of the little memory a sixty-fourth may wait of each drive.
    let host = drives.host("ec:4+1", 32 << 20).await;
    for n in 0..5 {
        let _before = drives.ways(n);
    }
    let report = host.repair(&RepairOptions::default(), &|_| ()).await.unwrap();
    assert_eq!((report.drives.as_slice(), report.bytes_read, report.left.len()), (&["drive-2".to_owned()][..], report.bytes_least, 0), "{report:?}");
    for n in [0, 1, 3, 4] {
        let (asked, moved) = drives.ways(n);
        assert!(asked > 20 && 4 * moved < asked, "drive-{n}: {moved} of {asked}");
    }
    assert_eq!(answer(&host).await, due);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slice_for_query_and_decoding_is_read_once() {
    let mut drives = Drives::new(5);
    let due = filled("ec:4+1", &drives).await;
    drives.0.remove(2);
    // Who stands still for a quarter of a second is not waited for: that may befall one run on a busy machine, and
    // not one after the other.
    let mut tries = Vec::new();
    while tries.len() < 5 && !tries.last().is_some_and(String::is_empty) {
        tries.push(read_twice(&drives, &due).await);
    }
    assert!(tries.last().is_some_and(String::is_empty), "{tries:?}");
}

/// What a query over what is here and what is decoded reads twice, of a host that has decoded nothing before; nothing
/// if it reads everything once.
async fn read_twice(drives: &Drives, due: &[String]) -> String {
    let handing_out = HostOptions { moving: AdaptiveMode::Always(Policy::Static(PushdownLevel::Raw)), ..options("ec:4+1") };
    let host = drives.host_with(handing_out).await;
    drives.0.iter().for_each(|way| drop(way.taken()));
    // Where the groups are is known when a slice of them was decoded.
    let few = host.sql("SELECT count(*) FROM lab.t WHERE id < 8000", &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await.unwrap();
    assert_eq!(lines(&few.collect().await.unwrap()), ["8000"]);
    let slices = |way: &Way| way.taken().into_iter().filter(|(partition, _)| !partition.table.starts_with("parity/")).collect::<Vec<_>>();
    let first = drives.0.iter().map(|way| slices(way).len()).max();
    assert_eq!(answer(&host).await, due);
    let mut twice = if first < Some(12) { String::new() } else { format!("{first:?} for the first slices; ") };
    for way in &drives.0 {
        let slices = slices(way);
        let once = slices.iter().collect::<HashSet<_>>().len();
        assert!(once > 20, "{}: {once}", way.drive.info().name);
        if slices.len() > once + once / 8 {
            twice += &format!("{}: {} of {once}; ", way.drive.info().name, slices.len());
        }
    }
    twice
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_lost_during_a_rebuild_delays_no_other() {
    for after in [0, 1, 20, 60] {
        let mut drives = Drives::new(6);
        let due = filled("ec:3+2", &drives).await;
        drives.0[1] = Drives::blank(1);
        let host = drives.host("ec:3+2", 64 << 20).await;
        drives.0[4].left.store(after, Ordering::SeqCst);
        let repair = tokio::time::timeout(Duration::from_secs(120), host.repair(&RepairOptions::default(), &|_| ())).await;
        let report = repair.expect("it waits for a drive that is lost").unwrap_or_else(|e| panic!("after {after}: {}", e.report()));
        assert_eq!((report.drives.as_slice(), report.left.len()), (&["drive-1".to_owned()][..], 0), "after {after}: {report:?}");
        let asked = tokio::time::timeout(Duration::from_secs(120), answer(&host)).await;
        assert_eq!(asked.expect("it waits for a drive that is lost"), due, "after {after}");
    }
}
