//! Plans the new places of a table's parts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use skytether_common::{Context, Error, Generation, PartitionName, Result};
use skytether_erasure::map::{CodeMap, Role, Shard};
use skytether_partitioning::Placement;
use skytether_slice::Metadata;
use uuid::Uuid;

use crate::two_level_layout::{Housing, Piece, balanced};
use skytether_catalog::records::code_map::{Level, Part, StoredMap};
use skytether_catalog::records::failure_domains::FailureDomains;
use skytether_catalog::records::root::{RootRecord, TableRecord};
use skytether_cluster::cluster::Cluster;

/// Largest deviation of a drive's load from the mean, as a share.
pub(crate) const TOLERANCE: f64 = 0.05;

/// A value in the new generation, and its source.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// The drive that has it.
    pub(crate) from: usize,
    /// The drive that gets it, which may be the same.
    pub(crate) to: usize,
    /// Its old partition and number.
    pub(crate) was: (PartitionName, u32),
    /// Its new partition and number.
    pub(crate) becomes: (PartitionName, u32),
    pub(crate) len: u64,
    pub(crate) crc32c: u32,
}

/// A partition of the new generation.
#[derive(Debug)]
pub(crate) struct Partition {
    /// The drive that manages it.
    pub(crate) at: usize,
    pub(crate) slot: u32,
    pub(crate) metadata: Metadata,
}

/// A table of the new generation.
#[derive(Debug)]
pub(crate) struct TablePlan {
    pub(crate) title: String,
    /// Its drives, in order of their slots. For a table that is everywhere: the drives with a copy.
    pub(crate) drives: Vec<usize>,
    pub(crate) parts: Vec<Partition>,
    /// Its parities across drives or nodes, and those within nodes: their number on each of its drives, and their
    /// bytes.
    pub(crate) parities: [Vec<(u32, u64)>; 2],
    /// Its code map.
    pub(crate) stored: Option<StoredMap>,
    pub(crate) jobs: Vec<Job>,
    /// Whether any part changes its place.
    pub(crate) changed: bool,
    /// The least number of bytes that have to move.
    pub(crate) least: u64,
    /// The length of the longest unit that moves whole.
    pub(crate) longest: u64,
}

/// The input of all plans.
pub(crate) struct Planner<'a> {
    pub(crate) cluster: &'a Cluster,
    /// The drives that get data: members that are up and do not leave.
    pub(crate) targets: &'a [usize],
    pub(crate) leaving: &'a BTreeSet<usize>,
    /// The nodes of the drives, where the fleet has nodes.
    pub(crate) domains: Option<&'a FailureDomains>,
}

