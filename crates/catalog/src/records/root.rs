//! The root record of a data set: which generation is visible, and where the partitions of its tables lie.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::names::part_table;
use skytether_common::{Blocks, DatasetName, Detail, Error, Generation, Key, PartitionName, Result, Span};
use skytether_device::kept::KEPT;
use skytether_index::INDEX;
use skytether_partitioning::{self as partition, ByKey, Key as PartitionKey, Placement};
use uuid::Uuid;

use crate::records::code_map::{INNER_PARITY, PARITY, RedundancyRecord};
use crate::records::index::IndexRecord;
use crate::records::partition::{PartitionRecord, PartitionedBy};

/// The newest format that this version reads. It writes it for data sets with matrices of several parts: an older
/// version would answer without the cells of the later ones.
pub const ROOT_FORMAT: u32 = 5;

/// The format for data sets with tables of an earlier generation: an older version would look for these in the record's
/// own.
pub const VERSIONS_FORMAT: u32 = 4;

/// The format for data sets with redundancy on two levels.
pub const LEVELS_FORMAT: u32 = 3;

/// The format for data sets with redundancy on one level.
pub const REDUNDANT_FORMAT: u32 = 2;

/// The format for all other data sets, which older versions read.
pub const PLAIN_FORMAT: u32 = 1;

/// What a data set is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatasetKind {
    /// One plain table, `data`.
    Table,
    /// Expression matrices with tables about cells and genes.
    Expression,
}

impl DatasetKind {
    /// The kind in a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            DatasetKind::Table => "table",
            DatasetKind::Expression => "expression",
        }
    }
}

/// The place of a part among the cells of its matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRecord {
    /// The number of the first cell.
    pub first_cell: u32,
    /// The number of the block that begins there.
    pub first_block: u32,
}

/// The size of a matrix table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatrixRecord {
    /// Number of cells; of a part, with those of the parts before.
    pub cells: u32,
    /// Number of genes.
    pub genes: u32,
    /// Number of stored values.
    pub nonzeros: u64,
}

/// One table of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRecord {
    /// The generation that wrote the table, where that is an earlier one than the record's: a version of the data set
    /// keeps tables of the version before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// How the partitions relate.
    pub placement: Placement,
    /// Rows of the table (of sparse rows for a matrix).
    pub rows: u64,
    /// The shape, for a matrix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<MatrixRecord>,
    /// Where the cells are, for a table with a part of a matrix ([`skytether_common::names::PART`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartRecord>,
    /// Bytes of all rows in memory, as Arrow arrays; not known of matrices, and of tables that were
    /// written before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The keys by which rows are distributed over the partitions, if any. Then there is a partition on every drive of
    /// that time, in order of slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitioned_by: Option<PartitionedBy>,
    /// The partitions, one per drive at most.
    pub partitions: Vec<PartitionRecord>,
    /// The redundancy of the table, if any. A table that lies everywhere needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<RedundancyRecord>,
}

