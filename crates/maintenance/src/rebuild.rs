//! Rebuilds the content of a lost drive on a blank drive, while queries continue without it. Then the blank drive
//! joins.
//!
//! The blank drive has the id of the lost one, so root records, code maps and placement stay valid. The *incarnation*
//! of the member in the membership record tells the two apart: it grows when a rebuild begins. A drive whose own record
//! names a smaller incarnation was replaced, and no host uses it again. A drive without a membership record is blank,
//! and no host reads from it until its content is complete. Then it gets the record, and joins like a drive that was
//! away.
//!
//! A rebuild keeps what is on the blank drive already, as the code map names it. So it continues after a crash.

use futures::future::BoxFuture;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use skytether_common::{DatasetName, Error, Key, Kind, PartitionName, Result};
use skytether_device::verify::Pace;
use skytether_erasure::map::Place;
use skytether_erasure::repair::{Drive, reads};
use skytether_partitioning::Placement;
use skytether_slice::Metadata;
use skytether_store::{Expect, Op};
use tokio_util::task::AbortOnDropHandle;

use crate::Maintenance;
use crate::kept_again::make_again;
use skytether_api::scrub_report::{Progress, RepairOptions, RepairReport, ScrubReport};
use skytether_catalog::records::code_map::{Level, Part, RedundancyRecord, StoredMap, parity_of};
use skytether_catalog::records::root::{RootRecord, TableRecord};
use skytether_cluster::cluster::Cluster;
use skytether_recovery::ordered_read as in_order;
use skytether_recovery::reconstruct::Reconstructor;
use skytether_recovery::shard::role;

/// Groups that are read and decoded at the same time.
const GROUPS: usize = 8;

/// Limit of bytes of shards that wait for other shards of their groups; a quarter of the host's memory if that is less.
/// It is twice what drives read along: a row or two of some drives, as far apart as shards of a group are.
const MOST_WAITING: u64 = 384 << 20;

/// Groups whose shards are read along at a time.
const ALONG: usize = 1024;

/// Limit of batches that are on their way to one drive, besides the batch that fills.
const SENDS: usize = 4;

/// Bytes that go to the drive at a time.
const BATCH: usize = 8 << 20;

/// Changes that go to the drive at a time.
const OPS: usize = 256;

/// Keys that are listed at a time.
const PAGE: usize = 4096;

/// Passes over data sets that change meanwhile.
const PASSES: usize = 16;

/// A rebuild under way, of one drive or several.
pub(crate) struct Rebuild<'a> {
    cluster: &'a Cluster,
    pub(crate) reconstructor: &'a Arc<Reconstructor>,
    /// The blank drives.
    pub(crate) blank: BTreeSet<usize>,
    tell: &'a (dyn Fn(&Progress) + Send + Sync),
    pub(crate) report: RepairReport,
    progress: Progress,
    pub(crate) pace: Pace,
    /// Whether it goes as fast as it can.
    hurries: bool,
    batches: BTreeMap<usize, Batch>,
    /// Batches that are on their way to each drive, the oldest first.
    sending: BTreeMap<usize, VecDeque<AbortOnDropHandle<Result<u64>>>>,
}

/// What goes to a drive next.
#[derive(Default)]
struct Batch {
    ops: Vec<Op>,
    bytes: usize,
}

/// The shards of a group that are read to make others.
#[derive(Clone)]
enum Making {
    /// The shards that the plan chose.
    Planned,
    /// Any shards that can be read.
    Unplanned,
    /// All data shards, also those on these drives, which are being rebuilt.
    FromData(BTreeSet<usize>),
}

/// Shards by groups, as their places.
fn places_of(wanted: &BTreeMap<u32, Vec<usize>>) -> Vec<Place> {
    wanted.iter().flat_map(|(group, shards)| shards.iter().map(|shard| Place { group: *group, shard: *shard as u32 })).collect()
}

