//! Sparse slices to batches.

use std::ops::Range;
use std::sync::Arc;

use arrow::compute;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use skytether_common::{Error, Result};

use super::check::{Limits, validate};
use super::pages::Pages;
use super::schema::{needs, sparse_schema};
use crate::batches::TableBatches;
use crate::guard::guarded;
use crate::layout::Layout;

/// A sparse slice, batch by batch. Values are decoded when their batch is requested, so that they are used while they
/// are in a core's cache.
///
/// In addition to the columns of the projection, it decodes only `nnz` where a list is wanted, and `block` where `idx`
/// is. Arrow's reader reads slices in another form than that of [`super::SparseSlicer`], with the same checks.
#[derive(Debug)]
pub struct SparseBatches {
    bytes: Bytes,
    limits: Limits,
    projection: Vec<usize>,
    schema: SchemaRef,
    rows: usize,
    values: usize,
    /// The rows that are wanted; others are passed over.
    wanted: Range<usize>,
    source: SparseSource,
}

#[derive(Debug)]
enum SparseSource {
    Pages(Box<Pages>),
    /// What Arrow's reader gave, and the next row of it.
    Whole(RecordBatch, usize),
    Ended,
}

impl SparseBatches {
    /// Opens a slice: batches with the columns `projection` (numbers in [`sparse_schema`], see
    /// [`super::column`]) in that order, of at most `rows` rows and at most `values` values in their lists, but
    /// for single rows that have more.
    ///
    /// # Errors
    /// `Corrupt` where the bytes are no sparse slice of this matrix: counts that disagree, cell, gene or block numbers
    /// out of range or order. What concerns the lists is found when their batch is made. `Invalid` for a layout that is
    /// not sparse or a column that does not exist.
    pub fn open(bytes: Bytes, layout: &Layout, projection: &[usize], rows: usize, values: usize) -> Result<Self> {
        let limits = Limits::of(layout)?;
        let schema = sparse_schema(limits.value).project(projection).map_err(|e| Error::invalid("sparse slices have seven columns").with_source(e))?;
        let source = guarded("a sparse slice", || match Pages::open(&bytes, limits, projection)? {
            Some(pages) => Ok(SparseSource::Pages(Box::new(pages))),
            None => Ok(SparseSource::Whole(decode_slow(&bytes, limits, projection)?, 0)),
        })?;
        Ok(Self { bytes, limits, projection: projection.to_vec(), schema: Arc::new(schema), rows: rows.max(1), values, wanted: 0..usize::MAX, source })
    }

    /// The same slice, but only its rows `wanted`. Of a row that is passed over nothing is checked but its numbers.
    #[must_use]
    pub fn within(self, wanted: Range<usize>) -> Self {
        Self { wanted, ..self }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if let SparseSource::Pages(pages) = &mut self.source {
            let row = pages.row().max(self.wanted.start);
            let rows = self.rows.min(self.wanted.end.saturating_sub(row));
            if pages.skip(row)?.is_some() {
                if pages.left() == 0 || rows == 0 {
                    return Ok(None);
                }
                if let Some(batch) = pages.next(&self.projection, &self.schema, rows, self.values)? {
                    return Ok(Some(batch));
                }
            }
            // The form is another after all. The rows so far were right; Arrow's reader gives the rest.
            self.source = SparseSource::Whole(guarded("a sparse slice", || decode_slow(&self.bytes, self.limits, &self.projection))?, row);
        }
        if let SparseSource::Whole(_, row) = &mut self.source {
            *row = self.wanted.start.max(*row);
        }
        Ok(match &mut self.source {
            SparseSource::Whole(batch, row) if *row < batch.num_rows().min(self.wanted.end) => {
                let part = batch.slice(*row, self.rows.min(batch.num_rows().min(self.wanted.end) - *row));
                *row += part.num_rows();
                Some(part)
            }
            _ => None,
        })
    }
}

impl Iterator for SparseBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch().transpose();
        if !matches!(batch, Some(Ok(_))) {
            self.source = SparseSource::Ended;
        }
        batch
    }
}

/// Decodes a sparse slice to one batch; see [`SparseBatches`].
///
/// # Errors
/// As [`SparseBatches::open`].
pub fn decode_sparse(bytes: &Bytes, layout: &Layout, projection: &[usize]) -> Result<RecordBatch> {
    let mut batches = SparseBatches::open(bytes.clone(), layout, projection, usize::MAX, usize::MAX)?;
    batches.next().unwrap_or_else(|| Ok(RecordBatch::new_empty(Arc::clone(&batches.schema))))
}

/// Rows that Arrow's reader gives at a time.
const SLOW_ROWS: usize = 1024;

/// The same through Arrow's reader.
fn decode_slow(bytes: &Bytes, limits: Limits, projection: &[usize]) -> Result<RecordBatch> {
    let schema = sparse_schema(limits.value);
    let mut wanted = projection.to_vec();
    wanted.extend(needs(projection));
    // In small steps, so that lists that unpack to too much are noticed on the way.
    let batches = TableBatches::open(bytes.clone().into(), &schema, &wanted, SLOW_ROWS, None)?.collect::<Result<Vec<_>>>()?;
    let wide = Arc::new(schema.project(&wanted).map_err(|e| Error::invalid("no such column").with_source(e))?);
    let batch = compute::concat_batches(&wide, &batches).map_err(|e| Error::corrupt("cannot join a slice's batches").with_source(e))?;
    validate(&batch, &wanted, limits)?;
    batch.project(&(0..projection.len()).collect::<Vec<_>>()).map_err(|e| Error::internal("cannot drop columns").with_source(e))
}

#[cfg(test)]
mod tests;
