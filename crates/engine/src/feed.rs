//! A [`SliceFeed`] gives stripes to a scan one by one while it runs, instead of a fixed list at its start.
//!
//! `skytether_scheduler` decides which stripes come, and when the feed ends. A stripe is a slice; of a table with many
//! columns it is the slices with its rows. Where stripes are small, "stripe" means a run of them here
//! ([`crate::stripe_coalescing`]), with the number of the run.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use skytether_common::Result;

use crate::reader::Part;
use crate::slice_loader::{Fetched, Fetching};

/// Gives stripes to a scan.
pub trait SliceFeed: Send + Sync + Debug {
    /// The next stripe, when there is one; `None` at the end.
    fn next(&self) -> BoxFuture<'static, Option<Result<FetchedSlice>>>;

    /// The scan wants more after the last batch of `stripe`, so its reader has processed that stripe.
    fn done(&self, stripe: u32);
}

/// A stripe that was read, and not yet decoded.
#[derive(Debug)]
pub struct FetchedSlice {
    /// Its number in the partition.
    pub stripe: u32,
    pub(crate) fetched: Fetched,
}

impl FetchedSlice {
    /// Slices of it that were read; none where its number of rows was all that was wanted.
    #[must_use]
    pub fn slices(&self) -> u64 {
        match &self.fetched {
            Fetched::Rows(_) => 0,
            Fetched::Stripes(stripes) => stripes.iter().map(|parts| parts.len() as u64).sum(),
        }
    }

    /// Bytes of it, as they are stored, that were read; 0 where its number of rows was all that was wanted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.fetched {
            Fetched::Rows(_) => 0,
            Fetched::Stripes(stripes) => stripes.iter().flatten().map(|part| Part::len(part) as u64).sum(),
        }
    }
}

/// Reads the stripes of a scan.
#[derive(Clone)]
pub struct SliceFetcher(pub(crate) Arc<Fetching>);

impl std::fmt::Debug for SliceFetcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SliceFetcher")
    }
}

impl SliceFetcher {
    /// Reads and verifies the wanted parts of `stripe`.
    ///
    /// # Errors
    /// NotFound, Corrupt, Unavailable.
    pub async fn fetch(&self, stripe: u32) -> Result<FetchedSlice> {
        Ok(FetchedSlice { stripe, fetched: Arc::clone(&self.0).fetch(self.0.run(stripe)).await? })
    }

    /// The number of slices that it has read, and of those that metadata answered.
    pub(crate) fn counted(&self) -> (u64, u64) {
        self.0.counted()
    }
}
