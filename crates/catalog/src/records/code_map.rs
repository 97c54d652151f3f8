//! What redundancy stores: parity slices in partitions of their own, code maps next to them, copies of metadata.
//!
//! The parities of table `t` are the partitions of table `parity/t`, of the same generation. Partition `i` of both is
//! on drive `i` of the drives that the table was written over, so data and parity of one drive have one number. The
//! value under the key of a partition itself is its metadata slice; for `parity/t` it is the code map, in partition 0.
//! The M drives after it have the same value under the same key.
//!
//! On two levels the parities within nodes are the partitions of table `inner-parity/t`, numbered alike. There are two
//! code maps then: that across nodes, and that within each of them. With `n` drives, the second one has data shards
//! with homes from `n` on: home `n + i` is the outer groups' parity of partition `i`.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Key, PartitionName, Result};
use skytether_erasure::map::{CodeMap, Place, Role, Shard};
use skytether_erasure::{Code, Scheme};
use uuid::Uuid;

use crate::records::bounds::Bounds;
use crate::records::partition::PartitionRecord;

/// What the names of tables of parities begin with; no other table's does.
pub const PARITY: &str = "parity/";

/// What the names of tables of parities within nodes begin with.
pub const INNER_PARITY: &str = "inner-parity/";

/// The most drives that a code map's head may name.
const MAX_DRIVES: usize = 1 << 16;

/// What a root record says of a table's redundancy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedundancyRecord {
    /// How the table is kept from loss.
    pub scheme: Scheme,
    /// The drives that it was written over. Partition `i` of its data and of its parities is on drive `i` of these.
    pub drives: Vec<Uuid>,
    /// Its parities: partitions of `parity/<table>`.
    pub parity: Vec<PartitionRecord>,
    /// On two levels: the node of each of the drives, counted from 0.
    #[serde(default, rename = "hosts", skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<u32>,
    /// And its parities within the nodes: partitions of `inner-parity/<table>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inner: Vec<PartitionRecord>,
}

impl RedundancyRecord {
    /// The record for a table. `parities` has the number and bytes of parities on each of `drives`: first across drives
    /// or nodes, then within nodes. `map` is the length of the code map in bytes. `nodes` is empty unless there are two
    /// levels.
    pub fn new(scheme: Scheme, drives: Vec<Uuid>, nodes: Vec<u32>, parities: &[Vec<(u32, u64)>; 2], map: u64) -> Self {
        let records = |level: usize| {
            let record = |(slot, (drive, (slices, bytes))): (usize, (&Uuid, &(u32, u64)))| {
                // The code map lies on the same drive as the first parities.
                let bytes = bytes + if (level, slot) == (0, 0) { map } else { 0 };
                PartitionRecord { drive: *drive, slot: slot as u32, rows: 0, slices: *slices, bytes, bounds: Bounds::default() }
            };
            drives.iter().zip(&parities[level]).enumerate().map(record).filter(|p| p.slices > 0 || (level, p.slot) == (0, 0)).collect()
        };
        let (parity, inner) = (records(0), records(1));
        Self { scheme, drives, parity, nodes, inner }
    }

    /// Its parities, on either level.
    pub fn partitions(&self) -> impl Iterator<Item = &PartitionRecord> {
        self.parity.iter().chain(&self.inner)
    }

    /// The drives that have the value under the key of partition `slot` itself: its own, and M more. On two levels: m
    /// more of its node, and m + 1 of M more nodes.
    pub fn holders(&self, slot: u32) -> impl Iterator<Item = Uuid> + '_ {
        let places = match self.scheme {
            Scheme::Levels(outer, inner) => level_holders(slot, &self.nodes, outer, inner),
            flat => holders(slot, self.drives.len(), flat.tolerates()).collect(),
        };
        places.into_iter().filter_map(|at| self.drives.get(at).copied())
    }

    /// The names and records of its parities, on either level, of the table that `partition` is a part of.
    pub(crate) fn parities<'a>(&'a self, partition: &'a PartitionName) -> impl Iterator<Item = (PartitionName, &'a PartitionRecord)> {
        let outer = self.parity.iter().map(move |p| (parity_of(partition, p.slot), p));
        outer.chain(self.inner.iter().map(move |p| (Part::Inner.of(partition, p.slot), p)))
    }
}

