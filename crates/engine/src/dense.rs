//! The dense view of a matrix: `(gene, cell, value)` with zeros. It is built row by row from sparse slices, never as a
//! whole.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, UInt32Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Float64Type, SchemaRef, UInt32Type};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use skytether_common::{Error, Result, Span};

use crate::reader::SliceBatches;

/// The columns of a dense view, in this order.
pub(crate) const COLUMNS: [&str; 3] = ["gene", "cell", "value"];

/// What of a matrix a query wants to see densely.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    /// The cells of the partition, and their blocks.
    pub(crate) span: Span,
    /// Which of [`COLUMNS`], in order.
    pub(crate) projection: Vec<usize>,
    /// Names by gene number; there where `gene` is projected.
    pub(crate) genes: Option<ArrayRef>,
    /// Names by cell number; there where `cell` is projected.
    pub(crate) cells: Option<ArrayRef>,
    /// Ascending numbers of the only genes that are wanted.
    pub(crate) wanted_genes: Option<Arc<Vec<u32>>>,
    /// Ascending numbers of the only cells that are wanted.
    pub(crate) wanted_cells: Option<Arc<Vec<u32>>>,
    /// Whether zeros are not wanted.
    pub(crate) nonzero_only: bool,
}

impl Dense {
    /// The stored columns that must be read.
    pub(crate) fn stored_columns(&self) -> &'static [&'static str] {
        if self.nonzero_only || self.projection.contains(&2) { &["gene_id", "block", "idx", "val"] } else { &["gene_id", "block"] }
    }

    /// First cell of a block and the one after its last.
    fn cells_of(&self, block: u32) -> (u32, u32) {
        let cells = self.span.of(block);
        (cells.start, cells.end)
    }

    /// The number of dense rows of a slice of `rows` sparse rows whose blocks are between `min` and `max`. `None` if
    /// these numbers do not determine it.
    pub(crate) fn count(&self, rows: u32, min: u32, max: u32) -> Option<u64> {
        if self.wanted_genes.is_some() || self.wanted_cells.is_some() || self.nonzero_only {
            return None;
        }
        let width = |block| {
            let (first, end) = self.cells_of(block);
            u64::from(end - first)
        };
        // Only the last block can be narrower than the others.
        (width(min) == width(max)).then(|| u64::from(rows) * width(min))
    }

    /// The dense rows of `slice`, at most `batch_rows` at a time.
    pub(crate) fn expand(self: &Arc<Self>, schema: SchemaRef, slice: SliceBatches, batch_rows: usize) -> Expansion {
        Expansion {
            dense: Arc::clone(self),
            schema,
            slice,
            current: None,
            row: 0,
            gene: 0,
            cells: Vec::new(),
            values: Vec::new(),
            at: 0,
            scratch: Vec::new(),
            batch_rows: batch_rows.max(1),
        }
    }
}

/// Goes through a slice's dense rows.
pub(crate) struct Expansion {
    dense: Arc<Dense>,
    schema: SchemaRef,
    slice: SliceBatches,
    current: Option<RecordBatch>,
    /// The next sparse row of the current batch.
    row: usize,
    /// The current sparse row: its gene, the cells it gives, their values (if wanted), and how many have gone out.
    gene: u32,
    cells: Vec<u32>,
    values: Vec<f64>,
    at: usize,
    /// A block of values.
    scratch: Vec<f64>,
    batch_rows: usize,
}

