//! Rows that wait for their epoch or their reader: in the query's memory, or on disk where memory has no room.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::execution::SpillFile;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::metrics::SpillMetrics;
use datafusion::physical_plan::spill::SpillManager;
use futures::StreamExt;
use skytether_common::{Error, Result};
use skytether_device::size::batch_bytes;
use skytether_plan::error::from_datafusion;

/// Where rows of a scan wait.
pub(crate) struct SpillBuffer {
    runtime: Arc<RuntimeEnv>,
    spills: SpillMetrics,
    memory: MemoryReservation,
}

impl SpillBuffer {
    pub(crate) fn new(runtime: Arc<RuntimeEnv>, spills: SpillMetrics) -> Arc<Self> {
        let memory = MemoryConsumer::new("rows from drives that wait").with_can_spill(true).register(&runtime.memory_pool);
        Arc::new(Self { runtime, spills, memory })
    }

    /// Holds rows that are needed soon: in memory, even beyond its limit.
    pub(crate) fn hold(self: &Arc<Self>, batch: RecordBatch) -> BufferedBatch {
        let bytes = usize::try_from(batch_bytes(&batch)).unwrap_or(usize::MAX);
        self.memory.grow(bytes);
        BufferedBatch(Place::Memory { batch, _held: Some(MemoryLease { room: Arc::clone(self), bytes }) })
    }

    /// Holds rows that may wait for long: in memory if there is room, else on disk.
    ///
    /// # Errors
    /// Exhausted, where the disk has no room either; errors of writing there.
    pub(crate) fn keep(self: &Arc<Self>, batch: RecordBatch) -> Result<BufferedBatch> {
        let bytes = usize::try_from(batch_bytes(&batch)).unwrap_or(usize::MAX);
        match self.memory.try_grow(bytes) {
            Ok(()) => Ok(BufferedBatch(Place::Memory { batch, _held: Some(MemoryLease { room: Arc::clone(self), bytes }) })),
            Err(_) => self.put_aside(&batch),
        }
    }

    /// Puts rows on disk that no reader waits for yet.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub(crate) fn put_aside(&self, batch: &RecordBatch) -> Result<BufferedBatch> {
        let manager = SpillManager::new(Arc::clone(&self.runtime), self.spills.clone(), batch.schema());
        let file =
            manager.spill_record_batch_and_finish(std::slice::from_ref(batch), "rows from drives that wait for their reader").map_err(from_datafusion)?;
        Ok(match file {
            Some(file) => BufferedBatch(Place::Disk(manager, file)),
            None => BufferedBatch::loose(batch.clone()),
        })
    }
}

/// Bytes in memory that are given back when this is dropped.
struct MemoryLease {
    room: Arc<SpillBuffer>,
    bytes: usize,
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.room.memory.shrink(self.bytes);
    }
}

/// Rows that wait.
pub(crate) struct BufferedBatch(Place);

enum Place {
    Memory {
        batch: RecordBatch,
        /// Dropped with the rows.
        _held: Option<MemoryLease>,
    },
    Disk(SpillManager, Arc<dyn SpillFile>),
}

impl fmt::Debug for BufferedBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Memory { batch, .. } => write!(f, "BufferedBatch({} rows)", batch.num_rows()),
            Place::Disk(_, file) => write!(f, "BufferedBatch({:?} bytes on disk)", file.size()),
        }
    }
}

impl BufferedBatch {
    /// Rows in memory that no other part of the query accounts for.
    pub(crate) fn loose(batch: RecordBatch) -> Self {
        Self(Place::Memory { batch, _held: None })
    }

    /// The rows, if they are in memory.
    pub(crate) fn in_memory(&self) -> Option<&RecordBatch> {
        match &self.0 {
            Place::Memory { batch, .. } => Some(batch),
            Place::Disk(..) => None,
        }
    }

    /// Bytes of memory that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.in_memory().map_or(0, batch_bytes)
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        match &self.0 {
            Place::Memory { batch, .. } => batch.schema(),
            Place::Disk(manager, _) => Arc::clone(manager.schema()),
        }
    }

    /// The rows; a file is gone then.
    ///
    /// # Errors
    /// What reading says.
    pub(crate) async fn load(self) -> Result<RecordBatch> {
        let schema = self.schema();
        match self.0 {
            Place::Memory { batch, .. } => Ok(batch),
            Place::Disk(manager, file) => {
                let mut rows = manager.read_spill_as_stream_unbuffered(file, None).map_err(from_datafusion)?;
                let mut batches = Vec::new();
                while let Some(batch) = rows.next().await {
                    batches.push(batch.map_err(from_datafusion)?);
                }
                arrow::compute::concat_batches(&schema, &batches).map_err(|e| Error::internal("rows that were put aside can't be put together").with_source(e))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

    use super::*;

    fn rows(from: i64) -> RecordBatch {
        let columns: [(&str, ArrayRef); 2] = [
            ("n", Arc::new(Int64Array::from_iter_values(from..from + 1000))),
            ("s", Arc::new((from..from + 1000).map(|n| (n % 7 > 0).then(|| format!("row {n}"))).collect::<StringArray>())),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// Memory and disk are free again afterwards.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn batches_beyond_memory_spill_to_disk_and_return_unchanged() {
        let one = usize::try_from(batch_bytes(&rows(0))).unwrap();
        let pool = Arc::new(GreedyMemoryPool::new(one * 5 / 2));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool) as _).build_arc().unwrap();
        let metrics = ExecutionPlanMetricsSet::new();
        let room = SpillBuffer::new(Arc::clone(&runtime), SpillMetrics::new(&metrics, 0));
        let kept: Vec<_> = (0..4).map(|n| room.keep(rows(n * 1000)).unwrap()).collect();
        assert_eq!(kept.iter().map(|kept| kept.in_memory().is_some()).collect::<Vec<_>>(), [true, true, false, false]);
        assert!(runtime.memory_pool.reserved() >= 2 * one && metrics.clone_inner().spilled_bytes().is_some_and(|bytes| bytes > 0));
        for (n, kept) in (0..).zip(kept) {
            assert_eq!(kept.load().await.unwrap(), rows(n * 1000));
        }
        assert_eq!((runtime.memory_pool.reserved(), runtime.disk_manager.used_disk_space()), (0, 0));
        // What is wanted before long is held anyway, and is accounted for.
        let held: Vec<_> = (0..3).map(|n| room.hold(rows(n))).collect();
        assert!(held.iter().all(|kept| kept.in_memory().is_some()) && runtime.memory_pool.reserved() >= 3 * one);
        drop(held);
        assert_eq!(runtime.memory_pool.reserved(), 0);
    }
}
