//! Sparse slices to batches.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, PrimitiveArray, RecordBatchOptions, UInt32Array};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::compute;
use arrow::datatypes::{DataType, Float32Type, Float64Type, SchemaRef, UInt16Type, UInt32Type};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ArrowSchemaConverter;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::SchemaDescriptor;
use skytether_common::{Error, Result};

use super::{column, sparse_schema};
use crate::MAX_ROWS;
use crate::delta::{self, Column, Decoded};
use crate::guard::{corrupt, guarded};
use crate::layout::{Layout, ValueType};
use crate::recycle;

/// A matrix's limits, which its slices are held against.
#[derive(Debug, Clone, Copy)]
struct Limits {
    cells: u32,
    genes: u32,
    block: u32,
    value: ValueType,
}

impl Limits {
    fn of(layout: &Layout) -> Result<Self> {
        match *layout {
            Layout::Sparse { n_cells, n_genes, block, value } if block > 0 && n_cells <= i32::MAX as u32 => {
                Ok(Self { cells: n_cells, genes: n_genes, block, value })
            }
            Layout::Sparse { n_cells, block, .. } => Err(Error::unsupported(format!(
                "a matrix of {n_cells} cells in blocks of {block}: at most {} cells in blocks of at least 1 are supported",
                i32::MAX
            ))),
            Layout::Table => Err(Error::invalid("a slice of a plain table was read as a sparse one")),
        }
    }
}

/// What [`decode_fast`] found.
enum Fast {
    Batch(RecordBatch),
    /// Valid, as far as it was read, but not in the form that the fast path knows.
    Foreign,
}

/// Decodes a sparse slice to one batch with the columns `projection` (numbers in [`sparse_schema`], see [`column`]) in that order.
///
/// Besides the columns of the projection, only `nnz` is decoded where a list is wanted, and `block` where `idx` is. Slices in another form than
/// [`super::SparseSlicer`] writes are read by Arrow's reader, with the same checks.
///
/// # Errors
/// `Corrupt` where the bytes are no sparse slice of this matrix: counts that disagree, cell, gene or block numbers out of range or order.
/// `Invalid` for a layout that is not sparse or a column that does not exist.
pub fn decode_sparse(bytes: &Bytes, layout: &Layout, projection: &[usize]) -> Result<RecordBatch> {
    let limits = Limits::of(layout)?;
    guarded("a sparse slice", || match decode_fast(bytes, limits, projection)? {
        Fast::Batch(batch) => Ok(batch),
        Fast::Foreign => decode_slow(bytes, limits, projection),
    })
}

/// The same through Arrow's reader.
fn decode_slow(bytes: &Bytes, limits: Limits, projection: &[usize]) -> Result<RecordBatch> {
    let schema = sparse_schema(limits.value);
    let mut wanted = projection.to_vec();
    wanted.extend(needs(projection));
    let batches = crate::decode::read_table(bytes.clone(), &schema, &wanted, MAX_ROWS as usize)?;
    let wide = Arc::new(schema.project(&wanted).map_err(|e| Error::invalid("no such column").because(e))?);
    let batch = compute::concat_batches(&wide, &batches).map_err(|e| Error::corrupt("cannot join a slice's batches").because(e))?;
    validate(&batch, &wanted, limits)?;
    batch.project(&(0..projection.len()).collect::<Vec<_>>()).map_err(|e| Error::internal("cannot drop columns").because(e))
}

/// The columns that validation needs and the projection lacks.
fn needs(projection: &[usize]) -> Vec<usize> {
    let lists = projection.iter().any(|&c| c == column::IDX || c == column::VAL);
    let idx = projection.contains(&column::IDX);
    let mut needs = Vec::new();
    if lists && !projection.contains(&column::NNZ) {
        needs.push(column::NNZ);
    }
    if idx && !projection.contains(&column::BLOCK) {
        needs.push(column::BLOCK);
    }
    needs
}

