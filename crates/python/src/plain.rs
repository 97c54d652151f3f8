//! Tables as plain Parquet files, and files of made-up particles.

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

/// A table as a Parquet file that is read where it is. It keeps no fleet open.
#[pyclass(name = "PlainFile", module = "skytether._internal", frozen)]
pub struct PyPlainFile {
    slot: Arc<Slot>,
    file: Arc<VirtualFile>,
    /// Of a fleet behind a connection, so that the host need not be asked for its drives each time.
    door: Option<ParquetView>,
}

/// Where a table of a fleet is read from.
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

    /// The version of the data set's content.
    fn generation(&self) -> u64 {
        self.file.generation().0
    }

    /// Whether the table still is what it was when the file was opened.
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        let (slot, file, kept) = (Arc::clone(&self.slot), Arc::clone(&self.file), self.door.clone());
        block(py, async move { door(&slot, kept).await?.is_current(&file).await })
    }

    /// The same file, read through another object for the same fleet: its connection, and the drives
    /// as they are behind that.
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

    /// Bytes from `start` to before `end`.
    fn read<'py>(&self, py: Python<'py>, start: u64, end: u64) -> PyResult<Bound<'py, PyBytes>> {
        let (slot, file, kept) = (Arc::clone(&self.slot), Arc::clone(&self.file), self.door.clone());
        let bytes = block(py, async move { door(&slot, kept).await?.read(&file, start..end).await })?;
        Ok(PyBytes::new(py, &bytes))
    }
}

/// Writes made-up particles to a file; its bytes.
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
        // Whoever interrupts this lets go of the one, and the thread, which nothing can end from outside,
        // sees it with the next rows.
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
