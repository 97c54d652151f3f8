//! Shards that will be wanted soon, read before they are asked for: many of a drive at a time, in the order in which they lie there.
//!
//! A disk that moves its head for every shard is a third as quick as one that reads them in a row. Whoever decodes knows which shards come next, but groups name them in another order than they lie, and beside what a drive reads for its own sub-plan every read of one shard is two ways of the
//! head. So what is read ahead is asked for all at once, sorted by key.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Key, PartitionName};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::ordered_read::{Coming, Reading};
use crate::reconstruct::Cover;
use crate::repair_io::role;
use skytether_catalog::code_map::{Level, Part, StoredMap};

/// Requests for shards that a drive has before it: many, so that one that reads for a sub-plan of its own as well reads both in rows.
const DEPTH: usize = 16;

/// Bytes of slices that are read ahead at a time, and of parities, which lie elsewhere on a disk: many at a time are few ways of the head. Of all that is read ahead no more waits than an eighth of the host's memory.
const WINDOW: [(Kind, u64); 2] = [(Kind::Parities, 64 << 20), (Kind::Slices, 36 << 20)];

/// The most slices of which the shards are read ahead at a time.
const MOST_SLICES: u32 = 64;

/// Shards that may be read ahead and not be taken.
const MOST: usize = 512;

/// How long shards that nobody takes are kept: a query may end before it comes to them.
const KEPT: Duration = Duration::from_secs(10);

/// Tables whose slices are asked for one after the other.
const FOLLOWED: usize = 256;

/// What is read ahead by itself: slices need not be, where a query reads them all anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Slices,
    Parities,
}

/// Shards that are read ahead and that nobody has taken.
#[derive(Default)]
struct Shards {
    known: HashMap<(usize, Key), (u64, oneshot::Receiver<Bytes>)>,
    /// Of all of them.
    bytes: u64,
}

impl Shards {
    /// A place for a shard of `len` bytes, of which `room` may wait; nothing where there is none, or it is known.
    fn add(&mut self, shard: &(usize, Key), len: u64, room: u64) -> Option<oneshot::Sender<Bytes>> {
        if self.known.len() >= MOST || self.bytes + len > room || self.known.contains_key(shard) {
            return None;
        }
        let (send, receive) = oneshot::channel();
        self.known.insert(shard.clone(), (len, receive));
        self.bytes += len;
        Some(send)
    }

    fn remove(&mut self, shard: &(usize, Key)) -> Option<oneshot::Receiver<Bytes>> {
        let (len, receive) = self.known.remove(shard)?;
        self.bytes -= len;
        Some(receive)
    }
}

/// What is read ahead.
#[derive(Default)]
pub(crate) struct Ahead {
    shards: Mutex<Shards>,
    /// What rebuilds read in order.
    coming: Mutex<HashMap<(usize, Key), Coming>>,
    /// What is kept for queries, and until when.
    windows: Mutex<VecDeque<(Instant, Window)>>,
    /// Held of each drive by the window that is read there: two at a time would be two ways of the head for each shard.
    turns: Mutex<HashMap<usize, Arc<tokio::sync::Mutex<()>>>>,
    /// Of each partition the number of the slice that was decoded last, and of the first that nothing was read ahead for.
    followed: Mutex<HashMap<(PartitionName, Kind), (u32, u32)>>,
}

/// Shards that are being read ahead; what nobody has taken is forgotten with this.
pub(crate) struct Window {
    /// Nobody's drives stay open for what nobody has asked for.
    cover: Weak<Cover>,
    shards: Vec<(usize, Key)>,
    _reading: Vec<AbortOnDropHandle<()>>,
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(cover) = self.cover.upgrade() {
            let mut shards = cover.ahead.shards();
            for shard in &self.shards {
                shards.remove(shard);
            }
        }
    }
}

