//! Files in CephFS and in RADOS, for `python/skytether/_ceph.py`.

use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::PyDataType;
use skytether_common::{Error, Result};
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

    /// Raises where the file is not as it was listed any more.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let file = Arc::clone(&self.file);
        there(py, move || file.check())
    }

    /// What was read of each object: its name, reads, bytes.
    fn reads(&self) -> Vec<(String, u64, u64)> {
        self.file.reads().into_iter().map(|of| (of.object, of.reads, of.bytes)).collect()
    }
}

/// The narrowest type that holds every value of both types exactly, if there is one.
#[pyfunction]
pub(crate) fn common_type(a: PyDataType, b: PyDataType) -> Option<PyDataType> {
    skytether_formats::common_type(&a.into_inner(), &b.into_inner()).map(PyDataType::new)
}
