//! Slices that a drive's own sub-plans and another reader need at the same time, read once.
//!
//! While a drive of the fleet is lost, decoding its slices needs nearly all slices of the others. Their own sub-plans
//! read the same slices at that time. A disk would seek between the two readers and read everything twice. So while
//! both are active, what one reader reads is kept for the other, within a bound. Each reader wants the slices of a
//! partition one after the other. So a seek also reads the slices that follow.
//!
//! While only one of the two reads, which is nearly always the case, this does nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::{Key, PartitionName, Result};
use skytether_emulation::wait::{deferred, owe};
use skytether_store::{Op, SliceStore, StoreLayer, Version};

/// Both readers count as active until one of them has been silent for this long.
const RECENT: Duration = Duration::from_millis(500);

/// The most slices, and bytes of them, that are read in a row: a seek is then a fraction of the time.
const ROW: (u32, usize) = (32, 12 << 20);

/// A slice follows the last one of its partition if their numbers differ by at most this.
const FOLLOWS: u32 = 8;

/// The most bytes that are kept, however much memory there is.
const MOST: usize = 96 << 20;

/// Waits shorter than this are not worth a timer.
const WORTH_WAITING: Duration = Duration::from_micros(100);

/// A reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum By {
    /// A sub-plan of this drive.
    Own,
    /// A reader other than the drive's own sub-plans.
    Other,
}

/// A slice that was read.
#[derive(Debug)]
struct CachedRead {
    value: Bytes,
    crc32c: u32,
    /// When the disk has it.
    ready: Option<Instant>,
    /// The reader that has had it.
    had: Option<By>,
}

#[derive(Debug, Default)]
struct SharedState {
    own: Option<Instant>,
    other: Option<Instant>,
    /// Per reader and partition: the slice after the last one that was read. One reader may be far behind the other.
    next: HashMap<(By, PartitionName), u32>,
    kept: HashMap<Key, CachedRead>,
    /// Keys, the oldest first; keys that both readers have had may still be here.
    order: VecDeque<Key>,
    bytes: usize,
}

impl SharedState {
    fn clear(&mut self) {
        *self = Self { own: self.own, other: self.other, ..Self::default() };
    }

    fn forget(&mut self, key: &Key) {
        if let Some(kept) = self.kept.remove(key) {
            self.bytes -= kept.value.len();
        }
    }

    fn keep(&mut self, key: Key, kept: CachedRead, most: usize) {
        self.forget(&key);
        self.bytes += kept.value.len();
        self.kept.insert(key.clone(), kept);
        self.order.push_back(key);
        while self.bytes > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.forget(&oldest);
        }
        if self.order.len() > 4 * self.kept.len() + 64 {
            let (kept, mut seen) = (&self.kept, HashSet::new());
            self.order.retain(|key| kept.contains_key(key) && seen.insert(key.clone()));
        }
    }

    /// Notes a read at `now`. Returns whether both readers are active.
    fn note(&mut self, by: By, now: Instant) -> bool {
        match by {
            By::Own => self.own = Some(now),
            By::Other => self.other = Some(now),
        }
        let recent = |at: Option<Instant>| at.is_some_and(|at| now.saturating_duration_since(at) < RECENT);
        let both = recent(self.own) && recent(self.other);
        if !both && !self.kept.is_empty() {
            self.clear();
        }
        both
    }
}

/// A store that reads once what two readers want; see [the module](self). Its [`SliceStore`] side is for the drive's
/// own sub-plans.
#[derive(Debug)]
pub(crate) struct SharedReads {
    inner: Arc<dyn SliceStore>,
    most: usize,
    /// Held while a row is read, so that no other reader moves the disk's head meanwhile.
    state: Mutex<SharedState>,
}