/// The drives, by place, that have the value under the key of partition `slot` itself. There are `drives` drives, and
/// `parity` of them (M) may be lost.
pub fn holders(slot: u32, drives: usize, parity: usize) -> impl Iterator<Item = usize> {
    (0..=parity.min(drives.saturating_sub(1))).map(move |further| (slot as usize + further) % drives.max(1))
}

/// As [`holders`], on two levels, where `nodes` has the node of each drive: m more of the drive's own node, and m + 1
/// of each of the M nodes after it.
pub fn level_holders(slot: u32, nodes: &[u32], outer: Code, inner: Code) -> Vec<usize> {
    let Some(own) = nodes.get(slot as usize).copied() else { return Vec::new() };
    let count = nodes.iter().max().map_or(0, |last| *last as usize + 1);
    let mut found = Vec::new();
    for further in 0..=outer.parity().min(count.saturating_sub(1)) {
        let node = ((own as usize + further) % count.max(1)) as u32;
        let drives: Vec<usize> = (0..nodes.len()).filter(|at| nodes[*at] == node).collect();
        // Of other nodes not always the first.
        let first = drives.iter().position(|at| *at == slot as usize).unwrap_or(slot as usize % drives.len().max(1));
        found.extend((0..drives.len().min(inner.parity() + 1)).filter_map(|at| drives.get((first + at) % drives.len()).copied()));
    }
    found
}

/// What a value of a table's is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A slice of the table.
    Slice,
    /// A parity; on two levels one across nodes.
    Parity,
    /// A parity within a node.
    Inner,
}

impl Part {
    /// The partition of such parts of the table that `table` is a partition of.
    pub fn of(self, table: &PartitionName, slot: u32) -> PartitionName {
        let name = match self {
            Part::Slice => table.table.clone(),
            Part::Parity => format!("{PARITY}{}", table.table),
            Part::Inner => format!("{INNER_PARITY}{}", table.table),
        };
        PartitionName { table: name, slot, ..table.clone() }
    }

    /// What a partition has, and the partition of the table itself.
    pub fn parse(partition: &PartitionName) -> (Self, PartitionName) {
        let of = |table: &str| PartitionName { table: table.to_owned(), ..partition.clone() };
        match (partition.table.strip_prefix(PARITY), partition.table.strip_prefix(INNER_PARITY)) {
            (Some(table), _) => (Part::Parity, of(table)),
            (None, Some(table)) => (Part::Inner, of(table)),
            (None, None) => (Part::Slice, partition.clone()),
        }
    }
}

/// The partition of parities that belongs to `partition`.
pub fn parity_of(partition: &PartitionName, slot: u32) -> PartitionName {
    Part::Parity.of(partition, slot)
}

/// The code groups within nodes.
#[derive(Debug)]
pub struct Within {
    /// The node of each drive.
    pub nodes: Vec<u32>,
    /// The groups within nodes.
    pub map: CodeMap,
}

/// A code map, and what else it takes to find the shards that it names.
#[derive(Debug)]
pub struct StoredMap {
    /// The drives that the table was written over; groups name them by their places here.
    pub drives: Vec<Uuid>,
    /// On two levels that across nodes.
    pub map: CodeMap,
    /// On two levels that within nodes.
    pub within: Option<Within>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    drives: Vec<Uuid>,
    /// On two levels the node of each drive.
    #[serde(default, rename = "hosts", skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<u32>,
    /// And the bytes of the first of two maps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    across: Option<u64>,
}

impl StoredMap {
    /// The bytes: u32 LE length of a JSON object `{"drives": [ids]}`, that, and the map; on two levels
    /// `{"drives", "hosts", "across": bytes of the first map}`, that, the map across nodes, and that within them.
    ///
    /// # Errors
    /// Internal, where the head can't be written as JSON.
    pub fn encode(&self) -> Result<Bytes> {
        let map = self.map.to_bytes();
        let (nodes, across) = match &self.within {
            Some(within) => (within.nodes.clone(), Some(map.len() as u64)),
            None => (Vec::new(), None),
        };
        let head = Head { drives: self.drives.clone(), nodes, across };
        let head = serde_json::to_vec(&head).map_err(|e| Error::internal("cannot write the head of a code map").with_source(e))?;
        let len = u32::try_from(head.len()).map_err(|_| Error::exhausted("a code map has too many drives"))?;
        let within = self.within.as_ref().map_or_else(Default::default, |within| within.map.to_bytes());
        Ok([len.to_le_bytes().as_slice(), &head, &map, &within].concat().into())
    }

