//! The catalog: root records on the drives, and nothing else.
//!
//! A data set exists when its root record does. The record lies on the data set's home drive: the drive with the
//! highest rendezvous hash of name and drive id. So any host with the same drives finds it without a look-up.

use crate::records::root::{RootRecord, root_name};
use crate::rendezvous::rendezvous;
use futures::future::BoxFuture;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use skytether_common::{Context, DatasetName, Detail, Error, Generation, Key, Kind, PartitionName, Result};
use skytether_device::{Cse, Storage, kept};
use skytether_runtime::within;
use skytether_store::{Expect, Op};
use strsim::levenshtein;
use uuid::Uuid;

use crate::health::DriveHealth;
use skytether_runtime::AppendVec;

use crate::root_cache::RootCache;

/// Keys that are asked for or deleted at once.
const PAGE: usize = 512;

/// Root records over the storage of some drives. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Catalog {
    drives: Arc<AppendVec<Arc<dyn Storage>>>,
    /// The drives without failover, where this is a host's own catalog.
    raw: Option<Arc<AppendVec<Arc<dyn Cse>>>>,
    health: Arc<DriveHealth>,
    deadline: Duration,
    pub(crate) remembered: Arc<RootCache>,
}

impl Catalog {
    /// A catalog over `drives`; each storage operation may take up to `deadline`.
    ///
    /// # Errors
    /// `Invalid` for no drive or the same drive twice.
    pub fn new(drives: Vec<Arc<dyn Storage>>, deadline: Duration) -> Result<Self> {
        let health = Arc::new(DriveHealth::new(drives.len()));
        Self::sharing(drives, None, health, deadline)
    }

