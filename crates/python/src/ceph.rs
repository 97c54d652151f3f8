//! Files in CephFS and in RADOS, for `python/skytether/_ceph.py`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::Schema;
use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::{PyDataType, PySchema};
use skytether_ceph_protocol::{CLASS, FileFormat, Limits, Object, Outcome, Piece, RUN, Request, Response};
use skytether_common::{DatasetName, Error, Result};
use skytether_host::FileScan;
use skytether_rados::{CephFile, CephFiles, Listed};

use crate::errors::OrRaise;
use crate::runtime::{block, stopped};

/// A tree of files, and the files in it as they were listed last.
#[pyclass(name = "CephFiles", module = "skytether._internal", frozen)]
pub struct PyCephFiles {
    files: Arc<CephFiles>,
    listed: Vec<Listed>,
}

/// An open file.
#[pyclass(name = "CephFile", module = "skytether._internal", frozen)]
pub struct PyCephFile {
    file: Arc<CephFile>,
}

/// Does what blocks on a thread that may.
fn there<T: Send + 'static>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send + 'static) -> PyResult<T> {
    block(py, async move { tokio::task::spawn_blocking(work).await.map_err(stopped)? })
}

#[pymethods]
impl PyCephFiles {
    /// Connects; with `listing`, lists the files.
    #[new]
    fn new(py: Python<'_>, address: String, listing: bool) -> PyResult<Self> {
        let (files, listed) = there(py, move || {
            let files = CephFiles::open(&address)?;
            let listed = if listing { files.list()? } else { Vec::new() };
            Ok((Arc::new(files), listed))
        })?;
        Ok(Self { files, listed })
    }

    /// The address without parameters.
    fn name(&self) -> &str {
        self.files.name()
    }

    /// The path below which names of directories say what is in them.
    fn base(&self) -> &str {
        self.files.base()
    }

    /// Paths and sizes of the files.
    fn list(&self) -> Vec<(String, u64)> {
        self.listed.iter().map(|file| (file.path.clone(), file.size)).collect()
    }

    /// Opens the file at `path`, which must be as it was listed.
    fn open(&self, py: Python<'_>, path: &str) -> PyResult<PyCephFile> {
        let at = self.listed.binary_search_by(|file| file.path.as_str().cmp(path));
        let found =
            at.ok().and_then(|at| self.listed.get(at)).ok_or_else(|| Error::not_found(format!("{path} is not among the files of {}", self.files.name())));
        let (files, listed) = (Arc::clone(&self.files), found.or_raise()?.clone());
        let file = there(py, move || files.file(&listed))?;
        Ok(PyCephFile { file: Arc::new(file) })
    }

    /// The OSD that serves an object now.
    fn osd(&self, py: Python<'_>, pool: String, namespace: String, object: String) -> PyResult<Option<i64>> {
        let files = Arc::clone(&self.files);
        there(py, move || files.osd(&pool, &namespace, &object))
    }

    /// Writes a file below the tree's path.
    fn write(&self, py: Python<'_>, path: String, bytes: Vec<u8>) -> PyResult<()> {
        let files = Arc::clone(&self.files);
        there(py, move || files.write(&path, Bytes::from(bytes)))
    }
}

#[pymethods]
impl PyCephFile {
    /// Bytes of the file.
    fn size(&self) -> u64 {
        self.file.len()
    }

    /// Bytes from `start` (included) to `end` (excluded).
    fn read<'py>(&self, py: Python<'py>, start: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let file = Arc::clone(&self.file);
        let bytes = there(py, move || file.read(start..end))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Object, first byte and end of the parts of the bytes from `start` to `end`.
    fn objects(&self, start: u64, end: u64) -> Vec<(String, u64, u64)> {
        self.file.objects(start..end).into_iter().map(|part| (part.object, part.range.start, part.range.end)).collect()
    }

    /// Pool and namespace of its objects.
    fn pool(&self) -> (String, String) {
        let (pool, namespace) = self.file.pool();
        (pool.to_owned(), namespace.to_owned())
    }

