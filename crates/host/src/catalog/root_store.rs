//! The catalog: root records on the drives, and nothing else.
//!
//! A data set exists when its root record does. The record lives on the data set's home drive, the one with the highest
//! rendezvous hash of name and drive id, so that any host with the same drives finds it without asking anybody.

use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use skytether_common::{Context, DatasetName, Detail, Error, Generation, Key, Kind, PartitionName, Result};
use skytether_plan::Placement;
use skytether_store::{Expect, Op};
use skytether_wire::Storage;
use uuid::Uuid;

use crate::catalog::bounds::Bounds;
pub use crate::catalog::code_map::RedundancyRecord;
use crate::catalog::health::Presence;
use crate::catalog::indexes::IndexRecord;
pub use crate::catalog::partitioning::PartitionedBy;
use crate::common::append_vec::Growing;
use crate::recovery::reconstruct::Cover;

use crate::catalog::root_cache::Remembered;

/// The newest root record that this version reads, and the one that it writes of data sets with redundancy on two levels.
pub const ROOT_FORMAT: u32 = 3;

/// The one that it writes of data sets with redundancy on one level.
pub(crate) const REDUNDANT_FORMAT: u32 = 2;

/// The one that it writes of all others, so that versions before read them.
pub(crate) const PLAIN_FORMAT: u32 = 1;

/// Keys that are asked for or deleted at once.
const PAGE: usize = 512;

/// What a data set is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatasetKind {
    /// One plain table, `data`.
    Table,
    /// Expression matrices with what is known of cells and genes.
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

/// The size of a matrix table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MatrixRecord {
    /// Number of cells.
    pub cells: u32,
    /// Number of genes.
    pub genes: u32,
    /// Number of stored values.
    pub nonzeros: u64,
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
    /// Between which values its columns lie; not known of matrices and parities, and of partitions that were written before it was kept.
    #[serde(default, skip_serializing_if = "Bounds::is_empty")]
    pub bounds: Bounds,
}

/// One table of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableRecord {
    /// How the partitions relate.
    #[serde(with = "placement_word")]
    pub placement: Placement,
    /// Rows of the table (of sparse rows for a matrix).
    pub rows: u64,
    /// The shape, for a matrix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matrix: Option<MatrixRecord>,
    /// Bytes of all rows in memory, as Arrow arrays; not known of matrices, and of tables that were written before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// By which keys rows are dealt to the partitions, if they are; there is a partition on every drive of the time then, in order of their slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partitioned_by: Option<PartitionedBy>,
    /// The partitions, one per drive at most.
    pub partitions: Vec<PartitionRecord>,
    /// What keeps it from loss, if anything does. A table that lies everywhere needs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<RedundancyRecord>,
}

mod placement_word {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};
    use skytether_plan::Placement;

    pub(crate) fn serialize<S: Serializer>(placement: &Placement, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(match placement {
            Placement::Spread => "spread",
            Placement::Everywhere => "everywhere",
        })
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Placement, D::Error> {
        match String::deserialize(from)?.as_str() {
            "spread" => Ok(Placement::Spread),
            "everywhere" => Ok(Placement::Everywhere),
            other => Err(D::Error::custom(format!("unknown placement {other:?}"))),
        }
    }
}

