//! Slices from the other shards of their groups, and a bounded memory of those.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use datafusion::execution::memory_pool::MemoryPool;
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Key, Kind, PartitionName, Result};
use skytether_engine::threads::Threads;
use skytether_redundancy::code;
use skytether_redundancy::map::{Role, Shard};
use skytether_wire::Cse;
use tokio::sync::OnceCell;

use super::presence::Presence;
use super::stored::{StoredMap, data_of, parity_of};
use crate::catalog::within;
use crate::growing::Growing;

/// Threads that decode.
const THREADS: usize = 4;

/// Threads that wait for what is read and decoded. They are others: who waits must not keep those from working who are waited for.
const WAITING: usize = 16;

/// Code maps that are kept.
const MAPS: usize = 64;

/// Damaged values that are remembered.
const MET: usize = 10_000;

/// Bytes of decoded slices that are kept.
const VALUES: usize = 64 << 20;

/// A value, and the bytes that were read to make it if it had to be made.
#[derive(Debug, Clone)]
pub(super) struct Made {
    pub(super) value: Bytes,
    pub(super) read: u64,
}

/// What the drives of a host share to stand for each other.
pub(crate) struct Cover {
    /// As they are, uncovered.
    pub(crate) drives: Growing<Arc<dyn Cse>>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) deadline: Duration,
    threads: Threads,
    /// Where engines wait for values.
    pub(super) waiting: Arc<Threads>,
    pub(super) pool: Arc<dyn MemoryPool>,
    maps: Mutex<HashMap<Key, Option<Arc<StoredMap>>>>,
    values: Mutex<Values>,
    /// What was met damaged, or missing, at drives that are here, and was not mended since.
    met: Mutex<BTreeMap<Key, usize>>,
    /// Held while drives are rebuilt.
    repairing: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cover").field("drives", &self.drives.len()).finish_non_exhaustive()
    }
}

/// Values that were decoded or are being decoded, oldest first.
#[derive(Debug, Default)]
struct Values {
    known: HashMap<Key, Arc<OnceCell<Made>>>,
    order: VecDeque<(Key, usize)>,
    bytes: usize,
}

impl Cover {
    /// Of these drives; storage operations may take as long as `deadline`, engines get their memory from `pool`.
    pub(crate) fn new(drives: Vec<Arc<dyn Cse>>, presence: Arc<Presence>, deadline: Duration, pool: Arc<dyn MemoryPool>) -> Arc<Self> {
        let (threads, waiting) = (Threads::new(THREADS), Arc::new(Threads::new(WAITING)));
        Arc::new(Self {
            drives: Growing::new(drives),
            presence,
            deadline,
            threads,
            waiting,
            pool,
            maps: Mutex::default(),
            values: Mutex::default(),
            met: Mutex::default(),
            repairing: tokio::sync::Mutex::default(),
        })
    }

    /// The numbers of the drives.
    pub(crate) fn drives(&self) -> impl Iterator<Item = usize> + use<> {
        0..self.drives.len()
    }

