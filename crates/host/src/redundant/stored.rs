//! What redundancy stores: parity slices in partitions of their own, the code map beside the drives that it counts, copies of metadata.
//!
//! The parities of table `t` are the partitions of table `parity/t`, of the same generation. Partition `i` of both is on drive `i` of the drives that the table was written over, so that data and parity of one drive have one number.
//! What lies under the key of a partition itself (its metadata slice; for `parity/t` the code map, in partition 0) is on the M drives after it as well, under the same key.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, PartitionName, Result};
use skytether_redundancy::map::CodeMap;
use skytether_redundancy::{Code, Scheme};
use uuid::Uuid;

use crate::catalog::PartitionRecord;

/// What the names of tables of parities begin with; no other table's does.
pub(crate) const PARITY: &str = "parity/";

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
}

impl RedundancyRecord {
    /// The drives that have what lies under the key of partition `slot` itself: its own, and M more.
    pub(crate) fn holders(&self, slot: u32) -> impl Iterator<Item = Uuid> + '_ {
        holders(slot, self.drives.len(), self.scheme.tolerates()).filter_map(|at| self.drives.get(at).copied())
    }
}

/// The places of the drives that have what lies under the key of partition `slot` itself, of so many, M of which may be lost.
pub(crate) fn holders(slot: u32, drives: usize, parity: usize) -> impl Iterator<Item = usize> {
    (0..=parity.min(drives.saturating_sub(1))).map(move |further| (slot as usize + further) % drives.max(1))
}

/// The partition of parities beside `partition`.
pub(crate) fn parity_of(partition: &PartitionName, slot: u32) -> PartitionName {
    PartitionName { table: format!("{PARITY}{}", partition.table), slot, ..partition.clone() }
}

/// The partition whose parities `partition` has, if it has parities.
pub(crate) fn data_of(partition: &PartitionName) -> Option<PartitionName> {
    let table = partition.table.strip_prefix(PARITY)?.to_owned();
    Some(PartitionName { table, ..partition.clone() })
}

/// A code map, and what else it takes to find the shards that it names.
#[derive(Debug)]
pub(crate) struct StoredMap {
    pub(crate) drives: Vec<Uuid>,
    pub(crate) map: CodeMap,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    drives: Vec<Uuid>,
}

impl StoredMap {
    /// The bytes: u32 LE length of a JSON object `{"drives": [ids]}`, that, and the map.
    ///
    /// # Errors
    /// Internal, where the head can't be written as JSON.
    pub(crate) fn encode(drives: &[Uuid], map: &CodeMap) -> Result<Bytes> {
        let head = serde_json::to_vec(&Head { drives: drives.to_vec() }).map_err(|e| Error::internal("cannot write the head of a code map").because(e))?;
        let len = u32::try_from(head.len()).map_err(|_| Error::exhausted("a code map has too many drives"))?;
        Ok([len.to_le_bytes().as_slice(), &head, &map.to_bytes()].concat().into())
    }

    /// What [`Self::encode`] gave.
    ///
    /// # Errors
    /// Corrupt; Unsupported for a map of a later version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let short = || Error::corrupt("a code map is damaged: it ends within its head");
        let (len, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        let (head, map) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(short)?;
        let Head { drives } = serde_json::from_slice(head).map_err(|e| Error::corrupt("a code map is damaged: its head is none").because(e))?;
        if drives.len() > MAX_DRIVES {
            return Err(Error::corrupt(format!("a code map is damaged: it names {} drives", drives.len())));
        }
        Ok(Self { drives, map: CodeMap::from_bytes(map)? })
    }
}

/// The code of a scheme that data sets can have, if it has one.
///
/// # Errors
/// Unsupported for two levels; Invalid where there are fewer than K + M drives.
pub(crate) fn code(scheme: Scheme, drives: usize) -> Result<Option<Code>> {
    if let Scheme::Levels(..) = scheme {
        return Err(Error::unsupported(format!("redundancy {scheme} is on two levels, which data sets can't have yet: use ec:K+M")));
    }
    let Some(code) = scheme.code() else { return Ok(None) };
    if drives < code.shards() {
        return Err(Error::invalid(format!("redundancy {scheme} needs {} drives or more, but there are {drives}", code.shards())));
    }
    Ok(Some(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_redundancy::map::Shard;

    #[test]
    fn maps_come_back_and_damage_is_told() {
        let drives: Vec<_> = (0..3).map(Uuid::from_u128).collect();
        let shard = |drive: u32, len| Shard { drive, home: drive, number: 0, len, crc32c: 7 };
        let (data, parity) = ([shard(0, 100), shard(1, 90)], [shard(2, 128)]);
        let map = CodeMap::new(Code::new(2, 1).unwrap(), [(&data[..], &parity[..])]).unwrap();
        let bytes = StoredMap::encode(&drives, &map).unwrap();
        let back = StoredMap::decode(&bytes).unwrap();
        assert!(back.drives == drives && back.map == map);
        for cut in 0..bytes.len() {
            assert_eq!(StoredMap::decode(&bytes[..cut]).unwrap_err().kind(), skytether_common::Kind::Corrupt, "cut at {cut}");
        }
    }

    #[test]
    fn parities_are_partitions_of_a_name_that_no_table_has() {
        let name = PartitionName { dataset: "a.b".parse().unwrap(), generation: skytether_common::Generation(1), table: "x".into(), slot: 2 };
        let parity = parity_of(&name, 1);
        assert_eq!(parity.key().unwrap().as_str(), "a/b/0000000000000001.parity%2Fx.1");
        assert_eq!(data_of(&parity).unwrap(), PartitionName { slot: 1, ..name.clone() });
        assert_eq!(data_of(&name), None);
        assert_eq!(holders(2, 3, 1).collect::<Vec<_>>(), [2, 0]);
        assert_eq!(holders(0, 1, 0).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn schemes_need_their_drives() {
        let of = |text: &str, drives| code(text.parse().unwrap(), drives);
        assert!(of("none", 1).unwrap().is_none() && of("ec:4+1", 5).unwrap().is_some() && of("replicas:2", 2).unwrap().is_some());
        assert!(of("ec:4+2", 5).unwrap_err().to_string().contains("needs 6 drives"));
        assert_eq!(of("ec:4+1/4+1", 100).unwrap_err().kind(), skytether_common::Kind::Unsupported);
    }
}
