//! What writes: one caller at a time, and mostly a thread of its own.
//!
//! The writer takes what waits, checks versions against the store and the changes that it accepted before, and carries
//! out all accepted batches in one commit. One flush serves all that ask for one (group commit). After a failed commit
//! the store takes no more writes: it is unknown what reached the disk.
//!
//! A commit that waits for no disk takes less time than a change of threads. So callers of small writes that are not
//! flushed carry out what waits themselves, where [`Desk::serve_here`] finds that nothing else is in the way.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};
use skytether_common::{Error, Kind, Result};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::backend::{Backend, Erased, Space, Step, View};
use crate::codec::{self, Place, SETTINGS, STATE, State};
use crate::types::{Durability, Failed, Meta, Why};

/// How many batches one commit has at most.
const MOST_BATCHES: usize = 1024;
/// From how many bytes on no further batch joins a commit.
const ENOUGH_BYTES: usize = 8 << 20;
/// How many commits a caller carries out at most, before others of its thread have their turn.
const COMMITS_HERE: usize = 8;
/// How many bytes a batch has at most that its caller carries out. More would keep others of its thread waiting.
const SMALL_BYTES: usize = 64 << 10;

/// A change that its caller has checked and encoded.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// As stored.
    pub(crate) key: Bytes,
    pub(crate) expect: Option<Bytes>,
    pub(crate) to: Goal,
}

#[derive(Debug)]
pub(crate) enum Goal {
    /// A record with its value.
    Small {
        record: Bytes,
        version: Bytes,
        len: u32,
    },
    /// A value that is stored apart.
    Large {
        meta: Meta,
        crc: u32,
        value: Bytes,
    },
    Gone,
}

impl Prepared {
    fn value_len(&self) -> u64 {
        match &self.to {
            Goal::Small { len, .. } => u64::from(*len),
            Goal::Large { value, .. } => value.len() as u64,
            Goal::Gone => 0,
        }
    }
}

/// A batch that waits.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) changes: Vec<Prepared>,
    pub(crate) bytes: usize,
    pub(crate) durability: Durability,
    pub(crate) answer: oneshot::Sender<Result<(), Failed>>,
    pub(crate) room: OwnedSemaphorePermit,
}

impl Batch {
    /// Whether its caller may carry it out.
    pub(crate) fn is_small(&self) -> bool {
        self.durability == Durability::Back && self.bytes <= SMALL_BYTES
    }
}

/// What the writer is asked for.
#[derive(Debug)]
pub(crate) enum Command {
    Write(Batch),
    Flush(oneshot::Sender<Result<()>>),
    Settings(Bytes, oneshot::Sender<Result<()>>),
    Erase { secure: bool, answer: oneshot::Sender<Result<()>> },
}

/// What waits, and whether more may come.
#[derive(Debug, Default)]
struct Waiting {
    commands: VecDeque<Command>,
    /// The store is dropped: the thread ends when nothing waits.
    closing: bool,
    /// The thread has ended.
    closed: bool,
}

/// The queue, and the writer for the caller or thread that serves it.
#[derive(Debug)]
pub(crate) struct Desk {
    waiting: Mutex<Waiting>,
    bell: Condvar,
    writer: Mutex<Writer>,
    /// Whether the last commit had several batches.
    several: AtomicBool,
}

/// Ends the queue where a commit panics: the writer's state is no longer that of the store.
struct Ends<'d>(&'d Desk);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
        }
    }
}

impl Desk {
    pub(crate) fn new(writer: Writer) -> Self {
        Self { waiting: Mutex::default(), bell: Condvar::new(), writer: Mutex::new(writer), several: AtomicBool::new(false) }
    }

    /// Puts a command at the end of the queue. The thread serves it, unless `here`: then the caller must go on with
    /// [`Desk::serve_here`] or [`Desk::ring`].
    pub(crate) fn push(&self, command: Command, here: bool) -> Result<(), Command> {
        {
            let mut waiting = self.waiting.lock();
            if waiting.closing || waiting.closed {
                return Err(command);
            }
            waiting.commands.push_back(command);
        }
        if !here {
            self.bell.notify_one();
        }
        Ok(())
    }

