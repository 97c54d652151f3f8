//! [`PyWriter`] and [`PyMatrixWriter`]: write a data set table by table and matrix by matrix.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3_arrow::PyTable;
use skytether::{DatasetWriter, Placement, files};
use skytether_common::{Error, Result};
use skytether_matrix::{MtxReader, TransposeOptions, Transposer};
use tokio::sync::Mutex as AsyncMutex;

use crate::buffers::{Indices, Lent, Numbers, with_indices, with_numbers};
use crate::errors::OrRaise;
use crate::incoming::incoming;
use crate::runtime::block;

/// Entries of a Matrix Market file that are read before they are transposed.
const MTX_CHUNK: usize = 1 << 16;
/// Bytes of a matrix that are kept in memory before it goes to disk: some 130 million small counts. An ingest of a
/// million cells takes up to 760 MiB besides, for names, annotations and what is under way: 962 and 1,012 MiB in all.
const MATRIX_BYTES: usize = 256 << 20;

type Shared = Arc<AsyncMutex<Option<DatasetWriter>>>;

/// An ingest under way; see `DatasetWriter`.
#[pyclass(name = "Writer", module = "skytether._internal", frozen)]
pub struct PyWriter(Shared);

fn over() -> Error {
    Error::invalid("this ingest is over: begin another")
}

impl PyWriter {
    pub(crate) fn new(writer: DatasetWriter) -> Self {
        Self(Arc::new(AsyncMutex::new(Some(writer))))
    }

    fn sink(&self, name: String, n_cells: u64, n_genes: u64, append: bool) -> PyResult<PyMatrixWriter> {
        let size = |n: u64, what: &str| u32::try_from(n).map_err(|_| Error::invalid(format!("{n} {what} are more than the supported {}", u32::MAX)));
        let (cells, genes) = (size(n_cells, "cells").or_raise()?, size(n_genes, "genes").or_raise()?);
        let options = TransposeOptions { memory_limit: MATRIX_BYTES, ..TransposeOptions::default() };
        let transposer = Transposer::new(cells, genes, options).or_raise()?;
        Ok(PyMatrixWriter { shared: Arc::clone(&self.0), name, n_genes, append, transposer: Mutex::new(Some(transposer)) })
    }
}

#[pymethods]
impl PyWriter {
    /// Writes a table from anything with `__arrow_c_stream__`; `placement` is `spread` or `everywhere`.
    fn table(&self, py: Python<'_>, name: String, placement: &str, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        let placement = match placement {
            "spread" => Placement::Spread,
            "everywhere" => Placement::Everywhere,
            _ => return Err(Error::invalid(format!("there is no placement {placement:?}: use 'spread' or 'everywhere'"))).or_raise(),
        };
        let reader = incoming(rows, &name)?;
        let shared = Arc::clone(&self.0);
        block(py, async move {
            let mut guard = shared.lock().await;
            let writer = guard.as_mut().ok_or_else(over)?;
            let schema = reader.schema();
            let mut rows = 0;
            let batches = reader.map(|batch| {
                let batch = batch.map_err(|e| Error::invalid("the source of rows failed").with_source(e))?;
                files::check_values(&batch, rows)?;
                rows += batch.num_rows();
                Ok(batch)
            });
            writer.write_table(&name, placement, schema, batches).await
        })
    }

    /// A matrix of `n_cells` x `n_genes` that takes its values in parts; `finish` writes it.
    fn matrix(&self, name: String, n_cells: u64, n_genes: u64) -> PyResult<PyMatrixWriter> {
        self.sink(name, n_cells, n_genes, false)
    }

    /// As `matrix`, of `n_cells` cells more for a stored matrix, numbered from 0. `finish` raises `Unsupported` where
    /// the matrix must be written again with all cells.
    fn part(&self, name: String, n_cells: u64, n_genes: u64) -> PyResult<PyMatrixWriter> {
        self.sink(name, n_cells, n_genes, true)
    }

    /// Keeps a text in the root record.
    fn application(&self, py: Python<'_>, key: String, value: String) -> PyResult<()> {
        let shared = Arc::clone(&self.0);
        block(py, async move {
            shared.lock().await.as_mut().ok_or_else(over)?.application(key, value);
            Ok(())
        })
    }

    /// Does not keep a table of the version before.
    fn leave_out(&self, py: Python<'_>, table: String) -> PyResult<()> {
        let shared = Arc::clone(&self.0);
        block(py, async move { shared.lock().await.as_mut().ok_or_else(over)?.leave_out(&table) })
    }

    /// The number of the generation that is written.
    fn generation(&self, py: Python<'_>) -> PyResult<u64> {
        let shared = Arc::clone(&self.0);
        block(py, async move { Ok(shared.lock().await.as_ref().ok_or_else(over)?.generation().0) })
    }

    /// Makes everything visible at once; the report as JSON.
    fn commit(&self, py: Python<'_>) -> PyResult<String> {
        let shared = Arc::clone(&self.0);
        block(py, async move {
            let writer = shared.lock().await.take().ok_or_else(over)?;
            let report = writer.commit().await?;
            serde_json::to_string(&report).map_err(|e| Error::internal("cannot write the report").with_source(e))
        })
    }

    /// Deletes what was written so far. After a commit, or a second time, it does nothing.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let shared = Arc::clone(&self.0);
        block(py, async move {
            let writer = shared.lock().await.take();
            match writer {
                Some(writer) => writer.abort().await,
                None => Ok(()),
            }
        })
    }
}

