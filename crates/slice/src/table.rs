//! Record batches of any schema to slices.
//!
//! How many rows fill a slice cannot be known before they are compressed. The slicer learns it: it writes what should fit, looks at the size, and tries again with
//! fewer rows (or more, if there are more) where it was off. What it learns serves the next slice, so that nearly all slices are written once.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::Array;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use skytether_common::{Error, Result};

use crate::stats::{SliceStats, column_stats};
use crate::{Encoded, SliceOptions};

/// A slice is closed when its rows take this many times the target in memory, however well they compress: bounds writers and readers.
const MAX_EXPANSION: usize = 32;
/// Batches below this many rows are joined with their neighbours.
const SMALL: usize = 4096;
/// Columns from which on a table is wide: with fewer, a megabyte has as much of each.
const MANY: usize = 128;
/// How many times the size of others slices of wide tables may have, so that each holds enough of a column: to open one takes as long as to decode some thousand values.
const WIDEST: usize = 16;
/// Bytes of a column in a slice from which on it pays to compress them in a wide table: to set up a decompressor takes readers as long as to unpack some thousand bytes.
const COMPRESSED: usize = 4 << 10;
/// Columns that compression makes less than this much smaller are stored as they are: readers gain more by not unpacking them.
const GAIN: f64 = 1.25;
/// Every so many slices all columns are compressed, to see which of them gain by it.
const LOOK_AGAIN: u64 = 32;
/// How often one slice is written anew to come closer to the target.
const TRIES: usize = 8;

/// Cuts batches of one schema into slices of whole rows.
///
/// Each slice is at most [`SliceOptions::target_bytes`] long where a row allows it, and of at most [`SliceOptions::max_rows`] rows; a larger row becomes a slice of its own.
///
/// Slices of wide tables are larger: twice the target for 256 columns, and so on up to 16 times for 2,048 and more, which is 8 KiB a column where the target is 1 MiB.
/// Smaller ones would be mostly footer and page headers, and take their time to be opened column by column. Of a table so wide that these alone exceed half of that, slices may take twice their fixed cost.
///
/// Besides the batch that was pushed last, rows of at most 32 targets (64 of wide tables) are held in memory.
#[derive(Debug)]
pub struct TableSlicer {
    schema: SchemaRef,
    options: SliceOptions,
    pending: Pending,
    /// Bytes that a slice takes whatever its rows; measured with the first slice.
    fixed: Option<usize>,
    /// Bytes that a row takes once written, by the last slice.
    per_row: Option<f64>,
    /// Columns that gain little by compression, by the first slice and every 32nd from there on.
    plain: HashSet<ColumnPath>,
    written: u64,
}

impl TableSlicer {
    /// A slicer for batches of `schema`.
    #[must_use]
    pub fn new(schema: SchemaRef, options: SliceOptions) -> Self {
        Self { schema, options, pending: Pending::default(), fixed: None, per_row: None, plain: HashSet::new(), written: 0 }
    }