    /// Lets the thread serve what waits.
    pub(crate) fn ring(&self) {
        // With the lock: else the bell may ring between the thread's look at the queue and its sleep.
        let _waiting = self.waiting.lock();
        self.bell.notify_one();
    }

    /// Whether several batches came at a time before, so that it pays to let others put theirs into the queue.
    pub(crate) fn is_busy(&self) -> bool {
        self.several.load(Ordering::Relaxed)
    }

    /// Carries out what waits, as long as it is small and needs no disk. The rest is left to the thread, and so is what
    /// waits after some commits. A caller that finds another one at work may go: that one looks at the queue again
    /// before it goes itself.
    pub(crate) fn serve_here(&self) {
        let mut commits = 0;
        loop {
            // Pairs with the fence below: either this caller gets the writer, or who has it finds this one's command.
            fence(Ordering::SeqCst);
            let Some(mut writer) = self.writer.try_lock() else { return };
            let ends = Ends(self);
            while let Some(first) = (commits < COMMITS_HERE && writer.shared.backend.is_ready()).then(|| self.next_batch(true)).flatten() {
                commits += 1;
                self.several.store(writer.write(first, || self.next_batch(true)), Ordering::Relaxed);
            }
            drop(writer);
            drop(ends);
            fence(Ordering::SeqCst);
            match self.waiting.lock().commands.front() {
                None => return,
                Some(Command::Write(batch)) if commits < COMMITS_HERE && batch.is_small() && self.is_ready() => {}
                Some(_) => {
                    self.bell.notify_one();
                    return;
                }
            }
        }
    }

    fn is_ready(&self) -> bool {
        self.writer.try_lock().is_none_or(|writer| writer.shared.backend.is_ready())
    }

    /// The first command, if it is a batch.
    fn next_batch(&self, small: bool) -> Option<Batch> {
        let mut waiting = self.waiting.lock();
        match waiting.commands.pop_front() {
            Some(Command::Write(batch)) if !small || batch.is_small() => Some(batch),
            Some(other) => {
                waiting.commands.push_front(other);
                None
            }
            None => None,
        }
    }

    /// What waits. Where nothing does, and `several` batches were in the last commit, their callers get the processor
    /// once to ask for more: many small commits cost more than few large ones.
    fn joining(&self, several: bool) -> Option<Batch> {
        let next = self.next_batch(false);
        if next.is_some() || !several {
            return next;
        }
        std::thread::yield_now();
        self.next_batch(false)
    }

    /// The thread: serves until [`Desk::close`], and flushes then.
    pub(crate) fn run(&self) {
        let _ends = Ends(self);
        while self.wait() {
            // Commands leave the queue under this lock only. One that left it before would be overtaken by those that
            // a caller finds in the queue meanwhile.
            let mut writer = self.writer.lock();
            while let Some(command) = self.pop() {
                match command {
                    Command::Write(first) => {
                        let mut several = self.is_busy();
                        several = writer.write(first, || {
                            let next = self.joining(several);
                            several |= next.is_some();
                            next
                        });
                        self.several.store(several, Ordering::Relaxed);
                    }
                    Command::Flush(answer) => drop(answer.send(writer.flush())),
                    Command::Settings(settings, answer) => drop(answer.send(writer.settings(settings))),
                    Command::Erase { secure, answer } => drop(answer.send(writer.erase(secure))),
                }
            }
        }
        let mut writer = self.writer.lock();
        if let Err(error) = writer.flush() {
            tracing::error!(store = writer.shared.name, %error, "the last writes are not durable");
        }
        drop(writer);
        self.end();
    }

    fn pop(&self) -> Option<Command> {
        self.waiting.lock().commands.pop_front()
    }