/// Gives the entries their genes' numbers in `here`, and drops those of genes that it leaves out. The reader has
/// checked that every row is one of the file's.
fn renumber(here: &[i32], genes: &mut Vec<u32>, cells: &mut Vec<u32>, values: &mut Vec<f64>) {
    let mut kept = 0;
    for at in 0..genes.len() {
        let Some(gene) = here.get(genes[at] as usize).and_then(|gene| u32::try_from(*gene).ok()) else { continue };
        (genes[kept], cells[kept], values[kept]) = (gene, cells[at], values[at]);
        kept += 1;
    }
    genes.truncate(kept);
    cells.truncate(kept);
    values.truncate(kept);
}

/// A matrix that takes its values in parts of any shape; see `Transposer`.
#[pyclass(name = "MatrixWriter", module = "skytether._internal", frozen)]
pub struct PyMatrixWriter {
    shared: Shared,
    name: String,
    n_genes: u64,
    /// Whether its cells come behind those of the stored matrix.
    append: bool,
    transposer: Mutex<Option<Transposer>>,
}

impl PyMatrixWriter {
    fn push(&self, py: Python<'_>, work: impl FnOnce(&mut Transposer) -> Result<()> + Send) -> PyResult<()> {
        py.detach(|| {
            let mut guard = self.transposer.lock();
            work(guard.as_mut().ok_or_else(over)?)
        })
        .or_raise()
    }
}

#[pymethods]
impl PyMatrixWriter {
    /// Consecutive cells in compressed sparse row form; `indptr` is int64.
    fn push_rows(&self, py: Python<'_>, first: u64, indptr: &Bound<'_, PyAny>, indices: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let indptr = Lent::<i64>::new(indptr, "indptr").or_raise()?;
        let (indices, data) = (Indices::new(indices, "indices").or_raise()?, Numbers::new(data, "data").or_raise()?);
        self.push(py, |t| with_indices!(&indices, at => with_numbers!(&data, values => t.push_rows(first, indptr.slice(), at, values))))
    }

    /// Consecutive genes in compressed sparse column form; `indptr` is int64.
    fn push_columns(&self, py: Python<'_>, first: u64, indptr: &Bound<'_, PyAny>, indices: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let indptr = Lent::<i64>::new(indptr, "indptr").or_raise()?;
        let (indices, data) = (Indices::new(indices, "indices").or_raise()?, Numbers::new(data, "data").or_raise()?);
        self.push(py, |t| with_indices!(&indices, at => with_numbers!(&data, values => t.push_columns(first, indptr.slice(), at, values))))
    }

    /// `rows` consecutive whole cells, dense, in row-major order.
    fn push_dense(&self, py: Python<'_>, first: u64, rows: usize, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = Numbers::new(data, "data").or_raise()?;
        self.push(py, |t| with_numbers!(&data, values => t.push_dense(first, rows, values)))
    }

    /// All of a Matrix Market file whose rows are genes and whose columns are cells; calls `step` with the number of
    /// entries after each part. `genes` has for each row of the file the number of its gene here, or -1 for a row that
    /// is left out (int32); without it, rows are genes.
    #[pyo3(signature = (path, step, genes = None))]
    fn push_mtx(&self, py: Python<'_>, path: std::path::PathBuf, step: &Bound<'_, PyAny>, genes: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let here = genes.map(|genes| Ok::<_, Error>(Lent::<i32>::new(&genes, "genes")?.slice().to_vec())).transpose().or_raise()?;
        let mut reader = py.detach(|| MtxReader::open(&path)).or_raise()?;
        let (mut genes, mut cells, mut values) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let mut done = 0;
            self.push(py, |t| {
                // Several parts at a time, so that Python's lock is not taken too often.
                for _ in 0..16 {
                    genes.clear();
                    cells.clear();
                    values.clear();
                    let read = reader.read_chunk(MTX_CHUNK, &mut genes, &mut cells, &mut values)?;
                    if read == 0 {
                        break;
                    }
                    done += read;
                    if let Some(here) = &here {
                        renumber(here, &mut genes, &mut cells, &mut values);
                    }
                    t.push_triplets(&genes, &cells, &values)?;
                }
                Ok(())
            })?;
            if done == 0 {
                return Ok(());
            }
            step.call1((done,))?;
            py.check_signals()?;
        }
    }

    /// Writes the matrix. Gives the total of each cell (float32) as a table of one column.
    fn finish(&self, py: Python<'_>) -> PyResult<PyTable> {
        let transposer = self.transposer.lock().take().ok_or_else(over).or_raise()?;
        let (shared, name, append) = (Arc::clone(&self.shared), self.name.clone(), self.append);
        let totals = block(py, async move {
            let matrix = tokio::task::block_in_place(|| transposer.finish())?;
            let mut guard = shared.lock().await;
            let writer = guard.as_mut().ok_or_else(over)?;
            if append {
                writer.append_cells(&name, &matrix).await?;
            } else {
                writer.write_matrix(&name, &matrix).await?;
            }
            Ok(Float32Array::from(matrix.totals().to_vec()))
        })?;
        let schema = Arc::new(Schema::new(vec![Field::new("total", DataType::Float32, false)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(totals) as ArrayRef])
            .map_err(|e| Error::internal("cannot build totals").with_source(e))
            .or_raise()?;
        PyTable::try_new(vec![batch], schema)
    }

    fn __repr__(&self) -> String {
        format!("<MatrixWriter {}: {} genes>", self.name, self.n_genes)
    }
}
