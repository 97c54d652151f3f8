//! What a branch stores, on the drives below it.
//!
//! Slices of a partition lie on one drive each, by turns, from a drive on that the partition's name decides. Everything
//! else lies on the first drive, by whose word a change is made or not; metadata slices lie on the others as well, and
//! so do the tables about cells and genes ([`ABOUT`]), so that each can run sub-plans over its slices.

use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_device::{Cse, CseInfo, Storage};
use skytether_store::{Entry, Expect, Op, Usage, Version};

use skytether_catalog::records::membership::MEMBERSHIP_KEY;
use skytether_catalog::rendezvous::rendezvous;

/// What stands in keys of the level above behind [`MEMBERSHIP_KEY`], so that they are not those of
/// the branch's own record.
const ABOVE: &str = "-above";

/// Tables about cells and genes, which sub-plans over a matrix read beside its slices: they are
/// wanted whole on every drive.
pub(crate) const ABOUT: [&str; 4] = ["obs", "var", "raw_var", "cells"];

/// The drives of a branch as one store.
pub(crate) struct StripedStorage {
    info: CseInfo,
    /// In order of their ids, which is the same whoever lists them how.
    drives: Vec<Arc<dyn Cse>>,
}

impl fmt::Debug for StripedStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StripedStorage").field("name", &self.info.name).field("drives", &self.drives.len()).finish_non_exhaustive()
    }
}

/// The changes of a batch for one drive, with their places in the batch.
type Part = Vec<(Option<usize>, Op)>;

impl StripedStorage {
    /// `drives`, known together as `info`; there is at least one.
    pub(crate) fn new(info: CseInfo, drives: Vec<Arc<dyn Cse>>) -> Self {
        Self { info, drives }
    }

    /// The drive that slice `n` of `partition` lies on.
    ///
    /// # Errors
    /// Invalid, as [`PartitionName::key`].
    pub(crate) fn place(&self, partition: &PartitionName, n: u32) -> Result<usize> {
        let first = rendezvous(partition.key()?.as_str(), self.drives.iter().map(|drive| &drive.info().id)).unwrap_or(0);
        Ok((first + n as usize) % self.drives.len())
    }

    /// Where the value of `key` is read.
    fn home(&self, key: &Key) -> Result<usize> {
        match PartitionName::parse(key) {
            Some((partition, Some(n))) if !copied(&partition) => self.place(&partition, n),
            _ => Ok(0),
        }
    }

    /// The name of `op`'s key on drives.
    fn below(op: Op) -> Result<Op> {
        Ok(match op {
            Op::Put { key, value, expect } => Op::Put { key: down(&key)?, value, expect },
            Op::Delete { key, expect } => Op::Delete { key: down(&key)?, expect },
            Op::Check { key, expect } => Op::Check { key: down(&key)?, expect },
            // The two may belong to different drives.
            Op::Link { key, .. } => return Err(Error::unsupported(format!("a branch does not link values, and {key} was to be one: write it"))),
        })
    }

    /// Sends `parts` to their drives at the same time; versions by places in the batch.
    async fn send(&self, parts: BTreeMap<usize, Part>) -> Result<Vec<(usize, Version)>> {
        let sent = try_join_all(parts.into_iter().filter(|(_, part)| !part.is_empty()).map(|(at, part)| async move {
            let (places, ops): (Vec<_>, Vec<_>) = part.into_iter().unzip();
            let versions = self.drives[at].apply(ops).await?;
            Ok::<_, Error>(places.into_iter().zip(versions).filter_map(|(place, version)| Some((place?, version))).collect::<Vec<_>>())
        }));
        Ok(sent.await?.into_iter().flatten().collect())
    }
}

/// Whether all of a partition is on every drive.
pub(crate) fn copied(partition: &PartitionName) -> bool {
    ABOUT.contains(&partition.table.as_str())
}

/// The key on drives of what the level above calls `key`.
fn down(key: &Key) -> Result<Key> {
    Key::new(down_text(key.as_str()))
}