/// The Parquet schema of each value type.
static SCHEMAS: LazyLock<Vec<(ValueType, Option<SchemaDescriptor>)>> = LazyLock::new(|| {
    [ValueType::UInt16, ValueType::UInt32, ValueType::Float32, ValueType::Float64]
        .map(|v| (v, ArrowSchemaConverter::new().convert(&sparse_schema(v)).ok()))
        .into()
});

fn decode_fast(bytes: &Bytes, limits: Limits, projection: &[usize]) -> Result<Fast> {
    let schema = sparse_schema(limits.value);
    let projected = Arc::new(schema.project(projection).map_err(|e| Error::invalid("sparse slices have seven columns").because(e))?);
    let metadata = ParquetMetaDataReader::new().parse_and_finish(bytes).map_err(corrupt("a sparse slice's footer"))?;
    let Some(slice) = Slice::open(bytes, &metadata, limits) else { return Ok(Fast::Foreign) };
    slice.batch(projection, projected)
}

/// A slice of the known form, page by page.
struct Slice<'a> {
    bytes: Arc<Bytes>,
    metadata: &'a ParquetMetaData,
    limits: Limits,
    rows: usize,
}

/// Unpacks a [`Decoded`] or leaves the fast path.
macro_rules! known {
    ($decoded:expr) => {
        match $decoded {
            Some(known) => known,
            None => return Ok(Fast::Foreign),
        }
    };
}

impl<'a> Slice<'a> {
    /// `None` where the footer is of another form.
    fn open(bytes: &Bytes, metadata: &'a ParquetMetaData, limits: Limits) -> Option<Self> {
        let expected = SCHEMAS.iter().find(|(v, _)| *v == limits.value)?.1.as_ref()?;
        let [group] = metadata.row_groups() else { return None };
        let rows = usize::try_from(group.num_rows()).ok()?;
        let known = rows > 0
            && rows as u64 <= MAX_ROWS
            && metadata.file_metadata().num_rows() == group.num_rows()
            && metadata.file_metadata().schema_descr().root_schema() == expected.root_schema()
            && group.columns().len() == expected.num_columns()
            && group.columns().iter().all(|c| {
                let (offset, len) = (c.data_page_offset(), c.compressed_size());
                c.compression() == Compression::UNCOMPRESSED
                    && c.dictionary_page_offset().is_none()
                    && offset >= 0
                    && len >= 0
                    && (offset as u64).checked_add(len as u64).is_some_and(|end| end <= bytes.len() as u64)
            });
        known.then(|| Self { bytes: Arc::new(bytes.clone()), metadata, limits, rows })
    }

    fn batch(&self, projection: &[usize], schema: SchemaRef) -> Result<Fast> {
        let (mut nnz, mut block, mut idx) = (None, None, None);
        let mut columns: Vec<Option<ArrayRef>> = vec![None; column::SUMSQ + 1];
        let mut wanted = needs(projection);
        wanted.extend_from_slice(projection);
        // Column order puts what others need first.
        wanted.sort_unstable();
        wanted.dedup();
        for c in wanted {
            let array: ArrayRef = match c {
                column::GENE | column::BLOCK | column::NNZ => {
                    let column = known!(self.flat(c)?);
                    let values = recycle::buffer(column.values);
                    self.check_flat(c, column.max)?;
                    match c {
                        column::BLOCK => block = Some(values.clone()),
                        column::NNZ => nnz = Some(Offsets::new(&values)?),
                        _ => {}
                    }
                    Arc::new(UInt32Array::new(values, None))
                }
                column::IDX => {
                    let offsets = nnz.as_ref().ok_or_else(|| Error::internal("nnz was not decoded"))?;
                    let page = known!(self.page(c, offsets.levels, Encoding::DELTA_BINARY_PACKED)?);
                    let decoded = known!(values(delta::decode::<u32>(&page, offsets.total)?));
                    let array = self.list(c, offsets, Arc::new(UInt32Array::new(recycle::buffer(decoded.values), None)))?;
                    idx = Some((Arc::clone(&array), decoded.max, decoded.descents));
                    array
                }
                column::VAL => {
                    let offsets = nnz.as_ref().ok_or_else(|| Error::internal("nnz was not decoded"))?;
                    let list = known!(self.values(offsets)?);
                    self.list(c, offsets, list)?
                }
                _ => {
                    let page = known!(self.page(c, self.rows, Encoding::PLAIN)?);
                    Arc::new(Float64Array::new(plain(&page, self.rows, f64::from_le_bytes)?, None))
                }
            };
            columns[c] = Some(array);
        }
        if let (Some((list, max, descents)), Some(offsets), Some(block)) = (&idx, &nnz, &block) {
            check_idx(list.as_list::<i32>().values().as_primitive::<UInt32Type>().values(), &offsets.offsets, block, *max, *descents, self.limits)?;
        }
        let columns = projection.iter().map(|&c| columns[c].clone().ok_or_else(|| Error::internal("a column was not decoded"))).collect::<Result<_>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let batch = RecordBatch::try_new_with_options(schema, columns, &options).map_err(|e| Error::internal("columns do not fit together").because(e))?;
        Ok(Fast::Batch(batch))
    }

