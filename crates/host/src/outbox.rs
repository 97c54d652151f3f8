//! Slices on their way to the drives: one lane per drive, each a task that sends what came in as batches.

use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Error, Key, Result};
use skytether_store::{Expect, Op};
use skytether_wire::Storage;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::catalog::{Catalog, within};

/// Bytes that one lane collects before it sends.
const BATCH_BYTES: usize = 8 << 20;

/// Bytes that all lanes together may hold back.
const TOTAL_BYTES: usize = 64 << 20;

/// Changes in one batch at most: many tiny slices are sent in more than one.
const BATCH_OPS: usize = 256;

struct Lane {
    send: mpsc::Sender<Op>,
    task: JoinHandle<Result<()>>,
}

/// Sends values to drives with backpressure: [`Outbox::put`] waits while the drive has not taken what came before.
pub(crate) struct Outbox {
    lanes: Vec<Lane>,
}

impl Outbox {
    /// A lane for each drive of `catalog`. Must be called in a runtime.
    pub(crate) fn new(catalog: &Catalog) -> Self {
        let batch = BATCH_BYTES.min(TOTAL_BYTES / catalog.drives().len().max(1)).max(1 << 20);
        let lanes = catalog
            .drives()
            .iter()
            .map(|drive| {
                let (send, receive) = mpsc::channel(4);
                Lane { send, task: tokio::spawn(run(Arc::clone(drive), receive, batch, catalog.deadline())) }
            })
            .collect();
        Self { lanes }
    }

    /// Hands over one value; blocks the thread while the lane is full, so never call it from a task.
    ///
    /// # Errors
    /// Only that the lane has failed; [`Self::finish`] tells why.
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
            let ended = lane.task.await.unwrap_or_else(|e| Err(Error::internal("the task that sends slices ended early").because(e)));
            if result.is_ok() {
                result = ended;
            }
        }
        result
    }
}

async fn run(drive: Arc<dyn Storage>, mut ops: mpsc::Receiver<Op>, batch_bytes: usize, deadline: std::time::Duration) -> Result<()> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    loop {
        let next = ops.recv().await;
        let ended = next.is_none();
        if let Some(op) = next {
            bytes += if let Op::Put { value, .. } = &op { value.len() } else { 0 };
            batch.push(op);
        }
        if !batch.is_empty() && (ended || bytes >= batch_bytes || batch.len() >= BATCH_OPS) {
            let name = &drive.info().name;
            let sent = std::mem::take(&mut batch);
            within(deadline, name, "store slices", drive.apply(sent)).await.map_err(|e| e.while_doing(format!("{name} could not store slices")))?;
            bytes = 0;
        }
        if ended {
            return Ok(());
        }
    }
}
