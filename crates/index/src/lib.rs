//! Indexes that drives build over their own slices: pure, without I/O.
//!
//! An index finds rows by ranges of some columns of a table, several at once. It is made of *segments*, each for the
//! rows of some consecutive stripes. A segment has *pages* of some thousand rows that are close to one another in all
//! columns, and a *head* with the bounds of each page.
//!
//! | module | subject |
//! |---|---|
//! | [`order`] | values of any column as numbers in their order |
//! | [`page`] | rows with their numbers, packed |
//! | [`segment`] | how pages are made, and found again |
//! | [`lean`] | batches without values of other rows |
//!
//! Invariant: an index only leaves out what does not match (I14). `skytether_drive` builds and keeps indexes;
//! `skytether_engine` searches them.
//!
//! ```
//! use skytether_common::{Generation, PartitionName};
//!
//! let dataset = "lab.runs".parse()?;
//! let of = PartitionName { dataset, generation: Generation(1), table: "data".to_owned(), slot: 0 };
//! // An index has a partition of its own, next to the indexed one.
//! let index = skytether_index::partition(&of, "by-id");
//! assert_eq!(skytether_index::of_partition(&index), Some((of, "by-id".to_owned())));
//! assert!(skytether_index::check_name("a/b").is_err());
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/internals/indexes.md`.

pub mod lean;
pub mod order;
pub mod page;
pub mod segment;

use serde::{Deserialize, Serialize};
use skytether_common::{Error, PartitionName, Result};

pub use order::{Interval, Order};
pub use segment::{Building, Built, Head};

/// What names of the tables of indexes begin with; no other table's does.
pub const INDEX: &str = "index/";

/// The version of definitions and heads.
pub const FORMAT: u32 = 1;

/// Columns that an index may be about.
pub const MAX_COLUMNS: usize = 8;

/// The longest name of an index.
const MAX_NAME: usize = 64;

/// The partition of index `name` of a partition: that of a table of its own, of the same generation.
#[must_use]
pub fn partition(of: &PartitionName, name: &str) -> PartitionName {
    PartitionName { table: format!("{INDEX}{name}/{}", of.table), ..of.clone() }
}

/// The partition that an index is of, and the index's name; `None` for partitions of other tables.
#[must_use]
pub fn of_partition(index: &PartitionName) -> Option<(PartitionName, String)> {
    let (name, table) = index.table.strip_prefix(INDEX)?.split_once('/')?;
    check_name(name).ok()?;
    Some((PartitionName { table: table.to_owned(), ..index.clone() }, name.to_owned()))
}

/// Checks the name of an index.
///
/// # Errors
/// Invalid, with the rule for names.
pub fn check_name(name: &str) -> Result<()> {
    if !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Error::invalid(format!("{shown:?} is no name of an index: use up to {MAX_NAME} letters, digits, '_' and '-'")))
}

/// The definition of an index: the value under its partition's own key. A drive that has it builds the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// [`FORMAT`].
    pub format: u32,
    /// The columns by whose ranges it finds rows.
    pub columns: Vec<String>,
    /// Further columns whose values the index stores, so that a scan need not read slices for them.
    #[serde(default)]
    pub include: Vec<String>,
}

impl Definition {
    /// A definition in the present format.
    #[must_use]
    pub fn new(columns: Vec<String>, include: Vec<String>) -> Self {
        Self { format: FORMAT, columns, include }
    }

    /// All columns that its pages have values of: none unless some are included.
    pub fn held(&self) -> impl Iterator<Item = &String> {
        let own = if self.include.is_empty() { &[][..] } else { self.columns.as_slice() };
        own.iter().chain(&self.include)
    }

    /// Its stored bytes.
    ///
    /// # Errors
    /// Internal only.
    pub fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::internal("cannot write the definition of an index").with_source(e))
    }

    /// What [`Self::encode`] gave.
    ///
    /// # Errors
    /// Corrupt; Unsupported for a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let definition: Self = serde_json::from_slice(bytes).map_err(|e| Error::corrupt("the definition of an index is none").with_source(e))?;
        if definition.format > FORMAT {
            return Err(Error::unsupported(format!("an index has format {}, this version reads up to {FORMAT}: upgrade the drive", definition.format)));
        }
        let distinct = |names: &[String]| names.iter().enumerate().all(|(at, name)| !names[..at].contains(name));
        let held: Vec<String> = definition.columns.iter().chain(&definition.include).cloned().collect();
        if definition.columns.is_empty() || definition.columns.len() > MAX_COLUMNS || !distinct(&held) {
            return Err(Error::corrupt("the definition of an index has no columns, too many, or one twice"));
        }
        Ok(definition)
    }
}

/// How far an index is on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its turn has not come.
    Waiting,
    /// Being built; what is there of it is used.
    Building,
    /// All rows are in it.
    Ready,
    /// It was taken off, for want of space; it is built again when the drive is opened next and has room.
    Dropped,
    /// It could not be built; it is tried again if that may help.
    Failed,
}

/// The state of an index, as its drive reports it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The partition that it is of.
    pub of: PartitionName,
    /// Its name.
    pub name: String,
    /// How far it is.
    pub phase: Phase,
    /// Stripes that are in it, and those that there are.
    pub stripes: (u32, u32),
    /// Rows that are in it.
    pub rows: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Why it was dropped, or can't be built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its definition on the drive; older drives do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<Definition>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_partitions_of_tables_of_their_own() {
        let of = PartitionName { dataset: "a.b".parse().unwrap(), generation: skytether_common::Generation(7), table: "da/ta".into(), slot: 3 };
        let index = partition(&of, "by_ke");
        assert_eq!(of_partition(&index), Some((of.clone(), "by_ke".into())));
        assert_eq!(PartitionName::parse(&index.slice_key(4).unwrap()), Some((index.clone(), Some(4))));
        assert_eq!(of_partition(&of), None);
        for name in ["", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn definitions_are_checked() {
        let good = Definition::new(vec!["x".into(), "y".into()], vec!["z".into()]);
        assert_eq!(Definition::decode(&good.encode().unwrap()).unwrap(), good);
        assert_eq!(good.held().collect::<Vec<_>>(), ["x", "y", "z"]);
        assert_eq!(Definition::new(vec!["x".into()], vec![]).held().count(), 0);
        for bad in [Definition::new(vec![], vec![]), Definition::new(vec!["x".into()], vec!["x".into()]), Definition::new(vec!["x".into(); 2], vec![])] {
            assert!(Definition::decode(&bad.encode().unwrap()).is_err(), "{bad:?}");
        }
    }
}
