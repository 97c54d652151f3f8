//! The indexes of a drive: built in the background by the drive itself, used as far as they are built, dropped when space is short.
//!
//! What is to be built is told by the definitions in the store (`skytether_index::Definition`, under a partition's key of its own), so that a drive needs nobody to go on after it was opened again. There is one thread, which
//! works while nobody asks for anything, and a quarter of the time else; what it reads and computes is booked on the drive's device like everything. Each write to an index is one change with its definition, on the condition
//! that nobody changed that: an index whose generation or definition is gone is never written again.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use skytether_common::{Error, Key, Kind, PartitionName, Result};
use skytether_engine::Reader;
use skytether_engine::indexed::{Indexes, MAX_FILES, Ready, file_slice, head_slice};
use skytether_engine::indexing::Indexing;
use skytether_index::{Built, Definition, Head, Phase, State, of_partition};
use skytether_pace::wait::deferred;
use skytether_store::{Expect, Op, SliceStore, Version};
use tokio::sync::Semaphore;

/// Bytes of memory that a segment takes while it is built, if there are so many, and the share of the drive's that it takes at most: the rest is for queries.
const MEMORY: usize = 128 << 20;
const SHARE: usize = 4;

/// The least that is tried with.
const LEAST_MEMORY: usize = 4 << 20;

/// How long is waited where there is no memory, and for something to do.
const PAUSE: Duration = Duration::from_millis(500);

/// How often it is seen whether there is space enough.
const LOOK: Duration = Duration::from_secs(5);

/// Files that are written as one change.
const FILES: usize = 16;

/// Keys that are listed at once.
const PAGE: usize = 128;

/// While queries run, the builder rests so many times as long as it worked.
const REST: u32 = 3;

/// One index.
#[derive(Debug)]
struct Entry {
    of: PartitionName,
    name: String,
    definition: Definition,
    phase: Phase,
    segments: Vec<Arc<Head>>,
    /// Whether what the store has of it was looked at.
    loaded: bool,
    /// Stripes that are being put into the next segment.
    ahead: u32,
    stripes: u32,
    bytes: u64,
    why: Option<String>,
}

impl Entry {
    fn new(of: PartitionName, name: String, definition: Definition) -> Self {
        Self { of, name, definition, phase: Phase::Waiting, segments: Vec::new(), loaded: false, ahead: 0, stripes: 0, bytes: 0, why: None }
    }

    fn done(&self) -> u32 {
        self.segments.iter().map(|head| head.header.stripes.len() as u32).sum()
    }

    fn state(&self) -> State {
        State {
            of: self.of.clone(),
            name: self.name.clone(),
            phase: self.phase,
            stripes: (self.done() + self.ahead, self.stripes),
            rows: self.segments.iter().map(|head| u64::from(head.rows())).sum(),
            bytes: self.bytes,
            why: self.why.clone(),
        }
    }
}

#[derive(Debug, Default)]
struct Known {
    stop: bool,
    /// By the partitions that they lie in.
    all: BTreeMap<PartitionName, Entry>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn SliceStore>,
    reader: Arc<Reader>,
    indexes: Arc<Indexes>,
    pool: Arc<dyn MemoryPool>,
    /// Who runs a query holds one of these.
    turns: Arc<Semaphore>,
    most_turns: usize,
    /// Bytes that a segment takes at most while it is built.
    memory: usize,
    /// The share of the disk that indexes leave free.
    leave_free: f64,
    known: Mutex<Known>,
    wake: Condvar,
}

/// Builds the indexes of a drive, until it is dropped.
#[derive(Debug)]
pub(crate) struct Builder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the builder stands on.
pub(crate) struct Ground {
    /// Where indexes are found and written.
    pub(crate) store: Arc<dyn SliceStore>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) pool: Arc<dyn MemoryPool>,
    pub(crate) turns: Arc<Semaphore>,
    /// Bytes that the pool has.
    pub(crate) limit: usize,
    pub(crate) leave_free: f64,
}