/// What a data set consists of at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootRecord {
    /// Version of this record's format.
    pub format: u32,
    /// The data set.
    pub name: DatasetName,
    /// Its kind.
    pub kind: DatasetKind,
    /// The version of its content: of all tables but those that name another.
    pub generation: Generation,
    /// The generation in which the content was written, where its parts were moved to other drives since, which makes a
    /// new generation of the same content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Generation>,
    /// Grows with each change: of several copies of a record the highest is the truth. 0 where there is one copy.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub change: u64,
    /// The tables by name.
    pub tables: BTreeMap<String, TableRecord>,
    /// The tables that the latest versions have replaced, each with its generation; those of the newest version come
    /// first. They are still on the drives, for queries that began before. A later change deletes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub superseded: Vec<BTreeMap<String, Generation>>,
    /// The indexes that drives build of the tables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexRecord>,
    /// What the application keeps with it.
    #[serde(default)]
    pub application: BTreeMap<String, String>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl RootRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// `Unsupported` for a newer format, `Corrupt` for anything that is no root record of `name`.
    pub fn decode(name: &DatasetName, bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let corrupt = |cause| Error::corrupt(format!("the root record of {name} is no root record")).with_source(cause);
        let head: Head = serde_json::from_slice(bytes).map_err(corrupt)?;
        if head.format > ROOT_FORMAT {
            return Err(Error::unsupported(format!(
                "{name} was written by a newer version of Skytether (root record format {}, this version reads up to {ROOT_FORMAT}): upgrade to read it",
                head.format
            )));
        }
        let record: Self = serde_json::from_slice(bytes).map_err(corrupt)?;
        if record.name != *name {
            return Err(Error::corrupt(format!("the root record of {name} names {} instead", record.name)));
        }
        Ok(record)
    }

    /// The record's bytes.
    ///
    /// # Errors
    /// `Internal` if it can't be written as JSON.
    pub fn encode(&self) -> Result<Bytes> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|e| Error::internal(format!("cannot write the root record of {}", self.name)).with_source(e))
    }

    /// The table called `table`.
    ///
    /// # Errors
    /// `NotFound`, with the tables that there are.
    pub fn table(&self, table: &str) -> Result<&TableRecord> {
        self.tables.get(table).ok_or_else(|| {
            let tables: Vec<_> = self.tables.keys().map(String::as_str).collect();
            Error::not_found(format!("{} has no table {table:?}; it has {}", self.name, tables.join(", ")))
                .with_detail(Detail::MissingTable { table: table.to_owned() })
        })
    }

    /// The name of one of the record's partitions.
    #[must_use]
    pub fn partition(&self, table: &str, slot: u32) -> PartitionName {
        PartitionName { dataset: self.name.clone(), generation: self.generation_of(table), table: table.to_owned(), slot }
    }

    /// What a sub-plan over a partition of `table` may see at its drive: that partition, and the drive's copies of the
    /// small tables about cells and genes. A part of a matrix is seen by the matrix's name.
    #[must_use]
    pub fn visible(&self, table: &str, partition: &PartitionRecord) -> BTreeMap<String, PartitionName> {
        let copies = self.tables.iter().filter(|(_, t)| t.placement == Placement::Everywhere);
        let here = copies.filter_map(|(other, t)| Some((other, t.partitions.iter().find(|p| p.drive == partition.drive)?)));
        let mut visible: BTreeMap<_, _> = here.map(|(other, copy)| (other.clone(), self.partition(other, copy.slot))).collect();
        let own = self.partition(table, partition.slot);
        visible.insert(own.whole().to_owned(), own);
        visible
    }

    /// The generation that wrote a table.
    #[must_use]
    pub fn generation_of(&self, table: &str) -> Generation {
        self.tables.get(table).and_then(|t| t.generation).unwrap_or(self.generation)
    }

    /// Whether a partition is one of the record's, or holds parities or an index of one.
    #[must_use]
    pub fn names_partition(&self, partition: &PartitionName) -> bool {
        let table = owner(&partition.table);
        partition.dataset == self.name && self.tables.contains_key(table) && self.generation_of(table) == partition.generation
    }

    /// As [`Self::names_partition`]; tables that a later change deletes count too.
    pub(crate) fn keeps_partition(&self, partition: &PartitionName) -> bool {
        let table = owner(&partition.table);
        self.names_partition(partition) || self.superseded.iter().any(|tables| tables.get(table) == Some(&partition.generation))
    }

    /// All generations with tables of the data set, among them those that a later change deletes.
    #[must_use]
    pub fn generations(&self) -> BTreeSet<Generation> {
        let kept = self.tables.values().filter_map(|t| t.generation);
        kept.chain(self.superseded.iter().flat_map(BTreeMap::values).copied()).chain([self.generation]).collect()
    }

    /// Sets the lowest format that describes the record.
    pub fn set_format(&mut self) {
        self.format = if self.tables.values().any(|table| table.part.is_some()) {
            ROOT_FORMAT
        } else if self.tables.values().any(|table| table.generation.is_some()) {
            VERSIONS_FORMAT
        } else if self.is_on_two_levels() {
            LEVELS_FORMAT
        } else if self.tables.values().any(|table| table.redundancy.is_some()) {
            REDUNDANT_FORMAT
        } else {
            PLAIN_FORMAT
        };
    }

    /// Bytes stored for the data set on all drives together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tables.values().map(TableRecord::bytes).sum()
    }

    /// Those of [`Self::bytes`] that are of tables of one generation.
    #[must_use]
    pub fn bytes_of(&self, generation: Generation) -> u64 {
        self.tables.values().filter(|t| t.generation.unwrap_or(self.generation) == generation).map(TableRecord::bytes).sum()
    }

    /// How many drives may be lost, whichever they are, before a part of the data set is.
    #[must_use]
    pub fn tolerates(&self) -> usize {
        let of = |t: &TableRecord| match t.placement {
            Placement::Everywhere => t.partitions.len().saturating_sub(1),
            Placement::Spread => t.redundancy.as_ref().map_or(0, |r| r.scheme.tolerates()),
        };
        self.tables.values().map(of).min().unwrap_or(0)
    }

    /// Whether a table of it has its redundancy on two levels.
    #[must_use]
    pub fn is_on_two_levels(&self) -> bool {
        self.tables.values().any(|table| table.redundancy.as_ref().is_some_and(|redundancy| redundancy.scheme.inner().is_some()))
    }

    /// Whether a part of the data set belongs on a drive.
    #[must_use]
    pub fn names(&self, drive: &Uuid) -> bool {
        self.tables.values().any(|table| {
            table.partitions.iter().any(|p| p.drive == *drive) || table.redundancy.as_ref().is_some_and(|redundancy| redundancy.drives.contains(drive))
        })
    }

    /// All partitions that the record names, each with the drives that have the value under its own key.
    pub(crate) fn keys(&self) -> Result<BTreeSet<(Uuid, String)>> {
        let mut keys = BTreeSet::new();
        for (table, t) in &self.tables {
            let any = self.partition(table, 0);
            let parities = t.redundancy.iter().flat_map(|r| r.parities(&any)).map(|(name, p)| (p, name));
            for (p, name) in t.partitions.iter().map(|p| (p, self.partition(table, p.slot))).chain(parities) {
                let key = name.key()?.as_str().to_owned();
                let copies = t.redundancy.iter().flat_map(|r| r.holders(p.slot));
                keys.extend(std::iter::once(p.drive).chain(copies).map(|drive| (drive, key.clone())));
            }
            for index in self.indexes.iter().filter(|index| index.table == *table) {
                for p in &t.partitions {
                    keys.insert((p.drive, skytether_index::partition(&self.partition(table, p.slot), &index.name).key()?.as_str().to_owned()));
                }
            }
        }
        Ok(keys)
    }

    /// The generation in which the content was written. It differs from [`Self::generation`] where drives came or left
    /// since.
    #[must_use]
    pub fn written(&self) -> Generation {
        self.content.unwrap_or(self.generation)
    }

    /// The tables that there are by themselves: all but the parts of matrices.
    pub fn whole_tables(&self) -> impl Iterator<Item = (&String, &TableRecord)> {
        self.tables.iter().filter(|(_, table)| table.part.is_none())
    }

    /// The names of the tables that hold `table`, in the order of their cells: its own, and those of later parts.
    #[must_use]
    pub fn parts(&self, table: &str) -> Vec<String> {
        let later = (1..).map(|number| part_table(number, table)).take_while(|name| self.tables.get(name).is_some_and(|t| t.part.is_some()));
        std::iter::once(table.to_owned()).chain(later).collect()
    }

    /// The blocks of cells of a matrix, or of one part of it. `None` for other tables.
    ///
    /// # Errors
    /// `NotFound` where there is no such table; `Corrupt` where its parts don't follow on one another.
    pub fn blocks(&self, table: &str) -> Result<Option<Blocks>> {
        let mut spans = Vec::new();
        for name in self.parts(table) {
            let Some(span) = self.table(&name)?.span() else { return Ok(None) };
            spans.push(span);
        }
        Blocks::new(spans).map(Some).map_err(|e| e.context(format!("the root record of {}: {table}", self.name)))
    }

    /// The shape of a matrix with all its parts. `None` for other tables.
    #[must_use]
    pub fn matrix(&self, table: &str) -> Option<MatrixRecord> {
        let parts = self.parts(table);
        let shapes: Option<Vec<MatrixRecord>> = parts.iter().map(|name| self.tables.get(name)?.matrix).collect();
        let shapes = shapes?;
        Some(MatrixRecord { cells: shapes.last()?.cells, nonzeros: shapes.iter().map(|shape| shape.nonzeros).sum(), ..*shapes.first()? })
    }

    /// The stored rows of a table with all its parts.
    #[must_use]
    pub fn rows_of(&self, table: &str) -> u64 {
        self.parts(table).iter().filter_map(|name| self.tables.get(name)).map(|table| table.rows).sum()
    }

    /// Rows of a plain table, genes of an expression data set's main matrix.
    #[must_use]
    pub fn rows(&self) -> u64 {
        let main = match self.kind {
            DatasetKind::Table => self.tables.get("data"),
            DatasetKind::Expression => self.tables.get("x").or_else(|| self.tables.values().find(|t| t.matrix.is_some())),
        };
        main.map_or(0, |t| t.matrix.map_or(t.rows, |m| u64::from(m.genes)))
    }
}

