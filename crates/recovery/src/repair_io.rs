//! Repairs damaged values: reconstructs slices and parities from the rest of their groups, copies what has copies, and
//! writes both to the drives where they belong.
//!
//! Nothing is written that was not verified against the code map, or by its own checksums. A generation that is
//! replaced meanwhile gets nothing that would outlive it.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Kind, PartitionName, Result};
use skytether_device::negotiate::verify_or_read;
use skytether_device::verify::{Expected, Item};
use skytether_device::{Verified, Verify};
use skytether_erasure::code;
use skytether_erasure::map::{Role, Shard};
use skytether_store::{Expect, Op, Version};

use crate::reconstruct::Reconstructor;
use crate::shard::{ParitySource, role};
use skytether_catalog::records::code_map::Level;
use skytether_runtime::within;

/// How often a value that others write meanwhile is read again.
const ATTEMPTS: usize = 4;

/// A drive reads as fast as this, at least.
const SLOWEST: u64 = 4 << 20;

impl Reconstructor {
    /// Has drive `at` verify values.
    ///
    /// # Errors
    /// Unavailable, which marks the drive; Unsupported by drives of older versions.
    pub async fn verify(&self, at: usize, asked: Verify) -> Result<Verified> {
        let rate = asked.bytes_per_s.unwrap_or(SLOWEST).clamp(1, SLOWEST);
        let takes = std::time::Duration::from_secs(asked.bytes() / rate + 1);
        let items = asked.items.len();
        let verified = within(self.deadline.saturating_add(takes), self.name(at), "verify values", verify_or_read(self.drives[at].as_ref(), asked)).await;
        if let Err(e) = &verified
            && e.kind() == Kind::Unavailable
            && self.health.is_redundant()
        {
            self.health.mark_down(at, &e.report());
        }
        let verified = verified?;
        match verified.found.last_key_value() {
            Some((last, _)) if *last as usize >= items => Err(Error::corrupt(format!("{} told of more values than it was asked for", self.name(at)))),
            _ => Ok(verified),
        }
    }

    /// Reconstructs the shards at some places of a group, and returns the bytes read for them. It reads the shards
    /// `chosen` first, and others where those fail. On two levels, missing shards are reconstructed on the other level
    /// if there is no other way.
    ///
    /// # Errors
    /// Unavailable where too few of the others can be read, naming them; Corrupt where the result is not what the map
    /// names.
    pub async fn regroup(&self, table: &PartitionName, level: &Level, group: u32, wanted: &[usize], chosen: &[u32]) -> Result<(Vec<Bytes>, u64)> {
        let or = if level.is_one_of_two() && !level.is_within() { ParitySource::LocalGroup } else { ParitySource::None };
        let made = self.regroup_or(table, level, group, wanted, chosen, or).await;
        match made {
            Err(e) if level.is_within() => {
                self.regroup_from_data(table, level, group, wanted, &BTreeSet::new()).await.map_err(|other| other.context(e.report()))
            }
            made => made,
        }
    }

    async fn regroup_or(
        &self,
        table: &PartitionName,
        level: &Level,
        group: u32,
        wanted: &[usize],
        chosen: &[u32],
        or: ParitySource,
    ) -> Result<(Vec<Bytes>, u64)> {
        let members = level.map().group(group as usize).ok_or_else(|| Error::internal("a code map has lost a group"))?;
        let (need, all) = (members.data.len(), members.all());
        let mut order: Vec<usize> = chosen.iter().map(|at| *at as usize).filter(|at| *at < all.len() && !wanted.contains(at)).collect();
        // Groups begin with different shards, so that all drives have about as much to read. Shards on living drives
        // come first.
        let others = (0..all.len()).map(|at| (at + group as usize) % all.len());
        let mut others: Vec<usize> = others.filter(|at| !wanted.contains(at) && !order.contains(at)).collect();
        others.sort_by_key(|at| self.at(level, &all[*at]).is_none_or(|at| self.health.is_down(at)));
        order.extend(others);
        let mut next = order.into_iter();
        let mut shards: Vec<Option<Bytes>> = vec![None; all.len()];
        let (mut have, mut read, mut trouble) = (0, 0u64, Vec::new());
        let mut reading = FuturesUnordered::new();
        loop {
            while have + reading.len() < need
                && let Some(at) = next.next()
            {
                let shard = all[at];
                reading.push(async move { (at, self.shard_or(level, table, shard, role(at, need), None, or).await) });
            }
            match reading.next().await {
                Some((at, Ok((parts, bytes)))) => {
                    have += 1;
                    read += bytes;
                    shards[at] = Some(parts.into_iter().next().unwrap_or_default());
                }
                Some((_, Err(e))) => trouble.push(e.report()),
                None => break,
            }
        }
        drop(reading);
        if have < need {
            trouble.sort();
            return Err(Error::unavailable(format!("of its group of {} shards {have} are whole, and {need} are needed: {}", all.len(), trouble.join("; "))));
        }
        Ok((self.coded(level, group, shards, wanted).await?, read))
    }

