//! Reconstructs slices from the other shards of their groups, and keeps some of them within a bound.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use parking_lot::{Mutex, MutexGuard};
use quick_cache::sync::Cache;
use skytether_common::checksum::crc32c;
use skytether_common::{Detail, Error, Key, Kind, PartitionName, Result};
use skytether_device::Cse;
use skytether_erasure::code;
use skytether_erasure::map::{Role, Shard};
use skytether_runtime::threads::Threads;

use crate::fallback::Fallback;
use crate::prefetch::Prefetcher;
use crate::read_sharing::Shared;
use crate::shard::{ParitySource, Reconstructed, ReconstructedRanges, Wanted, parts, role, within_shard};
use crate::value_cache::Values;
use skytether_catalog::health::DriveHealth;
use skytether_catalog::records::code_map::{Level, Part, StoredMap, parity_of};
use skytether_runtime::AppendVec;
use skytether_runtime::within;

/// Threads that decode.
const THREADS: usize = 4;

/// Code maps that are kept.
const MAPS: usize = 64;

/// Damaged values that are remembered.
const MET: usize = 10_000;

/// Bytes of slices that are kept for a second reader, unless a quarter of the host's memory is less.
const SHARED: usize = 256 << 20;

/// How degraded reads work.
#[derive(Debug, Clone, Copy)]
pub struct RecoveryOptions {
    /// Bytes of memory of the whole host; caches take a part.
    pub memory: usize,
    /// The longest that a storage operation may take.
    pub deadline: Duration,
}

/// Shared by the drives of a host, which fail over to one another: reads and decodes their values.
pub struct Reconstructor {
    /// As they are, uncovered.
    pub drives: Arc<AppendVec<Arc<dyn Cse>>>,
    /// Which of them are up.
    pub health: Arc<DriveHealth>,
    pub(crate) deadline: Duration,
    threads: Threads,
    /// What runs sub-plans in the place of drives.
    pub(crate) fallback: Arc<dyn Fallback>,
    maps: Cache<Key, Option<Arc<StoredMap>>>,
    values: Mutex<Values>,
    /// An eighth of the host's memory: the bound on decoded slices that are kept, and on prefetched shards of each
    /// kind.
    pub(crate) room: usize,
    /// Values found damaged or missing on living drives, and not repaired since.
    met: Mutex<BTreeMap<Key, usize>>,
    /// Prefetched shards.
    pub(crate) ahead: Arc<Prefetcher>,
    /// Slices that both queries and decoding read.
    pub(crate) shared: Arc<Shared>,
    /// Held while drives are rebuilt.
    repairing: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Reconstructor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconstructor").field("drives", &self.drives.len()).finish_non_exhaustive()
    }
}

impl Reconstructor {
    /// Of these drives, by these options; `fallback` runs sub-plans in their place.
    pub fn new(drives: Vec<Arc<dyn Cse>>, health: Arc<DriveHealth>, options: RecoveryOptions, fallback: Arc<dyn Fallback>) -> Arc<Self> {
        Arc::new(Self {
            drives: Arc::new(AppendVec::new(drives)),
            health,
            deadline: options.deadline,
            threads: Threads::new(THREADS),
            fallback,
            maps: Cache::new(MAPS),
            values: Mutex::default(),
            room: options.memory / 8,
            met: Mutex::default(),
            ahead: Arc::default(),
            shared: Shared::new(SHARED.min(options.memory / 4)),
            repairing: tokio::sync::Mutex::default(),
        })
    }

    /// The numbers of the drives.
    pub fn drives(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.drives.len()
    }

    /// The name of drive `at`, `?` where there is none.
    pub fn name(&self, at: usize) -> &str {
        self.drives.get(at).map_or("?", |drive| drive.info().name.as_str())
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock()
    }

    /// Asks drive `at`; that it does not answer is remembered.
    pub async fn ask<T>(&self, at: usize, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let asked = within(self.deadline, self.name(at), what, work).await;
        if let Err(e) = &asked
            && e.kind() == Kind::Unavailable
            && self.health.is_redundant()
            && self.health.mark_down(at, &e.report())
        {
            tracing::warn!("{} is taken for lost: {e}", self.name(at));
        }
        asked
    }

