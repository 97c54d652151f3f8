//! Slices from the other shards of their groups, and a bounded memory of those.

use std::collections::{HashMap, VecDeque};
use std::fmt;
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
use skytether_redundancy::map::{Place, Role, Shard};
use skytether_wire::Cse;
use tokio::sync::OnceCell;

use super::presence::Presence;
use super::stored::{StoredMap, data_of, parity_of};
use crate::catalog::within;

/// Threads that decode.
const THREADS: usize = 4;

/// Threads that wait for what is read and decoded. They are others: who waits must not keep those from working who are waited for.
const WAITING: usize = 16;

/// Code maps that are kept.
const MAPS: usize = 64;

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
    pub(super) drives: Vec<Arc<dyn Cse>>,
    pub(super) presence: Arc<Presence>,
    pub(super) deadline: Duration,
    threads: Threads,
    /// Where engines wait for values.
    pub(super) waiting: Arc<Threads>,
    pub(super) pool: Arc<dyn MemoryPool>,
    maps: Mutex<HashMap<Key, Option<Arc<StoredMap>>>>,
    values: Mutex<Values>,
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
        Arc::new(Self { drives, presence, deadline, threads, waiting, pool, maps: Mutex::default(), values: Mutex::default() })
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
    pub(super) async fn map(&self, partition: &PartitionName) -> Result<Option<Arc<StoredMap>>> {
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
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if maps.len() >= MAPS {
            maps.clear();
        }
        maps.insert(key, found.clone());
        Ok(found)
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
        let data = data_of(partition);
        let role = if data.is_some() { Role::Parity } else { Role::Data };
        let place = map.map.find(role, partition.slot, number).ok_or_else(|| Error::not_found(format!("{key} is in no code group")))?;
        let members = map.map.group(place.group as usize).ok_or_else(|| Error::internal("a code map has lost a group"))?;
        let table = data.unwrap_or_else(|| partition.clone());
        let (lens, wanted) = (members.lens(), place.shard as usize);
        let mut shards: Vec<Option<Bytes>> = vec![None; members.all().len()];
        let mut trouble = Vec::new();
        // So that all drives have about as much to read, groups begin with different ones.
        let others: Vec<usize> = (0..shards.len()).map(|at| (at + place.group as usize) % shards.len()).filter(|at| *at != wanted).collect();
        let mut next = others.into_iter();
        let mut reading = FuturesUnordered::new();
        let (mut have, mut read) = (0, 0u64);
        loop {
            while have + reading.len() < lens.len()
                && let Some(at) = next.next()
            {
                let (shard, table) = (members.all()[at], &table);
                let role = if at < lens.len() { Role::Data } else { Role::Parity };
                let place = Place { group: place.group, shard: at as u32 };
                reading.push(async move { (at, self.shard(&shard, role, table, map, place).await) });
            }
            match reading.next().await {
                Some((at, Ok(bytes))) => {
                    have += 1;
                    read += bytes.len() as u64;
                    shards[at] = Some(bytes);
                }
                Some((_, Err(e))) => trouble.push(e.full_text()),
                None => break,
            }
        }
        if have < lens.len() {
            trouble.sort();
            return Err(Error::unavailable(format!(
                "{key} can't be decoded: of its group of {} shards {have} are to be had, and {} are needed; bring back one of the drives: {}",
                members.all().len(),
                lens.len(),
                trouble.join("; ")
            )));
        }
        let (code, expected) = (map.map.code(), *map.map.shard(place).ok_or_else(|| Error::internal("a code map has lost a shard"))?);
        let decoding = move || {
            let shards: Vec<Option<&[u8]>> = shards.iter().map(|shard| shard.as_deref()).collect();
            let value = code::decode(code, &lens, &shards, &[wanted])?.pop().unwrap_or_default();
            if value.len() as u64 == expected.len && crc32c(&value) == expected.crc32c { Ok(value) } else { Err(Error::corrupt("it is not what was stored")) }
        };
        let value = self.threads.run(decoding).await.map_err(|e| e.while_doing(format!("{key} can't be decoded")))?;
        Ok(Made { value, read })
    }

    /// A shard of a group from its drive, verified.
    async fn shard(&self, shard: &Shard, role: Role, table: &PartitionName, map: &StoredMap, place: Place) -> Result<Bytes> {
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
        let key = partition.slice_key(shard.number)?;
        let bytes = self.ask(at, "read a shard", self.drives[at].get(&key)).await.map_err(|e| e.while_doing(format!("{} could not give {key}", self.name(at))))?;
        if bytes.len() as u64 != shard.len || crc32c(&bytes) != shard.crc32c {
            return Err(Error::corrupt(format!("{} gave another {key} than group {} was made of", self.name(at), place.group)));
        }
        Ok(bytes)
    }
}
