//! [`StripedStorage`]: stores what the parent writes on the drives below.
//!
//! Slices of a partition go to the drives round robin; the partition's name determines the first drive. Every other
//! value is on the first drive, which also decides whether a change takes effect. Metadata slices and tables about
//! cells and genes ([`ABOUT`]) are on all drives as well, so each drive can run sub-plans over its slices.

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

/// Keys of the parent that begin with [`MEMBERSHIP_KEY`] get this suffix below, so they differ from the key of the
/// aggregator's own record.
const ABOVE: &str = "-above";

/// Tables about cells and genes, besides those of other features (`var_<name>`). Sub-plans over a matrix read them
/// besides its slices, so every drive has them whole.
pub(crate) const ABOUT: [&str; 4] = ["obs", "var", "raw_var", "cells"];

/// The drives of an aggregator as one store.
pub(crate) struct StripedStorage {
    info: CseInfo,
    /// In order of their ids, so that every start finds the same order.
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
    /// `info` describes the drives together; there is at least one drive.
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
            Op::Link { key, .. } => return Err(Error::unsupported(format!("an aggregator does not link values, and {key} was to be one: write it"))),
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
    let table = partition.table.as_str();
    ABOUT.contains(&table) || table.starts_with("var_")
}

/// The key below for the parent's `key`.
fn down(key: &Key) -> Result<Key> {
    Key::new(down_text(key.as_str()))
}

fn down_text(text: &str) -> String {
    // Names of data sets may begin like the record's key; their keys contain a `/`.
    match text.strip_prefix(MEMBERSHIP_KEY).filter(|rest| !rest.contains('/')) {
        Some(rest) => format!("{MEMBERSHIP_KEY}{ABOVE}{rest}"),
        None => text.to_owned(),
    }
}

/// The parent's key for `key` of a drive; `None` for the aggregator's own record.
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

    /// A batch is not atomic across drives. Additions to partitions go first, then the part of the first drive, which
    /// decides, then deletions on the other drives. A crash or a conflict in between leaves parts of partitions that no
    /// root record names. They are garbage, like those of an interrupted ingest.
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
                        // The first drive decides whether the batch takes effect.
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
            // One may be the aggregator's own record.
            let most = limit.saturating_add(1);
            let lists = try_join_all(self.drives.iter().map(|drive| drive.list(&prefix, after.as_ref(), most))).await?;
            let mut all: BTreeMap<Key, Entry> = BTreeMap::new();
            // Of copies, that of the first drive counts.
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

#[cfg(test)]
mod tests {
    use skytether_common::Generation;

    use super::*;

    /// Sub-plans over a matrix of other features need the names of these, wherever the matrix's slices lie.
    #[test]
    fn tables_about_features_are_on_every_drive() {
        let of = |table: &str| PartitionName { dataset: "t.x".parse().unwrap(), generation: Generation(1), table: table.into(), slot: 0 };
        for (table, everywhere) in [("var", true), ("obs", true), ("var_antibody_capture", true), ("features_antibody_capture", false), ("x", false)] {
            assert_eq!(copied(&of(table)), everywhere, "{table}");
        }
    }
}
