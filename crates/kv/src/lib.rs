//! The ordered key-value store behind the Kinetic door of a drive: any keys of up to 4096 bytes, values of up to 1 MiB,
//! with versions and tags.
//!
//! | module | subject |
//! |---|---|
//! | [`types`] | what callers write and read: [`Change`], [`Record`], [`Failed`] |
//! | `writer` | the queue of writes, and who writes: versions, group commit, counters |
//! | `codec` | bytes of records and of the state |
//! | [`backend`] | the trait below: two ordered maps with atomic commits |
//! | `disk` | a log-structured merge tree (`fjall`) in a directory |
//! | [`memory`], [`fault`] | in memory, with loss of power; failing on purpose: for tests |
//!
//! Invariants:
//! - A batch is carried out as a whole or not at all, also in a crash, and no read sees a part of it.
//! - A read gives the bytes that were put, or an error. Values have a CRC-32C; headers have another one, with their
//!   key.
//! - What was acknowledged as durable is there after a loss of power, or the store refuses to open as `Corrupt`.
//! - A large value (above 16 KiB) is written and removed in the commit of its record.
//! - Memory is bounded by [`Options`]: cache, memtables, and bytes of changes that wait.
//!
//! Reads block for the time of a disk access at most, and need no access to the disk for what is in memory. An async
//! caller runs long ones ([`KeyValues::verify`], [`KeyValues::compact`]) on a thread for blocking work.
//!
//! See also `docs/internals/formats/key-value-store.md`.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod backend;
mod codec;
mod disk;
#[doc(hidden)]
pub mod fault;
#[doc(hidden)]
pub mod memory;
pub mod types;
mod writer;

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Kind, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use backend::{Backend, Space, View};
use codec::{INLINE, Place, SETTINGS, State, Stored};
use disk::Disk;
use memory::Memory;
pub use types::{Change, Durability, Failed, MAX_KEY, MAX_LABEL, MAX_SETTINGS, MAX_VALUE, Meta, Options, Record, To, Usage, Verified, Why};
use writer::{Batch, Command, Desk, Goal, Prepared, Shared, Writer, number_key};

/// Bytes of changes are counted in units of this many.
const UNIT: usize = 1024;
/// How many keys a scan checks in one view.
const STEP: usize = 256;

/// A store of keys and values. Reads run in their callers' threads, and so do small writes that are not flushed. The
/// store owns one thread, which does all other writes.
///
/// Callers share it by `Arc`. Dropping it flushes what was written and ends the thread.
#[derive(Debug)]
pub struct KeyValues {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
    room: Arc<Semaphore>,
    units: usize,
    thread: Option<JoinHandle<()>>,
}

impl KeyValues {
    /// Opens the store in `dir`, or makes it if the directory is absent or empty, and finishes what a crash
    /// interrupted. Writes that reached the disk in part go: they were never acknowledged as durable.
    ///
    /// # Errors
    /// `Conflict` where another process has it open, `Corrupt` where files are damaged or durable writes are missing,
    /// `Unsupported` where a newer version wrote it, `Invalid` where `dir` holds other things or can't be used,
    /// `Exhausted` and `Unavailable` for failures of the disk.
    pub fn open(dir: &Path, options: &Options) -> Result<Self> {
        Self::over(Arc::new(Disk::open(dir, options)?), format!("the key-value store in {}", dir.display()), options)
    }