    /// Adds rows; gives the slices that they complete.
    ///
    /// # Errors
    /// `Invalid` where the batch is not of the slicer's schema, or a column is of a type that Parquet cannot hold.
    pub fn push(&mut self, batch: &RecordBatch) -> Result<Vec<Encoded>> {
        let same = batch.num_columns() == self.schema.fields().len()
            && batch.columns().iter().zip(self.schema.fields()).all(|(column, field)| column.data_type() == field.data_type());
        if !same {
            return Err(Error::invalid(format!("a batch of {} does not fit a table of {}", batch.schema(), self.schema)));
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), batch.columns().to_vec())
            .map_err(|e| Error::invalid("a batch does not fit its table").because(e))?;
        self.pending.push(batch);
        let mut done = Vec::new();
        while let Some(encoded) = self.next(false)? {
            done.push(encoded);
        }
        Ok(done)
    }

    /// Bytes in memory of the rows that wait for their slice.
    #[must_use]
    pub fn held(&self) -> usize {
        self.pending.bytes()
    }

    /// Bytes in memory from which on waiting rows become a slice, however well they compress.
    #[must_use]
    pub fn most_held(&self) -> usize {
        self.options.target_bytes.saturating_mul(MAX_EXPANSION).max(self.target().saturating_mul(4))
    }

    /// The size that slices are meant to have: [`SliceOptions::target_bytes`], or more of wide tables.
    #[must_use]
    pub fn target(&self) -> usize {
        self.options.target_bytes.saturating_mul(times(self.schema.fields().len()))
    }

    /// The slices of the rows that are left; none where there were no rows.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn finish(mut self) -> Result<Vec<Encoded>> {
        self.flush()
    }

    /// The slices of the rows that wait, however small the last becomes, so that their memory is free again.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn flush(&mut self) -> Result<Vec<Encoded>> {
        let mut done = Vec::new();
        while let Some(encoded) = self.next(true)? {
            done.push(encoded);
        }
        Ok(done)
    }

    /// The next slice; `None` where more rows are needed to fill it or, at the end, none are left.
    fn next(&mut self, last: bool) -> Result<Option<Encoded>> {
        if self.pending.rows == 0 {
            return Ok(None);
        }
        let fixed = match self.fixed {
            Some(fixed) => fixed,
            None => {
                let fixed = self.write(&[self.pending.batches[0].slice(0, 0)])?.0.len();
                *self.fixed.insert(fixed)
            }
        };
        let target = self.target().max(fixed.saturating_mul(2));
        let most = self.pending.rows_within(self.most_held().max(target.saturating_mul(4))).clamp(1, self.options.most_rows() as usize);
        let room = target.saturating_sub(fixed) as f64;
        // A first guess from the size in memory; more rows than are there mean "not yet".
        let first = match self.per_row {
            Some(per_row) => (room * 0.97 / per_row) as usize,
            None => self.pending.rows_within(target.saturating_mul(2)),
        };
        let mut rows = first.clamp(1, most);
        // `most` counts only rows that are there: reaching it with more to come is no reason to close unless memory or row limits say so.
        let limited = most < self.pending.rows || most as u64 == self.options.most_rows();
        if !last && first >= self.pending.rows && !limited {
            return Ok(None);
        }

        if self.written.is_multiple_of(LOOK_AGAIN) {
            self.plain.clear();
        }
        let mut best: Option<(usize, Bytes, ParquetMetaData)> = None;
        let mut too_many = usize::MAX;
        for _ in 0..TRIES {
            let (bytes, footer) = self.write(&self.pending.first(rows))?;
            let per_row = (bytes.len().saturating_sub(fixed) as f64 / rows as f64).max(0.01);
            self.per_row = Some(per_row);
            if bytes.len() > target && rows > 1 {
                too_many = rows;
                let fitting = (room * 0.95 / per_row) as usize;
                rows = fitting.clamp(1, rows * 9 / 10).max(1);
                // Between what fitted and what did not, the middle.
                if let Some((fitted, ..)) = &best {
                    if rows <= *fitted {
                        rows = (fitted + too_many) / 2;
                    }
                    if rows <= *fitted || rows >= too_many {
                        break;
                    }
                }
                continue;
            }
            let size = bytes.len();
            best = Some((rows, bytes, footer));
            let more = ((room * 0.97 / per_row) as usize).min(most).min(too_many - 1);
            let full = size as f64 >= target as f64 * 0.85;
            if !full && !last && !limited && (room * 0.97 / per_row) as usize > self.pending.rows {
                return Ok(None);
            }
            // Close enough, or nothing more to take.
            if full || more <= rows || (more as f64) < rows as f64 * 1.1 {
                if !last && more <= rows && rows == self.pending.rows && !limited {
                    return Ok(None);
                }
                break;
            }
            rows = more;
        }
        // Nothing fitted within the tries: halve until something does.
        let (rows, bytes, footer) = match best {
            Some(best) => best,
            None => loop {
                rows = (rows / 2).max(1);
                let (bytes, footer) = self.write(&self.pending.first(rows))?;
                if bytes.len() <= target || rows == 1 {
                    break (rows, bytes, footer);
                }
            },
        };
        if self.written.is_multiple_of(LOOK_AGAIN) {
            self.plain = gaining_little(&footer);
        }
        self.written += 1;
        let taken = self.pending.take(rows);
        let columns = self.schema.fields().iter().enumerate().map(|(i, f)| column_stats(&taken, i, f.data_type())).collect::<Result<_>>()?;
        Ok(Some(Encoded { bytes, stats: SliceStats { rows: rows as u64, columns } }))
    }

    fn write(&self, batches: &[RecordBatch]) -> Result<(Bytes, ParquetMetaData)> {
        let refused = |e: parquet::errors::ParquetError| Error::invalid("these columns cannot be stored as Parquet").because(e);
        let level = ZstdLevel::try_new(self.options.zstd_level).map_err(|e| Error::invalid("no such compression level").because(e))?;
        let columns = self.schema.fields().len();
        let tiny = columns > MANY && batches.iter().map(memory).sum::<usize>() / columns < COMPRESSED;
        let mut properties = WriterProperties::builder()
            .set_created_by("skytether".into())
            .set_compression(if tiny { Compression::UNCOMPRESSED } else { Compression::ZSTD(level) })
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true)
            .set_max_row_group_row_count(None);
        for column in &self.plain {
            properties = properties.set_column_compression(column.clone(), Compression::UNCOMPRESSED);
        }
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, Arc::clone(&self.schema), Some(properties.build())).map_err(refused)?;
        for batch in batches {
            writer.write(batch).map_err(refused)?;
        }
        let footer = writer.close().map_err(refused)?;
        Ok((Bytes::from(bytes), footer))
    }
}

