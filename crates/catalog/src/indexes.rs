//! Indexes that drives build (docs/internals/indexes.md).
//!
//! Root records list the indexes, so that the next generation gets them too. A definition next to each partition tells
//! its drive what to build.

use crate::records::index::IndexRecord;
use futures::future::BoxFuture;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::{Deserialize, Serialize};
use skytether_common::units::{counted, human_bytes};
use skytether_common::{DatasetName, Detail, Error, Kind, Result};
use skytether_index::{Definition, MAX_COLUMNS, Order, Phase, State, check_name, partition};
use skytether_slice::Metadata;
use skytether_store::{Expect, Op, Version};

use crate::fencing::is_refusal;
use crate::records::root::RootRecord;
use crate::root_store::Catalog;

/// How often a root record that others change meanwhile is changed again.
const ATTEMPTS: usize = 16;

/// An index that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewIndex {
    /// The data set.
    pub dataset: DatasetName,
    /// The table in it; `data` of plain tables.
    pub table: String,
    /// Its name; the columns' names if `None`.
    pub name: Option<String>,
    /// The columns whose ranges the index finds rows by.
    pub columns: Vec<String>,
    /// Further columns whose values the index holds.
    pub include: Vec<String>,
}

/// The index to drop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldIndex {
    /// The data set.
    pub dataset: DatasetName,
    /// Its name.
    pub name: String,
}

/// Which data sets to list the indexes of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListIndexes {
    /// This one; all if `None`.
    pub dataset: Option<DatasetName>,
}

/// An index, and how far it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexInfo {
    /// The data set.
    pub dataset: DatasetName,
    /// Its definition.
    #[serde(flatten)]
    pub index: IndexRecord,
    /// `ready`, `building`, `dropped` (for lack of space) or `failed`: the state of the drive that is furthest from
    /// ready; `unknown` where no drive reports.
    pub state: String,
    /// How much of it is built, from 0 to 1.
    pub done: f64,
    /// Rows that are in it.
    pub rows: u64,
    /// Bytes that it takes on all drives.
    pub bytes: u64,
    /// The drives that have a part of it: the phase of each, or why it does not report.
    pub drives: BTreeMap<String, String>,
}

impl fmt::Display for IndexInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dataset, index, state, done, rows, bytes, drives } = self;
        let far = if state == "building" { format!(" {:.0}%", 100.0 * done) } else { String::new() };
        let beside = if index.include.is_empty() { String::new() } else { format!(" with {}", index.include.join(", ")) };
        write!(
            f,
            "{dataset}.{} {} on {}{beside}: {state}{far}, {}, {}, {}",
            index.table,
            index.name,
            index.columns.join(", "),
            counted(*rows, "row"),
            human_bytes(*bytes),
            counted(drives.len() as u64, "drive")
        )?;
        // Drives with an error.
        drives.iter().filter(|(_, says)| says.contains(':')).try_for_each(|(drive, says)| write!(f, "\n  {drive}: {says}"))
    }
}