    /// An empty store in memory, for tests and models.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::assemble(Arc::new(Memory::default()), "the key-value store in memory".to_owned(), &Options::default(), State::default())
    }

    /// A store over what a backend holds.
    ///
    /// # Errors
    /// `Corrupt` where its state is damaged, and those of the backend.
    #[doc(hidden)]
    pub fn over(backend: Arc<dyn Backend>, name: String, options: &Options) -> Result<Self> {
        let state = State::read(backend.view()?.as_ref(), &name)?;
        Ok(Self::assemble(backend, name, options, state))
    }

    fn assemble(backend: Arc<dyn Backend>, name: String, options: &Options, state: State) -> Self {
        let totals = Mutex::new((state.keys, state.value_bytes));
        let shared = Arc::new(Shared { backend, name, totals, broken: RwLock::new(None) });
        let desk = Arc::new(Desk::new(Writer::new(shared.clone(), state, options.capacity)));
        let served = desk.clone();
        let thread = std::thread::Builder::new().name("kv-writer".to_owned()).spawn(move || served.run());
        let no_thread = |error: &std::io::Error| {
            *shared.broken.write() = Some(format!("there is no thread for its writer: {error}"));
            desk.end();
        };
        let thread = thread.inspect_err(no_thread).ok();
        // The semaphore counts in `u32`.
        let units = (options.queue_bytes / UNIT).clamp(1, u32::MAX as usize >> 4);
        Self { shared, desk, room: Arc::new(Semaphore::new(units)), units, thread }
    }

    /// Carries out all changes of `batch`, or none. Versions are compared with the store as it is before the batch; of
    /// several changes of one key in a batch, the last one counts. Batches are carried out in the order in which
    /// [`KeyValues::begin`] returned.
    ///
    /// A call that is dropped before it ends may have been carried out.
    ///
    /// # Errors
    /// See [`Failed`] and [`Why`].
    pub async fn write(&self, batch: Vec<Change>, durability: Durability) -> Result<(), Failed> {
        self.begin(batch, durability).await?.await
    }

    /// As [`KeyValues::write`], in two steps: when this returns, the batch has its place among the writes, so that what
    /// is begun later is carried out later. It waits while the queue is full.
    ///
    /// # Errors
    /// As there, for what is known before the batch is carried out.
    pub async fn begin(&self, batch: Vec<Change>, durability: Durability) -> Result<impl Future<Output = Result<(), Failed>> + Send + use<>, Failed> {
        let unknown = |error| Failed { index: 0, why: Why::Error(error) };
        let bytes: usize = batch.iter().map(Change::weight).sum();
        let units = bytes.div_ceil(UNIT).clamp(1, self.units) as u32;
        let room = self.room_for(units).await.map_err(unknown)?;
        let mut changes = Vec::with_capacity(batch.len());
        for (index, change) in batch.into_iter().enumerate() {
            changes.push(prepare(change).map_err(|error| Failed { index, why: Why::Error(error) })?);
        }
        let (answer, done) = oneshot::channel();
        let batch = Batch { changes, bytes, durability, answer, room };
        let here = batch.is_small() && self.shared.backend.is_ready();
        self.desk.push(Command::Write(batch), here).map_err(|_| unknown(self.gone()))?;
        let shared = self.shared.clone();
        let turn = here.then(|| Turn { desk: self.desk.clone(), taken: false });
        Ok(async move {
            if let Some(turn) = turn {
                turn.take().await;
            }
            done.await.unwrap_or_else(|_| Err(Failed { index: 0, why: Why::Error(shared.gone()) }))
        })
    }

    /// Makes all writes durable that were acknowledged before the call.
    ///
    /// # Errors
    /// `Unavailable` where it failed: it is unknown which ones are durable, and the store has to be opened again.
    pub async fn flush(&self) -> Result<()> {
        self.begin_flush().await?.await
    }

    /// As [`KeyValues::flush`], in two steps, as [`KeyValues::begin`].
    ///
    /// # Errors
    /// As there.
    pub async fn begin_flush(&self) -> Result<impl Future<Output = Result<()>> + Send + use<>> {
        let (answer, done) = oneshot::channel();
        let room = self.room_for(1).await?;
        self.send(Command::Flush(answer))?;
        drop(room);
        let shared = self.shared.clone();
        Ok(async move { done.await.unwrap_or_else(|_| Err(shared.gone())) })
    }

    /// Stores `settings`, durable when the call returns. Keys and settings are apart.
    ///
    /// # Errors
    /// `Invalid` for more than [`MAX_SETTINGS`] bytes, `Unavailable` as for [`KeyValues::flush`].
    pub async fn set_settings(&self, settings: Bytes) -> Result<()> {
        types::check_settings(&settings)?;
        let (answer, done) = oneshot::channel();
        let _room = self.room_for(1).await?;
        self.send(Command::Settings(settings, answer))?;
        done.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// Removes all keys and the settings, durable when the call returns; a crash leaves all of them or none. With
    /// `secure`, the files of before are overwritten with zeros before they are removed, at the next opening if the
    /// process ends meanwhile. Blocks of files that the store had removed earlier, and copies that a file system or a
    /// flash translation layer keeps, are not overwritten.
    ///
    /// # Errors
    /// Of the kind of the failure; the text says what is the case. Mostly nothing has changed. `Unavailable` is also
    /// the error where all is removed and the old files remain until the store is opened again, and where the outcome
    /// is unknown; the store takes no more writes in the last case.
    pub async fn erase(&self, secure: bool) -> Result<()> {
        let (answer, done) = oneshot::channel();
        let _room = self.room_for(1).await?;
        self.send(Command::Erase { secure, answer })?;
        done.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// The settings, if there are any.
    ///
    /// # Errors
    /// `Corrupt` for damaged bytes, other kinds for failures of the disk.
    pub fn settings(&self) -> Result<Option<Bytes>> {
        self.shared.backend.view()?.get(Space::Records, SETTINGS)
    }

    /// The record of `key`, if there is one.
    ///
    /// # Errors
    /// `Corrupt`, with the key in its text, for bytes that are not what was put; other kinds for failures of the disk.
    pub fn get(&self, key: &[u8]) -> Result<Option<Record>> {
        let view = self.shared.backend.view()?;
        let Some(stored) = stored(view.as_ref(), key)? else { return Ok(None) };
        load(view.as_ref(), key, stored).map(Some)
    }

    /// What is stored about the value of `key`, without reading a large value.
    ///
    /// # Errors
    /// As [`KeyValues::get`].
    pub fn meta(&self, key: &[u8]) -> Result<Option<Meta>> {
        Ok(stored(self.shared.backend.view()?.as_ref(), key)?.map(|stored| stored.meta))
    }

    /// The first key above `after`, with its record.
    ///
    /// # Errors
    /// As [`KeyValues::get`].
    pub fn next(&self, after: &[u8]) -> Result<Option<(Bytes, Record)>> {
        self.first(Bound::Excluded(after), Bound::Unbounded, false)
    }

    /// The last key below `before`, with its record.
    ///
    /// # Errors
    /// As [`KeyValues::get`].
    pub fn previous(&self, before: &[u8]) -> Result<Option<(Bytes, Record)>> {
        self.first(Bound::Unbounded, Bound::Excluded(before), true)
    }

    /// The first `limit` keys within the bounds, or with `reverse` the last ones, from the end on. No value is read
    /// that is stored apart. Bounds that are not in order contain no key.
    ///
    /// # Errors
    /// As [`KeyValues::get`].
    pub fn keys(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, reverse: bool, limit: usize) -> Result<Vec<Bytes>> {
        let view = self.shared.backend.view()?;
        let Some(bounds) = Bounds::new(from, to) else { return Ok(Vec::new()) };
        bounds.entries(view.as_ref(), reverse).take(limit).map(|entry| entry.map(|(key, _)| key)).collect()
    }

    /// Reads the records within the bounds and says which are damaged; for media scans. It ends after `limit` keys, or
    /// with the first key after `deadline`, so at least one key is checked. A scan goes on from [`Verified::last`].
    ///
    /// # Errors
    /// `Corrupt` where damage hides which keys there are, other kinds for failures of the disk.
    pub fn verify(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, reverse: bool, limit: usize, deadline: Option<Instant>) -> Result<Verified> {
        let mut verified = Verified::default();
        let Some(bounds) = Bounds::new(from, to) else { return Ok(Verified { complete: true, ..verified }) };
        // A view of its own for each step: a long one would keep what is replaced meanwhile.
        let mut at = bounds;
        loop {
            let view = self.shared.backend.view()?;
            let mut steps = 0;
            let mut entries = at.entries(view.as_ref(), reverse);
            while steps < STEP && verified.checked < limit as u64 {
                let Some(entry) = entries.next() else { return Ok(Verified { complete: true, ..verified }) };
                let (key, record) = entry.map_err(|error| {
                    let after = verified.last.as_deref().map_or_else(|| "the start of the range".to_owned(), codec::shown);
                    error.context(format!("cannot list the keys that follow {after}"))
                })?;
                let checked = codec::decode(&key, &record).and_then(|stored| load(view.as_ref(), &key, stored));
                match checked {
                    Ok(_) => {}
                    Err(error) if error.kind() == Kind::Corrupt => verified.damaged.push(key.clone()),
                    Err(error) => return Err(error),
                }
                verified.checked += 1;
                verified.last = Some(key);
                steps += 1;
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(verified);
                }
            }
            if verified.checked >= limit as u64 {
                return Ok(verified);
            }
            drop(entries);
            if let Some(last) = &verified.last {
                at.go_on(last, reverse);
            }
        }
    }

    /// Rewrites the files without what was replaced and deleted; for media optimisation. Reads go on. Writes go on as
    /// long as there is room for new tables, and are `Unavailable` after a minute without.
    ///
    /// # Errors
    /// `Corrupt` for damaged files, `Unavailable` and `Exhausted` for failures of the disk.
    pub fn compact(&self) -> Result<()> {
        self.shared.backend.compact()
    }

    /// What the store holds: exact numbers of keys and bytes of values, and what the files occupy.
    ///
    /// # Errors
    /// Failures of the disk.
    pub fn usage(&self) -> Result<Usage> {
        let stored_bytes = self.shared.backend.stored_bytes()?;
        let (keys, value_bytes) = *self.shared.totals.lock();
        Ok(Usage { keys, value_bytes, stored_bytes })
    }

    fn first(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, reverse: bool) -> Result<Option<(Bytes, Record)>> {
        let view = self.shared.backend.view()?;
        let Some(bounds) = Bounds::new(from, to) else { return Ok(None) };
        let Some((key, record)) = bounds.entries(view.as_ref(), reverse).next().transpose()? else { return Ok(None) };
        let record = load(view.as_ref(), &key, codec::decode(&key, &record)?)?;
        Ok(Some((key, record)))
    }

    /// Waits until the queue has room for as many units.
    async fn room_for(&self, units: u32) -> Result<OwnedSemaphorePermit> {
        if let Ok(room) = self.room.clone().try_acquire_many_owned(units) {
            return Ok(room);
        }
        // Batches may wait in the queue for callers that wait here themselves.
        self.desk.ring();
        self.room.clone().acquire_many_owned(units).await.map_err(|_| self.gone())
    }

    fn send(&self, command: Command) -> Result<()> {
        self.desk.push(command, false).map_err(|_| self.gone())
    }

    fn gone(&self) -> Error {
        self.shared.gone()
    }
}

