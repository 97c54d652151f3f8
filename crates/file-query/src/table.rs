//! Files of one table, as DataFusion scans them: one after the other, on a thread that may block.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStreamBuilder;
use datafusion::physical_plan::streaming::PartitionStream;
use parking_lot::Mutex;
use skytether_common::{DatasetName, Error, Result};
use skytether_formats::storage_schema::{self, Storable};
use skytether_formats::{Location, ReadOptions, TableFile, open_locations};
use skytether_plan::error::to_datafusion;
use skytether_runtime::threads::spawn_blocking_thread;

/// Batches that wait for the plan.
const AHEAD: usize = 1;

/// Scans of one plan: each takes a thread and reads all files.
const SCANS: usize = 16;

/// The files of a table.
pub(crate) struct Files {
    name: DatasetName,
    locations: Vec<Location>,
    options: ReadOptions,
    schema: SchemaRef,
    /// Inspected for its columns, and not read yet.
    opened: Mutex<Option<TableFile>>,
    /// Scans of all tables of the plan.
    scans: Arc<AtomicUsize>,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("locations", &self.locations).finish_non_exhaustive()
    }
}

impl Files {
    /// Inspects the files, on a thread that may block.
    ///
    /// # Errors
    /// As [`open_locations`] and [`storage_schema::schema`].
    pub(crate) fn open(name: DatasetName, locations: Vec<Location>, options: ReadOptions, scans: Arc<AtomicUsize>) -> Result<Self> {
        let opened = open_locations(&locations, &options)?;
        let schema = storage_schema::schema(&name, &opened.schema)?;
        Ok(Self { name, locations, options, schema, opened: Mutex::new(Some(opened)), scans })
    }

    pub(crate) fn columns(&self) -> &SchemaRef {
        &self.schema
    }

    /// Gives each batch to `take`, until that says no.
    fn read(&self, mut take: impl FnMut(RecordBatch) -> bool) -> Result<()> {
        let inspected = self.opened.lock().take();
        let file = match inspected {
            Some(file) => file,
            // A plan that scans a table twice.
            None => open_locations(&self.locations, &self.options)?,
        };
        if storage_schema::schema(&self.name, &file.schema)? != self.schema {
            return Err(Error::conflict("a file of the query was changed meanwhile: query it again"));
        }
        let mut storable = Storable::new(Arc::clone(&self.schema));
        for batch in file.batches {
            for batch in storable.batches(batch?)? {
                if !take(batch) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The rows of the files as one partition.
#[derive(Debug)]
pub(crate) struct Rows(pub(crate) Arc<Files>);

impl PartitionStream for Rows {
    fn schema(&self) -> &SchemaRef {
        self.0.columns()
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut rows = RecordBatchReceiverStreamBuilder::new(Arc::clone(self.0.columns()), AHEAD);
        let (sender, files) = (rows.tx(), Arc::clone(&self.0));
        rows.spawn(async move {
            if files.scans.fetch_add(1, Ordering::Relaxed) >= SCANS {
                return Err(to_datafusion(Error::exhausted(format!("a plan scans files at most {SCANS} times"))));
            }
            // A thread of its own: reads of the drive need those of the runtime.
            spawn_blocking_thread(move || files.read(|batch| sender.blocking_send(Ok(batch)).is_ok())).await.map_err(to_datafusion)
        });
        rows.build()
    }
}
