//! A merge: shards first, then the records that name them, then the shards that no record names any more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use skytether_catalog::rendezvous::rendezvous_order;
use skytether_catalog::volume_records::Changed;
use skytether_common::{Error, Key, Kind, Result};
use skytether_store::{Expect, Op, Version};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use uuid::Uuid;

use crate::backing::FleetBacking;
use crate::keys;
use crate::layout::{ExtentRecord, Shape};

/// How often those who wait for writes look.
const LOOK: Duration = Duration::from_millis(10);

/// Changes of one batch to a drive.
pub(crate) const OPS: usize = 256;

/// Bytes and shards of one batch to a drive.
const BATCH: (usize, usize) = (8 << 20, OPS);

/// An extent with its shards, and the drives that are to have them.
pub(crate) struct Placed {
    /// Of its record.
    pub(crate) key: Key,
    extent: Bytes,
    pub(crate) record: ExtentRecord,
    shards: Vec<(usize, Bytes)>,
}

impl Placed {
    /// An extent whose shards the drives have by links.
    pub(crate) fn linked(key: Key, record: ExtentRecord) -> Self {
        Self { key, extent: Bytes::new(), record, shards: Vec::new() }
    }
}

/// One change of a batch: as the record is changed.
struct Change {
    /// Its place in the batch.
    at: usize,
    key: Key,
    /// Whether it is an extent.
    extent: bool,
    op: Op,
}

impl FleetBacking {
    /// Carries out a batch. What it changes of one volume is one step; extents that it puts are durable before.
    pub(crate) async fn write(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.catalog.look_again();
        self.catalog.await_presence().await?;
        let mut changes = Vec::with_capacity(batch.len());
        let (mut puts, mut links) = (Vec::new(), Vec::new());
        for (at, op) in batch.into_iter().enumerate() {
            let (key, extent) = (keys::record_key(op.key())?, keys::is_extent(op.key()));
            let op = match op {
                Op::Put { value, expect, .. } if extent => {
                    puts.push((key.clone(), value));
                    // The record comes when its shards are stored.
                    Op::Put { key: key.clone(), value: Bytes::new(), expect }
                }
                Op::Put { value, expect, .. } => Op::Put { key: key.clone(), value, expect },
                Op::Delete { expect, .. } => Op::Delete { key: key.clone(), expect },
                Op::Check { expect, .. } => Op::Check { key: key.clone(), expect },
                Op::Link { from, expect, .. } if extent && keys::is_extent(&from) => {
                    links.push((key.clone(), keys::record_key(&from)?));
                    Op::Put { key: key.clone(), value: Bytes::new(), expect }
                }
                Op::Link { .. } => return Err(Error::internal(format!("{key} is to be linked, and is no extent"))),
            };
            changes.push(Change { at, key, extent, op });
        }
        let mut placed = self.store(puts).await?;
        match self.link(links).await {
            Ok(linked) => placed.extend(linked),
            Err(error) => {
                self.discard(&placed).await;
                return Err(error);
            }
        }
        let done = self.commit(changes, &placed).await;
        self.over(&placed, done.as_ref().err());
        done
    }

    /// The change of records that were to name these generations is over, perhaps with an error. Where its outcome is
    /// unknown, a record may yet name them: they are no garbage until it is changed again.
    pub(crate) fn over(&self, placed: &[Placed], error: Option<&Error>) {
        match error {
            Some(error) if !matches!(error.kind(), Kind::Conflict | Kind::Exhausted) => {
                placed.iter().for_each(|placed| self.catalog.health().leave_generation_open(&placed.key, placed.record.generation));
            }
            _ => self.written(placed),
        }
    }

    /// These generations are no longer being written.
    pub(crate) fn written(&self, placed: &[Placed]) {
        placed.iter().for_each(|placed| self.catalog.health().end_generation(placed.record.generation));
    }