impl Drop for KeyValues {
    fn drop(&mut self) {
        self.desk.close();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            drop(thread.join());
        }
    }
}

/// A batch in the queue whose caller is to carry it out.
struct Turn {
    desk: Arc<Desk>,
    taken: bool,
}

impl Turn {
    async fn take(mut self) {
        if self.desk.is_busy() {
            // Others that are ready put their batches into the queue meanwhile.
            tokio::task::yield_now().await;
        }
        self.taken = true;
        self.desk.serve_here();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.taken {
            // The caller has given up.
            self.desk.ring();
        }
    }
}

/// Checks a change, and does what its caller can do for the writer: checksums and the bytes of small records.
fn prepare(change: Change) -> Result<Prepared> {
    let Change { key, expect, to } = change;
    let too_long = |what: &str, len: usize, most: usize| {
        Err(Error::invalid(format!("the {what} of key {} has {len} bytes: at most {most} are stored", codec::shown(&key))))
    };
    if key.len() > MAX_KEY {
        return Err(Error::invalid(format!("a key of {} bytes is too long: at most {MAX_KEY} are stored", key.len())));
    }
    let to = match to {
        To::Delete => Goal::Gone,
        To::Put { version, tag, algorithm, value } => {
            for (what, bytes, most) in [("version", &version, MAX_LABEL), ("tag", &tag, MAX_LABEL), ("value", &value, MAX_VALUE)] {
                if bytes.len() > most {
                    return too_long(what, bytes.len(), most);
                }
            }
            let (crc, len) = (crc32c(&value), value.len() as u32);
            let meta = Meta { version, tag, algorithm, len };
            if value.len() <= INLINE {
                let record = codec::encode(&key, &meta, crc, &Place::Here(value));
                Goal::Small { record, version: meta.version, len }
            } else {
                Goal::Large { meta, crc, value }
            }
        }
    };
    Ok(Prepared { key: codec::stored_key(&key), expect, to })
}