impl TableRecord {
    /// The cells of a matrix, or of the part that this table is. `None` for other tables.
    #[must_use]
    pub fn span(&self) -> Option<Span> {
        let matrix = self.matrix?;
        let (block, cell) = self.part.map_or((0, 0), |part| (part.first_block, part.first_cell));
        Some(Span { block, cell, end: matrix.cells })
    }

    /// Bytes stored for the table on all drives together, with its parities.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.partitions.iter().chain(self.redundancy.iter().flat_map(RedundancyRecord::partitions)).map(|p| p.bytes).sum()
    }

    /// How the table is partitioned by key; `None` where it is not, or in a way that this version does not know.
    #[must_use]
    pub fn by_key(&self) -> Option<ByKey> {
        let by = self.partitioned_by.as_ref().filter(|by| by.hash == partition::VERSION && self.placement == Placement::Spread)?;
        let keys = by.keys.iter().map(|k| serde_json::from_value(k.clone()).ok()).collect::<Option<Vec<PartitionKey>>>()?;
        let mut partitions: Vec<_> = self.partitions.iter().collect();
        partitions.sort_by_key(|p| p.slot);
        let complete = partitions.iter().enumerate().all(|(at, p)| p.slot as usize == at);
        let most_rows = partitions.iter().map(|p| p.rows).max().unwrap_or(0);
        (complete && !keys.is_empty()).then(|| ByKey { keys, drives: partitions.iter().map(|p| p.drive).collect(), most_rows })
    }
}

