//! A blank drive in the place of a lost one: all that the lost one had is made anew on it, while queries go on without it, and then it is taken in.
//!
//! The blank drive has the lost one's id, so that nothing that names a drive changes: not root records, code maps or placement. What tells them apart is the member's *incarnation* in the record of the fleet, which grows when a rebuild begins: a drive
//! whose own record names a smaller one was replaced, and is not used again. A drive without a record of the fleet is blank, and is not used either until all is on it; then it gets the record, and is taken in as one that was away.
//!
//! What is on the blank drive already, as the code map names it, is not made again: that is how a rebuild goes on after a crash.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use skytether_common::{DatasetName, Error, Generation, Key, Kind, PartitionName, Result};
use skytether_plan::Placement;
use skytether_redundancy::map::{Place, Role};
use skytether_redundancy::repair::{Drive, reads};
use skytether_slice::Metadata;
use skytether_store::{Expect, Op};
use skytether_wire::Verify;
use skytether_wire::verify::{Expected, Item, Pace};

use super::decoded::Cover;
use super::mend::{is, role, shard_key};
use super::report::{Progress, RepairOptions, RepairReport};
use super::stored::{RedundancyRecord, StoredMap, parity_of};
use crate::catalog::{RootRecord, TableRecord};
use crate::session::Host;

/// Groups that are read and decoded at the same time.
const GROUPS: usize = 8;

/// Bytes that go to the drive at a time.
const BATCH: usize = 8 << 20;

/// Changes that go to the drive at a time.
const OPS: usize = 256;

/// Keys that are listed at a time.
const PAGE: usize = 4096;

/// Passes over data sets that change meanwhile.
const PASSES: usize = 16;

/// A rebuild under way, of one drive or several.
struct Rebuild<'a> {
    host: &'a Host,
    cover: &'a Arc<Cover>,
    /// The blank drives.
    blank: BTreeSet<usize>,
    tell: &'a (dyn Fn(&Progress) + Send + Sync),
    report: RepairReport,
    progress: Progress,
    pace: Pace,
    batches: BTreeMap<usize, Batch>,
}

/// What goes to a drive next.
#[derive(Default)]
struct Batch {
    ops: Vec<Op>,
    items: Vec<Item>,
    bytes: usize,
}

