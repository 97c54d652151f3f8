//! Tables of broadcast joins, which travel with a sub-plan: read once, sent to every drive.

use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use datafusion::common::internal_err;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::ExecutionPlan;
use futures::future::{BoxFuture, Shared};
use futures::{FutureExt, StreamExt};
use skytether_common::units::human_bytes;
use skytether_common::{Error, Result};
use skytether_device::size::batch_bytes;
use skytether_plan::{DriveScan, broadcast_join};
use skytether_slice::metadata::ipc;
use tokio_util::task::AbortOnDropHandle;

use crate::query_limits::host_error;

/// The most bytes of memory that all broadcast tables of one scan may take. The planner has estimated far less.
const MAX_BYTES: usize = 12 << 20;

/// A table that was read.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) rows: u64,
    /// An Arrow IPC stream.
    pub(crate) bytes: Bytes,
}

/// The tables in order, and what the memory pool knows of them.
struct Tables {
    all: Vec<Table>,
    _memory: MemoryReservation,
}

type Reading = Shared<BoxFuture<'static, std::result::Result<Arc<Tables>, Arc<Error>>>>;

/// The broadcast tables of one scan.
#[derive(Clone, Default)]
pub struct BroadcastTables {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    /// The columns of each as they travel.
    schemas: Vec<SchemaRef>,
    /// The first caller begins the reading. It runs once, even if that caller stops waiting: plans can't run twice.
    reading: Arc<OnceLock<Reading>>,
}

impl fmt::Debug for BroadcastTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastTables").field("tables", &self.schemas.len()).finish_non_exhaustive()
    }
}

impl BroadcastTables {
    /// The inputs of `scan`, as they are run.
    pub fn new(inputs: &[Arc<dyn ExecutionPlan>], scan: &DriveScan) -> Self {
        let schemas = scan.inputs.iter().enumerate().map(|(n, input)| broadcast_join::schema(n, input.schema())).collect();
        Self { inputs: inputs.to_vec(), schemas, reading: Arc::default() }
    }

    /// How each is read.
    pub(crate) fn inputs(&self) -> &[Arc<dyn ExecutionPlan>] {
        &self.inputs
    }

    /// The same tables, read in another way.
    pub(crate) fn with_inputs(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> datafusion::common::Result<Self> {
        if inputs.len() != self.schemas.len() {
            return internal_err!("a scan with {} tables beside it was given {}", self.schemas.len(), inputs.len());
        }
        Ok(Self { inputs, schemas: self.schemas.clone(), reading: Arc::default() })
    }

    /// The tables in order. Must be called in a runtime.
    ///
    /// # Errors
    /// As reading them has; exhausted where they are too large to be sent.
    pub(crate) async fn read(&self, context: Arc<TaskContext>) -> Result<Vec<Table>> {
        if self.inputs.is_empty() {
            return Ok(Vec::new());
        }
        let reading = self.reading.get_or_init(|| {
            let (inputs, schemas) = (self.inputs.clone(), self.schemas.clone());
            let task = AbortOnDropHandle::new(tokio::spawn(async move { tables(&inputs, &schemas, context).await }));
            let read = async move { task.await.unwrap_or_else(|e| Err(Error::internal("the task that reads small tables stopped").with_source(e))) };
            read.map(|read| read.map(Arc::new).map_err(Arc::new)).boxed().shared()
        });
        match reading.clone().await {
            Ok(tables) => Ok(tables.all.clone()),
            Err(error) => Err(Error::new(error.kind(), error.message()).with_source(error)),
        }
    }
}

async fn tables(inputs: &[Arc<dyn ExecutionPlan>], schemas: &[SchemaRef], context: Arc<TaskContext>) -> Result<Tables> {
    let pool = context.memory_pool();
    let mut memory = MemoryConsumer::new("small tables for the drives").register(pool);
    let mut all = Vec::new();
    for (n, (input, schema)) in inputs.iter().zip(schemas).enumerate() {
        let (rows, bytes) = table(input, schema, &mut memory, Arc::clone(&context)).await?;
        all.push(Table { name: broadcast_join::name(n), rows, bytes });
    }
    memory.try_resize(all.iter().map(|table| table.bytes.len()).sum()).map_err(|e| host_error(e, pool.as_ref()))?;
    Ok(Tables { all, _memory: memory })
}

/// All rows of `input` under the columns of `schema`, and their number. The cut has seen to it that they are few.
async fn table(input: &Arc<dyn ExecutionPlan>, schema: &SchemaRef, memory: &mut MemoryReservation, context: Arc<TaskContext>) -> Result<(u64, Bytes)> {
    let wrong = |e| Error::internal("a small table can't be written for the drives").with_source(e);
    let (mut batches, mut bytes, mut rows_so_far) = (Vec::new(), 0, 0);
    let pool = Arc::clone(context.memory_pool());
    let of_host = |e| host_error(e, pool.as_ref());
    let mut rows = input.execute(0, context).map_err(of_host)?;
    while let Some(batch) = rows.next().await {
        let batch = batch.map_err(of_host)?;
        // Once as it is, once joined with the others, once written.
        let size = usize::try_from(batch_bytes(&batch)).unwrap_or(usize::MAX);
        (bytes, rows_so_far) = (size.saturating_add(bytes), batch.num_rows() + rows_so_far);
        if bytes > MAX_BYTES || rows_so_far as u64 > broadcast_join::MAX_ROWS {
            return Err(Error::exhausted(format!(
                "the smaller side of a join, {rows_so_far} rows of {} and more, is too large to be sent to every drive: use cut=\"filter\"",
                human_bytes(bytes as u64)
            )));
        }
        memory.try_grow(size.saturating_mul(3)).map_err(of_host)?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        batches.push(RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options).map_err(wrong)?);
    }
    let all = concat_batches(schema, &batches).map_err(wrong)?;
    Ok((all.num_rows() as u64, ipc::write(schema, Some(&all))?.into()))
}