    /// Has the OSD of an object run a scan over the part of the file in it. Gives the OSD's number, rows as an Arrow
    /// IPC stream or None, their number, bytes of the object that were read, seconds, and why there are no rows.
    fn scan(&self, py: Python<'_>, part: Part, scan: &PyScan) -> PyResult<Scanned> {
        let (file, mut request) = (Arc::clone(&self.file), scan.request.clone());
        request.object = Object::File {
            format: scan.format,
            size: file.len(),
            at: part.at,
            len: part.len,
            groups: part.groups,
            pieces: part.pieces.into_iter().map(|(at, bytes)| Piece { at, bytes }).collect(),
        };
        there(py, move || {
            let called = file.call(&part.object, CLASS, RUN, &request.encode())?;
            let none = |osd, reason| Ok((osd, None, 0, 0, 0.0, Some(reason)));
            // A refusal has a reason in words as well as an error's number.
            let response = match (Response::decode(&called.output), called.error()) {
                (Ok(response), _) => response,
                (Err(_), Some(error)) => return none(None, error),
                (Err(wrong), None) => return none(None, format!("the answer of the object class can't be read: {wrong}")),
            };
            let receipt = response.receipt;
            match response.outcome {
                Outcome::Rows(rows) => Ok((receipt.osd, Some(rows.into()), receipt.rows, receipt.bytes_read, receipt.time.as_secs_f64(), None)),
                Outcome::Refused(why, reason) => none(receipt.osd, format!("{why:?}: {reason}")),
            }
        })
    }

    /// What was read of each object: its name, reads, bytes.
    fn reads(&self) -> Vec<(String, u64, u64)> {
        self.file.reads().into_iter().map(|of| (of.object, of.reads, of.bytes)).collect()
    }
}

/// The part of a file in one object.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Part {
    object: String,
    at: u64,
    len: u64,
    groups: Option<Vec<u32>>,
    pieces: Vec<(u64, Vec<u8>)>,
}

/// OSD, rows, their number, bytes read, seconds, reason.
type Scanned = (Option<u32>, Option<Cow<'static, [u8]>>, u64, u64, f64, Option<String>);

/// A scan that OSDs run over files of the same columns.
#[pyclass(name = "CephScan", module = "skytether._internal", frozen)]
pub struct PyScan {
    format: FileFormat,
    request: Request,
}

#[pymethods]
impl PyScan {
    /// A scan of `columns` over files with the columns of `schema`.
    #[new]
    fn new(py: Python<'_>, format: &str, schema: PySchema, columns: Vec<String>, filter: Option<Vec<u8>>) -> PyResult<Self> {
        let format = match format {
            "parquet" => Ok(FileFormat::Parquet),
            "feather" => Ok(FileFormat::Arrow),
            other => Err(Error::unsupported(format!("{other} files are read here, by pyarrow's rules of text"))),
        };
        let format = format.or_raise()?;
        let schema = schema.into_inner();
        let request = block(py, async move {
            let dataset = DatasetName::new("ceph", "files")?;
            let table = "file".to_owned();
            let schema = skytether_formats::storage_schema::schema(&dataset, &schema)?;
            let scan = FileScan { dataset: dataset.clone(), table: table.clone(), schema: Arc::clone(&schema), columns, filter: filter.map(Bytes::from) };
            let plan = scan.sub_plan().await?;
            let plain = Schema::new(schema.fields().clone());
            let named = StreamWriter::try_new(Vec::new(), &plain).and_then(StreamWriter::into_inner);
            Ok(Request {
                limits: Limits::default(),
                object: Object::Slice { len: 0, crc32c: 0 },
                table: [dataset.domain().to_owned(), dataset.dataset().to_owned(), table],
                schema: named.map_err(|e| Error::internal("columns can't be written as an Arrow IPC stream").with_source(e))?,
                plan: plan.to_vec(),
                filters: BTreeMap::new(),
                tables: BTreeMap::new(),
            })
        })?;
        Ok(Self { format, request })
    }
}

/// The narrowest type that holds every value of both types exactly, if there is one.
#[pyfunction]
pub(crate) fn common_type(a: PyDataType, b: PyDataType) -> Option<PyDataType> {
    skytether_formats::common_type(&a.into_inner(), &b.into_inner()).map(PyDataType::new)
}
