//! Prefetch: shards that decoding needs soon, read many at a time per drive, in the order in which they lie there.
//!
//! A disk that seeks for every shard is a third as fast as one that reads them in a row. The decoder knows which shards
//! come next, but groups name them in another order than they lie. Besides, a drive also reads for its own sub-plan,
//! and every single shard in between costs two seeks. So the host asks for all prefetched shards at once, sorted by
//! key.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Key, PartitionName};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::ordered_read::{Coming, OrderedReader};

/// The most prefetched shards that wait.
const MOST: usize = 512;

/// Tables whose slices are asked for one after the other.
const FOLLOWED: usize = 256;

/// Kinds of shards that are prefetched separately: slices need no prefetch where a query reads them all anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Slices,
    Parities,
}

/// Prefetched shards that no reader has taken.
#[derive(Default)]
pub(crate) struct Shards {
    known: HashMap<(usize, Key), (u64, oneshot::Receiver<Bytes>)>,
    /// Of all of them.
    bytes: u64,
}

impl Shards {
    /// Registers a shard of `len` bytes, where at most `room` bytes may wait. `None` where there is no room, or the
    /// shard is known.
    pub(crate) fn add(&mut self, shard: &(usize, Key), len: u64, room: u64) -> Option<oneshot::Sender<Bytes>> {
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

/// The prefetched shards of all drives.
#[derive(Default)]
pub(crate) struct Prefetcher {
    shards: Mutex<Shards>,
    /// What rebuilds read in order.
    coming: Mutex<HashMap<(usize, Key), Coming>>,
    /// Windows that are kept for queries, and until when.
    windows: Mutex<VecDeque<(Instant, PrefetchWindow)>>,
    /// Per drive, held by the window that is being read: two windows at a time would cost two seeks for each shard.
    turns: Mutex<HashMap<usize, Arc<tokio::sync::Mutex<()>>>>,
    /// Per partition: the number of the slice that was decoded last, and of the first one without prefetch.
    followed: Mutex<HashMap<(PartitionName, Kind), (u32, u32)>>,
}

/// Shards that are being prefetched. Dropping this forgets those that no reader has taken.
pub(crate) struct PrefetchWindow {
    ahead: Weak<Prefetcher>,
    pub(crate) shards: Vec<(usize, Key)>,
    _reading: Vec<AbortOnDropHandle<()>>,
}

impl PrefetchWindow {
    /// These shards, which `reading` brings.
    pub(crate) fn new(ahead: &Arc<Prefetcher>, shards: Vec<(usize, Key)>, reading: Vec<AbortOnDropHandle<()>>) -> Self {
        Self { ahead: Arc::downgrade(ahead), shards, _reading: reading }
    }
}

impl Drop for PrefetchWindow {
    fn drop(&mut self) {
        if let Some(ahead) = self.ahead.upgrade() {
            let mut shards = ahead.shards();
            for shard in &self.shards {
                shards.remove(shard);
            }
        }
    }
}

impl Prefetcher {
    pub(crate) fn shards(&self) -> MutexGuard<'_, Shards> {
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

    /// Forgets those of these shards that were expected from these readings: no reader will take them.
    pub(crate) fn forget<'a>(&self, given: impl Iterator<Item = (&'a (usize, Key), &'a Arc<OrderedReader>)>) {
        let mut over = Vec::new();
        let mut coming = self.coming();
        for (shard, of) in given {
            if coming.get(shard).is_some_and(|one| Arc::ptr_eq(&one.reading, of)) {
                over.extend(coming.remove(shard));
            }
        }
        // Shards in `over` are freed outside of the lock.
        drop(coming);
    }

    pub(crate) fn windows(&self) -> MutexGuard<'_, VecDeque<(Instant, PrefetchWindow)>> {
        self.windows.lock()
    }

    pub(crate) fn turn(&self, at: usize) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.turns.lock().entry(at).or_default())
    }

    /// A prefetched shard of drive `at`; `None` where none is under way, and where it could not be read.
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

    /// Notes that slice `number` of a partition is decoded. Returns the slice to prefetch from, if a window is due.
    pub(crate) fn follow(&self, partition: &PartitionName, kind: Kind, number: u32, most: u32) -> Option<u32> {
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

#[cfg(test)]
mod tests {
    use skytether_common::Generation;

    use super::*;

    #[test]
    fn prefetched_shards_are_bounded_over_all_tables() {
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
    fn sequential_slices_are_read_ahead_once() {
        let ahead = Prefetcher::default();
        let partition = |slot| PartitionName { dataset: "lab.t".parse().unwrap(), generation: Generation(1), table: "data".into(), slot };
        assert_eq!(ahead.follow(&partition(0), Kind::Slices, 0, 8), Some(0));
        let due: Vec<_> = (1..20).filter_map(|number| ahead.follow(&partition(0), Kind::Slices, number, 8).map(|from| (number, from))).collect();
        assert_eq!(due, [(4, 8), (12, 16)], "each slice once, half a window before it is wanted");
        // One by one, from anywhere, is nothing that follows.
        assert_eq!([500, 30, 900].map(|number| ahead.follow(&partition(1), Kind::Slices, number, 8)), [None; 3]);
        assert_eq!(ahead.follow(&partition(1), Kind::Slices, 901, 8), Some(901));
    }
}
