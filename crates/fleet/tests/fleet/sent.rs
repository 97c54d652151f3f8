//! Slices go to a drive in batches, two of which are under way at a time: one is stored while the next comes. Where one of them fails, nothing is said before the other has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_drive::{Cse, Drive, Storage};
use skytether_host::{Founding, Host};
use skytether_store::memory::MemoryStore;
use skytether_store::{Op, SliceStore, Version};
use skytether_wire::decorated::{Decorated, Decorator};
use tokio::sync::Notify;

use crate::mended::{holds, options, rows, store};
use crate::util::small_drive;

/// Changes that only batches of slices have so many of.
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

#[async_trait]
impl Decorator for Waiting {
    fn behind(&self) -> &dyn Cse {
        self.drive.as_ref()
    }

    async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        if batch.len() < MANY {
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
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        done
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_batches_are_under_way_and_end_together() {
    let memory = Arc::new(MemoryStore::default());
    let drive = small_drive(0, Arc::clone(&memory) as _);
    let way = Waiting { drive, begun: 0.into(), under_way: 0.into(), most: 0.into(), fails: 0.into(), moved: Notify::new() };
    let way = Arc::new(Decorated(way));
    let host = Host::join(vec![Arc::clone(&way) as Arc<dyn Cse>], options("none"), Founding::EmptyDrives).await.unwrap().0;

    store(&host, "lab.t", 60_000).await.unwrap();
    let batches = way.0.begun.load(Ordering::SeqCst);
    assert!(batches >= 3, "{batches} batches");
    assert!(way.0.two_at_most());
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(60_000));

    way.0.fails.store(batches + 2, Ordering::SeqCst);
    let error = store(&host, "lab.t", 60_000).await.unwrap_err();
    assert!(error.full_text().contains("drive-0 could not store slices") && error.full_text().contains("no room"), "{}", error.full_text());
    assert_eq!((way.0.under_way.load(Ordering::SeqCst), way.0.two_at_most()), (0, true), "one is under way still, and nobody will know of it");
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(60_000));

    // What came of it is gone with the next ingest.
    way.0.fails.store(0, Ordering::SeqCst);
    store(&host, "lab.t", 100).await.unwrap();
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(100));
    let generation = |key: &Key| PartitionName::parse(key).map(|(partition, _)| partition.generation);
    let mut left: Vec<_> = memory.list("", None, 10_000).unwrap().iter().filter_map(|entry| generation(&entry.key)).collect();
    left.dedup();
    assert_eq!(left.len(), 1, "{left:?}");
}