    /// Waits until there is a command; false at the end.
    fn wait(&self) -> bool {
        // As in `serve_here`, whose callers may have found the thread at work.
        fence(Ordering::SeqCst);
        let mut waiting = self.waiting.lock();
        loop {
            if !waiting.commands.is_empty() {
                return true;
            }
            if waiting.closing || waiting.closed {
                return false;
            }
            self.bell.wait(&mut waiting);
        }
    }

    /// Takes no more commands; the thread ends when nothing waits.
    pub(crate) fn close(&self) {
        self.waiting.lock().closing = true;
        self.bell.notify_one();
    }

    /// The queue ends: callers whose commands still wait get an error.
    pub(crate) fn end(&self) {
        let mut waiting = self.waiting.lock();
        waiting.closed = true;
        let left = std::mem::take(&mut waiting.commands);
        drop(waiting);
        drop(left);
    }
}

/// What the writer and the readers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) name: String,
    /// Keys and bytes of values.
    pub(crate) totals: Mutex<(u64, u64)>,
    /// Why the store takes no more writes.
    pub(crate) broken: RwLock<Option<String>>,
}

impl Shared {
    /// The error of a store that takes no writes, if it is one.
    pub(crate) fn refusal(&self) -> Option<Error> {
        let why = self.broken.read();
        let why = why.as_ref()?;
        Some(Error::unavailable(format!("{} stopped after a failed write: open it again ({why})", self.name)))
    }

    /// The error of a store whose writer has ended.
    pub(crate) fn gone(&self) -> Error {
        self.refusal().unwrap_or_else(|| Error::unavailable(format!("the writer of {} has ended: open it again", self.name)))
    }

    fn breaks(&self, error: &Error) -> Error {
        self.broken.write().get_or_insert_with(|| error.to_string());
        tracing::error!(store = self.name, %error, "a write failed: the store takes no more");
        // Always `Unavailable`: any other kind would mean that nothing has changed.
        let text = format!("it is unknown whether the write reached {}: open it again", self.name);
        Error::unavailable(text).with_source(error.flattened())
    }
}

/// A key in the course of a commit.
struct Entry {
    now: Option<Current>,
    /// The large value in the store, which a change of the key removes.
    stored_number: Option<u64>,
    /// What the commit writes; `None` where the key was only looked at.
    change: Option<Option<Bytes>>,
}

#[derive(Clone)]
struct Current {
    version: Bytes,
    len: u64,
    /// The number of its large value.
    number: Option<u64>,
}

/// Who waits for a batch, and what becomes of it if the commit succeeds. A refusal waits for the commit, too: the
/// version that it is about must be visible to a caller that reads it again.
type Answer = (oneshot::Sender<Result<(), Failed>>, Result<(), Failed>, OwnedSemaphorePermit);

#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    state: State,
    capacity: Option<u64>,
    /// Whether a commit is not durable yet.
    unsynced: bool,
}

/// The batches of one commit.
struct Group<'v> {
    view: Box<dyn View + 'v>,
    state: State,
    capacity: Option<u64>,
    room: Option<u64>,
    entries: HashMap<Bytes, Entry>,
    values: HashMap<u64, Bytes>,
    answers: Vec<Answer>,
    sync: bool,
}