    /// Changes the records, of each group as one step, and deletes the shards that these named before.
    async fn commit(&self, changes: Vec<Change>, placed: &[Placed]) -> Result<Vec<Version>> {
        let records: BTreeMap<&Key, &ExtentRecord> = placed.iter().map(|placed| (&placed.key, &placed.record)).collect();
        let mut versions = vec![0; changes.len()];
        let mut groups: Vec<(String, Vec<Change>)> = Vec::new();
        for change in changes {
            let group: String = change.key.as_str().splitn(3, '/').take(2).collect::<Vec<_>>().join("/");
            match groups.iter_mut().find(|(other, _)| *other == group) {
                Some((_, changes)) => changes.push(change),
                None => groups.push((group, vec![change])),
            }
        }
        for (_, changes) in groups {
            let (mut ops, mut open) = (Vec::with_capacity(changes.len() + 1), Vec::with_capacity(changes.len()));
            for change in &changes {
                open.push(self.catalog.health().open_generations(&change.key));
                ops.push(match (&change.op, records.get(&change.key)) {
                    (Op::Put { key, expect, .. }, Some(record)) if change.extent => Op::Put { key: key.clone(), value: record.encode()?, expect: *expect },
                    (op, _) => op.clone(),
                });
                // Until it is known what the drives have.
                self.forget(&change.key);
            }
            let mut settles = false;
            if let Some(extent) = changes.iter().find(|change| change.extent) {
                let (turn, is_new) = self.turn(&extent.key)?;
                settles = is_new;
                ops.push(turn);
            }
            let done = self.catalog.commit_records(ops).await;
            if done.is_err() {
                // What a reader found meanwhile may be older than what a change with an unknown outcome made.
                changes.iter().for_each(|change| self.forget(&change.key));
            }
            let done = match done {
                Err(error) if matches!(error.kind(), Kind::Conflict | Kind::Exhausted) => {
                    // Nothing was changed. Where the outcome is unknown, the next process deletes what no record names.
                    let keys: BTreeSet<&Key> = changes.iter().map(|change| &change.key).collect();
                    let unused = placed.iter().filter(|placed| keys.contains(&placed.key)).map(|placed| (placed.key.clone(), placed.record.clone()));
                    self.delete_shards(&unused.collect::<Vec<_>>()).await;
                    return Err(error);
                }
                done => done?,
            };
            let mut old = Vec::new();
            for ((change, open), Changed { change: version, before }) in changes.iter().zip(open).zip(done) {
                versions[change.at] = version;
                if !change.extent || matches!(change.op, Op::Check { .. }) {
                    continue;
                }
                // The record has another version now, or the turn record has: no earlier change can be made any more.
                if version > 0 || before.is_some() || settles {
                    self.catalog.health().close_generations(&change.key, &open);
                }
                if let Some(before) = before {
                    // One that can't be read leaves its shards to the next opening.
                    old.extend(ExtentRecord::decode(change.key.as_str(), &before.body).ok().map(|before| (change.key.clone(), before)));
                }
                if let Some(record) = records.get(&change.key) {
                    self.keep(&change.key, Arc::new((*record).clone()));
                }
            }
            self.delete_shards(&old).await;
        }
        Ok(versions)
    }

    /// Stores extents as shards of new generations, on drives that take them. A drive that fails is done without, where
    /// the fleet may lose it. The caller must call [`FleetBacking::written`] once their records are committed.
    pub(crate) async fn store(&self, extents: Vec<(Key, Bytes)>) -> Result<Vec<Placed>> {
        let (mut done, mut todo) = (Vec::new(), extents);
        while !todo.is_empty() {
            let mut placed = Vec::with_capacity(todo.len());
            for (key, extent) in todo {
                match self.place_extent(key, extent).await {
                    Ok(one) => placed.push(one),
                    Err(error) => {
                        // No record will name them. Those of this turn are on no drive yet.
                        self.discard(&done).await;
                        self.written(&placed);
                        return Err(error);
                    }
                }
            }
            let failed = self.put_shards(&placed).await;
            let (bad, good): (Vec<Placed>, Vec<Placed>) = placed.into_iter().partition(|placed| placed.shards.iter().any(|(at, _)| failed.contains_key(at)));
            done.extend(good);
            // First, so that drives which gave no answer are not asked once more.
            let lost = self.lose(failed, "could not take parts of volumes");
            // Also those that came to their drives: all shards of an extent have the same generation.
            self.discard(&bad).await;
            if let Err(error) = lost {
                self.discard(&done).await;
                return Err(error);
            }
            todo = bad.into_iter().map(|placed| (placed.key, placed.extent)).collect();
        }
        Ok(done)
    }

    /// Takes drives that failed for lost, where the fleet may lose them: the first error of another kind.
    pub(crate) fn lose(&self, failed: BTreeMap<usize, Error>, what: &str) -> Result<()> {
        let mut lost = Ok(());
        for (at, error) in failed {
            let error = error.context(format!("{} {what}", self.drive_name(at)));
            lost = lost.and(self.catalog.may_lose(at, error));
        }
        lost
    }

    /// The drives for the shards of an extent, once its generation is begun. A drive that is to leave the fleet gets
    /// none from when it is marked so: its marking comes before the look at begun generations ([`Self::await_merges`]).
    async fn place_extent(&self, key: Key, extent: Bytes) -> Result<Placed> {
        loop {
            let placed = self.try_place_extent(key.clone(), extent.clone()).await?;
            if placed.shards.iter().all(|(at, _)| !self.catalog.health().is_leaving(*at) && !self.catalog.health().is_outside(*at)) {
                return Ok(placed);
            }
            self.catalog.health().end_generation(placed.record.generation);
        }
    }

