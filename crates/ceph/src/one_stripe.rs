//! A lane over one stripe: at an OSD, or here where no OSD did it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use skytether_common::Result;
use skytether_engine::feed::{FetchedSlice, SliceFeed, SliceFetcher};
use skytether_engine::split_execution::{Lane, SplitExecution};
use skytether_scheduler::message::PushdownLevel;

/// Gives one stripe.
#[derive(Debug)]
struct OneStripe {
    fetcher: SliceFetcher,
    stripe: u32,
    given: AtomicBool,
}

impl SliceFeed for OneStripe {
    fn next(&self) -> BoxFuture<'static, Option<Result<FetchedSlice>>> {
        if self.given.swap(true, Ordering::Relaxed) {
            return future::ready(None).boxed();
        }
        let (fetcher, stripe) = (self.fetcher.clone(), self.stripe);
        async move { Some(fetcher.fetch(stripe).await) }.boxed()
    }

    fn done(&self, _: u32) {}
}

/// A lane at `full` over one stripe of `split`.
///
/// # Errors
/// Internal only; its rows have those of [`SliceFetcher::fetch`].
pub(crate) fn over_stripe(split: &SplitExecution, stripe: u32) -> Result<Lane> {
    let fetcher = split.fetcher(PushdownLevel::Full)?.clone();
    split.lane(PushdownLevel::Full, Arc::new(OneStripe { fetcher, stripe, given: AtomicBool::new(false) }), Arc::default())
}
