//! Drives that are to leave the fleet: extents with a shard there are written again, on the others.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;
use skytether_catalog::volume_records::PREFIX as RECORDS;
use skytether_common::{Error, Key, Kind, Result};
use skytether_device::verify::Pace;
use uuid::Uuid;

use crate::backing::FleetBacking;
use crate::keys;

/// Records that are listed at a time.
const PAGE: usize = 512;

/// Extents that are looked at or written at a time.
const AT_ONCE: usize = 8;

/// Passes over extents that merges change meanwhile.
const PASSES: usize = 16;

/// What [`FleetBacking::move_off`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moved {
    /// Extents that were written again.
    pub extents: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that could not be, and why.
    pub left: Vec<String>,
}

impl FleetBacking {
    /// Moves all parts of volumes off drives that are marked as leaving, and so get none from then on. Merges go on
    /// meanwhile. It waits for those that began before for `patience`.
    ///
    /// # Errors
    /// `Unavailable` where such merges do not end; `Conflict` where other scrubs are always faster; those of the
    /// drives.
    pub async fn move_off(&self, leaving: &BTreeSet<usize>, patience: Duration, bytes_per_s: Option<u64>) -> Result<Moved> {
        let (mut moved, mut pace) = (Moved::default(), Pace::new(bytes_per_s));
        if let Err(error) = self.settle_open().await {
            tracing::debug!(error = error.report(), "it stays unknown whether extents were written");
        }
        self.await_merges(patience).await?;
        let ids: BTreeSet<Uuid> = leaving.iter().filter_map(|at| self.catalog.drives().get(*at).map(|drive| drive.info().id)).collect();
        for _ in 0..PASSES {
            let (mut found, mut after) = (0, None::<Key>);
            moved.left.clear();
            loop {
                let page = self.catalog.list_records(RECORDS, after.as_ref(), PAGE).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.key.clone());
                let keys: Vec<Key> = page.into_iter().map(|entry| entry.key).collect();
                for some in keys.chunks(AT_ONCE) {
                    for (key, done) in some.iter().zip(join_all(some.iter().map(|key| self.move_one(key, &ids))).await) {
                        match done {
                            Ok(None) => {}
                            Ok(Some(bytes)) => {
                                found += 1;
                                moved.extents += u64::from(bytes > 0);
                                moved.bytes += bytes;
                                pace.passed(bytes).await;
                            }
                            Err(error) => moved.left.push(format!("extent {key}: {}", error.report())),
                        }
                    }
                }
            }
            if found == 0 {
                return Ok(moved);
            }
        }
        Err(Error::conflict("extents of volumes on drives that are to leave are written all the time: try again"))
    }

    /// Writes an extent again that has a shard on one of the drives: its bytes, or 0 where a merge did so meanwhile.
    /// `None` where it has none there.
    async fn move_one(&self, key: &Key, drives: &BTreeSet<Uuid>) -> Result<Option<u64>> {
        if !keys::is_extent(&keys::volume_key(key)?) {
            return Ok(None);
        }
        let Some((record, _)) = self.stored_record(key).await? else { return Ok(None) };
        if !record.shards.iter().any(|shard| drives.contains(&shard.drive)) {
            return Ok(None);
        }
        match self.renew(key).await {
            Ok(renewed) => Ok(Some(renewed.unwrap_or(0))),
            Err(error) if error.kind() == Kind::Conflict => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }
}
