//! Measures work as processor time, so that other load of the machine does not count.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream};
use futures::Stream;
use parking_lot::{Mutex, MutexGuard};
use skytether_emulation::thread_time;

/// The time that one lane has had.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cpu: Duration,
    wall: Duration,
    /// Since when the present poll runs, by the clock and by the thread's processor time.
    polled: Option<(Instant, Duration)>,
}

/// A reading of a [`Meter`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuSample {
    /// Processor time.
    pub cpu: Duration,
    /// Time by the clock while it ran or wanted to.
    pub wall: Duration,
}

impl CpuSample {
    /// The increase since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { cpu: self.cpu.saturating_sub(before.cpu), wall: self.wall.saturating_sub(before.wall) }
    }
}

impl Meter {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// Up to now. Within a poll only the thread that polls sees what that has taken; for others the time is up to its
    /// beginning, by the clock.
    #[must_use]
    pub fn read(&self, polling: bool) -> CpuSample {
        let inner = self.inner();
        let (cpu, wall) = match inner.polled {
            Some((at, cpu)) if polling => (thread_time().saturating_sub(cpu), at.elapsed()),
            Some((at, _)) => (at.elapsed(), at.elapsed()),
            None => (Duration::ZERO, Duration::ZERO),
        };
        CpuSample { cpu: inner.cpu + cpu, wall: inner.wall + wall }
    }

    /// Processor time of the polls that are over.
    #[must_use]
    pub fn spent(&self) -> Duration {
        self.inner().cpu
    }

    /// Time in which work waited for its turn, in seconds of this machine as all that it measures.
    pub fn waited(&self, time: Duration) {
        self.inner().wall += time;
    }

    fn begin(&self) {
        self.inner().polled = Some((Instant::now(), thread_time()));
    }

    fn end(&self) {
        let mut inner = self.inner();
        if let Some((at, cpu)) = inner.polled.take() {
            inner.cpu += thread_time().saturating_sub(cpu);
            inner.wall += at.elapsed();
        }
    }
}

/// Rows whose making a meter measures.
pub(crate) struct Metered {
    pub(crate) inner: SendableRecordBatchStream,
    pub(crate) meter: Arc<Meter>,
}

impl Stream for Metered {
    type Item = DfResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.meter.begin();
        let polled = self.inner.as_mut().poll_next(cx);
        self.meter.end();
        polled
    }
}

impl RecordBatchStream for Metered {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }
}
