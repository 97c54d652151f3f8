//! The rows of a stripe of a wide table, joined from the slices with its groups of columns.
//!
//! Groups are decoded one by one, all rows of each. A decoder takes some hundred kilobytes per column, whatever its
//! rows, so thousands of columns at once would take gigabytes. The rows of a stripe are bounded when it is written, and
//! the engine reserves them in its memory pool.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use skytether_common::{Error, Result};
use skytether_device::size::batch_bytes;
use skytether_plan::error::from_datafusion;

use crate::reader::{Part, Partition, Reader};

/// Gives the rows of a stripe as batches.
#[derive(Debug)]
pub(crate) struct Stripe {
    rows: RecordBatch,
    at: usize,
    batch_rows: usize,
    /// Held as long as the rows are in memory.
    _memory: MemoryReservation,
}

impl Stripe {
    /// Decodes `parts`, slices of one stripe in the order of their groups. Batches have at most `batch_rows` rows.
    ///
    /// # Errors
    /// Corrupt, naming slice and partition; Exhausted where the pool has no room.
    pub(crate) fn decode(partition: &Arc<Partition>, parts: Vec<Part>, batch_rows: usize, pool: &Arc<dyn MemoryPool>) -> Result<Self> {
        let memory = MemoryConsumer::new("SliceScanExec").register(pool);
        let (mut fields, mut columns, mut rows) = (Vec::new(), Vec::<ArrayRef>::new(), None);
        for part in parts {
            let mut batches = Vec::new();
            let at_once = rows_at_once(&partition.metadata.groups.schema(&partition.metadata.schema, part.group()), part.columns());
            for batch in Reader::decode(partition, part, at_once)? {
                let batch = batch?;
                memory.try_grow(usize::try_from(batch_bytes(&batch)).unwrap_or(usize::MAX)).map_err(from_datafusion).map_err(|e| {
                    e.context(format!(
                        "the drive's memory has no room for {} rows of {} side by side: give drives more",
                        partition.metadata.rows,
                        partition.title()
                    ))
                })?;
                batches.push(batch);
            }
            let Some(first) = batches.first() else { continue };
            let schema = first.schema();
            let joined =
                if let [only] = batches.as_slice() { only.clone() } else { concat_batches(&schema, &batches).map_err(|e| torn(partition).with_source(e))? };
            if *rows.get_or_insert(joined.num_rows()) != joined.num_rows() {
                return Err(torn(partition));
            }
            fields.extend(schema.fields().iter().cloned());
            columns.extend(joined.columns().iter().cloned());
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.unwrap_or(0)));
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let rows = RecordBatch::try_new_with_options(schema, columns, &options).map_err(|e| torn(partition).with_source(e))?;
        Ok(Self { rows, at: 0, batch_rows: batch_rows.max(1), _memory: memory })
    }
}

/// Rows that are decoded before the pool reserves them: the number that a slice claims may be wrong.
fn rows_at_once(schema: &Schema, columns: &[usize]) -> usize {
    const ROWS: usize = 1 << 16;
    const BYTES: usize = 64 << 20;
    let width = |at: &usize| match schema.fields().get(*at).map(|field| field.data_type()) {
        Some(DataType::FixedSizeBinary(width)) => usize::try_from(*width).unwrap_or(0),
        Some(other) => other.primitive_width().unwrap_or(16),
        None => 0,
    };
    let row = columns.iter().map(width).fold(0, usize::saturating_add);
    (BYTES / row.max(1)).clamp(1, ROWS)
}

fn torn(partition: &Partition) -> Error {
    Error::corrupt(format!("the slices of a stripe of {} do not fit together", partition.title()))
}

impl Iterator for Stripe {
    type Item = RecordBatch;

    fn next(&mut self) -> Option<RecordBatch> {
        let rows = self.batch_rows.min(self.rows.num_rows().checked_sub(self.at)?);
        if rows == 0 {
            return None;
        }
        let batch = self.rows.slice(self.at, rows);
        self.at += rows;
        Some(batch)
    }
}