impl Planner<'_> {
    fn place(&self, id: &Uuid, record: &RootRecord) -> Result<usize> {
        self.cluster.catalog().drive(id, &record.name)
    }

    /// The metadata slice of a partition.
    async fn metadata(&self, at: usize, partition: &PartitionName) -> Result<Metadata> {
        let drive = &self.cluster.drives()[at];
        let bytes = self.cluster.catalog().ask(at, "read a metadata slice", drive.get(&partition.key()?)).await?;
        Metadata::decode(&bytes).context(|| {
            format!("{}: the metadata slice {} can't be read", drive.info().name, partition.key().map_or_else(|_| String::new(), |k| k.to_string()))
        })
    }

    /// Plans table `title` of `record` in generation `next`. `others` has the bytes of all else on the drives, by their
    /// places.
    ///
    /// # Errors
    /// `Exhausted` where too few drives would remain; `Unsupported` where the table needs a leaving drive; errors of
    /// the drives.
    pub(crate) async fn table(&self, record: &RootRecord, title: &str, table: &TableRecord, next: Generation, others: &[u64]) -> Result<TablePlan> {
        match table.placement {
            Placement::Everywhere => self.everywhere(record, title, table, next).await,
            Placement::Spread => self.spread(record, title, table, next, others).await,
        }
    }

    async fn everywhere(&self, record: &RootRecord, title: &str, table: &TableRecord, next: Generation) -> Result<TablePlan> {
        let mut have = Vec::with_capacity(table.partitions.len());
        for p in &table.partitions {
            have.push((self.place(&p.drive, record)?, p.slot));
        }
        let health = self.cluster.catalog().health();
        let mut drives: Vec<usize> = have.iter().map(|(at, _)| *at).filter(|at| !self.leaving.contains(at)).collect();
        drives.extend(self.targets.iter().filter(|at| !have.iter().any(|(have, _)| have == *at)));
        let from: Vec<(usize, u32)> = have.iter().copied().filter(|(at, _)| !health.is_down(*at)).collect();
        let (first, slot) = *from.first().ok_or_else(|| Error::unavailable(format!("no drive that is here has {} {title}", record.name)))?;
        let metadata = self.metadata(first, &record.partition(title, slot)).await?;
        let becomes = PartitionName { dataset: record.name.clone(), generation: next, table: title.to_owned(), slot: 0 };
        let (mut jobs, mut parts, mut least) = (Vec::new(), Vec::new(), 0);
        for to in &drives {
            let own = from.iter().find(|(at, _)| at == to);
            for (n, slice) in metadata.slices.iter().enumerate() {
                // All drives with a copy read about equally.
                let (from, slot) = own.copied().unwrap_or_else(|| from[n % from.len()]);
                least += if own.is_none() { slice.len } else { 0 };
                let n = u32::try_from(n).map_err(|_| Error::corrupt("a partition has too many slices"))?;
                jobs.push(Job { from, to: *to, was: (record.partition(title, slot), n), becomes: (becomes.clone(), n), len: slice.len, crc32c: slice.crc32c });
            }
            parts.push(Partition { at: *to, slot: 0, metadata: metadata.clone() });
        }
        let mut was: Vec<usize> = have.into_iter().map(|(at, _)| at).collect();
        let mut now = drives.clone();
        was.sort_unstable();
        now.sort_unstable();
        Ok(TablePlan { title: title.to_owned(), drives, parts, parities: Default::default(), stored: None, jobs, changed: was != now, least, longest: 0 })
    }

    async fn spread(&self, record: &RootRecord, title: &str, table: &TableRecord, next: Generation, others: &[u64]) -> Result<TablePlan> {
        let by_key = table.partitioned_by.is_some();
        // Its partitions, in order of their slots.
        let mut partitions: Vec<&skytether_catalog::records::partition::PartitionRecord> = table.partitions.iter().collect();
        partitions.sort_by_key(|p| p.slot);
        let mut old: Vec<usize> = Vec::with_capacity(partitions.len());
        let mut metas = Vec::with_capacity(partitions.len());
        for p in &partitions {
            let at = self.place(&p.drive, record)?;
            old.push(at);
            metas.push(self.metadata(at, &record.partition(title, p.slot)).await?);
        }
        let map = match &table.redundancy {
            None => None,
            Some(_) => {
                let map = self.cluster.reconstructor().map(&record.partition(title, 0)).await?;
                Some(map.ok_or_else(|| Error::unavailable(format!("the code map of {} {title} is not to be had", record.name)))?)
            }
        };
        let base: Vec<usize> = match &map {
            Some(map) => map.drives.iter().map(|id| self.place(id, record)).collect::<Result<_>>()?,
            None => old.clone(),
        };
        let housing = map.as_ref().and_then(|map| map.within.as_ref()).map(|within| self.housing(record, &base, within)).transpose()?;
        let drives = if by_key { self.instead(record, title, &base, housing.as_ref())? } else { self.more(&base, housing.as_ref()) };
        let nodes = housing.as_ref().map_or_else(|| Ok(Vec::new()), |housing| housing.enough(record, title, &drives))?;
        let ids: Vec<Uuid> = drives.iter().map(|at| self.cluster.drives()[*at].info().id).collect();
        let planned = Planned {
            record,
            title,
            next,
            partitions: &partitions,
            old: &old,
            metas: &metas,
            map: map.as_ref(),
            base: &base,
            drives: &drives,
            ids: &ids,
            nodes: &nodes,
        };
        let (now, least) = if by_key {
            (planned.substituted(), None)
        } else {
            let (pieces, locals) = (planned.pieces()?, planned.locals());
            let others: Vec<u64> = locals.iter().map(|at| others.get(*at).copied().unwrap_or(0)).collect();
            let on: Vec<u32> = locals.iter().map(|at| housing.as_ref().and_then(|housing| housing.number(*at)).unwrap_or(0)).collect();
            let placed = balanced(&pieces, drives.len(), &on, &others).map_err(|e| e.context(format!("{} {title} can't be moved", record.name)))?;
            (placed.0, Some(placed.1))
        };
        let mut plan = planned.laid_out(&now, by_key || table.matrix.is_some(), by_key)?;
        // Of a table that is partitioned by key, only values on leaving drives move.
        plan.least = least.unwrap_or_else(|| plan.moving());
        Ok(plan)
    }

    /// The drives of a table: its drives that stay, and all others; on two levels all others of its nodes.
    fn more(&self, base: &[usize], housing: Option<&Housing>) -> Vec<usize> {
        let mut drives: Vec<usize> = base.iter().copied().filter(|at| !self.leaving.contains(at)).collect();
        drives.extend(self.targets.iter().filter(|at| !base.contains(at) && housing.is_none_or(|housing| housing.number(**at).is_some())));
        drives
    }

    /// The drives of a table that is partitioned by key. A new drive replaces each leaving one, on the same node on two
    /// levels. So rows stay in their partitions.
    fn instead(&self, record: &RootRecord, title: &str, base: &[usize], housing: Option<&Housing>) -> Result<Vec<usize>> {
        let mut free: Vec<usize> = self.targets.iter().copied().filter(|at| !base.contains(at)).collect();
        let place = |at: &usize| {
            if !self.leaving.contains(at) {
                return Ok(*at);
            }
            let fits = free.iter().position(|other| housing.is_none_or(|housing| housing.number(*other) == housing.number(*at)));
            fits.map(|n| free.remove(n)).ok_or_else(|| {
                Error::unsupported(format!(
                    "{} {title} is partitioned by key over {} drives, and which row is where follows from their number: add a drive{} before one of them is retired, or drop it, and ingest it again afterwards",
                    record.name,
                    base.len(),
                    if housing.is_some() { " on the same node, or on one that takes its place," } else { "" }
                ))
            })
        };
        base.iter().map(place).collect()
    }
}