    /// The values of column `c`'s only page, which has `levels` levels; `None` where pages or encoding are of another form.
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

    fn flat(&self, c: usize) -> Result<Option<Column<u32>>> {
        match self.page(c, self.rows, Encoding::DELTA_BINARY_PACKED)? {
            Some(page) => Ok(values(delta::decode::<u32>(&page, self.rows)?)),
            None => Ok(None),
        }
    }

    fn values(&self, offsets: &Offsets) -> Result<Option<ArrayRef>> {
        let (levels, total) = (offsets.levels, offsets.total);
        let encoding = match self.limits.value {
            ValueType::UInt16 | ValueType::UInt32 => Encoding::DELTA_BINARY_PACKED,
            ValueType::Float32 | ValueType::Float64 => Encoding::PLAIN,
        };
        let Some(page) = self.page(column::VAL, levels, encoding)? else { return Ok(None) };
        Ok(match self.limits.value {
            ValueType::UInt16 => {
                values(delta::decode::<u16>(&page, total)?).map(|c| Arc::new(PrimitiveArray::<UInt16Type>::new(recycle::buffer(c.values), None)) as ArrayRef)
            }
            ValueType::UInt32 => {
                values(delta::decode::<u32>(&page, total)?).map(|c| Arc::new(PrimitiveArray::<UInt32Type>::new(recycle::buffer(c.values), None)) as ArrayRef)
            }
            ValueType::Float32 => Some(Arc::new(PrimitiveArray::<Float32Type>::new(plain(&page, total, f32::from_le_bytes)?, None))),
            ValueType::Float64 => Some(Arc::new(PrimitiveArray::<Float64Type>::new(plain(&page, total, f64::from_le_bytes)?, None))),
        })
    }

    fn list(&self, c: usize, offsets: &Offsets, values: ArrayRef) -> Result<ArrayRef> {
        let schema = sparse_schema(self.limits.value);
        let DataType::List(field) = schema.field(c).data_type() else {
            return Err(Error::internal(format!("column {c} is no list")));
        };
        let list = ListArray::try_new(Arc::clone(field), offsets.offsets.clone(), values, None);
        Ok(Arc::new(list.map_err(|e| Error::corrupt("lists do not fit their values").because(e))?))
    }

    fn check_flat(&self, c: usize, max: u32) -> Result<()> {
        check_flat(c, max, self.limits)
    }
}

fn values<T>(decoded: Decoded<T>) -> Option<Column<T>> {
    match decoded {
        Decoded::Values(column) => Some(column),
        Decoded::Foreign => None,
    }
}

fn plain<T: arrow::datatypes::ArrowNativeType, const N: usize>(page: &[u8], n: usize, from: fn([u8; N]) -> T) -> Result<ScalarBuffer<T>> {
    let (values, rest) = page.as_chunks::<N>();
    if values.len() != n || !rest.is_empty() {
        return Err(Error::corrupt(format!("a page of {} bytes does not hold {n} values of {N}", page.len())));
    }
    Ok(ScalarBuffer::from(values.iter().map(|&v| from(v)).collect::<Vec<T>>()))
}

