//! [`PyProducts`]: what principal components need of a matrix, read once and in parts.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Float32Array, Float64Array, ListArray, StructArray};
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type, Schema, UInt16Type, UInt32Type};
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3_arrow::PyTable;
use skytether_common::{Detail, Error, Result};
use skytether_expression::Transform;
use skytether_expression::kernel::Value;
use skytether_expression::products::{Chunk, Gram, Rows, project};

use crate::buffers::Lent;
use crate::errors::OrRaise;
use crate::result::PyResultSet;

/// Threads that share the arithmetic, at most.
const MOST_THREADS: usize = 16;

/// The chosen cells and genes of a matrix, a range of cells at a time: read, multiplied with itself, projected.
#[pyclass(name = "Products", module = "skytether._internal", frozen)]
pub struct PyProducts(Arc<Mutex<Products>>);

#[derive(Debug)]
struct Products {
    /// The number of each gene among those that are chosen; [`LEFT_OUT`] for others.
    gene_to: Vec<u32>,
    /// The number of each cell among those that are chosen; [`LEFT_OUT`] for others.
    cell_to: Vec<u32>,
    width: usize,
    height: usize,
    transform: Option<Transform>,
    totals: Vec<f32>,
    /// The least and the largest value of each chosen gene, to which others are clipped. Where the least is positive,
    /// all values count less it, so that cells without an entry are still zero.
    bounds: Vec<(f64, f64)>,
    /// The range of chosen cells that was read last.
    range: std::ops::Range<u32>,
    read: Entries,
    rows: Rows,
    gram: Option<Gram>,
}

const LEFT_OUT: u32 = u32::MAX;

/// Entries as they come, gene by gene.
#[derive(Debug, Default)]
struct Entries {
    /// A gene's number, and where its entries end.
    genes: Vec<(u32, usize)>,
    rows: Vec<u32>,
    values: Vec<f32>,
}

fn renumbered(chosen: &[u32], n: usize) -> Vec<u32> {
    let mut to = vec![LEFT_OUT; n];
    for (number, &at) in chosen.iter().enumerate() {
        if let Some(to) = to.get_mut(at as usize) {
            *to = number as u32;
        }
    }
    to
}

impl Products {
    fn take(&mut self, batch: &RecordBatch) -> Result<()> {
        let wrong = || Error::internal("products need the columns gene_id, idx and val, or gene_id and a struct of these two");
        let (genes, idx, val) = match batch.columns() {
            [genes, idx, val] => (genes, idx, val),
            [genes, entries] => match entries.as_struct_opt().map(StructArray::columns) {
                Some([idx, val]) => (genes, idx, val),
                _ => return Err(wrong()),
            },
            _ => return Err(wrong()),
        };
        let (Some(genes), Some(idx), Some(val)) = (genes.as_primitive_opt::<UInt32Type>(), idx.as_list_opt::<i32>(), val.as_list_opt::<i32>()) else {
            return Err(wrong());
        };
        let genes = genes.values();
        match val.values().data_type() {
            DataType::UInt16 => self.typed::<UInt16Type>(genes, idx, val),
            DataType::UInt32 => self.typed::<UInt32Type>(genes, idx, val),
            DataType::Float32 => self.typed::<Float32Type>(genes, idx, val),
            DataType::Float64 => self.typed::<Float64Type>(genes, idx, val),
            _ => Err(wrong()),
        }
    }

    fn typed<T>(&mut self, genes: &[u32], idx: &ListArray, val: &ListArray) -> Result<()>
    where
        T: ArrowPrimitiveType,
        T::Native: Value,
    {
        let wrong = || Error::corrupt("a row of a matrix has not as many values as cell numbers");
        let (cells, values) = (idx.values().as_primitive::<UInt32Type>().values(), val.values().as_primitive::<T>().values());
        for (i, &gene) in genes.iter().enumerate() {
            let to = self.gene_to.get(gene as usize).copied().unwrap_or(LEFT_OUT);
            if to == LEFT_OUT {
                continue;
            }
            let cells = &cells[idx.value_offsets()[i] as usize..idx.value_offsets()[i + 1] as usize];
            let values = &values[val.value_offsets()[i] as usize..val.value_offsets()[i + 1] as usize];
            if cells.len() != values.len() {
                return Err(wrong());
            }
            let of = self.transform.map(Transform::function);
            let bounds = self.bounds.get(to as usize).copied();
            for (&cell, &value) in cells.iter().zip(values) {
                let row = self.cell_to.get(cell as usize).copied().unwrap_or(LEFT_OUT);
                if !self.range.contains(&row) {
                    continue;
                }
                let total = self.totals.get(cell as usize).copied();
                let y = of.as_ref().map_or(value.as_f32(), |of| of(value.as_f32(), total.unwrap_or(f32::NAN)));
                if !y.is_finite() {
                    let detail = Detail::UnfitValue { cell, value: value.as_f64(), total: total.map(f64::from) };
                    return Err(Error::invalid(format!("cell {cell} has the value {}, which can't be a part of principal components", value.as_f64()))
                        .with_detail(detail));
                }
                let y = bounds.map_or(y, |(least, most)| (f64::from(y).max(least).min(most) - least.max(0.0)) as f32);
                if y != 0.0 {
                    self.read.rows.push(row - self.range.start);
                    self.read.values.push(y);
                }
            }
            self.read.genes.push((to, self.read.rows.len()));
        }
        Ok(())
    }

    fn gram(&mut self, width: usize) -> &mut Gram {
        self.gram.get_or_insert_with(|| Gram::new(width))
    }
}

