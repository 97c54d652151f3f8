//! The pages of a sparse slice in the one form that [`super::SparseSlicer`] writes: found, checked
//! and unpacked run by run.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, ListArray, PrimitiveArray, RecordBatchOptions, UInt32Array};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef, UInt16Type, UInt32Type};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use skytether_common::{Error, Result};

use super::check::{Known, Limits, check_flat, check_idx};
use super::footer;
use super::schema::{column, needs, sparse_schema};
use crate::delta::{Column, Stream};
use crate::guard::corrupt;
use crate::layout::ValueType;
use crate::options::MAX_ROWS;

/// Values that are skipped at a time: what they unpack to stays in a core's second-level cache.
const SKIPPED: usize = 1 << 15;

/// A slice of the known form: its short columns whole, its lists' pages as streams.
#[derive(Debug)]
pub(super) struct Pages {
    limits: Limits,
    rows: usize,
    /// The next row.
    row: usize,
    /// By column number; only the wanted ones.
    flat: [Option<ScalarBuffer<u32>>; 3],
    sums: [Option<ScalarBuffer<f64>>; 2],
    idx: Option<Stream<u32>>,
    val: Option<Values>,
    /// All columns, wanted or not.
    schema: SchemaRef,
    /// The last cell number that came.
    previous: Option<u32>,
}

/// The values' page, by type.
#[derive(Debug)]
enum Values {
    U16(Stream<u16>),
    U32(Stream<u32>),
    F32(Plain),
    F64(Plain),
}

/// A PLAIN page and how far it is read.
#[derive(Debug)]
struct Plain {
    page: Bytes,
    at: usize,
}

/// Unwraps a value of the known form, or returns that the form is another.
macro_rules! known {
    ($found:expr) => {
        match $found {
            Some(known) => known,
            None => return Ok(None),
        }
    };
}

impl Pages {
    /// Opens the pages that the columns `projection` need; `None` where the slice is of another form.
    ///
    /// # Errors
    /// `Corrupt` where it is of this form and wrong.
    pub(super) fn open(bytes: &Bytes, limits: Limits, projection: &[usize]) -> Result<Option<Self>> {
        let metadata = known!(footer::read(bytes, limits.value)?);
        let rows = known!(known_form(bytes, &metadata));
        let file = File { bytes: Arc::new(bytes.clone()), metadata: &metadata, rows };
        let mut wanted = needs(projection);
        wanted.extend_from_slice(projection);
        let wants = |c: usize| wanted.contains(&c);
        let mut pages = Self {
            limits,
            rows,
            row: 0,
            flat: [None, None, None],
            sums: [None, None],
            idx: None,
            val: None,
            schema: sparse_schema(limits.value),
            previous: None,
        };
        for c in [column::GENE, column::BLOCK, column::NNZ] {
            if wants(c) {
                let mut stream = known!(Stream::<u32>::open(known!(file.page(c, rows, Encoding::DELTA_BINARY_PACKED)?), rows)?);
                let values = known!(stream.take(rows)?);
                check_flat(c, values.max, limits)?;
                pages.flat[c] = Some(values.values.into());
            }
        }
        for c in [column::SUM, column::SUMSQ] {
            if wants(c) {
                let page = known!(file.page(c, rows, Encoding::PLAIN)?);
                pages.sums[c - column::SUM] = Some(Plain::open(page, rows, size_of::<f64>())?.take(rows, f64::from_le_bytes));
            }
        }
        if let Some(nnz) = &pages.flat[column::NNZ]
            && (wants(column::IDX) || wants(column::VAL))
        {
            let (total, levels) = totals(nnz, limits)?;
            if wants(column::IDX) {
                let page = known!(file.page(column::IDX, levels, Encoding::DELTA_BINARY_PACKED)?);
                pages.idx = Some(known!(Stream::open(page, total)?));
            }
            if wants(column::VAL) {
                let encoding = match limits.value {
                    ValueType::UInt16 | ValueType::UInt32 => Encoding::DELTA_BINARY_PACKED,
                    ValueType::Float32 | ValueType::Float64 => Encoding::PLAIN,
                };
                let page = known!(file.page(column::VAL, levels, encoding)?);
                pages.val = Some(match limits.value {
                    ValueType::UInt16 => Values::U16(known!(Stream::open(page, total)?)),
                    ValueType::UInt32 => Values::U32(known!(Stream::open(page, total)?)),
                    ValueType::Float32 => Values::F32(Plain::open(page, total, size_of::<f32>())?),
                    ValueType::Float64 => Values::F64(Plain::open(page, total, size_of::<f64>())?),
                });
            }
        }
        Ok(Some(pages))
    }

    /// The number of rows that came so far.
    pub(super) fn row(&self) -> usize {
        self.row
    }

