//! The one trait for a compute-storage engine.

use futures::future::BoxFuture;
use std::fmt::Debug;
use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_adapt::profile::Profile;
use skytether_common::{Error, Key, Result};
use skytether_index::State;
use skytether_store::{Entry, Op, Usage, Version};
use uuid::Uuid;

use crate::delivery::DeliveryStream;
use crate::session::OpenReply;
use crate::subplan::SubPlan;
use crate::verify::{Pace, Verified, Verify, Verifying};

/// Who a CSE is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CseInfo {
    /// Given once, when the drive is made; placement refers to it.
    pub id: Uuid,
    /// For people: `drive-2`.
    pub name: String,
    /// Version of the drive's on-disk format.
    pub format: u32,
    /// Bytes that its engine may use for a sub-plan.
    pub memory_limit: u64,
    /// What it is made of, where it was told; it then works as fast as this says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// What that is called, as annotations call it: by its file, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// The storage half of a CSE: the operations of [`skytether_store::SliceStore`], possibly far away.
pub trait Storage: Send + Sync + Debug {
    /// Who this is. Cheap: learnt when the connection was made.
    fn info(&self) -> &CseInfo;
    /// Who answers now. Behind an address this may be somebody else than [`Self::info`], and then refuses all other calls.
    ///
    /// # Errors
    /// `Unavailable` where nobody answers.
    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move { Ok(self.info().clone()) })
    }
    /// As [`skytether_store::SliceStore::apply`].
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>>;
    /// As [`skytether_store::SliceStore::get`].
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>>;
    /// As [`skytether_store::SliceStore::get_ranges_unverified`]. Unless it is written anew, the whole value is read, and verified.
    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            let value = self.get(key).await?;
            let part = |range: &Range<u64>| {
                let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
                (start <= end && end <= value.len()).then(|| value.slice(start..end))
            };
            let wrong = || Error::invalid(format!("a range of {key} is not within its {} bytes", value.len()));
            ranges.iter().map(|range| part(range).ok_or_else(wrong)).collect()
        })
    }
    /// As [`skytether_store::SliceStore::stat`].
    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>>;
    /// As [`skytether_store::SliceStore::list`].
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>>;
    /// As [`skytether_store::SliceStore::usage`].
    fn usage(&self) -> BoxFuture<'_, Result<Usage>>;
    /// The indexes that it has, or builds.
    ///
    /// # Errors
    /// `Unsupported` where it builds none; `Unavailable`.
    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move { Err(Error::unsupported(format!("{} builds no indexes: it is of a version that can't, or no drive", self.info().name))) })
    }
    /// Verifies values where they lie, one after the other, at the rate that is asked for. Unless it is written anew, each is read whole by [`Self::get`].
    ///
    /// # Errors
    /// `Unavailable`; what is wrong with a value is no error.
    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move {
            let (mut verifying, mut pace) = (Verifying::new(&asked), Pace::new(asked.bytes_per_s));
            for (at, item) in asked.items.iter().enumerate() {
                let read = self.get(&item.key).await;
                pace.passed(verifying.take(at as u32, item, read)?).await;
            }
            Ok(verifying.finish())
        })
    }
}

/// A compute-storage engine: storage and an engine over it.
pub trait Cse: Storage {
    /// Validates and runs `plan`.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported` where the plan is not to be understood (it says by which name), `NotFound` and `Corrupt` for
    /// slices, `Exhausted` for memory, `Unavailable` where the CSE does not answer; the CSE's name is in the text.
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>>;

    /// Validates `plan`, which its sender can put together from parts, and waits for orders about its slices; or runs it as a whole.
    ///
    /// # Errors
    /// As [`Self::execute`].
    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move { Ok(OpenReply::Whole(self.execute(plan).await?)) })
    }

    /// Whether it is behind a wire, so that it can be lost, and found again, while this process goes on.
    fn away(&self) -> bool {
        false
    }

    /// Whoever asked it to run `plan` found that it stands still there, although it gives signs of life. Who knows of somebody that can stand for it has that run the plan when it is opened again.
    fn stuck(&self, plan: &SubPlan, why: &str) {
        let _ = (plan, why);
    }

    /// Whoever asked it to run `plan` got something that makes no sense: rows of other columns, or of slices that it was not asked for. Who knows of somebody that can stand for it has that run the plan when it is opened again.
    fn garbled(&self, plan: &SubPlan, why: &str) {
        let _ = (plan, why);
    }

    /// Whether [`Self::execute`] and its messages end with an error of their own when the CSE shows no sign of life, so that whoever reads
    /// them needs no deadline: then silence means slow work and not death. False unless said.
    fn watched(&self) -> bool {
        false
    }
}