/// The record of `key`; its value is checked where it is read.
fn stored(view: &dyn View, key: &[u8]) -> Result<Option<Stored>> {
    if key.len() > MAX_KEY {
        return Ok(None);
    }
    let record = view.get(Space::Records, &codec::stored_key(key)).map_err(|error| error.context(format!("cannot read key {}", codec::shown(key))))?;
    record.map(|record| codec::decode(key, &record)).transpose()
}

/// The record with its value, checked.
fn load(view: &dyn View, key: &[u8], stored: Stored) -> Result<Record> {
    let value = match &stored.place {
        Place::Here(value) => value.clone(),
        Place::Apart(number) => view
            .get(Space::Values, &number_key(*number))
            .map_err(|error| error.context(format!("cannot read the value of key {}", codec::shown(key))))?
            .ok_or_else(|| codec::damaged(key, &format!("has lost its value, number {number}")))?,
    };
    codec::check_value(key, &stored, &value)?;
    Ok(Record { meta: stored.meta, value })
}

/// Bounds of stored keys that are in order.
struct Bounds {
    from: Bound<Bytes>,
    to: Bound<Bytes>,
}

impl Bounds {
    /// `None` where no key is within.
    fn new(from: Bound<&[u8]>, to: Bound<&[u8]>) -> Option<Self> {
        let in_order = match (from, to) {
            (Bound::Included(from), Bound::Included(to)) => from <= to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from < to,
            _ => true,
        };
        let from = match from {
            Bound::Unbounded => Bound::Included(Bytes::from_static(&[codec::RECORD])),
            bound => bound.map(codec::stored_key),
        };
        let to = match to {
            Bound::Unbounded => Bound::Excluded(Bytes::from_static(&[codec::RECORD + 1])),
            bound => bound.map(codec::stored_key),
        };
        in_order.then_some(Self { from, to })
    }

    /// Leaves out what comes up to `last`, in the direction of a scan.
    fn go_on(&mut self, last: &[u8], reverse: bool) {
        let last = Bound::Excluded(codec::stored_key(last));
        if reverse { self.to = last } else { self.from = last }
    }

    /// Keys as callers know them, with their records.
    fn entries<'a>(&self, view: &'a dyn View, reverse: bool) -> backend::Entries<'a> {
        let is_empty = match (&self.from, &self.to) {
            (Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from), Bound::Excluded(to)) | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
            _ => false,
        };
        if is_empty {
            return Box::new(std::iter::empty());
        }
        let entries = view.range(self.from.as_ref().map(AsRef::as_ref), self.to.as_ref().map(AsRef::as_ref), reverse);
        Box::new(entries.map(|entry| entry.map(|(mut key, record)| (key.split_off(1.min(key.len())), record))))
    }
}
