//! The list of data sets, also of those that can't be read, and while drives are away.

use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_erasure::Scheme;

use crate::records::root::{DatasetKind, RootRecord};
use crate::root_store::Catalog;

/// One line of the list of data sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// The data set.
    pub name: DatasetName,
    /// Its kind; `None` where its root record can't be read.
    pub kind: Option<DatasetKind>,
    /// Rows of a plain table, genes of an expression data set.
    pub rows: u64,
    /// Cells of an expression data set.
    pub cells: Option<u32>,
    /// Bytes stored on all drives together.
    pub bytes: u64,
    /// Names of its tables.
    pub tables: Vec<String>,
    /// For each table that is partitioned by key the names of its key columns.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub partitioned_by: BTreeMap<String, Vec<String>>,
    /// The redundancy of its tables, without those that lie everywhere: one scheme, or several if they differ; empty
    /// for `none`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redundancy: Vec<Scheme>,
    /// Why its root record can't be read; all else but the name means nothing then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl DatasetInfo {
    /// A data set that shows only its name.
    fn broken(name: DatasetName, error: &Error) -> Self {
        Self {
            name,
            kind: None,
            rows: 0,
            cells: None,
            bytes: 0,
            tables: Vec::new(),
            partitioned_by: BTreeMap::new(),
            redundancy: Vec::new(),
            error: Some(error.report()),
        }
    }
}

impl From<&RootRecord> for DatasetInfo {
    fn from(record: &RootRecord) -> Self {
        Self {
            name: record.name.clone(),
            kind: Some(record.kind),
            rows: record.rows(),
            cells: record.whole_tables().find_map(|(name, _)| record.matrix(name)).map(|m| m.cells),
            bytes: record.bytes(),
            tables: record.whole_tables().map(|(name, _)| name.clone()).collect(),
            partitioned_by: record.tables.iter().filter_map(|(name, t)| Some((name.clone(), t.partitioned_by.as_ref()?.columns()))).collect(),
            redundancy: {
                let mut schemes: Vec<Scheme> = record.tables.values().filter_map(|t| t.redundancy.as_ref()).map(|r| r.scheme).collect();
                schemes.dedup();
                schemes
            },
            error: None,
        }
    }
}

/// The data sets that can be listed, and what hides others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Listing {
    /// In order of their names.
    pub datasets: Vec<DatasetInfo>,
    /// Drives that are lost or did not answer, with the reason. Data sets whose root records they hold may be missing
    /// above, unless the listing is `whole`.
    pub silent: BTreeMap<String, String>,
    /// Whether no data set is missing above: other drives have all root records that the silent ones have.
    #[serde(default)]
    pub whole: bool,
}

impl Catalog {
    /// All data sets in order of their names. A data set whose root record can't be read comes with its error and hides
    /// no other.
    ///
    /// # Errors
    /// The first error of a drive that does not list its root records.
    pub fn list(&self) -> BoxFuture<'_, Result<Vec<DatasetInfo>>> {
        Box::pin(async move {
            let Gathered { found, silent, .. } = self.gather().await;
            self.check_presence()?;
            match silent.into_values().next().filter(|_| !self.health().is_redundant()) {
                Some(error) => Err(error),
                None => Ok(found),
            }
        })
    }

    /// As [`Self::list`], but a drive that does not answer hides only the data sets whose root records it holds.
    pub fn listing(&self) -> BoxFuture<'_, Listing> {
        Box::pin(async move {
            let Gathered { found, silent, unread } = self.gather().await;
            let health = self.health();
            let name = |at: usize| self.drives()[at].info().name.clone();
            // A drive that is not lost and does not answer may be one loss too many.
            let told = silent.keys().all(|at| health.is_down(*at));
            let (lost, covered) = (health.down(), health.is_redundant() && self.check_presence().is_ok());
            let whole = (silent.is_empty() && lost.is_empty()) || (told && !unread && covered);
            let mut silent: BTreeMap<String, String> = silent.into_iter().map(|(at, error)| (name(at), error.report())).collect();
            // Also drives that answer and are not in use.
            silent.extend(lost.into_iter().map(|at| (name(at), health.down_reason(at).unwrap_or_default())));
            Listing { datasets: found, silent, whole }
        })
    }

    /// The data sets that can be listed, and the errors of drives that don't answer.
    async fn gather(&self) -> Gathered {
        if !self.health().down().is_empty() {
            self.probe_lost().await;
        }
        let (mut names, mut silent, mut unread) = (BTreeSet::new(), BTreeMap::new(), false);
        let members = self.health().members();
        for (drive, told) in members.iter().copied().zip(join_all(members.iter().map(|drive| self.names_at(*drive))).await) {
            match told {
                Ok(told) => names.extend(told),
                Err(error) => {
                    if error.kind() == Kind::Unavailable && self.health().is_redundant() {
                        self.health().mark_down(drive, &error.report());
                    }
                    silent.insert(drive, error);
                }
            }
        }
        // The other home drives have the records of a silent one.
        let hides = self.check_presence().is_err() || !self.health().is_redundant();
        let mut found = Vec::new();
        for name in names {
            let home = self.home(&name);
            if hides && silent.contains_key(&home) {
                continue;
            }
            match self.read(&name).await {
                Ok((record, _)) => found.push(DatasetInfo::from(&record)),
                // Dropped since its name was read.
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => {
                    tracing::warn!("{e}");
                    found.push(DatasetInfo::broken(name, &e));
                }
                Err(e) => {
                    unread = true;
                    // With too many drives lost no record can be read: that is no fault of a home drive that is here.
                    if self.check_presence().is_ok() || self.health().is_down(home) {
                        silent.insert(home, e);
                    }
                }
            }
        }
        Gathered { found, silent, unread }
    }
}

/// The answers of drives about their data sets.
struct Gathered {
    /// In order of their names.
    found: Vec<DatasetInfo>,
    /// The errors of the drives that did not answer.
    silent: BTreeMap<usize, Error>,
    /// Whether a drive named a data set whose root record no drive could give.
    unread: bool,
}

/// A data set whose root record can't be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unreadable {
    /// The data set.
    pub name: DatasetName,
    /// Why.
    pub error: String,
}

impl Catalog {
    /// The data sets whose root records on `drive` can not be read.
    pub async fn unreadable_at(&self, drive: usize) -> Result<Vec<Unreadable>> {
        let mut found = Vec::new();
        for name in self.names_at(drive).await? {
            // No reader uses a record outside of its home drives.
            if !self.homes(&name).contains(&drive) {
                continue;
            }
            match self.read(&name).await {
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => found.push(Unreadable { name, error: e.report() }),
                // Dropped since its name was read.
                Err(e) if e.kind() != Kind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(found)
    }
}
