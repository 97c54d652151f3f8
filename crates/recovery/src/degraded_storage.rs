//! Degraded reads: a drive's values, where it can't give them itself, come from copies on other drives, or are decoded.

use futures::future::BoxFuture;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use skytether_common::{Error, Key, Kind, PartitionName, Result};
use skytether_device::{Cse, CseInfo, Storage, Verified, Verify};
use skytether_index::State;
use skytether_store::{Entry, Op, Usage, Version};

use crate::reconstruct::Reconstructor;
use crate::shard::{Reconstructed, ReconstructedRanges, parts};
use skytether_catalog::records::code_map::{Level, Part};

/// How much was read elsewhere for a drive, and of the drive itself.
#[derive(Debug, Default)]
pub(crate) struct ReconstructionCounters {
    slices: AtomicU64,
    within: AtomicU64,
    bytes: AtomicU64,
    own: AtomicU64,
}

/// What a [`ReconstructionCounters`] says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReconstructionStats {
    /// Slices that were decoded or came from copies.
    pub(crate) slices: u64,
    /// The number of them that needed drives of the same node only, on two levels.
    pub(crate) within: u64,
    /// Bytes of other drives that they were made from: read for it, or for a query as well.
    pub(crate) bytes: u64,
    /// Bytes of values that the drive itself gave.
    pub(crate) own: u64,
}

impl ReconstructionCounters {
    pub(crate) fn read(&self) -> ReconstructionStats {
        let figure = |of: &AtomicU64| of.load(Ordering::Relaxed);
        ReconstructionStats { slices: figure(&self.slices), within: figure(&self.within), bytes: figure(&self.bytes), own: figure(&self.own) }
    }

    /// Counts bytes that the drive itself gave.
    fn gave(&self, bytes: usize) {
        self.own.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts a decoded slice and the bytes `read` for it: none where another reader decoded it, at the same time or
    /// before.
    fn decoded(&self, read: u64, within: bool) {
        self.slices.fetch_add(1, Ordering::Relaxed);
        self.within.fetch_add(u64::from(within), Ordering::Relaxed);
        self.bytes.fetch_add(read, Ordering::Relaxed);
    }
}

impl ReconstructionStats {
    pub(crate) fn since(self, before: Self) -> Self {
        let (slices, within) = (self.slices.saturating_sub(before.slices), self.within.saturating_sub(before.within));
        Self { slices, within, bytes: self.bytes.saturating_sub(before.bytes), own: self.own.saturating_sub(before.own) }
    }
}

/// The store of drive `at`, whether the drive is up or not. Nothing is written through it.
#[derive(Debug)]
pub(crate) struct DegradedStorage {
    pub(crate) reconstructor: Arc<Reconstructor>,
    pub(crate) at: usize,
    pub(crate) tally: Arc<ReconstructionCounters>,
}

/// Whether other drives may have what a drive refused with such an error.
pub(crate) fn covers(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unavailable | Kind::Corrupt | Kind::NotFound)
}

impl DegradedStorage {
    pub(crate) fn drive(&self) -> &Arc<dyn Cse> {
        &self.reconstructor.drives[self.at]
    }

    /// Asks the drive itself, if it is up.
    async fn itself<T>(&self, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.reconstructor.is_here(self.at)?;
        self.reconstructor.ask(self.at, what, work).await
    }

    /// The value of `key` of a partition, from elsewhere; `because` the drive itself said so.
    async fn elsewhere(&self, key: &Key, partition: &PartitionName, number: Option<u32>, because: Error) -> Result<Bytes> {
        let made = match number {
            None => self.reconstructor.copy(key, self.at).await,
            Some(n) => match self.reconstructor.map(partition).await {
                Ok(Some(map)) => self.reconstructor.decode(key, partition, n, &map).await,
                // A table that lies everywhere has the same values on all drives, under the same key.
                Ok(None) => self.reconstructor.copy(key, self.at).await,
                Err(e) => Err(e),
            },
        };
        match made {
            Ok(Reconstructed { value, read, within }) => {
                match number {
                    Some(_) => self.tally.decoded(read, within),
                    None => drop(self.tally.bytes.fetch_add(read, Ordering::Relaxed)),
                }
                let news = matches!(because.kind(), Kind::Corrupt | Kind::NotFound) && self.reconstructor.met(key, self.at);
                // Logged once: readers get the right answer, and `status` reports the damage until a scrub repairs it.
                if news && because.kind() == Kind::Corrupt {
                    let damaged = damaged(&because.report());
                    tracing::warn!("{key} at {} {damaged}; it was made from what other drives have, and `skytether scrub` mends it", self.info().name);
                }
                Ok(value)
            }
            // No drive has the value. Then it was replaced or dropped, or is damaged beyond the redundancy: the first
            // error says so.
            Err(e) if e.kind() == Kind::NotFound => Err(because),
            Err(e) => Err(e.context(because.report())),
        }
    }

