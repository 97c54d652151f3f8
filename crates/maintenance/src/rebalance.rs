//! Moves data sets to other drives. Each becomes a new generation of the same content; most values stay on their drive.
//!
//! The root record makes the new generation visible by one compare-and-set. Until then the old generation is whole. A
//! crash leaves garbage of either generation, which the next open deletes, as it does for an ingest. A drive links a
//! slice that stays on it under the new key, without a copy. A slice that moves passes through this process, which
//! verifies it; at most `READS` slices move at a time.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::{self, StreamExt};
use skytether_common::{Context, DatasetName, Error, Generation, Key, Kind, PartitionName, Result};
use skytether_device::verify::Pace;
use skytether_partitioning::Placement;
use skytether_store::{Expect, Op, Version};

use crate::kept_again::make_again;
use crate::rebalance_plan::{Job, Planner, TablePlan};
use crate::retention::Replaced;
use skytether_api::resize_report::ResizeReport;
use skytether_api::scrub_report::Progress;
use skytether_catalog::fencing::is_refusal;
use skytether_catalog::records::bounds::Bounds;
use skytether_catalog::records::code_map::{RedundancyRecord, parity_of};
use skytether_catalog::records::partition::PartitionRecord;
use skytether_catalog::records::root::{RootRecord, TableRecord};
use skytether_catalog::root_store::Catalog;
use skytether_cluster::cluster::Cluster;
use skytether_recovery::repair_io::is;

/// Slices that are read at the same time.
const READS: usize = 8;

/// Bytes that go to a drive at a time.
const BATCH: usize = 8 << 20;

/// Changes that go to a drive at a time.
const OPS: usize = 256;

/// Links that are made at a time: each batch flushes the directories of all its files.
const LINKS: usize = 2048;

/// Passes over data sets that change meanwhile.
const PASSES: usize = 16;

/// A move of data sets that is under way.
pub(crate) struct Mover<'a> {
    cluster: &'a Cluster,
    leaving: BTreeSet<usize>,
    tell: &'a (dyn Fn(&Progress) + Send + Sync),
    pub(crate) report: ResizeReport,
    progress: Progress,
    pace: Pace,
    /// Bytes on each drive, by the root records.
    loads: Vec<u64>,
    /// Bytes of each data set that stay where they are because keys say so.
    pinned: BTreeMap<DatasetName, u64>,
    replaced: Replaced<'a>,
}

/// The outcome for one data set.
enum MoveOutcome {
    /// All is where it should be.
    Nothing,
    /// It was moved.
    Moved,
    /// Another writer replaced or dropped the data set meanwhile.
    Another,
    /// The data set can't be moved, and stays where it is.
    Left,
}

/// A new generation. Dropped before it is settled, it is deleted again.
struct PendingGeneration {
    catalog: Catalog,
    name: DatasetName,
    generation: Generation,
    settled: bool,
}

impl PendingGeneration {
    /// Deletes what was written. Where a drive rejects the deletion, a background task tries once more.
    async fn undo(mut self) {
        self.settled = self.catalog.delete_generation(&self.name, self.generation).await.is_ok();
    }
}

impl Drop for PendingGeneration {
    fn drop(&mut self) {
        if !self.settled {
            let (catalog, name, generation) = (self.catalog.clone(), self.name.clone(), self.generation);
            // Outside of a runtime no task can be spawned. The next open of the fleet deletes the generation.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move {
                    if let Err(e) = catalog.delete_generation(&name, generation).await {
                        tracing::debug!("{e}");
                    }
                });
            }
        }
    }
}

impl<'a> Mover<'a> {
    pub(crate) fn new(cluster: &'a Cluster, leaving: BTreeSet<usize>, bytes_per_s: Option<u64>, tell: &'a (dyn Fn(&Progress) + Send + Sync)) -> Self {
        let (report, progress) = (ResizeReport::default(), Progress::default());
        Self {
            cluster,
            leaving,
            tell,
            report,
            progress,
            pace: Pace::new(bytes_per_s),
            loads: Vec::new(),
            pinned: BTreeMap::new(),
            replaced: Replaced::new(cluster),
        }
    }

