//! Backpressure: rows on their way from drives to readers, and how many bytes of them may wait in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use parking_lot::{Mutex, MutexGuard};
use skytether_scheduler::message::EpochId;
use tokio::sync::mpsc::{Sender, WeakSender};
use tokio::sync::{Notify, mpsc};

use crate::adaptive::spill_buffer::BufferedBatch;

/// Bytes of rows that may wait in memory for their readers. Above this, the task takes in nothing more.
const WAITING: u64 = 32 << 20;

/// Milliseconds without any read after which the task checks whether a reader waits for another drive's rows.
const STUCK: u64 = 250;

/// Where the rows of one drive go. The queue closes when this is dropped, so only the drive's state may hold it.
#[derive(Debug)]
pub(crate) struct OutputQueue {
    /// Rows, and the bytes of memory that they count for.
    queue: mpsc::UnboundedSender<(BufferedBatch, u64)>,
    pub(crate) reading: Arc<ReaderState>,
}

/// How the rows of one drive are read.
#[derive(Debug)]
pub(crate) struct ReaderState {
    /// Batches in the queue.
    waiting: AtomicU64,
    reader: WeakSender<DfResult<RecordBatch>>,
    /// The reader has stopped.
    pub(crate) closed: AtomicBool,
    /// No more rows will come.
    pub(crate) over: AtomicBool,
}

impl OutputQueue {
    /// A queue that leads to `output`, and its receiving end.
    pub(crate) fn new(output: &Sender<DfResult<RecordBatch>>) -> (Arc<Self>, mpsc::UnboundedReceiver<(BufferedBatch, u64)>) {
        let (queue, waiting) = mpsc::unbounded_channel();
        let no = || AtomicBool::new(false);
        let reading = Arc::new(ReaderState { waiting: AtomicU64::new(0), reader: output.downgrade(), closed: no(), over: no() });
        (Arc::new(Self { queue, reading }), waiting)
    }

    /// Queues rows that count for `bytes`. Returns whether a reader still takes them.
    fn give(&self, rows: BufferedBatch, bytes: u64) -> bool {
        self.reading.waiting.fetch_add(1, Ordering::Relaxed);
        self.queue.send((rows, bytes)).is_ok()
    }
}

impl ReaderState {
    /// Whether its reader has taken all rows so far, and more will come.
    fn is_hungry(&self) -> bool {
        !self.closed.load(Ordering::Relaxed)
            && !self.over.load(Ordering::Relaxed)
            && self.waiting.load(Ordering::Relaxed) == 0
            && self.reader.upgrade().is_some_and(|reader| reader.capacity() == reader.max_capacity())
    }
}

/// Backpressure over all drives of a scan.
pub(crate) struct Flow {
    began: Instant,
    bytes: AtomicU64,
    /// Time of the last read, in milliseconds since `began`.
    read: AtomicU64,
    pub(crate) room: Notify,
    /// Bytes of filtered rows that wait here for processing, by epoch.
    filtered: Mutex<BTreeMap<EpochId, u64>>,
    mouths: Mutex<Vec<Arc<ReaderState>>>,
}