/// What a data set consists of at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootRecord {
    /// Version of this record's format.
    pub format: u32,
    /// The data set.
    pub name: DatasetName,
    /// What it is.
    pub kind: DatasetKind,
    /// The version of its content.
    pub generation: Generation,
    /// The generation in which the content was written, where its parts were moved to other drives since, which makes a new generation of the same content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Generation>,
    /// Grows with each change: of several copies of a record the highest is the truth. 0 where there is one copy.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub change: u64,
    /// The tables by name.
    pub tables: BTreeMap<String, TableRecord>,
    /// The indexes that drives are to have of the tables.
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
        let corrupt = |cause| Error::corrupt(format!("the root record of {name} is no root record")).because(cause);
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
        serde_json::to_vec(self).map(Bytes::from).map_err(|e| Error::internal(format!("cannot write the root record of {}", self.name)).because(e))
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
        PartitionName { dataset: self.name.clone(), generation: self.generation, table: table.to_owned(), slot }
    }

    /// Bytes stored for the data set on all drives together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let parity = self.tables.values().filter_map(|t| t.redundancy.as_ref()).flat_map(RedundancyRecord::partitions);
        self.tables.values().flat_map(|t| &t.partitions).chain(parity).map(|p| p.bytes).sum()
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

    /// Whether a part of the data set is to be on a drive.
    #[must_use]
    pub fn names(&self, drive: &Uuid) -> bool {
        self.tables.values().any(|table| {
            table.partitions.iter().any(|p| p.drive == *drive) || table.redundancy.as_ref().is_some_and(|redundancy| redundancy.drives.contains(drive))
        })
    }

    /// All partitions that the record names, with the drives that have what lies under each one's own key.
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

    /// The generation in which the content was written: another one than [`Self::generation`] where drives came or went since.
    #[must_use]
    pub fn written(&self) -> Generation {
        self.content.unwrap_or(self.generation)
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

/// Waits for `work` no longer than `deadline`.
///
/// # Errors
/// `Unavailable`, naming the drive and what it was asked, when the time is up; else what `work` says.
pub async fn within<T>(deadline: Duration, drive: &str, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(deadline, work)
        .await
        .unwrap_or_else(|_| Err(Error::unavailable(format!("{drive} did not answer within {} s when asked to {what}", deadline.as_secs_f64()))))
}

/// The positions of the ids by their hashes with `name`, the highest first: where it lies if it lies on several.
pub(crate) fn rendezvous_order<'a>(name: &str, ids: impl Iterator<Item = &'a Uuid>) -> Vec<usize> {
    let mut all: Vec<_> = ids.map(|id| hash64(name.as_bytes(), id.as_bytes())).enumerate().map(|(at, hash)| (std::cmp::Reverse(hash), at)).collect();
    all.sort_unstable();
    all.into_iter().map(|(_, at)| at).collect()
}

/// The highest of a few 64-bit hashes of `name` and each id decides (rendezvous hashing); its position.
#[must_use]
pub fn rendezvous<'a>(name: &str, ids: impl Iterator<Item = &'a Uuid>) -> Option<usize> {
    ids.map(|id| hash64(name.as_bytes(), id.as_bytes())).enumerate().max_by_key(|(at, hash)| (*hash, std::cmp::Reverse(*at))).map(|(at, _)| at)
}

