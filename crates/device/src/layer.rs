//! Layers, in tower's sense: a CSE that does some things differently from the one that it wraps. Examples are fencing,
//! failover, and faults that tests put between a host and a drive.
//!
//! Every [`Layer`] is a [`Cse`]. What it does not override goes to [`Layer::inner`].

use futures::future::BoxFuture;
use std::fmt::Debug;
use std::ops::Range;

use bytes::Bytes;
use skytether_common::{Key, Result};
use skytether_index::State;
use skytether_store::{Entry, Op, Usage, Version};

use crate::capabilities::Capabilities;
use crate::cse::{Cse, CseInfo, Storage};
use crate::delivery::DeliveryStream;
use crate::session::OpenReply;
use crate::subplan::SubPlan;
use crate::verify::{Verified, Verify};

/// A CSE over another one. A layer that overrides [`Self::execute`] and not [`Self::open`] does not affect sub-plans in
/// sessions. One that overrides [`Self::get`] does not affect [`Self::get_ranges_unverified`].
pub trait Layer: Send + Sync + Debug {
    /// As [`Storage::info`].
    fn info(&self) -> &CseInfo;
    /// The CSE that gets a call. The layer is asked once for each call that it does not override, so it can count
    /// calls, or refuse all of them.
    ///
    /// # Errors
    /// The answer to the call, where the inner CSE must not get it.
    fn inner(&self) -> Result<&dyn Cse>;
    /// As [`Storage::capabilities`]; those that the inner CSE says of itself, where it can't be reached.
    fn capabilities(&self) -> Capabilities {
        self.inner().map_or_else(|_| self.info().capabilities.clone(), |inner| inner.capabilities())
    }
    /// As [`Storage::identify`].
    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move { self.inner()?.identify().await })
    }
    /// As [`Storage::apply`].
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move { self.inner()?.apply(batch).await })
    }
    /// As [`Storage::get`].
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.inner()?.get(key).await })
    }
    /// As [`Storage::get_ranges_unverified`].
    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move { self.inner()?.get_ranges_unverified(key, ranges).await })
    }
    /// As [`Storage::stat`].
    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.inner()?.stat(key).await })
    }
    /// As [`Storage::list`].
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.inner()?.list(prefix, after, limit).await })
    }
    /// As [`Storage::usage`].
    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.inner()?.usage().await })
    }
    /// As [`Storage::indexes`].
    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move { self.inner()?.indexes().await })
    }
    /// As [`Storage::verify`].
    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move { self.inner()?.verify(asked).await })
    }
    /// As [`Cse::execute`].
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move { self.inner()?.execute(plan).await })
    }
    /// As [`Cse::open`].
    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move { self.inner()?.open(plan).await })
    }
}

impl<L: Layer> Storage for L {
    fn info(&self) -> &CseInfo {
        Layer::info(self)
    }

    fn capabilities(&self) -> Capabilities {
        Layer::capabilities(self)
    }

    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Layer::identify(self)
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Layer::apply(self, batch)
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Layer::get(self, key)
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Layer::get_ranges_unverified(self, key, ranges)
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Layer::stat(self, key)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Layer::list(self, prefix, after, limit)
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Layer::usage(self)
    }

    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Layer::indexes(self)
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Layer::verify(self, asked)
    }
}

impl<L: Layer> Cse for L {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Layer::execute(self, plan)
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Layer::open(self, plan)
    }
}
