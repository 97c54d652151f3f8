//! Slices go to a drive in batches, two of them in flight: one is stored while the next arrives. If one fails, the
//! error waits for the end of the other.

use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use skytether_common::{Error, Key, Kind, PartitionName, Result};
use skytether_device::{Capabilities, CseInfo, Layer};
use skytether_drive::{Cse, Drive, Storage};
use skytether_host::{Founding, Host};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, Version};
use tokio::sync::Notify;

use crate::repair::{holds, options, rows, store};
use crate::util::small_drive;

/// Only batches of slices have this many operations.
const MANY: usize = 100;

/// How long a batch waits for the next one.
const PATIENCE: Duration = Duration::from_secs(2);

/// A way to a drive on which batches of slices wait until the next one is under way, too.
#[derive(Debug)]
struct Waiting {
    drive: Arc<Drive>,
    begun: AtomicUsize,
    under_way: AtomicUsize,
    most: AtomicUsize,
    /// The batch that fails.
    fails: AtomicUsize,
    refused: AtomicUsize,
    moved: Notify,
}

impl Waiting {
    async fn until(&self, begun: usize) {
        let wait = async {
            while self.begun.load(Ordering::SeqCst) < begun {
                self.moved.notified().await;
            }
        };
        // The last one waits in vain.
        drop(tokio::time::timeout(PATIENCE, wait).await);
    }

    /// Whether it saw two at a time, and never more.
    fn two_at_most(&self) -> bool {
        self.most.swap(0, Ordering::SeqCst) == 2
    }
}

impl Layer for Waiting {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    /// So that the host lays its record there.
    fn capabilities(&self) -> Capabilities {
        Capabilities { remote: true, ..self.drive.capabilities() }
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            if batch.iter().filter(|op| matches!(op, Op::Put { .. })).count() < MANY {
                return self.drive.apply(batch).await;
            }
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(self.under_way.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            self.moved.notify_waiters();
            self.moved.notify_one();
            let done = if self.fails.load(Ordering::SeqCst) == number {
                Err(Error::exhausted("the drive has no room"))
            } else {
                self.until(number + 1).await;
                if self.fails.load(Ordering::SeqCst) == number + 1 {
                    // It is stored long after the next one has failed.
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
                self.drive.apply(batch).await
            };
            self.refused.fetch_add(usize::from(done.as_ref().is_err_and(|e| e.kind() == Kind::Conflict)), Ordering::SeqCst);
            self.under_way.fetch_sub(1, Ordering::SeqCst);
            done
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_batches_are_in_flight_and_end_together() {
    let memory = Arc::new(MemoryStore::default());
    let drive = small_drive(0, Arc::clone(&memory) as _);
    let way = Waiting { drive, begun: 0.into(), under_way: 0.into(), most: 0.into(), fails: 0.into(), refused: 0.into(), moved: Notify::new() };
    let way = Arc::new(way);
    let host = Host::join(vec![Arc::clone(&way) as Arc<dyn Cse>], options("none"), Founding::EmptyDrives).await.unwrap().0;

    store(&host, "lab.t", 60_000).await.unwrap();
    let batches = way.begun.load(Ordering::SeqCst);
    assert!(batches >= 3, "{batches} batches");
    assert!(way.two_at_most());
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(60_000));

    way.fails.store(batches + 2, Ordering::SeqCst);
    let error = store(&host, "lab.t", 60_000).await.unwrap_err();
    assert!(error.report().contains("drive-0 could not store slices") && error.report().contains("no room"), "{}", error.report());
    assert_eq!((way.under_way.load(Ordering::SeqCst), way.two_at_most()), (0, true), "one is under way still, and nobody will know of it");
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(60_000));

    way.fails.store(0, Ordering::SeqCst);
    // A drive that has forgotten its host, as a disk does that acknowledged what it had not written: both batches are
    // refused, and both are taken afterwards.
    let forget = Op::Delete { key: Key::new("skytether-fleet-host").unwrap(), expect: Expect::Any };
    memory.apply(vec![forget]).unwrap();
    assert_eq!(way.refused.load(Ordering::SeqCst), 0);
    store(&host, "lab.t", 60_001).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert_eq!(way.refused.load(Ordering::SeqCst), 2);
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(60_001));

    // What came of the one that failed, and of those that were replaced, is deleted meanwhile.
    store(&host, "lab.t", 100).await.unwrap();
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(100));
    let generations = || {
        let all = memory.list("", None, 10_000).unwrap();
        all.iter().filter_map(|entry| PartitionName::parse(&entry.key)).map(|(partition, _)| partition.generation).collect::<BTreeSet<_>>()
    };
    for _ in 0..200 {
        if generations().len() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(generations().len(), 1, "{:?}", generations());
}