impl Host {
    /// Makes all anew on blank drives that are in the place of lost ones, and takes them in; `tell` is told how far it is. Queries go on without them meanwhile, and so do ingests where enough other drives are here. Dropping it stops it, and the next one goes on from there.
    ///
    /// # Errors
    /// `Unsupported` in a fleet without redundancy; `Invalid` where a drive that is named is not lost, or what answers in its place is not blank; `Conflict` while another repair is under way; `Unavailable` where more drives are lost than the fleet survives, or a drive does not
    /// answer.
    pub async fn repair(&self, options: &RepairOptions, tell: &(dyn Fn(&Progress) + Send + Sync)) -> Result<RepairReport> {
        let started = Instant::now();
        let catalog = self.catalog();
        let _only = self.cover().repairing().ok_or_else(|| Error::conflict("a repair of this fleet is under way: wait until it is done"))?;
        catalog.look_around().await?;
        if !catalog.presence().is_redundant() {
            return Err(Error::unsupported("this fleet has no redundancy, from which lost drives could be rebuilt: bring them back"));
        }
        for name in &options.drives {
            let at = self.drives().iter().position(|drive| drive.info().name == *name || drive.info().id.to_string() == *name);
            let at = at.ok_or_else(|| Error::invalid(format!("there is no drive {name:?}: `skytether status` names them")))?;
            if !catalog.presence().is_lost(at) {
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
            host: self,
            cover: self.cover(),
            blank,
            tell,
            report: RepairReport::default(),
            progress: Progress::default(),
            pace: Pace::new(options.bytes_per_s),
            batches: BTreeMap::new(),
        };
        rebuild.report.drives = rebuild.blank.iter().map(|at| self.drives()[*at].info().name.clone()).collect();
        for at in catalog.presence().lost().into_iter().filter(|at| !rebuild.blank.contains(at)) {
            rebuild.report.lost.insert(self.drives()[at].info().name.clone(), catalog.presence().why(at).unwrap_or_default());
        }
        if !rebuild.blank.is_empty() {
            rebuild.all().await?;
        }
        Ok(RepairReport { seconds: started.elapsed().as_secs_f64(), ..rebuild.report })
    }

    fn is_called(&self, at: usize, name: &str) -> bool {
        let info = self.drives()[at].info();
        info.name == name || info.id.to_string() == name
    }
}

impl Rebuild<'_> {
    async fn all(&mut self) -> Result<()> {
        let catalog = self.host.catalog();
        let ids: Vec<_> = self.blank.iter().map(|at| catalog.drives()[*at].info().id).collect();
        catalog.fence(&ids).await?;
        let mut done: BTreeMap<DatasetName, Generation> = BTreeMap::new();
        // What is written meanwhile is written without the blank drive; what was replaced meanwhile may have to be looked at again.
        for pass in 0.. {
            let mut records = Vec::new();
            for name in catalog.names().await? {
                match catalog.read(&name).await {
                    Ok((record, _)) if done.get(&name) != Some(&record.generation) => records.push(Arc::new(record)),
                    Ok(_) => {}
                    Err(e) if e.kind() == Kind::NotFound => {}
                    Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) && pass == 0 => self.report.leave(format!("{name}: {}", e.full_text())),
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
                    // What was replaced meanwhile is not to be had any more, and is not missed.
                    if self.is_still(&record).await? {
                        return Err(e);
                    }
                    self.batches.clear();
                }
                self.tidy(&record).await?;
                done.insert(record.name.clone(), record.generation);
            }
        }
        catalog.admit(&ids).await?;
        // What was replaced since it was rebuilt was deleted everywhere but there.
        for (name, generation) in &done {
            self.tidy_generation(name, *generation).await?;
        }
        if let Some(at) = self.blank.iter().find(|at| catalog.presence().is_lost(**at)) {
            let why = catalog.presence().why(*at).unwrap_or_default();
            return Err(Error::unavailable(format!("all of {} is rebuilt, but it could not be taken in ({why}): try again", self.cover.name(*at))));
        }
        // Indexes are not rebuilt from anything: the drives that were taken in build theirs.
        catalog.define_all_indexes().await?;
        self.progress.done = self.progress.total;
        (self.tell)(&self.progress);
        Ok(())
    }

    /// Bytes that the blank drives are to have of a data set.
    fn due(&self, record: &RootRecord) -> u64 {
        let mine = |id: &uuid::Uuid| self.blank.iter().any(|at| self.cover.drives[*at].info().id == *id);
        let parities = record.tables.values().filter_map(|table| table.redundancy.as_ref()).flat_map(|redundancy| &redundancy.parity);
        record.tables.values().flat_map(|table| &table.partitions).chain(parities).filter(|p| mine(&p.drive)).map(|p| p.bytes).sum()
    }

    fn place(&self, id: &uuid::Uuid) -> Option<usize> {
        self.cover.drives().find(|at| self.cover.drives[*at].info().id == *id)
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
                            self.report.leave(format!("{part} was on {} alone, and is lost: drop {} and ingest it again", self.cover.name(at), record.name));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// What a blank drive has of a partition already.
    async fn there(&self, at: usize, partition: &PartitionName) -> Result<HashSet<(u32, u64, u32)>> {
        let prefix = format!("{};", partition.key()?);
        let (mut there, mut after): (_, Option<Key>) = (HashSet::new(), None);
        loop {
            let page = self.cover.ask(at, "list what it has", self.cover.drives[at].list(&prefix, after.as_ref(), PAGE)).await?;
            let last = page.len() < PAGE;
            after = page.last().map(|entry| entry.key.clone());
            there.extend(page.iter().filter_map(|entry| Some((PartitionName::parse(&entry.key)?.1?, entry.len, entry.crc32c))));
            if last {
                return Ok(there);
            }
        }
    }

    /// Slices and parities of a table from the rest of their groups, and what its blank drives have of metadata and code map.
    async fn coded(&mut self, record: &Arc<RootRecord>, title: &str, table: &TableRecord, redundancy: &RedundancyRecord) -> Result<()> {
        let partition = record.partition(title, 0);
        let map = self.cover.map(&partition).await?.ok_or_else(|| Error::unavailable(format!("the code map of {} {title} is not to be had", record.name)))?;
        let places: Vec<Option<usize>> = map.drives.iter().map(|id| self.place(id)).collect();
        let mut present: BTreeMap<(Role, u32), HashSet<(u32, u64, u32)>> = BTreeMap::new();
        let mut wanted: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (group, members) in map.map.iter().enumerate() {
            for (at, shard) in members.all().iter().enumerate() {
                let Some(to) = places.get(shard.drive as usize).copied().flatten().filter(|to| self.blank.contains(to)) else { continue };
                let role = role(at, members.data.len());
                if let std::collections::btree_map::Entry::Vacant(entry) = present.entry((role, shard.home)) {
                    let of = if role == Role::Data { PartitionName { slot: shard.home, ..partition.clone() } } else { parity_of(&partition, shard.home) };
                    entry.insert(self.there(to, &of).await?);
                }
                let there = present.get(&(role, shard.home)).is_some_and(|there| there.contains(&(shard.number, shard.len, shard.crc32c)));
                if there {
                    self.report.kept += 1;
                    self.progress.done = (self.progress.done + shard.len).min(self.progress.total);
                } else {
                    wanted.entry(group as u32).or_default().push(at);
                }
            }
        }
        drop(present);
        let states: Vec<Drive> =
            places.iter().map(|at| if at.is_some_and(|at| !self.cover.presence.is_lost(at)) { Drive::Here } else { Drive::Lost }).collect();
        let places_wanted: Vec<Place> =
            wanted.iter().flat_map(|(group, shards)| shards.iter().map(|shard| Place { group: *group, shard: *shard as u32 })).collect();
        let plan = reads(&map.map, &states, &places_wanted)?;
        for group in &plan.beyond {
            let members = map.map.group(*group as usize);
            for at in wanted.get(group).into_iter().flatten() {
                if let Some((members, shard)) = members.and_then(|members| Some((members, members.all().get(*at)?))) {
                    let key = shard_key(&partition, shard, role(*at, members.data.len()))?;
                    self.report.leave(format!("{key} can't be made of its group: too many of its shards are lost"));
                }
            }
        }
        self.report.bytes_least += plan.read.iter().sum::<u64>();
        let cover = Arc::clone(self.cover);
        let of = |(group, chosen): (u32, Vec<u32>)| {
            let (cover, map, partition, places) = (Arc::clone(&cover), Arc::clone(&map), partition.clone(), wanted.get(&group).cloned().unwrap_or_default());
            async move {
                let made = cover.regroup(&partition, &map, group, &places, &chosen).await;
                (group, places, made)
            }
        };
        let mut making = stream::iter(plan.groups).map(of).buffered(GROUPS);
        while let Some((group, shards, made)) = making.next().await {
            let Some(members) = map.map.group(group as usize) else { continue };
            let (values, read) = match made {
                Ok(made) => made,
                // It may have been replaced just now, or there is damage that nothing covers.
                Err(e) if self.is_still(record).await? => {
                    for at in shards {
                        let key = members.all().get(at).map(|shard| shard_key(&partition, shard, role(at, members.data.len()))).transpose()?;
                        self.report.leave(format!("{}: {}", key.map_or_else(String::new, |key| key.as_str().to_owned()), e.full_text()));
                    }
                    continue;
                }
                Err(_) => return Ok(()),
            };
            self.report.bytes_read += read;
            self.report.groups += 1;
            self.pace.passed(read).await;
            for (at, value) in shards.into_iter().zip(values) {
                let Some(shard) = members.all().get(at) else { continue };
                let Some(to) = places.get(shard.drive as usize).copied().flatten() else { continue };
                let key = shard_key(&partition, shard, role(at, members.data.len()))?;
                self.report.rebuilt += 1;
                self.put(to, key, value).await?;
            }
        }
        drop(making);
        // What lies under the partitions' own keys comes last: with it a partition is whole.
        for p in &table.partitions {
            let key = record.partition(title, p.slot).key()?;
            self.own(record, &key, redundancy.holders(p.slot), &|bytes| Metadata::decode(bytes).map(drop)).await?;
        }
        self.own(record, &parity_of(&partition, 0).key()?, redundancy.holders(0), &|bytes| StoredMap::decode(bytes).map(drop)).await
    }

    async fn is_still(&self, record: &RootRecord) -> Result<bool> {
        match self.host.catalog().read(&record.name).await {
            Ok((now, _)) => Ok(now.generation == record.generation),
            Err(e) if e.kind() == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What lies under the key of a partition itself, for those blank drives among the holders that don't have it.
    async fn own(
        &mut self,
        record: &RootRecord,
        key: &Key,
        holders: impl Iterator<Item = uuid::Uuid>,
        fits: &(dyn Fn(&Bytes) -> Result<()> + Send + Sync),
    ) -> Result<()> {
        let holders: Vec<usize> = holders.filter_map(|id| self.place(&id)).collect();
        let mut to = Vec::new();
        for at in holders.iter().copied().filter(|at| self.blank.contains(at)) {
            let there = self.cover.ask(at, "look a value up", self.cover.drives[at].stat(key)).await?;
            if there.is_none() { to.push(at) } else { self.report.kept += 1 }
        }
        if to.is_empty() {
            return Ok(());
        }
        let mut trouble = Vec::new();
        for at in holders.into_iter().filter(|at| !self.blank.contains(at) && !self.cover.presence.is_lost(*at)) {
            let read = self.cover.ask(at, "read a copy", self.cover.drives[at].get(key)).await;
            match read.and_then(|bytes| fits(&bytes).map(|()| bytes)) {
                Ok(bytes) => {
                    self.report.bytes_read += bytes.len() as u64;
                    self.report.bytes_least += bytes.len() as u64;
                    for at in to {
                        self.report.rebuilt += 1;
                        self.put(at, key.clone(), bytes.clone()).await?;
                    }
                    return Ok(());
                }
                Err(e) => trouble.push(e.full_text()),
            }
        }
        if self.is_still(record).await? {
            self.report.leave(format!("no copy of {key} is to be had: {}", trouble.join("; ")));
        }
        Ok(())
    }

    /// A table that every drive has.
    async fn everywhere(&mut self, record: &RootRecord, title: &str, table: &TableRecord) -> Result<()> {
        let holders: Vec<(usize, u32)> = table.partitions.iter().filter_map(|p| Some((self.place(&p.drive)?, p.slot))).collect();
        let to: Vec<(usize, u32)> = holders.iter().copied().filter(|(at, _)| self.blank.contains(at)).collect();
        let from: Vec<usize> = holders.iter().map(|(at, _)| *at).filter(|at| !self.blank.contains(at) && !self.cover.presence.is_lost(*at)).collect();
        for (at, slot) in to {
            let partition = record.partition(title, slot);
            let there = self.there(at, &partition).await?;
            let mut trouble = Vec::new();
            let mut metadata = None;
            for other in &from {
                let read = self.cover.ask(*other, "read a copy", self.cover.drives[*other].get(&partition.key()?)).await;
                match read.and_then(|bytes| Ok((Metadata::decode(&bytes)?, bytes))) {
                    Ok(found) => {
                        metadata = Some(found);
                        break;
                    }
                    Err(e) => trouble.push(e.full_text()),
                }
            }
            let Some((metadata, bytes)) = metadata else {
                if self.is_still(record).await? {
                    self.report.leave(format!("no copy of {} is to be had: {}", partition.key()?, trouble.join("; ")));
                }
                continue;
            };
            for (n, slice) in metadata.slices.iter().enumerate() {
                let n = u32::try_from(n).map_err(|_| Error::corrupt("a partition has too many slices"))?;
                if there.contains(&(n, slice.len, slice.crc32c)) {
                    self.report.kept += 1;
                    continue;
                }
                let key = partition.slice_key(n)?;
                let mut found = None;
                // So that all drives have about as much to read.
                for turn in 0..from.len() {
                    let other = from[(turn + n as usize) % from.len()];
                    match self.cover.ask(other, "read a copy", self.cover.drives[other].get(&key)).await {
                        Ok(value) if is(&value, slice.len, slice.crc32c) => {
                            found = Some(value);
                            break;
                        }
                        _ => {}
                    }
                }
                match found {
                    Some(value) => {
                        let read = value.len() as u64;
                        self.report.bytes_read += read;
                        self.report.bytes_least += read;
                        self.report.rebuilt += 1;
                        self.pace.passed(read).await;
                        self.put(at, key, value).await?;
                    }
                    None if self.is_still(record).await? => self.report.leave(format!("no whole copy of {key} is to be had")),
                    None => return Ok(()),
                }
            }
            self.report.bytes_read += bytes.len() as u64;
            self.report.bytes_least += bytes.len() as u64;
            self.put(at, partition.key()?, bytes).await?;
        }
        Ok(())
    }

    /// A value goes to a blank drive, with others.
    async fn put(&mut self, at: usize, key: Key, value: Bytes) -> Result<()> {
        let batch = self.batches.entry(at).or_default();
        batch.bytes += value.len();
        let expected = Expected { len: value.len() as u64, crc32c: skytether_common::checksum::crc32c(&value) };
        batch.items.push(Item { key: key.clone(), expected: Some(expected), summed: None });
        // Only repairs write there.
        batch.ops.push(Op::Put { key, value, expect: Expect::Any });
        if batch.bytes >= BATCH || batch.ops.len() >= OPS { self.send(at).await } else { Ok(()) }
    }

    /// Sends what waits for a drive, and has it verified there.
    async fn send(&mut self, at: usize) -> Result<()> {
        let Some(Batch { ops, items, bytes }) = self.batches.remove(&at) else { return Ok(()) };
        let name = self.cover.name(at).to_owned();
        self.cover
            .ask(at, "take what was rebuilt", self.cover.drives[at].apply(ops))
            .await
            .map_err(|e| e.while_doing(format!("{name} could not take what was rebuilt")))?;
        let verified = self.cover.verify(at, Verify { items, ..Verify::default() }).await?;
        if !verified.found.is_empty() {
            return Err(Error::corrupt(format!("{name} can't give {} of the values that it took just now: is its disk broken?", verified.found.len())));
        }
        self.report.bytes_written += bytes as u64;
        self.progress.done = (self.progress.done + bytes as u64).min(self.progress.total);
        (self.tell)(&self.progress);
        Ok(())
    }

    async fn send_all(&mut self) -> Result<()> {
        for at in self.blank.clone() {
            self.send(at).await?;
        }
        Ok(())
    }

    /// Takes a generation that was replaced meanwhile off the blank drives again.
    async fn tidy(&self, record: &RootRecord) -> Result<()> {
        self.tidy_generation(&record.name, record.generation).await
    }

    async fn tidy_generation(&self, name: &DatasetName, generation: Generation) -> Result<()> {
        let catalog = self.host.catalog();
        match catalog.read(name).await {
            Ok((now, _)) if now.generation == generation => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == Kind::NotFound => {}
            Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => return Ok(()),
            Err(e) => return Err(e),
        }
        for at in &self.blank {
            let mut after = None;
            let prefix = format!("{}{:016x}.", name.prefix(), generation.0);
            loop {
                let page = self.cover.ask(*at, "list old slices", self.cover.drives[*at].list(&prefix, after.as_ref(), OPS)).await?;
                let last = page.len() < OPS;
                after = page.last().map(|entry| entry.key.clone());
                let ops: Vec<Op> = page.into_iter().map(|entry| Op::Delete { key: entry.key, expect: Expect::Any }).collect();
                if !ops.is_empty() {
                    self.cover.ask(*at, "delete old slices", self.cover.drives[*at].apply(ops)).await?;
                }
                if last {
                    break;
                }
            }
        }
        Ok(())
    }
}