    pub(super) fn name(&self, at: usize) -> &str {
        self.drives.get(at).map_or("?", |drive| drive.info().name.as_str())
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks drive `at`; that it does not answer is remembered.
    pub(super) async fn ask<T>(&self, at: usize, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let asked = within(self.deadline, self.name(at), what, work).await;
        if let Err(e) = &asked
            && e.kind() == Kind::Unavailable
            && self.presence.is_redundant()
            && self.presence.lose(at, &e.full_text())
        {
            tracing::warn!("{} is taken for lost: {e}", self.name(at));
        }
        asked
    }

    /// The code map of the table that `partition` is a part of, data or parities; `None` where it has none.
    pub(crate) async fn map(&self, partition: &PartitionName) -> Result<Option<Arc<StoredMap>>> {
        let key = parity_of(&data_of(partition).unwrap_or_else(|| partition.clone()), 0).key()?;
        if let Some(known) = self.maps.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(known.clone());
        }
        let here = self.presence.here();
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
                Err(e) => trouble = Some(e.while_doing(format!("{} could not give the code map {key}", self.name(at)))),
            }
        }
        if let (None, Some(trouble)) = (&found, trouble) {
            return Err(trouble);
        }
        // Who is lost may be the one that has it.
        if found.is_none() && !self.presence.lost().is_empty() {
            return Ok(None);
        }
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if maps.len() >= MAPS {
            maps.clear();
        }
        maps.insert(key, found.clone());
        Ok(found)
    }

    /// The turn to rebuild drives, unless somebody has it.
    pub(crate) fn repairing(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        self.repairing.try_lock().ok()
    }

    /// The value of `key` at drive `at` could not be had.
    pub(super) fn met(&self, key: &Key, at: usize) {
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if met.len() < MET {
            met.insert(key.clone(), at);
        }
    }

    /// What lies under `key` is as it should be again.
    pub(super) fn forget(&self, key: &Key) {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// How many values of drive `at` were met damaged, and not mended since.
    pub(crate) fn damaged(&self, at: usize) -> u64 {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).values().filter(|of| **of == at).count() as u64
    }

    /// Knows the code map under `key` from now on.
    pub(super) fn remember(&self, key: &Key, map: &Arc<StoredMap>) {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if maps.len() >= MAPS && !maps.contains_key(key) {
            maps.clear();
        }
        maps.insert(key.clone(), Some(Arc::clone(map)));
    }

    /// Decodes on a thread of its own.
    pub(super) async fn decoding<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        self.threads.run(work).await
    }

    /// A copy of the value of `key` from any drive but `not`.
    ///
    /// # Errors
    /// `NotFound` where no drive has it; Unavailable where none does and some could not say.
    pub(super) async fn copy(&self, key: &Key, not: usize) -> Result<Made> {
        let mut trouble: Vec<String> = self.presence.lost().into_iter().map(|at| self.lost(at)).collect();
        for at in self.presence.here().into_iter().filter(|at| *at != not) {
            match self.ask(at, "read a copy", self.drives[at].get(key)).await {
                Ok(value) => return Ok(Made { read: value.len() as u64, value }),
                Err(e) if e.kind() == Kind::NotFound => {}
                Err(e) => trouble.push(e.full_text()),
            }
        }
        if trouble.is_empty() {
            return Err(Error::not_found(format!("no drive has a copy of {key}")));
        }
        Err(Error::unavailable(format!("no drive that is here has a copy of {key}: {}", trouble.join("; "))))
    }

    /// What to say of a drive that is lost.
    pub(super) fn lost(&self, at: usize) -> String {
        format!("{} is lost ({})", self.name(at), self.presence.why(at).unwrap_or_default())
    }

    /// Slice `number` of `partition` under `key`, from the other shards of its group in `map`. Whoever asks for it at the same time waits for the same work; the figure of bytes goes to the one who began it.
    ///
    /// # Errors
    /// `NotFound` where the map has no such slice; Unavailable where too few of the others can be read, naming them.
    pub(super) async fn decode(&self, key: &Key, partition: &PartitionName, number: u32, map: &Arc<StoredMap>) -> Result<Made> {
        let cell = Arc::clone(self.values().known.entry(key.clone()).or_default());
        if let Some(made) = cell.get() {
            return Ok(Made { value: made.value.clone(), read: 0 });
        }
        let mut own = false;
        let made = cell.get_or_try_init(|| async {
            own = true;
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
            return Ok(Made { read: 0, ..made });
        }
        values.bytes += made.value.len();
        values.order.push_back((key.clone(), made.value.len()));
        while values.bytes > VALUES
            && let Some((oldest, bytes)) = values.order.pop_front()
        {
            values.bytes = values.bytes.saturating_sub(bytes);
            values.known.remove(&oldest);
        }
        Ok(made)
    }

    async fn decode_now(&self, key: &Key, partition: &PartitionName, number: u32, map: &Arc<StoredMap>) -> Result<Made> {
        let (mut values, read) = self.gather(key, partition, number, map, None).await?;
        Ok(Made { value: values.pop().unwrap_or_default(), read })
    }

    /// Parts of slice `number` of `partition`, and how many bytes were read for them: those of the other shards at the same places, and no more. As they are stored: damage is not found.
    ///
    /// # Errors
    /// As [`Self::decode`]; Invalid for ranges that are not within the slice.
    pub(super) async fn decode_parts(
        &self,
        key: &Key,
        partition: &PartitionName,
        number: u32,
        map: &Arc<StoredMap>,
        ranges: &[Range<u64>],
    ) -> Result<(Vec<Bytes>, u64)> {
        let known = self.values().known.get(key).and_then(|cell| cell.get().cloned());
        if let Some(made) = known {
            return Ok((parts(key, &made.value, ranges)?, 0));
        }
        self.gather(key, partition, number, map, Some(ranges)).await
    }

    /// The whole slice, verified, or parts of it, from as many shards of its group as it takes; and how many bytes were read.
    async fn gather(
        &self,
        key: &Key,
        partition: &PartitionName,
        number: u32,
        map: &Arc<StoredMap>,
        ranges: Option<&[Range<u64>]>,
    ) -> Result<(Vec<Bytes>, u64)> {
        let data = data_of(partition);
        let role = if data.is_some() { Role::Parity } else { Role::Data };
        let place = map.map.find(role, partition.slot, number).ok_or_else(|| Error::not_found(format!("{key} is in no code group")))?;
        let members = map.map.group(place.group as usize).ok_or_else(|| Error::internal("a code map has lost a group"))?;
        let expected = *map.map.shard(place).ok_or_else(|| Error::internal("a code map has lost a shard"))?;
        let table = data.unwrap_or_else(|| partition.clone());
        let wanted = place.shard as usize;
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
        // So that all drives have about as much to read, groups begin with different ones.
        let others: Vec<usize> = (0..shards.len()).map(|at| (at + place.group as usize) % shards.len()).filter(|at| *at != wanted).collect();
        let (need, mut next) = (members.data.len(), others.into_iter());
        let mut reading = FuturesUnordered::new();
        let (mut have, mut read) = (0, 0u64);
        loop {
            while have + reading.len() < need
                && let Some(at) = next.next()
            {
                let (shard, table, aligned) = (members.all()[at], &table, aligned.as_deref());
                let role = if at < need { Role::Data } else { Role::Parity };
                reading.push(async move { (at, self.shard(&shard, role, table, map, aligned).await) });
            }
            match reading.next().await {
                Some((at, Ok(parts))) => {
                    have += 1;
                    read += parts.iter().map(|part| part.len() as u64).sum::<u64>();
                    shards[at] = Some(parts);
                }
                Some((_, Err(e))) => trouble.push(e.full_text()),
                None => break,
            }
        }
        drop(reading);
        if have < need {
            trouble.sort();
            return Err(Error::unavailable(format!(
                "{key} can't be decoded: of its group of {} shards {have} are to be had, and {need} are needed; bring back one of the drives: {}",
                members.all().len(),
                trouble.join("; ")
            )));
        }
        let code = map.map.code();
        let decoding: Box<dyn FnOnce() -> Result<Vec<Bytes>> + Send> = match (aligned, ranges) {
            (Some(aligned), Some(ranges)) => {
                let (lens, ranges) = (members.data.iter().map(|shard| shard.len).collect::<Vec<_>>(), ranges.to_vec());
                Box::new(move || {
                    let part = |(n, (blocks, range)): (usize, (&Range<u64>, &Range<u64>))| {
                        let lens: Vec<usize> = lens.iter().map(|len| within_shard(blocks, *len)).map(|of| (of.end - of.start) as usize).collect();
                        let shards: Vec<Option<&[u8]>> = shards.iter().map(|parts| parts.as_ref()?.get(n).map(AsRef::as_ref)).collect();
                        let whole = code::decode(code, &lens, &shards, &[wanted])?.pop().unwrap_or_default();
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
                    let value = code::decode(code, &lens, &shards, &[wanted])?.pop().unwrap_or_default();
                    let right = value.len() as u64 == expected.len && crc32c(&value) == expected.crc32c;
                    if right { Ok(vec![value]) } else { Err(Error::corrupt("it is not what was stored")) }
                })
            }
        };
        let values = self.threads.run(decoding).await.map_err(|e| e.while_doing(format!("{key} can't be decoded")))?;
        Ok((values, read))
    }

    /// A shard of a group from its drive: whole and verified, or what it has of some parts.
    pub(super) async fn shard(&self, shard: &Shard, role: Role, table: &PartitionName, map: &StoredMap, blocks: Option<&[Range<u64>]>) -> Result<Vec<Bytes>> {
        let id = map.drives.get(shard.drive as usize).ok_or_else(|| Error::corrupt("a code map names a drive that it does not count"))?;
        let Some(at) = self.drives.iter().position(|drive| drive.info().id == *id) else {
            return Err(Error::unavailable(format!("drive {id} is not among this host's drives")));
        };
        if self.presence.is_lost(at) {
            return Err(Error::unavailable(self.lost(at)));
        }
        let partition = match role {
            Role::Data => PartitionName { slot: shard.home, ..table.clone() },
            Role::Parity => parity_of(table, shard.home),
        };
        let (key, drive) = (partition.slice_key(shard.number)?, &self.drives[at]);
        let could_not = |e: Error| e.while_doing(format!("{} could not give {key}", self.name(at)));
        if let Some(blocks) = blocks {
            let own: Vec<Range<u64>> = blocks.iter().map(|range| within_shard(range, shard.len)).collect();
            if own.iter().all(Range::is_empty) {
                return Ok(vec![Bytes::new(); own.len()]);
            }
            let read = self.ask(at, "read parts of a shard", drive.get_ranges_unverified(&key, &own)).await.map_err(could_not)?;
            let right = read.len() == own.len() && read.iter().zip(&own).all(|(bytes, range)| bytes.len() as u64 == range.end - range.start);
            return if right { Ok(read) } else { Err(Error::corrupt(format!("{} gave other parts of {key} than were asked for", self.name(at)))) };
        }
        let bytes = self.ask(at, "read a shard", drive.get(&key)).await.map_err(could_not)?;
        if bytes.len() as u64 != shard.len || crc32c(&bytes) != shard.crc32c {
            return Err(Error::corrupt(format!("{} gave another {key} than its group was made of", self.name(at))));
        }
        Ok(vec![bytes])
    }
}

/// As much of `range` as a shard of `len` bytes has.
fn within_shard(range: &Range<u64>, len: u64) -> Range<u64> {
    range.start.min(len)..range.end.min(len)
}

/// Parts of the value of `key`.
///
/// # Errors
/// Invalid for ranges that are not within it.
pub(super) fn parts(key: &Key, value: &Bytes, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let part = |range: &Range<u64>| {
        let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
        (start <= end && end <= value.len()).then(|| value.slice(start..end))
    };
    let wrong = || Error::invalid(format!("a range of {key} is not within its {} bytes", value.len()));
    ranges.iter().map(|range| part(range).ok_or_else(wrong)).collect()
}
