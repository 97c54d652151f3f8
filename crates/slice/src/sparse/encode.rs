//! Encodes rows as sparse slices.
//!
//! A slice is closed before the row that would make it too large. For that the encoder tracks the exact size of the
//! packed columns while rows come in (`size`). The written bytes match that count, so no row is encoded twice. It is
//! also closed where its block ends, once it is large enough.

mod size;

use std::sync::Arc;

use bytes::Bytes;
use parquet::arrow::ArrowSchemaConverter;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{DataType as ParquetType, DoubleType, FloatType, Int32Type};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, TypePtr};
use skytether_common::{Error, Result, Span};

use self::size::Size;
use super::schema::{Values, column, sparse_schema};
use crate::encoded::Encoded;
use crate::layout::{BLOCK, ValueType};
use crate::options::SliceOptions;
use crate::stats::{ColumnStats, SliceStats, f64_bounds};

/// The most values in a slice, whatever they pack to: bounds the memory of writer and readers (about
/// 12 and 8 bytes a value).
const MAX_VALUES: usize = 1 << 21;

/// The end of a block of cells closes a slice that has at least this part of its target size, 64 KiB of 1 MiB. Smaller
/// ones go on, so that matrices of few genes do not become a slice per block.
const LEAST_OF_BLOCK: usize = 16;

/// Cuts the rows of one matrix into slices.
///
/// Rows come in ascending order of (block, gene), every gene of every block that the partition holds, with an empty row
/// where a gene has no value in a block.
#[derive(Debug)]
pub struct SparseSlicer {
    span: Span,
    n_genes: u32,
    value: ValueType,
    options: SliceOptions,
    last: Option<(u32, u32)>,
    rows: Rows,
    size: Size,
    /// What every slice has in common; made with the first.
    form: Option<Form>,
}

#[derive(Debug)]
struct Form {
    schema: TypePtr,
    properties: Arc<WriterProperties>,
}

/// The rows of the slice that is being filled, column by column as Parquet wants them (unsigned numbers in
/// the bits of signed ones).
#[derive(Debug, Default)]
struct Rows {
    gene: Vec<i32>,
    block: Vec<i32>,
    nnz: Vec<i32>,
    idx: Vec<i32>,
    val: Stored,
    sum: Vec<f64>,
    sumsq: Vec<f64>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

#[derive(Debug)]
enum Stored {
    Integers(Vec<i32>),
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
}

impl Default for Stored {
    fn default() -> Self {
        Stored::Integers(Vec::new())
    }
}

impl Rows {
    fn clear(&mut self) {
        for column in [&mut self.gene, &mut self.block, &mut self.nnz, &mut self.idx] {
            column.clear();
        }
        match &mut self.val {
            Stored::Integers(v) => v.clear(),
            Stored::Floats(v) => v.clear(),
            Stored::Doubles(v) => v.clear(),
        }
        self.sum.clear();
        self.sumsq.clear();
        self.definition.clear();
        self.repetition.clear();
    }

    fn push(&mut self, gene: u32, block: u32, idx: &[u32], values: Values<'_>) {
        self.gene.push(gene as i32);
        self.block.push(block as i32);
        self.nnz.push(idx.len() as i32);
        self.idx.extend(idx.iter().map(|&i| i as i32));
        let (sum, sumsq) = match (&mut self.val, values) {
            (Stored::Integers(to), Values::U16(from)) => {
                to.extend(from.iter().map(|&v| i32::from(v)));
                moments(from.iter().map(|&v| f64::from(v)))
            }
            (Stored::Integers(to), Values::U32(from)) => {
                to.extend(from.iter().map(|&v| v as i32));
                moments(from.iter().map(|&v| f64::from(v)))
            }
            (Stored::Floats(to), Values::F32(from)) => {
                to.extend_from_slice(from);
                moments(from.iter().map(|&v| f64::from(v)))
            }
            (Stored::Doubles(to), Values::F64(from)) => {
                to.extend_from_slice(from);
                moments(from.iter().copied())
            }
            // `SparseSlicer::push` has compared the types.
            _ => (0.0, 0.0),
        };
        self.sum.push(sum);
        self.sumsq.push(sumsq);
        if idx.is_empty() {
            self.definition.push(0);
            self.repetition.push(0);
        } else {
            self.definition.resize(self.definition.len() + idx.len(), 1);
            self.repetition.push(0);
            self.repetition.resize(self.repetition.len() + idx.len() - 1, 1);
        }
    }
}

fn moments(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((0.0, 0.0), |(s, q), v| (s + v, q + v * v))
}

impl SparseSlicer {
    /// A slicer for a matrix of `n_cells` by `n_genes` whose values are all of type `value`.
    #[must_use]
    pub fn new(n_cells: u32, n_genes: u32, value: ValueType, options: SliceOptions) -> Self {
        Self::of_part(Span::whole(n_cells), n_genes, value, options)
    }