impl Group<'_> {
    /// What the key is now. A forced change of a damaged record finds an empty one, so that a put repairs it.
    fn look(&mut self, change: &Prepared) -> Result<Option<Current>> {
        if let Some(entry) = self.entries.get(&change.key) {
            return Ok(entry.now.clone());
        }
        let found = self.view.get(Space::Records, &change.key).and_then(|record| {
            let Some(record) = record else { return Ok(None) };
            let stored = codec::decode(change.key.get(1..).unwrap_or_default(), &record)?;
            let number = match stored.place {
                Place::Apart(number) => Some(number),
                Place::Here(_) => None,
            };
            Ok(Some(Current { version: stored.meta.version, len: u64::from(stored.meta.len), number }))
        });
        let now = match found {
            Err(error) if error.kind() == Kind::Corrupt && change.expect.is_none() => Some(Current { version: Bytes::new(), len: 0, number: None }),
            found => found?,
        };
        let stored_number = now.as_ref().and_then(|now| now.number);
        self.entries.insert(change.key.clone(), Entry { now: now.clone(), stored_number, change: None });
        Ok(now)
    }

    /// Why the batch can't be carried out; `Ok` where it can.
    fn check(&mut self, changes: &[Prepared], bytes: usize) -> Result<(), Failed> {
        let mut growth = i128::from(self.state.value_bytes);
        for (index, change) in changes.iter().enumerate() {
            let failed = |why| Failed { index, why };
            let now = self.look(change).map_err(|error| failed(Why::Error(error)))?;
            if let Some(expected) = &change.expect {
                match (&now, &change.to) {
                    (None, Goal::Gone) => return Err(failed(Why::NotFound)),
                    (None, _) if expected.is_empty() => {}
                    (Some(now), _) if now.version == expected => {}
                    _ => return Err(failed(Why::VersionMismatch)),
                }
            }
            let growing = change.value_len();
            // A key that the batch has twice counts twice: close to its capacity, the store may refuse such a batch.
            growth += i128::from(growing) - i128::from(now.map_or(0, |now| now.len));
            if let Some(capacity) = self.capacity.filter(|capacity| growing > 0 && growth > i128::from(*capacity)) {
                let text = format!("the values would have more than the {capacity} bytes that the store may hold: delete some, or raise the limit");
                return Err(failed(Why::Error(Error::exhausted(text))));
            }
        }
        let puts = changes.iter().any(|change| !matches!(change.to, Goal::Gone));
        // Twice: once for the journal, once for the table.
        if let Some(room) = self.room.filter(|room| puts && *room < bytes as u64 * 2) {
            let text = format!("the disk has {room} bytes left above its reserve, and the batch needs {}: delete some values, or make room", bytes * 2);
            return Err(Failed { index: 0, why: Why::Error(Error::exhausted(text)) });
        }
        Ok(())
    }

    /// Carries out a batch that was checked.
    fn accept(&mut self, changes: Vec<Prepared>, bytes: usize) {
        if let Some(room) = &mut self.room {
            *room = room.saturating_sub(bytes as u64 * 2);
        }
        for change in changes {
            let Some(entry) = self.entries.get_mut(&change.key) else { continue };
            let before = entry.now.take();
            if let Some(replaced) = before.as_ref().and_then(|before| before.number) {
                // A value that came with this commit is never written.
                self.values.remove(&replaced);
            }
            let had = before.is_some();
            let (had_len, len) = (before.map_or(0, |before| before.len), change.value_len());
            let (now, written) = match change.to {
                Goal::Small { record, version, .. } => (Some(Current { version, len, number: None }), Some(record)),
                Goal::Large { meta, crc, value } => {
                    let number = self.state.next_number;
                    self.state.next_number += 1;
                    let record = codec::encode(change.key.get(1..).unwrap_or_default(), &meta, crc, &Place::Apart(number));
                    self.values.insert(number, value);
                    (Some(Current { version: meta.version, len, number: Some(number) }), Some(record))
                }
                Goal::Gone => (None, None),
            };
            self.state.keys = (self.state.keys + u64::from(now.is_some())).saturating_sub(u64::from(had));
            self.state.value_bytes = (self.state.value_bytes + len).saturating_sub(had_len);
            entry.now = now;
            entry.change = Some(written);
        }
    }

    /// The steps of the commit, without the state, and who waits for it.
    fn finish(self) -> (Vec<Step>, State, Vec<Answer>, bool) {
        let Self { entries, values, answers, sync, state, .. } = self;
        let mut steps: Vec<Step> = values.into_iter().map(|(number, value)| Step::Put(Space::Values, number_key(number), value)).collect();
        let mut removed = Vec::new();
        for (key, entry) in entries {
            match entry.change {
                None => continue,
                Some(Some(record)) => steps.push(Step::Put(Space::Records, key, record)),
                Some(None) => steps.push(Step::Remove(Space::Records, key)),
            }
            removed.extend(entry.stored_number.map(|number| Step::Remove(Space::Values, number_key(number))));
        }
        steps.extend(removed);
        (steps, state, answers, sync)
    }
}

