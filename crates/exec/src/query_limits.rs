//! The memory and the disk that the host's part of queries may use, and the errors of a query that needs more.
//!
//! DataFusion's own disk limit ends in an error that differs from other failures by its text only. So this module
//! counts the files, and an excess is an [`Error`] with a [`Detail`]. See also [`crate::spill_dir`], which makes the
//! directory of the files.

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use datafusion::common::DataFusionError;
use datafusion::error::Result as DfResult;
use datafusion::execution::disk_manager::{DiskManager, DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryLimit, MemoryPool};
use datafusion::execution::{SpillFile, SpillWriter, TempFileFactory};
use futures::Stream;
use skytether_common::units::human_bytes;
use skytether_common::{Detail, Error, Result};
use skytether_plan::error::{from_datafusion, is_out_of_memory};

/// What a query can do that needs too much.
const ADVICE: &str = "filter more, select fewer columns or aggregate before joining";

/// DataFusion's error of a plan that the host runs with memory of `pool`, as one of ours.
///
/// An error of a drive is ours already when it gets here: that the drive has no memory is not about the host's. The
/// cause is left out: it lists the engine's operators, and its words for users are those about a drive.
pub fn host_error(error: DataFusionError, pool: &dyn MemoryPool) -> Error {
    if !is_out_of_memory(&error) {
        return from_datafusion(error);
    }
    let limit = match pool.memory_limit() {
        MemoryLimit::Finite(limit) => limit as u64,
        MemoryLimit::Infinite | MemoryLimit::Unknown => pool.reserved() as u64,
    };
    Error::exhausted(format!(
        "the host's part of the query needs more than the {} of memory that queries may use, beyond what it can put aside on disk: {ADVICE}, or open the fleet with a higher memory limit",
        human_bytes(limit)
    ))
    .with_detail(Detail::MemoryExhausted { limit })
}

/// `error` of writing to a file, with what to do if the disk is full.
fn explained(error: io::Error) -> io::Error {
    if !is_full(&error) {
        return error;
    }
    let text = format!("no space is left on the disk where the host puts aside what memory can't hold: make room, or {ADVICE}");
    io::Error::new(ErrorKind::StorageFull, Error::exhausted(text).with_detail(Detail::SpillDiskFull).with_source(error))
}

/// Whether the system says, below DataFusion's wrappings, that there is no space.
fn is_full(error: &io::Error) -> bool {
    let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = at {
        at = match error.downcast_ref::<io::Error>() {
            Some(io) if matches!(io.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => return true,
            // Its `source()` leaves out the error that it was made of.
            Some(io) => io.get_ref().map(|within| within as _),
            None => error.source(),
        };
    }
    false
}

/// Bytes in files, and how many there may be.
#[derive(Debug)]
struct Usage {
    limit: u64,
    used: AtomicU64,
}

/// What one file takes; given back when the file and its writers are gone.
#[derive(Debug)]
struct Taken {
    usage: Arc<Usage>,
    bytes: AtomicU64,
}

impl Taken {
    fn take(&self, bytes: u64) -> io::Result<()> {
        let before = self.usage.used.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.usage.limit {
            self.usage.used.fetch_sub(bytes, Ordering::Relaxed);
            let limit = self.usage.limit;
            let text = format!(
                "the host's part of the query needs more than the {} of disk that queries may use for what memory can't hold: {ADVICE}, or open the fleet with a higher spill limit",
                human_bytes(limit)
            );
            return Err(io::Error::other(Error::exhausted(text).with_detail(Detail::SpillExhausted { limit })));
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.usage.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.usage.used.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

/// Makes the files for what memory can't hold, below one directory.
pub(crate) struct SpillFiles {
    disk: Arc<DiskManager>,
    usage: Arc<Usage>,
}

impl SpillFiles {
    /// Spill files below `directory`, with at most `limit` bytes together.
    ///
    /// # Errors
    /// Those of the system, where no file can be made there.
    pub(crate) fn below(directory: &Path, limit: u64) -> Result<Arc<Self>> {
        let builder = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![directory.to_owned()]));
        // The limit is kept here.
        let disk = builder.with_max_temp_directory_size(u64::MAX).build().map_err(from_datafusion)?;
        Ok(Arc::new(Self { disk: Arc::new(disk), usage: Arc::new(Usage { limit, used: AtomicU64::new(0) }) }))
    }
}

impl TempFileFactory for SpillFiles {
    fn create_temp_file(&self, description: &str) -> DfResult<Arc<dyn SpillFile>> {
        let inner = self.disk.create_tmp_file(description).map_err(|e| match e {
            DataFusionError::IoError(e) => DataFusionError::IoError(explained(e)),
            other => other,
        })?;
        Ok(Arc::new(CountedFile { inner, taken: Arc::new(Taken { usage: Arc::clone(&self.usage), bytes: AtomicU64::new(0) }) }))
    }
}

/// A file whose bytes count.
struct CountedFile {
    inner: Arc<dyn SpillFile>,
    taken: Arc<Taken>,
}

impl SpillFile for CountedFile {
    fn path(&self) -> Option<&Path> {
        self.inner.path()
    }

    fn size(&self) -> Option<u64> {
        self.inner.size()
    }

    fn read_stream(&self) -> DfResult<Pin<Box<dyn Stream<Item = DfResult<Bytes>> + Send>>> {
        self.inner.read_stream()
    }

    fn open_writer(&self) -> DfResult<Box<dyn SpillWriter>> {
        Ok(Box::new(CountedWriter { inner: self.inner.open_writer()?, taken: Arc::clone(&self.taken) }))
    }
}

struct CountedWriter {
    inner: Box<dyn SpillWriter>,
    taken: Arc<Taken>,
}

impl Write for CountedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.taken.take(bytes.len() as u64)?;
        let written = self.inner.write(bytes);
        let kept = written.as_ref().map_or(0, |kept| *kept);
        self.taken.give_back(bytes.len().saturating_sub(kept) as u64);
        written.map_err(explained)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush().map_err(explained)
    }
}

