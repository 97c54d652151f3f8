//! [`PyFleet`]: opening a fleet, queries, the catalog, and ingest of plain tables.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3_arrow::{PyRecordBatch, PySchema};
use serde::Serialize;
use skytether::{
    Credentials, DatasetKind, Fleet, HostOptions, IndexInfo, IngestOptions, ListIndexes, NewIndex, OldIndex, OpenOptions, Output, Profiles, Progress as Far,
    RepairOptions, ResizeOptions, ScrubOptions, Secret, TableScan, Values, files,
};
use skytether_common::{DatasetName, Error, Generation, Result};

use tokio::sync::Notify;

use crate::errors::OrRaise;
use crate::incoming::incoming;
use crate::plain::PyPlainFile;
use crate::result::{Asked, PyResultSet, options};
use crate::runtime::block;
use crate::slot::Slot;
use crate::writer::PyWriter;

/// A fleet, embedded or behind a connection.
#[pyclass(name = "Fleet", module = "skytether._internal", frozen)]
pub struct PyFleet(Arc<Slot>);

/// A query of a Python caller: SQL or a Substrait plan.
#[derive(FromPyObject)]
enum Written {
    Sql(String),
    Substrait(Vec<u8>),
}

/// What a Python caller says about files, as a dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Reading {
    format: Option<String>,
    schema: String,
    hive: bool,
    delimiter: Option<String>,
    header: bool,
    quote: String,
    null: Vec<String>,
    types: Vec<(String, String)>,
    all_text: bool,
}

impl Reading {
    fn options(self) -> Result<files::ReadOptions> {
        let mut text = files::TextOptions { header: self.header, null: self.null, all_text: self.all_text, ..files::TextOptions::default() };
        text.types = self.types.into_iter().map(|(name, of)| of.parse().map(|of| (name, of))).collect::<Result<_>>()?;
        if let Some(delimiter) = self.delimiter {
            text.set_delimiter(&delimiter)?;
        }
        text.set_quote(&self.quote)?;
        let format = self.format.map(|text| text.parse()).transpose()?;
        Ok(files::ReadOptions { format, schema: self.schema.parse()?, hive: self.hive, text })
    }
}

/// A callback that gets the rows or bytes done, and may end the work.
type Progress = Option<Py<PyAny>>;

impl PyFleet {
    fn new(fleet: Fleet) -> Self {
        Self(Arc::new(Slot::new(fleet)))
    }

    /// The slot with the fleet, until it is closed.
    pub(crate) fn slot(&self) -> Arc<Slot> {
        Arc::clone(&self.0)
    }

    fn fleet(&self) -> PyResult<Arc<Fleet>> {
        self.0.fleet().or_raise()
    }
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal("cannot write JSON").with_source(e))
}

fn kind(text: &str) -> Result<DatasetKind> {
    match text {
        "table" => Ok(DatasetKind::Table),
        "expression" => Ok(DatasetKind::Expression),
        _ => Err(Error::invalid(format!("there is no kind of data set {text:?}: use 'table' or 'expression'"))),
    }
}

/// `batches`; `progress` gets the rows after each.
fn counted(batches: impl Iterator<Item = Result<RecordBatch>> + Send, progress: Progress) -> impl Iterator<Item = Result<RecordBatch>> + Send {
    let mut rows = 0;
    batches.map(move |batch| {
        let batch = batch?;
        rows += batch.num_rows() as u64;
        if let Some(progress) = &progress {
            let told = Python::attach(|py| progress.call1(py, (rows,)).map(drop));
            told.map_err(|e| Error::invalid("the progress function failed").with_source(e))?;
        }
        Ok(batch)
    })
}

/// Reports the progress of long work to a callback: the bytes done and the total. The work ends when the callback
/// fails.
struct Told {
    progress: Progress,
    failed: Notify,
    failure: Mutex<Option<PyErr>>,
}

impl Told {
    fn new(progress: Progress) -> Self {
        Self { progress, failed: Notify::new(), failure: Mutex::new(None) }
    }

    fn tell(&self, far: &Far) {
        let Some(progress) = &self.progress else { return };
        if let Err(e) = Python::attach(|py| progress.call1(py, (far.done, far.total)).map(drop)) {
            *self.failure.lock() = Some(e);
            self.failed.notify_one();
        }
    }

