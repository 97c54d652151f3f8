//! Dedicated threads for work that blocks, such as remote reads.
//!
//! The async runtime has few threads that may block, and the drives of an embedded fleet read with them. If reads from
//! those drives used these threads as well, they could take all of them, and no drive could answer.

use std::panic::AssertUnwindSafe;

use skytether_common::{Error, Result};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, oneshot};

/// Plans are recursive. Memory that is not used is not taken.
const STACK: usize = 32 << 20;

/// A bounded number of threads.
#[derive(Debug)]
pub struct Threads(Semaphore);

impl Threads {
    /// At most `most` threads at the same time.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS)))
    }

    /// Runs `work`, which may block, when there is a thread for it.
    ///
    /// # Errors
    /// As [`spawn_blocking_thread`].
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        // It is never closed.
        let _permit = self.0.acquire().await.map_err(|e| Error::internal("no more threads are given").with_source(e))?;
        spawn_blocking_thread(work).await
    }
}

/// That the system gave no thread.
#[must_use]
pub fn no_more(cause: std::io::Error) -> Error {
    Error::exhausted("the system has no more threads: let this process have more").with_source(cause)
}

/// Runs `work`, which may block, on a thread of its own within the present runtime. The thread runs to its end even
/// where its caller is gone.
///
/// # Errors
/// Those of `work`; Exhausted where the system has no more threads; Internal where `work` panics.
///
/// # Panics
/// Outside a runtime.
pub async fn spawn_blocking_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let runtime = Handle::current();
    let run = move || {
        let _within = runtime.enter();
        let done = std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::internal("a defect in a thread that works off slices")));
        let _ = sender.send(done);
    };
    let thread = std::thread::Builder::new().name("skytether-above".to_owned()).stack_size(STACK).spawn(run).map_err(no_more)?;
    let done = receiver.await.unwrap_or_else(|e| Err(Error::internal("a thread ended without an answer").with_source(e)));
    // The thread has nothing left to do. Not joining it means `pthread_detach`, which in glibc (2.36, say) may read
    // memory that a thread unmaps when it ends at that moment.
    let _ = thread.join();
    done
}

/// Runs `work`, which may wait for a lock, a disk or a task, on this thread. Where this is a thread of a runtime with
/// several, its other tasks go on elsewhere meanwhile: what `work` waits for may be one of them.
pub fn waiting<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn threads_are_limited_and_panics_become_errors() {
        let (threads, now, most) = (Threads::new(3), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let runs = (0..12).map(|n| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            threads.run(move || {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(n)
            })
        });
        let done = futures::future::try_join_all(runs).await.unwrap();
        assert_eq!(done, (0..12).collect::<Vec<_>>());
        assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let error = threads.run::<()>(|| panic!("no")).await.unwrap_err();
        std::panic::set_hook(quiet);
        assert!(error.to_string().contains("defect"), "{error}");
    }
}