/// A spread table that is being planned. Drives have the numbers of `drives`; leaving drives follow.
pub(crate) struct Planned<'a> {
    pub(crate) record: &'a RootRecord,
    pub(crate) title: &'a str,
    next: Generation,
    partitions: &'a [&'a skytether_catalog::records::partition::PartitionRecord],
    /// The drives of the partitions.
    old: &'a [usize],
    metas: &'a [Metadata],
    map: Option<&'a Arc<StoredMap>>,
    /// The drives of the code map, or of the partitions.
    base: &'a [usize],
    pub(crate) drives: &'a [usize],
    /// Their ids.
    pub(crate) ids: &'a [Uuid],
    /// On two levels, the nodes of `drives`.
    pub(crate) nodes: &'a [u32],
}

impl Planned<'_> {
    fn gone(&self) -> Vec<usize> {
        let mut gone: Vec<usize> = self.base.iter().chain(self.old).copied().filter(|at| !self.drives.contains(at)).collect();
        gone.sort_unstable();
        gone.dedup();
        gone
    }

    fn locals(&self) -> Vec<usize> {
        self.drives.iter().copied().chain(self.gone()).collect()
    }

    /// The stripes of all partitions in order, and the parities of all groups, each with its place. Parities across
    /// drives or nodes come before those within nodes.
    fn pieces(&self) -> Result<Vec<Piece>> {
        let locals = self.locals();
        let local: HashMap<usize, u32> = locals.iter().zip(0..).map(|(at, n)| (*at, n)).collect();
        let at = |drive: usize| local.get(&drive).copied().ok_or_else(|| Error::internal("a drive of a table is not among its drives"));
        // On two levels every part stays on its node, so only groups within nodes restrict places.
        let level = self.map.map(|map| Level::within(map).unwrap_or_else(|| Level::across(map)));
        let group = |part: Part, slot: u32, number: u32| {
            let place = level.as_ref().and_then(|level| level.find(part, slot, number));
            place.map(|place| place.group).ok_or_else(|| Error::corrupt(format!("a value of {} {} is in no code group", self.record.name, self.title)))
        };
        let mut pieces = Vec::new();
        for ((p, old), meta) in self.partitions.iter().zip(self.old).zip(self.metas) {
            for stripe in 0..meta.stripes() {
                let numbers = meta.slice_of(stripe, 0)..meta.slice_of(stripe, meta.groups.len());
                let len = meta.slices.get(numbers.clone()).unwrap_or_default().iter().map(|slice| slice.len).sum();
                let mut groups = Vec::new();
                if self.map.is_some() {
                    for n in numbers {
                        let n = u32::try_from(n).map_err(|_| Error::corrupt("a partition has too many slices"))?;
                        groups.push(group(Part::Slice, p.slot, n)?);
                    }
                }
                pieces.push(Piece { role: Role::Data, at: at(*old)?, len, groups });
            }
        }
        let Some(stored) = self.map else { return Ok(pieces) };
        let outer = stored.map.iter().flat_map(|members| members.parity).map(|shard| (Part::Parity, shard));
        let inner = stored.within.iter().flat_map(|within| within.map.iter()).flat_map(|members| members.parity).map(|shard| (Part::Inner, shard));
        for (part, shard) in outer.chain(inner) {
            pieces.push(Piece { role: Role::Parity, at: at(self.on(shard)?)?, len: shard.len, groups: vec![group(part, shard.home, shard.number)?] });
        }
        Ok(pieces)
    }

    /// The drive of a shard.
    pub(crate) fn on(&self, shard: &Shard) -> Result<usize> {
        self.base.get(shard.drive as usize).copied().ok_or_else(|| Error::corrupt("a code map names a drive that it does not count"))
    }

    /// Keeps every part in its place; a part on a leaving drive goes to the replacement.
    fn substituted(&self) -> Vec<u32> {
        let place = |drive: usize| {
            let own = self.drives.iter().position(|at| *at == drive);
            own.or_else(|| self.base.iter().position(|at| *at == drive)).unwrap_or(0) as u32
        };
        let data = self.old.iter().zip(self.metas).flat_map(|(old, meta)| std::iter::repeat_n(place(*old), meta.stripes()));
        let maps = self.map.iter().flat_map(|map| [Some(&map.map), map.within.as_ref().map(|within| &within.map)]).flatten();
        let shards = maps.flat_map(CodeMap::iter).flat_map(|members| members.parity);
        let parity = shards.map(|shard| place(self.base.get(shard.drive as usize).copied().unwrap_or(usize::MAX)));
        data.chain(parity).collect()
    }

    /// Lays out the table with its units at the places `now`. With `whole`, partitions stay in order, as they are.
    /// Otherwise stripes keep the order of the ingest as far as possible.
    fn laid_out(&self, now: &[u32], whole: bool, by_key: bool) -> Result<TablePlan> {
        let mut now = now.iter().copied();
        let mut next_place = || now.next().ok_or_else(|| Error::internal("a part of a table has no place"));
        // A leaving drive changes the table even if only the code map names it.
        let mut changed = !self.gone().is_empty();
        // By drive: partition and stripe.
        let mut stripes: Vec<Vec<(usize, usize)>> = vec![Vec::new(); self.drives.len()];
        for (p, meta) in self.metas.iter().enumerate() {
            for stripe in 0..meta.stripes() {
                let to = next_place()? as usize;
                changed |= self.drives.get(to) != Some(&self.old[p]);
                stripes.get_mut(to).ok_or_else(|| Error::internal("a stripe is to lie on no drive"))?.push((p, stripe));
            }
        }
        let (mut jobs, mut parts, mut longest) = (Vec::new(), Vec::new(), 0);
        // The new slot and number of each slice, by the old partition and number.
        let mut named: HashMap<(u32, u32), (u32, u32)> = HashMap::new();
        for (slot, (at, mut stripes)) in self.drives.iter().zip(stripes).enumerate() {
            if !whole {
                stripes.sort_by_key(|(p, stripe)| (*stripe, *p));
            }
            // A slot without stripes has no partition. There are two exceptions: the first, which has the schema, and
            // partitions by key, which sub-plans name.
            if stripes.is_empty() && slot > 0 && !by_key {
                continue;
            }
            let slot = slot as u32;
            let metadata = Metadata::gather(self.metas, &stripes)?;
            let becomes = self.name(slot);
            let mut number = 0u32;
            for (p, stripe) in stripes {
                let (meta, was) = (&self.metas[p], self.partitions[p].slot);
                let mut len = 0;
                for n in meta.slice_of(stripe, 0)..meta.slice_of(stripe, meta.groups.len()) {
                    let slice = meta.slices.get(n).ok_or_else(|| Error::corrupt("a partition lacks a slice that it counts"))?;
                    let n = u32::try_from(n).map_err(|_| Error::corrupt("a partition has too many slices"))?;
                    let (was_in, becomes) = (self.record.partition(self.title, was), becomes.clone());
                    jobs.push(Job { from: self.old[p], to: *at, was: (was_in, n), becomes: (becomes, number), len: slice.len, crc32c: slice.crc32c });
                    named.insert((was, n), (slot, number));
                    number = number.checked_add(1).ok_or_else(|| Error::exhausted("a partition would have too many slices"))?;
                    len += slice.len;
                }
                longest = longest.max(len);
            }
            parts.push(Partition { at: *at, slot, metadata });
        }
        let (mut parities, mut stored) = (Default::default(), None);
        if let Some(map) = self.map {
            let coded = self.coded(map, &named, next_place)?;
            changed |= coded.changed;
            longest = longest.max(coded.longest);
            jobs.extend(coded.jobs);
            (parities, stored) = (coded.parities, Some(coded.stored));
        }
        let title = self.title.to_owned();
        Ok(TablePlan { title, drives: self.drives.to_vec(), parts, parities, stored, jobs, changed, least: 0, longest })
    }

    pub(crate) fn name(&self, slot: u32) -> PartitionName {
        PartitionName { dataset: self.record.name.clone(), generation: self.next, table: self.title.to_owned(), slot }
    }
}

impl TablePlan {
    /// Bytes that go to other drives.
    pub(crate) fn moving(&self) -> u64 {
        self.jobs.iter().filter(|job| job.from != job.to).map(|job| job.len).sum()
    }

    /// The drives that hold the metadata slice of partition `slot`.
    pub(crate) fn holders(&self, slot: u32) -> Vec<usize> {
        let places = self.stored.as_ref().map_or_else(|| vec![slot as usize], |stored| stored.holders(slot));
        places.into_iter().filter_map(|place| self.drives.get(place).copied()).collect()
    }
}
