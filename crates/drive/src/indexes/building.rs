//! The thread that builds indexes: what it does next, how it yields to queries, and how it writes segments.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use parking_lot::{Condvar, Mutex, MutexGuard};
use skytether_common::{Error, Key, Kind, PartitionName, Result};
use skytether_emulation::wait::deferred;
use skytether_engine::Reader;
use skytether_engine::indexed::{Indexes, MAX_FILES, Ready, file_slice, head_slice};
use skytether_engine::indexing::Indexing;
use skytether_index::{Built, Definition, Head, Phase, of_partition};
use skytether_store::{Expect, Op, SliceStore, Version};
use tokio::sync::Semaphore;

use super::state::{Entry, IndexState, LEAST_MEMORY, PAGE};

/// How long is waited where there is no memory, and for something to do.
const PAUSE: Duration = Duration::from_millis(500);

/// How often it is seen whether there is space enough.
const LOOK: Duration = Duration::from_secs(5);

/// Files that are written as one change.
const FILES: usize = 16;

/// While queries run, the builder rests this many times as long as it worked.
const REST: u32 = 3;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Arc<dyn SliceStore>,
    pub(super) reader: Arc<Reader>,
    pub(super) indexes: Arc<Indexes>,
    pub(super) pool: Arc<dyn MemoryPool>,
    /// A running query holds one of these.
    pub(super) turns: Arc<Semaphore>,
    pub(super) most_turns: usize,
    /// Bytes that a segment takes at most while it is built.
    pub(super) memory: usize,
    /// The share of the disk that indexes leave free.
    pub(super) leave_free: f64,
    pub(super) state: Mutex<IndexState>,
    pub(super) wake: Condvar,
}

/// Why building stopped.
enum Stopped {
    /// The drive is closed, or the index was dropped, removed or defined again.
    Gone,
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        if error.kind() == Kind::Conflict { Self::Gone } else { Self::Failed(error) }
    }
}

/// The index that is being built.
#[derive(Debug)]
struct IndexJob {
    at: PartitionName,
    key: Key,
    serial: u64,
    definition: Definition,
    /// The definition's, as it was last written.
    version: Version,
}