    /// The catalog of a host. Each of `drives` fails over to others; `raw` are the same drives without failover.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_host(drives: Vec<Arc<dyn Storage>>, raw: Arc<AppendVec<Arc<dyn Cse>>>, health: Arc<DriveHealth>, deadline: Duration) -> Result<Self> {
        Self::sharing(drives, Some(raw), health, deadline)
    }

    fn sharing(drives: Vec<Arc<dyn Storage>>, raw: Option<Arc<AppendVec<Arc<dyn Cse>>>>, health: Arc<DriveHealth>, deadline: Duration) -> Result<Self> {
        if drives.is_empty() {
            return Err(Error::invalid("a host needs at least one drive"));
        }
        let mut seen = HashMap::new();
        for drive in &drives {
            if let Some(other) = seen.insert(drive.info().id, drive.info().name.clone()) {
                return Err(Error::invalid(format!("{other} and {} are the same drive ({})", drive.info().name, drive.info().id)));
            }
        }
        Ok(Self { drives: Arc::new(AppendVec::new(drives)), raw, health, deadline, remembered: Arc::default() })
    }

    /// The drives, in the host's order.
    #[must_use]
    pub fn drives(&self) -> &[Arc<dyn Storage>] {
        &self.drives
    }

    /// Whether these are a host's own drives, and not reached through a host.
    pub(crate) fn is_of_host(&self) -> bool {
        self.raw.is_some()
    }

    /// Drive `at` without failover. Writes there do not wait for [`DriveHealth::record_write`].
    pub fn bare(&self, at: usize) -> &dyn Storage {
        match &self.raw {
            Some(raw) => raw[at].as_ref(),
            None => self.drives[at].as_ref(),
        }
    }

    /// One drive more, which is not of the fleet yet.
    pub fn grow(&self, drive: Arc<dyn Storage>) {
        self.drives.push(drive);
    }

    /// The state of the drives.
    pub fn health(&self) -> &DriveHealth {
        &self.health
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

    /// The home drive of `name`; of several, the first one.
    #[must_use]
    pub fn home(&self, name: &DatasetName) -> usize {
        self.homes(name).first().copied().unwrap_or(0)
    }

    /// The drive that reads a table which all of `ids` hold.
    #[must_use]
    pub fn choose(&self, name: &DatasetName, table: &str, ids: &[Uuid]) -> usize {
        rendezvous(&format!("{name}.{table}"), ids.iter()).unwrap_or(0)
    }

    /// The result of `work` at drive `drive`. Errors name the drive and `what` was asked.
    ///
    /// # Errors
    /// `Unavailable` after [`Self::deadline`]; those of `work`.
    pub async fn ask<T>(&self, drive: usize, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        within(self.deadline, &self.drives[drive].info().name, what, work).await
    }

    /// What to say about a data set that does not exist.
    pub(crate) async fn unknown_dataset(&self, name: &DatasetName) -> Error {
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
            let here = self.health.up();
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
            if !full || is_after_datasets(&last.key) {
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
    /// `Unavailable`; the next opening of the fleet collects what is left.
    pub fn delete_generation<'a>(&'a self, name: &'a DatasetName, generation: Generation) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let prefix = format!("{}{:016x}.", name.prefix(), generation.0);
            let here = self.health.up();
            let each = join_all(here.iter().map(|drive| self.delete_prefix(*drive, &prefix))).await;
            // What a drive that is lost keeps is collected when it is back.
            here.into_iter()
                .zip(each)
                .try_for_each(|(drive, done)| done.or_else(|e| self.may_lose(drive, e)))
                .context(|| format!("cannot delete old partitions of {name}"))
        })
    }

    /// Deletes what `old` names and `now` does not, on all drives. `now` is the record of the data set since, if it
    /// has one; tables that it keeps for queries that began before stay.
    ///
    /// # Errors
    /// As [`Self::delete_generation`].
    pub fn delete_replaced<'a>(&'a self, old: &'a RootRecord, now: Option<&'a RootRecord>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let here = self.health.up();
            let each = join_all(here.iter().map(|drive| self.delete_replaced_at(*drive, self.drives[*drive].as_ref(), old, now))).await;
            here.into_iter()
                .zip(each)
                .try_for_each(|(drive, done)| done.or_else(|e| self.may_lose(drive, e)))
                .context(|| format!("cannot delete old partitions of {}", old.name))
        })
    }

    /// As [`Self::delete_replaced`], on one drive, through `storage`.
    ///
    /// # Errors
    /// Those of the drive.
    pub async fn delete_replaced_at(&self, drive: usize, storage: &dyn Storage, old: &RootRecord, now: Option<&RootRecord>) -> Result<()> {
        for generation in old.generations() {
            let prefix = format!("{}{:016x}.", old.name.prefix(), generation.0);
            let mut after: Option<Key> = None;
            loop {
                let page = self.ask(drive, "list old slices", storage.list(&prefix, after.as_ref(), PAGE)).await?;
                let Some(last) = page.last().map(|entry| entry.key.clone()) else { break };
                let full = page.len() == PAGE;
                let stays = |key: &Key| PartitionName::parse(key).is_some_and(|(partition, _)| now.is_some_and(|now| now.keeps_partition(&partition)));
                // No need to walk through the slices of a partition that stays: jump behind them.
                after = Some(match PartitionName::parse(&last) {
                    Some((partition, _)) if stays(&last) => Key::new(format!("{};~", partition.key()?))?,
                    _ => last,
                });
                let batch: Vec<Op> = page.into_iter().filter(|e| !stays(&e.key)).map(|e| Op::Delete { key: e.key, expect: Expect::Any }).collect();
                if !batch.is_empty() {
                    self.ask(drive, "delete old slices", storage.apply(batch)).await?;
                }
                if !full {
                    break;
                }
            }
        }
        Ok(())
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

    /// Deletes every partition that no root record names: what a crash or a failed ingest left behind. Returns the
    /// number of keys deleted. Only safe while no other process writes to these drives: no root record names an ingest
    /// under way. Data sets of a newer format are left alone.
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
                    // The record can't be read, so nothing of its data set is known to be garbage.
                    Err(e) if matches!(e.kind(), Kind::Unsupported | Kind::Corrupt | Kind::NotFound) => None,
                    Err(e) => return Err(e),
                };
                named.insert(name, known);
            }
            let mut deleted = 0;
            for drive in self.health.up() {
                deleted += self.collect_at(drive, &named).await?;
            }
            // A crash may have come between a record and the definitions of its indexes on drives. Drives may also lack
            // the space.
            for record in indexed {
                self.announce_indexes(&record).await;
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
                    // What a drive keeps of a partition's results stays as long as the partition.
                    Some(Some(keys)) => {
                        let named = kept::of_partition(&partition).unwrap_or(partition);
                        !keys.contains(&(id, named.key()?.as_str().to_owned()))
                    }
                };
                if garbage {
                    batch.push(Op::Delete { key: entry.key, expect: Expect::Any });
                }
            }
            deleted += batch.len() as u64;
            if !batch.is_empty() {
                self.ask(drive, "delete what no data set names", self.drives[drive].apply(batch)).await?;
            }
            if !full || after.as_ref().is_some_and(is_after_datasets) {
                return Ok(deleted);
            }
        }
    }
}

/// Whether all keys of data sets come before `key`: those of volumes come after them, and may be many.
fn is_after_datasets(key: &Key) -> bool {
    key.as_str().starts_with('~')
}

/// What there is instead of a data set `name`, to be said after its name.
fn instead_of(name: &DatasetName, names: &BTreeSet<DatasetName>) -> String {
    if names.is_empty() {
        return "; this fleet is empty".to_owned();
    }
    let wanted = name.to_string().to_lowercase();
    let mut near: Vec<_> = names
        .iter()
        .map(|n| (levenshtein(&n.to_string().to_lowercase(), &wanted), n))
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

#[cfg(test)]
mod tests;