    /// As [`Self::map`], if it is cached.
    pub(crate) fn known_map(&self, partition: &PartitionName) -> Option<Option<Arc<StoredMap>>> {
        let key = parity_of(&Part::parse(partition).1, 0).key().ok()?;
        self.maps.get(&key)
    }

    /// The code map of the table that `partition` is a part of, data or parities; `None` where it has none.
    pub async fn map(&self, partition: &PartitionName) -> Result<Option<Arc<StoredMap>>> {
        let key = parity_of(&Part::parse(partition).1, 0).key()?;
        // The first caller looks it up; others wait.
        let place = match self.maps.get_value_or_guard_async(&key).await {
            Ok(known) => return Ok(known),
            Err(place) => place,
        };
        let here = self.health.up();
        let asked = join_all(here.iter().map(|at| self.ask(*at, "look for a code map", self.drives[*at].stat(&key)))).await;
        let mut trouble = None;
        let mut found = None;
        for (at, entry) in here.into_iter().zip(asked) {
            let read = match entry {
                Ok(None) => continue,
                Ok(Some(_)) => self.ask(at, "read a code map", self.drives[at].get(&key)).await.and_then(|bytes| StoredMap::decode(&bytes)),
                Err(e) => Err(e),
            };
            match read {
                Ok(map) => {
                    found = Some(Arc::new(map));
                    break;
                }
                Err(e) => trouble = Some(e.context(format!("{} could not give the code map {key}", self.name(at)))),
            }
        }
        if let (None, Some(trouble)) = (&found, trouble) {
            return Err(trouble);
        }
        // The lost drive may be the one that has it.
        if found.is_none() && !self.health.down().is_empty() {
            return Ok(None);
        }
        // Unless another was remembered meanwhile.
        let _ = place.insert(found.clone());
        Ok(found)
    }

    /// The lock for rebuilds; `None` if another rebuild holds it.
    pub fn repairing(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.repairing.try_lock().ok()
    }

    /// The value of `key` at drive `at` could not be had; whether that is news.
    pub(crate) fn met(&self, key: &Key, at: usize) -> bool {
        let mut met = self.met.lock();
        met.len() < MET && met.insert(key.clone(), at).is_none()
    }

    /// The value under `key` is right again.
    pub fn forget(&self, key: &Key) {
        self.met.lock().remove(key);
    }

    /// The number of values of drive `at` that were found damaged and not repaired since.
    pub fn damaged(&self, at: usize) -> u64 {
        self.met.lock().values().filter(|of| **of == at).count() as u64
    }

    /// Knows the code map under `key` from now on.
    pub fn remember(&self, key: &Key, map: &Arc<StoredMap>) {
        self.maps.insert(key.clone(), Some(Arc::clone(map)));
    }

