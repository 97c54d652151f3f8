//! A sub-plan that is divided among the OSDs: its stripes, one by one, at the OSD that has the slice, or here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use skytether_ceph_protocol::stripe::DIGEST;
use skytether_ceph_protocol::{CLASS, Object, Outcome, RUN, Receipt, Refusal, Request, Response, Stripe};
use skytether_common::{Error, Key, Result};
use skytether_device::Annotation;
use skytether_device::arrow_messages::{ArrowMessage, ArrowStream};
use skytether_device::size::batch_bytes;
use skytether_engine::split_execution::SplitExecution;
use skytether_rados::RadosStore;
use skytether_scheduler::message::PushdownLevel;
use tokio::sync::Semaphore;

use crate::one_stripe::over_stripe;
use crate::table::same;
use crate::values::{Got, Named, Readable, Values};

/// How often a busy engine is asked again, and how long after.
const AGAIN: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// How often an engine may ask for values before it has what it needs.
const ROUNDS: u32 = 64;

/// After this number of failed calls in a row, the rest of a query is done above without asking. Each late call costs
/// seconds.
const GIVE_UP: u32 = 8;
const GIVE_UP_LATE: u32 = 2;

/// A stripe of the sub-plan with the key of its slice.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) stripe: u32,
    pub(crate) key: Key,
}

/// See the module's text.
pub(crate) struct Work {
    pub(crate) store: Arc<RadosStore>,
    /// Permits to run in this process.
    pub(crate) turns: Arc<Semaphore>,
    pub(crate) split: SplitExecution,
    /// The request, but for its object.
    pub(crate) request: Request,
    /// What engines may get.
    pub(crate) readable: Readable,
    pub(crate) keys: BTreeMap<String, String>,
    pub(crate) values: Arc<Values>,
    pub(crate) kind: [u8; DIGEST],
    /// The columns of every batch.
    pub(crate) schema: SchemaRef,
    pub(crate) named: Named,
    pub(crate) progress: Progress,
}

/// How it goes.
#[derive(Default)]
pub(crate) struct Progress {
    failed: AtomicU32,
    late: AtomicU32,
    /// Bytes of values that were read here for engines.
    fetched: AtomicU64,
    notes: Mutex<Notes>,
}

/// What became of the stripes.
#[derive(Default)]
struct Notes {
    osds: BTreeMap<String, Annotation>,
    own: Annotation,
    /// Why the first stripe was processed here.
    why: Option<String>,
}

/// The batches of an Arrow IPC stream with these columns.
fn decoded(rows: &[u8], schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
    let (mut stream, mut batches, mut seen) = (ArrowStream::default(), Vec::new(), false);
    stream.push(rows);
    while let Some(message) = stream.next_message()? {
        match message {
            ArrowMessage::Schema(found) if !seen && same(&found, schema) => seen = true,
            ArrowMessage::Schema(_) => return Err(Error::corrupt("the rows have other columns than the sub-plan")),
            ArrowMessage::Dictionary => {}
            ArrowMessage::Batch(batch) => {
                let batch = RecordBatch::try_new_with_options(
                    Arc::clone(schema),
                    batch.columns().to_vec(),
                    &arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(batch.num_rows())),
                );
                batches.push(batch.map_err(|e| Error::corrupt("the rows have other columns than the sub-plan").with_source(e))?);
            }
        }
    }
    stream.finish()?;
    if seen { Ok(batches) } else { Err(Error::corrupt("the rows of an OSD have no columns")) }
}