impl Maintenance {
    /// Rebuilds the content of lost drives on the blank drives in their places, and lets them join. `tell` gets the
    /// progress. Queries continue without these drives, and so do ingests where enough other drives answer. Dropping
    /// the future stops the rebuild; the next call continues it.
    ///
    /// # Errors
    /// `Unsupported` in a fleet without redundancy. `Invalid` where a named drive is not lost, or the drive in its
    /// place is not blank. `Conflict` while another repair runs. `Unavailable` where more drives are lost than the
    /// scheme covers, or a drive does not answer.
    pub fn repair<'a>(&'a self, options: &'a RepairOptions, tell: &'a (dyn Fn(&Progress) + Send + Sync)) -> BoxFuture<'a, Result<RepairReport>> {
        Box::pin(async move {
            let started = Instant::now();
            let catalog = self.0.catalog();
            let _only = self.0.reconstructor().repairing().ok_or_else(|| Error::conflict("a repair of this fleet is under way: wait until it is done"))?;
            catalog.look_around().await?;
            if !catalog.health().is_redundant() {
                return Err(Error::unsupported("this fleet has no redundancy, from which lost drives could be rebuilt: bring them back"));
            }
            for name in &options.drives {
                let at = self.0.drives().iter().position(|drive| drive.info().name == *name || drive.info().id.to_string() == *name);
                let at = at.ok_or_else(|| Error::invalid(format!("there is no drive {name:?}: `skytether status` names them")))?;
                if !catalog.health().is_down(at) {
                    return Err(Error::invalid(format!("{name} is not lost: only lost drives are rebuilt")));
                }
            }
            let blank = catalog.blank().await?;
            let named: Vec<&String> = options.drives.iter().filter(|name| !blank.iter().any(|at| self.is_called(*at, name))).collect();
            if let Some(name) = named.first() {
                return Err(Error::invalid(format!(
                    "nothing blank answers in the place of {name}: put a blank drive there first, made with its id (`skytether drive serve --replace ID`)"
                )));
            }
            let blank: BTreeSet<usize> =
                blank.into_iter().filter(|at| options.drives.is_empty() || options.drives.iter().any(|name| self.is_called(*at, name))).collect();
            let mut rebuild = Rebuild {
                cluster: &self.0,
                reconstructor: self.0.reconstructor(),
                blank,
                tell,
                report: RepairReport::default(),
                progress: Progress::default(),
                pace: Pace::new(options.bytes_per_s),
                hurries: options.bytes_per_s.is_none(),
                batches: BTreeMap::new(),
                sending: BTreeMap::new(),
            };
            rebuild.report.drives = rebuild.blank.iter().map(|at| self.0.drives()[*at].info().name.clone()).collect();
            for at in catalog.health().down().into_iter().filter(|at| !rebuild.blank.contains(at)) {
                rebuild.report.lost.insert(self.0.drives()[at].info().name.clone(), catalog.health().down_reason(at).unwrap_or_default());
            }
            if !rebuild.blank.is_empty() {
                rebuild.all().await?;
                // The new drive takes data by now, so that what volumes lack is written over as many drives as before.
                let mut scrubbed = ScrubReport::default();
                crate::volumes::scrub(catalog, false, options.bytes_per_s, &mut scrubbed).await?;
                rebuild.report.rebuilt += scrubbed.mended;
                for left in scrubbed.found.into_iter().filter(|found| !found.mended) {
                    rebuild.report.leave(format!("{}: {}", left.key, left.error.unwrap_or(left.what)));
                }
            }
            Ok(RepairReport { seconds: started.elapsed().as_secs_f64(), ..rebuild.report })
        })
    }

    fn is_called(&self, at: usize, name: &str) -> bool {
        let info = self.0.drives()[at].info();
        info.name == name || info.id.to_string() == name
    }
}

