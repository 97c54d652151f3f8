//! Futures that a target waits for: one runtime for all runs, and a time after which one hangs.

use std::cell::RefCell;
use std::future::Future;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// What `work` gives.
///
/// # Panics
/// Where it takes longer than `most`: it hangs, which is a finding.
pub(crate) fn wait<T>(most: Duration, work: impl Future<Output = T>) -> T {
    RUNTIME.with_borrow_mut(|runtime| {
        let runtime = runtime.get_or_insert_with(|| match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => unreachable!("no runtime: {error}"),
        });
        let done = runtime.block_on(async { tokio::time::timeout(most, work).await });
        assert!(done.is_ok(), "it hangs");
        match done {
            Ok(done) => done,
            Err(late) => unreachable!("{late}"),
        }
    })
}