/// The key of a large value.
pub(crate) fn number_key(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

impl Writer {
    pub(crate) fn new(shared: Arc<Shared>, state: State, capacity: Option<u64>) -> Self {
        Self { shared, state, capacity, unsynced: true }
    }

    /// Carries out `first` and the batches that `more` gives. Whether there were several.
    fn write(&mut self, first: Batch, mut more: impl FnMut() -> Option<Batch>) -> bool {
        let shared = self.shared.clone();
        let opened = match shared.refusal() {
            Some(error) => Err(error),
            // After an error nothing was written, so the store goes on.
            None => shared.backend.throttle().and_then(|()| Ok((shared.backend.view()?, shared.backend.room()?))),
        };
        let (view, room) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                drop(first.answer.send(Err(Failed { index: 0, why: Why::Error(error) })));
                return false;
            }
        };
        let (state, capacity) = (self.state, self.capacity);
        let mut group = Group { view, state, capacity, room, entries: HashMap::new(), values: HashMap::new(), answers: Vec::new(), sync: false };
        let (mut next, mut batches, mut total) = (Some(first), 0, 0);
        while let Some(Batch { changes, bytes, durability, answer, room }) = next {
            let checked = group.check(&changes, bytes);
            if checked.is_ok() {
                group.accept(changes, bytes);
                group.sync |= durability != Durability::Back;
            }
            group.answers.push((answer, checked, room));
            batches += 1;
            total += bytes;
            next = if batches < MOST_BATCHES && total < ENOUGH_BYTES { more() } else { None };
        }
        let (steps, state, answers, sync) = group.finish();
        let done = self.commit(steps, state, sync);
        for (answer, checked, _room) in answers {
            let done = match &done {
                Ok(()) => checked,
                Err(error) => Err(Failed { index: 0, why: Why::Error(error.flattened()) }),
            };
            // A caller that no longer waits does not ask.
            drop(answer.send(done));
        }
        batches > 1
    }

    fn commit(&mut self, mut steps: Vec<Step>, mut state: State, sync: bool) -> Result<()> {
        if steps.is_empty() {
            return if sync { self.flush() } else { Ok(()) };
        }
        state.commit += 1;
        steps.push(Step::Put(Space::Records, Bytes::from_static(STATE), state.encode()));
        self.shared.backend.commit(steps, state.commit, sync).map_err(|error| self.shared.breaks(&error))?;
        self.state = state;
        self.unsynced = !sync;
        *self.shared.totals.lock() = (state.keys, state.value_bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if let Some(error) = self.shared.refusal() {
            return Err(error);
        }
        if self.unsynced {
            self.shared.backend.sync(self.state.commit).map_err(|error| self.shared.breaks(&error))?;
            self.unsynced = false;
        }
        Ok(())
    }

    fn settings(&mut self, settings: Bytes) -> Result<()> {
        if let Some(error) = self.shared.refusal() {
            return Err(error);
        }
        self.shared.backend.throttle()?;
        self.commit(vec![Step::Put(Space::Records, Bytes::from_static(SETTINGS), settings)], self.state, true)
    }

    /// Erases also a store that takes no more writes: an empty one takes its place.
    fn erase(&mut self, secure: bool) -> Result<()> {
        let done = match self.shared.backend.erase(secure) {
            Erased::Nothing(error) => return Err(error),
            Erased::Unknown(error) => return Err(self.shared.breaks(&error)),
            Erased::Done => Ok(()),
            Erased::Remains(error) => Err(error),
        };
        self.state = State::default();
        self.unsynced = true;
        *self.shared.totals.lock() = (0, 0);
        *self.shared.broken.write() = None;
        done
    }
}
