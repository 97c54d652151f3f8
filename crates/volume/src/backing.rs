//! Where extents are: a few calls of a store, so that a local drive, a remote one and a fleet can all be it.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::{Error, Key, Result};
use skytether_device::negotiate::verify_or_read;
use skytether_device::verify::{Verified, Verify};
use skytether_device::{Batches, Storage};
use skytether_store::{Entry, Op, Version};

/// A store of values by keys, with the contract of [`skytether_store::SliceStore`], but for these:
/// - A batch over a fleet may be carried out in part where its outcome is unknown. Each value is old or new.
/// - The entries of a list may have other versions, lengths and checksums than [`Self::stat`]; [`Self::verify`] takes
///   them all the same.
pub trait Backing: Send + Sync + Debug {
    /// Its name, for people.
    fn name(&self) -> String;
    /// Carries out `batch` as one, durably.
    ///
    /// # Errors
    /// As [`skytether_store::SliceStore::apply`].
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>>;
    /// The value of `key`, verified.
    ///
    /// # Errors
    /// As [`skytether_store::SliceStore::get`].
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>>;
    /// A part of the value of `key`, unverified.
    ///
    /// # Errors
    /// As [`skytether_store::SliceStore::get_ranges_unverified`].
    fn get_range_unverified<'a>(&'a self, key: &'a Key, range: Range<u64>) -> BoxFuture<'a, Result<Bytes>>;
    /// A part of the value of `key`, unverified, where nothing has to be waited for. `None` where the other method is
    /// to be asked.
    fn get_range_in_memory(&self, _key: &Key, _range: Range<u64>) -> Option<Bytes> {
        None
    }
    /// What is known about `key`.
    ///
    /// # Errors
    /// `Unavailable`.
    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>>;
    /// Keys below `prefix` after `after`, in their order, at most `limit`.
    ///
    /// # Errors
    /// `Unavailable`.
    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>>;
    /// Verifies values where they are.
    ///
    /// # Errors
    /// `Unavailable`. A damaged value is no error.
    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>>;
    /// Writes the value of `key` again, where it is damaged and can be had from elsewhere. Whether that was done.
    ///
    /// # Errors
    /// Why it can't be read; those of a write.
    fn repair<'a>(&'a self, _key: &'a Key) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async { Ok(false) })
    }
    /// Whether [`Op::Link`] is understood: without it there are no snapshots.
    fn links(&self) -> bool;
}

/// A drive as a backing.
#[derive(Debug)]
pub struct StorageBacking(Arc<dyn Storage>);

impl StorageBacking {
    /// Over `storage`.
    ///
    /// # Errors
    /// `Unsupported` where its batches are not atomic: a merge must know that no other process writes the volume.
    pub fn new(storage: Arc<dyn Storage>) -> Result<Self> {
        if storage.capabilities().batches != Batches::Atomic {
            return Err(Error::unsupported(format!("{}: its batches are not atomic, so it can't hold volumes; use another drive", storage.info().name)));
        }
        Ok(Self(storage))
    }
}

impl Backing for StorageBacking {
    fn name(&self) -> String {
        self.0.info().name.clone()
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        self.0.apply(batch)
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        self.0.get(key)
    }

    fn get_range_unverified<'a>(&'a self, key: &'a Key, range: Range<u64>) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let ranges = [range];
            let mut parts = self.0.get_ranges_unverified(key, &ranges).await?;
            parts.pop().ok_or_else(|| Error::internal(format!("{}: a part of key {key} got lost", self.0.info().name)))
        })
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        self.0.get_range_in_memory(key, range)
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        self.0.stat(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        self.0.list(prefix, after, limit)
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move { verify_or_read(&*self.0, asked).await })
    }

    fn links(&self) -> bool {
        self.0.capabilities().link
    }
}
