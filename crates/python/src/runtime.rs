//! The process's threads, and waiting on them so that Ctrl-C interrupts.

use std::future::Future;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use skytether_common::{Error, Result};
use tokio::runtime::{Handle, Runtime};
use tokio::task::{JoinError, JoinHandle};

use crate::errors::{OrRaise, to_py};

/// Longest time until Ctrl-C is noticed.
pub(crate) const NOTICE: Duration = Duration::from_millis(50);

/// The runtime and the process that it belongs to: threads do not survive a fork.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// The runtime of this process: a thread per core, made on first use.
///
/// # Errors
/// Unavailable where the system gives no threads.
pub(crate) fn runtime() -> Result<&'static Runtime> {
    let mut kept = RUNTIME.lock();
    let process = std::process::id();
    if let Some((of, runtime)) = *kept
        && of == process
    {
        return Ok(runtime);
    }
    let made = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, usize::from).max(2))
        .thread_name("skytether")
        // Blocking threads read slices and sync files; more of them than a disk can use only cost memory.
        .max_blocking_threads(16)
        // Planning recurses over expressions: long conditions need more than the usual 2 MiB. Address
        // space only, until it is used.
        .thread_stack_size(32 << 20)
        .enable_all()
        .build()
        .map_err(|e| Error::unavailable("cannot start threads").with_source(e))?;
    // Lives as long as the process; a runtime that is dropped while Python exits could hang.
    let made: &'static Runtime = Box::leak(Box::new(made));
    *kept = Some((process, made));
    Ok(made)
}

/// Runs `work` on the runtime without Python's lock; ctrl-C cancels it and raises `KeyboardInterrupt`.
pub(crate) fn block<T, W>(py: Python<'_>, work: W) -> PyResult<T>
where
    T: Send + 'static,
    W: Future<Output = Result<T>> + Send + 'static,
{
    let runtime = runtime().or_raise()?;
    let mut task = runtime.spawn(work);
    loop {
        match py.detach(|| poll(runtime.handle(), &mut task)) {
            Some(Ok(done)) => return done.or_raise(),
            Some(Err(e)) => return Err(to_py(&stopped(e))),
            None => {
                if let Err(interrupt) = py.check_signals() {
                    task.abort();
                    return Err(interrupt);
                }
            }
        }
    }
}

/// Waits for `task`, at most [`NOTICE`]; `None` if it is not finished by then.
fn poll<T>(runtime: &Handle, task: &mut JoinHandle<Result<T>>) -> Option<std::result::Result<Result<T>, JoinError>> {
    runtime.block_on(async { tokio::time::timeout(NOTICE, task).await.ok() })
}

/// Why a task ended before its work did.
pub(crate) fn stopped(error: JoinError) -> Error {
    if error.is_panic() {
        Error::internal("a task of Skytether's failed; this is a defect, please report it").with_source(error)
    } else {
        Error::unavailable("the work was cancelled")
    }
}
