//! The small tables that travel beside a sub-plan: read once, sent to every drive.

use std::fmt;
use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use bytes::Bytes;
use datafusion::common::internal_err;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use skytether_common::{Error, Result};
use skytether_plan::error::from_datafusion;
use skytether_plan::{DriveScan, shipped};
use skytether_slice::metadata::ipc;
use tokio::sync::OnceCell;

/// What is read for one scan.
#[derive(Clone, Default)]
pub(crate) struct Beside {
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    /// The columns of each as they travel.
    schemas: Vec<SchemaRef>,
    read: Arc<OnceCell<Vec<Table>>>,
}

/// A table that was read.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) rows: u64,
    /// An Arrow IPC stream.
    pub(crate) bytes: Bytes,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Beside").field("tables", &self.schemas.len()).finish_non_exhaustive()
    }
}

impl Beside {
    /// The inputs of `scan`, as they are run.
    pub(crate) fn new(inputs: &[Arc<dyn ExecutionPlan>], scan: &DriveScan) -> Self {
        let schemas = scan.inputs.iter().enumerate().map(|(n, input)| shipped::schema(n, input.schema())).collect();
        Self { inputs: inputs.to_vec(), schemas, read: Arc::default() }
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
        Ok(Self { inputs, schemas: self.schemas.clone(), read: Arc::default() })
    }

    /// The tables in order; read by whoever asks first.
    ///
    /// # Errors
    /// As reading them has.
    pub(crate) async fn read(&self, context: Arc<TaskContext>) -> Result<&[Table]> {
        if self.inputs.is_empty() {
            return Ok(&[]);
        }
        let read = self.read.get_or_try_init(|| async {
            let mut tables = Vec::new();
            for (n, (input, schema)) in self.inputs.iter().zip(&self.schemas).enumerate() {
                let (rows, bytes) = table(input, schema, Arc::clone(&context)).await?;
                tables.push(Table { name: shipped::name(n), rows, bytes });
            }
            Ok::<_, Error>(tables)
        });
        read.await.map(Vec::as_slice)
    }
}

/// All rows of `input` under the columns of `schema`, and their number. The cut has seen to it that they are few.
async fn table(input: &Arc<dyn ExecutionPlan>, schema: &SchemaRef, context: Arc<TaskContext>) -> Result<(u64, Bytes)> {
    let wrong = |e| Error::internal("a small table can't be written for the drives").because(e);
    let mut batches = Vec::new();
    let mut rows = input.execute(0, context).map_err(from_datafusion)?;
    while let Some(batch) = rows.next().await {
        let batch = batch.map_err(from_datafusion)?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        batches.push(RecordBatch::try_new_with_options(Arc::clone(schema), batch.columns().to_vec(), &options).map_err(wrong)?);
    }
    let all = concat_batches(schema, &batches).map_err(wrong)?;
    Ok((all.num_rows() as u64, ipc::write(schema, Some(&all))?.into()))
}
