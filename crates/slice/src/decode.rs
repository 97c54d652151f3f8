//! Any slice to batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatchOptions};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use skytether_common::{Error, Result};

use crate::MAX_ROWS;
use crate::guard::{corrupt, corrupt_arrow, guarded};
use crate::layout::Layout;
use crate::sparse::SparseBatches;

/// Values that a batch of sparse rows has at most, but for single rows with more: with their cell numbers they fit a core's second-level cache.
const SPARSE_VALUES: usize = 1 << 16;

/// A slice's batches.
#[derive(Debug)]
pub enum Batches {
    /// Of a plain table.
    Table(std::vec::IntoIter<RecordBatch>),
    /// Of a matrix, decoded as they are asked for.
    Sparse(Box<SparseBatches>),
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Batches::Table(batches) => batches.next().map(Ok),
            Batches::Sparse(batches) => batches.next(),
        }
    }
}

/// Decodes a slice of a table with `schema` to batches of at most `batch_rows` rows, with the columns `projection` in that order.
/// Other columns are not read. An empty projection gives batches without columns that have row counts. A slice without rows gives no batch.
///
/// # Errors
/// `Corrupt` where the bytes are no slice of this layout and schema (of a sparse slice's lists that is found batch by batch); `Invalid` for a column number
/// that the schema does not have.
pub fn decode(bytes: Bytes, layout: &Layout, schema: &SchemaRef, projection: &[usize], batch_rows: usize) -> Result<Batches> {
    let batch_rows = batch_rows.max(1);
    Ok(match layout {
        Layout::Table => Batches::Table(guarded("a slice", || read_table(bytes, schema, projection, batch_rows))?.into_iter()),
        Layout::Sparse { .. } => Batches::Sparse(Box::new(SparseBatches::open(bytes, layout, projection, batch_rows, SPARSE_VALUES)?)),
    })
}

/// Reads Parquet bytes of any kind with Arrow's reader; see [`decode`].
pub(crate) fn read_table(bytes: Bytes, schema: &SchemaRef, projection: &[usize], batch_rows: usize) -> Result<Vec<RecordBatch>> {
    let projected = Arc::new(schema.project(projection).map_err(|e| Error::invalid("a column that the table does not have is wanted").because(e))?);
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes).map_err(corrupt("a slice's footer"))?;
    let groups: i64 = builder.metadata().row_groups().iter().map(|g| g.num_rows()).fold(0, i64::saturating_add);
    let rows = builder.metadata().file_metadata().num_rows();
    if rows != groups || !(0..=MAX_ROWS as i64).contains(&rows) {
        return Err(Error::corrupt(format!("a slice's footer counts {rows} rows in all and {groups} in its row groups; at most {MAX_ROWS} are allowed")));
    }
    let rows = rows as usize;
    let found = builder.schema();
    if found.fields().len() != schema.fields().len() {
        return Err(Error::corrupt(format!("a slice has {} columns where its table has {}", found.fields().len(), schema.fields().len())));
    }
    if let Some((f, s)) = found.fields().iter().zip(schema.fields()).find(|(f, s)| f.name() != s.name()) {
        return Err(Error::corrupt(format!("a slice has a column {:?} where its table has {:?}", f.name(), s.name())));
    }
    if projection.is_empty() {
        let empty = |n| RecordBatch::try_new_with_options(Arc::clone(&projected), vec![], &RecordBatchOptions::new().with_row_count(Some(n)));
        return (0..rows).step_by(batch_rows).map(|at| empty(batch_rows.min(rows - at)).map_err(corrupt_arrow("a slice"))).collect();
    }
    // The reader gives each column once, in the file's order.
    let mut order = projection.to_vec();
    order.sort_unstable();
    order.dedup();
    let mask = ProjectionMask::roots(builder.parquet_schema(), order.iter().copied());
    let places: Vec<usize> = projection.iter().filter_map(|c| order.binary_search(c).ok()).collect();
    let reader = builder.with_projection(mask).with_batch_size(batch_rows).build().map_err(corrupt("a slice"))?;
    let mut batches = Vec::new();
    let mut seen = 0;
    for batch in reader {
        let batch = batch.map_err(corrupt_arrow("a slice"))?;
        let columns =
            places.iter().zip(projected.fields()).map(|(&p, field)| retyped(batch.column(p), field.data_type(), field.name())).collect::<Result<_>>()?;
        seen += batch.num_rows();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        batches.push(RecordBatch::try_new_with_options(Arc::clone(&projected), columns, &options).map_err(corrupt_arrow("a slice"))?);
    }
    if seen != rows {
        return Err(Error::corrupt(format!("a slice has {seen} rows where its footer says {rows}")));
    }
    Ok(batches)
}

/// `array`, which must be of type `due`. Only what a list calls its items may differ: Parquet writers disagree about that.
fn retyped(array: &ArrayRef, due: &DataType, name: &str) -> Result<ArrayRef> {
    if array.data_type() == due {
        return Ok(Arc::clone(array));
    }
    if let (DataType::List(found), DataType::List(field)) = (array.data_type(), due)
        && found.data_type() == field.data_type()
    {
        let list = array.as_list::<i32>();
        let renamed = ListArray::try_new(Arc::clone(field), list.offsets().clone(), Arc::clone(list.values()), list.nulls().cloned());
        return Ok(Arc::new(renamed.map_err(corrupt_arrow("a slice's lists"))?));
    }
    Err(Error::corrupt(format!("column {name:?} of a slice is of type {} where its table has {due}", array.data_type())))
}
