//! Record batches of any schema to slices.
//!
//! How many rows fill a slice cannot be known before they are compressed. The slicer learns it: it writes what should
//! fit, looks at the size, and tries again with fewer rows (or more, if there are more) where it was off. What it
//! learns serves the next slice, so that nearly all slices are written once.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::Array;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Type, ZstdLevel};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use skytether_common::parallel::in_parallel;
use skytether_common::{Error, Result};

use crate::encoded::Encoded;
use crate::groups::Groups;
use crate::options::SliceOptions;
use crate::sections;
use crate::stats::{ColumnStats, SliceStats, column_stats};

/// A slice is closed when its rows take this many times the target in memory, however well they compress:
/// bounds writers and readers.
const MAX_EXPANSION: usize = 32;
/// The same of a stripe of several groups of columns, with all of them.
const MAX_STRIPE: usize = 32;
/// Batches below this many rows are joined with their neighbours.
const SMALL: usize = 4096;
/// Bytes of a column in a slice from which on it pays to compress them in a wide table: to set up a decompressor of
/// ZSTD takes readers as long as to unpack some ten thousand bytes.
const COMPRESSED: usize = 4 << 10;
/// Columns that compression makes less than this much smaller are stored as they are: readers gain more by not
/// unpacking them. So do numbers without a dictionary that makes them less than this much smaller: they are copied, and
/// not looked up one by one.
const GAIN: f64 = 1.25;
/// Stripes between two trials in which all columns get a dictionary and compression, to see which of them gain by it.
const LOOK_AGAIN: u64 = 32;
/// How often one slice is encoded again to come closer to the target.
const TRIES: usize = 8;

/// Cuts batches of one schema into slices of whole rows.
///
/// Each slice is at most [`SliceOptions::target_bytes`] long where a row allows it, and has at most
/// [`SliceOptions::max_rows`] rows. A row that is larger than the target becomes a slice of its own.
///
/// A stripe of a wide table becomes a slice for each group of columns ([`Groups`]), and the largest of them approaches
/// the target. Where a group's footer and page headers alone exceed half of that, slices may take twice their fixed
/// cost.
///
/// In addition to the last pushed batch, it holds rows of at most 32 targets in memory (also for wide tables), and the
/// slices that they become.
#[derive(Debug)]
pub struct TableSlicer {
    schema: SchemaRef,
    options: SliceOptions,
    groups: Groups,
    pending: Pending,
    /// Bytes that the largest slice of a stripe takes whatever its rows; measured with the first slice.
    fixed: Option<usize>,
    /// Bytes that a row takes once written in the largest slice of a stripe, by the last one.
    per_row: Option<f64>,
    /// Columns that gain little by compression, by the first stripe and every 32nd from there on.
    plain: Paths,
    /// Those that gain little by a dictionary, by the same stripes.
    bare: Paths,
    written: u64,
}

impl TableSlicer {
    /// A slicer for batches of `schema`.
    #[must_use]
    pub fn new(schema: SchemaRef, options: SliceOptions) -> Self {
        let groups = Groups::of(schema.fields().len());
        Self { schema, options, groups, pending: Pending::default(), fixed: None, per_row: None, plain: Paths::default(), bare: Paths::default(), written: 0 }
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
            .map_err(|e| Error::invalid("a batch does not fit its table").with_source(e))?;
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

    /// Bytes in memory from which on waiting rows become a stripe, however well they compress.
    #[must_use]
    pub fn most_held(&self) -> usize {
        self.options.target_bytes.saturating_mul(if self.groups.len() > 1 { MAX_STRIPE } else { MAX_EXPANSION })
    }

    /// The size that the slices of a stripe are meant to have together.
    #[must_use]
    pub fn target(&self) -> usize {
        self.options.target_bytes.saturating_mul(self.groups.len())
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
                let fixed = largest(&self.write(&[self.pending.batches[0].slice(0, 0)])?);
                *self.fixed.insert(fixed)
            }
        };
        let target = self.options.target_bytes.max(fixed.saturating_mul(2));
        let most = self.pending.rows_within(self.most_held().max(target.saturating_mul(4))).clamp(1, self.options.most_rows() as usize);
        let room = target.saturating_sub(fixed) as f64;
        // A first guess from the size in memory; more rows than are there mean "not yet".
        let first = match self.per_row {
            Some(per_row) => (room * 0.97 / per_row) as usize,
            None => self.pending.rows_within(target.saturating_mul(2).saturating_mul(self.groups.len())),
        };
        let mut rows = first.clamp(1, most);
        // `most` counts only rows that are there: reaching it with more to come is no reason to close unless
        // memory or row limits say so.
        let limited = most < self.pending.rows || most as u64 == self.options.most_rows();
        if !last && first >= self.pending.rows && !limited {
            return Ok(None);
        }

