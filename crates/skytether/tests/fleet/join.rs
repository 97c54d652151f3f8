//! Drives join a fleet while other tasks read the list of drives.

use futures::future::BoxFuture;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether::{DatasetKind, ResizeOptions};
use skytether_common::{Key, Result};
use skytether_device::{CseInfo, Layer};
use skytether_drive::{Cse, Drive, Storage};
use skytether_host::MEMBERSHIP_KEY;
use skytether_host::{Founding, Host};
use skytether_store::memory::MemoryStore;
use skytether_store::{Op, Version};
use tokio::sync::oneshot::{Receiver, Sender, channel};

use crate::repair::{holds, options, rows, store};
use crate::util::{name, small_drive};

/// Where somebody waits, who says so, and goes on when told.
type Stop = Mutex<Option<(Sender<()>, Receiver<()>)>>;

/// A connection to a drive that can stop the next read or write of the membership record.
#[derive(Debug)]
struct Way {
    drive: Arc<Drive>,
    reading: Stop,
    writing: Stop,
}

impl Way {
    fn blank(n: usize) -> Arc<Self> {
        let drive = small_drive(n, Arc::new(MemoryStore::default()));
        Arc::new(Self { drive, reading: Stop::default(), writing: Stop::default() })
    }
}

/// When the next one is there, and lets it go on.
fn stop(at: &Stop) -> (Receiver<()>, Sender<()>) {
    let ((there, is_there), (go, may_go)) = (channel(), channel());
    *at.lock() = Some((there, may_go));
    (is_there, go)
}

async fn pass(at: &Stop, key: &Key) {
    if key.as_str() != MEMBERSHIP_KEY {
        return;
    }
    let stop = take(&mut *at.lock());
    if let Some((there, may_go)) = stop {
        there.send(()).unwrap();
        may_go.await.unwrap();
    }
}

impl Layer for Way {
    fn info(&self) -> &CseInfo {
        self.drive.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.drive.as_ref())
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            pass(&self.reading, key).await;
            self.drive.get(key).await
        })
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            for op in &batch {
                if let Op::Put { key, .. } = op {
                    pass(&self.writing, key).await;
                }
            }
            self.drive.apply(batch).await
        })
    }
}

/// A writer reads the list of drives while one joins. It does not record that drive as lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joining_drive_does_not_count_as_lost() {
    let ways: Vec<_> = (0..4).map(Way::blank).collect();
    let way = |n: usize| Arc::clone(&ways[n]) as Arc<dyn Cse>;
    let (host, _) = Host::join((0..3).map(way).collect(), options("ec:2+1"), Founding::EmptyDrives).await.unwrap();
    store(&host, "lab.t", 200).await.unwrap();

    // It is in the list of drives, and not of the fleet yet.
    let (coming, comes) = stop(&ways[3].writing);
    let growing = tokio::spawn({
        let (host, new) = (host.clone(), vec![way(3)]);
        async move { host.resize(new, &ResizeOptions::default(), &|_| ()).await.map(drop) }
    });
    coming.await.unwrap();
    let (looking, looks) = stop(&ways[0].reading);
    let writing = tokio::spawn({
        let host = host.clone();
        async move { host.writer(&name("lab.u"), DatasetKind::Table, false).await.map(drop) }
    });
    looking.await.unwrap();
    comes.send(()).unwrap();
    let is_here = async {
        while host.members().len() < 4 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), is_here).await.unwrap();
    looks.send(()).unwrap();

    writing.await.unwrap().unwrap_or_else(|e| panic!("{}", e.report()));
    growing.await.unwrap().unwrap_or_else(|e| panic!("{}", e.report()));
    // Nothing is moved while one is lost.
    let again = host.resize(Vec::new(), &ResizeOptions::default(), &|_| ()).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert!(again.drives.len() == 4 && again.drives.iter().all(|load| load.after > 0), "{again}");
    assert_eq!(rows(&host, "lab.t").await.unwrap(), holds(200));
}
