//! [`PyResultSet`]: a query's rows and receipt.

use std::sync::Arc;
use std::thread::ThreadId;

use arrow::array::RecordBatchReader;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::{PyRecordBatchReader, PySchema, PyTable};
use skytether::{Fleet, Query, QueryOptions, ReceiptHandle, TableScan, Values};
use skytether_common::{Error, Result};

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::errors::OrRaise;
use crate::runtime::{NOTICE, block, runtime, stopped};
use crate::slot::Slot;

/// The request that a result answers.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    /// A text of SQL, or a Substrait plan, and the values of its parameters.
    Query(skytether::Statement, Values),
    /// A scan of one table.
    Scan(TableScan),
}

impl Asked {
    pub(crate) fn sql(text: String, values: Values) -> Self {
        Self::Query(skytether::Statement::Sql(text.into()), values)
    }

    pub(crate) fn substrait(plan: Vec<u8>) -> Self {
        Self::Query(skytether::Statement::Substrait(plan.into()), Values::default())
    }
}

/// A planned query. It runs when its rows are first read, and again for each further reading.
#[pyclass(name = "Result", module = "skytether._internal", frozen)]
pub struct PyResultSet {
    slot: Arc<Slot>,
    asked: Asked,
    options: QueryOptions,
    schema: SchemaRef,
    /// The number of the query that is planned and has not run.
    planned: u64,
    receipt: Mutex<Option<ReceiptHandle>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl PyResultSet {
    /// Plans the request `asked`.
    pub(crate) fn plan(py: Python<'_>, slot: Arc<Slot>, asked: Asked, options: QueryOptions) -> PyResult<Self> {
        let fleet = slot.fleet().or_raise()?;
        let query = block(py, plan(fleet, asked.clone(), options.clone()))?;
        let schema = Arc::clone(&query.schema);
        let planned = slot.keep(query).or_raise()?;
        Ok(Self { slot, asked, options, schema, planned, receipt: Mutex::new(None) })
    }

    /// The query to run now (the planned one, or a new one), and the fleet that it keeps open.
    fn take(&self, py: Python<'_>) -> PyResult<(Query, Arc<Fleet>)> {
        let fleet = self.slot.fleet().or_raise()?;
        let query = match self.slot.take(self.planned) {
            Some(query) => query,
            None => block(py, plan(Arc::clone(&fleet), self.asked.clone(), self.options.clone()))?,
        };
        *locked(&self.receipt) = Some(query.receipt.clone());
        Ok((query, fleet))
    }

    /// All rows.
    pub(crate) fn batches(&self, py: Python<'_>) -> PyResult<Vec<RecordBatch>> {
        let (query, fleet) = self.take(py)?;
        block(py, async move {
            let _open = fleet;
            query.collect().await
        })
    }

    /// Gives all rows to `take`, batch by batch; they are not kept.
    pub(crate) fn each(&self, py: Python<'_>, mut take: impl FnMut(RecordBatch) -> Result<()> + Send + 'static) -> PyResult<()> {
        let (mut query, fleet) = self.take(py)?;
        block(py, async move {
            let _open = fleet;
            while let Some(batch) = query.stream.next().await {
                take(batch?)?;
            }
            Ok(())
        })
    }
}

impl Drop for PyResultSet {
    fn drop(&mut self) {
        drop(self.slot.take(self.planned));
    }
}

async fn plan(fleet: Arc<Fleet>, asked: Asked, options: QueryOptions) -> Result<Query> {
    match &asked {
        Asked::Query(query, values) => fleet.service().ask_with(query, values, &options).await,
        Asked::Scan(scan) => fleet.scan(scan, &options).await,
    }
}

#[pymethods]
impl PyResultSet {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let schema = PySchema::new(Arc::clone(&self.schema)).into_pyobject(py)?;
        schema.call_method0("__arrow_c_schema__")
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(&self, py: Python<'py>, requested_schema: Option<Bound<'py, PyCapsule>>) -> PyResult<Bound<'py, PyAny>> {
        let (query, fleet) = self.take(py)?;
        let rows = Rows { schema: Arc::clone(&query.schema), state: StreamState::Planned(query, fleet), of: std::thread::current().id() };
        let reader = PyRecordBatchReader::new(Box::new(rows)).into_pyobject(py)?;
        reader.call_method1("__arrow_c_stream__", (requested_schema,))
    }

    /// All rows, as an object with `__arrow_c_stream__`.
    fn collect(&self, py: Python<'_>) -> PyResult<PyTable> {
        let batches = self.batches(py)?;
        PyTable::try_new(batches, Arc::clone(&self.schema))
    }