impl Builder {
    /// Looks what indexes `store` has, which are used from now on, and goes on building those that are not ready. `open` is the store without the device's disk: looking is a part of opening a drive.
    pub(crate) fn begin(open: &dyn SliceStore, ground: Ground) -> Self {
        let Ground { store, reader, indexes, pool, turns, limit, leave_free } = ground;
        let memory = MEMORY.min(limit / SHARE).max(LEAST_MEMORY);
        let most_turns = turns.available_permits();
        let shared = Arc::new(Shared { store, reader, indexes, pool, turns, most_turns, memory, leave_free, known: Mutex::default(), wake: Condvar::new() });
        match definitions(open) {
            Ok(found) => {
                for (at, definition) in found {
                    if let Some((of, name)) = of_partition(&at) {
                        let mut entry = Entry::new(of, name, definition);
                        if let Err(error) = shared.load(open, &at, &mut entry) {
                            (entry.segments, entry.bytes) = (Vec::new(), 0);
                            tracing::warn!("index {} of {} can't be read, and is built again: {}", entry.name, entry.of.dataset, error.full_text());
                        }
                        shared.known().all.insert(at, entry);
                    }
                }
            }
            Err(error) => tracing::warn!("indexes can't be listed: {}", error.full_text()),
        }
        let works = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("indexes".into()).spawn(move || works.run());
        if let Err(error) = &thread {
            tracing::warn!("indexes are not built: {error}");
        }
        Self { shared, thread: thread.ok() }
    }

    /// What there is, and how far it is.
    pub(crate) fn states(&self) -> Vec<State> {
        self.shared.known().all.values().map(Entry::state).collect()
    }

    /// Whether something could be dropped.
    pub(crate) fn takes_space(&self) -> bool {
        self.shared.known().all.values().any(|entry| entry.bytes > 0 || entry.phase == Phase::Building)
    }

    /// The store was changed by `batch`.
    pub(crate) fn changed(&self, batch: &[Op]) {
        let mut changed = false;
        for op in batch {
            let Some((at, None)) = PartitionName::parse(op.key()) else { continue };
            let mut known = self.shared.known();
            match (of_partition(&at), op) {
                (Some((of, name)), Op::Put { value, .. }) => match Definition::decode(value) {
                    Ok(definition) if known.all.get(&at).is_none_or(|entry| entry.definition != definition || entry.phase == Phase::Dropped) => {
                        self.shared.indexes.remove(&of, &name);
                        known.all.insert(at, Entry::new(of, name, definition));
                        changed = true;
                    }
                    Ok(_) => {}
                    Err(error) => tracing::warn!("index {name} of {} is not built: {}", of.dataset, error.full_text()),
                },
                (Some((of, name)), Op::Delete { .. }) => {
                    self.shared.indexes.remove(&of, &name);
                    known.all.remove(&at);
                    changed = true;
                }
                // A partition that comes later than the index of it.
                (None, Op::Put { .. } | Op::Link { .. }) => {
                    for entry in known.all.values_mut().filter(|entry| entry.of == at && entry.phase == Phase::Failed) {
                        (entry.phase, entry.loaded) = (Phase::Waiting, false);
                        changed = true;
                    }
                }
                // Definitions are not linked.
                (None, Op::Delete { .. }) | (_, Op::Check { .. }) | (Some(_), Op::Link { .. }) => {}
            }
        }
        if changed {
            self.shared.wake.notify_all();
        }
    }

    /// Takes all indexes off the drive, because of `why`; whether there was one. Blocks.
    pub(crate) fn make_room(&self, why: &str) -> bool {
        self.shared.make_room(why)
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.shared.known().stop = true;
        self.shared.wake.notify_all();
        // It holds the store. What it is at takes as long as a stripe, or putting a segment in order.
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread that builds indexes panicked");
        }
    }
}

/// The definitions in a store, with the partitions that they are the keys of.
fn definitions(store: &dyn SliceStore) -> Result<Vec<(PartitionName, Definition)>> {
    let (mut found, mut after) = (Vec::new(), None::<Key>);
    loop {
        let page = store.list("", after.as_ref(), PAGE)?;
        let full = page.len() == PAGE;
        let mut next = None;
        for entry in page {
            next = Some(entry.key.clone());
            match PartitionName::parse(&entry.key) {
                // No need to walk through its slices.
                Some((partition, Some(_))) => {
                    next = Some(Key::new(format!("{};~", partition.key()?))?);
                    break;
                }
                Some((at, None)) if of_partition(&at).is_some() => match store.get(&entry.key).and_then(|bytes| Definition::decode(&bytes)) {
                    Ok(definition) => found.push((at, definition)),
                    Err(error) => tracing::warn!("{} is not built: {}", entry.key, error.full_text()),
                },
                _ => {}
            }
        }
        let jumped = next.as_ref().is_some_and(|key| key.as_str().ends_with(";~"));
        if next.is_none() || (!full && !jumped) {
            return Ok(found);
        }
        after = next;
    }
}