    /// As [`Self::new`], for the part of a matrix that has the cells of `span`.
    #[must_use]
    pub fn of_part(span: Span, n_genes: u32, value: ValueType, options: SliceOptions) -> Self {
        let val = match value {
            ValueType::UInt16 | ValueType::UInt32 => Stored::Integers(Vec::new()),
            ValueType::Float32 => Stored::Floats(Vec::new()),
            ValueType::Float64 => Stored::Doubles(Vec::new()),
        };
        let rows = Rows { val, ..Rows::default() };
        Self { span, n_genes, value, options, last: None, rows, size: Size::new(value), form: None }
    }

    /// Adds the row of `gene_id` in `block`: cell numbers (absolute, strictly ascending, within the block) and their
    /// values. Gives the slice that the row no longer fitted into, if there is one.
    ///
    /// # Errors
    /// `Invalid` where a number is out of range or order, the lengths differ, or the values are
    /// not of the slicer's type.
    pub fn push(&mut self, gene_id: u32, block: u32, idx: &[u32], values: Values<'_>) -> Result<Option<Encoded>> {
        self.check(gene_id, block, idx, values)?;
        let before = self.size.clone();
        // One gene is read from a slice of each block. A slice that has genes of two blocks may have any gene, and
        // would be read as well.
        let next_block = self.last.is_some_and(|(last, _)| last != block) && before.bytes() >= self.options.target_bytes / LEAST_OF_BLOCK;
        self.size.add(gene_id, block, idx, values);
        let full = next_block
            || self.size.bytes() > self.options.target_bytes
            || self.rows.idx.len() + idx.len() > MAX_VALUES
            || self.rows.gene.len() as u64 >= self.options.most_rows();
        let closed = if full && !self.rows.gene.is_empty() {
            self.size = before;
            let closed = self.close()?;
            self.size.add(gene_id, block, idx, values);
            Some(closed)
        } else {
            None
        };
        self.rows.push(gene_id, block, idx, values);
        self.last = Some((block, gene_id));
        Ok(closed)
    }

    /// The last slice; `None` where no row is left.
    ///
    /// # Errors
    /// `Internal` where Parquet refuses what was checked.
    pub fn finish(mut self) -> Result<Option<Encoded>> {
        if self.rows.gene.is_empty() { Ok(None) } else { self.close().map(Some) }
    }

    fn check(&self, gene: u32, block: u32, idx: &[u32], values: Values<'_>) -> Result<()> {
        let refuse = |why: String| Err(Error::invalid(format!("row of gene {gene}, block {block}: {why}")));
        if self.span.end > i32::MAX as u32 {
            return Err(Error::unsupported(format!("a matrix of {} cells: at most {} are supported", self.span.end, i32::MAX)));
        }
        if gene >= self.n_genes {
            return refuse(format!("the matrix has {} genes", self.n_genes));
        }
        let cells = self.span.of(block);
        if cells.is_empty() {
            return refuse(format!("the matrix has {} cells in blocks of {BLOCK}", self.span.end));
        }
        if self.last.is_some_and(|last| last >= (block, gene)) {
            return refuse("rows must come in ascending order of block and gene, each once".into());
        }
        if values.value_type() != self.value {
            return refuse(format!("values are {:?} but the matrix holds {:?}", values.value_type(), self.value));
        }
        if idx.len() != values.len() {
            return refuse(format!("{} cell numbers for {} values", idx.len(), values.len()));
        }
        // Compared without leaving early, so that it vectorises.
        if !idx.windows(2).fold(true, |ok, w| ok & (w[0] < w[1])) {
            return refuse("cell numbers must be strictly ascending".into());
        }
        if let (Some(&first), Some(&last)) = (idx.first(), idx.last())
            && (first < cells.start || last >= cells.end)
        {
            return refuse(format!("cell numbers {first} to {last} are not all in {}..{}", cells.start, cells.end));
        }
        Ok(())
    }