impl SpillWriter for CountedWriter {
    fn finish(&mut self) -> DfResult<()> {
        self.inner.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use arrow::array::{ArrayRef, Int64Array};
    use arrow::record_batch::RecordBatch;
    use datafusion::common::resources_datafusion_err;
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
    use datafusion::physical_plan::spill::SpillManager;
    use futures::StreamExt;
    use skytether_common::Kind;
    use skytether_plan::error::to_datafusion;

    use super::*;

    fn rows(n: i64) -> RecordBatch {
        RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(0..n)) as ArrayRef)]).unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn files_beyond_the_limit_are_an_error_with_its_detail() {
        let dir = tempfile::tempdir().unwrap();
        let files = SpillFiles::below(dir.path(), 100 << 10).unwrap();
        let disk = DiskManagerBuilder::default().with_temp_file_factory(Arc::clone(&files) as _);
        let runtime = RuntimeEnvBuilder::new().with_disk_manager_builder(disk).build_arc().unwrap();
        let manager = SpillManager::new(runtime, SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0), rows(0).schema());
        let spill = |n| manager.spill_record_batch_and_finish(std::slice::from_ref(&rows(n)), "rows");
        let first = spill(8000).unwrap().unwrap();
        assert_eq!(files.usage.used.load(Ordering::Relaxed), first.size().unwrap());
        for _ in 0..2 {
            let error = from_datafusion(spill(8000).err().unwrap());
            assert_eq!((error.kind(), error.detail()), (Kind::Exhausted, Some(&Detail::SpillExhausted { limit: 100 << 10 })), "{error:?}");
            assert!(error.to_string().contains("100 KiB") && error.to_string().ends_with("spill limit"), "{error}");
        }
        assert!(std::fs::metadata(first.path().unwrap()).unwrap().len() > 60 << 10);
        let read: Vec<_> = manager.read_spill_as_stream_unbuffered(first, None).unwrap().map(|batch| batch.unwrap().num_rows()).collect().await;
        assert_eq!((read.iter().sum::<usize>(), files.usage.used.load(Ordering::Relaxed)), (8000, 0), "what is read is given back");
        assert!(spill(8000).unwrap().is_some());
    }

    /// A file on a disk that is full: <https://man7.org/linux/man-pages/man4/full.4.html>.
    struct OnFullDisk(File);

    impl Write for OnFullDisk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // As DataFusion's own writer passes it on.
            Ok(self.0.write(bytes).map_err(DataFusionError::IoError)?)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    impl SpillWriter for OnFullDisk {
        fn finish(&mut self) -> DfResult<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_an_error_with_its_detail() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let usage = Arc::new(Usage { limit: 1 << 20, used: AtomicU64::new(0) });
        let taken = Arc::new(Taken { usage: Arc::clone(&usage), bytes: AtomicU64::new(0) });
        let mut writer = CountedWriter { inner: Box::new(OnFullDisk(full)), taken };
        let error = writer.write(b"rows").unwrap_err();
        assert_eq!(usage.used.load(Ordering::Relaxed), 0);
        let error = from_datafusion(DataFusionError::ArrowError(Box::new(error.into()), None));
        assert_eq!((error.kind(), error.detail()), (Kind::Exhausted, Some(&Detail::SpillDiskFull)), "{error:?}");
        assert!(error.to_string().contains("make room") && error.to_string().contains("No space left"), "{error}");
    }

    #[test]
    fn only_the_hosts_own_want_of_memory_is_explained() {
        let pool = GreedyMemoryPool::new(1 << 30);
        let own = || resources_datafusion_err!("Failed to allocate additional 1 B");
        for error in [own(), own().context("a sort"), DataFusionError::Shared(Arc::new(own()))] {
            let error = host_error(error, &pool);
            assert_eq!((error.kind(), error.detail()), (Kind::Exhausted, Some(&Detail::MemoryExhausted { limit: 1 << 30 })), "{error:?}");
            assert!(error.to_string().contains("1.00 GiB") && !error.to_string().contains("allocate"), "{error}");
        }
        let drive = || Error::exhausted("drive-1: failed to allocate additional 1 B");
        for error in [to_datafusion(drive()), to_datafusion(drive().with_source(own())), DataFusionError::Plan("x".into())] {
            let text = from_datafusion(DataFusionError::Plan("x".into())).to_string();
            let error = host_error(error, &pool);
            assert!(error.detail().is_none() && (error.to_string() == text || error.to_string().starts_with("drive-1")), "{error}");
        }
    }
}