impl Work {
    /// The result over one stripe, from its OSD or from here.
    pub(crate) async fn stripe(self: Arc<Self>, place: Place) -> Result<Vec<RecordBatch>> {
        let Progress { failed, late, notes, .. } = &self.progress;
        let why = if failed.load(Ordering::Relaxed) >= GIVE_UP || late.load(Ordering::Relaxed) >= GIVE_UP_LATE {
            None
        } else {
            match self.there(&place).await? {
                Ok((receipt, batches)) => {
                    failed.store(0, Ordering::Relaxed);
                    self.note(&receipt, &batches);
                    return Ok(batches);
                }
                Err(why) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    Some(why)
                }
            }
        };
        if let Some(why) = why {
            notes.lock().why.get_or_insert(why);
        }
        self.here(place.stripe).await
    }

    /// The result of the OSD; or why there is none.
    async fn there(self: &Arc<Self>, place: &Place) -> Result<Result<(Receipt, Vec<RecordBatch>), String>> {
        let (mut sent, mut rounds, mut busy) = (BTreeSet::new(), 0, 0);
        loop {
            let (own, asked, sending) = (Arc::clone(self), place.clone(), sent.clone());
            let called =
                skytether_engine::blocking(move || own.store.call(&asked.key, CLASS, RUN, |len, crc32c| own.request(&asked, len, crc32c, &sending).encode()));
            let Some(called) = called.await? else { return Ok(Err(format!("there is no slice {}", place.key))) };
            let response = match (Response::decode(&called.output), called.error()) {
                (Ok(response), _) => response,
                (Err(_), Some(error)) => return Ok(Err(error)),
                (Err(wrong), None) => return Ok(Err(format!("the answer of an OSD can't be read: {wrong}"))),
            };
            let name = response.receipt.name();
            match response.outcome {
                Outcome::Rows(rows) => match decoded(&rows, &self.schema) {
                    Ok(batches) => return Ok(Ok((response.receipt, batches))),
                    Err(error) => return Ok(Err(format!("{name}: {}", error.report()))),
                },
                Outcome::Wants(_) if rounds >= ROUNDS => return Ok(Err(format!("{name}: the engine keeps too few values for this sub-plan"))),
                Outcome::Wants(keys) => {
                    rounds += 1;
                    sent = match self.learn(keys).await? {
                        Ok(sent) => sent,
                        Err(why) => return Ok(Err(format!("{name}: {why}"))),
                    };
                }
                Outcome::Refused(Refusal::Busy, _) if busy < AGAIN => {
                    busy += 1;
                    tokio::time::sleep(PAUSE * busy).await;
                }
                Outcome::Refused(why, reason) => {
                    if why == Refusal::Late {
                        self.progress.late.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(Err(format!("{name}: {reason}")));
                }
            }
        }
    }

    fn request(&self, place: &Place, len: u64, crc32c: u32, sent: &BTreeSet<Key>) -> Request {
        let stripe =
            Stripe { number: place.stripe, slice: place.key.as_str().to_owned(), len, crc32c, partitions: self.keys.clone(), given: self.named.given(sent) };
        Request { object: Object::Stripe(Box::new(stripe)), ..self.request.clone() }
    }

    /// Reads what an engine wants; which of it the next request has room for.
    async fn learn(self: &Arc<Self>, keys: Vec<String>) -> Result<Result<BTreeSet<Key>, String>> {
        let own = Arc::clone(self);
        skytether_engine::blocking(move || {
            let mut wanted = Vec::with_capacity(keys.len());
            for text in keys {
                let key = match own.readable.key(&text) {
                    Ok(key) => key,
                    Err(error) => return Ok(Err(error.report())),
                };
                if let Err(why) = own.name_value(&key)? {
                    return Ok(Err(why));
                }
                wanted.push(key);
            }
            own.values.note(own.kind, own.named.keys());
            Ok(Ok(own.named.fitting(&wanted)))
        })
        .await
    }

    /// Names a value in the next requests; or why it can't be. Blocks.
    pub(crate) fn name_value(&self, key: &Key) -> Result<Result<(), String>> {
        // One query sees one version of a value.
        if self.named.get(key).is_some() {
            return Ok(Ok(()));
        }
        let value = match self.values.get(self.store.as_ref(), key, self.named.room())? {
            Got::Value(value) => value,
            Got::Absent => return Ok(Err(format!("the engine asks for {key}, which is not there"))),
            Got::TooLong(why) => return Ok(Err(why)),
        };
        self.progress.fetched.fetch_add(value.bytes.len() as u64, Ordering::Relaxed);
        self.named.add(key.clone(), value);
        Ok(Ok(()))
    }

    /// The same, over a slice that is read from the cluster.
    async fn here(self: Arc<Self>, stripe: u32) -> Result<Vec<RecordBatch>> {
        let _turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| Error::unavailable("the drive is shutting down"))?;
        let (begun, mut batches) = (Instant::now(), Vec::new());
        let mut lane = over_stripe(&self.split, stripe)?;
        while let Some(batch) = lane.next().await? {
            batches.push(batch);
        }
        let mut notes = self.progress.notes.lock();
        let own = &mut notes.own;
        own.slices += 1;
        own.seconds += begun.elapsed().as_secs_f64();
        own.rows_out += batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>();
        drop(notes);
        Ok(batches)
    }

    /// Takes an OSD's receipt into the notes.
    fn note(&self, receipt: &Receipt, batches: &[RecordBatch]) {
        let told = Annotation {
            cse: receipt.name(),
            rung: Some(PushdownLevel::Full),
            slices: 1,
            rows_out: receipt.rows,
            bytes_read: receipt.bytes_read,
            bytes_sent: batches.iter().map(batch_bytes).sum(),
            seconds: receipt.time.as_secs_f64(),
            peak_memory: receipt.peak_memory,
            ..Annotation::default()
        };
        let mut notes = self.progress.notes.lock();
        match notes.osds.get_mut(&told.cse) {
            Some(own) => own.add(told),
            None => {
                notes.osds.insert(told.cse.clone(), told);
            }
        }
    }

    /// The annotation of the whole, which began with `about`.
    pub(crate) fn annotation(&self, about: Annotation, begun: Instant) -> Annotation {
        let notes = std::mem::take(&mut *self.progress.notes.lock());
        let (mut whole, here) = (about, self.split.annotation());
        whole.bytes_read += here.bytes_read + self.progress.fetched.load(Ordering::Relaxed);
        whole.peak_memory = here.peak_memory;
        for one in notes.osds.values().chain([&notes.own]) {
            whole.slices += one.slices;
            whole.rows_out += one.rows_out;
            whole.bytes_read += one.bytes_read;
            whole.bytes_sent += one.bytes_sent;
            whole.peak_memory = whole.peak_memory.max(one.peak_memory);
        }
        whole.seconds = begun.elapsed().as_secs_f64();
        if notes.own.slices > 0 {
            let why = notes.why.unwrap_or_else(|| "no reason given".to_owned());
            whole.reason = Some(format!("{} of {} slices were read and processed here, and not at OSDs: {why}", notes.own.slices, whole.slices));
        }
        whole.below = notes.osds.into_values().collect();
        whole
    }
}