    /// The receipt of the last run that was read to its end (with `so_far`: of the last run), as JSON, as a small tree
    /// and with all operators; None if there is none.
    #[pyo3(signature = (so_far = false))]
    fn receipt(&self, so_far: bool) -> PyResult<Option<(String, String, String)>> {
        let Some(receipt) = locked(&self.receipt).as_ref().map(ReceiptHandle::receipt) else { return Ok(None) };
        Ok((so_far || receipt.finished).then(|| (receipt.to_json().to_string(), receipt.to_string().trim_end().to_owned(), receipt.tree())))
    }

    fn describe(&self) -> String {
        let columns: Vec<_> = self.schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
        columns.join(", ")
    }
}

/// Limit of batches that wait for the reader of a stream.
const BACKLOG: usize = 2;

/// The rows of an Arrow stream, which its reader pulls.
struct Rows {
    schema: SchemaRef,
    state: StreamState,
    of: ThreadId,
}

/// The state of a stream.
enum StreamState {
    /// With the fleet that it keeps open.
    Planned(Query, Arc<Fleet>),
    Begun(Running),
    Over,
}

/// A query that runs on the runtime, independent of its reader. The host's part of a query runs where it is polled, and
/// a reader that polled itself would notice Ctrl-C only after it.
struct Running {
    batches: mpsc::Receiver<Result<RecordBatch>>,
    task: AbortOnDropHandle<()>,
}

impl Running {
    fn begin(runtime: &Runtime, mut query: Query, fleet: Arc<Fleet>) -> Self {
        let (send, batches) = mpsc::channel(BACKLOG);
        let task = AbortOnDropHandle::new(runtime.spawn(async move {
            let _open = fleet;
            while let Some(batch) = query.stream.next().await {
                let failed = batch.is_err();
                // The reader has left.
                if send.send(batch).await.is_err() || failed {
                    return;
                }
            }
            // Before the reader sees the end: it may close the fleet then and open it again.
            drop((query, _open));
        }));
        Self { batches, task }
    }

    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        match self.batches.recv().await {
            Some(batch) => Some(batch),
            // The end, unless it stopped short.
            None => (&mut self.task).await.err().map(|e| Err(stopped(e))),
        }
    }
}

impl Iterator for Rows {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let runtime = match runtime() {
            Ok(runtime) => runtime,
            Err(e) => return Some(Err(ArrowError::ExternalError(Box::new(e)))),
        };
        // Starts at the first row: a query without a reader must not occupy the drives.
        if let StreamState::Planned(..) = self.state
            && let StreamState::Planned(query, fleet) = std::mem::replace(&mut self.state, StreamState::Over)
        {
            self.state = StreamState::Begun(Running::begin(runtime, query, fleet));
        }
        let StreamState::Begun(running) = &mut self.state else { return None };
        loop {
            // The reader may hold Python's lock or not: the runtime's threads never need it.
            if let Ok(next) = runtime.block_on(async { tokio::time::timeout(NOTICE, running.next()).await }) {
                if !matches!(next, Some(Ok(_))) {
                    self.state = StreamState::Over;
                }
                return next.map(|batch| batch.map_err(|e| ArrowError::ExternalError(Box::new(e))));
            }
            // On another thread, this could wait for a lock whose holder waits for this thread.
            if std::thread::current().id() == self.of
                && let Err(interrupt) = Python::attach(interrupted)
            {
                self.state = StreamState::Over;
                return Some(Err(ArrowError::ExternalError(Box::new(interrupt))));
            }
        }
    }
}

/// The exception of a pending signal, as an error. An Arrow stream turns any error into one of its reader's kinds, so
/// Ctrl-C would be lost. So this sets the interrupt again, and Python raises `KeyboardInterrupt` when the reader
/// returns.
fn interrupted(py: Python<'_>) -> Result<()> {
    let Err(interrupt) = py.check_signals() else { return Ok(()) };
    // Before the interrupt is set again: formatting an exception checks for signals too.
    let told = Error::unavailable(format!("the query was interrupted: {interrupt}"));
    if interrupt.is_instance_of::<PyKeyboardInterrupt>(py) {
        // SAFETY: takes nothing and may be called at any time.
        unsafe { pyo3::ffi::PyErr_SetInterrupt() };
    }
    Err(told)
}

impl RecordBatchReader for Rows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Query options with the pushdown policy of this name.
pub(crate) fn options(cut: &str) -> PyResult<QueryOptions> {
    let cut = cut.parse().or_raise()?;
    Ok(QueryOptions { cut, ..QueryOptions::default() })
}