impl Shared {
    pub(super) fn state(&self) -> MutexGuard<'_, IndexState> {
        self.state.lock()
    }

    /// Waits for `time`, or until there is news.
    fn rest(&self, time: Duration) {
        let mut state = self.state();
        if !state.stop {
            self.wake.wait_for(&mut state, time);
        }
    }

    /// Does `work`, and waits until the device would have done it, and while others have more use for it.
    pub(super) fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        let asked = || self.turns.available_permits() < self.most_turns;
        let (before, started) = (asked(), Instant::now());
        let (done, due) = deferred(work);
        let mut due = due.unwrap_or(started).max(Instant::now());
        if before || asked() {
            due += REST * due.duration_since(started);
        }
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            && !self.state().stop
        {
            self.rest(left);
        }
        done
    }

    pub(super) fn run(&self) {
        let mut looked = Instant::now();
        let mut last: Option<PartitionName> = None;
        loop {
            for (of, name) in self.indexes.damaged() {
                self.change(&skytether_index::partition(&of, &name), |entry| {
                    // An index that was removed is not damaged.
                    if entry.phase != Phase::Dropped {
                        entry.begin_again();
                    }
                });
            }
            let next = {
                let state = self.state();
                if state.stop {
                    return;
                }
                state.next(last.as_ref()).map(|(at, entry)| (at.clone(), entry.serial, entry.definition.clone()))
            };
            let Some((at, serial, definition)) = next else {
                self.rest(PAUSE);
                if looked.elapsed() >= LOOK {
                    looked = Instant::now();
                    if let Err(error) = self.check_space() {
                        self.make_room(error.message());
                    }
                }
                continue;
            };
            match self.work_on(&at, serial, definition).and_then(|mut work| self.build(&mut work)) {
                Ok(()) => {}
                Err(Stopped::Gone) => {
                    // Slices that were written since the index was removed go as well.
                    if self.change(&at, |entry| entry.phase == Phase::Dropped) == Some(true) {
                        self.free(&at);
                    }
                    // If it is there still, another writer has written its definition again.
                    self.rest(PAUSE / 10);
                }
                Err(Stopped::Failed(error)) if error.kind() == Kind::Exhausted => {
                    self.drop_for_space(&at, error.message());
                }
                Err(Stopped::Failed(error)) => {
                    tracing::warn!("{at:?} is not built: {}", error.report());
                    self.change(&at, |entry| {
                        if entry.serial == serial && entry.phase != Phase::Dropped {
                            entry.fail(&error);
                        }
                    });
                }
            }
            last = Some(at);
        }
    }

    /// Takes all indexes off that have something; whether there was one.
    pub(super) fn make_room(&self, why: &str) -> bool {
        let has = |entry: &Entry| entry.bytes > 0 || entry.phase == Phase::Building;
        let all: Vec<PartitionName> = self.state().all.iter().filter(|(_, entry)| has(entry)).map(|(at, _)| at.clone()).collect();
        let mut any = false;
        for at in &all {
            any |= self.drop_for_space(at, why);
        }
        any
    }

    /// Changes the state of an index, if it still exists.
    fn change<T>(&self, at: &PartitionName, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.state().all.get_mut(at).map(change)
    }

    /// Changes the state of an index that is being built, unless building has been called off.
    fn still<T>(&self, work: &IndexJob, change: impl FnOnce(&mut Entry) -> T) -> Result<T, Stopped> {
        let mut state = self.state();
        if state.stop {
            return Err(Stopped::Gone);
        }
        match state.all.get_mut(&work.at) {
            Some(entry) if entry.serial == work.serial && entry.phase != Phase::Dropped => Ok(change(entry)),
            _ => Err(Stopped::Gone),
        }
    }

    /// What the store has of an index: its segments from the first on, as far as they are whole and of the
    /// partition's present content.
    pub(super) fn load(&self, store: &dyn SliceStore, at: &PartitionName, entry: &mut Entry) -> Result<()> {
        let Some(content) = store.stat(&entry.of.key()?)? else { return Ok(()) };
        for segment in 0.. {
            let key = at.slice_key(head_slice(segment))?;
            let Some(stored) = store.stat(&key)? else { break };
            let head = Head::decode(&store.get(&key)?)?;
            let source = head.header.source;
            let columns = head.columns().eq(entry.definition.columns.iter().map(String::as_str)) && head.header.held.iter().eq(entry.definition.held());
            if (source.len, source.crc32c) != (content.len, content.crc32c) || !columns || head.header.first != entry.done() {
                return Err(Error::corrupt("it is of another content of the table"));
            }
            entry.bytes += stored.len + head.header.files.iter().map(|len| u64::from(*len)).sum::<u64>();
            entry.segments.push(Arc::new(head));
        }
        entry.loaded = true;
        self.use_now(at, entry);
        Ok(())
    }

    /// Queries use what there is of an index.
    fn use_now(&self, at: &PartitionName, entry: &Entry) {
        if !entry.segments.is_empty() {
            self.indexes.put(Ready { of: entry.of.clone(), name: entry.name.clone(), at: at.clone(), segments: entry.segments.clone() });
        }
    }

    /// An index to be built, as long as its definition in the store is `definition`.
    fn work_on(&self, at: &PartitionName, serial: u64, definition: Definition) -> Result<IndexJob, Stopped> {
        let key = at.key()?;
        let Some(stored) = self.store.stat(&key)? else {
            // The definition is gone without a notice: a caller that wants the index defines it again.
            let mut state = self.state();
            if state.all.get(at).is_some_and(|entry| entry.serial == serial)
                && let Some(entry) = state.all.remove(at)
            {
                self.indexes.remove(&entry.of, &entry.name);
            }
            return Err(Stopped::Gone);
        };
        let is = match self.store.get(&key) {
            Err(error) if error.kind() == Kind::NotFound => return Err(Stopped::Gone),
            read => Definition::decode(&read?)?,
        };
        if is != definition {
            return Err(Stopped::Gone);
        }
        Ok(IndexJob { at: at.clone(), key, serial, definition, version: stored.version })
    }

    fn build(&self, work: &mut IndexJob) -> Result<(), Stopped> {
        let (of, loaded) = self.still(work, |entry| (entry.of.clone(), entry.loaded))?;
        if !loaded {
            self.remove_slices(&work.at, &work.key)?;
            self.still(work, |entry| entry.loaded = true)?;
        }
        let indexing = self.work(|| Indexing::of(&self.reader, &of, &work.definition))?;
        self.still(work, |entry| (entry.phase, entry.stripes) = (Phase::Building, indexing.stripes()))?;
        loop {
            let (segment, first) = self.still(work, |entry| (entry.segments.len() as u32, entry.done()))?;
            if first >= indexing.stripes() {
                return self.still(work, |entry| (entry.phase, entry.why, entry.failures) = (Phase::Ready, None, 0));
            }
            self.check_space()?;
            let Some((memory, room)) = self.memory() else {
                self.rest(PAUSE);
                continue;
            };
            let mut building = indexing.begin();
            for stripe in first..indexing.stripes() {
                self.still(work, |entry| entry.ahead = building.stripes())?;
                self.work(|| indexing.add(&mut building, stripe))?;
                if building.bytes_with_another() > room {
                    break;
                }
            }
            self.still(work, |entry| entry.ahead = building.stripes())?;
            let built = self.work(|| indexing.finish(building, first))?;
            self.write(work, segment, built)?;
            drop(memory);
        }
    }

    /// Memory for a segment, and how much that is.
    fn memory(&self) -> Option<(MemoryReservation, usize)> {
        let memory = MemoryConsumer::new("an index that is built").register(&self.pool);
        let mut room = self.memory;
        while room >= LEAST_MEMORY {
            if memory.try_grow(room).is_ok() {
                return Some((memory, room));
            }
            room /= 2;
        }
        None
    }

    /// Writes a segment, its head last.
    fn write(&self, work: &mut IndexJob, segment: u32, built: Built) -> Result<(), Stopped> {
        let Built { head, bytes, files } = built;
        if files.len() > MAX_FILES {
            return Err(Error::exhausted(format!("a segment of index {} has {} files; at most {MAX_FILES} are allowed", work.key, files.len())).into());
        }
        let mut left: Vec<(Key, Bytes)> = Vec::with_capacity(files.len() + 1);
        for (file, bytes) in (0u32..).zip(files) {
            left.push((work.at.slice_key(file_slice(segment, file))?, bytes));
        }
        left.push((work.at.slice_key(head_slice(segment))?, bytes));
        let size: u64 = left.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        for some in left.chunks(FILES) {
            // Space that others need is not taken from them again.
            self.still(work, |_| ())?;
            let puts = some.iter().map(|(key, bytes)| Op::Put { key: key.clone(), value: bytes.clone(), expect: Expect::Any }).collect();
            self.as_long_as_defined(work, puts)?;
        }
        self.still(work, |entry| {
            entry.segments.push(Arc::new(head));
            (entry.ahead, entry.bytes) = (0, entry.bytes + size);
            self.use_now(&work.at, entry);
        })
    }

    /// Applies `changes`, if the definition is unchanged.
    fn as_long_as_defined(&self, work: &mut IndexJob, mut changes: Vec<Op>) -> Result<(), Stopped> {
        changes.push(Op::Put { key: work.key.clone(), value: work.definition.encode()?.into(), expect: Expect::Version(work.version) });
        let versions = self.store.apply(changes)?;
        work.version = versions.last().copied().ok_or_else(|| Error::internal("a store told no version"))?;
        Ok(())
    }

    /// Deletes the stored slices of an index, and keeps its definition.
    fn remove_slices(&self, at: &PartitionName, key: &Key) -> Result<()> {
        if let Some((of, name)) = of_partition(at) {
            self.indexes.remove(&of, &name);
        }
        loop {
            let some = self.store.list(&format!("{key};"), None, PAGE)?;
            if some.is_empty() {
                return Ok(());
            }
            let deletes = some.into_iter().map(|entry| Op::Delete { key: entry.key, expect: Expect::Any }).collect();
            self.store.apply(deletes)?;
        }
    }

    /// Takes an index off, and builds it no more; whether there was something of it.
    fn drop_for_space(&self, at: &PartitionName, why: &str) -> bool {
        let Some(had) = self.change(at, |entry| {
            let had = entry.bytes > 0 || entry.phase == Phase::Building;
            (entry.phase, entry.ahead, entry.bytes, entry.why) = (Phase::Dropped, 0, 0, Some(why.to_owned()));
            entry.segments.clear();
            had
        }) else {
            return false;
        };
        self.free(at);
        had
    }

    /// Deletes the stored slices of an index that was removed. It writes nothing: there may be no room even for that.
    fn free(&self, at: &PartitionName) {
        if let Err(error) = at.key().and_then(|key| self.remove_slices(at, &key)) {
            tracing::warn!("what index {at:?} takes could not be freed: {}", error.report());
        }
    }

    /// # Errors
    /// Exhausted where less of the disk is free than indexes may leave.
    fn check_space(&self) -> Result<()> {
        if let Some((free, all)) = self.store.free()?
            && (free as f64) < all as f64 * self.leave_free
        {
            return Err(Error::exhausted(format!("less than {:.0}% of the drive's space is free ({free} of {all} bytes)", 100.0 * self.leave_free)));
        }
        Ok(())
    }
}