    /// The error of the callback, if it failed.
    fn failure(&self) -> Option<Error> {
        let cause = self.failure.lock().take()?;
        Some(Error::invalid("the progress function failed").with_source(cause))
    }

    /// The result of `work`, or the error of the callback if that fails first.
    async fn until<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let done = tokio::select! {
            biased;
            () = self.failed.notified() => None,
            done = work => Some(done),
        };
        match (self.failure(), done) {
            (None, Some(done)) => done,
            (Some(failure), _) => Err(failure),
            (None, None) => Err(Error::internal("the progress function failed without an error")),
        }
    }
}

/// A function that reports bytes done and the total to `progress`.
fn told(progress: Progress) -> impl FnMut(u64, u64) -> Result<()> + Send {
    move |done, total| match &progress {
        Some(progress) => {
            let told = Python::attach(|py| progress.call1(py, (done, total)).map(drop));
            told.map_err(|e| Error::invalid("the progress function failed").with_source(e))
        }
        None => Ok(()),
    }
}

/// Device profiles: one for all drives, one for each, or some by the drives' numbers.
#[derive(FromPyObject)]
enum Given {
    Every(String),
    Each(Vec<String>),
    Some(BTreeMap<usize, String>),
}

/// Measures whether a drive under the device profile `profile` works as that device would. Gives the figures as JSON.
#[pyfunction]
pub(crate) fn calibrate(py: Python<'_>, profile: String, dir: Option<PathBuf>, served: bool) -> PyResult<String> {
    block(py, async move { json(&skytether::calibrate(&profile, dir.as_deref(), served, |_| ()).await?) })
}