    /// Rows left.
    pub(super) fn left(&self) -> usize {
        self.rows - self.row
    }

    /// Goes on with row `to`. The lists of rows before it are unpacked where that is the way to those behind, and not
    /// checked. `None` where a page turns out to be of another form.
    ///
    /// # Errors
    /// `Corrupt` where a page is too short.
    pub(super) fn skip(&mut self, to: usize) -> Result<Option<()>> {
        let to = to.min(self.rows);
        let Some(nnz) = self.flat[column::NNZ].as_ref().filter(|_| to > self.row) else {
            self.row = self.row.max(to);
            return Ok(Some(()));
        };
        let mut left: usize = nnz[self.row..to].iter().map(|&n| n as usize).sum();
        while left > 0 {
            let n = left.min(SKIPPED);
            if let Some(stream) = &mut self.idx {
                self.previous = known!(stream.take(n)?).values.last().copied().or(self.previous);
            }
            match &mut self.val {
                Some(Values::F32(plain)) => plain.at += n * size_of::<f32>(),
                Some(Values::F64(plain)) => plain.at += n * size_of::<f64>(),
                Some(values) => drop(known!(values.take(n)?)),
                None => {}
            }
            left -= n;
        }
        self.row = to;
        Ok(Some(()))
    }

    /// The next rows: at most `rows` of them, with at most `values` values but for a single row that has more.
    /// `None` where a page turns out to be of another form.
    ///
    /// # Errors
    /// `Corrupt` where the rows break a rule of their matrix.
    pub(super) fn next(&mut self, projection: &[usize], schema: &SchemaRef, rows: usize, values: usize) -> Result<Option<RecordBatch>> {
        let from = self.row;
        let mut to = from.saturating_add(rows.max(1)).min(self.rows);
        let lists = self.idx.is_some() || self.val.is_some();
        let offsets = match &self.flat[column::NNZ] {
            Some(nnz) if lists => {
                let offsets = offsets(&nnz[from..to], values)?;
                to = from + offsets.len() - 1;
                offsets
            }
            _ => OffsetBuffer::new_empty(),
        };
        let total = offsets.last().map_or(0, |&end| end as usize);
        let (mut idx, mut val) = (None, None);
        if let Some(stream) = &mut self.idx {
            let Column { values, descents, max } = known!(stream.take(total)?);
            let previous = self.previous;
            self.previous = values.last().copied().or(previous);
            if let Some(block) = &self.flat[column::BLOCK] {
                check_idx(&values, &offsets, &block[from..to], Known { max, descents, previous }, self.limits)?;
            }
            idx = Some(Arc::new(UInt32Array::new(values.into(), None)) as ArrayRef);
        }
        if let Some(values) = &mut self.val {
            val = Some(known!(values.take(total)?));
        }
        self.row = to;
        let list = |c: usize, values: &Option<ArrayRef>| -> Result<ArrayRef> {
            let (DataType::List(field), Some(values)) = (self.schema.field(c).data_type(), values) else {
                return Err(Error::internal(format!("list column {c} was not decoded")));
            };
            let list = ListArray::try_new(Arc::clone(field), offsets.clone(), Arc::clone(values), None);
            Ok(Arc::new(list.map_err(|e| Error::corrupt("lists do not fit their values").with_source(e))?))
        };
        let missing = |c: usize| Error::internal(format!("column {c} was not decoded"));
        let columns = projection
            .iter()
            .map(|&c| match c {
                column::IDX => list(c, &idx),
                column::VAL => list(c, &val),
                column::SUM | column::SUMSQ => {
                    let sums = self.sums[c - column::SUM].as_ref().ok_or_else(|| missing(c))?;
                    Ok(Arc::new(Float64Array::new(sums.slice(from, to - from), None)) as ArrayRef)
                }
                _ => {
                    let flat = self.flat[c].as_ref().ok_or_else(|| missing(c))?;
                    Ok(Arc::new(UInt32Array::new(flat.slice(from, to - from), None)) as ArrayRef)
                }
            })
            .collect::<Result<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(to - from));
        RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
            .map(Some)
            .map_err(|e| Error::internal("columns do not fit together").with_source(e))
    }
}

/// The number of rows, where the rest of the footer is that of the known form.
fn known_form(bytes: &Bytes, metadata: &ParquetMetaData) -> Option<usize> {
    let [group] = metadata.row_groups() else { return None };
    let rows = usize::try_from(group.num_rows()).ok()?;
    let known = rows > 0
        && rows as u64 <= MAX_ROWS
        && metadata.file_metadata().num_rows() == group.num_rows()
        && group.columns().len() == metadata.file_metadata().schema_descr().num_columns()
        && group.columns().iter().all(|c| {
            let (offset, len) = (c.data_page_offset(), c.compressed_size());
            c.compression() == Compression::UNCOMPRESSED
                && c.dictionary_page_offset().is_none()
                && offset >= 0
                && len >= 0
                && (offset as u64).checked_add(len as u64).is_some_and(|end| end <= bytes.len() as u64)
        });
    known.then_some(rows)
}