impl Ahead {
    fn shards(&self) -> MutexGuard<'_, Shards> {
        self.shards.lock()
    }

    fn coming(&self) -> MutexGuard<'_, HashMap<(usize, Key), Coming>> {
        self.coming.lock()
    }

    /// A shard comes that is read in order; false where another reading brings it already.
    pub(crate) fn expect(&self, shard: &(usize, Key), coming: Coming) -> bool {
        match self.coming().entry(shard.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(coming);
                true
            }
        }
    }

    /// Nobody takes these any more, of those that were expected from these readings.
    pub(crate) fn forget<'a>(&self, given: impl Iterator<Item = (&'a (usize, Key), &'a Arc<Reading>)>) {
        let mut over = Vec::new();
        let mut coming = self.coming();
        for (shard, of) in given {
            if coming.get(shard).is_some_and(|one| Arc::ptr_eq(&one.reading, of)) {
                over.extend(coming.remove(shard));
            }
        }
        // What they hold is freed without it.
        drop(coming);
    }

    fn windows(&self) -> MutexGuard<'_, VecDeque<(Instant, Window)>> {
        self.windows.lock()
    }

    fn turn(&self, at: usize) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.turns.lock().entry(at).or_default())
    }

    /// A shard of drive `at` that is read ahead; nothing where none is, and where it could not be read.
    pub(crate) async fn take(&self, at: usize, key: &Key) -> Option<Bytes> {
        let shard = (at, key.clone());
        let coming = self.coming().remove(&shard);
        if let Some(Coming { receive, reading, n }) = coming {
            if !reading.want(n) {
                return None;
            }
            let (bytes, _) = receive.await.ok()?;
            return Some(bytes);
        }
        let reading = self.shards().remove(&shard)?;
        reading.await.ok()
    }

    /// Notes that slice `number` of a partition is decoded; from which slice on to read ahead, if it is time to.
    fn follow(&self, partition: &PartitionName, kind: Kind, number: u32, most: u32) -> Option<u32> {
        let what = (partition.clone(), kind);
        let mut followed = self.followed.lock();
        if followed.len() >= FOLLOWED && !followed.contains_key(&what) {
            followed.clear();
        }
        let (last, until) = followed.get(&what).copied().unwrap_or((u32::MAX, 0));
        // Lanes side by side don't come in order to the slice.
        let follows = number == 0 || (last != u32::MAX && number.abs_diff(last) <= most);
        let due = follows && (number == 0 || number >= until || until - number <= most / 2);
        let from = if number >= until || number == 0 { number } else { until };
        followed.insert(what, (number, if due { from + most } else { until }));
        due.then_some(from)
    }
}

impl Cover {
    /// Begins to read these shards, each of a drive by its place among the host's and of so many bytes, as far as there is room; as long as the window is kept they are there for whoever reads them next.
    pub(crate) fn read_ahead(self: &Arc<Self>, shards: impl IntoIterator<Item = (usize, Key, u64)>) -> Window {
        let mut of: BTreeMap<usize, Vec<(Key, oneshot::Sender<Bytes>)>> = BTreeMap::new();
        let mut begun = Vec::new();
        {
            let mut known = self.ahead.shards();
            for (at, key, len) in shards.into_iter().filter(|(at, _, _)| !self.presence.is_lost(*at)) {
                let shard = (at, key);
                let Some(send) = known.add(&shard, len, self.room as u64) else { continue };
                of.entry(at).or_default().push((shard.1.clone(), send));
                begun.push(shard);
            }
        }
        let read = |(at, mut shards): (usize, Vec<(Key, oneshot::Sender<Bytes>)>)| {
            shards.sort_by(|a, b| a.0.cmp(&b.0));
            let (cover, turn) = (Arc::downgrade(self), self.ahead.turn(at));
            AbortOnDropHandle::new(tokio::spawn(async move {
                let _turn = turn.lock().await;
                let reads = stream::iter(shards).map(|(key, send)| {
                    let cover = cover.clone();
                    async move {
                        // What can't be read is read once more by who wants it, and is told there.
                        if !send.is_closed()
                            && let Some(cover) = cover.upgrade()
                            && let Ok(bytes) = cover.for_decoding(at, &key).await
                        {
                            let _ = send.send(bytes);
                        }
                    }
                });
                reads.buffer_unordered(DEPTH).collect::<()>().await;
            }))
        };
        Window { cover: Arc::downgrade(self), shards: begun, _reading: of.into_iter().map(read).collect() }
    }

    /// The shards of a kind that decoding slice `number` of a partition takes, with their drives and bytes; nothing where not enough of its group is here.
    fn shards_for(&self, partition: &PartitionName, kind: Kind, number: u32, map: &Arc<StoredMap>) -> Option<Vec<(usize, Key, u64)>> {
        let (part, table) = Part::parse(partition);
        Level::all(map).into_iter().find_map(|level| {
            let place = level.find(part, partition.slot, number)?;
            let members = level.map().group(place.group as usize)?;
            let (all, need) = (members.all(), members.data.len());
            // As `gather_at` begins.
            let order = (0..all.len()).map(|at| (at + place.group as usize) % all.len()).filter(|at| *at != place.shard as usize);
            let here = order.filter_map(|at| Some((at, self.at(&level, &all[at]).filter(|at| !self.presence.is_lost(*at))?))).take(need);
            let here: Vec<_> = here.collect();
            if here.len() < need {
                return None;
            }
            let kind_of = |at: usize| if level.part(&all[at], role(at, need)).0 == Part::Slice { Kind::Slices } else { Kind::Parities };
            let here = here.into_iter().filter(|(at, _)| kind_of(*at) == kind);
            here.map(|(at, drive)| Some((drive, level.key(&table, &all[at], role(at, need)).ok()?, all[at].len))).collect()
        })
    }

