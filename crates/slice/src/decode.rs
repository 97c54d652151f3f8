//! Any slice to batches.

use std::ops::Range;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use crate::batches::TableBatches;
use crate::guard::guarded;
use crate::layout::Layout;
use crate::pieces::Pieces;
use crate::sparse::SparseBatches;

/// Values that a batch of sparse rows has at most, but for single rows with more: with their cell numbers they fit a
/// core's second-level cache.
const SPARSE_VALUES: usize = 1 << 16;

/// A slice's batches; each is decoded when it is requested. After an error there are no more.
#[derive(Debug)]
pub enum Batches {
    /// Batches of a plain table.
    Table(Box<TableBatches>),
    /// Batches of a matrix.
    Sparse(Box<SparseBatches>),
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Batches::Table(batches) => batches.next(),
            Batches::Sparse(batches) => batches.next(),
        }
    }
}

/// Decodes a slice of a table with `schema` to batches of at most `batch_rows` rows, with the columns `projection` in
/// that order. Other columns are not read, so that `stored` may be [pieces](crate::Picked::verify) of a table's slice.
/// An empty projection gives batches without columns that have row counts. A slice without rows gives no batch.
///
/// # Errors
/// `Corrupt` where the bytes are no slice of this layout and schema (of its pages that is found batch by batch),
/// or the pieces not those of the columns; `Invalid` for a column number that the schema does not have, and for
/// pieces of a matrix's slice.
pub fn decode(stored: impl Into<Pieces>, layout: &Layout, schema: &SchemaRef, projection: &[usize], batch_rows: usize) -> Result<Batches> {
    let (stored, batch_rows) = (stored.into(), batch_rows.max(1));
    Ok(match layout {
        Layout::Table => Batches::Table(Box::new(guarded("a slice", || TableBatches::open(stored, schema, projection, batch_rows, None))?)),
        Layout::Sparse { .. } => {
            let bytes = stored.whole().ok_or_else(|| Error::invalid("a slice of a matrix is decoded from all of its bytes"))?.clone();
            Batches::Sparse(Box::new(SparseBatches::open(bytes, layout, projection, batch_rows, SPARSE_VALUES)?))
        }
    })
}

/// As [`decode`], for a matrix's slice, but only the rows `rows`. The lists of the rows before them are unpacked
/// without being kept or checked; those behind are not read.
///
/// # Errors
/// As there; `Invalid` also for a table's slice.
pub fn decode_range(
    stored: impl Into<Pieces>,
    layout: &Layout,
    schema: &SchemaRef,
    projection: &[usize],
    batch_rows: usize,
    rows: Range<usize>,
) -> Result<Batches> {
    Ok(match decode(stored, layout, schema, projection, batch_rows)? {
        Batches::Sparse(batches) => Batches::Sparse(Box::new(batches.within(rows))),
        Batches::Table(_) => return Err(Error::invalid("a range of rows is for a matrix's slice")),
    })
}

/// As [`decode`], for a table's slice, but only the rows at the ascending places `rows`. Other rows are skipped without
/// decoding, as far as their encoding allows it.
///
/// # Errors
/// As there; `Corrupt` where the slice does not have such rows.
pub fn decode_rows(stored: impl Into<Pieces>, schema: &SchemaRef, projection: &[usize], batch_rows: usize, rows: &[u32]) -> Result<Batches> {
    let stored = stored.into();
    Ok(Batches::Table(Box::new(guarded("a slice", || TableBatches::open(stored, schema, projection, batch_rows.max(1), Some(rows)))?)))
}
