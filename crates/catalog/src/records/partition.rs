//! What a root record has about the partitions of a table, and about their keys.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skytether_common::{Error, Result};
use skytether_partitioning::{self as partition, Key};
use uuid::Uuid;

use crate::records::bounds::Bounds;

/// How rows of a table are distributed over its partitions; see [`skytether_partitioning`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionedBy {
    /// The version of the hash. Under a hash that this version does not know, rows can be read, but their places can't
    /// be computed.
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
        Ok(Self { hash: partition::VERSION, keys: keys.map_err(|e| Error::internal("cannot write the keys of a table").with_source(e))? })
    }

    /// The names of the keys' columns.
    #[must_use]
    pub fn columns(&self) -> Vec<String> {
        self.keys.iter().filter_map(|k| k.get("column")?.as_str().map(str::to_owned)).collect()
    }
}

/// One partition of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// The drive that manages it.
    pub drive: Uuid,
    /// Its number within the table.
    pub slot: u32,
    /// Its rows.
    pub rows: u64,
    /// Its slices.
    pub slices: u32,
    /// Bytes of its slices and of its metadata slice.
    pub bytes: u64,
    /// Bounds of its columns; unknown for matrices and parities, and for partitions of versions that did not keep them.
    #[serde(default, skip_serializing_if = "Bounds::is_empty")]
    pub bounds: Bounds,
}
