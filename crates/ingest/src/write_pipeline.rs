//! [`WritePipeline`]: sends slices to the drives. Each drive has one lane, a task that sends values in batches.
//!
//! A lane has [two](UNDER_WAY) batches under way. While the drive stores one, its link carries the next. If both have
//! arrived, two cores of the drive store them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use skytether_common::{Error, Key, Result};
use skytether_device::Storage;
use skytether_store::{Expect, Op};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use skytether_catalog::root_store::Catalog;
use skytether_runtime::within;

/// Bytes that one lane collects before it sends.
const BATCH_BYTES: usize = 8 << 20;

/// Limit of bytes that all lanes together hold back, besides the last slice of each batch and four more slices of each
/// lane. With more than 32 drives, each batch may have 1 MiB instead.
const TOTAL_BYTES: usize = 64 << 20;

/// Batches of a lane that its drive has not answered yet.
const UNDER_WAY: usize = 2;

/// Limit of operations in one batch; many tiny slices need several batches.
const BATCH_OPS: usize = 256;

struct DriveWriter {
    send: mpsc::Sender<Op>,
    task: JoinHandle<Result<()>>,
}

/// Sends values to drives with backpressure: [`WritePipeline::put`] waits while the drive has
/// not taken what came before.
pub(crate) struct WritePipeline {
    lanes: Vec<DriveWriter>,
}

impl WritePipeline {
    /// A lane for each drive of `catalog`. Must be called in a runtime.
    pub(crate) fn new(catalog: &Catalog) -> Self {
        let batch = BATCH_BYTES.min(TOTAL_BYTES / (UNDER_WAY * catalog.drives().len().max(1))).max(1 << 20);
        let lanes = catalog
            .drives()
            .iter()
            .map(|drive| {
                let (send, receive) = mpsc::channel(4);
                DriveWriter { send, task: tokio::spawn(run(Arc::clone(drive), receive, batch, catalog.deadline())) }
            })
            .collect();
        Self { lanes }
    }

    /// Queues one value. Blocks the thread while the lane is full, so never call it from a task.
    ///
    /// # Errors
    /// Only that the lane has failed; [`Self::finish`] has the reason.
    pub(crate) fn put(&self, drive: usize, key: Key, value: Bytes) -> Result<()> {
        self.lanes[drive].send.blocking_send(Op::Put { key, value, expect: Expect::Absent }).map_err(|_| Error::unavailable("a drive took no more slices"))
    }

    /// Waits until everything is durable.
    ///
    /// # Errors
    /// The first drive's error, which names it.
    pub(crate) async fn finish(self) -> Result<()> {
        let mut result = Ok(());
        for lane in self.lanes {
            drop(lane.send);
            let ended = lane.task.await.unwrap_or_else(|e| Err(Error::internal("the task that sends slices ended early").with_source(e)));
            if result.is_ok() {
                result = ended;
            }
        }
        result
    }
}

/// Sends the operations of `ops` until there are no more, or the drive fails. Before it returns, the drive has answered
/// all batches under way, or their deadline has passed. So a cleanup afterwards finds all that was written.
async fn run(drive: Arc<dyn Storage>, mut ops: mpsc::Receiver<Op>, batch_bytes: usize, deadline: Duration) -> Result<()> {
    let (mut next, mut under_way) = (Batch::default(), FuturesUnordered::new());
    let (mut more, mut result) = (true, Ok(()));
    while result.is_ok() && (more || !under_way.is_empty()) {
        tokio::select! {
            biased;
            Some(sent) = under_way.next(), if !under_way.is_empty() => result = sent,
            batch = next.fill(&mut ops, batch_bytes), if more && under_way.len() < UNDER_WAY => {
                more = !batch.is_empty();
                if more {
                    under_way.push(send(&*drive, deadline, batch));
                }
            }
        }
    }
    // From here on `put` fails.
    drop(ops);
    while let Some(sent) = under_way.next().await {
        result = result.and(sent);
    }
    result
}

async fn send(drive: &dyn Storage, deadline: Duration, batch: Vec<Op>) -> Result<()> {
    let name = &drive.info().name;
    let sent = within(deadline, name, "store slices", drive.apply(batch)).await;
    sent.map(drop).map_err(|e| e.context(format!("{name} could not store slices")))
}

/// Operations of the next batch.
#[derive(Default)]
struct Batch {
    ops: Vec<Op>,
    bytes: usize,
}

impl Batch {
    /// The next batch, once it is full or the last one; empty at the end. A call that is dropped keeps the operations
    /// so far for the next call.
    async fn fill(&mut self, ops: &mut mpsc::Receiver<Op>, most_bytes: usize) -> Vec<Op> {
        while self.bytes < most_bytes && self.ops.len() < BATCH_OPS {
            let Some(op) = ops.recv().await else { break };
            self.bytes += if let Op::Put { value, .. } = &op { value.len() } else { 0 };
            self.ops.push(op);
        }
        self.bytes = 0;
        std::mem::take(&mut self.ops)
    }
}