impl Expansion {
    /// Takes the next sparse row that gives anything; false at the end.
    fn advance(&mut self) -> Result<bool> {
        self.at = 0;
        self.cells.clear();
        self.values.clear();
        loop {
            let Some(batch) = self.current.as_ref().filter(|batch| self.row < batch.num_rows()) else {
                self.row = 0;
                self.current = self.slice.next().transpose()?;
                if self.current.is_none() {
                    return Ok(false);
                }
                continue;
            };
            let row = self.row;
            self.row += 1;
            self.gene = number(batch, "gene_id", row)?;
            if self.dense.wanted_genes.as_ref().is_some_and(|wanted| wanted.binary_search(&self.gene).is_err()) {
                continue;
            }
            let block = number(batch, "block", row)?;
            let stored = if self.dense.stored_columns().len() > 2 { Some(sparse_row(batch, row)?) } else { None };
            let (first, end) = self.dense.cells_of(block);
            let with_values = self.dense.projection.contains(&2);
            match (&stored, self.dense.nonzero_only) {
                (Some((idx, val)), true) => {
                    let wanted = self.dense.wanted_cells.as_ref();
                    for (&cell, &value) in idx.values().iter().zip(val.values()) {
                        if cell < self.dense.span.end && wanted.is_none_or(|w| w.binary_search(&cell).is_ok()) {
                            self.cells.push(cell);
                            self.values.push(value);
                        }
                    }
                }
                (stored, _) => {
                    if let (Some((idx, val)), true) = (stored, with_values) {
                        self.scratch.clear();
                        self.scratch.resize((end - first) as usize, 0.0);
                        for (&cell, &value) in idx.values().iter().zip(val.values()) {
                            let Some(place) = cell.checked_sub(first).map(|at| at as usize).filter(|&at| at < self.scratch.len()) else {
                                return Err(Error::corrupt(format!("gene {} has cell {cell} in block {block}", self.gene)));
                            };
                            self.scratch[place] = value;
                        }
                    }
                    match &self.dense.wanted_cells {
                        Some(wanted) => {
                            let here = &wanted[wanted.partition_point(|&c| c < first)..wanted.partition_point(|&c| c < end)];
                            self.cells.extend_from_slice(here);
                            if with_values {
                                self.values.extend(here.iter().filter_map(|&c| self.scratch.get((c - first) as usize)));
                            }
                        }
                        None => {
                            self.cells.extend(first..end);
                            if with_values {
                                self.values.extend_from_slice(&self.scratch);
                            }
                        }
                    }
                }
            }
            if !self.cells.is_empty() {
                return Ok(true);
            }
        }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let wants = |column: usize| self.dense.projection.contains(&column);
        let (with_genes, with_cells, with_values) = (wants(0), wants(1), wants(2));
        let (mut genes, mut cells, mut values, mut rows) = (Vec::new(), Vec::new(), Vec::new(), 0);
        while rows < self.batch_rows {
            if self.at == self.cells.len() && !self.advance()? {
                break;
            }
            let until = self.cells.len().min(self.at + self.batch_rows - rows);
            let n = until - self.at;
            if with_genes {
                genes.resize(rows + n, self.gene);
            }
            if with_cells {
                cells.extend_from_slice(&self.cells[self.at..until]);
            }
            if with_values {
                values.extend_from_slice(&self.values[self.at..until]);
            }
            rows += n;
            self.at = until;
        }
        if rows == 0 {
            return Ok(None);
        }
        let named = |names: &Option<ArrayRef>, numbers: Vec<u32>| -> Result<ArrayRef> {
            let names = names.as_ref().ok_or_else(|| Error::internal("a dense view has no names"))?;
            take(names, &UInt32Array::from(numbers), Some(arrow::compute::TakeOptions { check_bounds: true }))
                .map_err(|e| Error::corrupt("a matrix has a gene or cell without a name").with_source(e))
        };
        let (mut genes, mut cells, mut values) = (Some(genes), Some(cells), Some(values));
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.dense.projection.len());
        for column in &self.dense.projection {
            columns.push(match column {
                0 => named(&self.dense.genes, genes.take().unwrap_or_default())?,
                1 => named(&self.dense.cells, cells.take().unwrap_or_default())?,
                _ => Arc::new(Float64Array::from(values.take().unwrap_or_default())),
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map(Some)
            .map_err(|e| Error::internal("cannot make a batch of a dense view").with_source(e))
    }
}

impl Iterator for Expansion {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch().transpose();
        if matches!(batch, Some(Err(_))) {
            self.slice.end();
            self.current = None;
            self.cells.clear();
            self.at = 0;
        }
        batch
    }
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    batch.column_by_name(name).ok_or_else(|| Error::corrupt(format!("a slice of a matrix has no column {name:?}")))
}

fn number(batch: &RecordBatch, name: &str, row: usize) -> Result<u32> {
    let numbers = column(batch, name)?.as_primitive_opt::<UInt32Type>().ok_or_else(|| Error::corrupt(format!("{name:?} of a matrix is not UInt32")))?;
    Ok(numbers.value(row))
}

/// Cells and values of a sparse row.
fn sparse_row(batch: &RecordBatch, row: usize) -> Result<(UInt32Array, Float64Array)> {
    let list = |name| column(batch, name)?.as_list_opt::<i32>().map(|l| l.value(row)).ok_or_else(|| Error::corrupt(format!("{name:?} of a matrix is no list")));
    let (idx, val) = (list("idx")?, list("val")?);
    if idx.len() != val.len() {
        return Err(Error::corrupt(format!("a row of a matrix has {} cells and {} values", idx.len(), val.len())));
    }
    let idx = idx.as_primitive_opt::<UInt32Type>().ok_or_else(|| Error::corrupt("the cells of a matrix are not UInt32"))?.clone();
    let val = cast(&val, &DataType::Float64).map_err(|e| Error::corrupt("the values of a matrix are no numbers").with_source(e))?;
    Ok((idx, val.as_primitive::<Float64Type>().clone()))
}