    /// What [`Self::encode`] gave.
    ///
    /// # Errors
    /// Corrupt; Unsupported for a map of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let short = || Error::corrupt("a code map is damaged: it ends within its head");
        let (len, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        let (head, maps) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(short)?;
        let Head { drives, nodes, across } =
            serde_json::from_slice(head).map_err(|e| Error::corrupt("a code map is damaged: its head is none").with_source(e))?;
        if drives.len() > MAX_DRIVES {
            return Err(Error::corrupt(format!("a code map is damaged: it names {} drives", drives.len())));
        }
        let Some(across) = across else { return Ok(Self { drives, map: CodeMap::from_bytes(maps)?, within: None }) };
        if nodes.len() != drives.len() || nodes.iter().any(|node| *node as usize >= drives.len()) {
            return Err(Error::corrupt(format!("a code map is damaged: it has the nodes of {} drives, of {}", nodes.len(), drives.len())));
        }
        let (map, within) = usize::try_from(across).ok().and_then(|across| maps.split_at_checked(across)).ok_or_else(short)?;
        Ok(Self { drives, map: CodeMap::from_bytes(map)?, within: Some(Within { nodes, map: CodeMap::from_bytes(within)? }) })
    }

    /// The places of the drives that have the value under the key of partition `slot` itself.
    pub fn holders(&self, slot: u32) -> Vec<usize> {
        match &self.within {
            Some(within) => level_holders(slot, &within.nodes, self.map.code(), within.map.code()),
            None => holders(slot, self.drives.len(), self.map.code().parity()).collect(),
        }
    }
}

/// One level of the code groups of a table.
#[derive(Debug, Clone)]
pub struct Level {
    /// The record that has the level.
    pub stored: Arc<StoredMap>,
    /// Whether it is that within nodes.
    within: bool,
}

impl Level {
    /// The groups across drives, or on two levels across nodes.
    pub fn across(stored: &Arc<StoredMap>) -> Self {
        Self { stored: Arc::clone(stored), within: false }
    }

    /// The groups within nodes, on two levels.
    pub fn within(stored: &Arc<StoredMap>) -> Option<Self> {
        stored.within.as_ref().map(|_| Self { stored: Arc::clone(stored), within: true })
    }

    /// All levels. The level that reconstructs a shard from the fewest others comes first.
    pub fn all(stored: &Arc<StoredMap>) -> Vec<Self> {
        Self::within(stored).into_iter().chain([Self::across(stored)]).collect()
    }

    /// Whether its groups are within nodes, and not across them.
    pub fn is_within(&self) -> bool {
        self.within
    }

    /// Whether there is another level.
    pub fn is_one_of_two(&self) -> bool {
        self.stored.within.is_some()
    }

    /// Its groups.
    pub fn map(&self) -> &CodeMap {
        match &self.stored.within {
            Some(within) if self.within => &within.map,
            _ => &self.stored.map,
        }
    }

    /// What a shard of this level is, and the number of its partition.
    pub fn part(&self, shard: &Shard, role: Role) -> (Part, u32) {
        let drives = self.stored.drives.len() as u32;
        match (self.within, role) {
            (false, Role::Data) => (Part::Slice, shard.home),
            (false, Role::Parity) => (Part::Parity, shard.home),
            (true, Role::Data) if shard.home >= drives => (Part::Parity, shard.home - drives),
            (true, Role::Data) => (Part::Slice, shard.home),
            (true, Role::Parity) => (Part::Inner, shard.home),
        }
    }

    /// Where a part is on this level, if it is in any of its groups.
    pub fn find(&self, part: Part, slot: u32, number: u32) -> Option<Place> {
        let drives = self.stored.drives.len() as u32;
        match (self.within, part) {
            (_, Part::Slice) => self.map().find(Role::Data, slot, number),
            (false, Part::Parity) => self.map().find(Role::Parity, slot, number),
            (true, Part::Parity) => self.map().find(Role::Data, slot.checked_add(drives)?, number),
            (false, Part::Inner) => None,
            (true, Part::Inner) => self.map().find(Role::Parity, slot, number),
        }
    }

    /// The key of a shard of this level of the table that `table` is a partition of.
    pub fn key(&self, table: &PartitionName, shard: &Shard, role: Role) -> Result<Key> {
        let (part, slot) = self.part(shard, role);
        part.of(table, slot).slice_key(shard.number)
    }
}