impl SharedReads {
    /// Over `inner`; at most `most` bytes are kept.
    pub(crate) fn new(inner: Arc<dyn SliceStore>, most: usize) -> Self {
        Self { inner, most: most.min(MOST), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, SharedState> {
        // A panic leaves only slices that were read.
        self.state.lock()
    }

    /// The value of `key`, for a reader other than a sub-plan of this drive.
    ///
    /// # Errors
    /// As [`SliceStore::get`].
    pub(crate) fn get_for_other(&self, key: &Key) -> Result<Bytes> {
        match self.shared(key, By::Other)? {
            Some((value, _)) => Ok(value),
            None => self.inner.get(key),
        }
    }

    /// The value of a slice and its checksum while both read; nothing otherwise.
    fn shared(&self, key: &Key, by: By) -> Result<Option<(Bytes, u32)>> {
        let Some((partition, Some(number))) = PartitionName::parse(key) else { return Ok(None) };
        let mut state = self.state();
        if !state.note(by, Instant::now()) {
            return Ok(None);
        }
        if let Some(kept) = state.kept.get_mut(key) {
            let (value, crc32c, ready) = (kept.value.clone(), kept.crc32c, kept.ready);
            if kept.had.replace(by).is_some_and(|had| had != by) {
                state.forget(key);
            }
            drop(state);
            if let Some(ready) = ready {
                owe(ready, WORTH_WAITING);
            }
            return Ok(Some((value, crc32c)));
        }
        let Some((kept, len)) = self.read(key)? else { return Ok(None) };
        let (value, crc32c, ready) = (kept.value.clone(), kept.crc32c, kept.ready);
        state.keep(key.clone(), CachedRead { had: Some(by), ..kept }, self.most);
        let next = (by, partition);
        let follows = state.next.get(&next).is_some_and(|next| number.abs_diff(*next) <= FOLLOWS);
        let partition = &next.1;
        let mut last = number;
        if follows {
            let row = u32::try_from(ROW.1.min(self.most / 4) / len.max(1)).unwrap_or(u32::MAX).min(ROW.0);
            for number in number + 1..number.saturating_add(row) {
                let behind = partition.slice_key(number)?;
                if !state.kept.contains_key(&behind) {
                    // A slice that can't be read is left to its reader, which gets the error.
                    let Ok(Some((kept, _))) = self.read(&behind) else { break };
                    state.keep(behind, kept, self.most);
                }
                last = number;
            }
        }
        if state.next.len() >= 4096 {
            state.next.clear();
        }
        state.next.insert(next, last.saturating_add(1));
        drop(state);
        if let Some(ready) = ready {
            owe(ready, WORTH_WAITING);
        }
        Ok(Some((value, crc32c)))
    }

    /// A value as it is kept, and its length; nothing if it changes at this moment.
    fn read(&self, key: &Key) -> Result<Option<(CachedRead, usize)>> {
        let Some(entry) = self.inner.stat(key)? else { return Ok(None) };
        let (value, ready) = deferred(|| self.inner.get(key));
        let value = value?;
        let still = self.inner.stat(key)?.is_some_and(|now| now.version == entry.version) && value.len() as u64 == entry.len;
        let len = value.len();
        Ok(still.then_some((CachedRead { value, crc32c: entry.crc32c, ready, had: None }, len)))
    }
}

impl StoreLayer for SharedReads {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(self.inner.as_ref())
    }

    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        let changed: HashSet<Key> = batch.iter().map(|op| op.key().clone()).collect();
        let applied = self.inner.apply(batch);
        let mut state = self.state();
        if !state.kept.is_empty() {
            // Also after an error: a failed batch may have been carried out.
            changed.iter().for_each(|key| state.forget(key));
        }
        applied
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        self.inner.get_range_in_memory(key, range)
    }