impl Flow {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            bytes: AtomicU64::new(0),
            read: AtomicU64::new(0),
            room: Notify::new(),
            filtered: Mutex::default(),
            mouths: Mutex::default(),
        })
    }

    /// Registers another queue that rows go to.
    pub(crate) fn leads_to(&self, mouth: &Arc<OutputQueue>) {
        self.mouths.lock().push(Arc::clone(&mouth.reading));
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether the rows in memory have reached [`WAITING`].
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > WAITING
    }

    /// Whether drives must wait. A reader may need the rows of another drive first, as an ordered merge does. Where no
    /// row was read for [`STUCK`] and a reader is hungry, the task takes in more rows, which then wait on disk
    /// ([`crate::adaptive::spill_buffer`]). Where all readers are idle, drives wait without a time limit.
    pub(crate) fn clogged(&self) -> bool {
        let stuck = || self.now().saturating_sub(self.read.load(Ordering::Relaxed)) >= STUCK;
        let hungry = || self.mouths.lock().iter().any(|mouth| mouth.is_hungry());
        self.is_full() && !(stuck() && hungry())
    }

    fn filtered(&self) -> MutexGuard<'_, BTreeMap<EpochId, u64>> {
        self.filtered.lock()
    }

    /// Whether the task must take in nothing more: too many rows wait for readers, or for aggregation here.
    pub(crate) fn full(&self) -> bool {
        self.clogged() || self.filtered().values().sum::<u64>() > WAITING
    }

    /// Filtered rows of `epoch`, `bytes` in all, wait for processing.
    pub(crate) fn waits(&self, epoch: EpochId, bytes: u64) {
        self.filtered().insert(epoch, bytes);
    }

    /// All rows of `epoch` are processed.
    pub(crate) fn worked(&self, epoch: EpochId) {
        if self.filtered().remove(&epoch).is_some() {
            self.room.notify_waiters();
        }
    }

    /// Rows that take `bytes` of memory wait from now on.
    pub(crate) fn more(&self, bytes: u64) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) == 0 {
            self.read.store(self.now(), Ordering::Relaxed);
        }
    }

    /// Queues rows for their reader. `bytes` is their part of the rows that wait; it is subtracted if the reader has
    /// left.
    pub(crate) fn give(&self, mouth: &OutputQueue, rows: BufferedBatch, bytes: u64) -> bool {
        let given = mouth.give(rows, bytes);
        if !given {
            self.less(bytes);
        }
        given
    }

    /// A reader has taken rows of `bytes`.
    pub(crate) fn read(&self, mouth: &ReaderState, bytes: u64) {
        mouth.waiting.fetch_sub(1, Ordering::Relaxed);
        self.less(bytes);
    }

    fn less(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.read.store(self.now(), Ordering::Relaxed);
        self.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A reader that rests makes the drives wait. A reader that waits for rows of another drive does not, or both would
    /// wait for ever.
    #[tokio::test]
    async fn backpressure_waits_for_slow_readers_but_not_starved_ones() {
        let flow = Flow::new();
        let (outputs, mut readers): (Vec<_>, Vec<_>) = (0..2).map(|_| mpsc::channel(1)).unzip();
        let (mouths, mut waiting): (Vec<_>, Vec<_>) = outputs.iter().map(OutputQueue::new).unzip();
        mouths.iter().for_each(|mouth| flow.leads_to(mouth));
        let rows = || BufferedBatch::loose(RecordBatch::new_empty(Arc::new(arrow::datatypes::Schema::empty())));
        let give = |at: usize, bytes: u64| {
            flow.more(bytes);
            assert!(flow.give(&mouths[at], rows(), bytes));
        };
        give(0, WAITING);
        give(1, 1);
        assert!(flow.is_full() && flow.clogged());
        tokio::time::sleep(Duration::from_millis(STUCK + 50)).await;
        assert!(flow.clogged(), "rows of both drives wait: nobody reads");
        // Those of the second are read, and it has more to come.
        let (_, bytes) = waiting[1].try_recv().unwrap();
        flow.read(&mouths[1].reading, bytes);
        give(0, 1);
        tokio::time::sleep(Duration::from_millis(STUCK + 50)).await;
        assert!(flow.is_full() && !flow.clogged(), "somebody waits for the second drive's rows");
        // What came is on its way to the reader, who does not take it.
        outputs[1].try_send(Ok(RecordBatch::new_empty(Arc::new(arrow::datatypes::Schema::empty())))).unwrap();
        assert!(flow.clogged());
        readers[1].try_recv().unwrap().unwrap();
        assert!(!flow.clogged());
        // It has no more.
        mouths[1].reading.over.store(true, Ordering::Relaxed);
        assert!(flow.clogged());
    }
}
