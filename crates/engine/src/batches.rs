//! Sizes the batches that leave a drive: joins small ones, and drops data that no row refers to.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StructArray};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use skytether_device::size::{array_bytes, batch_bytes};

/// Batches are joined until they have about this many bytes.
const TARGET_BYTES: u64 = 2 << 20;
/// The target where messages about progress share the connection, so that results leave early: the larger of these
/// bytes and these bytes per column.
const SMALL_BYTES: (u64, u64) = (256 << 10, 1 << 10);
/// The most batches that wait to be joined.
const MAX_WAITING: usize = 1024;

/// Joins small batches to larger ones.
#[derive(Debug)]
pub(crate) struct Coalescer {
    schema: SchemaRef,
    waiting: Vec<RecordBatch>,
    bytes: u64,
    target: u64,
}

impl Coalescer {
    pub(crate) fn new(schema: SchemaRef) -> Self {
        Self { schema, waiting: Vec::new(), bytes: 0, target: TARGET_BYTES }
    }

    /// For rows that share a connection with messages about progress.
    pub(crate) fn small(schema: SchemaRef) -> Self {
        let target = SMALL_BYTES.0.max(SMALL_BYTES.1 * schema.fields().len() as u64).min(TARGET_BYTES);
        Self { target, ..Self::new(schema) }
    }

    /// Takes `batch`; gives one that is large enough to go, if there is one now.
    ///
    /// # Errors
    /// Where Arrow can't join the batches.
    pub(crate) fn push(&mut self, batch: RecordBatch) -> Result<Option<RecordBatch>, ArrowError> {
        if batch.num_rows() == 0 {
            return Ok(None);
        }
        let batch = compact(batch)?;
        self.bytes += batch_bytes(&batch);
        self.waiting.push(batch);
        if self.bytes >= self.target || self.waiting.len() >= MAX_WAITING { self.finish() } else { Ok(None) }
    }

    /// What waits, as one batch.
    ///
    /// # Errors
    /// As [`Coalescer::push`].
    pub(crate) fn finish(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let mut waiting = std::mem::take(&mut self.waiting);
        self.bytes = 0;
        match waiting.len() {
            0 => Ok(None),
            1 => Ok(waiting.pop()),
            _ if self.schema.fields().is_empty() => {
                let rows = waiting.iter().map(RecordBatch::num_rows).sum();
                RecordBatch::try_new_with_options(Arc::clone(&self.schema), Vec::new(), &RecordBatchOptions::new().with_row_count(Some(rows))).map(Some)
            }
            _ => concat_batches(&self.schema, &waiting).map(Some),
        }
    }
}

/// The same rows without data that no view refers to: a filtered or dense batch may otherwise drag the names
/// of a million cells along.
fn compact(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.columns().iter().any(|column| has_views(column.data_type())) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(compact_array).collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new_with_options(batch.schema(), columns, &RecordBatchOptions::new().with_row_count(Some(batch.num_rows())))
}

fn has_views(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8View | DataType::BinaryView => true,
        DataType::List(field) => has_views(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| has_views(field.data_type())),
        _ => false,
    }
}

fn compact_array(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    // Copying pays if at least half of the bytes behind the views belong to other batches.
    let wasteful = |buffers: usize| buffers as u64 > 2 * array_bytes(array.as_ref());
    Ok(match array.data_type() {
        DataType::Utf8View => {
            let views = array.as_string_view();
            if wasteful(views.data_buffers().iter().map(|b| b.len()).sum()) { Arc::new(views.gc()) } else { Arc::clone(array) }
        }
        DataType::BinaryView => {
            let views = array.as_binary_view();
            if wasteful(views.data_buffers().iter().map(|b| b.len()).sum()) { Arc::new(views.gc()) } else { Arc::clone(array) }
        }
        DataType::List(field) if has_views(field.data_type()) => {
            let list = array.as_list::<i32>();
            Arc::new(ListArray::try_new(Arc::clone(field), list.offsets().clone(), compact_array(list.values())?, list.nulls().cloned())?)
        }
        DataType::Struct(fields) if has_views(array.data_type()) => {
            let columns = array.as_struct().columns().iter().map(compact_array).collect::<Result<Vec<_>, _>>()?;
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns, array.nulls().cloned(), array.len())?)
        }
        _ => Arc::clone(array),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int32Array, StringViewArray};
    use arrow::datatypes::{Field, Schema};

    #[test]
    fn small_batches_are_joined_and_nothing_is_lost() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int32, false)]));
        let mut coalescer = Coalescer::new(Arc::clone(&schema));
        let (mut out, mut rows) = (Vec::new(), 0);
        for start in 0..3000 {
            let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int32Array::from_iter_values(start..start + 10))]).unwrap();
            rows += 10;
            out.extend(coalescer.push(batch).unwrap());
        }
        out.extend(coalescer.finish().unwrap());
        assert!(out.len() <= 3, "{}", out.len());
        assert_eq!(out.iter().map(RecordBatch::num_rows).sum::<usize>(), rows);
    }

    #[test]
    fn rows_without_columns_are_counted() {
        let schema = Arc::new(Schema::empty());
        let batch = |rows| RecordBatch::try_new_with_options(Arc::clone(&schema), vec![], &RecordBatchOptions::new().with_row_count(Some(rows))).unwrap();
        let mut coalescer = Coalescer::new(Arc::clone(&schema));
        assert!(coalescer.push(batch(3)).unwrap().is_none());
        assert!(coalescer.push(batch(4)).unwrap().is_none());
        assert_eq!(coalescer.finish().unwrap().unwrap().num_rows(), 7);
    }

    #[test]
    fn views_do_not_drag_foreign_data_along() {
        let names: StringViewArray = (0..10_000).map(|n| Some(format!("a name of some length {n}"))).collect();
        let schema = Arc::new(Schema::new(vec![Field::new("name", DataType::Utf8View, false)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(names.slice(17, 3))]).unwrap();
        let mut coalescer = Coalescer::new(schema);
        coalescer.push(batch).unwrap();
        let out = coalescer.finish().unwrap().unwrap();
        let out = out.column(0).as_string_view();
        assert_eq!(out.value(0), "a name of some length 17");
        assert!(out.data_buffers().iter().map(|b| b.len()).sum::<usize>() < 1000);
    }
}