/// FNV-1a over both parts, finished by SplitMix64's mixer: the same on every machine and in every version, which a home drive depends on.
fn hash64(a: &[u8], b: &[u8]) -> u64 {
    let mut h: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in a.iter().chain([0xffu8].iter()).chain(b) {
        h = (h ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// Root records over the storage half of some drives. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Catalog {
    drives: Arc<Growing<Arc<dyn Storage>>>,
    /// The drives as they are, where these are those of a host itself.
    cover: Option<Arc<Cover>>,
    presence: Arc<Presence>,
    deadline: Duration,
    pub(crate) remembered: Arc<Remembered>,
}

impl Catalog {
    /// A catalog over `drives`; each storage operation may take up to `deadline`.
    ///
    /// # Errors
    /// `Invalid` for no drive or the same drive twice.
    pub fn new(drives: Vec<Arc<dyn Storage>>, deadline: Duration) -> Result<Self> {
        let presence = Arc::new(Presence::new(drives.len()));
        Self::sharing(drives, None, presence, deadline)
    }

    /// That of a host, whose `drives` are those of `cover` with what stands for them.
    pub(crate) fn of_host(drives: Vec<Arc<dyn Storage>>, cover: &Arc<Cover>) -> Result<Self> {
        Self::sharing(drives, Some(Arc::clone(cover)), Arc::clone(&cover.presence), cover.deadline)
    }

    fn sharing(drives: Vec<Arc<dyn Storage>>, cover: Option<Arc<Cover>>, presence: Arc<Presence>, deadline: Duration) -> Result<Self> {
        if drives.is_empty() {
            return Err(Error::invalid("a host needs at least one drive"));
        }
        let mut seen = HashMap::new();
        for drive in &drives {
            if let Some(other) = seen.insert(drive.info().id, drive.info().name.clone()) {
                return Err(Error::invalid(format!("{other} and {} are the same drive ({})", drive.info().name, drive.info().id)));
            }
        }
        Ok(Self { drives: Arc::new(Growing::new(drives)), cover, presence, deadline, remembered: Arc::default() })
    }

    /// The drives, in the host's order.
    #[must_use]
    pub fn drives(&self) -> &[Arc<dyn Storage>] {
        &self.drives
    }

    /// Whether the drives are those of a host itself, and not reached through one.
    pub(crate) fn is_of_host(&self) -> bool {
        self.cover.is_some()
    }

    /// Drive `at` as it is: what goes there does not wait for [`Presence::still`].
    pub(crate) fn bare(&self, at: usize) -> &dyn Storage {
        match &self.cover {
            Some(cover) => cover.drives[at].as_ref(),
            None => self.drives[at].as_ref(),
        }
    }

    /// One drive more, which is not of the fleet yet.
    pub(crate) fn grow(&self, drive: Arc<dyn Storage>) {
        self.drives.push(drive);
    }

    /// What is known of the drives.
    pub(crate) fn presence(&self) -> &Presence {
        &self.presence
    }

    /// The longest that a storage operation may take.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The position of the drive with this id.
    ///
    /// # Errors
    /// `Unavailable`, naming the data set whose part it holds.
    pub fn drive(&self, id: &Uuid, dataset: &DatasetName) -> Result<usize> {
        self.drives.iter().position(|d| d.info().id == *id).ok_or_else(|| {
            Error::unavailable(format!(
                "drive {id}, which holds a part of {dataset}, is not among this host's {} drives: open the fleet with all of them",
                self.drives.len()
            ))
        })
    }

    /// The drive that holds the root record of `name`, or the first of those that do.
    #[must_use]
    pub fn home(&self, name: &DatasetName) -> usize {
        self.homes(name).first().copied().unwrap_or(0)
    }

    /// The drive that reads a table which all of `ids` hold.
    #[must_use]
    pub fn choose(&self, name: &DatasetName, table: &str, ids: &[Uuid]) -> usize {
        rendezvous(&format!("{name}.{table}"), ids.iter()).unwrap_or(0)
    }

    pub(crate) async fn ask<T>(&self, drive: usize, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        within(self.deadline, &self.drives[drive].info().name, what, work).await
    }

    /// What to say about a data set that does not exist.
    pub(crate) async fn unknown(&self, name: &DatasetName) -> Error {
        let instead = match self.names().await {
            Ok(names) => instead_of(name, &names),
            Err(_) => String::new(),
        };
        Error::not_found(format!("there is no data set {name}{instead}")).with_detail(Detail::MissingDataset { dataset: name.clone() })
    }

    /// The names of all data sets, in order.
    ///
    /// # Errors
    /// `Unavailable`.
    pub fn names(&self) -> BoxFuture<'_, Result<BTreeSet<DatasetName>>> {
        Box::pin(async move {
            let here = self.presence.here();
            let each = join_all(here.iter().map(|drive| self.names_at(*drive))).await;
            let mut names = BTreeSet::new();
            for (drive, told) in here.into_iter().zip(each) {
                match told {
                    Ok(told) => names.extend(told),
                    Err(e) => self.may_lose(drive, e)?,
                }
            }
            Ok(names)
        })
    }

    /// The names of the data sets whose root records lie on one drive.
    pub(crate) async fn names_at(&self, drive: usize) -> Result<Vec<DatasetName>> {
        let mut names = Vec::new();
        let mut after: Option<Key> = None;
        loop {
            let page = self.ask(drive, "list its data sets", self.drives[drive].list("", after.as_ref(), 64)).await?;
            let Some(last) = page.last() else { return Ok(names) };
            let full = page.len() == 64;
            for entry in &page {
                if let Some(name) = root_name(&entry.key) {
                    names.push(name);
                }
            }
            if !full {
                return Ok(names);
            }
            // No need to walk through the slices of a data set: jump behind them.
            after = Some(match PartitionName::parse(&last.key) {
                Some((p, _)) => Key::new(format!("{}~", p.dataset.prefix()))?,
                None => last.key.clone(),
            });
        }
    }

    /// Deletes all partitions of one generation, on all drives.
    ///
    /// # Errors
    /// `Unavailable`; what is left then is collected when the fleet is opened next.
    pub fn delete_generation<'a>(&'a self, name: &'a DatasetName, generation: Generation) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let prefix = format!("{}{:016x}.", name.prefix(), generation.0);
            let here = self.presence.here();
            let each = join_all(here.iter().map(|drive| self.delete_prefix(*drive, &prefix))).await;
            // What a drive that is lost keeps is collected when it is back.
            here.into_iter()
                .zip(each)
                .try_for_each(|(drive, done)| done.or_else(|e| self.may_lose(drive, e)))
                .context(|| format!("cannot delete old partitions of {name}"))
        })
    }

    pub(crate) async fn delete_prefix(&self, drive: usize, prefix: &str) -> Result<()> {
        loop {
            let page = self.ask(drive, "list old slices", self.drives[drive].list(prefix, None, PAGE)).await?;
            let last = page.len() < PAGE;
            if !page.is_empty() {
                let batch = page.into_iter().map(|e| Op::Delete { key: e.key, expect: Expect::Any }).collect();
                self.ask(drive, "delete old slices", self.drives[drive].apply(batch)).await?;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// Deletes every partition that no root record names: what a crash or a failed ingest left behind. Only safe while nobody else
    /// writes to these drives, since an ingest under way is not yet named either. Data sets of a newer format are left alone.
    /// The number of keys deleted.
    ///
    /// # Errors
    /// `Unavailable` if any drive can't be read, `Invalid` unless the drives are exactly one fleet
    /// ([`Self::establish_membership`]); nothing is deleted on a guess.
    pub fn collect_garbage(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.check_membership().await?;
            let mut named: HashMap<DatasetName, Option<BTreeSet<(Uuid, String)>>> = HashMap::new();
            let mut indexed = Vec::new();
            for name in self.names().await? {
                let known = match self.read(&name).await {
                    Ok((record, _)) => {
                        let keys = record.keys()?;
                        if !record.indexes.is_empty() {
                            indexed.push(record);
                        }
                        Some(keys)
                    }
                    // Not understood, so nothing of it is known to be garbage.
                    Err(e) if matches!(e.kind(), Kind::Unsupported | Kind::Corrupt | Kind::NotFound) => None,
                    Err(e) => return Err(e),
                };
                named.insert(name, known);
            }
            let mut deleted = 0;
            for drive in self.presence.here() {
                deleted += self.collect_at(drive, &named).await?;
            }
            // A crash may have come between a record and what drives are told of its indexes. There may be no room for it.
            for record in indexed {
                self.remind_of_indexes(&record).await;
            }
            Ok(deleted)
        })
    }

    async fn collect_at(&self, drive: usize, named: &HashMap<DatasetName, Option<BTreeSet<(Uuid, String)>>>) -> Result<u64> {
        let id = self.drives[drive].info().id;
        let mut after: Option<Key> = None;
        let mut deleted = 0;
        loop {
            let page = self.ask(drive, "list its slices", self.drives[drive].list("", after.as_ref(), PAGE)).await?;
            let Some(last) = page.last() else { return Ok(deleted) };
            after = Some(last.key.clone());
            let full = page.len() == PAGE;
            let mut batch = Vec::new();
            for entry in page {
                let Some((partition, _)) = PartitionName::parse(&entry.key) else { continue };
                let garbage = match named.get(&partition.dataset) {
                    None => true,
                    Some(None) => false,
                    Some(Some(keys)) => !keys.contains(&(id, partition.key()?.as_str().to_owned())),
                };
                if garbage {
                    batch.push(Op::Delete { key: entry.key, expect: Expect::Any });
                }
            }
            deleted += batch.len() as u64;
            if !batch.is_empty() {
                self.ask(drive, "delete what no data set names", self.drives[drive].apply(batch)).await?;
            }
            if !full {
                return Ok(deleted);
            }
        }
    }
}

