//! Planning away from the threads that serve.
//!
//! The rules of the planner run without a pause, some for seconds where a query is large. On a thread of the runtime
//! they would hold up every other request of the host. So each query is planned on a thread of its own, with a stack
//! that its recursion fits in, at most [`AT_ONCE`] of them, and the caller waits no longer than a deadline.
//!
//! A thread whose caller has gone ends before the next rule, or at the next operator that a rule looks at
//! ([`skytether_plan::planning`]), and keeps its place until then. The limits of the text, of the expansion and of
//! copies ([`crate::sql_limits`], [`crate::expansion`], `skytether_plan::analysis`) refuse what is known to grow. They
//! are no bound on the time of every query. Where all places are taken, queries wait, and the error at their deadline
//! says so.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use datafusion::common::DataFusionError;
use futures::FutureExt;
use skytether_common::{Error, Result};
use skytether_plan::error::from_datafusion;
use skytether_plan::planning::stop_when;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, oneshot};

/// The most queries that are planned at the same time. More of them wait.
const AT_ONCE: usize = 32;

/// Bytes of stack, as threads of hosts have.
const STACK: usize = 32 << 20;

/// Who waits for a plan.
#[derive(Debug, Default)]
struct Caller {
    /// Whether the caller has stopped waiting.
    gone: Arc<AtomicBool>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Relaxed);
    }
}

/// Runs the planning of queries.
#[derive(Debug)]
pub(crate) struct PlanningThreads {
    free: Arc<Semaphore>,
    deadline: Option<Duration>,
}

impl PlanningThreads {
    /// Threads whose queries are planned within `deadline`; none without.
    pub(crate) fn new(deadline: Option<Duration>) -> Self {
        Self { free: Arc::new(Semaphore::new(AT_ONCE)), deadline }
    }

    /// What `work` gives. A runtime that has no other threads, as in tests, runs it itself.
    ///
    /// # Errors
    /// `Exhausted` at the deadline, and those of `work`. The work ends at its next pause after its caller has gone.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let runtime = Handle::current();
        let Some(deadline) = self.deadline.filter(|_| runtime.runtime_flavor() == RuntimeFlavor::MultiThread) else { return work.await };
        let began = AtomicBool::new(false);
        let caller = Caller::default();
        let gone = Arc::clone(&caller.gone);
        let late = || {
            let seconds = deadline.as_secs_f64();
            Error::exhausted(if began.load(Ordering::Relaxed) {
                format!("the query was not planned within {seconds} s: split it, or store parts of it as data sets")
            } else {
                format!("the query did not begin to be planned within {seconds} s, as {AT_ONCE} others are being planned: ask again later")
            })
        };
        let planned = async {
            let permit = Arc::clone(&self.free).acquire_owned().await.map_err(|e| Error::internal("no thread plans queries any more").with_source(e))?;
            began.store(true, Ordering::Relaxed);
            let (mut done, result) = oneshot::channel();
            std::thread::Builder::new()
                .name("planning".into())
                .stack_size(STACK)
                .spawn(move || {
                    let _permit = permit;
                    stop_when(gone);
                    runtime.block_on(async {
                        tokio::select! {
                            given = AssertUnwindSafe(work).catch_unwind() => drop(done.send(given.unwrap_or_else(|panic| Err(of_panic(panic.as_ref()))))),
                            () = done.closed() => {}
                        }
                    });
                })
                .map_err(|e| Error::exhausted("no thread could be started to plan the query").with_source(e))?;
            result.await.map_err(|e| Error::internal("the planning of the query ended early").with_source(e))?
        };
        tokio::time::timeout(deadline, planned).await.unwrap_or_else(|_| Err(late()))
    }
}

/// What a user is told of a panic of the planner.
fn of_panic(panic: &(dyn Any + Send)) -> Error {
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    from_datafusion(DataFusionError::Internal(format!("the planner stopped: {said}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn work_that_does_not_pause_holds_up_no_other() {
        let threads = Arc::new(PlanningThreads::new(Some(Duration::from_secs(60))));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let busy = {
            let threads = Arc::clone(&threads);
            tokio::spawn(async move { threads.run(async move { wait.recv().map_err(|e| Error::internal(e.to_string())) }).await })
        };
        assert_eq!(threads.run(async { Ok(7) }).await.unwrap(), 7);
        go.send(()).unwrap();
        busy.await.unwrap().unwrap();
    }

    // docs/sql.md: planning
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn deadline_ends_the_wait_and_names_itself() {
        let threads = PlanningThreads::new(Some(Duration::from_millis(20)));
        let error = threads.run(std::future::pending::<Result<()>>()).await.unwrap_err();
        assert!(error.kind() == skytether_common::Kind::Exhausted && error.message().contains("within 0.02 s"), "{error:?}");
        // The thread ends, and its place is free again.
        let all = threads.free.acquire_many(AT_ONCE as u32).await.unwrap();
        drop(all);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn deadline_says_where_all_places_are_taken() {
        let threads = PlanningThreads::new(Some(Duration::from_millis(20)));
        let taken = threads.free.acquire_many(AT_ONCE as u32).await.unwrap();
        let error = threads.run(async { Ok(()) }).await.unwrap_err();
        assert!(error.kind() == skytether_common::Kind::Exhausted && error.message().contains("32 others"), "{error:?}");
        drop(taken);
        threads.run(async { Ok(()) }).await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn panic_of_the_work_is_an_error() {
        let threads = PlanningThreads::new(Some(Duration::from_secs(60)));
        let error = threads.run(async { if true { panic!("a defect") } else { Ok(()) } }).await.unwrap_err();
        assert_eq!(error.kind(), skytether_common::Kind::Internal);
        assert!(error.message().contains("which is a defect of Skytether's (the planner stopped: a defect)"), "{error:?}");
    }
}
