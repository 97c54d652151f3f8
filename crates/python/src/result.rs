//! A query's rows and receipt.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use arrow::array::RecordBatchReader;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::{PyRecordBatchReader, PySchema, PyTable};
use skytether_common::Result;
use skytether_fleet::{Fleet, Query, QueryOptions, ReceiptHandle};

use crate::errors::OrRaise;
use crate::runtime::{NOTICE, block, runtime};

/// A query that is planned. It runs when its rows are asked for, and once more each time they are asked for again.
#[pyclass(name = "Result", module = "skytether._internal", frozen)]
pub struct PyResultSet {
    fleet: Arc<Fleet>,
    text: String,
    options: QueryOptions,
    schema: SchemaRef,
    /// Planned, and not begun.
    ready: Mutex<Option<Query>>,
    receipt: Mutex<Option<ReceiptHandle>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PyResultSet {
    /// Plans `text`.
    pub(crate) fn plan(py: Python<'_>, fleet: Arc<Fleet>, text: String, options: QueryOptions) -> PyResult<Self> {
        let query = block(py, plan(Arc::clone(&fleet), text.clone(), options.clone()))?;
        let schema = Arc::clone(&query.schema);
        Ok(Self { fleet, text, options, schema, ready: Mutex::new(Some(query)), receipt: Mutex::new(None) })
    }

    /// The query to run now: the one that is planned, or a new one.
    fn take(&self, py: Python<'_>) -> PyResult<Query> {
        let ready = locked(&self.ready).take();
        let query = match ready {
            Some(query) => query,
            None => block(py, plan(Arc::clone(&self.fleet), self.text.clone(), self.options.clone()))?,
        };
        *locked(&self.receipt) = Some(query.receipt.clone());
        Ok(query)
    }

    /// All rows.
    pub(crate) fn batches(&self, py: Python<'_>) -> PyResult<Vec<RecordBatch>> {
        let query = self.take(py)?;
        block(py, query.collect())
    }
}

async fn plan(fleet: Arc<Fleet>, text: String, options: QueryOptions) -> Result<Query> {
    fleet.sql(&text, &options).await
}

#[pymethods]
impl PyResultSet {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let schema = PySchema::new(Arc::clone(&self.schema)).into_pyobject(py)?;
        schema.call_method0("__arrow_c_schema__")
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(&self, py: Python<'py>, requested_schema: Option<Bound<'py, PyCapsule>>) -> PyResult<Bound<'py, PyAny>> {
        let query = self.take(py)?;
        let rows = Rows { schema: Arc::clone(&query.schema), query: Some(query), of: std::thread::current().id() };
        let reader = PyRecordBatchReader::new(Box::new(rows)).into_pyobject(py)?;
        reader.call_method1("__arrow_c_stream__", (requested_schema,))
    }

    /// All rows, as an object with `__arrow_c_stream__`.
    fn collect(&self, py: Python<'_>) -> PyResult<PyTable> {
        let batches = self.batches(py)?;
        PyTable::try_new(batches, Arc::clone(&self.schema))
    }

    /// The receipt of the last run that was read to its end, as JSON and as a tree; None if there is none.
    fn receipt(&self) -> PyResult<Option<(String, String)>> {
        let Some(receipt) = locked(&self.receipt).as_ref().map(ReceiptHandle::receipt) else { return Ok(None) };
        Ok(receipt.finished.then(|| (receipt.to_json().to_string(), receipt.to_string().trim_end().to_owned())))
    }

    fn describe(&self) -> String {
        let columns: Vec<_> = self.schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
        columns.join(", ")
    }
}

/// The rows as whoever takes the Arrow stream pulls them.
struct Rows {
    schema: SchemaRef,
    query: Option<Query>,
    of: ThreadId,
}

impl Iterator for Rows {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let query = self.query.as_mut()?;
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(e) => return Some(Err(ArrowError::ExternalError(Box::new(e)))),
        };
        loop {
            // What pulls may hold Python's lock (the runtime's threads never need it) or not.
            if let Ok(next) = runtime.block_on(async { tokio::time::timeout(NOTICE, query.stream.next()).await }) {
                if !matches!(next, Some(Ok(_))) {
                    self.query = None;
                }
                return next.map(|batch| batch.map_err(|e| ArrowError::ExternalError(Box::new(e))));
            }
            // Another thread than the one that asked could wait for a lock whose holder waits for it.
            if std::thread::current().id() == self.of
                && let Err(interrupt) = Python::attach(|py| py.check_signals())
            {
                self.query = None;
                return Some(Err(ArrowError::ExternalError(Box::new(interrupt))));
            }
        }
    }
}

impl RecordBatchReader for Rows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// A cut by its name.
pub(crate) fn options(cut: &str) -> PyResult<QueryOptions> {
    let cut = cut.parse().or_raise()?;
    Ok(QueryOptions { cut, ..QueryOptions::default() })
}