/// The compressed columns of a slice that are not worth it.
fn gaining_little(footer: &ParquetMetaData) -> HashSet<ColumnPath> {
    let columns = footer.row_groups().iter().flat_map(|group| group.columns());
    columns
        .filter(|c| c.compression() != Compression::UNCOMPRESSED && (c.uncompressed_size() as f64) < GAIN * c.compressed_size() as f64)
        .map(|c| c.column_path().clone())
        .collect()
}

/// How many times the usual size slices of tables with so many columns have.
fn times(columns: usize) -> usize {
    if columns > MANY { (columns / MANY).min(WIDEST) } else { 1 }
}

/// Rows that wait for their slice.
#[derive(Debug, Default)]
struct Pending {
    batches: Vec<RecordBatch>,
    /// Bytes per row of each batch in memory.
    weights: Vec<f64>,
    rows: usize,
}

impl Pending {
    fn push(&mut self, batch: RecordBatch) {
        if batch.num_rows() == 0 {
            return;
        }
        self.rows += batch.num_rows();
        self.weights.push((memory(&batch) as f64 / batch.num_rows() as f64).max(0.01));
        self.batches.push(batch);
        // Small neighbours of about the same size are joined, so that rows pushed one by one are copied a logarithmic number of times.
        while let [.., a, b] = self.batches.as_slice()
            && a.num_rows() <= 2 * b.num_rows()
            && a.num_rows() + b.num_rows() <= SMALL
        {
            // Dictionaries may be too large to be joined: they stay apart.
            let Ok(joined) = concat_batches(&a.schema(), [a, b]) else { break };
            self.batches.truncate(self.batches.len() - 2);
            self.weights.truncate(self.batches.len());
            self.weights.push((memory(&joined) as f64 / joined.num_rows() as f64).max(0.01));
            self.batches.push(joined);
        }
    }

    /// Bytes that all rows take in memory, about.
    fn bytes(&self) -> usize {
        self.batches.iter().zip(&self.weights).map(|(batch, weight)| (batch.num_rows() as f64 * weight) as usize).sum()
    }

    /// How many of the first rows take at most `bytes` in memory.
    fn rows_within(&self, bytes: usize) -> usize {
        let (mut left, mut rows) = (bytes as f64, 0);
        for (batch, weight) in self.batches.iter().zip(&self.weights) {
            let fit = ((left / weight) as usize).min(batch.num_rows());
            rows += fit;
            if fit < batch.num_rows() {
                break;
            }
            left -= fit as f64 * weight;
        }
        rows
    }

    /// The first `rows` rows, not copied.
    fn first(&self, mut rows: usize) -> Vec<RecordBatch> {
        let mut taken = Vec::new();
        for batch in &self.batches {
            if rows == 0 {
                break;
            }
            let n = rows.min(batch.num_rows());
            taken.push(batch.slice(0, n));
            rows -= n;
        }
        taken
    }

    fn take(&mut self, rows: usize) -> Vec<RecordBatch> {
        let taken = self.first(rows);
        let whole = taken.iter().zip(&self.batches).filter(|(t, b)| t.num_rows() == b.num_rows()).count();
        self.batches.drain(..whole);
        self.weights.drain(..whole);
        if let (Some(part), Some(rest)) = (taken.get(whole), self.batches.first_mut()) {
            *rest = rest.slice(part.num_rows(), rest.num_rows() - part.num_rows());
        }
        self.rows -= rows;
        taken
    }
}

/// About the bytes that the rows of `batch` take; shared buffers count only as far as they are used, where Arrow can tell.
fn memory(batch: &RecordBatch) -> usize {
    let of = |a: &Arc<dyn Array>| a.to_data().get_slice_memory_size().unwrap_or_else(|_| a.get_array_memory_size());
    batch.columns().iter().map(of).sum()
}

#[cfg(test)]
mod tests;