/// The code of a scheme between drives, or between nodes, if it has one.
///
/// # Errors
/// Invalid where there are too few drives for it; on two levels it also takes nodes, see
/// [`crate::records::failure_domains::FailureDomains::usable`].
pub fn code(scheme: Scheme, drives: usize) -> Result<Option<Code>> {
    let Some(code) = scheme.code() else { return Ok(None) };
    if drives < scheme.least_drives() {
        return Err(Error::invalid(format!("redundancy {scheme} needs {} drives or more, but there are {drives}", scheme.least_drives())));
    }
    Ok(Some(code))
}

/// Over which drives a table is written.
pub struct StripeLayout {
    /// The redundancy that it gets.
    pub scheme: Scheme,
    /// The host's drives; partitions are numbered by their places in this.
    pub drives: Vec<usize>,
    /// On two levels the node of each.
    pub nodes: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_erasure::map::Shard;

    #[test]
    fn maps_round_trip_and_damage_is_found() {
        let drives: Vec<_> = (0..3).map(Uuid::from_u128).collect();
        let shard = |drive: u32, len| Shard { drive, home: drive, number: 0, len, crc32c: 7 };
        let (data, parity) = ([shard(0, 100), shard(1, 90)], [shard(2, 128)]);
        let map = CodeMap::new(Code::new(2, 1).unwrap(), [(&data[..], &parity[..])]).unwrap();
        let stored = |within| StoredMap { drives: drives.clone(), map: map.clone(), within };
        let two = stored(Some(Within { nodes: vec![0, 1, 0], map: map.clone() })).encode().unwrap();
        assert!(two.windows(15).any(|part| part == br#""hosts":[0,1,0]"#), "the name in the format");
        let back = StoredMap::decode(&two).unwrap();
        assert!(back.drives == drives && back.map == map && back.within.is_some_and(|within| within.nodes == [0, 1, 0] && within.map == map));
        for cut in 0..two.len() {
            assert_eq!(StoredMap::decode(&two[..cut]).unwrap_err().kind(), skytether_common::Kind::Corrupt, "cut at {cut}");
        }
        let bytes = stored(None).encode().unwrap();
        let back = StoredMap::decode(&bytes).unwrap();
        assert!(back.drives == drives && back.map == map && back.within.is_none());
        for cut in 0..bytes.len() {
            assert_eq!(StoredMap::decode(&bytes[..cut]).unwrap_err().kind(), skytether_common::Kind::Corrupt, "cut at {cut}");
        }
    }

    #[test]
    fn parities_are_partitions_of_a_name_that_no_table_has() {
        let name = PartitionName { dataset: "a.b".parse().unwrap(), generation: skytether_common::Generation(1), table: "x".into(), slot: 2 };
        let parity = parity_of(&name, 1);
        assert_eq!(parity.key().unwrap().as_str(), "a/b/0000000000000001.parity%2Fx.1");
        assert_eq!(Part::parse(&parity), (Part::Parity, PartitionName { slot: 1, ..name.clone() }));
        assert_eq!(Part::parse(&name), (Part::Slice, name.clone()));
        assert_eq!(Part::parse(&Part::Inner.of(&name, 2)), (Part::Inner, name.clone()));
        assert_eq!(holders(2, 3, 1).collect::<Vec<_>>(), [2, 0]);
        assert_eq!(holders(0, 1, 0).collect::<Vec<_>>(), [0]);
        let code = Code::new(2, 1).unwrap();
        // Nodes by turns, as ingests have them.
        let nodes: Vec<u32> = (0..9).map(|at| at % 3).collect();
        assert_eq!(level_holders(4, &nodes, code, code), [4, 7, 5, 8]);
        assert_eq!(level_holders(2, &nodes, code, code), [2, 5, 6, 0]);
    }

    #[test]
    fn schemes_need_their_drives() {
        let of = |text: &str, drives| code(text.parse().unwrap(), drives);
        assert!(of("none", 1).unwrap().is_none() && of("ec:4+1", 5).unwrap().is_some() && of("replicas:2", 2).unwrap().is_some());
        assert!(of("ec:4+2", 5).unwrap_err().to_string().contains("needs 6 drives"));
        assert!(of("ec:4+1/4+1", 24).unwrap_err().to_string().contains("needs 25 drives") && of("ec:4+1/4+1", 25).unwrap().is_some());
    }
}
