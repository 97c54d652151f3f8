//! The kept results of a drive: found again, bounded, and dropped with what they were made from.
//!
//! The drive keeps what it delivered for a sub-plan, if the host asks for it and the drive ran all of it. Each kept
//! result is one value of the drive's store ([`skytether_device::kept`]). All of them together take at most
//! [`limit`](crate::DriveOptions::kept_bytes) bytes, one at most an eighth of that; those that were used longest ago go
//! first. A result is written on the condition that the partitions that it was made from are unchanged, and deleted
//! when one of them is.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use skytether_common::{Error, Key, Kind, PartitionName, Result};
use skytether_device::kept::{Header, Identity, Kept, MAX_HEADER, of_partition};
use skytether_device::session::{Message, Session};
use skytether_device::size::batch_bytes;
use skytether_device::{Annotation, DeliveryStream, PushdownLevel, ResultMessage};
use skytether_scheduler::message::{Completed, EpochId, SliceId, Up};
use skytether_store::{Expect, Op, SliceStore};

use crate::heads::heads;

/// One result takes at most one in this many bytes of all.
const SHARE: u64 = 8;

/// The kept results of one drive.
#[derive(Debug)]
pub(crate) struct KeptResults {
    store: Arc<dyn SliceStore>,
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By id.
    all: HashMap<String, Entry>,
    bytes: u64,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    made_from: Vec<Key>,
    bytes: u64,
    used: u64,
}

impl State {
    fn insert(&mut self, id: String, entry: Entry) {
        self.bytes += entry.bytes;
        if let Some(old) = self.all.insert(id, entry) {
            self.bytes -= old.bytes;
        }
    }

    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.all.remove(id)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Takes out those that were used longest ago, until `bytes` more stay within `limit`.
    fn evict(&mut self, bytes: u64, limit: u64) -> Vec<Key> {
        let mut gone = Vec::new();
        while self.bytes + bytes > limit {
            let Some(oldest) = self.all.iter().min_by_key(|(id, entry)| (entry.used, id.as_str())).map(|(id, _)| id.clone()) else { break };
            gone.extend(self.remove(&oldest).map(|entry| entry.key));
        }
        gone
    }
}

fn deletes(keys: Vec<Key>) -> Vec<Op> {
    keys.into_iter().map(|key| Op::Delete { key, expect: Expect::Any }).collect()
}

impl KeptResults {
    /// Finds what `store` keeps; all together may take `limit` bytes. `open` is the store without the device's disk.
    pub(crate) fn begin(open: &dyn SliceStore, store: Arc<dyn SliceStore>, limit: u64) -> Self {
        let (mut state, mut broken) = (State::default(), Vec::new());
        let found = heads(open, |at, entry| {
            if of_partition(&at).is_none() {
                return;
            }
            let head = open.get_ranges_unverified(&entry.key, std::slice::from_ref(&(0..entry.len.min(MAX_HEADER as u64))));
            match head.and_then(|head| Header::decode(head.first().map_or(&[][..], |head| head))) {
                Ok((Header { id, made_from, .. }, _)) => state.insert(id, Entry { key: entry.key, made_from, bytes: entry.len, used: 0 }),
                // Of an older format, or damaged: it can be made again.
                Err(_) => broken.push(entry.key),
            }
        });
        if let Err(error) = found {
            tracing::warn!("kept results can't be listed: {}", error.report());
        }
        let mut gone = state.evict(0, limit);
        gone.append(&mut broken);
        let kept = Self { store, limit, state: Mutex::new(state) };
        kept.delete(gone);
        kept
    }

    /// Deletes values. What fails is found again when the drive is opened.
    fn delete(&self, keys: Vec<Key>) {
        if !keys.is_empty()
            && let Err(error) = self.store.apply(deletes(keys))
        {
            tracing::warn!("kept results are not deleted: {}", error.report());
        }
    }

    /// The result with this identity, and its bytes, if it is kept. Blocks.
    pub(crate) fn find(&self, of: &Identity) -> Option<(Kept, u64)> {
        let key = {
            let mut state = self.state.lock();
            state.clock += 1;
            let clock = state.clock;
            let entry = state.all.get_mut(&of.id)?;
            entry.used = clock;
            entry.key.clone()
        };
        let read = || {
            let value = self.store.get(&key)?;
            let kept = Kept::decode(&value)?;
            // The key holds the id, so this is another value only if the store mixed up two.
            if kept.header.is_of(of) { Ok((kept, value.len() as u64)) } else { Err(Error::corrupt("another kept result")) }
        };
        match read() {
            Ok(found) => Some(found),
            Err(error) => {
                tracing::warn!("{key} is made again: {}", error.report());
                let gone = self.state.lock().remove(&of.id);
                // What is not there any more was dropped in this moment.
                if error.kind() != Kind::NotFound {
                    self.delete(gone.map(|entry| entry.key).into_iter().collect());
                }
                None
            }
        }
    }

