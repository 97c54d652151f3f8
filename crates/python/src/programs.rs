//! [`PyProgramLibrary`]: programs inside Kinetic drives.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use skytether_common::{Error, Result};
use skytether_kinetic::library::{ProgramLibrary, ProgramRun, StoredProgram};
use skytether_kinetic::{ClientOptions, HmacKey, Identity};

use crate::errors::OrRaise;
use crate::runtime::block;

/// The programs of one drive.
#[pyclass(name = "ProgramLibrary", module = "skytether._internal", frozen)]
pub struct PyProgramLibrary(Arc<ProgramLibrary>);

/// Name, language, bytes, keys and runs of a program.
type Stored = (String, &'static str, u64, u32, u32);

fn stored(program: StoredProgram) -> Stored {
    (program.name, program.language.as_str(), program.bytes, program.keys, program.running)
}

#[pymethods]
impl PyProgramLibrary {
    #[staticmethod]
    fn connect(py: Python<'_>, url: String, identity: Option<i64>, key: Option<String>, tls_ca: Option<PathBuf>) -> PyResult<Self> {
        let connecting = async move {
            let at = url.parse().map_err(|e: Error| Error::invalid(format!("{url:?} is no address of a Kinetic drive")).with_source(e))?;
            let known = Identity::from_environment()?;
            let identity = Identity { number: identity.unwrap_or(known.number), key: key.map_or(known.key, |key| HmacKey::new(key.as_bytes())) };
            ProgramLibrary::connect(&at, ClientOptions::of(identity, tls_ca)).await
        };
        Ok(Self(Arc::new(block(py, connecting)?)))
    }

    fn put(&self, py: Python<'_>, name: String, program: Vec<u8>) -> PyResult<Stored> {
        self.ask(py, move |library| async move { library.put(&name, program.into()).await.map(stored) })
    }

    #[allow(clippy::type_complexity, reason = "a tuple of Python")]
    fn run<'py>(
        &self,
        py: Python<'py>,
        name: String,
        arguments: Vec<Vec<u8>>,
        output_key: Option<Vec<u8>>,
        timeout: Option<f64>,
    ) -> PyResult<(i32, i32, String, Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let most = timeout.map(|seconds| {
            Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|time| !time.is_zero())
                .ok_or_else(|| Error::invalid(format!("the timeout is {seconds} s; give a number of seconds above 0")))
        });
        let most = most.transpose().or_raise()?;
        let run = ProgramRun { arguments: arguments.into_iter().map(Into::into).collect(), output_key: output_key.map(Into::into), most };
        let ended = self.ask(py, move |library| async move { library.run(&name, run).await })?;
        let result = ended.result;
        Ok((result.exit_code, result.signal, result.message, PyBytes::new(py, &result.output), PyBytes::new(py, &ended.value)))
    }

    fn list(&self, py: Python<'_>) -> PyResult<Vec<Stored>> {
        self.ask(py, |library| async move { Ok(library.list().await?.into_iter().map(stored).collect()) })
    }

    fn remove(&self, py: Python<'_>, name: String) -> PyResult<()> {
        self.ask(py, move |library| async move { library.remove(&name).await })
    }

    fn read<'py>(&self, py: Python<'py>, key: Vec<u8>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let value = self.ask(py, move |library| async move { library.read(&key).await })?;
        Ok(value.map(|value| PyBytes::new(py, &value)))
    }

    fn write(&self, py: Python<'_>, key: Vec<u8>, value: Vec<u8>) -> PyResult<()> {
        self.ask(py, move |library| async move { library.write(&key, value.into()).await })
    }

    fn delete(&self, py: Python<'_>, key: Vec<u8>) -> PyResult<()> {
        self.ask(py, move |library| async move { library.delete(&key).await })
    }

    fn abort(&self, py: Python<'_>, name: String) -> PyResult<()> {
        self.ask(py, move |library| async move { library.abort(&name).await })
    }
}

impl PyProgramLibrary {
    fn ask<T, W>(&self, py: Python<'_>, work: impl FnOnce(Arc<ProgramLibrary>) -> W) -> PyResult<T>
    where
        T: Send + 'static,
        W: Future<Output = Result<T>> + Send + 'static,
    {
        block(py, work(Arc::clone(&self.0)))
    }
}
