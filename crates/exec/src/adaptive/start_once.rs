//! Starts an adaptive scan once for all of its partitions.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Starts a scan once, for all of its partitions.
#[derive(Default)]
pub(crate) struct Started(Mutex<Option<Partitions>>);

struct Partitions {
    outputs: Vec<Option<mpsc::Receiver<DfResult<RecordBatch>>>>,
    /// `None` once all outputs have readers, which keep the task alive then.
    task: Option<Arc<AbortOnDropHandle<()>>>,
}

/// Rows, and the handle that keeps the task alive.
pub(crate) type Outlet = (mpsc::Receiver<DfResult<RecordBatch>>, Arc<AbortOnDropHandle<()>>);

impl Started {
    /// The rows of `partition`; each partition can be taken once. The first caller starts the scan: `start` gets the
    /// senders of all partitions.
    pub(crate) fn partition(
        &self,
        partition: usize,
        partitions: usize,
        start: impl FnOnce(Vec<mpsc::Sender<DfResult<RecordBatch>>>) -> AbortOnDropHandle<()>,
    ) -> Option<Outlet> {
        let mut started = self.0.lock();
        let Partitions { outputs, task } = started.get_or_insert_with(|| {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..partitions).map(|_| mpsc::channel(2)).map(|(sender, receiver)| (sender, Some(receiver))).unzip();
            Partitions { outputs: receivers, task: Some(Arc::new(start(senders))) }
        });
        let output = outputs.get_mut(partition)?.take()?;
        let ends = Arc::clone(task.as_ref()?);
        if outputs.iter().all(Option::is_none) {
            *task = None;
        }
        Some((output, ends))
    }
}