    /// Bytes of rows that are worth gathering for one result.
    fn most(&self) -> u64 {
        self.limit / SHARE
    }

    /// Keeps a result. Blocks.
    fn keep(&self, of: &Identity, schema: &SchemaRef, batches: Vec<RecordBatch>, slices_total: Option<u64>) -> Result<()> {
        let most = self.most();
        let kept = Kept { header: Header::new(of, slices_total)?, schema: Arc::clone(schema), batches };
        let value = kept.encode(usize::try_from(most).unwrap_or(usize::MAX))?;
        let bytes = value.len() as u64;
        if bytes > most {
            return Ok(());
        }
        let key = of.key()?;
        let Header { id, made_from, .. } = kept.header;
        let mut batch = Vec::new();
        for from in &made_from {
            let Some(there) = self.store.stat(from)? else { return Ok(()) };
            batch.push(Op::Check { key: from.clone(), expect: Expect::Version(there.version) });
        }
        // Known before it is written: what is deleted in between finds it.
        let gone = {
            let mut state = self.state.lock();
            state.remove(&id);
            let gone = state.evict(bytes, self.limit);
            state.clock += 1;
            let used = state.clock;
            state.insert(id.clone(), Entry { key: key.clone(), made_from, bytes, used });
            gone
        };
        batch.extend(deletes(gone.into_iter().filter(|old| *old != key).collect()));
        batch.push(Op::Put { key: key.clone(), value, expect: Expect::Any });
        let written = self.store.apply(batch);
        let listed = {
            let mut state = self.state.lock();
            if written.is_err() {
                state.remove(&id);
            }
            state.all.contains_key(&id)
        };
        // It may have been dropped before it was written; or another run of the same sub-plan has written it.
        if !listed {
            self.delete(vec![key]);
        }
        written.map(drop)
    }

    /// The store was changed by `batch`: what was made from partitions that are gone is deleted. Blocks.
    pub(crate) fn changed(&self, batch: &[Op]) {
        let mut gone = Vec::new();
        {
            let mut state = self.state.lock();
            if state.all.is_empty() {
                return;
            }
            for op in batch {
                let (Op::Delete { key, .. } | Op::Put { key, .. } | Op::Link { key, .. }) = op else { continue };
                let Some((_, None)) = PartitionName::parse(key) else { continue };
                let own = |entry: &Entry| entry.key == *key && matches!(op, Op::Delete { .. });
                let concerned: Vec<String> =
                    state.all.iter().filter(|(_, entry)| own(entry) || entry.made_from.contains(key)).map(|(id, _)| id.clone()).collect();
                gone.extend(concerned.iter().filter_map(|id| state.remove(id)).map(|entry| entry.key));
            }
        }
        self.delete(gone);
    }

    /// Whether something could be dropped.
    pub(crate) fn takes_space(&self) -> bool {
        !self.state.lock().all.is_empty()
    }

    /// Drops all; whether there was one. Blocks.
    pub(crate) fn make_room(&self) -> bool {
        let state = std::mem::take(&mut *self.state.lock());
        let keys: Vec<Key> = state.all.into_values().map(|entry| entry.key).collect();
        let some = !keys.is_empty();
        self.delete(keys);
        some
    }

    /// `stream`, which is kept under this identity when it is complete.
    pub(crate) fn of_whole(self: &Arc<Self>, of: Identity, stream: DeliveryStream) -> DeliveryStream {
        let DeliveryStream { schema, messages } = stream;
        let mut recorder = Recorder::new(self, of, &schema);
        let messages = messages.inspect(move |message| match message {
            Ok(ResultMessage::Batch { batch, .. }) => recorder.take(batch),
            Ok(ResultMessage::EpochComplete { .. }) => {}
            Ok(ResultMessage::Done(annotation)) if annotation.rung == Some(PushdownLevel::Full) => recorder.finish(annotation),
            Ok(ResultMessage::Done(_)) | Err(_) => recorder.give_up(),
        });
        DeliveryStream { schema, messages: Box::pin(messages) }
    }

    /// `session`, whose results are kept under this identity if all of its stripes were processed at the full level.
    pub(crate) fn of_session(self: &Arc<Self>, of: Identity, session: Session) -> Session {
        let stripes: BTreeSet<u32> = session.slice_manifest.iter().map(|stripe| stripe.stripe).collect();
        let recorder = Recorder::new(self, of, &session.schema);
        let mut of_epochs = OfEpochs { recorder, missing: stripes, open: HashMap::new(), done: HashMap::new() };
        let messages = session.messages.inspect(move |message| match message {
            Ok(message) => of_epochs.see(message),
            Err(_) => of_epochs.recorder.give_up(),
        });
        Session { messages: Box::pin(messages), ..session }
    }
}

