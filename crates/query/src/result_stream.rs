//! A query's rows as a stream: counted, with errors converted to ours, until its receipt is closed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use arrow::record_batch::RecordBatch;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{Stream, StreamExt};
use skytether_common::Result;

use skytether_exec::profile::Collector;
use skytether_exec::query_limits::host_error;

/// The result's stream: counts rows, turns errors into ours and closes the receipt.
pub(crate) struct Counted {
    pub(crate) inner: Running,
    pub(crate) collector: Arc<Collector>,
    /// The memory that it uses.
    pub(crate) memory: Arc<dyn MemoryPool>,
    /// Held as long as it runs.
    pub(crate) running: Option<Arc<()>>,
}

/// How far a query's execution is.
pub(crate) enum Running {
    Planned(Arc<dyn ExecutionPlan>, Arc<TaskContext>),
    Begun(SendableRecordBatchStream),
    Over,
}

impl Stream for Counted {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        if let Running::Planned(plan, context) = &self.inner {
            match execute_stream(Arc::clone(plan), Arc::clone(context)) {
                Ok(stream) => self.inner = Running::Begun(stream),
                Err(e) => {
                    self.inner = Running::Over;
                    self.collector.finish(false);
                    return Poll::Ready(Some(Err(host_error(e, self.memory.as_ref()))));
                }
            }
        }
        let Running::Begun(inner) = &mut self.inner else { return Poll::Ready(None) };
        match inner.poll_next_unpin(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(batch))) => {
                self.collector.rows(batch.num_rows() as u64);
                Poll::Ready(Some(Ok(batch)))
            }
            Poll::Ready(end) => {
                // Dropping the stream first lets scans record their figures.
                self.inner = Running::Over;
                self.running = None;
                self.collector.finish(end.is_none());
                Poll::Ready(end.map(|e| e.map_err(|e| host_error(e, self.memory.as_ref()))))
            }
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if !matches!(std::mem::replace(&mut self.inner, Running::Over), Running::Over) {
            self.collector.finish(false);
        }
    }
}