    /// Waits until the extents that this process is writing are committed or given up, for `patience`. Drives that
    /// were marked as leaving before get no part of later ones.
    ///
    /// # Errors
    /// `Unavailable` where some are not: a change whose outcome is unknown never is.
    pub async fn await_merges(&self, patience: Duration) -> Result<()> {
        let begun = self.catalog.health().generations();
        let until = Instant::now() + patience;
        while begun.iter().any(|generation| self.catalog.health().is_writing(*generation)) {
            if Instant::now() >= until {
                return Err(Error::unavailable("volumes are being written that may have parts on drives which are to leave: try again, or restart the host"));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// The drives for the shards of an extent: those that rendezvous hashing gives its key.
    async fn try_place_extent(&self, key: Key, extent: Bytes) -> Result<Placed> {
        let writable = self.catalog.health().writable();
        let shape = Shape::of(self.scheme, extent.len(), writable.len())?;
        let ids: Vec<Uuid> = writable.iter().map(|at| self.catalog.drives()[*at].info().id).collect();
        let order = rendezvous_order(key.as_str(), ids.iter());
        let drives: Vec<Uuid> = order.iter().take(shape.shards()).map(|at| ids[*at]).collect();
        let generation = Uuid::new_v4().as_u64_pair().0;
        let encode = move || {
            let shards = shape.encode(&extent)?;
            let record = ExtentRecord::new(generation, &extent, shape, &shards, &drives);
            Ok::<_, Error>((extent, record, shards))
        };
        let (extent, record, shards) = spawn_blocking(encode).await.map_err(|e| Error::internal("an extent was not encoded").with_source(e))??;
        let shards = order.into_iter().map(|at| writable[at]).zip(shards).collect();
        // Before any drive has a part of it. An extent that could not be encoded begins none.
        self.catalog.health().begin_generation(generation);
        Ok(Placed { key, extent, record, shards })
    }

    /// Sends shards to their drives; what failed at which.
    async fn put_shards(&self, placed: &[Placed]) -> BTreeMap<usize, Error> {
        let mut each: BTreeMap<usize, Vec<(&Placed, &Bytes)>> = BTreeMap::new();
        for placed in placed {
            for (at, shard) in &placed.shards {
                each.entry(*at).or_default().push((placed, shard));
            }
        }
        let send = |(at, shards): (usize, Vec<(&Placed, &Bytes)>)| {
            let mut batches: Vec<(usize, Vec<Op>)> = Vec::new();
            let mut wrong = None;
            for (placed, shard) in shards {
                match keys::shard(&placed.key, placed.record.generation) {
                    Ok(key) => {
                        let put = Op::Put { key, value: shard.clone(), expect: Expect::Any };
                        match batches.last_mut() {
                            Some((bytes, batch)) if *bytes + shard.len() <= BATCH.0 && batch.len() < BATCH.1 => {
                                *bytes += shard.len();
                                batch.push(put);
                            }
                            _ => batches.push((shard.len(), vec![put])),
                        }
                    }
                    Err(error) => wrong = Some(error),
                }
            }
            async move {
                if let Some(error) = wrong {
                    return Some((at, error));
                }
                for (_, batch) in batches {
                    if let Err(error) = self.catalog.ask(at, "take parts of volumes", self.catalog.bare(at).apply(batch)).await {
                        return Some((at, error));
                    }
                }
                None
            }
        };
        join_all(each.into_iter().map(send)).await.into_iter().flatten().collect()
    }

    /// Deletes the shards of extents whose records were not committed.
    pub(crate) async fn discard(&self, placed: &[Placed]) {
        let named: Vec<_> = placed.iter().map(|placed| (placed.key.clone(), placed.record.clone())).collect();
        self.delete_shards(&named).await;
        self.written(placed);
    }

    /// Deletes shards that no record names any more. What a drive does not delete, a later opening collects.
    pub(crate) async fn delete_shards(&self, named: &[(Key, ExtentRecord)]) {
        let mut each: BTreeMap<usize, Vec<Op>> = BTreeMap::new();
        for (key, record) in named {
            let Ok(key) = keys::shard(key, record.generation) else { continue };
            for at in record.shards.iter().filter_map(|shard| self.place(&shard.drive)) {
                if !self.catalog.health().is_down(at) && !self.catalog.health().is_outside(at) {
                    each.entry(at).or_default().push(Op::Delete { key: key.clone(), expect: Expect::Any });
                }
            }
        }
        let delete = |(at, ops): (usize, Vec<Op>)| async move {
            for batch in ops.chunks(BATCH.1) {
                if let Err(error) = self.catalog.ask(at, "delete parts of volumes", self.catalog.bare(at).apply(batch.to_vec())).await {
                    tracing::debug!(drive = self.drive_name(at), error = error.report(), "old parts of volumes stay until volumes are opened again");
                    return;
                }
            }
        };
        join_all(each.into_iter().map(delete)).await;
    }
}
