//! Work that blocks, on the async runtime's own threads: reads from the local store.

use std::sync::Arc;

use skytether_common::{Error, Result};
use skytether_emulation::Processor;
use skytether_emulation::timer::sleep_until;
use skytether_emulation::wait::deferred;

/// Runs `work` on a thread that may block; a panic there becomes an error here.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_cancelled() => Err(Error::unavailable("the drive is shutting down")),
        Err(error) => Err(Error::internal("a thread that reads the store panicked").with_source(error)),
    }
}

/// As [`blocking`], on the cores of a device if there is one. Waiting for the device's time takes no thread.
///
/// # Errors
/// As there.
pub async fn blocking_on<T: Send + 'static>(processor: Option<Arc<Processor>>, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let Some(processor) = processor else { return blocking(work).await };
    let (done, due) = blocking(move || Ok(deferred(|| processor.work(work)))).await?;
    if let Some(due) = due {
        sleep_until(due).await;
    }
    done
}