fn down_text(text: &str) -> String {
    // Names of data sets may begin like the record; their keys have a `/`.
    match text.strip_prefix(MEMBERSHIP_KEY).filter(|rest| !rest.contains('/')) {
        Some(rest) => format!("{MEMBERSHIP_KEY}{ABOVE}{rest}"),
        None => text.to_owned(),
    }
}

/// What the level above calls `key` of a drive; nothing for the branch's own.
fn up(key: Key) -> Option<Key> {
    match key.as_str().strip_prefix(MEMBERSHIP_KEY).filter(|rest| !rest.contains('/')) {
        None => Some(key),
        Some(rest) => Key::new(format!("{MEMBERSHIP_KEY}{}", rest.strip_prefix(ABOVE)?)).ok(),
    }
}

impl Storage for StripedStorage {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    /// Not one change across drives: what is new of partitions comes first, then the first drive's part, which decides,
    /// then what is to go from others. A crash or a conflict in between leaves parts of partitions that no root record
    /// names, which are garbage as those of an ingest that was cut off.
    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let mut versions = vec![0; batch.len()];
            let (mut before, mut first, mut after): (BTreeMap<usize, Part>, Part, BTreeMap<usize, Part>) = Default::default();
            for (place, op) in batch.into_iter().enumerate() {
                let parsed = PartitionName::parse(op.key());
                let home = self.home(op.key())?;
                let puts = matches!(op, Op::Put { .. });
                let op = Self::below(op)?;
                if parsed.is_some_and(|(partition, slice)| slice.is_none() || copied(&partition)) {
                    for at in 1..self.drives.len() {
                        // Whether the change is to be made the first drive says.
                        let copy = match &op {
                            Op::Put { key, value, .. } => Op::Put { key: key.clone(), value: value.clone(), expect: Expect::Any },
                            Op::Delete { key, .. } | Op::Link { key, .. } => Op::Delete { key: key.clone(), expect: Expect::Any },
                            Op::Check { .. } => continue,
                        };
                        if puts { &mut before } else { &mut after }.entry(at).or_default().push((None, copy));
                    }
                }
                match (home, puts) {
                    (0, _) => first.push((Some(place), op)),
                    (at, true) => before.entry(at).or_default().push((Some(place), op)),
                    (at, false) => after.entry(at).or_default().push((Some(place), op)),
                }
            }
            for parts in [before, BTreeMap::from([(0, first)]), after] {
                for (place, version) in self.send(parts).await? {
                    versions[place] = version;
                }
            }
            Ok(versions)
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { self.drives[self.home(key)?].get(&down(key)?).await })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move { self.drives[self.home(key)?].get_ranges_unverified(&down(key)?, ranges).await })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move {
            let found = self.drives[self.home(key)?].stat(&down(key)?).await?;
            Ok(found.map(|entry| Entry { key: key.clone(), ..entry }))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move {
            let (prefix, after) = (down_text(prefix), after.map(down).transpose()?);
            // One may be the branch's own.
            let most = limit.saturating_add(1);
            let lists = try_join_all(self.drives.iter().map(|drive| drive.list(&prefix, after.as_ref(), most))).await?;
            let mut all: BTreeMap<Key, Entry> = BTreeMap::new();
            // Of copies the first drive's counts.
            for entry in lists.into_iter().flatten() {
                if let Some(key) = up(entry.key.clone()) {
                    all.entry(key.clone()).or_insert(Entry { key, ..entry });
                }
            }
            Ok(all.into_values().take(limit).collect())
        })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move {
            let all = try_join_all(self.drives.iter().map(|drive| drive.usage())).await?;
            Ok(all.into_iter().fold(Usage::default(), |sum, one| Usage {
                keys: sum.keys + one.keys,
                value_bytes: sum.value_bytes + one.value_bytes,
                stored_bytes: sum.stored_bytes + one.stored_bytes,
            }))
        })
    }
}
