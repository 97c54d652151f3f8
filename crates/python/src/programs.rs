//! [`PyProgramLibrary`]: programs inside Kinetic drives; [`PyWatch`]: those that run when keys change.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use skytether_common::{Error, Result};
use skytether_kinetic::library::{ProgramLibrary, ProgramRun, StoredProgram};
use skytether_kinetic::watching::{Watching, word};
use skytether_kinetic::{ClientOptions, HmacKey, Identity, MessageType, Noticed, ProgramResult, Watched};
use tokio::sync::{Mutex, Notify};

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

fn program_run(arguments: Vec<Vec<u8>>, output_key: Option<Vec<u8>>, timeout: Option<f64>) -> Result<ProgramRun> {
    let most = timeout.map(|seconds| seconds_above_0("timeout", seconds)).transpose()?;
    Ok(ProgramRun { arguments: arguments.into_iter().map(Into::into).collect(), output_key: output_key.map(Into::into), most })
}

fn seconds_above_0(what: &str, seconds: f64) -> Result<Duration> {
    let time = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    time.ok_or_else(|| Error::invalid(format!("the {what} is {seconds} s; give a number of seconds above 0")))
}

fn kind_of(word: &str) -> Result<MessageType> {
    match word {
        "put" => Ok(MessageType::Put),
        "delete" => Ok(MessageType::Delete),
        _ => Err(Error::invalid(format!("{word:?} is no change of a key: say \"put\" or \"delete\""))),
    }
}

/// A watch that was set, and the runs that the drive tells of.
#[pyclass(name = "ProgramWatch", module = "skytether._internal", frozen)]
pub struct PyWatch {
    watching: Arc<Mutex<Watching>>,
    /// Those that were lost: a thread may wait in `next` with the lock above.
    missed: Arc<AtomicU64>,
    ended: Arc<Ended>,
}

/// Wakes a thread that waits in `next`, so that another one can end the watch.
#[derive(Default)]
struct Ended {
    woken: Notify,
    /// For those that begin to wait later.
    is: AtomicBool,
}

/// Key, change, whether the program ran; then exit code, signal, message (the refusal) and what it printed.
type Told<'py> = (Bound<'py, PyBytes>, &'static str, bool, i32, i32, String, Bound<'py, PyBytes>);

#[pymethods]
impl PyWatch {
    /// The next run; `None` if there is none within `timeout` seconds, or another thread ends the watch.
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Told<'py>>> {
        let patience = timeout.map(|seconds| seconds_above_0("timeout", seconds)).transpose().or_raise()?;
        let (watching, ended) = (Arc::clone(&self.watching), Arc::clone(&self.ended));
        let told = block(py, async move {
            let woken = ended.woken.notified();
            tokio::pin!(woken);
            // In this order: a thread that sets the flag after this look at it wakes this one.
            woken.as_mut().enable();
            let is_ended = ended.is.load(Ordering::SeqCst);
            let ended = async {
                if !is_ended {
                    woken.await;
                }
            };
            let patience = async {
                match patience {
                    Some(patience) => tokio::time::sleep(patience).await,
                    None => std::future::pending().await,
                }
            };
            let next = async { watching.lock().await.next().await };
            tokio::select! {
                biased;
                told = next => told.map(Some),
                () = ended => Ok(None),
                () = patience => Ok(None),
            }
        })?;
        Ok(told.map(|Noticed { key, kind, ended, .. }| {
            let (ran, ended) = match ended {
                Ok(ended) => (true, ended),
                Err(refusal) => (false, ProgramResult { exit_code: -1, signal: 0, message: refusal.to_string(), output: Default::default() }),
            };
            let ProgramResult { exit_code, signal, message, output } = ended;
            (PyBytes::new(py, &key), word(kind), ran, exit_code, signal, message, PyBytes::new(py, &output))
        }))
    }

    /// How many runs came faster than they were taken, and were lost.
    fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Ends the watch.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let (watching, ended) = (Arc::clone(&self.watching), Arc::clone(&self.ended));
        block(py, async move {
            ended.is.store(true, Ordering::SeqCst);
            ended.woken.notify_waiters();
            watching.lock().await.end().await
        })
    }
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
        let run = program_run(arguments, output_key, timeout).or_raise()?;
        let ended = self.ask(py, move |library| async move { library.run(&name, run).await })?;
        let result = ended.result;
        Ok((result.exit_code, result.signal, result.message, PyBytes::new(py, &result.output), PyBytes::new(py, &ended.value)))
    }

    #[allow(clippy::too_many_arguments, reason = "the parameters of Python's method")]
    fn watch(
        &self,
        py: Python<'_>,
        name: String,
        first: Vec<u8>,
        last: Vec<u8>,
        kinds: Vec<String>,
        arguments: Vec<Vec<u8>>,
        output_key: Option<Vec<u8>>,
        timeout: Option<f64>,
    ) -> PyResult<PyWatch> {
        let kinds = kinds.iter().map(|kind| kind_of(kind)).collect::<Result<Vec<_>>>().or_raise()?;
        let changes = Watched { first: first.into(), last: last.into(), kinds };
        let run = program_run(arguments, output_key, timeout).or_raise()?;
        let watching = self.ask(py, move |library| async move { library.watch(&name, changes, run).await })?;
        Ok(PyWatch { missed: watching.missed_so_far(), watching: Arc::new(Mutex::new(watching)), ended: Arc::default() })
    }

    fn unwatch(&self, py: Python<'_>, name: String) -> PyResult<()> {
        self.ask(py, move |library| async move { library.unwatch(&name).await })
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

    fn keys<'py>(&self, py: Python<'py>, first: Vec<u8>, last: Vec<u8>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let keys = self.ask(py, move |library| async move { library.keys(first.into(), last.into()).await })?;
        Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
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
