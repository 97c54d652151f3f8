//! A CSE that does some things otherwise than the one behind it: a drive that takes changes on a condition, and what tests put between a host and a drive, to see or to spoil what passes.

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use skytether_common::{Key, Result};
use skytether_index::State;
use skytether_store::{Entry, Op, Usage, Version};

use crate::cse::{Cse, CseInfo, Storage};
use crate::delivery::DeliveryStream;
use crate::session::Opened;
use crate::subplan::SubPlan;
use crate::verify::{Verified, Verify};

/// What is done otherwise; all else is done by [`Self::behind`]. Who does [`Self::execute`] otherwise and not [`Self::open`] changes nothing of what is run by sessions, and who does [`Self::get`] otherwise nothing of what is read in parts.
#[async_trait]
pub trait Decorator: Send + Sync + Debug {
    /// The CSE that it stands before.
    fn behind(&self) -> &dyn Cse;
    /// As [`Cse::away`].
    fn away(&self) -> bool {
        self.behind().away()
    }
    /// As [`Storage::apply`].
    async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.behind().apply(batch).await
    }
    /// As [`Storage::get`].
    async fn get(&self, key: &Key) -> Result<Bytes> {
        self.behind().get(key).await
    }
    /// As [`Cse::execute`].
    async fn execute(&self, plan: SubPlan) -> Result<DeliveryStream> {
        self.behind().execute(plan).await
    }
    /// As [`Cse::open`].
    async fn open(&self, plan: SubPlan) -> Result<Opened> {
        self.behind().open(plan).await
    }
}

/// The CSE that a [`Decorator`] makes of the one behind it.
#[derive(Debug)]
pub struct Decorated<D>(pub D);

#[async_trait]
impl<D: Decorator> Storage for Decorated<D> {
    fn info(&self) -> &CseInfo {
        self.0.behind().info()
    }

    async fn present(&self) -> Result<CseInfo> {
        self.0.behind().present().await
    }

    async fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.0.apply(batch).await
    }

    async fn get(&self, key: &Key) -> Result<Bytes> {
        self.0.get(key).await
    }

    async fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.0.behind().get_ranges_unverified(key, ranges).await
    }

    async fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.0.behind().stat(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.0.behind().list(prefix, after, limit).await
    }

    async fn usage(&self) -> Result<Usage> {
        self.0.behind().usage().await
    }

    async fn indexes(&self) -> Result<Vec<State>> {
        self.0.behind().indexes().await
    }

    async fn verify(&self, asked: Verify) -> Result<Verified> {
        self.0.behind().verify(asked).await
    }
}

#[async_trait]
impl<D: Decorator> Cse for Decorated<D> {
    async fn execute(&self, plan: SubPlan) -> Result<DeliveryStream> {
        self.0.execute(plan).await
    }

    async fn open(&self, plan: SubPlan) -> Result<Opened> {
        self.0.open(plan).await
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