/// Why building stopped.
enum Stopped {
    /// The drive is closed, or the index was dropped or defined anew.
    Gone,
    Failed(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        if error.kind() == Kind::Conflict { Self::Gone } else { Self::Failed(error) }
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits so long, or until there is something new.
    fn rest(&self, time: Duration) {
        let known = self.known();
        if !known.stop {
            drop(self.wake.wait_timeout(known, time).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Does `work`, and waits until the device would have done it, and while others have more use for it.
    fn work<T>(&self, work: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let (done, due) = deferred(work);
        let mut due = due.unwrap_or(started);
        if self.turns.available_permits() < self.most_turns {
            due = due.max(Instant::now()) + REST * started.elapsed().min(PAUSE);
        }
        while let Some(left) = due.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
            && !self.known().stop
        {
            self.rest(left);
        }
        done
    }

    fn run(&self) {
        let mut looked = Instant::now();
        loop {
            for (of, name) in self.indexes.damaged() {
                self.begin_again(&skytether_index::partition(&of, &name));
            }
            let next = {
                let known = self.known();
                if known.stop {
                    return;
                }
                known
                    .all
                    .iter()
                    .find(|(_, entry)| matches!(entry.phase, Phase::Waiting | Phase::Building))
                    .map(|(at, entry)| (at.clone(), entry.definition.clone()))
            };
            let Some((at, definition)) = next else {
                self.rest(PAUSE);
                if looked.elapsed() >= LOOK {
                    looked = Instant::now();
                    if let Err(error) = self.check_space() {
                        self.make_room(error.message());
                    }
                }
                continue;
            };
            match self.build(&at, &definition) {
                Ok(()) => {}
                // If it is there still, somebody wrote its definition anew.
                Err(Stopped::Gone) => self.rest(PAUSE / 10),
                Err(Stopped::Failed(error)) if error.kind() == Kind::Exhausted => {
                    self.drop_for_space(&at, error.message());
                }
                Err(Stopped::Failed(error)) => {
                    tracing::warn!("{at:?} is not built: {}", error.full_text());
                    self.change(&at, |entry| (entry.phase, entry.ahead, entry.why) = (Phase::Failed, 0, Some(error.full_text())));
                }
            }
        }
    }

    /// Takes all indexes off that have something; whether there was one.
    fn make_room(&self, why: &str) -> bool {
        let all: Vec<PartitionName> = self.known().all.iter().filter(|(_, entry)| entry.bytes > 0).map(|(at, _)| at.clone()).collect();
        all.iter().fold(false, |any, at| self.drop_for_space(at, why) || any)
    }

    /// Changes what is known of an index, if there still is one.
    fn change<T>(&self, at: &PartitionName, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.known().all.get_mut(at).map(change)
    }

    /// Whether an index is still to be what it was.
    fn wanted(&self, at: &PartitionName, definition: &Definition) -> bool {
        let known = self.known();
        !known.stop && known.all.get(at).is_some_and(|entry| entry.definition == *definition && entry.phase != Phase::Dropped)
    }

    /// What the store has of an index: its segments from the first on, as far as they are whole and of the partition's present content.
    fn load(&self, store: &dyn SliceStore, at: &PartitionName, entry: &mut Entry) -> Result<()> {
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

    /// What is stored of an index is not worth anything.
    fn begin_again(&self, at: &PartitionName) {
        self.change(at, |entry| {
            (entry.phase, entry.loaded, entry.ahead, entry.bytes) = (Phase::Waiting, false, 0, 0);
            entry.segments.clear();
        });
    }

    /// The definition's version, as long as it is `definition`.
    fn version(&self, key: &Key, definition: &Definition) -> Result<Version, Stopped> {
        let entry = self.store.stat(key)?.ok_or(Stopped::Gone)?;
        let same = self.store.get(key).and_then(|bytes| Definition::decode(&bytes)).is_ok_and(|is| is == *definition);
        if same { Ok(entry.version) } else { Err(Stopped::Gone) }
    }

    fn build(&self, at: &PartitionName, definition: &Definition) -> Result<(), Stopped> {
        let key = at.key()?;
        let mut version = self.version(&key, definition)?;
        let (of, loaded) = self.change(at, |entry| (entry.of.clone(), entry.loaded)).ok_or(Stopped::Gone)?;
        if !loaded {
            self.remove_slices(at, &key)?;
            self.change(at, |entry| entry.loaded = true);
        }
        let indexing = self.work(|| Indexing::of(&self.reader, &of, definition))?;
        self.change(at, |entry| (entry.phase, entry.stripes) = (Phase::Building, indexing.stripes()));
        loop {
            let (segment, first) = self.change(at, |entry| (entry.segments.len() as u32, entry.done())).ok_or(Stopped::Gone)?;
            if first >= indexing.stripes() {
                self.change(at, |entry| (entry.phase, entry.why) = (Phase::Ready, None));
                return Ok(());
            }
            self.check_space()?;
            let Some((memory, room)) = self.memory() else {
                self.rest(PAUSE);
                if !self.wanted(at, definition) {
                    return Err(Stopped::Gone);
                }
                continue;
            };
            let mut building = indexing.begin();
            for stripe in first..indexing.stripes() {
                if !self.wanted(at, definition) {
                    return Err(Stopped::Gone);
                }
                self.work(|| indexing.add(&mut building, stripe))?;
                self.change(at, |entry| entry.ahead = building.stripes());
                // Another stripe like the largest must fit, too.
                if building.bytes() + building.bytes() / building.stripes().max(1) as usize > room {
                    break;
                }
            }
            let built = self.work(|| indexing.finish(building, first))?;
            drop(memory);
            if !self.wanted(at, definition) {
                return Err(Stopped::Gone);
            }
            self.write(at, &key, definition, &mut version, segment, built)?;
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
    fn write(&self, at: &PartitionName, key: &Key, definition: &Definition, version: &mut Version, segment: u32, built: Built) -> Result<(), Stopped> {
        let Built { head, bytes, files } = built;
        if files.len() > MAX_FILES {
            return Err(Error::exhausted(format!("a segment of index {key} has {} files; at most {MAX_FILES} are allowed", files.len())).into());
        }
        let mut left: Vec<(Key, Bytes)> = Vec::with_capacity(files.len() + 1);
        for (file, bytes) in (0u32..).zip(files) {
            left.push((at.slice_key(file_slice(segment, file))?, bytes));
        }
        left.push((at.slice_key(head_slice(segment))?, bytes));
        let size: u64 = left.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        for some in left.chunks(FILES) {
            let puts = some.iter().map(|(key, bytes)| Op::Put { key: key.clone(), value: bytes.clone(), expect: Expect::Any }).collect();
            self.as_long_as_defined(puts, key, definition, version)?;
        }
        self.change(at, |entry| {
            entry.segments.push(Arc::new(head));
            (entry.ahead, entry.bytes) = (0, entry.bytes + size);
            self.use_now(at, entry);
        });
        Ok(())
    }

    /// Makes `changes`, if the definition is what it was; its next version.
    fn as_long_as_defined(&self, mut changes: Vec<Op>, key: &Key, definition: &Definition, version: &mut Version) -> Result<(), Stopped> {
        changes.push(Op::Put { key: key.clone(), value: definition.encode()?.into(), expect: Expect::Version(*version) });
        let versions = self.store.apply(changes)?;
        *version = versions.last().copied().ok_or_else(|| Error::internal("a store told no version"))?;
        Ok(())
    }

    /// Deletes what is stored of an index but for its definition.
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
        // Nothing is written for it: there may be no room for the least.
        if let Err(error) = at.key().and_then(|key| self.remove_slices(at, &key)) {
            tracing::warn!("what index {at:?} takes could not be freed: {}", error.full_text());
        }
        had
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
