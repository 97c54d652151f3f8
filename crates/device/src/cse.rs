//! The two traits of a compute-storage engine (CSE).

use futures::future::BoxFuture;
use std::fmt::Debug;
use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Key, Result};
use skytether_index::State;
use skytether_scheduler::profile::Profile;
use skytether_store::{Entry, Op, Usage, Version, ranges};
use uuid::Uuid;

use crate::capabilities::Capabilities;
use crate::delivery::DeliveryStream;
use crate::session::OpenReply;
use crate::subplan::SubPlan;
use crate::verify::{Verified, Verify};

/// What a CSE says of itself.
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
    /// The device that it emulates or is, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The name of that profile, for annotations: that of its file, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// What it can do, as far as the CSE itself knows; callers ask [`Storage::capabilities`].
    #[serde(default, skip_serializing_if = "Capabilities::is_usual")]
    pub capabilities: Capabilities,
}

/// The storage half of a CSE: the operations of [`skytether_store::SliceStore`], possibly of another process.
pub trait Storage: Send + Sync + Debug {
    /// What it reported of itself when the connection was made. Cheap.
    fn info(&self) -> &CseInfo;
    /// What callers can rely on: the capabilities in [`Self::info`], as far as the way to the CSE preserves them.
    fn capabilities(&self) -> Capabilities {
        self.info().capabilities.clone()
    }
    /// The CSE that answers now. Behind an address this may be another one than [`Self::info`], which then refuses
    /// all other calls.
    ///
    /// # Errors
    /// `Unavailable` where none answers.
    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move { Ok(self.info().clone()) })
    }
    /// As [`skytether_store::SliceStore::apply`].
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>>;
    /// As [`skytether_store::SliceStore::get`].
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>>;
    /// As [`skytether_store::SliceStore::get_ranges_unverified`]. The default reads the whole value, and verifies it.
    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            let value = self.get(key).await?;
            ranges::check(key, value.len() as u64, ranges)?;
            Ok(ranges::cut(&value, ranges))
        })
    }
    /// As [`skytether_store::SliceStore::get_range_in_memory`]: `None` from a CSE behind a network, for example.
    fn get_range_in_memory(&self, _key: &Key, _range: Range<u64>) -> Option<Bytes> {
        None
    }
    /// As [`skytether_store::SliceStore::stat`].
    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>>;
    /// As [`skytether_store::SliceStore::list`].
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>>;
    /// As [`skytether_store::SliceStore::usage`].
    fn usage(&self) -> BoxFuture<'_, Result<Usage>>;
    /// The indexes that it has, or builds. Capability `indexes`.
    ///
    /// # Errors
    /// `Unsupported` without the capability; `Unavailable`.
    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move { Err(unsupported(self.info(), "build indexes")) })
    }
    /// Verifies values on the CSE, one after the other, at the rate in `asked`. Capability `verify`;
    /// [`verify_or_read`](crate::negotiate::verify_or_read) does without.
    ///
    /// # Errors
    /// `Unsupported` without the capability; `Unavailable`. A damaged value is no error.
    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        let _ = asked;
        Box::pin(async move { Err(unsupported(self.info(), "verify values")) })
    }
}

/// A compute-storage engine: storage, and what runs programs over it.
pub trait Cse: Storage {
    /// Validates and runs `plan`. Capability `programs`.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, with the name of what is not understood, for the plan; `NotFound` and `Corrupt` for
    /// slices, `Exhausted` for memory, `Unavailable` where the CSE does not answer. The CSE's name is in the text.
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>>;

    /// Validates `plan`, whose sender can combine results of parts, and waits for orders about its slices; or runs it
    /// as a whole. Capability `sessions`; [`open_or_execute`](crate::negotiate::open_or_execute) does without.
    ///
    /// # Errors
    /// `Unsupported` without the capability; as [`Self::execute`].
    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        let _ = plan;
        Box::pin(async move { Err(unsupported(self.info(), "offer sessions")) })
    }
}

/// The answer of the CSE `info` to a call that is not among its capabilities.
fn unsupported(info: &CseInfo, what: &str) -> Error {
    Error::unsupported(format!("{}: it does not {what}; ask its capabilities first, or update it if it is of an older version", info.name))
}