    fn close(&mut self) -> Result<Encoded> {
        let (schema, properties) = match &self.form {
            Some(form) => (Arc::clone(&form.schema), Arc::clone(&form.properties)),
            None => {
                let form = form(self.value)?;
                let both = (Arc::clone(&form.schema), Arc::clone(&form.properties));
                self.form = Some(form);
                both
            }
        };
        let bytes = write(&self.rows, schema, properties, self.size.bytes()).map_err(|e| Error::internal("cannot write a sparse slice").with_source(e))?;
        let stats = stats(&self.rows);
        self.rows.clear();
        self.size = Size::new(self.value);
        Ok(Encoded { bytes, more: Vec::new(), ends: None, stats })
    }
}

fn form(value: ValueType) -> Result<Form> {
    let schema =
        ArrowSchemaConverter::new().convert(&sparse_schema(value)).map_err(|e| Error::internal("the sparse schema has no Parquet form").with_source(e))?;
    let mut properties = WriterProperties::builder()
        .set_created_by("skytether".into())
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::UNCOMPRESSED)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        // One page per column, whatever its size.
        .set_data_page_size_limit(1 << 30)
        .set_data_page_row_count_limit(1 << 30)
        .set_write_batch_size(1 << 30)
        .set_max_row_group_row_count(None);
    for (i, column) in schema.columns().iter().enumerate() {
        let encoding = match i {
            column::SUM | column::SUMSQ => Encoding::PLAIN,
            column::VAL if matches!(value, ValueType::Float32 | ValueType::Float64) => Encoding::PLAIN,
            _ => Encoding::DELTA_BINARY_PACKED,
        };
        properties = properties.set_column_encoding(ColumnPath::from(column.path().parts().to_vec()), encoding);
    }
    Ok(Form { schema: schema.root_schema_ptr(), properties: Arc::new(properties.build()) })
}

fn write(rows: &Rows, schema: TypePtr, properties: Arc<WriterProperties>, expected: usize) -> parquet::errors::Result<Bytes> {
    let mut file = SerializedFileWriter::new(Vec::with_capacity(expected), schema, properties)?;
    let mut group = file.next_row_group()?;
    let levels = Some((rows.definition.as_slice(), rows.repetition.as_slice()));
    column::<Int32Type>(&mut group, &rows.gene, None)?;
    column::<Int32Type>(&mut group, &rows.block, None)?;
    column::<Int32Type>(&mut group, &rows.nnz, None)?;
    column::<Int32Type>(&mut group, &rows.idx, levels)?;
    match &rows.val {
        Stored::Integers(v) => column::<Int32Type>(&mut group, v, levels)?,
        Stored::Floats(v) => column::<FloatType>(&mut group, v, levels)?,
        Stored::Doubles(v) => column::<DoubleType>(&mut group, v, levels)?,
    }
    column::<DoubleType>(&mut group, &rows.sum, None)?;
    column::<DoubleType>(&mut group, &rows.sumsq, None)?;
    group.close()?;
    Ok(Bytes::from(file.into_inner()?))
}

fn column<T: ParquetType>(group: &mut SerializedRowGroupWriter<'_, Vec<u8>>, values: &[T::T], levels: Option<(&[i16], &[i16])>) -> parquet::errors::Result<()> {
    let Some(mut writer) = group.next_column()? else {
        return Err(parquet::errors::ParquetError::General("the schema has too few columns".into()));
    };
    let (definition, repetition) = levels.unzip();
    writer.typed::<T>().write_batch(values, definition, repetition)?;
    writer.close()
}

fn stats(rows: &Rows) -> SliceStats {
    let unsigned = |values: &[i32]| {
        let bounds = values.iter().map(|&v| v as u32).fold((u32::MAX, 0), |(low, high), v| (low.min(v), high.max(v)));
        Some(ColumnStats::of_values::<arrow::datatypes::UInt32Type>(bounds.0, bounds.1))
    };
    let float = |values: &[f64]| {
        Some(match f64_bounds(values) {
            Some((min, max)) => ColumnStats::of_values::<arrow::datatypes::Float64Type>(min, max),
            None => crate::stats::unknown(&arrow::datatypes::DataType::Float64, 0),
        })
    };
    SliceStats {
        rows: rows.gene.len() as u64,
        columns: vec![unsigned(&rows.gene), unsigned(&rows.block), unsigned(&rows.nnz), None, None, float(&rows.sum), float(&rows.sumsq)],
    }
}

#[cfg(test)]
mod tests;
