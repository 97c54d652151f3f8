//! Shards that no record names: those of merges that a crash or a drive's absence interrupted.

use futures::{StreamExt, TryStreamExt, stream};
use skytether_catalog::volume_records::DATA_PREFIX;
use skytether_common::{Key, Kind, Result};
use skytether_store::{Expect, Op};

use crate::backing::FleetBacking;
use crate::keys;
use crate::layout::ExtentRecord;

/// Keys that are listed at a time.
const PAGE: usize = 512;

/// Records that are read at a time.
const READS: usize = 32;

/// What [`FleetBacking::collect`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Collected {
    /// Shards that it deleted.
    pub deleted: u64,
    /// Whether it looked at all drives, and knows of all extents. It does not while a drive is down.
    pub is_complete: bool,
}

impl FleetBacking {
    /// How often something may have been left to be collected so far: a drive was lost, on which merges meanwhile leave
    /// parts, the outcome of a change is unknown, or what such a change wrote was given up.
    #[must_use]
    pub fn leftovers(&self) -> u64 {
        let health = self.catalog.health();
        health.losses() + health.opened_generations() + health.closed_generations()
    }

    /// Deletes shards that no record names. It does nothing while a drive is down: I3. No other process may write
    /// volumes of this fleet meanwhile, which the fence sees to.
    ///
    /// # Errors
    /// Those of the drives.
    pub async fn collect(&self) -> Result<Collected> {
        let mut deleted = 0;
        let settled = self.settle_open().await;
        if let Err(error) = &settled {
            tracing::debug!(error = error.report(), "it stays unknown whether extents were written");
        }
        for at in self.catalog.health().members() {
            let mut after: Option<Key> = None;
            loop {
                if !self.catalog.health().down().is_empty() {
                    return Ok(Collected { deleted, is_complete: false });
                }
                let list = self.catalog.bare(at).list(DATA_PREFIX, after.as_ref(), PAGE);
                let page = self.catalog.ask(at, "list parts of volumes", list).await?;
                let full = page.len() == PAGE;
                after = page.last().map(|entry| entry.key.clone());
                let garbage: Vec<Op> = stream::iter(page.into_iter().map(|entry| self.garbage(entry.key)))
                    .buffered(READS)
                    .try_collect::<Vec<_>>()
                    .await?
                    .into_iter()
                    .flatten()
                    .collect();
                if !garbage.is_empty() {
                    deleted += garbage.len() as u64;
                    self.catalog.ask(at, "delete parts of volumes", self.catalog.bare(at).apply(garbage)).await?;
                }
                if !full {
                    break;
                }
            }
        }
        Ok(Collected { deleted, is_complete: settled.is_ok() })
    }

    /// The deletion of a shard that no record names.
    async fn garbage(&self, shard: Key) -> Result<Option<Op>> {
        Ok(if self.is_named(&shard).await? { None } else { Some(Op::Delete { key: shard, expect: Expect::Any }) })
    }

    /// Whether a shard is that of an extent, or may be.
    async fn is_named(&self, shard: &Key) -> Result<bool> {
        let Some((record, generation)) = keys::of_shard(shard) else { return Ok(true) };
        // First: a generation is ended after its record is committed.
        if self.catalog.health().is_writing(generation) {
            return Ok(true);
        }
        let found = match self.catalog.read_record(&record).await {
            Ok(found) => found,
            Err(error) if error.kind() == Kind::Corrupt => return Ok(true),
            Err(error) => return Err(error),
        };
        let named = found.map(|found| ExtentRecord::decode(record.as_str(), &found.body));
        Ok(match named {
            None => false,
            Some(Ok(record)) => record.generation == generation,
            Some(Err(_)) => true,
        })
    }
}