        if self.written.is_multiple_of(LOOK_AGAIN) {
            self.plain = Paths::default();
            self.bare = Paths::default();
            // What is left without a dictionary may gain by compression.
            self.bare = self.write(&self.pending.first(rows))?.into_iter().flat_map(|slice| slice.bare).collect();
        }
        let mut best: Option<(usize, Vec<Written>)> = None;
        let mut too_many = usize::MAX;
        for _ in 0..TRIES {
            let slices = self.write(&self.pending.first(rows))?;
            let size = largest(&slices);
            let per_row = (size.saturating_sub(fixed) as f64 / rows as f64).max(0.01);
            self.per_row = Some(per_row);
            if size > target && rows > 1 {
                too_many = rows;
                let fitting = (room * 0.95 / per_row) as usize;
                rows = fitting.clamp(1, rows * 9 / 10).max(1);
                // Between what fitted and what did not, the middle.
                if let Some((fitted, _)) = &best {
                    if rows <= *fitted {
                        rows = (fitted + too_many) / 2;
                    }
                    if rows <= *fitted || rows >= too_many {
                        break;
                    }
                }
                continue;
            }
            best = Some((rows, slices));
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
        let (rows, slices) = match best {
            Some(best) => best,
            None => loop {
                rows = (rows / 2).max(1);
                let slices = self.write(&self.pending.first(rows))?;
                if largest(&slices) <= target || rows == 1 {
                    break (rows, slices);
                }
            },
        };
        if self.written.is_multiple_of(LOOK_AGAIN) {
            self.plain = slices.iter().flat_map(|slice| slice.plain.iter().cloned()).collect();
        }
        self.written += 1;
        let taken = self.pending.take(rows);
        let stats = self.for_each_group(|group| -> Result<Vec<Option<ColumnStats>>> {
            self.groups.columns(group).map(|i| column_stats(&taken, i, self.schema.field(i).data_type())).collect()
        })?;
        let ends = slices.iter().map(|slice| slice.ends.as_deref()).collect::<Option<Vec<_>>>().map(|ends| ends.concat());
        let mut slices = slices.into_iter().map(|slice| slice.bytes);
        let bytes = slices.next().ok_or_else(|| Error::internal("a stripe has no slice"))?;
        Ok(Some(Encoded { bytes, more: slices.collect(), ends, stats: SliceStats { rows: rows as u64, columns: stats.into_iter().flatten().collect() } }))
    }

    /// A slice per group of columns, with all rows of `batches`.
    fn write(&self, batches: &[RecordBatch]) -> Result<Vec<Written>> {
        self.for_each_group(|group| {
            if self.groups.len() == 1 {
                return self.write_group(batches, &self.schema);
            }
            let columns: Vec<usize> = self.groups.columns(group).collect();
            let schema = self.groups.schema(&self.schema, group);
            let some = batches.iter().map(|batch| RecordBatch::try_new(Arc::clone(&schema), columns.iter().map(|&c| Arc::clone(batch.column(c))).collect()));
            let some =
                some.collect::<std::result::Result<Vec<_>, _>>().map_err(|e| Error::internal("columns of a batch do not fit its schema").with_source(e))?;
            self.write_group(&some, &schema)
        })
    }

    /// What `make` gives for each group of columns, in order. Many groups are made on all cores.
    fn for_each_group<T: Send>(&self, make: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        in_parallel(threads, (0..self.groups.len()).collect(), "encodes columns", make)
    }