/// The data set whose root record lives under `key`.
pub(crate) fn root_name(key: &Key) -> Option<DatasetName> {
    let (domain, dataset) = key.as_str().split_once('/')?;
    DatasetName::new(domain, dataset).ok()
}

/// What there is instead of a data set `name`, to be said after its name.
fn instead_of(name: &DatasetName, names: &BTreeSet<DatasetName>) -> String {
    if names.is_empty() {
        return "; this fleet is empty".to_owned();
    }
    let wanted = name.to_string().to_lowercase();
    let mut near: Vec<_> = names
        .iter()
        .map(|n| (edit_distance(&n.to_string().to_lowercase(), &wanted), n))
        .filter(|(d, n)| *d <= 3 || n.dataset().eq_ignore_ascii_case(name.dataset()))
        .collect();
    near.sort();
    if let Some((_, first)) = near.first() {
        return format!("; did you mean {}?", quoted(first));
    }
    let shown: Vec<_> = names.iter().take(10).map(quoted).collect();
    let more = if names.len() > shown.len() { format!(" and {} more", names.len() - shown.len()) } else { String::new() };
    format!("; there are {}{more}", shown.join(", "))
}

/// `name` as it is written in SQL: quoted where SQL would otherwise fold or split it.
fn quoted(name: &DatasetName) -> String {
    let plain = |part: &str| part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') && !part.starts_with(|c: char| c.is_ascii_digit());
    let word = |part: &str| if plain(part) { part.to_owned() } else { format!("\"{part}\"") };
    format!("{}.{}", word(name.domain()), word(name.dataset()))
}

/// Levenshtein's distance: how many letters differ.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let next = (diagonal + usize::from(ca != *cb)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = next;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