impl Catalog {
    /// Has the drives build an index in the background, of this generation and of later ones. Returns its name.
    ///
    /// # Errors
    /// Invalid for a name or columns that can't be; NotFound for a table or column that is not there; Conflict where
    /// there is an index of the name; Unsupported where a drive builds none, or a column has no order.
    pub fn create_index<'a>(&'a self, asked: &'a NewIndex) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let name = asked.name.clone().unwrap_or_else(|| usual_name(&asked.columns));
            check_name(&name)?;
            let index = IndexRecord { name, table: asked.table.clone(), columns: asked.columns.clone(), include: asked.include.clone() };
            if index.columns.is_empty() || index.columns.len() > MAX_COLUMNS {
                return Err(Error::invalid(format!("an index is of 1 to {MAX_COLUMNS} columns")));
            }
            let all: Vec<&String> = index.columns.iter().chain(&index.include).collect();
            if let Some((_, twice)) = all.iter().enumerate().find(|(at, column)| all[..*at].contains(column)) {
                return Err(Error::invalid(format!("column {twice:?} is named twice")));
            }
            let mut last = None;
            for _ in 0..ATTEMPTS {
                let (mut record, version) = self.record_to_change(&asked.dataset).await?;
                self.check_index(&record, &index).await?;
                if let Some(there) = record.indexes.iter().find(|there| there.name == index.name) {
                    let on = there.columns.join(", ");
                    return Err(Error::conflict(format!("{} has an index {:?} already, on {on}: drop it, or choose another name", record.name, there.name)));
                }
                record.indexes.push(index.clone());
                last = self.commit_indexes(&mut record, version).await?;
                if last.is_none() {
                    self.define_indexes(&record).await.map_err(|e| {
                        let name = &index.name;
                        e.context(format!(
                            "index {name} of {} is noted, but not all drives could be told: they are when indexes are listed, or the fleet is opened",
                            record.name
                        ))
                    })?;
                    return Ok(index.name);
                }
            }
            Err(always_changing(&asked.dataset, last))
        })
    }

    /// Removes an index.
    ///
    /// # Errors
    /// NotFound, with the indexes that there are; Conflict, Unavailable.
    pub fn drop_index<'a>(&'a self, old: &'a OldIndex) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut last = None;
            for _ in 0..ATTEMPTS {
                let (mut record, version) = self.record_to_change(&old.dataset).await?;
                let Some(at) = record.indexes.iter().position(|index| index.name == old.name) else {
                    let there: Vec<&str> = record.indexes.iter().map(|index| index.name.as_str()).collect();
                    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                    return Err(Error::not_found(format!("{} has no index {:?}; it has {there}", record.name, old.name)));
                };
                let index = record.indexes.remove(at);
                last = self.commit_indexes(&mut record, version).await?;
                if last.is_none() {
                    let undefined = self.undefine(&record, &index).await;
                    // One of the name may have been made since.
                    self.follow_indexes(&record).await;
                    return undefined;
                }
            }
            Err(always_changing(&old.dataset, last))
        })
    }

    /// Removes an index from the drives that the root record has dropped.
    async fn undefine(&self, record: &RootRecord, index: &IndexRecord) -> Result<()> {
        // What a drive that is away keeps is collected when it is back and the fleet is opened.
        for (at, slot) in self.parts(record, index)? {
            let key = partition(&record.partition(&index.table, slot), &index.name).key()?;
            let delete = vec![Op::Delete { key: key.clone(), expect: Expect::Any }];
            let deleted = match self.ask(at, "drop an index", self.drives()[at].apply(delete)).await {
                Ok(_) => self.delete_prefix(at, &format!("{key};")).await,
                Err(e) => Err(e),
            };
            deleted.or_else(|e| self.may_lose(at, e))?;
        }
        Ok(())
    }

    /// The indexes of a data set, or of all, and their progress. A drive that lacks the definition of one of its
    /// indexes gets it.
    ///
    /// # Errors
    /// NotFound, Unavailable.
    pub fn indexes<'a>(&'a self, asked: &'a ListIndexes) -> BoxFuture<'a, Result<Vec<IndexInfo>>> {
        Box::pin(async move {
            let names = match &asked.dataset {
                Some(name) => vec![name.clone()],
                None => self.names().await?.into_iter().collect(),
            };
            let (mut infos, mut told) = (Vec::new(), BTreeMap::<usize, Result<Vec<State>>>::new());
            for name in names {
                let record = match self.read(&name).await {
                    Ok((record, _)) => record,
                    Err(e) if asked.dataset.is_none() && matches!(e.kind(), Kind::NotFound | Kind::Unsupported | Kind::Corrupt) => continue,
                    Err(e) => return Err(e),
                };
                let mut again = false;
                for index in &record.indexes {
                    let mut info =
                        IndexInfo { dataset: name.clone(), index: index.clone(), state: String::new(), done: 0.0, rows: 0, bytes: 0, drives: BTreeMap::new() };
                    let (mut stripes, mut phases, mut silent) = ((0u64, 0u64), Vec::new(), false);
                    for (at, slot) in self.parts(&record, index)? {
                        if let Entry::Vacant(place) = told.entry(at) {
                            place.insert(self.ask(at, "list its indexes", self.drives()[at].indexes()).await);
                        }
                        let of = record.partition(&index.table, slot);
                        let state = match told.get(&at) {
                            Some(Ok(states)) => Ok(states.iter().find(|state| state.of == of && state.name == index.name)),
                            Some(Err(e)) => Err(e.report()),
                            None => Err("it was not asked".to_owned()),
                        };
                        let says = match state {
                            // It has one of that name that was dropped while it was away.
                            Ok(Some(state)) if state.definition.as_ref().is_some_and(|is| *is != index.definition()) => {
                                again = true;
                                phases.push(Phase::Waiting);
                                self.retold(&record, index, at, slot, false).await
                            }
                            Ok(Some(state)) => {
                                if state.phase == Phase::Failed {
                                    // The definition itself may be damaged.
                                    again = true;
                                    self.retold(&record, index, at, slot, false).await;
                                }
                                stripes = (stripes.0 + u64::from(state.stripes.0), stripes.1 + u64::from(state.stripes.1));
                                info.rows += state.rows;
                                info.bytes += state.bytes;
                                phases.push(state.phase);
                                let why = state.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
                                format!("{}{why}", word(state.phase))
                            }
                            Ok(None) => {
                                again = true;
                                phases.push(Phase::Waiting);
                                self.retold(&record, index, at, slot, true).await
                            }
                            Err(why) => {
                                silent = true;
                                why
                            }
                        };
                        info.drives.insert(self.drives()[at].info().name.clone(), says);
                    }
                    let has = |phase: Phase| phases.contains(&phase);
                    info.state = match () {
                        () if has(Phase::Failed) => "failed",
                        () if has(Phase::Dropped) => "dropped",
                        () if has(Phase::Building) || has(Phase::Waiting) => "building",
                        () if silent => "unknown",
                        () => "ready",
                    }
                    .to_owned();
                    info.done = if info.state == "ready" {
                        1.0
                    } else if stripes.1 == 0 {
                        0.0
                    } else {
                        stripes.0 as f64 / stripes.1 as f64
                    };
                    infos.push(info);
                }
                if again {
                    self.follow_indexes(&record).await;
                }
            }
            Ok(infos)
        })
    }

    /// Sends all index definitions to the drives that are up and lack them. Nothing depends on it: an error of a drive
    /// is a warning.
    ///
    /// # Errors
    /// Unavailable where data sets can't be listed.
    pub async fn define_all_indexes(&self) -> Result<()> {
        for name in self.names().await? {
            match self.read(&name).await {
                Ok((record, _)) => self.announce_indexes(&record).await,
                Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Unsupported | Kind::Corrupt) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// As [`Self::define_indexes`], where nothing depends on it. Drives that can't be reached now get the definitions
    /// when indexes are listed, or the fleet is opened.
    pub(crate) async fn announce_indexes(&self, record: &RootRecord) {
        if let Err(e) = self.define_indexes(record).await {
            tracing::warn!("not all drives were told of the indexes of {}: {}", record.name, e.report());
        }
    }

    /// Sends the definitions of the indexes in `record` to the drives that are up and lack them. Where other callers
    /// drop or make indexes meanwhile, drives end with the newer state.
    ///
    /// # Errors
    /// The first error of a drive; the other drives got their definitions.
    pub async fn define_indexes(&self, record: &RootRecord) -> Result<()> {
        let (told, done) = self.tell_indexes(record).await;
        if told {
            self.follow_indexes(record).await;
        }
        done
    }

    /// Sends the definitions of the indexes in `record` to the drives that are up. Returns whether any drive lacked
    /// one, and the first error of a drive.
    async fn tell_indexes(&self, record: &RootRecord) -> (bool, Result<()>) {
        let (mut told, mut done) = (false, Ok(()));
        for index in &record.indexes {
            let parts = match self.parts(record, index) {
                Ok(parts) => parts,
                Err(e) => return (told, done.and(Err(e))),
            };
            for (at, slot) in parts {
                match self.define_at(record, index, at, slot, false).await {
                    Ok(new) => told |= new,
                    // It may have taken it all the same.
                    Err(e) => (told, done) = (true, done.and(self.may_lose(at, e))),
                }
            }
        }
        (told, done)
    }

    /// Reads the root record again after drives got the definitions in `record`, until nothing has changed. In between,
    /// other callers may have dropped an index, or made another one of its name, and drives would keep the older
    /// definition. Nothing depends on it, as for [`Self::announce_indexes`].
    async fn follow_indexes(&self, record: &RootRecord) {
        let mut known = record.clone();
        for _ in 0..ATTEMPTS {
            match self.catch_up_with_indexes(&known).await {
                Ok(Some(now)) => known = now,
                Ok(None) => return,
                Err(e) => {
                    tracing::warn!("drives may have been told of indexes of {} that are no more: {}", record.name, e.report());
                    return;
                }
            }
        }
    }

    /// Brings drives up to date with index changes since they got the definitions in `known`. Returns the present
    /// record, if its indexes differ.
    async fn catch_up_with_indexes(&self, known: &RootRecord) -> Result<Option<RootRecord>> {
        let now = match self.read_versioned(&known.name).await? {
            // A home that does not have it yet.
            Some((now, _)) if now.change < known.change => return Ok(None),
            Some((now, _)) if now.generation == known.generation => now,
            // A home drive that was away may also lack the record of a new data set. The next opening of the fleet
            // removes what is left of a dropped one.
            None if self.health().is_redundant() => return Ok(None),
            // A version keeps tables of this generation, with their indexes.
            Some((now, _)) => {
                let is_kept =
                    |index: &IndexRecord| now.tables.contains_key(&index.table) && now.generation_of(&index.table) == known.generation_of(&index.table);
                RootRecord { indexes: now.indexes.iter().filter(|index| is_kept(index)).cloned().collect(), ..known.clone() }
            }
            // The data set was dropped, replaced or moved. The mover has sent the definitions of the new
            // generation, so no index of this one may remain.
            None => RootRecord { indexes: Vec::new(), ..known.clone() },
        };
        if now.indexes == known.indexes {
            return Ok(None);
        }
        let is_gone = |index: &&IndexRecord| !now.indexes.iter().any(|there| there.name == index.name && there.table == index.table);
        let gone: Vec<&IndexRecord> = known.indexes.iter().filter(is_gone).collect();
        for index in gone {
            self.undefine(known, index).await?;
        }
        self.tell_indexes(&now).await.1?;
        Ok(Some(now))
    }

    /// Sends an index definition to a drive, in place of another one with that name. A drive that has the same
    /// definition gets it once more only if `again` is set. Returns whether it was sent.
    async fn define_at(&self, record: &RootRecord, index: &IndexRecord, at: usize, slot: u32, again: bool) -> Result<bool> {
        let key = &partition(&record.partition(&index.table, slot), &index.name).key()?;
        let (drive, definition) = (&self.drives()[at], index.definition());
        let (mut expect, mut left) = (Expect::Absent, ATTEMPTS);
        loop {
            let put = Op::Put { key: key.clone(), value: definition.encode()?.into(), expect };
            let conflict = match self.ask(at, "build an index", drive.apply(vec![put])).await {
                Err(e) if e.kind() == Kind::Conflict => e,
                done => return done.map(|_| true),
            };
            // The drive writes it again with all that it builds.
            left -= 1;
            let there = self.ask(at, "tell an index's definition", drive.stat(key)).await?;
            let Some(there) = there.filter(|_| left > 0) else { return Err(conflict) };
            match self.ask(at, "tell an index's definition", drive.get(key)).await.and_then(|bytes| Definition::decode(&bytes)) {
                Ok(is) if is == definition && !again => return Ok(false),
                Ok(_) => {}
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported | Kind::NotFound) => {}
                Err(e) => return Err(e),
            }
            expect = Expect::Version(there.version);
        }
    }

    /// Sends an index definition to a drive, and returns the state to show for it.
    async fn retold(&self, record: &RootRecord, index: &IndexRecord, at: usize, slot: u32, again: bool) -> String {
        self.define_at(record, index, at, slot, again).await.map_or_else(|e| e.report(), |_| word(Phase::Waiting).to_owned())
    }

    /// The drives that are up and have a partition of an index's table, with its slot.
    fn parts(&self, record: &RootRecord, index: &IndexRecord) -> Result<Vec<(usize, u32)>> {
        let Ok(table) = record.table(&index.table) else { return Ok(Vec::new()) };
        let mut parts = Vec::new();
        for p in &table.partitions {
            let at = self.drive(&p.drive, &record.name)?;
            if !self.health().is_down(at) {
                parts.push((at, p.slot));
            }
        }
        Ok(parts)
    }

    /// Whether the drives can build it.
    async fn check_index(&self, record: &RootRecord, index: &IndexRecord) -> Result<()> {
        let table = record.table(&index.table)?;
        if table.matrix.is_some() {
            return Err(Error::unsupported(format!("{}.{} is a matrix, which has no indexes: its genes are found by their numbers", record.name, index.table)));
        }
        let parts = self.parts(record, index)?;
        let mut schema = None;
        for (at, slot) in &parts {
            self.ask(*at, "tell its indexes", self.drives()[*at].indexes()).await?;
            if schema.is_none() {
                let key = record.partition(&index.table, *slot).key()?;
                schema = Some(Metadata::decode(&self.ask(*at, "read a table's metadata", self.drives()[*at].get(&key)).await?)?.schema);
            }
        }
        let schema = schema.ok_or_else(|| Error::unavailable(format!("no drive with a part of {} is here", record.name)))?;
        for column in index.columns.iter().chain(&index.include) {
            let field = schema.field_with_name(column).map_err(|_| {
                let there: Vec<&str> = schema.fields().iter().take(50).map(|f| f.name().as_str()).collect();
                Error::not_found(format!("{} has no column {column:?}; it has {}", record.name, there.join(", ")))
                    .with_detail(Detail::MissingColumn { column: column.clone() })
            })?;
            if index.columns.contains(column) && Order::of(field.data_type(), None).is_none() {
                return Err(Error::unsupported(format!(
                    "column {column:?} of {} is of type {}, of which there are no indexes",
                    record.name,
                    field.data_type()
                )));
            }
        }
        Ok(())
    }

    async fn record_to_change(&self, name: &DatasetName) -> Result<(RootRecord, Version)> {
        match self.read_versioned(name).await? {
            Some(found) => Ok(found),
            None => Err(self.unknown_dataset(name).await),
        }
    }

    /// Commits a record with other indexes. Returns the refusal where another writer has changed the record since
    /// `version`.
    async fn commit_indexes(&self, record: &mut RootRecord, version: Version) -> Result<Option<Error>> {
        let before = record.change;
        record.change = self.next_change(before);
        match self.commit(record, Expect::Version(version), Some(before)).await {
            Err(e) if e.kind() == Kind::Conflict && !is_refusal(&e) => Ok(Some(e)),
            done => done.map(|()| None),
        }
    }
}

fn always_changing(name: &DatasetName, last: Option<Error>) -> Error {
    let error = Error::conflict(format!("the root record of {name} changes all the time: try again"));
    match last {
        Some(last) => error.with_source(last),
        None => error,
    }
}

/// The name of an index for which the caller gave none.
fn usual_name(columns: &[String]) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    columns.join("_").chars().map(fit).take(64).collect()
}

fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Building => "building",
        Phase::Ready => "ready",
        Phase::Dropped => "dropped",
        Phase::Failed => "failed",
    }
}