/// A kept result as the delivery of a sub-plan.
pub(crate) fn delivery(cse: &str, received: usize, kept: Kept, bytes_read: u64, started: Instant) -> DeliveryStream {
    let rows: usize = kept.batches.iter().map(RecordBatch::num_rows).sum();
    let annotation = Annotation {
        cse: cse.to_owned(),
        rung: Some(PushdownLevel::Full),
        slices_told: kept.header.slices_total.unwrap_or_default(),
        slices_total: kept.header.slices_total,
        rows_read: Some(0),
        rows_out: rows as u64,
        bytes_read,
        bytes_received: received as u64,
        bytes_sent: kept.batches.iter().map(batch_bytes).sum(),
        seconds: started.elapsed().as_secs_f64(),
        cached: true,
        ..Annotation::default()
    };
    let batches = kept.batches.into_iter().map(|batch| ResultMessage::Batch { epoch: 0, batch });
    let end = [ResultMessage::EpochComplete { epoch: 0 }, ResultMessage::Done(annotation)];
    DeliveryStream { schema: kept.schema, messages: Box::pin(stream::iter(batches.chain(end).map(Ok))) }
}

/// Gathers the rows of one result.
#[derive(Debug)]
struct Recorder {
    results: Arc<KeptResults>,
    schema: SchemaRef,
    /// Nothing after it was kept, or given up.
    of: Option<Identity>,
    batches: Vec<RecordBatch>,
    bytes: u64,
}

impl Recorder {
    fn new(results: &Arc<KeptResults>, of: Identity, schema: &SchemaRef) -> Self {
        Self { results: Arc::clone(results), schema: Arc::clone(schema), of: Some(of), batches: Vec::new(), bytes: 0 }
    }

    /// Whether `batch` may be held as well: with what is dropped later, which bounds the memory.
    fn has_room(&mut self, batch: &RecordBatch) -> bool {
        self.bytes += batch_bytes(batch);
        if self.bytes > self.results.most() {
            self.give_up();
        }
        self.of.is_some()
    }

    fn take(&mut self, batch: &RecordBatch) {
        if self.has_room(batch) {
            self.batches.push(batch.clone());
        }
    }

    fn give_up(&mut self) {
        (self.of, self.batches) = (None, Vec::new());
    }

    /// Keeps what came, on a thread that may block.
    fn finish(&mut self, annotation: &Annotation) {
        let Some(of) = self.of.take() else { return };
        let (results, schema, batches) = (Arc::clone(&self.results), Arc::clone(&self.schema), std::mem::take(&mut self.batches));
        let total = annotation.slices_total;
        tokio::task::spawn_blocking(move || match results.keep(&of, &schema, batches, total) {
            // Too large, or what it was made from has just changed.
            Err(error) if matches!(error.kind(), Kind::Exhausted | Kind::Conflict) => tracing::debug!("a result is not kept: {}", error.report()),
            Err(error) => tracing::warn!("a result is not kept: {}", error.report()),
            Ok(()) => {}
        });
    }
}

/// Gathers the rows of a session: those of complete epochs at the full level.
#[derive(Debug)]
struct OfEpochs {
    recorder: Recorder,
    /// Stripes without a complete epoch.
    missing: BTreeSet<u32>,
    /// Batches of epochs that are not complete.
    open: HashMap<EpochId, Vec<RecordBatch>>,
    /// Epochs that are done, and whose batches are still on their way: messages overtake rows.
    done: HashMap<EpochId, Completed>,
}

impl OfEpochs {
    fn see(&mut self, message: &Message) {
        if self.recorder.of.is_none() {
            return;
        }
        match message {
            Message::Batch { epoch, rung: PushdownLevel::Full, batch, .. } => {
                if self.recorder.has_room(batch) {
                    self.open.entry(*epoch).or_default().push(batch.clone());
                    self.complete(*epoch);
                } else {
                    self.open.clear();
                }
            }
            Message::Up(Up::EpochDone(done)) => {
                self.done.insert(done.epoch, done.clone());
                self.complete(done.epoch);
            }
            Message::Up(Up::Failed { epoch: Some(epoch), .. } | Up::Refused { epoch, .. }) => drop(self.open.remove(epoch)),
            Message::Done(annotation) if self.missing.is_empty() => self.recorder.finish(annotation),
            Message::Done(_) => self.recorder.give_up(),
            Message::Batch { .. } | Message::Up(_) | Message::EpochError { .. } | Message::Alive => {}
        }
    }

    /// Takes the batches of an epoch that is done, once all of them are there.
    fn complete(&mut self, epoch: EpochId) {
        let here = self.open.get(&epoch).map_or(0, Vec::len);
        let Some(done) = self.done.get(&epoch).filter(|done| done.rung == PushdownLevel::Full && here == done.batches as usize) else { return };
        let (done, batches) = (done.clone(), self.open.remove(&epoch).unwrap_or_default());
        // Each stripe counts once: the host may order one again that it did not hear of.
        if done.slices.iter().all(|slice| self.missing.contains(&slice.0)) {
            self.missing.retain(|stripe| !done.slices.contains(&SliceId(*stripe)));
            self.recorder.batches.extend(batches);
        }
    }
}
