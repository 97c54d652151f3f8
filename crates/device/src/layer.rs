//! A CSE that does some things otherwise than the one behind it: a drive that takes changes on a condition, and what tests put between a host and a drive, to see or to spoil what passes.

use futures::future::BoxFuture;
use std::fmt::Debug;
use std::ops::Range;

use bytes::Bytes;
use skytether_common::{Key, Result};
use skytether_index::State;
use skytether_store::{Entry, Op, Usage, Version};

use crate::cse::{Cse, CseInfo, Storage};
use crate::delivery::DeliveryStream;
use crate::session::OpenReply;
use crate::subplan::SubPlan;
use crate::verify::{Verified, Verify};

/// What is done otherwise; all else is done by [`Self::behind`]. Who does [`Self::execute`] otherwise and not [`Self::open`] changes nothing of what is run by sessions, and who does [`Self::get`] otherwise nothing of what is read in parts.
pub trait Layer: Send + Sync + Debug {
    /// The CSE that it stands before.
    fn behind(&self) -> &dyn Cse;
    /// As [`Cse::away`].
    fn away(&self) -> bool {
        self.behind().away()
    }
    /// As [`Storage::apply`].
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move { self.behind().apply(batch).await })
    }
    /// As [`Storage::get`].
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.behind().get(key).await })
    }
    /// As [`Cse::execute`].
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move { self.behind().execute(plan).await })
    }
    /// As [`Cse::open`].
    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move { self.behind().open(plan).await })
    }
}

/// The CSE that a [`Layer`] makes of the one behind it.
#[derive(Debug)]
pub struct Decorated<D>(pub D);

impl<D: Layer> Storage for Decorated<D> {
    fn info(&self) -> &CseInfo {
        self.0.behind().info()
    }

    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move { self.0.behind().identify().await })
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move { self.0.apply(batch).await })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.0.get(key).await })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move { self.0.behind().get_ranges_unverified(key, ranges).await })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { self.0.behind().stat(key).await })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.0.behind().list(prefix, after, limit).await })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.0.behind().usage().await })
    }

    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move { self.0.behind().indexes().await })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move { self.0.behind().verify(asked).await })
    }
}

impl<D: Layer> Cse for Decorated<D> {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move { self.0.execute(plan).await })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move { self.0.open(plan).await })
    }

    fn away(&self) -> bool {
        self.0.away()
    }

    fn watched(&self) -> bool {
        self.0.behind().watched()
    }

    fn stuck(&self, plan: &SubPlan, why: &str) {
        self.0.behind().stuck(plan, why);
    }

    fn garbled(&self, plan: &SubPlan, why: &str) {
        self.0.behind().garbled(plan, why);
    }
}