impl Rebuild<'_> {
    async fn all(&mut self) -> Result<()> {
        let catalog = self.cluster.catalog();
        let ids: Vec<_> = self.blank.iter().map(|at| catalog.drives()[*at].info().id).collect();
        catalog.fence(&ids).await?;
        let mut done: BTreeMap<DatasetName, Arc<RootRecord>> = BTreeMap::new();
        // Ingests write without the blank drive meanwhile. Data sets that they replace may need another pass.
        for pass in 0.. {
            let mut records = Vec::new();
            for name in catalog.names().await? {
                match catalog.read(&name).await {
                    Ok((record, _)) if done.get(&name).is_none_or(|done| done.generation != record.generation) => records.push(Arc::new(record)),
                    Ok(_) => {}
                    Err(e) if e.kind() == Kind::NotFound => {}
                    Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) && pass == 0 => self.report.leave(format!("{name}: {}", e.report())),
                    Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => {}
                    Err(e) => return Err(e),
                }
            }
            if records.is_empty() || pass == PASSES {
                break;
            }
            self.progress.total += records.iter().map(|record| self.due(record)).sum::<u64>();
            for record in records {
                self.progress.what = record.name.to_string();
                let rebuilt = match self.dataset(&record).await {
                    Ok(()) => self.send_all().await,
                    failed => failed,
                };
                if let Err(e) = rebuilt {
                    // A generation that was replaced meanwhile is gone, and needs no rebuild.
                    if self.is_still(&record).await? {
                        return Err(e);
                    }
                    self.batches.clear();
                    self.sending.clear();
                }
                self.tidy(&record).await?;
                done.insert(record.name.clone(), record);
            }
        }
        catalog.admit(&ids).await?;
        // A generation that was replaced after its rebuild was deleted on all other drives, and is now deleted on the
        // blank ones.
        for record in done.values() {
            self.tidy(record).await?;
        }
        if let Some(at) = self.blank.iter().find(|at| catalog.health().is_down(**at)) {
            let why = catalog.health().down_reason(*at).unwrap_or_default();
            return Err(Error::unavailable(format!("all of {} is rebuilt, but it could not be taken in ({why}): try again", self.reconstructor.name(*at))));
        }
        // A rebuild restores no indexes: the drives build them again.
        catalog.define_all_indexes().await?;
        // Nor kept results: the other drives have their programs.
        for record in done.values() {
            make_again(self.cluster, record, record).await;
        }
        self.progress.done = self.progress.total;
        (self.tell)(&self.progress);
        Ok(())
    }

    /// Bytes of a data set that belong on the blank drives.
    fn due(&self, record: &RootRecord) -> u64 {
        let mine = |id: &uuid::Uuid| self.blank.iter().any(|at| self.reconstructor.drives[*at].info().id == *id);
        let parities = record.tables.values().filter_map(|table| table.redundancy.as_ref()).flat_map(|r| r.parity.iter().chain(&r.inner));
        record.tables.values().flat_map(|table| &table.partitions).chain(parities).filter(|p| mine(&p.drive)).map(|p| p.bytes).sum()
    }

    pub(crate) fn place(&self, id: &uuid::Uuid) -> Option<usize> {
        self.reconstructor.drives().find(|at| self.reconstructor.drives[*at].info().id == *id)
    }

    async fn dataset(&mut self, record: &Arc<RootRecord>) -> Result<()> {
        for (title, table) in &record.tables {
            match (&table.redundancy, table.placement) {
                (Some(redundancy), _) => self.coded(record, title, table, redundancy).await?,
                (None, Placement::Everywhere) => self.everywhere(record, title, table).await?,
                (None, Placement::Spread) => {
                    for p in &table.partitions {
                        if let Some(at) = self.place(&p.drive).filter(|at| self.blank.contains(at)) {
                            let part = record.partition(title, p.slot).key()?;
                            self.report.leave(format!(
                                "{part} was on {} alone, and is lost: drop {} and ingest it again",
                                self.reconstructor.name(at),
                                record.name
                            ));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The values of a partition that a blank drive has already.
    pub(crate) async fn there(&self, at: usize, partition: &PartitionName) -> Result<HashSet<(u32, u64, u32)>> {
        let prefix = format!("{};", partition.key()?);
        let (mut there, mut after): (_, Option<Key>) = (HashSet::new(), None);
        loop {
            let page = self.reconstructor.ask(at, "list what it has", self.reconstructor.drives[at].list(&prefix, after.as_ref(), PAGE)).await?;
            let last = page.len() < PAGE;
            after = page.last().map(|entry| entry.key.clone());
            there.extend(page.iter().filter_map(|entry| Some((PartitionName::parse(&entry.key)?.1?, entry.len, entry.crc32c))));
            if last {
                return Ok(there);
            }
        }
    }

    /// Rebuilds slices and parities of a table from the rest of their groups, and the metadata slices and the code map
    /// of its blank drives.
    async fn coded(&mut self, record: &Arc<RootRecord>, title: &str, table: &TableRecord, redundancy: &RedundancyRecord) -> Result<()> {
        let partition = record.partition(title, 0);
        let map =
            self.reconstructor.map(&partition).await?.ok_or_else(|| Error::unavailable(format!("the code map of {} {title} is not to be had", record.name)))?;
        let places: Vec<Option<usize>> = map.drives.iter().map(|id| self.place(id)).collect();
        let states: Vec<Drive> =
            places.iter().map(|at| if at.is_some_and(|at| !self.reconstructor.health.is_down(at)) { Drive::Here } else { Drive::Lost }).collect();
        let made = match Level::within(&map) {
            Some(within) => self.two_levels(record, &partition, &within, &places, &states).await?,
            None => self.one_level(record, &partition, &Level::across(&map), &places, &states).await?,
        };
        if !made {
            return Ok(());
        }
        // Metadata slices come last: with its metadata slice a partition counts as whole.
        for p in &table.partitions {
            let key = record.partition(title, p.slot).key()?;
            self.own(record, &key, redundancy.holders(p.slot), &|bytes| Metadata::decode(bytes).map(drop)).await?;
        }
        self.own(record, &parity_of(&partition, 0).key()?, redundancy.holders(0), &|bytes| StoredMap::decode(bytes).map(drop)).await
    }

    /// Rebuilds all missing shards of blank drives; each group reads as many shards as it has data shards. Gives
    /// whether the data set still exists.
    async fn one_level(&mut self, record: &RootRecord, partition: &PartitionName, level: &Level, places: &[Option<usize>], states: &[Drive]) -> Result<bool> {
        let wanted = self.wanted(partition, level, places).await?;
        let plan = reads(level.map(), states, &places_of(&wanted))?;
        for group in &plan.beyond {
            let members = level.map().group(*group as usize);
            for at in wanted.get(group).into_iter().flatten() {
                if let Some((members, shard)) = members.and_then(|members| Some((members, members.all().get(*at)?))) {
                    let key = level.key(partition, shard, role(*at, members.data.len()))?;
                    self.report.leave(format!("{key} can't be made of its group: too many of its shards are lost"));
                }
            }
        }
        self.report.bytes_least += plan.read.iter().sum::<u64>();
        self.made(record, partition, level, &wanted, plan.groups, &Making::Planned).await
    }

    /// The same on two levels. Shards are rebuilt within their node where possible. Of the rest, slices and parities
    /// across nodes are rebuilt first, and then the parities within nodes, from these.
    async fn two_levels(&mut self, record: &RootRecord, partition: &PartitionName, within: &Level, places: &[Option<usize>], states: &[Drive]) -> Result<bool> {
        let across = Level::across(&within.stored);
        let wanted = self.wanted(partition, within, places).await?;
        let plan = reads(within.map(), states, &places_of(&wanted))?;
        self.report.bytes_least += plan.read.iter().sum::<u64>();
        if !self.made(record, partition, within, &wanted, plan.groups, &Making::Planned).await? {
            return Ok(false);
        }
        let (mut from_others, mut inner): (BTreeMap<u32, Vec<usize>>, BTreeMap<u32, Vec<usize>>) = (BTreeMap::new(), BTreeMap::new());
        for group in &plan.beyond {
            let Some(members) = within.map().group(*group as usize) else { continue };
            for at in wanted.get(group).into_iter().flatten() {
                let Some(shard) = members.all().get(*at) else { continue };
                let (part, slot) = within.part(shard, role(*at, members.data.len()));
                match across.find(part, slot, shard.number) {
                    Some(place) => from_others.entry(place.group).or_default().push(place.shard as usize),
                    None => inner.entry(*group).or_default().push(*at),
                }
            }
        }
        let plan = reads(across.map(), states, &places_of(&from_others))?;
        self.report.bytes_least += plan.read.iter().sum::<u64>();
        if !self.made(record, partition, &across, &from_others, plan.groups, &Making::Planned).await? {
            return Ok(false);
        }
        // In these groups other nodes have lost shards too, which are reconstructed within their nodes first.
        let beyond = plan.beyond.into_iter().map(|group| (group, Vec::new())).collect();
        if !self.made(record, partition, &across, &from_others, beyond, &Making::Unplanned).await? {
            return Ok(false);
        }
        self.send_all().await?;
        let groups = inner.keys().map(|group| (*group, Vec::new())).collect();
        self.made(record, partition, within, &inner, groups, &Making::FromData(self.blank.clone())).await
    }

    /// The missing shards of blank drives, by groups of a level.
    async fn wanted(&mut self, partition: &PartitionName, level: &Level, places: &[Option<usize>]) -> Result<BTreeMap<u32, Vec<usize>>> {
        let mut present: BTreeMap<(Part, u32), HashSet<(u32, u64, u32)>> = BTreeMap::new();
        let mut wanted: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (group, members) in level.map().iter().enumerate() {
            for (at, shard) in members.all().iter().enumerate() {
                let Some(to) = places.get(shard.drive as usize).copied().flatten().filter(|to| self.blank.contains(to)) else { continue };
                let (part, slot) = level.part(shard, role(at, members.data.len()));
                if let std::collections::btree_map::Entry::Vacant(entry) = present.entry((part, slot)) {
                    entry.insert(self.there(to, &part.of(partition, slot)).await?);
                }
                let there = present.get(&(part, slot)).is_some_and(|there| there.contains(&(shard.number, shard.len, shard.crc32c)));
                if there {
                    self.report.kept += 1;
                    self.progress.done = (self.progress.done + shard.len).min(self.progress.total);
                } else {
                    wanted.entry(group as u32).or_default().push(at);
                }
            }
        }
        Ok(wanted)
    }

    /// Makes the wanted shards of some groups of a level. Each group comes with the shards that it reads. Gives whether
    /// the data set still exists.
    async fn made(
        &mut self,
        record: &RootRecord,
        partition: &PartitionName,
        level: &Level,
        wanted: &BTreeMap<u32, Vec<usize>>,
        groups: Vec<(u32, Vec<u32>)>,
        how: &Making,
    ) -> Result<bool> {
        for some in groups.chunks(ALONG) {
            if !self.some_made(record, partition, level, wanted, some, how).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`Self::made`], for at most [`ALONG`] groups.
    async fn some_made(
        &mut self,
        record: &RootRecord,
        partition: &PartitionName,
        level: &Level,
        wanted: &BTreeMap<u32, Vec<usize>>,
        groups: &[(u32, Vec<u32>)],
        how: &Making,
    ) -> Result<bool> {
        let reconstructor = Arc::clone(self.reconstructor);
        // In tasks of their own, which continue while shards are written.
        let of = |(group, chosen): (u32, Vec<u32>)| {
            let (reconstructor, level, partition, places) =
                (Arc::clone(&reconstructor), level.clone(), partition.clone(), wanted.get(&group).cloned().unwrap_or_default());
            let how = how.clone();
            AbortOnDropHandle::new(tokio::spawn(async move {
                let made = match &how {
                    Making::FromData(blank) => reconstructor.regroup_from_data(&partition, &level, group, &places, blank).await,
                    Making::Planned | Making::Unplanned => reconstructor.regroup(&partition, &level, group, &places, &chosen).await,
                };
                (group, places, made)
            }))
        };
        // Without a limit of the rate, drives are read in the order of storage.
        let _reading = self.hurries.then(|| reconstructor.read_in_order(self.shards(partition, level, groups), self.room()));
        let mut making = stream::iter(groups.to_vec()).map(of).buffered(GROUPS);
        while let Some(made) = making.next().await {
            let (group, shards, made) = made.map_err(|e| Error::internal("a group could not be made").with_source(e))?;
            let Some(members) = level.map().group(group as usize) else { continue };
            let (values, read) = match made {
                Ok(made) => made,
                // The data set may have been replaced just now, or there is damage beyond repair.
                Err(e) if self.is_still(record).await? => {
                    for at in shards {
                        let key = members.all().get(at).map(|shard| level.key(partition, shard, role(at, members.data.len()))).transpose()?;
                        self.report.leave(format!("{}: {}", key.map_or_else(String::new, |key| key.as_str().to_owned()), e.report()));
                    }
                    continue;
                }
                Err(_) => return Ok(false),
            };
            self.report.bytes_read += read;
            self.report.bytes_least += if matches!(how, Making::Planned) { 0 } else { read };
            self.report.groups += 1;
            self.pace.passed(read).await;
            for (at, value) in shards.into_iter().zip(values) {
                let Some(shard) = members.all().get(at) else { continue };
                let Some(to) = self.reconstructor.at(level, shard) else { continue };
                let key = level.key(partition, shard, role(at, members.data.len()))?;
                self.report.rebuilt += 1;
                self.put(to, key, value).await?;
            }
        }
        Ok(true)
    }

    /// The shards that some groups read.
    fn shards(&self, partition: &PartitionName, level: &Level, groups: &[(u32, Vec<u32>)]) -> Vec<in_order::Shard> {
        let of = |(due, (group, chosen)): (usize, &(u32, Vec<u32>))| {
            let members = level.map().group(*group as usize);
            let shard = |at: &u32| {
                let members = members?;
                let shard = members.all().get(*at as usize)?;
                in_order::Shard::of(level, partition, shard, role(*at as usize, members.data.len()), self.reconstructor.at(level, shard)?, due)
            };
            chosen.iter().filter_map(shard).collect::<Vec<_>>()
        };
        groups.iter().enumerate().flat_map(of).collect()
    }

    /// Bytes of shards that are read for groups that are made later.
    fn room(&self) -> u64 {
        MOST_WAITING.min(self.cluster.options().memory_limit as u64 / 4) / 2
    }

    pub(crate) async fn is_still(&self, record: &RootRecord) -> Result<bool> {
        match self.cluster.catalog().read(&record.name).await {
            Ok((now, _)) => Ok(now.generation == record.generation),
            Err(e) if e.kind() == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Adds a value to the next batch for a blank drive.
    pub(crate) async fn put(&mut self, at: usize, key: Key, value: Bytes) -> Result<()> {
        let batch = self.batches.entry(at).or_default();
        batch.bytes += value.len();
        // Only repairs write there.
        batch.ops.push(Op::Put { key, value, expect: Expect::Any });
        if batch.bytes >= BATCH || batch.ops.len() >= OPS { self.send(at).await } else { Ok(()) }
    }

    /// Sends the batch of a drive, while the next one fills. It does not read the batch back: a read would show the
    /// drive's memory and not its disk. Scrubs verify the disk.
    async fn send(&mut self, at: usize) -> Result<()> {
        let Some(Batch { ops, bytes }) = self.batches.remove(&at) else { return Ok(()) };
        while self.sending.get(&at).is_some_and(|sending| sending.len() >= SENDS) {
            self.sent(at).await?;
        }
        let reconstructor = Arc::clone(self.reconstructor);
        let sending = AbortOnDropHandle::new(tokio::spawn(async move {
            let took = reconstructor.ask(at, "take what was rebuilt", reconstructor.drives[at].apply(ops)).await;
            took.map_err(|e| e.context(format!("{} could not take what was rebuilt", reconstructor.name(at)))).map(|_| bytes as u64)
        }));
        self.sending.entry(at).or_default().push_back(sending);
        Ok(())
    }

    /// Waits for the oldest batch that is on its way to a drive.
    async fn sent(&mut self, at: usize) -> Result<()> {
        let Some(sending) = self.sending.get_mut(&at).and_then(VecDeque::pop_front) else { return Ok(()) };
        let bytes = sending.await.map_err(|e| Error::internal("what was rebuilt could not be sent").with_source(e))??;
        self.report.bytes_written += bytes;
        self.progress.done = (self.progress.done + bytes).min(self.progress.total);
        (self.tell)(&self.progress);
        Ok(())
    }

    async fn send_all(&mut self) -> Result<()> {
        for at in self.blank.clone() {
            self.send(at).await?;
            while self.sending.get(&at).is_some_and(|sending| !sending.is_empty()) {
                self.sent(at).await?;
            }
        }
        Ok(())
    }

    /// Deletes what was replaced meanwhile from the blank drives.
    async fn tidy(&self, record: &RootRecord) -> Result<()> {
        let catalog = self.cluster.catalog();
        let now = match catalog.read(&record.name).await {
            Ok((now, _)) if now.generation == record.generation => return Ok(()),
            Ok((now, _)) => Some(now),
            Err(e) if e.kind() == Kind::NotFound => None,
            Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => return Ok(()),
            Err(e) => return Err(e),
        };
        for at in &self.blank {
            catalog.delete_replaced_at(*at, catalog.bare(*at), record, now.as_ref()).await?;
        }
        Ok(())
    }
}
