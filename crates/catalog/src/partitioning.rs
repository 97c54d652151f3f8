//! What a root record says of a table that is partitioned by key.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skytether_common::{Error, Result};
use skytether_partitioning::{self as partition, Key};
use skytether_partitioning::{ByKey, Placement};

use crate::root_store::TableRecord;

/// How rows of a table are dealt to its partitions; see [`skytether_plan::partition`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionedBy {
    /// The version of the hash. Of one that this version does not know, the rows are there, but nobody can tell where.
    pub hash: u32,
    /// The keys, in order.
    pub keys: Vec<Value>,
}

impl PartitionedBy {
    /// By `keys`, as this version hashes.
    ///
    /// # Errors
    /// Internal if they can't be written as JSON.
    pub fn new(keys: &[Key]) -> Result<Self> {
        let keys = keys.iter().map(serde_json::to_value).collect::<std::result::Result<_, _>>();
        Ok(Self { hash: partition::VERSION, keys: keys.map_err(|e| Error::internal("cannot write the keys of a table").because(e))? })
    }

    /// The names of the keys' columns.
    #[must_use]
    pub fn columns(&self) -> Vec<String> {
        self.keys.iter().filter_map(|k| k.get("column")?.as_str().map(str::to_owned)).collect()
    }
}

impl TableRecord {
    /// How the table is partitioned by key; `None` where it is not, or in a way that this version does not know.
    #[must_use]
    pub fn by_key(&self) -> Option<ByKey> {
        let by = self.partitioned_by.as_ref().filter(|by| by.hash == partition::VERSION && self.placement == Placement::Spread)?;
        let keys = by.keys.iter().map(|k| serde_json::from_value(k.clone()).ok()).collect::<Option<Vec<Key>>>()?;
        let mut partitions: Vec<_> = self.partitions.iter().collect();
        partitions.sort_by_key(|p| p.slot);
        let complete = partitions.iter().enumerate().all(|(at, p)| p.slot as usize == at);
        let most_rows = partitions.iter().map(|p| p.rows).max().unwrap_or(0);
        (complete && !keys.is_empty()).then(|| ByKey { keys, drives: partitions.iter().map(|p| p.drive).collect(), most_rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bounds::Bounds;
    use crate::root_store::PartitionRecord;
    use skytether_partitioning::KeyType;
    use uuid::Uuid;

    fn record() -> TableRecord {
        let keys = [Key { column: "day".into(), of: KeyType::Date }, Key { column: "city".into(), of: KeyType::Text }];
        // Not in the order of their slots.
        let partitions = [1u32, 0].map(|slot| PartitionRecord {
            drive: Uuid::from_u128(slot.into()),
            slot,
            rows: u64::from(slot) * 5,
            slices: 1,
            bytes: 9,
            bounds: Bounds::default(),
        });
        let partitioned_by = Some(PartitionedBy::new(&keys).unwrap());
        TableRecord {
            placement: Placement::Spread,
            rows: 5,
            matrix: None,
            memory_bytes: Some(1),
            partitioned_by,
            partitions: partitions.to_vec(),
            redundancy: None,
        }
    }

    #[test]
    fn the_record_tells_keys_and_drives() {
        let text = serde_json::to_string(&record()).unwrap();
        let read: TableRecord = serde_json::from_str(&text).unwrap();
        assert_eq!(read, record());
        assert!(text.contains(r#""partitioned_by":{"hash":1,"keys":[{"column":"day","type":"date"},{"column":"city","type":"text"}]}"#), "{text}");
        let by = read.by_key().unwrap();
        assert_eq!((by.most_rows, &*by.drives), (5, &[Uuid::from_u128(0), Uuid::from_u128(1)][..]));
        assert_eq!(read.partitioned_by.unwrap().columns(), ["day", "city"]);
    }

    /// The rows are there all the same; only what follows from their places does not.
    #[test]
    fn what_is_not_known_is_no_partitioning() {
        let changed = |change: &dyn Fn(&mut TableRecord)| {
            let mut record = record();
            change(&mut record);
            record.by_key()
        };
        assert!(changed(&|_| ()).is_some());
        assert_eq!(changed(&|r| r.partitioned_by = None), None);
        assert_eq!(changed(&|r| r.partitioned_by.as_mut().unwrap().hash = 2), None);
        assert_eq!(changed(&|r| r.partitioned_by.as_mut().unwrap().keys[0]["type"] = "century".into()), None);
        assert_eq!(changed(&|r| r.partitioned_by.as_mut().unwrap().keys.clear()), None);
        assert_eq!(changed(&|r| r.partitions[0].slot = 7), None);
    }
}