    /// Slice `number` of a partition is to be decoded: where those before it were, shards for those after it are read ahead.
    pub(crate) fn look_ahead(self: &Arc<Self>, partition: &PartitionName, number: u32, map: &Arc<StoredMap>) {
        for (kind, room) in WINDOW {
            if kind == Kind::Parities || !self.shared.is_read(partition) {
                self.look_ahead_for(partition, kind, number, map, room.min(self.room as u64));
            }
        }
    }

    fn look_ahead_for(self: &Arc<Self>, partition: &PartitionName, kind: Kind, number: u32, map: &Arc<StoredMap>, room: u64) {
        let Some(shards) = self.shards_for(partition, kind, number, map) else { return };
        let bytes: u64 = shards.iter().map(|(_, _, len)| len).sum();
        if bytes == 0 {
            return;
        }
        let most = u32::try_from(room / bytes).unwrap_or(u32::MAX).clamp(1, MOST_SLICES);
        let Some(from) = self.ahead.follow(partition, kind, number, most) else { return };
        let next = from..from.saturating_add(most);
        let shards: Vec<_> = next.filter_map(|number| self.shards_for(partition, kind, number, map)).flatten().collect();
        let window = self.read_ahead(shards);
        if let (false, Ok(runtime)) = (window.shards.is_empty(), tokio::runtime::Handle::try_current()) {
            self.ahead.windows().push_back((Instant::now() + KEPT, window));
            let cover = Arc::downgrade(self);
            runtime.spawn(async move {
                tokio::time::sleep(KEPT).await;
                let Some(cover) = cover.upgrade() else { return };
                let over: Vec<_> = {
                    let mut windows = cover.ahead.windows();
                    let over = windows.iter().take_while(|(until, _)| *until <= Instant::now()).count();
                    windows.drain(..over).collect()
                };
                drop(over);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use skytether_common::Generation;

    use super::*;

    #[test]
    fn what_waits_is_bounded_for_all_tables_together() {
        let shard = |table: &str, n: usize| (n % 3, Key::new(format!("d/{table}.{n}")).unwrap());
        let mut shards = Shards::default();
        let begun = |shards: &mut Shards, table: &str| (0..10).filter(|n| shards.add(&shard(table, *n), 10, 155).is_some()).count();
        assert_eq!((begun(&mut shards, "a"), begun(&mut shards, "a"), shards.bytes), (10, 0, 100), "each once");
        assert_eq!((begun(&mut shards, "b"), begun(&mut shards, "c"), shards.bytes), (5, 0, 150), "and no more than there is room for");
        assert!(shards.remove(&shard("a", 3)).is_some() && shards.remove(&shard("a", 3)).is_none());
        assert_eq!((begun(&mut shards, "c"), shards.bytes), (1, 150), "what was taken leaves its room");
        let empty = (0..2 * MOST).filter(|n| shards.add(&shard("d", *n), 0, 155).is_some()).count();
        assert_eq!(shards.known.len(), MOST, "{empty} were added, as a place takes room, too");
    }

    #[test]
    fn what_is_asked_for_in_a_row_is_read_ahead_once() {
        let ahead = Ahead::default();
        let partition = |slot| PartitionName { dataset: "lab.t".parse().unwrap(), generation: Generation(1), table: "data".into(), slot };
        assert_eq!(ahead.follow(&partition(0), Kind::Slices, 0, 8), Some(0));
        let due: Vec<_> = (1..20).filter_map(|number| ahead.follow(&partition(0), Kind::Slices, number, 8).map(|from| (number, from))).collect();
        assert_eq!(due, [(4, 8), (12, 16)], "each slice once, half a window before it is wanted");
        // One by one, from anywhere, is nothing that follows.
        assert_eq!([500, 30, 900].map(|number| ahead.follow(&partition(1), Kind::Slices, number, 8)), [None; 3]);
        assert_eq!(ahead.follow(&partition(1), Kind::Slices, 901, 8), Some(901));
    }
}