    /// Bytes on each drive, by all root records that can be read.
    pub(crate) async fn loads(&self) -> Result<Vec<u64>> {
        let catalog = self.cluster.catalog();
        let mut loads = vec![0; catalog.drives().len()];
        for name in catalog.names().await? {
            match catalog.read(&name).await {
                Ok((record, _)) => self.count(&record, &mut loads, true),
                Err(e) if matches!(e.kind(), Kind::NotFound | Kind::Corrupt | Kind::Unsupported) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(loads)
    }

    fn count(&self, record: &RootRecord, loads: &mut [u64], more: bool) {
        record.tables.values().for_each(|table| self.count_table(table, loads, more));
    }

    fn count_table(&self, table: &TableRecord, loads: &mut [u64], more: bool) {
        for p in table.partitions.iter().chain(table.redundancy.iter().flat_map(RedundancyRecord::partitions)) {
            if let Some(load) = self.cluster.drives().iter().position(|drive| drive.info().id == p.drive).and_then(|at| loads.get_mut(at)) {
                *load = if more { load.saturating_add(p.bytes) } else { load.saturating_sub(p.bytes) };
            }
        }
    }

    /// Moves what has to move of all data sets. Dropping the future stops it; the next call continues with the data
    /// sets that this one did not reach.
    ///
    /// # Errors
    /// `Unavailable`; errors of the drives. A data set that can't be moved is no error: the report names it.
    pub(crate) async fn all(&mut self) -> Result<()> {
        let catalog = self.cluster.catalog();
        self.loads = self.loads().await?;
        let mut done: BTreeMap<DatasetName, Generation> = BTreeMap::new();
        let mut moved: BTreeSet<DatasetName> = BTreeSet::new();
        for pass in 0.. {
            let mut todo = Vec::new();
            for name in catalog.names().await? {
                match catalog.read(&name).await {
                    Ok((record, _)) if done.get(&name) != Some(&record.generation) => todo.push(name),
                    Ok(_) => {}
                    Err(e) if e.kind() == Kind::NotFound => {}
                    Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::Unsupported) => {
                        if pass == 0 {
                            self.report.left.push(format!("{name}: {}", e.report()));
                        }
                    }
                    Err(e) => return Err(e),
                }
            }
            if todo.is_empty() {
                break;
            }
            if pass == PASSES {
                self.report.left.push(format!("{} data sets change all the time: balance once more when there is less to do", todo.len()));
                break;
            }
            for name in todo {
                self.progress.what = name.to_string();
                (self.tell)(&self.progress);
                let record = match catalog.read(&name).await {
                    Ok((record, _)) => record,
                    Err(e) if e.kind() == Kind::NotFound => continue,
                    Err(e) => return Err(e),
                };
                match self.dataset(&record).await? {
                    MoveOutcome::Nothing | MoveOutcome::Left => drop(done.insert(name, record.generation)),
                    MoveOutcome::Moved => {
                        moved.insert(name.clone());
                        if let Ok((now, _)) = catalog.read(&name).await
                            && now.written() == record.written()
                        {
                            done.insert(name, now.generation);
                        }
                    }
                    MoveOutcome::Another => {}
                }
                self.replaced.tidy(false).await?;
            }
        }
        self.report.datasets = moved.len() as u64;
        self.report.pinned = self.pinned.values().sum();
        self.replaced.tidy(true).await?;
        self.progress.done = self.progress.total;
        (self.tell)(&self.progress);
        Ok(())
    }

    /// Whether a part of the data set is on a lost drive that leaves, and nowhere else.
    fn lost_part(&self, record: &RootRecord) -> Option<String> {
        let health = self.cluster.catalog().health();
        let lost = |p: &PartitionRecord| {
            let drive = self.cluster.drives().iter().enumerate().find(|(_, drive)| drive.info().id == p.drive);
            drive.filter(|(at, _)| health.is_down(*at)).map(|(_, drive)| drive.info().name.clone())
        };
        for (title, table) in record.tables.iter().filter(|(_, table)| table.redundancy.is_none()) {
            let drives: Vec<String> = table.partitions.iter().filter_map(lost).collect();
            let of = match table.placement {
                Placement::Spread if !drives.is_empty() => "a part of ",
                // Each of its partitions is a copy.
                Placement::Everywhere if !drives.is_empty() && drives.len() == table.partitions.len() => "",
                _ => continue,
            };
            return Some(format!("{of}{} {title} was on {} alone, and is lost: drop {0} and ingest it again", record.name, drives.join(", ")));
        }
        None
    }

    async fn dataset(&mut self, record: &RootRecord) -> Result<MoveOutcome> {
        if let Some(lost) = self.lost_part(record) {
            self.report.left.push(lost);
            return Ok(MoveOutcome::Left);
        }
        let next = self.cluster.options().ids.generation();
        let plans = match self.plan(record, next).await {
            Ok(plans) => plans,
            Err(_) if !self.is_still(record).await? => return Ok(MoveOutcome::Another),
            Err(e) if matches!(e.kind(), Kind::Exhausted | Kind::Unsupported | Kind::Corrupt) => {
                self.report.left.push(e.report());
                return Ok(MoveOutcome::Left);
            }
            Err(e) => return Err(e),
        };
        let pinned = record.tables.values().filter(|table| table.partitioned_by.is_some());
        let parities = |table: &TableRecord| table.redundancy.iter().flat_map(RedundancyRecord::partitions).map(|p| p.bytes).sum::<u64>();
        self.pinned.insert(record.name.clone(), pinned.map(|table| table.partitions.iter().map(|p| p.bytes).sum::<u64>() + parities(table)).sum());
        self.report.longest = self.report.longest.max(plans.iter().map(|plan| plan.longest).max().unwrap_or(0));
        if !plans.iter().any(|plan| plan.changed) {
            return Ok(MoveOutcome::Nothing);
        }
        self.report.bytes_least += plans.iter().map(|plan| plan.least).sum::<u64>();
        let catalog = self.cluster.catalog();
        let mut unsettled = PendingGeneration { catalog: catalog.clone(), name: record.name.clone(), generation: next, settled: false };
        self.progress.total += plans.iter().map(TablePlan::moving).sum::<u64>();
        let mut tables = BTreeMap::new();
        for plan in plans {
            let table = record.table(&plan.title)?;
            match self.carry_out(table, &plan, record, next).await {
                Ok(now) => drop(tables.insert(plan.title, now)),
                // The data set may have been replaced just now, and its slices deleted.
                Err(_) if !self.is_still(record).await? => {
                    unsettled.undo().await;
                    return Ok(MoveOutcome::Another);
                }
                // A slice is damaged or missing. The other data sets move all the same.
                Err(e) if matches!(e.kind(), Kind::Corrupt | Kind::NotFound) => {
                    unsettled.undo().await;
                    self.report.left.push(e.context(format!("{} could not be moved", record.name)).report());
                    return Ok(MoveOutcome::Left);
                }
                Err(e) => {
                    unsettled.undo().await;
                    return Err(e.context(format!("{} could not be moved", record.name)));
                }
            }
        }
        let mut now = RootRecord { generation: next, content: Some(record.written()), tables, superseded: Vec::new(), ..record.clone() };
        now.set_format();
        let (version, before) = match self.ready(record, &mut now).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                unsettled.undo().await;
                return Ok(MoveOutcome::Another);
            }
            Err(e) => {
                unsettled.undo().await;
                return Err(e.context(format!("{} could not be moved", record.name)));
            }
        };
        // From here on the root record may name the new generation: the reply may be lost, and the caller may stop
        // waiting. If no record names it, the next open deletes it.
        unsettled.settled = true;
        if !self.commit(&now, version, before).await? {
            unsettled.undo().await;
            return Ok(MoveOutcome::Another);
        }
        let mut loads = std::mem::take(&mut self.loads);
        self.count(record, &mut loads, false);
        self.count(&now, &mut loads, true);
        self.loads = loads;
        if let Err(e) = self.cluster.catalog().define_indexes(&now).await {
            // The drives learn of the indexes when a client lists them or the fleet is opened.
            tracing::warn!("drives were not told of the indexes of {}: {e}", record.name);
        }
        let made = make_again(self.cluster, record, &now).await;
        tracing::debug!("{made} kept results of {} were made again", now.name);
        self.replaced.push(record.clone());
        Ok(MoveOutcome::Moved)
    }

    async fn is_still(&self, record: &RootRecord) -> Result<bool> {
        match self.cluster.catalog().read(&record.name).await {
            Ok((now, _)) => Ok(now.generation == record.generation),
            Err(e) if e.kind() == Kind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    async fn plan(&mut self, record: &RootRecord, next: Generation) -> Result<Vec<TablePlan>> {
        let targets: Vec<usize> = self.cluster.catalog().health().up().into_iter().filter(|at| !self.leaving.contains(at)).collect();
        let domains = self.cluster.catalog().health().failure_domains();
        let planner = Planner { cluster: self.cluster, targets: &targets, leaving: &self.leaving, domains: domains.as_deref() };
        let mut others = self.loads.clone();
        let mut plans = Vec::with_capacity(record.tables.len());
        for (title, table) in &record.tables {
            // Bytes of everything but this table. The tables before it count where they will be.
            self.count_table(table, &mut others, false);
            let plan = planner.table(record, title, table, next, &others).await?;
            for job in &plan.jobs {
                if let Some(load) = others.get_mut(job.to) {
                    *load += job.len;
                }
            }
            plans.push(plan);
        }
        Ok(plans)
    }

    /// Checks whether `now` may replace `before`. Gives the version and the change number of the stored record, if that
    /// is still `before`. Copies the indexes of the stored record into `now`.
    ///
    /// # Errors
    /// `Unavailable` where a drive that gets a part does not answer: the old generation stays whole.
    async fn ready(&self, before: &RootRecord, now: &mut RootRecord) -> Result<Option<(Version, u64)>> {
        let catalog = self.cluster.catalog();
        catalog.look_around().await?;
        let told = catalog.read_memberships(catalog.deadline()).await?;
        for (at, told) in told.into_iter().enumerate() {
            let info = self.cluster.drives()[at].info();
            if !now.names(&info.id) {
                continue;
            }
            let why = match told {
                _ if catalog.health().is_down(at) => catalog.health().down_reason(at).unwrap_or_default(),
                Ok(Some(_)) => continue,
                Ok(None) => "it is blank".to_owned(),
                Err(e) => e.report(),
            };
            return Err(Error::unavailable(format!("{} was lost meanwhile ({why}): what is there stays as it was", info.name)));
        }
        let (found, version) = match catalog.read_versioned(&before.name).await? {
            Some((found, version)) if found.generation == before.generation => (found, version),
            _ => return Ok(None),
        };
        // Indexes may have been made or dropped since the work began.
        (now.change, now.indexes) = (catalog.next_change(found.change), found.indexes);
        Ok(Some((version, found.change)))
    }

    /// Commits `now` by compare-and-set against `version`. Gives whether the commit happened.
    async fn commit(&self, now: &RootRecord, version: Version, before: u64) -> Result<bool> {
        let catalog = self.cluster.catalog();
        let Err(e) = catalog.commit(now, Expect::Version(version), Some(before)).await else { return Ok(true) };
        // The first home may have taken the record although the reply is lost. Once the others have it too, the old
        // generation is not needed.
        match catalog.read(&now.name).await {
            Ok((there, _)) if there.generation == now.generation => {
                let _turn = catalog.health().membership_lock().await;
                catalog.reconcile_root_copies(&now.name, &[]).await.map(|()| true).map_err(|_| e)
            }
            _ if e.kind() == Kind::Conflict && !is_refusal(&e) => Ok(false),
            _ => Err(e),
        }
    }

    /// Writes a table as planned; its record.
    async fn carry_out(&mut self, table: &TableRecord, plan: &TablePlan, record: &RootRecord, next: Generation) -> Result<TableRecord> {
        self.jobs(&plan.jobs).await?;
        let name = |slot: u32| PartitionName { dataset: record.name.clone(), generation: next, table: plan.title.clone(), slot };
        let mut partitions = Vec::with_capacity(plan.parts.len());
        for part in &plan.parts {
            let metadata = part.metadata.encode()?;
            let at: Vec<usize> = match table.placement {
                Placement::Everywhere => vec![part.at],
                Placement::Spread => plan.holders(part.slot),
            };
            for to in at {
                self.put(to, name(part.slot).key()?, &metadata).await?;
            }
            let slices = u32::try_from(part.metadata.slices.len()).map_err(|_| Error::exhausted("a partition would have too many slices"))?;
            let bytes = part.metadata.slices.iter().map(|slice| slice.len).sum::<u64>() + metadata.len() as u64;
            let drive = self.cluster.drives()[part.at].info().id;
            let bounds = if table.placement == Placement::Spread { Bounds::of(&part.metadata) } else { Bounds::default() };
            partitions.push(PartitionRecord { drive, slot: part.slot, rows: part.metadata.rows, slices, bytes, bounds });
        }
        let redundancy = match (&table.redundancy, &plan.stored) {
            (Some(before), Some(stored)) => {
                let map = stored.encode()?;
                for to in plan.holders(0) {
                    self.put(to, parity_of(&name(0), 0).key()?, &map).await?;
                }
                let nodes = stored.within.as_ref().map_or_else(Vec::new, |within| within.nodes.clone());
                Some(RedundancyRecord::new(before.scheme, stored.drives.clone(), nodes, &plan.parities, map.len() as u64))
            }
            _ => None,
        };
        Ok(TableRecord { generation: None, partitions, redundancy, ..table.clone() })
    }

    async fn put(&mut self, to: usize, key: Key, value: &Bytes) -> Result<()> {
        self.report.bytes_metadata += value.len() as u64;
        let put = Op::Put { key, value: value.clone(), expect: Expect::Any };
        let name = &self.cluster.drives()[to].info().name;
        self.cluster
            .catalog()
            .ask(to, "take metadata", self.cluster.drives()[to].apply(vec![put]))
            .await
            .map(drop)
            .context(|| format!("{name} could not take metadata"))
    }

    /// Links what stays where it is, and copies the rest.
    async fn jobs(&mut self, jobs: &[Job]) -> Result<()> {
        let health = self.cluster.catalog().health();
        let mut stay: BTreeMap<usize, Vec<Job>> = BTreeMap::new();
        let mut go: Vec<Job> = Vec::new();
        for job in jobs.iter().cloned() {
            if job.from == job.to && !health.is_down(job.from) { stay.entry(job.to).or_default().push(job) } else { go.push(job) }
        }
        // Each drive by itself, all at the same time.
        let linking: Vec<BoxFuture<'static, Result<(u64, Vec<Job>)>>> =
            stay.into_iter().map(|(at, jobs)| link(self.cluster.clone(), at, jobs).boxed()).collect();
        // All links end before the first error counts: a link that is made after the undo would stay.
        for linked in join_all(linking).await {
            let (linked, others) = linked?;
            self.report.linked += linked;
            go.extend(others);
        }
        self.copy(go).await
    }

    async fn copy(&mut self, jobs: Vec<Job>) -> Result<()> {
        let cluster = self.cluster.clone();
        let from = cluster.clone();
        let mut reading = stream::iter(jobs.into_iter().map(move |job| read(from.clone(), job).boxed())).buffered(READS);
        let mut batches: BTreeMap<usize, (Vec<Op>, usize)> = BTreeMap::new();
        while let Some(read) = reading.next().await {
            let (job, value) = read?;
            if job.from != job.to {
                self.report.moved += 1;
                self.report.bytes_moved += job.len;
                self.progress.done += job.len;
            }
            self.pace.passed(job.len).await;
            let (ops, bytes) = batches.entry(job.to).or_default();
            *bytes += value.len();
            ops.push(Op::Put { key: job.becomes.0.slice_key(job.becomes.1)?, value, expect: Expect::Any });
            if *bytes >= BATCH || ops.len() >= OPS {
                let (ops, _) = std::mem::take(batches.entry(job.to).or_default());
                send(&cluster, job.to, ops).await?;
                (self.tell)(&self.progress);
            }
        }
        for (to, (ops, _)) in batches {
            send(&cluster, to, ops).await?;
        }
        (self.tell)(&self.progress);
        Ok(())
    }
}

/// Links values at drive `at`. Gives the number of links, and the values to write instead: the drive can't link them,
/// or they are damaged there.
async fn link(cluster: Cluster, at: usize, jobs: Vec<Job>) -> Result<(u64, Vec<Job>)> {
    if !cluster.drives()[at].capabilities().link {
        return Ok((0, jobs));
    }
    let (mut linked, mut others) = (0, Vec::new());
    for some in jobs.chunks(LINKS) {
        let op = |job: &Job| {
            let (key, from) = (job.becomes.0.slice_key(job.becomes.1)?, job.was.0.slice_key(job.was.1)?);
            Ok(Op::Link { key, from, len: job.len, crc32c: job.crc32c, expect: Expect::Any })
        };
        let ops: Vec<Op> = some.iter().map(op).collect::<Result<_>>()?;
        match cluster.catalog().ask(at, "link what stays", cluster.drives()[at].apply(ops)).await {
            Ok(_) => linked += some.len() as u64,
            // An older program rejects a link as an invalid call.
            Err(e) if matches!(e.kind(), Kind::Unsupported | Kind::NotFound | Kind::Conflict | Kind::Corrupt | Kind::Invalid) => {
                others.extend(some.iter().cloned())
            }
            Err(e) => return Err(e.context(format!("{} could not link what stays there", cluster.drives()[at].info().name))),
        }
    }
    Ok((linked, others))
}

/// A value that moves to another drive, verified.
async fn read(cluster: Cluster, job: Job) -> Result<(Job, Bytes)> {
    let key = job.was.0.slice_key(job.was.1)?;
    // What the drive can't give is reconstructed from the rest of its code group, or read from a copy.
    let value = match cluster.catalog().ask(job.from, "read a slice", cluster.drives()[job.from].get(&key)).await {
        Err(e) if e.kind() == Kind::Unavailable && nobody_is_away(&cluster, job.from, &key).await => {
            return Err(Error::corrupt(format!(
                "{key} is damaged, as is too much of what it could be made of: drop {} and ingest it again",
                job.was.0.dataset
            ))
            .with_source(e));
        }
        read => read?,
    };
    if is(&value, job.len, job.crc32c) {
        return Ok((job, value));
    }
    Err(Error::corrupt(format!("{} has another value under {key} than it should: scrub {} first", cluster.drives()[job.from].info().name, job.was.0.dataset)))
}

/// Whether a missing value is missing for another reason than a drive that does not answer: all drives answer, except
/// those that leave for good.
async fn nobody_is_away(cluster: &Cluster, at: usize, key: &Key) -> bool {
    let health = cluster.catalog().health();
    let leaving = health.leaving();
    let answers = health.is_down(at)
        || !matches!(cluster.catalog().ask(at, "read a slice", cluster.catalog().bare(at).get(key)).await, Err(e) if e.kind() == Kind::Unavailable);
    answers && health.is_redundant() && health.down().iter().all(|lost| leaving.contains(lost))
}

async fn send(cluster: &Cluster, to: usize, ops: Vec<Op>) -> Result<()> {
    if ops.is_empty() {
        return Ok(());
    }
    let sent = cluster.catalog().ask(to, "take slices", cluster.drives()[to].apply(ops)).await;
    sent.map(drop).context(|| format!("{} could not take slices", cluster.drives()[to].info().name))
}