    /// The entry of a partition's value, from other drives.
    async fn known(&self, key: &Key, partition: &PartitionName, number: Option<u32>) -> Result<Option<Entry>> {
        if let Some(n) = number
            && let Some(map) = self.reconstructor.map(partition).await?
        {
            let part = Part::parse(partition).0;
            let shard = Level::all(&map).into_iter().find_map(|level| level.map().shard(level.find(part, partition.slot, n)?).copied());
            return Ok(shard.map(|shard| Entry { key: key.clone(), version: version(shard.crc32c), len: shard.len, crc32c: shard.crc32c }));
        }
        match self.reconstructor.copy_known(key, self.at).await {
            Ok(entry) => Ok(Some(Entry { version: version(entry.crc32c), ..entry })),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// A version for a reconstructed value: the same for the same bytes, and none that a drive gives, since these count up
/// from 1.
fn version(crc32c: u32) -> Version {
    1 << 63 | u64::from(crc32c)
}

impl Storage for DegradedStorage {
    fn info(&self) -> &CseInfo {
        self.drive().info()
    }

    fn identify(&self) -> BoxFuture<'_, Result<CseInfo>> {
        Box::pin(async move { self.drive().identify().await })
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move { self.itself("change what it stores", self.drive().apply(batch)).await })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            match self.reconstructor.for_query(self.at, key).await {
                Err(e) if covers(&e) => match PartitionName::parse(key) {
                    Some((partition, number)) => self.elsewhere(key, &partition, number, e).await,
                    None => Err(e),
                },
                Ok(value) => {
                    self.tally.gave(value.len());
                    Ok(value)
                }
                Err(e) => Err(e),
            }
        })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            match self.itself("read parts of a value", self.drive().get_ranges_unverified(key, ranges)).await {
                Err(e) if covers(&e) => {
                    let Some((partition, number)) = PartitionName::parse(key) else { return Err(e) };
                    if let Some(n) = number
                        && let Ok(Some(map)) = self.reconstructor.map(&partition).await
                    {
                        return match self.reconstructor.decode_parts(key, &partition, n, &map, ranges).await {
                            Ok(ReconstructedRanges { parts, read, within }) => {
                                if matches!(e.kind(), Kind::Corrupt | Kind::NotFound) {
                                    let _known = self.reconstructor.met(key, self.at);
                                }
                                self.tally.decoded(read, within);
                                Ok(parts)
                            }
                            Err(other) if other.kind() == Kind::NotFound => Err(e),
                            Err(other) => Err(other.context(e.report())),
                        };
                    }
                    parts(key, &self.elsewhere(key, &partition, number, e).await?, ranges)
                }
                Ok(parts) => {
                    self.tally.gave(parts.iter().map(Bytes::len).sum());
                    Ok(parts)
                }
                Err(e) => Err(e),
            }
        })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            match self.itself("look a value up", self.drive().stat(key)).await {
                Ok(Some(entry)) => Ok(Some(entry)),
                Ok(None) => match PartitionName::parse(key) {
                    // A part that a drive should have and does not.
                    Some((partition, number)) => Ok(self.known(key, &partition, number).await.unwrap_or_default()),
                    None => Ok(None),
                },
                Err(e) if covers(&e) => match PartitionName::parse(key) {
                    Some((partition, number)) => self.known(key, &partition, number).await.map_err(|other| other.context(e.report())),
                    None => Err(e),
                },
                Err(e) => Err(e),
            }
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { self.itself("list what it stores", self.drive().list(prefix, after, limit)).await })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { self.itself("say how much it stores", self.drive().usage()).await })
    }

    fn indexes(&self) -> BoxFuture<'_, Result<Vec<State>>> {
        Box::pin(async move { self.drive().indexes().await })
    }

    fn verify(&self, asked: Verify) -> BoxFuture<'_, Result<Verified>> {
        Box::pin(async move { self.drive().verify(asked).await })
    }
}

/// What a store advises about a damaged value. It knows no redundancy.
const DROP: &str = ": drop its data set and ingest it again";

/// The text for a value that can't be read, and why. A store's advice to drop the data set is removed: here a scrub can
/// repair the value.
pub fn damaged(why: &str) -> String {
    format!("is damaged ({})", why.strip_suffix(DROP).unwrap_or(why))
}

/// What a drive said of values that other drives had, with the advice for a fleet with redundancy.
pub(crate) fn mendable(why: &str) -> String {
    why.replace(DROP, "; `skytether scrub` mends it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_s_advice_becomes_that_of_the_fleet() {
        let told = "the value of key k in f has 588 bytes instead of 581: drop its data set and ingest it again";
        assert_eq!(mendable(told), "the value of key k in f has 588 bytes instead of 581; `skytether scrub` mends it");
        assert_eq!(damaged(told), "is damaged (the value of key k in f has 588 bytes instead of 581)");
        assert_eq!(mendable("drive-1 is full"), "drive-1 is full");
    }
}