/// The table that a partition belongs to, where it holds parities, an index or a kept result of one.
fn owner(table: &str) -> &str {
    let of_parity = [PARITY, INNER_PARITY].iter().find_map(|prefix| table.strip_prefix(*prefix));
    let of_index = || [INDEX, KEPT].iter().find_map(|prefix| table.strip_prefix(*prefix)).and_then(|rest| rest.split_once('/')).map(|(_, table)| table);
    of_parity.or_else(of_index).unwrap_or(table)
}

/// The data set whose root record lives under `key`.
pub fn root_name(key: &Key) -> Option<DatasetName> {
    let (domain, dataset) = key.as_str().split_once('/')?;
    DatasetName::new(domain, dataset).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::bounds::Bounds;
    use crate::records::partition::PartitionRecord;
    use skytether_partitioning::KeyType;
    use uuid::Uuid;

    fn record() -> TableRecord {
        let keys = [PartitionKey { column: "day".into(), of: KeyType::Date }, PartitionKey { column: "city".into(), of: KeyType::Text }];
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
            generation: None,
            placement: Placement::Spread,
            rows: 5,
            matrix: None,
            part: None,
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

    /// Parities and indexes have the generation of their table.
    #[test]
    fn kept_table_is_named_by_its_own_generation() {
        let (old, new, other) = (Generation(1), Generation(2), Generation(3));
        let kept = TableRecord { generation: Some(old), ..record() };
        let mut root = RootRecord {
            format: 0,
            name: "lab.t".parse().unwrap(),
            kind: DatasetKind::Expression,
            generation: new,
            content: None,
            change: 0,
            tables: BTreeMap::from([("x".to_owned(), kept), ("obs".to_owned(), record())]),
            superseded: vec![BTreeMap::from([("obs".to_owned(), old)])],
            indexes: Vec::new(),
            application: BTreeMap::new(),
        };
        root.set_format();
        assert_eq!((root.format, root.generation_of("x"), root.generation_of("obs")), (VERSIONS_FORMAT, old, new));
        assert_eq!(root.generations(), BTreeSet::from([old, new]));
        assert_eq!((root.partition("x", 1).generation, root.partition("obs", 1).generation), (old, new));
        let named =
            |root: &RootRecord, table: &str, generation| root.names_partition(&PartitionName { generation, table: table.into(), ..root.partition("x", 0) });
        for table in ["x", "parity/x", "inner-parity/x", "index/by-gene/x"] {
            assert!(named(&root, table, old) && !named(&root, table, new) && !named(&root, table, other), "{table}");
        }
        assert!(named(&root, "obs", new) && !named(&root, "obs", old) && !named(&root, "gone", new));
        let keeps = |generation| root.keeps_partition(&PartitionName { generation, table: "obs".into(), ..root.partition("x", 0) });
        assert!(keeps(old) && keeps(new) && !keeps(other));
        let text = String::from_utf8(root.encode().unwrap().to_vec()).unwrap();
        assert_eq!(RootRecord::decode(&root.name, text.as_bytes()).unwrap(), root);
        // A part of a matrix is a table of its own, and older programs must not read the others without it.
        let matrix = |cells, part| TableRecord { matrix: Some(MatrixRecord { cells, genes: 3, nonzeros: 9 }), part, ..record() };
        let part = Some(PartRecord { first_cell: 10, first_block: 1 });
        root.tables.insert("layer_a".into(), matrix(10, None));
        root.tables.insert("part/1/layer_a".into(), TableRecord { generation: Some(old), ..matrix(70_000, part) });
        root.set_format();
        assert_eq!((root.format, root.parts("layer_a")), (ROOT_FORMAT, vec!["layer_a".to_owned(), "part/1/layer_a".to_owned()]));
        assert_eq!(root.matrix("layer_a"), Some(MatrixRecord { cells: 70_000, genes: 3, nonzeros: 18 }));
        assert_eq!((root.rows_of("layer_a"), root.blocks("layer_a").unwrap().unwrap().each().count()), (10, 3));
        assert_eq!(root.whole_tables().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["layer_a", "obs", "x"]);
        for table in ["part/1/layer_a", "parity/part/1/layer_a", "inner-parity/part/1/layer_a", "kept/0a/part/1/layer_a"] {
            assert!(named(&root, table, old) && !named(&root, table, new), "{table}");
        }
        let text = String::from_utf8(root.encode().unwrap().to_vec()).unwrap();
        assert_eq!(RootRecord::decode(&root.name, text.as_bytes()).unwrap(), root);
        root.tables.retain(|name, _| !name.ends_with("layer_a"));
        // What older programs read has none of the new fields.
        root.tables.remove("x");
        root.superseded.clear();
        root.set_format();
        let text = String::from_utf8(root.encode().unwrap().to_vec()).unwrap();
        assert!(root.format == PLAIN_FORMAT && !text.contains("superseded") && text.matches("generation").count() == 1, "{text}");
    }

    /// The rows are there all the same; only what follows from their places does not.
    #[test]
    fn unknown_hash_or_type_is_no_partitioning() {
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