    fn write_group(&self, batches: &[RecordBatch], schema: &SchemaRef) -> Result<Written> {
        let refused = |e: parquet::errors::ParquetError| Error::invalid("these columns cannot be stored as Parquet").with_source(e);
        let properties = WriterProperties::builder()
            .set_created_by("skytether".into())
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true)
            .set_max_row_group_row_count(None);
        // A wide table has little of each column in a slice.
        let tiny = self.groups.len() > 1 && batches.iter().map(memory).sum::<usize>() / schema.fields().len().max(1) < COMPRESSED;
        let properties = if tiny {
            properties.set_compression(Compression::UNCOMPRESSED)
        } else {
            let level = ZstdLevel::try_new(self.options.zstd_level).map_err(|e| Error::invalid("no such compression level").with_source(e))?;
            let mut properties = properties.set_compression(Compression::ZSTD(level));
            // Numbers gain little more by ZSTD, which takes several times as long to unpack, and to set up.
            for field in schema.fields().iter().filter(|f| f.data_type().is_primitive()) {
                properties = properties.set_column_compression(ColumnPath::new(vec![field.name().clone()]), Compression::LZ4_RAW);
            }
            for column in self.plain.of(schema) {
                properties = properties.set_column_compression(column.clone(), Compression::UNCOMPRESSED);
            }
            properties
        };
        let properties = self.bare.of(schema).fold(properties, |properties, column| properties.set_column_dictionary_enabled(column.clone(), false));
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, Arc::clone(schema), Some(properties.build())).map_err(refused)?;
        for batch in batches {
            writer.write(batch).map_err(refused)?;
        }
        let footer = writer.close().map_err(refused)?;
        Ok(Written {
            bytes: Bytes::from(bytes),
            ends: sections::ends(&footer, schema.fields().len()),
            plain: gaining_little(&footer),
            bare: without_dictionary(&footer),
        })
    }
}

/// Columns of Parquet by the columns of the table that they are of: a group of columns has to ask for its own only.
#[derive(Debug, Default)]
struct Paths(HashMap<String, Vec<ColumnPath>>);

impl Paths {
    /// Those of the columns of `schema`.
    fn of<'a>(&'a self, schema: &'a SchemaRef) -> impl Iterator<Item = &'a ColumnPath> {
        schema.fields().iter().filter_map(|field| self.0.get(field.name())).flatten()
    }
}

impl FromIterator<ColumnPath> for Paths {
    fn from_iter<T: IntoIterator<Item = ColumnPath>>(paths: T) -> Self {
        let mut all = Self::default();
        for path in paths {
            let root = path.parts().first().cloned().unwrap_or_default();
            all.0.entry(root).or_default().push(path);
        }
        all
    }
}

/// A slice, where its columns end, and those that did not gain by compression and by a dictionary.
struct Written {
    bytes: Bytes,
    ends: Option<Vec<u32>>,
    plain: Vec<ColumnPath>,
    bare: Vec<ColumnPath>,
}

fn gaining_little(footer: &ParquetMetaData) -> Vec<ColumnPath> {
    let columns = footer.row_groups().iter().flat_map(|group| group.columns());
    columns
        .filter(|c| c.compression() != Compression::UNCOMPRESSED && (c.uncompressed_size() as f64) < GAIN * c.compressed_size() as f64)
        .map(|c| c.column_path().clone())
        .collect()
}

/// Columns with values of a fixed width, such as numbers, that a dictionary made hardly smaller. Nulls count as values,
/// so a column with many nulls keeps it.
fn without_dictionary(footer: &ParquetMetaData) -> Vec<ColumnPath> {
    let columns = footer.row_groups().iter().flat_map(|group| group.columns());
    columns
        .filter(|c| {
            let width = match c.column_type() {
                Type::INT32 | Type::FLOAT => 4,
                Type::INT64 | Type::DOUBLE => 8,
                Type::FIXED_LEN_BYTE_ARRAY => i64::from(c.column_descr().type_length()),
                Type::INT96 | Type::BOOLEAN | Type::BYTE_ARRAY => return false,
            };
            c.dictionary_page_offset().is_some() && ((c.num_values() * width) as f64) < GAIN * c.uncompressed_size() as f64
        })
        .map(|c| c.column_path().clone())
        .collect()
}

fn largest(slices: &[Written]) -> usize {
    slices.iter().map(|slice| slice.bytes.len()).max().unwrap_or(0)
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
        // Small neighbours of about the same size are joined, so that rows pushed one by one are copied a
        // logarithmic number of times.
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

/// About the bytes of the rows of `batch`. Shared buffers count only as far as they are used, where Arrow knows that.
fn memory(batch: &RecordBatch) -> usize {
    let of = |a: &Arc<dyn Array>| a.to_data().get_slice_memory_size().unwrap_or_else(|_| a.get_array_memory_size());
    batch.columns().iter().map(of).sum()
}

#[cfg(test)]
mod tests;