/// Where each row's list begins, from the lists' lengths.
struct Offsets {
    offsets: OffsetBuffer<i32>,
    total: usize,
    /// Entries in a list column's page: an empty list takes one.
    levels: usize,
}

impl Offsets {
    fn new(nnz: &[u32]) -> Result<Self> {
        let mut offsets = Vec::with_capacity(nnz.len() + 1);
        offsets.push(0);
        let (mut total, mut levels) = (0u64, 0u64);
        for &n in nnz {
            total += u64::from(n);
            levels += u64::from(n.max(1));
            offsets.push(i32::try_from(total).map_err(|_| Error::corrupt(format!("the lists of a sparse slice hold more than {} values", i32::MAX)))?);
        }
        Ok(Self { offsets: OffsetBuffer::new(ScalarBuffer::from(offsets)), total: total as usize, levels: levels as usize })
    }
}

fn check_flat(c: usize, max: u32, limits: Limits) -> Result<()> {
    let blocks = limits.cells.div_ceil(limits.block);
    match c {
        column::GENE if max >= limits.genes => Err(Error::corrupt(format!("gene {max} of a matrix of {} genes", limits.genes))),
        column::BLOCK if max >= blocks => Err(Error::corrupt(format!("block {max} of a matrix of {blocks} blocks"))),
        _ => Ok(()),
    }
}

/// Cell numbers are in range, strictly ascending within each row, and in their row's block.
fn check_idx(idx: &[u32], offsets: &[i32], block: &[u32], max: u32, descents: usize, limits: Limits) -> Result<()> {
    if max >= limits.cells && !idx.is_empty() {
        return Err(Error::corrupt(format!("cell {max} of a matrix of {} cells", limits.cells)));
    }
    // All descents are at the beginnings of rows if there are as many there as there are in all.
    let mut between = 0;
    for (ends, &b) in offsets.windows(2).zip(block) {
        let (start, end) = (ends[0] as usize, ends[1] as usize);
        if start == end {
            continue;
        }
        if idx[start] / limits.block != b || idx[end - 1] / limits.block != b {
            return Err(Error::corrupt(format!("cells {} to {} are not of block {b}", idx[start], idx[end - 1])));
        }
        between += usize::from(start > 0 && idx[start] <= idx[start - 1]);
    }
    if between != descents {
        return Err(Error::corrupt("the cell numbers of a row are not strictly ascending"));
    }
    Ok(())
}

/// The checks of the fast path for a batch that came another way.
fn validate(batch: &RecordBatch, columns: &[usize], limits: Limits) -> Result<()> {
    let find = |c: usize| columns.iter().position(|&x| x == c).map(|i| batch.column(i));
    for c in [column::GENE, column::BLOCK] {
        if let Some(max) = find(c).and_then(|a| compute::max(a.as_primitive::<UInt32Type>())) {
            check_flat(c, max, limits)?;
        }
    }
    let Some(nnz) = find(column::NNZ).map(|a| a.as_primitive::<UInt32Type>()) else { return Ok(()) };
    for list in [column::IDX, column::VAL].into_iter().filter_map(find) {
        if list.as_list::<i32>().offsets().lengths().zip(nnz.values()).any(|(len, &n)| len != n as usize) {
            return Err(Error::corrupt("nnz disagrees with the lists of a sparse slice"));
        }
    }
    if let (Some(list), Some(block)) = (find(column::IDX), find(column::BLOCK)) {
        let list = list.as_list::<i32>();
        let (first, last) = (list.offsets()[0], list.offsets()[list.len()]);
        let idx = list.values().as_primitive::<UInt32Type>().values().slice(first as usize, (last - first) as usize);
        let offsets: Vec<i32> = list.offsets().iter().map(|o| o - first).collect();
        let max = idx.iter().fold(0, |a, &b| a.max(b));
        let descents = idx.windows(2).filter(|w| w[1] <= w[0]).count();
        check_idx(&idx, &offsets, block.as_primitive::<UInt32Type>().values(), max, descents, limits)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