    fn get_expected(&self, key: &Key, len: u64, expected: u32) -> Result<Option<Bytes>> {
        match self.shared(key, By::Own)? {
            Some((value, crc32c)) => Ok((value.len() as u64 == len && crc32c == expected).then_some(value)),
            None => self.inner.get_expected(key, len, expected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_scheduler::profile::Profile;
    use skytether_store::Expect;
    use skytether_store::memory::MemoryStore;

    use crate::throttle::SlowDisk;

    const SLICES: u32 = 40;

    fn at(slot: u32) -> PartitionName {
        PartitionName { dataset: "lab.t".parse().unwrap(), generation: skytether_common::Generation(1), table: "data".into(), slot }
    }

    fn value(slot: u32, number: u32) -> Bytes {
        Bytes::from(vec![(slot * 100 + number) as u8; 10_000])
    }

    /// Two partitions on a quick disk that takes long to move its head, and what counts its seeks.
    fn stored(most: usize) -> (Arc<SlowDisk>, SharedReads) {
        let store = MemoryStore::new();
        for slot in 0..2 {
            for number in 0..SLICES {
                store.apply(vec![Op::Put { key: at(slot).slice_key(number).unwrap(), value: value(slot, number), expect: Expect::Absent }]).unwrap();
            }
        }
        let profile = Profile { disk_bytes_per_s: 1e9, disk_seek_s: 1e-4, ..Profile::shipped("server").unwrap() };
        let disk = Arc::new(SlowDisk::new(Arc::new(store), &profile));
        let shared = SharedReads::new(Arc::clone(&disk) as _, most);
        (disk, shared)
    }

    fn own(shared: &SharedReads, slot: u32, number: u32) {
        let store: &dyn SliceStore = shared;
        let key = at(slot).slice_key(number).unwrap();
        let wanted = value(slot, number);
        let crc32c = store.stat(&key).unwrap().unwrap().crc32c;
        assert_eq!(store.get_expected(&key, wanted.len() as u64, crc32c).unwrap(), Some(wanted));
        assert_eq!(store.get_expected(&key, 7, crc32c).unwrap(), None, "another one than is there");
    }

    fn other(shared: &SharedReads, slot: u32, number: u32) {
        assert_eq!(shared.get_for_other(&at(slot).slice_key(number).unwrap()).unwrap(), value(slot, number));
    }

    #[test]
    fn two_interleaved_readers_share_reads_in_runs() {
        let (disk, shared) = stored(1 << 20);
        for number in 0..SLICES {
            own(&shared, 0, number);
            // Somewhat behind, and elsewhere as well.
            other(&shared, 1, number);
            if number >= 5 {
                other(&shared, 0, number - 5);
            }
        }
        let (accounted, seeks) = disk.accounted();
        assert!(accounted.jobs <= u64::from(2 * SLICES + 4), "{accounted:?}");
        assert!(seeks <= 16, "{seeks} seeks");
        assert!(shared.state().bytes <= 1 << 20);
    }

    #[test]
    fn two_distant_readers_read_runs_of_their_own() {
        let (disk, shared) = stored(1 << 20);
        for number in 0..SLICES {
            let key = at(0).slice_key(number).unwrap();
            let store: &dyn SliceStore = &shared;
            let crc32c = store.stat(&key).unwrap().unwrap().crc32c;
            assert_eq!(store.get_expected(&key, 10_000, crc32c).unwrap(), Some(value(0, number)));
            other(&shared, 0, (number + SLICES / 2) % SLICES);
        }
        let (accounted, seeks) = disk.accounted();
        assert!(accounted.jobs <= u64::from(SLICES + 8), "{accounted:?}");
        assert!(seeks <= 12, "{seeks} seeks");
    }

    #[test]
    fn single_reader_is_unaffected() {
        let (disk, shared) = stored(1 << 20);
        for number in 0..SLICES {
            other(&shared, 0, number);
        }
        assert_eq!((disk.accounted().0.jobs, shared.state().kept.len()), (u64::from(SLICES), 0));
    }

    #[test]
    fn cache_is_bounded_and_keeps_no_changed_value() {
        let (_, shared) = stored(50_000);
        own(&shared, 0, 0);
        for number in 0..SLICES {
            other(&shared, 0, number);
            assert!(shared.state().bytes <= 50_000);
        }
        other(&shared, 1, 3);
        let key = at(1).slice_key(3).unwrap();
        assert!(shared.state().kept.contains_key(&key));
        StoreLayer::apply(&shared, vec![Op::Put { key: key.clone(), value: Bytes::from_static(b"new"), expect: Expect::Any }]).unwrap();
        assert_eq!(shared.get_for_other(&key).unwrap(), "new");
        StoreLayer::apply(&shared, vec![Op::Delete { key: key.clone(), expect: Expect::Any }]).unwrap();
        assert!(shared.get_for_other(&key).is_err());
        std::thread::sleep(2 * RECENT);
        other(&shared, 0, 1);
        assert_eq!(shared.state().kept.len(), 0, "nobody wants it any more");
    }

    #[test]
    fn store_contract_holds() {
        skytether_store::contract::check(|| Box::new(SharedReads::new(Arc::new(MemoryStore::new()), 1 << 20)));
    }
}