    /// As [`Self::regroup`], for a group within a node that has lost too much to be repaired there: missing data come
    /// from other nodes. The drives of `also` are read although they are not in use otherwise: those that are being
    /// rebuilt.
    pub async fn regroup_from_data(
        &self,
        table: &PartitionName,
        level: &Level,
        group: u32,
        wanted: &[usize],
        also: &BTreeSet<usize>,
    ) -> Result<(Vec<Bytes>, u64)> {
        let members = level.map().group(group as usize).ok_or_else(|| Error::internal("a code map has lost a group"))?;
        let mut shards: Vec<Option<Bytes>> = vec![None; members.all().len()];
        let mut read = 0;
        for (at, shard) in members.data.iter().enumerate() {
            let own = self.at(level, shard).filter(|own| also.contains(own));
            if let Some(own) = own {
                let key = level.key(table, shard, Role::Data)?;
                let there = self.ask(own, "read a shard", self.drives[own].get(&key)).await;
                if let Ok(value) = there
                    && is(&value, shard.len, shard.crc32c)
                {
                    read += shard.len;
                    shards[at] = Some(value);
                    continue;
                }
            }
            let (mut parts, bytes) = self.shard_or(level, table, *shard, Role::Data, None, ParitySource::GlobalGroup).await?;
            read += bytes;
            shards[at] = parts.pop();
        }
        Ok((self.coded(level, group, shards, wanted).await?, read))
    }

    /// The wanted shards of a group, reconstructed from those that are there, and verified.
    pub(crate) async fn coded(&self, level: &Level, group: u32, shards: Vec<Option<Bytes>>, wanted: &[usize]) -> Result<Vec<Bytes>> {
        let members = level.map().group(group as usize).ok_or_else(|| Error::internal("a code map has lost a group"))?;
        let (code, lens, places) = (level.map().code(), members.lens(), wanted.to_vec());
        let expected: Vec<Shard> = wanted.iter().filter_map(|at| members.all().get(*at).copied()).collect();
        self.decoding(move || {
            let shards: Vec<Option<&[u8]>> = shards.iter().map(|shard| shard.as_ref().map(AsRef::as_ref)).collect();
            let made = code::decode(code, &lens, &shards, &places)?;
            let right = made.len() == expected.len() && made.iter().zip(&expected).all(|(value, shard)| is(value, shard.len, shard.crc32c));
            if right { Ok(made) } else { Err(Error::corrupt("what was decoded is not what its code map names")) }
        })
        .await
    }

    /// Writes `value` under `key` of drive `at`, whatever lies there, and has the drive verify it.
    ///
    /// # Errors
    /// What the drive says; Conflict where another writer keeps changing it; Corrupt where it is not there afterwards.
    pub async fn put_back(&self, at: usize, key: &Key, value: Bytes) -> Result<Version> {
        let expected = Expected { len: value.len() as u64, crc32c: crc32c(&value) };
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let there = self.ask(at, "look a value up", self.drives[at].stat(key)).await?;
            let expect = there.map_or(Expect::Absent, |entry| Expect::Version(entry.version));
            let put = Op::Put { key: key.clone(), value: value.clone(), expect };
            match self.ask(at, "take a value again", self.drives[at].apply(vec![put])).await {
                Ok(versions) => {
                    let item = Item { key: key.clone(), expected: Some(expected), summed: None };
                    let verified = self.verify(at, Verify { items: vec![item], ..Verify::default() }).await?;
                    if verified.found.is_empty() {
                        return Ok(versions.first().copied().unwrap_or_default());
                    }
                    return Err(Error::corrupt(format!("{} took it again and can't give it: is its disk broken?", self.name(at))));
                }
                Err(e) if e.kind() == Kind::Conflict => last = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(last.unwrap_or_else(|| Error::conflict(format!("{key} changes all the time"))))
    }

    /// Deletes what [`Self::put_back`] wrote, unless another writer has written there since.
    pub async fn take_back(&self, at: usize, key: &Key, version: Version) -> Result<()> {
        let delete = Op::Delete { key: key.clone(), expect: Expect::Version(version) };
        match self.ask(at, "delete a value", self.drives[at].apply(vec![delete])).await {
            Err(e) if e.kind() == Kind::Conflict => Ok(()),
            done => done.map(drop),
        }
    }
}

/// Whether a value has this length and checksum.
pub fn is(value: &[u8], len: u64, sum: u32) -> bool {
    value.len() as u64 == len && crc32c(value) == sum
}