impl Entries {
    fn chunks(&self) -> Vec<Chunk<'_>> {
        let mut start = 0;
        let chunk = |&(column, end): &(u32, usize)| {
            let range = start..end;
            start = end;
            Chunk { column, rows: &self.rows[range.clone()], values: &self.values[range] }
        };
        self.genes.iter().map(chunk).collect()
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS)
}

fn table(values: ArrayRef) -> PyResult<PyTable> {
    let schema = Arc::new(Schema::new(vec![Field::new("values", values.data_type().clone(), false)]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![values]).map_err(|e| Error::internal("cannot build a column").with_source(e)).or_raise()?;
    PyTable::try_new(vec![batch], schema)
}

#[pymethods]
impl PyProducts {
    /// `genes` and `cells` are the chosen ones (uint32, in the order of the result). `totals` has one for each cell of
    /// the matrix (float32), where the transform needs them. `bounds` has the least and the largest value of each
    /// chosen gene (float64, row by row).
    #[new]
    #[pyo3(signature = (genes, cells, transform = None, totals = None, bounds = None))]
    fn new(
        genes: &Bound<'_, PyAny>,
        cells: &Bound<'_, PyAny>,
        transform: Option<&str>,
        totals: Option<Bound<'_, PyAny>>,
        bounds: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (genes, cells) = (Lent::<u32>::new(genes, "genes").or_raise()?, Lent::<u32>::new(cells, "cells").or_raise()?);
        let end = |of: &[u32]| of.iter().max().map_or(0, |&last| last as usize + 1);
        let totals = totals.map(|totals| Ok::<_, Error>(Lent::<f32>::new(&totals, "totals")?.slice().to_vec())).transpose().or_raise()?;
        let pairs = |bounds: Bound<'_, PyAny>| {
            let lent = Lent::<f64>::new(&bounds, "bounds")?;
            Ok::<_, Error>(lent.slice().chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
        };
        let bounds: Vec<(f64, f64)> = bounds.map(pairs).transpose().or_raise()?.unwrap_or_default();
        let transform = transform.map(Transform::parse).transpose().or_raise()?;
        Ok(Self(Arc::new(Mutex::new(Products {
            gene_to: renumbered(genes.slice(), end(genes.slice())),
            cell_to: renumbered(cells.slice(), end(cells.slice())),
            width: genes.slice().len(),
            height: cells.slice().len(),
            transform,
            totals: totals.unwrap_or_default(),
            bounds,
            range: 0..0,
            read: Entries::default(),
            rows: Rows::default(),
            gram: None,
        }))))
    }

    /// Runs `query` (columns `gene_id`, `idx`, `val`, or `entries_of` in place of the latter two), and keeps the
    /// entries of the chosen cells `first..end` instead of what was read before; gives their number.
    fn read(&self, py: Python<'_>, query: &PyResultSet, first: u32, end: u32) -> PyResult<usize> {
        {
            let mut products = self.0.lock();
            let end = end.min(products.height as u32);
            products.range = first.min(end)..end;
            products.read = Entries::default();
            products.rows = Rows::default();
        }
        let products = Arc::clone(&self.0);
        query.each(py, move |batch| products.lock().take(&batch))?;
        Ok(self.0.lock().read.rows.len())
    }

    /// Adds what was read to the products of genes, and keeps it as rows of cells.
    fn add(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut products = self.0.lock();
            let read = std::mem::take(&mut products.read);
            products.rows = Rows::of_columns(products.range.len(), &mut read.chunks())?;
            drop(read);
            let (rows, width) = (std::mem::take(&mut products.rows), products.width);
            products.gram(width).add(&rows, threads())?;
            products.rows = rows;
            Ok(())
        })
        .or_raise()
    }

    /// Adds what was read to the products of cells, and keeps it as rows of genes.
    fn add_cells(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut products = self.0.lock();
            let read = std::mem::take(&mut products.read);
            let (rows, height) = (Rows::by_columns(products.width, &mut read.chunks())?, products.height);
            products.gram(height).add(&rows, threads())?;
            products.rows = rows;
            Ok(())
        })
        .or_raise()
    }

    /// Keeps what was read as rows of cells, without adding it up.
    fn keep(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut products = self.0.lock();
            let read = std::mem::take(&mut products.read);
            products.rows = Rows::of_columns(products.range.len(), &mut read.chunks())?;
            Ok(())
        })
        .or_raise()
    }

    /// The products that were added up, row by row, and the sums of each column (float64).
    fn gram(&self, py: Python<'_>) -> PyResult<(PyTable, PyTable)> {
        let (products, sums) = py.detach(|| {
            let mut products = self.0.lock();
            let width = products.width;
            products.gram.take().unwrap_or_else(|| Gram::new(width)).finish()
        });
        Ok((table(Arc::new(Float64Array::from(products)))?, table(Arc::new(Float64Array::from(sums)))?))
    }

    /// The rows that are kept, times `by` (float64, row by row), minus `shift` (float64): float32, row by row.
    fn project(&self, py: Python<'_>, by: &Bound<'_, PyAny>, shift: &Bound<'_, PyAny>) -> PyResult<PyTable> {
        let (by, shift) = (Lent::<f64>::new(by, "by").or_raise()?, Lent::<f64>::new(shift, "shift").or_raise()?);
        let (by, shift) = (by.slice(), shift.slice());
        let made = py.detach(|| project(&self.0.lock().rows, by, shift, threads())).or_raise()?;
        table(Arc::new(Float32Array::from(made)))
    }

    fn __repr__(&self) -> String {
        let products = self.0.lock();
        format!("<Products of {} cells and {} genes>", products.height, products.width)
    }
}