/// A file of the known form.
struct File<'a> {
    bytes: Arc<Bytes>,
    metadata: &'a ParquetMetaData,
    rows: usize,
}

impl File<'_> {
    /// The values of column `c`'s only page, which has `levels` levels; `None` where pages or
    /// encoding are of another form.
    fn page(&self, c: usize, levels: usize, encoding: Encoding) -> Result<Option<Bytes>> {
        let what = corrupt("a page of a sparse slice");
        let mut pages = SerializedPageReader::new(Arc::clone(&self.bytes), self.metadata.row_group(0).column(c), self.rows, None).map_err(&what)?;
        let (first, second) = (pages.get_next_page().map_err(&what)?, pages.get_next_page().map_err(&what)?);
        let (Some(Page::DataPageV2 { buf, num_values, encoding: found, num_rows, def_levels_byte_len, rep_levels_byte_len, .. }), None) = (first, second)
        else {
            return Ok(None);
        };
        if found != encoding {
            return Ok(None);
        }
        if num_rows as usize != self.rows || num_values as usize != levels {
            return Err(Error::corrupt(format!(
                "column {c} of a sparse slice has {num_rows} rows and {num_values} entries where {} and {levels} are due",
                self.rows
            )));
        }
        let skip = def_levels_byte_len as usize + rep_levels_byte_len as usize;
        if skip > buf.len() {
            return Err(Error::corrupt(format!("column {c} of a sparse slice is shorter than its levels")));
        }
        Ok(Some(buf.slice(skip..)))
    }
}

impl Values {
    fn take(&mut self, n: usize) -> Result<Option<ArrayRef>> {
        Ok(Some(match self {
            Values::U16(stream) => Arc::new(PrimitiveArray::<UInt16Type>::new(known!(stream.take(n)?).values.into(), None)),
            Values::U32(stream) => Arc::new(PrimitiveArray::<UInt32Type>::new(known!(stream.take(n)?).values.into(), None)),
            Values::F32(plain) => Arc::new(PrimitiveArray::<Float32Type>::new(plain.take(n, f32::from_le_bytes), None)),
            Values::F64(plain) => Arc::new(PrimitiveArray::<Float64Type>::new(plain.take(n, f64::from_le_bytes), None)),
        }))
    }
}

impl Plain {
    fn open(page: Bytes, n: usize, width: usize) -> Result<Self> {
        if n.checked_mul(width) != Some(page.len()) {
            return Err(Error::corrupt(format!("a page of {} bytes does not hold {n} values of {width}", page.len())));
        }
        Ok(Self { page, at: 0 })
    }

    /// The next `n` values, or as many as there are.
    fn take<T: arrow::datatypes::ArrowNativeType, const N: usize>(&mut self, n: usize, from: fn([u8; N]) -> T) -> ScalarBuffer<T> {
        let (values, _) = self.page[self.at..].as_chunks::<N>();
        let values = &values[..n.min(values.len())];
        self.at += values.len() * N;
        ScalarBuffer::from(values.iter().map(|&v| from(v)).collect::<Vec<T>>())
    }
}

/// The values of all lists, and the entries in their columns' pages, where an empty list takes one.
fn totals(nnz: &[u32], limits: Limits) -> Result<(usize, usize)> {
    if let Some(n) = nnz.iter().find(|&&n| n > limits.block) {
        return Err(Error::corrupt(format!("a row of {n} values in a block of {} cells", limits.block)));
    }
    let (total, levels) = nnz.iter().fold((0u64, 0u64), |(total, levels), &n| (total + u64::from(n), levels + u64::from(n.max(1))));
    if total > i32::MAX as u64 {
        return Err(Error::corrupt(format!("the lists of a sparse slice hold more than {} values", i32::MAX)));
    }
    Ok((total as usize, levels as usize))
}

/// Where the lists of the first rows begin and end, from their lengths: of as many rows as have at most `values`
/// values, but of one at least.
fn offsets(nnz: &[u32], values: usize) -> Result<OffsetBuffer<i32>> {
    let mut offsets = vec![0i32];
    let mut end = 0u64;
    for &n in nnz {
        end += u64::from(n);
        if end > values as u64 && offsets.len() > 1 {
            break;
        }
        offsets.push(i32::try_from(end).map_err(|_| Error::internal("lists were not counted"))?);
    }
    Ok(OffsetBuffer::new(ScalarBuffer::from(offsets)))
}
