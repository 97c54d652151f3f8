//! Drives that send heartbeats while a read of their store never returns, in the middle of a query.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use skytether::{AdaptiveMode, DatasetKind, HostOptions, Placement, QueryOptions, Receipt};
use skytether_aggregator::Aggregator;
use skytether_common::{Key, Kind, PartitionName, Result};
use skytether_device::Cse;
use skytether_host::{Founding, Host};
use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::query::{Limits, Policy};
use skytether_store::SliceStore;
use skytether_store::StoreLayer;
use skytether_store::memory::MemoryStore;

use crate::util::{batches, lines, name, small_drive};

/// A store that hangs. Once it is armed, the first slice that is read never comes, at this and later requests, until it
/// is released.
#[derive(Debug, Default)]
struct Hanging {
    store: MemoryStore,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    armed: bool,
    hangs: Option<Key>,
    asked: usize,
}

impl Hanging {
    fn arm(&self) {
        *self.state.lock() = State { armed: true, ..State::default() };
    }

    /// Lets go what hangs; how often it was asked for it.
    fn release(&self) -> usize {
        let mut state = self.state.lock();
        state.armed = false;
        self.changed.notify_all();
        state.asked
    }

    fn pass(&self, key: &Key) {
        let mut state = self.state.lock();
        let is_slice = PartitionName::parse(key).is_some_and(|(_, number)| number.is_some());
        if !state.armed || !is_slice || state.hangs.as_ref().is_some_and(|hangs| hangs != key) {
            return;
        }
        state.hangs = Some(key.clone());
        state.asked += 1;
        while state.armed {
            self.changed.wait(&mut state);
        }
    }
}

impl StoreLayer for Hanging {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.store)
    }

    fn before_read(&self, key: &Key) -> Result<()> {
        self.pass(key);
        Ok(())
    }
}

/// Stores that are let go at the end, whatever that is: a thread that reads them would keep the test for ever.
struct Stores(Vec<Arc<Hanging>>);

impl Drop for Stores {
    fn drop(&mut self) {
        for store in &self.0 {
            store.release();
        }
    }
}

impl Stores {
    fn new(drives: usize) -> Self {
        Self((0..drives).map(|_| Arc::default()).collect())
    }

    /// Drives that know nothing of what others have read of these stores.
    fn drives(&self) -> Vec<Arc<dyn Cse>> {
        let drive = |(n, store): (usize, &Arc<Hanging>)| small_drive(n, Arc::clone(store) as _) as Arc<dyn Cse>;
        self.0.iter().enumerate().map(drive).collect()
    }
}

fn options(policy: Policy, redundancy: &str) -> HostOptions {
    let limits = Limits { silence: 1.5, pause: 0.01, ..Limits::default() };
    let redundancy = redundancy.parse().unwrap();
    let mut options = HostOptions {
        moving: AdaptiveMode::Always(policy),
        redundancy,
        limits,
        threads: 2,
        storage_deadline: Duration::from_secs(30),
        ..HostOptions::default()
    };
    options.slices.target_bytes = 8 << 10;
    options
}

async fn fill(host: &Host) {
    let rows = batches(16, 1000);
    let mut writer = host.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
    writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();
}

const SQL: &str = "SELECT grp, count(*), sum(n), round(avg(x), 6), min(name) FROM lab.t WHERE n > -50 GROUP BY grp ORDER BY grp";

/// The answer; nothing may take longer than this many times what it should.
async fn answer(host: &Host) -> Result<(Vec<String>, Receipt)> {
    let work = async {
        let query = host.sql(SQL, &QueryOptions::default()).await?;
        let receipt = query.receipt.clone();
        Ok((lines(&query.collect().await?), receipt.receipt()))
    };
    tokio::time::timeout(Duration::from_secs(120), work).await.expect("the query hangs")
}

const POLICIES: [Policy; 3] = [Policy::Static(PushdownLevel::Full), Policy::Static(PushdownLevel::Filter), Policy::Adaptive];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_drive_fails_over_with_redundancy() {
    for policy in POLICIES {
        let stores = Stores::new(4);
        let host = Host::join(stores.drives(), options(policy, "ec:2+1"), Founding::EmptyDrives).await.unwrap().0;
        fill(&host).await;
        let (whole, receipt) = answer(&host).await.unwrap();
        assert!(whole.len() == 4 && receipt.drives.iter().all(|drive| drive.served_by_fallback.is_none()), "{policy:?}: {receipt:?}");
        drop(host);
        let host = Host::join(stores.drives(), options(policy, "ec:2+1"), Founding::EmptyDrives).await.unwrap().0;
        stores.0[1].arm();
        let (rows, receipt) = answer(&host).await.unwrap_or_else(|e| panic!("{policy:?}: {}", e.report()));
        assert_eq!(rows, whole, "{policy:?}");
        let why = receipt.drives.iter().find(|drive| drive.name == "drive-1").and_then(|drive| drive.served_by_fallback.clone());
        // For slices to be sent raw, the host's own deadline of a storage operation applies. For all other work the
        // host notices that the drive makes no progress.
        if policy != Policy::Adaptive {
            let why = format!("{:?}", why.unwrap_or_else(|| panic!("{policy:?}: nobody stood for it: {receipt:?}")));
            assert!(why.contains("has done nothing for"), "{policy:?}: {why}");
        }
        assert!(stores.0[1].release() > 0, "{policy:?}: nothing was asked of it");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_drive_without_fallback_fails_the_query_by_name() {
    for (at, policy) in [Policy::Static(PushdownLevel::Full), Policy::Static(PushdownLevel::Filter)].into_iter().enumerate() {
        let stores = Stores::new(3);
        let host = Host::join(stores.drives(), options(policy, "none"), Founding::EmptyDrives).await.unwrap().0;
        fill(&host).await;
        let whole = answer(&host).await.unwrap().0;
        drop(host);
        let host = Host::join(stores.drives(), options(policy, "none"), Founding::EmptyDrives).await.unwrap().0;
        stores.0[at].arm();
        let error = answer(&host).await.unwrap_err();
        let text = error.report();
        assert_eq!(error.kind(), Kind::Unavailable, "{text}");
        assert!(text.contains(&format!("drive-{at}")) && text.contains("has done nothing for"), "{text}");
        // Asked again after pauses, and not for ever.
        let asked = stores.0[at].release();
        assert!((1..=3).contains(&asked), "{policy:?}: {asked}");
        assert_eq!(answer(&host).await.unwrap().0, whole, "and it works again once its disk does");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_drive_of_an_aggregator_is_named() {
    let stores = Stores::new(3);
    let full = options(Policy::Static(PushdownLevel::Full), "none");
    let join = async || {
        let mut drives = stores.drives();
        let alone = drives.pop().unwrap();
        let aggregator = Aggregator::open("aggregator", drives, full.clone(), Founding::EmptyDrives, None).await.unwrap();
        Host::join(vec![aggregator, alone], full.clone(), Founding::EmptyDrives).await.unwrap().0
    };
    let host = join().await;
    fill(&host).await;
    answer(&host).await.unwrap();
    drop(host);
    let host = join().await;
    stores.0[1].arm();
    let error = answer(&host).await.unwrap_err();
    let text = error.report();
    // The aggregator has the time to notice that by itself, and reports it.
    assert!(error.kind() == Kind::Unavailable && text.contains("drive-1") && text.contains("has done nothing for"), "{text}");
    assert!(stores.0[1].release() >= 3);
}
