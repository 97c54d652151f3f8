//! The runtime of sessions, which may end anywhere.

use skytether_common::{Error, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime. Dropping one inside of another runtime is not allowed, so that this leaves its threads to end by
/// themselves there.
#[derive(Debug)]
pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    pub(crate) fn start() -> Result<Self> {
        let built = Builder::new_multi_thread().worker_threads(2).thread_name("oas").enable_all().build();
        Ok(Self(Some(built.map_err(|cause| Error::unavailable("threads can't be started").with_source(cause))?)))
    }

    /// Waits for work.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.0.as_ref().map_or_else(|| Err(Error::internal("the threads have ended")), |runtime| runtime.block_on(work))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if Handle::try_current().is_ok()
            && let Some(runtime) = self.0.take()
        {
            runtime.shutdown_background();
        }
    }
}
