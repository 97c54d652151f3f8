//! Tables as plain Parquet files, and files of synthetic particles.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use skytether::{Fleet, ParquetView, Particles, VirtualFile, generate};
use skytether_common::{Error, Result};
use skytether_formats::Format;

use crate::errors::OrRaise;
use crate::runtime::block;
use crate::slot::Slot;

/// A table as a Parquet file that is read without a copy on disk. It keeps no fleet open.
#[pyclass(name = "PlainFile", module = "skytether._internal", frozen)]
pub struct PyPlainFile {
    slot: Arc<Slot>,
    file: Arc<VirtualFile>,
    /// The view of a fleet behind a connection, kept so that the host is not asked for its drives each time.
    door: Option<ParquetView>,
}

/// The view through which tables of a fleet are read.
async fn door(slot: &Slot, kept: Option<ParquetView>) -> Result<ParquetView> {
    let fleet = slot.fleet()?;
    match kept {
        Some(door) => Ok(door),
        None => fleet.door().await,
    }
}

impl PyPlainFile {
    pub(crate) async fn open(slot: Arc<Slot>, fleet: Arc<Fleet>, table: &str) -> Result<Self> {
        let door = fleet.door().await?;
        let file = Arc::new(door.open(table).await?);
        Ok(Self { slot, file, door: fleet.is_remote().then_some(door) })
    }
}

#[pymethods]
impl PyPlainFile {
    /// Bytes of the file.
    fn size(&self) -> u64 {
        self.file.len()
    }

    /// Rows.
    fn rows(&self) -> u64 {
        self.file.rows()
    }

    /// The generation of the data set.
    fn generation(&self) -> u64 {
        self.file.generation().0
    }

    /// Whether the table still has the generation that the file was opened with.
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        let (slot, file, kept) = (Arc::clone(&self.slot), Arc::clone(&self.file), self.door.clone());
        block(py, async move { door(&slot, kept).await?.is_current(&file).await })
    }

    /// The same file through another object for the same fleet, with its connection and its current drives.
    fn of(&self, py: Python<'_>, fleet: &crate::fleet::PyFleet) -> PyResult<Self> {
        let slot = fleet.slot();
        let door = if Arc::ptr_eq(&slot, &self.slot) {
            self.door.clone()
        } else {
            let slot = Arc::clone(&slot);
            block(py, async move {
                let fleet = slot.fleet()?;
                if fleet.is_remote() { fleet.door().await.map(Some) } else { Ok(None) }
            })?
        };
        Ok(Self { slot, file: Arc::clone(&self.file), door })
    }

    /// Bytes from `start` (included) to `end` (excluded).
    fn read<'py>(&self, py: Python<'py>, start: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let (slot, file, kept) = (Arc::clone(&self.slot), Arc::clone(&self.file), self.door.clone());
        let bytes = block(py, async move { door(&slot, kept).await?.read(&file, start..end).await })?;
        Ok(PyBytes::new(py, &bytes))
    }
}

/// Writes synthetic particles to a file, and gives its bytes.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the Python side passes its keywords one by one")]
pub(crate) fn generate_particles(
    py: Python<'_>,
    to: PathBuf,
    rows: u64,
    seed: u64,
    gathered: f64,
    format: Option<String>,
    replace: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let particles = Particles::new(rows, seed).gathered(gathered).or_raise()?;
    let format = format.map_or_else(|| Format::of(&to), |text| text.parse()).or_raise()?;
    block(py, async move {
        let mut done = 0;
        // An interrupt drops `wanted`. The thread, which can't be ended from outside, sees that with its next rows.
        let wanted = Arc::new(());
        let still = Arc::downgrade(&wanted);
        let written = tokio::task::spawn_blocking(move || {
            generate::particles(&particles, &to, format, replace, |rows| {
                if still.strong_count() == 0 {
                    return Err(Error::unavailable("writing the file was interrupted"));
                }
                done += rows;
                match &progress {
                    Some(progress) => {
                        let told = Python::attach(|py| progress.call1(py, (done,)).map(drop));
                        told.map_err(|e| Error::invalid("the progress function failed").with_source(e))
                    }
                    None => Ok(()),
                }
            })
        });
        let written = written.await.map_err(|e| Error::internal("writing a file was interrupted").with_source(e))?;
        drop(wanted);
        written
    })
}
