//! Decodes a slice of a table with Arrow's Parquet reader.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatchOptions};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection};
use skytether_common::{Error, Result};

use crate::guard::{check_footer, corrupt, corrupt_arrow, guarded};
use crate::options::MAX_ROWS;
use crate::pieces::Pieces;

/// The most bytes that all batches of a table's slice may take together: compressed constants could otherwise unpack to
/// terabytes. [`crate::TableSlicer`] closes a slice at 32 times its target in memory, apart from a single larger row.
pub const MAX_DECODED: usize = 4 << 30;

/// The batches of a Parquet file in memory, decoded by Arrow's reader; see [`crate::decode()`].
#[derive(Debug)]
pub struct TableBatches {
    schema: SchemaRef,
    source: TableSource,
    /// Rows that the footer counts, and rows decoded so far.
    rows: usize,
    seen: usize,
    batch_rows: usize,
    /// Bytes that further batches may take.
    room: usize,
}

#[derive(Debug)]
enum TableSource {
    /// The reader, and for each projected column its place among the reader's columns.
    /// The reader returns each column once, in the file's order.
    Parquet(ParquetRecordBatchReader, Vec<usize>),
    /// The projection is empty: only row counts are produced.
    Counted,
    Ended,
}

impl TableBatches {
    pub(crate) fn open(stored: Pieces, schema: &SchemaRef, projection: &[usize], batch_rows: usize, wanted: Option<&[u32]>) -> Result<Self> {
        let projected = Arc::new(schema.project(projection).map_err(|e| Error::invalid("a column that the table does not have is wanted").with_source(e))?);
        check_footer("a slice's footer", &stored)?;
        let builder = ParquetRecordBatchReaderBuilder::try_new(stored).map_err(corrupt("a slice's footer"))?;
        let groups: i64 = builder.metadata().row_groups().iter().map(|g| g.num_rows()).fold(0, i64::saturating_add);
        let rows = builder.metadata().file_metadata().num_rows();
        if rows != groups || !(0..=MAX_ROWS as i64).contains(&rows) {
            return Err(Error::corrupt(format!("a slice's footer counts {rows} rows in all and {groups} in its row groups; at most {MAX_ROWS} are allowed")));
        }
        let found = builder.schema();
        if found.fields().len() != schema.fields().len() {
            return Err(Error::corrupt(format!("a slice has {} columns where its table has {}", found.fields().len(), schema.fields().len())));
        }
        if let Some((f, s)) = found.fields().iter().zip(schema.fields()).find(|(f, s)| f.name() != s.name()) {
            return Err(Error::corrupt(format!("a slice has a column {:?} where its table has {:?}", f.name(), s.name())));
        }
        if let Some((&c, due)) = projection.iter().zip(projected.fields()).find(|(c, due)| !fits(found.field(**c).data_type(), due.data_type())) {
            return Err(wrong_type(due.name(), found.field(c).data_type(), due.data_type()));
        }
        if wanted.is_some_and(|wanted| !wanted.is_sorted_by(|a, b| a < b) || wanted.last().is_some_and(|last| i64::from(*last) >= rows)) {
            return Err(Error::corrupt(format!("rows are wanted that a slice of {rows} rows does not have, or in no order")));
        }
        let rows = wanted.map_or(rows as usize, <[u32]>::len);
        let mut batches = Self { schema: projected, source: TableSource::Counted, rows, seen: 0, batch_rows, room: MAX_DECODED };
        if !projection.is_empty() {
            let mut order = projection.to_vec();
            order.sort_unstable();
            order.dedup();
            let mask = ProjectionMask::roots(builder.parquet_schema(), order.iter().copied());
            let places: Vec<usize> = projection.iter().filter_map(|c| order.binary_search(c).ok()).collect();
            let builder = match wanted {
                Some(wanted) => {
                    let total = builder.metadata().file_metadata().num_rows() as usize;
                    builder.with_row_selection(RowSelection::from_consecutive_ranges(runs(wanted), total))
                }
                None => builder,
            };
            let reader = builder.with_projection(mask).with_batch_size(batch_rows).build().map_err(corrupt("a slice"))?;
            batches.source = TableSource::Parquet(reader, places);
        }
        Ok(batches)
    }

    /// Limits all batches together to `room` bytes.
    #[cfg(test)]
    fn within(mut self, room: usize) -> Self {
        self.room = room;
        self
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let (columns, rows) = match &mut self.source {
            TableSource::Ended => return Ok(None),
            TableSource::Counted if self.seen == self.rows => return Ok(None),
            TableSource::Counted => (Vec::new(), self.batch_rows.min(self.rows - self.seen)),
            TableSource::Parquet(reader, places) => match reader.next() {
                None if self.seen == self.rows => return Ok(None),
                None => return Err(Error::corrupt(format!("a slice has {} rows where its footer says {}", self.seen, self.rows))),
                Some(batch) => {
                    let batch = batch.map_err(corrupt_arrow("a slice"))?;
                    let columns = places.iter().zip(self.schema.fields()).map(|(&p, field)| retyped(batch.column(p), field.data_type(), field.name()));
                    (columns.collect::<Result<Vec<_>>>()?, batch.num_rows())
                }
            },
        };
        self.seen += rows;
        if self.seen > self.rows {
            return Err(Error::corrupt(format!("a slice has more rows than the {} of its footer", self.rows)));
        }
        let taken: usize = columns.iter().map(held).sum();
        self.room = self.room.checked_sub(taken).ok_or_else(|| Error::corrupt(format!("a slice unpacks to more than {MAX_DECODED} bytes")))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map(Some).map_err(corrupt_arrow("a slice"))
    }
}

impl Iterator for TableBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = guarded("a slice", || self.next_batch()).transpose();
        if !matches!(batch, Some(Ok(_))) {
            self.source = TableSource::Ended;
        }
        batch
    }
}

/// Ascending row numbers as ranges of consecutive ones.
fn runs(rows: &[u32]) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    rows.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some(*run.first()? as usize..*run.last()? as usize + 1))
}

/// An estimate of the bytes that an array's rows take; of a shared buffer, the part that the array uses.
fn held(array: &ArrayRef) -> usize {
    // All batches share a dictionary's values.
    let keys = array.as_any_dictionary_opt().map(|dictionary| dictionary.keys().to_data());
    let data = keys.unwrap_or_else(|| array.to_data());
    data.get_slice_memory_size().unwrap_or_else(|_| data.get_array_memory_size())
}

/// Whether a column of type `found` is valid as one of type `due`.
/// Only the name of a list's items may differ, because Parquet writers disagree about it.
fn fits(found: &DataType, due: &DataType) -> bool {
    found == due || matches!((found, due), (DataType::List(found), DataType::List(due)) if found.data_type() == due.data_type())
}

fn wrong_type(name: &str, found: &DataType, due: &DataType) -> Error {
    Error::corrupt(format!("column {name:?} of a slice is of type {found} where its table has {due}"))
}

/// `array` as type `due`, which its own type must fit.
fn retyped(array: &ArrayRef, due: &DataType, name: &str) -> Result<ArrayRef> {
    if array.data_type() == due {
        return Ok(Arc::clone(array));
    }
    if let DataType::List(field) = due
        && fits(array.data_type(), due)
    {
        let list = array.as_list::<i32>();
        let renamed = ListArray::try_new(Arc::clone(field), list.offsets().clone(), Arc::clone(list.values()), list.nulls().cloned());
        return Ok(Arc::new(renamed.map_err(corrupt_arrow("a slice's lists"))?));
    }
    Err(wrong_type(name, array.data_type(), due))
}

#[cfg(test)]
mod tests;