    /// Runs decoding on the decoding threads.
    pub async fn decoding<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.threads.run(work).await
    }

    /// Checks that drive `at` is not lost.
    ///
    /// # Errors
    /// Unavailable, saying why it is.
    pub(crate) fn is_here(&self, at: usize) -> Result<()> {
        if self.health.is_down(at) { Err(Error::unavailable(self.lost(at))) } else { Ok(()) }
    }

    /// What to say of a drive that is lost.
    pub(crate) fn lost(&self, at: usize) -> String {
        format!("{} is lost ({})", self.name(at), self.health.down_reason(at).unwrap_or_default())
    }

    /// Slice `number` of `partition` under `key`, from the other shards of its group in `map`. Callers that ask at the
    /// same time share the work; only the first one gets the number of bytes read.
    ///
    /// # Errors
    /// `NotFound` where the map has no such slice; Unavailable where too few of the others can be read, naming them.
    pub(crate) async fn decode(self: &Arc<Self>, key: &Key, partition: &PartitionName, number: u32, map: &Arc<StoredMap>) -> Result<Reconstructed> {
        let cell = Arc::clone(self.values().known.entry(key.clone()).or_default());
        if let Some(made) = cell.get() {
            return Ok(Reconstructed { value: made.value.clone(), read: 0, within: made.within });
        }
        let mut own = false;
        let made = cell.get_or_try_init(|| async {
            own = true;
            self.look_ahead(partition, number, map);
            self.decode_now(key, partition, number, map).await
        });
        let made = made.await;
        let mut values = self.values();
        let made = match made {
            Ok(made) => made.clone(),
            Err(e) => {
                values.known.remove(key);
                return Err(e);
            }
        };
        if !own {
            return Ok(Reconstructed { read: 0, ..made });
        }
        values.keep(key, made.value.len(), self.room);
        Ok(made)
    }

    async fn decode_now(&self, key: &Key, partition: &PartitionName, number: u32, map: &Arc<StoredMap>) -> Result<Reconstructed> {
        let ReconstructedRanges { mut parts, read, within } = self.gather(key, partition, number, map, None).await?;
        Ok(Reconstructed { value: parts.pop().unwrap_or_default(), read, within })
    }

    /// Parts of slice `number` of `partition`, and the number of bytes read for them: the same parts of other shards,
    /// and no more. The bytes are not verified.
    ///
    /// # Errors
    /// As [`Self::decode`]; Invalid for ranges that are not within the slice.
    pub(crate) async fn decode_parts(
        self: &Arc<Self>,
        key: &Key,
        partition: &PartitionName,
        number: u32,
        map: &Arc<StoredMap>,
        ranges: &[Range<u64>],
    ) -> Result<ReconstructedRanges> {
        let known = self.values().known.get(key).and_then(|cell| cell.get().cloned());
        if let Some(made) = known {
            return Ok(ReconstructedRanges { parts: parts(key, &made.value, ranges)?, read: 0, within: made.within });
        }
        // Where most of it is wanted, the rest costs little, and the whole can be prefetched.
        let wanted: u64 = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        let (part, _) = Part::parse(partition);
        let whole = Level::all(map).into_iter().find_map(|level| Some(level.map().shard(level.find(part, partition.slot, number)?)?.len));
        if whole.is_some_and(|whole| wanted <= whole && wanted > whole / 4 * 3) {
            let made = self.decode(key, partition, number, map).await?;
            return Ok(ReconstructedRanges { parts: parts(key, &made.value, ranges)?, read: made.read, within: made.within });
        }
        self.gather(key, partition, number, map, Some(ranges)).await
    }

    /// The whole slice, verified, or parts of it: within its node where that is possible, otherwise across nodes.
    async fn gather(
        &self,
        key: &Key,
        partition: &PartitionName,
        number: u32,
        map: &Arc<StoredMap>,
        ranges: Option<&[Range<u64>]>,
    ) -> Result<ReconstructedRanges> {
        let (part, table) = Part::parse(partition);
        let mut trouble: Option<Error> = None;
        for level in Level::all(map) {
            let Some(place) = level.find(part, partition.slot, number) else { continue };
            // A shard that is in groups of one level only may use all reconstruction of the other level.
            let ways: &[ParitySource] = match (level.is_one_of_two(), level.is_within(), part) {
                (false, ..) => &[ParitySource::None],
                (true, true, Part::Inner) => &[ParitySource::None, ParitySource::GlobalGroup],
                (true, true, _) => &[ParitySource::None],
                (true, false, _) => &[ParitySource::LocalGroup],
            };
            for or in ways {
                match self.gather_at(&Wanted { level: &level, table: &table, place, ranges, or: *or }).await {
                    Ok((parts, read)) => return Ok(ReconstructedRanges { parts, read, within: level.is_within() && *or == ParitySource::None }),
                    Err(e) if e.kind() == Kind::Invalid => return Err(e),
                    Err(e) => {
                        trouble = Some(match trouble.take() {
                            Some(first) => e.context(first.report()),
                            None => e,
                        });
                    }
                }
            }
        }
        Err(trouble.unwrap_or_else(|| Error::not_found(format!("{key} is in no code group")).with_detail(Detail::missing_key(key))))
    }

    /// A shard from as many others of its group on one level as it takes, and how many bytes were read.
    ///
    /// # Errors
    /// As [`Self::decode_parts`].
    pub(crate) async fn gather_at(&self, wanted: &Wanted<'_>) -> Result<(Vec<Bytes>, u64)> {
        let Wanted { level, table, place, ranges, or } = wanted;
        let map = level.map();
        let members = map.group(place.group as usize).ok_or_else(|| Error::internal("a code map has lost a group"))?;
        let expected = *map.shard(*place).ok_or_else(|| Error::internal("a code map has lost a shard"))?;
        let own = place.shard as usize;
        let key = level.key(table, &expected, role(own, members.data.len()))?;
        let longest = members.parity.first().map_or(expected.len, |parity| parity.len);
        // Places of whole blocks, which is what the code works on.
        let blocks = |range: &Range<u64>| {
            let block = code::BLOCK as u64;
            (range.start <= range.end && range.end <= expected.len).then(|| range.start / block * block..range.end.next_multiple_of(block).min(longest))
        };
        let aligned: Option<Vec<Range<u64>>> = match ranges {
            None => None,
            Some(ranges) => {
                let wrong = || Error::invalid(format!("a range of {key} is not within its {} bytes", expected.len));
                Some(ranges.iter().map(|range| blocks(range).ok_or_else(wrong)).collect::<Result<_>>()?)
            }
        };
        let mut shards: Vec<Option<Vec<Bytes>>> = vec![None; members.all().len()];
        let mut trouble = Vec::new();
        // Groups begin with different shards, so that all drives have about as much to read. Shards on living drives
        // come first.
        let mut others: Vec<usize> = (0..shards.len()).map(|at| (at + place.group as usize) % shards.len()).filter(|at| *at != own).collect();
        if *or != ParitySource::None {
            others.sort_by_key(|at| self.at(level, &members.all()[*at]).is_none_or(|at| self.health.is_down(at)));
        }
        let (need, mut next) = (members.data.len(), others.into_iter());
        let mut reading = FuturesUnordered::new();
        let (mut have, mut read) = (0, 0u64);
        loop {
            while have + reading.len() < need
                && let Some(at) = next.next()
            {
                let (shard, aligned) = (members.all()[at], aligned.as_deref());
                reading.push(async move { (at, self.shard_or(level, table, shard, role(at, need), aligned, *or).await) });
            }
            match reading.next().await {
                Some((at, Ok((parts, bytes)))) => {
                    have += 1;
                    read += bytes;
                    shards[at] = Some(parts);
                }
                Some((_, Err(e))) => trouble.push(e.report()),
                None => break,
            }
        }
        drop(reading);
        if have < need {
            trouble.sort();
            let of = match (level.is_one_of_two(), level.is_within()) {
                (false, _) => "its group",
                (true, true) => "its group within its node",
                (true, false) => "its group across nodes",
            };
            return Err(Error::unavailable(format!(
                "{key} can't be decoded: of {of} of {} shards {have} are to be had, and {need} are needed; bring back one of the drives: {}",
                members.all().len(),
                trouble.join("; ")
            )));
        }
        let code = map.code();
        let decoding: Box<dyn FnOnce() -> Result<Vec<Bytes>> + Send> = match (aligned, ranges) {
            (Some(aligned), Some(ranges)) => {
                let (lens, ranges) = (members.data.iter().map(|shard| shard.len).collect::<Vec<_>>(), ranges.to_vec());
                Box::new(move || {
                    let part = |(n, (blocks, range)): (usize, (&Range<u64>, &Range<u64>))| {
                        let lens: Vec<usize> = lens.iter().map(|len| within_shard(blocks, *len)).map(|of| (of.end - of.start) as usize).collect();
                        let shards: Vec<Option<&[u8]>> = shards.iter().map(|parts| parts.as_ref()?.get(n).map(AsRef::as_ref)).collect();
                        let whole = code::decode(code, &lens, &shards, &[own])?.pop().unwrap_or_default();
                        let from = (range.start - blocks.start) as usize;
                        Ok(whole.slice(from..from + (range.end - range.start) as usize))
                    };
                    aligned.iter().zip(&ranges).enumerate().map(part).collect()
                })
            }
            _ => {
                let lens = members.lens();
                Box::new(move || {
                    let shards: Vec<Option<&[u8]>> = shards.iter().map(|parts| parts.as_ref()?.first().map(AsRef::as_ref)).collect();
                    let value = code::decode(code, &lens, &shards, &[own])?.pop().unwrap_or_default();
                    let right = value.len() as u64 == expected.len && crc32c(&value) == expected.crc32c;
                    if right { Ok(vec![value]) } else { Err(Error::corrupt("it is not what was stored")) }
                })
            }
        };
        let values = self.threads.run(decoding).await.map_err(|e| e.context(format!("{key} can't be decoded")))?;
        Ok((values, read))
    }

    /// A shard of a group, whole and verified, or parts of it: from its drive, or made as `or` says; and
    /// how many bytes were read.
    pub(crate) fn shard_or<'a>(
        &'a self,
        level: &'a Level,
        table: &'a PartitionName,
        shard: Shard,
        role: Role,
        blocks: Option<&'a [Range<u64>]>,
        or: ParitySource,
    ) -> BoxFuture<'a, Result<(Vec<Bytes>, u64)>> {
        async move {
            let error = match self.shard(level, table, &shard, role, blocks).await {
                Ok(parts) => {
                    let read = parts.iter().map(|part| part.len() as u64).sum();
                    return Ok((parts, read));
                }
                Err(e) => e,
            };
            self.instead(level, table, &shard, role, blocks, or, error).await
        }
        .boxed()
    }

    /// A shard that its drive can't give, which says `error`, made as `or` says.
    #[expect(clippy::too_many_arguments, reason = "what a shard is, and why it is made")]
    async fn instead(
        &self,
        level: &Level,
        table: &PartitionName,
        shard: &Shard,
        role: Role,
        blocks: Option<&[Range<u64>]>,
        or: ParitySource,
        error: Error,
    ) -> Result<(Vec<Bytes>, u64)> {
        let (other, then) = match or {
            ParitySource::None => return Err(error),
            ParitySource::LocalGroup => (Level::within(&level.stored), ParitySource::None),
            ParitySource::GlobalGroup => (Some(Level::across(&level.stored)), ParitySource::LocalGroup),
        };
        let (part, slot) = level.part(shard, role);
        let Some((other, place)) = other.and_then(|other| other.find(part, slot, shard.number).map(|place| (other, place))) else { return Err(error) };
        let own: Option<Vec<Range<u64>>> = blocks.map(|blocks| blocks.iter().map(|range| within_shard(range, shard.len)).collect());
        let wanted = Wanted { level: &other, table, place, ranges: own.as_deref(), or: then };
        self.gather_at(&wanted).await.map_err(|e| e.context(error.report()))
    }

    /// The place, among the host's drives, of that of a shard.
    pub fn at(&self, level: &Level, shard: &Shard) -> Option<usize> {
        let id = level.stored.drives.get(shard.drive as usize)?;
        self.drives.iter().position(|drive| drive.info().id == *id)
    }

    /// A shard of a group from its drive: whole and verified, or what it has of some parts.
    pub async fn shard(&self, level: &Level, table: &PartitionName, shard: &Shard, role: Role, blocks: Option<&[Range<u64>]>) -> Result<Vec<Bytes>> {
        let id = level.stored.drives.get(shard.drive as usize).ok_or_else(|| Error::corrupt("a code map names a drive that it does not count"))?;
        let Some(at) = self.at(level, shard) else {
            return Err(Error::unavailable(format!("drive {id} is not among this host's drives")));
        };
        self.is_here(at)?;
        let (key, drive) = (level.key(table, shard, role)?, &self.drives[at]);
        let could_not = |e: Error| e.context(format!("{} could not give {key}", self.name(at)));
        if let Some(blocks) = blocks {
            let own: Vec<Range<u64>> = blocks.iter().map(|range| within_shard(range, shard.len)).collect();
            if own.iter().all(Range::is_empty) {
                return Ok(vec![Bytes::new(); own.len()]);
            }
            let read = self.ask(at, "read parts of a shard", drive.get_ranges_unverified(&key, &own)).await.map_err(could_not)?;
            let right = read.len() == own.len() && read.iter().zip(&own).all(|(bytes, range)| bytes.len() as u64 == range.end - range.start);
            return if right { Ok(read) } else { Err(Error::corrupt(format!("{} gave other parts of {key} than were asked for", self.name(at)))) };
        }
        let bytes = match self.ahead.take(at, &key).await {
            Some(bytes) => bytes,
            None => {
                // It may be lost since, which is why it did not come.
                self.is_here(at)?;
                self.shared.expect(at, &key).await;
                self.for_decoding(at, &key).await.map_err(could_not)?
            }
        };
        if bytes.len() as u64 != shard.len || crc32c(&bytes) != shard.crc32c {
            return Err(Error::corrupt(format!("{} gave another {key} than its group was made of", self.name(at))));
        }
        Ok(vec![bytes])
    }
}