#[pymethods]
impl PyFleet {
    /// Opens an embedded fleet; creates it if `create` is set.
    #[staticmethod]
    #[pyo3(signature = (path, drives, redundancy, profile, create, memory_per_drive, memory_limit, spill_limit, slice_rows, threads = None, nodes = None,
        kept_per_drive = None))]
    #[expect(clippy::too_many_arguments, reason = "the Python side passes its keywords one by one")]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        drives: Option<usize>,
        redundancy: String,
        profile: Given,
        create: bool,
        memory_per_drive: Option<u64>,
        memory_limit: Option<usize>,
        spill_limit: Option<u64>,
        slice_rows: Option<u64>,
        threads: Option<usize>,
        nodes: Option<usize>,
        kept_per_drive: Option<u64>,
    ) -> PyResult<Self> {
        let profile = match profile {
            Given::Every(all) => Profiles::Every(all),
            Given::Each(each) => Profiles::Each(each),
            Given::Some(some) => Profiles::Some(some),
        };
        let options = OpenOptions { drives, redundancy, nodes, profile, create, memory_per_drive, kept_per_drive };
        let mut host = HostOptions::default();
        host.memory_limit = memory_limit.unwrap_or(host.memory_limit);
        host.spill_limit = spill_limit.unwrap_or(host.spill_limit);
        host.slices.max_rows = slice_rows.unwrap_or(host.slices.max_rows);
        host.threads = threads.unwrap_or(host.threads);
        block(py, async move { skytether_cli::open_fleet(&path, &options, host).await }).map(Self::new)
    }

    /// Connects to a host. Missing credentials come from environment variables.
    #[staticmethod]
    #[pyo3(signature = (url, token=None, tls_ca=None))]
    fn connect(py: Python<'_>, url: String, token: Option<String>, tls_ca: Option<PathBuf>) -> PyResult<Self> {
        let credentials = Credentials { token: token.map(Secret::from), tls_ca, ..Credentials::default() }.or_environment();
        block(py, async move { Fleet::connect_with(&url, &credentials).await }).map(Self::new)
    }

    /// Plans a query; `values` is a record batch of one row, with a column for each parameter.
    #[pyo3(signature = (text, cut, values = None))]
    fn sql(&self, py: Python<'_>, text: String, cut: &str, values: Option<PyRecordBatch>) -> PyResult<PyResultSet> {
        let values = values.map(|row| Values::new(row.into_inner())).transpose().or_raise()?.unwrap_or_default();
        PyResultSet::plan(py, Arc::clone(&self.0), Asked::sql(text, values), options(cut)?)
    }

    /// The columns of the table `domain.dataset` or `domain.dataset.table`.
    fn schema_of(&self, py: Python<'_>, table: String) -> PyResult<PySchema> {
        let fleet = self.fleet()?;
        Ok(PySchema::new(block(py, async move { fleet.schema_of(&table).await })?))
    }

    fn substrait(&self, py: Python<'_>, plan: Vec<u8>, cut: &str) -> PyResult<PyResultSet> {
        PyResultSet::plan(py, Arc::clone(&self.0), Asked::substrait(plan), options(cut)?)
    }

    /// Plans a scan of a table: of `columns`, of the Substrait `expressions`, or of the number of rows (`count`).
    #[pyo3(signature = (table, columns, expressions, filter, limit, count, batch_rows, cut))]
    #[expect(clippy::too_many_arguments, reason = "the Python side passes its keywords one by one")]
    fn scan(
        &self,
        py: Python<'_>,
        table: String,
        columns: Option<Vec<String>>,
        expressions: Option<Vec<u8>>,
        filter: Option<Vec<u8>>,
        limit: Option<usize>,
        count: bool,
        batch_rows: Option<u32>,
        cut: &str,
    ) -> PyResult<PyResultSet> {
        let output = match (columns, expressions) {
            _ if count => Output::Count,
            (_, Some(expressions)) => Output::Expressions(expressions),
            (Some(columns), None) => Output::Columns(columns),
            (None, None) => Output::All,
        };
        let mut options = options(cut)?;
        options.batch_rows = batch_rows.unwrap_or(options.batch_rows);
        PyResultSet::plan(py, Arc::clone(&self.0), Asked::Scan(TableScan { table, output, filter, limit }), options)
    }

    /// The columns of a table.
    fn schema<'py>(&self, py: Python<'py>, table: String) -> PyResult<Bound<'py, PyAny>> {
        let fleet = self.fleet()?;
        let schema = block(py, async move { fleet.schema_of(&table).await })?;
        Ok(PySchema::new(schema).into_pyobject(py)?.into_any())
    }

    /// The cut as text, and as JSON.
    fn explain(&self, py: Python<'_>, query: Written, analyze: bool, cut: &str) -> PyResult<(String, String)> {
        let (fleet, options) = (self.fleet()?, options(cut)?);
        let asked = match query {
            Written::Sql(text) => skytether::Statement::Sql(text.into()),
            Written::Substrait(plan) => skytether::Statement::Substrait(plan.into()),
        };
        block(py, async move {
            let explanation = fleet.explanation(asked, analyze, &options).await?;
            Ok((explanation.to_string(), json(&explanation)?))
        })
    }

    /// The data sets, as JSON.
    fn list(&self, py: Python<'_>) -> PyResult<String> {
        let fleet = self.fleet()?;
        block(py, async move { json(&fleet.list().await?) })
    }

    /// A data set's root record and its size, as JSON.
    fn describe(&self, py: Python<'_>, name: String) -> PyResult<String> {
        let fleet = self.fleet()?;
        block(py, async move {
            let record = fleet.describe(&name.parse()?).await?;
            let mut value = serde_json::to_value(&record).map_err(|e| Error::internal("cannot write JSON").with_source(e))?;
            value["bytes"] = record.bytes().into();
            // The parts of a matrix are not tables by themselves.
            for (name, table) in &record.tables {
                let parts = record.parts(name);
                if table.part.is_some() {
                    if let Some(tables) = value["tables"].as_object_mut() {
                        tables.remove(name);
                    }
                } else if parts.len() > 1 {
                    let shown = &mut value["tables"][name.as_str()];
                    shown["rows"] = record.rows_of(name).into();
                    shown["matrix"] = serde_json::to_value(record.matrix(name)).map_err(|e| Error::internal("cannot write JSON").with_source(e))?;
                    let partitions = parts.iter().filter_map(|part| record.tables.get(part)).flat_map(|part| &part.partitions);
                    let partitions: Vec<_> = partitions.collect();
                    shown["partitions"] = serde_json::to_value(partitions).map_err(|e| Error::internal("cannot write JSON").with_source(e))?;
                    shown["parts"] = parts.len().into();
                }
            }
            json(&value)
        })
    }

    fn drop(&self, py: Python<'_>, name: String) -> PyResult<()> {
        let fleet = self.fleet()?;
        block(py, async move { fleet.drop_dataset(&name.parse()?).await })
    }

    /// The drives, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let fleet = self.fleet()?;
        block(py, async move { json(&fleet.status().await?) })
    }

    /// Has the drives build an index, and gives its name.
    #[pyo3(signature = (dataset, table, columns, include, name = None))]
    fn create_index(
        &self,
        py: Python<'_>,
        dataset: String,
        table: String,
        columns: Vec<String>,
        include: Vec<String>,
        name: Option<String>,
    ) -> PyResult<String> {
        let (fleet, dataset) = (self.fleet()?, dataset.parse().or_raise()?);
        block(py, async move { fleet.create_index(&NewIndex { dataset, table, name, columns, include }).await })
    }

    /// Waits until an index is built, and gives its state as JSON.
    fn wait_for_index(&self, py: Python<'_>, dataset: String, name: String, progress: Progress) -> PyResult<String> {
        let (fleet, dataset) = (self.fleet()?, dataset.parse().or_raise()?);
        block(py, async move {
            let told = Told::new(progress);
            let tell = |info: &IndexInfo| {
                told.tell(&Far { done: (1000.0 * info.done) as u64, total: 1000, ..Far::default() });
                Ok(())
            };
            json(&told.until(fleet.wait_for_index(&OldIndex { dataset, name }, tell)).await?)
        })
    }

    /// The indexes, as JSON.
    #[pyo3(signature = (dataset = None))]
    fn indexes(&self, py: Python<'_>, dataset: Option<String>) -> PyResult<String> {
        let (fleet, dataset) = (self.fleet()?, dataset.map(|name| name.parse()).transpose().or_raise()?);
        block(py, async move { json(&fleet.indexes(&ListIndexes { dataset }).await?) })
    }

    fn drop_index(&self, py: Python<'_>, dataset: String, name: String) -> PyResult<()> {
        let (fleet, dataset) = (self.fleet()?, dataset.parse().or_raise()?);
        block(py, async move { fleet.drop_index(&OldIndex { dataset, name }).await })
    }

    /// Has the drives verify their values; the report as JSON.
    fn scrub(&self, py: Python<'_>, datasets: Vec<String>, bytes_per_s: Option<u64>, check: bool, progress: Progress) -> PyResult<String> {
        let datasets = datasets.iter().map(|name| name.parse()).collect::<Result<_>>().or_raise()?;
        let (fleet, options) = (self.fleet()?, ScrubOptions { datasets, bytes_per_s, check });
        block(py, async move {
            let told = Told::new(progress);
            let tell = |far: &Far| told.tell(far);
            json(&told.until(fleet.scrub(&options, &tell)).await?)
        })
    }

    /// Rebuilds lost drives on blank ones; the report as JSON.
    fn repair(&self, py: Python<'_>, drives: Vec<String>, address: Option<String>, bytes_per_s: Option<u64>, progress: Progress) -> PyResult<String> {
        let (fleet, options) = (self.fleet()?, RepairOptions { drives, address, bytes_per_s });
        block(py, async move {
            let told = Told::new(progress);
            let tell = |far: &Far| told.tell(far);
            json(&told.until(fleet.repair(&options, &tell)).await?)
        })
    }

    /// Adds and retires drives, and moves the values; the report as JSON.
    #[pyo3(signature = (count, addresses, retire, bytes_per_s, progress, node = None))]
    #[expect(clippy::too_many_arguments, reason = "the Python side passes its keywords one by one")]
    fn resize(
        &self,
        py: Python<'_>,
        count: usize,
        addresses: Vec<String>,
        retire: Vec<String>,
        bytes_per_s: Option<u64>,
        progress: Progress,
        node: Option<String>,
    ) -> PyResult<String> {
        let (fleet, options) = (self.fleet()?, ResizeOptions { count, addresses, node, retire, bytes_per_s });
        block(py, async move {
            let told = Told::new(progress);
            let tell = |far: &Far| told.tell(far);
            json(&told.until(fleet.resize(&options, &tell)).await?)
        })
    }

    /// Stores the files of `source` as a plain table. Gives warnings about the files, for people.
    #[expect(clippy::too_many_arguments, reason = "the Python side passes its keywords one by one")]
    fn ingest_files(
        &self,
        py: Python<'_>,
        source: PathBuf,
        name: String,
        replace: bool,
        partition_by: Vec<String>,
        redundancy: Option<String>,
        progress: Progress,
        reading: Reading,
    ) -> PyResult<Option<String>> {
        let redundancy = redundancy.map(|text| text.parse()).transpose().or_raise()?;
        let reading = reading.options().or_raise()?;
        let (fleet, options) = (self.fleet()?, IngestOptions { replace, partition_by, redundancy });
        block(py, async move {
            let name: DatasetName = name.parse()?;
            let table = files::open_with(&files::find(&[source])?, &reading)?;
            fleet.ingest_table(&name, table.schema, counted(table.batches, progress), options).await?;
            Ok(table.hint)
        })
    }

    /// Stores the rows of an Arrow stream as a plain table; the report as JSON.
    #[expect(clippy::too_many_arguments, reason = "the Python side passes its keywords one by one")]
    fn ingest_stream(
        &self,
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        name: String,
        replace: bool,
        partition_by: Vec<String>,
        redundancy: Option<String>,
        progress: Progress,
    ) -> PyResult<String> {
        let redundancy = redundancy.map(|text| text.parse()).transpose().or_raise()?;
        let (fleet, options) = (self.fleet()?, IngestOptions { replace, partition_by, redundancy });
        let reader = incoming(source, &name)?;
        block(py, async move {
            let failed = format!("{name}: the source of rows failed");
            let name: DatasetName = name.parse()?;
            let schema = reader.schema();
            let batches = reader.map(|batch| batch.map_err(|e| Error::invalid(failed.clone()).with_source(e)));
            json(&fleet.ingest_table(&name, schema, counted(batches, progress), options).await?)
        })
    }

    /// Writes a table to a file; the report as JSON.
    fn export(&self, py: Python<'_>, table: String, to: PathBuf, replace: bool, progress: Progress) -> PyResult<String> {
        let fleet = self.fleet()?;
        block(py, async move { json(&fleet.export(&table, &to, replace, told(progress)).await?) })
    }

    /// A table as a file that is read without a copy on disk.
    fn plain_file(&self, py: Python<'_>, table: String) -> PyResult<PyPlainFile> {
        let (slot, fleet) = (Arc::clone(&self.0), self.fleet()?);
        block(py, async move { PyPlainFile::open(slot, fleet, &table).await })
    }

    /// Begins to write a data set of `kind` (`table` or `expression`).
    #[pyo3(signature = (name, kind, replace, redundancy = None))]
    fn writer(&self, py: Python<'_>, name: String, kind: &str, replace: bool, redundancy: Option<String>) -> PyResult<PyWriter> {
        let (fleet, kind) = (self.fleet()?, self::kind(kind).or_raise()?);
        block(py, async move {
            let mut writer = fleet.writer(&name.parse()?, kind, replace).await?;
            if let Some(text) = redundancy {
                let scheme = text.parse()?;
                fleet.check_redundancy(scheme)?;
                writer.redundancy(scheme)?;
            }
            Ok(writer)
        })
        .map(PyWriter::new)
    }

    /// Begins to write a version of a data set: it keeps the tables of generation `before` that it does not write.
    fn version(&self, py: Python<'_>, name: String, before: u64) -> PyResult<PyWriter> {
        let fleet = self.fleet()?;
        block(py, async move { fleet.version(&name.parse()?, Generation(before)).await }).map(PyWriter::new)
    }

    /// The directory or URL.
    fn location(&self) -> &str {
        self.0.location()
    }

    /// Whether the fleet is behind a connection.
    fn is_remote(&self) -> bool {
        self.0.is_remote()
    }

    /// Closes the fleet, and waits until it is closed.
    fn close(&self, py: Python<'_>) {
        let open = self.0.close();
        py.detach(|| {
            drop(open);
            self.0.wait_until_closed();
        });
    }

    /// Has a thread of ours close the fleet. It keeps Python's lock and does not wait: finalisers call it on any thread
    /// and while Python exits, where a thread that releases the lock never gets it again.
    fn release(&self) {
        self.0.release();
    }
}
