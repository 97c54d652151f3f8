//! [`OsdDrive`]: a drive of a fleet in Ceph. Each slice is processed by the OSD that has it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use skytether_ceph_protocol::proxy::Probe;
use skytether_ceph_protocol::request::MAX_REQUEST;
use skytether_ceph_protocol::{CLASS, Limits, Object, Outcome, PROBE, RUN, Receipt, Refusal, Request, Response};
use skytether_common::{Error, Key, Result};
use skytether_device::arrow_messages::{ArrowMessage, ArrowStream};
use skytether_device::session::Message;
use skytether_device::{Annotation, Cse, CseInfo, DeliveryStream, Layer, OpenReply, Program, ResultMessage, Session, SubPlan};
use skytether_engine::Engine;
use skytether_engine::split_execution::{SplitExecution, Taken};
use skytether_rados::RadosStore;
use skytether_scheduler::message::PushdownLevel;
use skytether_slice::{Layout, Metadata};
use skytether_store::SliceStore;

use crate::evaluate::{Opened, columns_of, start};
use crate::object::ObjectBytes;
use crate::table::same;

/// Calls of one drive that are under way at the same time.
const UNDER_WAY: usize = 4;

/// How often a busy engine is asked again, and how long after.
const AGAIN: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// After this number of failed calls in a row, the rest of a query is done above without asking. Each late call costs
/// seconds.
const GIVE_UP: u32 = 8;
const GIVE_UP_LATE: u32 = 2;

/// The one epoch of a sub-plan that runs as a whole.
const EPOCH: u32 = 0;

/// Whether the OSD that has the index of `store` has the class, and an engine next to it.
///
/// # Errors
/// Why sub-plans can't run there, in words.
pub fn available(store: &RadosStore) -> Result<Probe, String> {
    let called = store.call_index(CLASS, PROBE).map_err(|error| error.report())?;
    if let Some(error) = called.error() {
        return Err(error);
    }
    let probe = Probe::decode(&called.output).map_err(|wrong| wrong.to_string())?;
    match probe.engine {
        Ok(_) => Ok(probe),
        Err(why) => Err(why),
    }
}

/// A drive whose sub-plans run at the OSDs, slice by slice. What can't run there runs in this process.
pub struct OsdDrive {
    inner: Arc<dyn Cse>,
    store: Arc<RadosStore>,
    /// Plans, and runs what the OSDs don't; it surveys slice by slice.
    engine: Arc<Engine>,
}

impl fmt::Debug for OsdDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OsdDrive").field("inner", &self.inner).finish_non_exhaustive()
    }
}

/// A sub-plan that is divided among the OSDs.
struct Work {
    store: Arc<RadosStore>,
    engine: Arc<Engine>,
    request: Request,
    /// The columns of every batch.
    schema: SchemaRef,
    failed: AtomicU32,
    late: AtomicU32,
    notes: Mutex<Notes>,
}

/// What became of the slices.
#[derive(Default)]
struct Notes {
    osds: BTreeMap<String, Annotation>,
    own: Annotation,
    /// Why the first slice was processed here.
    why: Option<String>,
}

impl OsdDrive {
    /// `inner`, a drive over `store`. `engine` must survey slice by slice ([`Engine::apart`]).
    #[must_use]
    pub fn new(inner: Arc<dyn Cse>, store: Arc<RadosStore>, engine: Arc<Engine>) -> Self {
        Self { inner, store, engine }
    }

    /// The sub-plan as work of the OSDs, with the keys of the slices; or why it does not divide by slices.
    async fn divided(&self, plan: &SubPlan) -> Result<Result<(Work, Vec<Key>, Annotation), &'static str>> {
        let Program::Substrait(program) = &plan.program else { return Ok(Err("OSDs run Substrait plans only")) };
        if plan.rung != PushdownLevel::Full || !plan.with.is_empty() || plan.bytes() > MAX_REQUEST / 4 {
            return Ok(Err("the sub-plan reads two data sets, is a filter only, or has more than 4 MiB"));
        }
        let Taken::Split(split) = self.engine.take(plan.clone()).await? else {
            return Ok(Err("metadata answers the sub-plan, or it reads one slice, or it sorts or limits"));
        };
        if split.is_sparse() {
            return Ok(Err("OSDs process plain tables, and no expression matrices"));
        }
        let partition = split.partition().clone();
        let Some((table, _)) = plan.partitions.iter().find(|(_, named)| **named == partition) else {
            return Ok(Err("the sub-plan reads a partition that it does not name"));
        };
        let (store, key) = (Arc::clone(&self.store), partition.key()?);
        let metadata = skytether_engine::blocking(move || Metadata::decode(&store.get(&key)?)).await?;
        if metadata.layout != Layout::Table || metadata.groups.len() != 1 {
            return Ok(Err("the table is a wide one, whose rows are in several slices"));
        }
        let keys = slices(&split)?.into_iter().map(|slice| partition.slice_key(slice)).collect::<Result<Vec<_>>>()?;
        let named = |map: &BTreeMap<String, bytes::Bytes>| map.iter().map(|(name, bytes)| (name.clone(), bytes.to_vec())).collect();
        let request = Request {
            limits: Limits::default(),
            object: Object::Slice { len: 0, crc32c: 0 },
            table: [plan.dataset.domain().to_owned(), plan.dataset.dataset().to_owned(), table.clone()],
            schema: columns_of(&metadata.schema)?,
            plan: program.to_vec(),
            filters: named(&plan.filters),
            tables: named(&plan.tables),
        };
        let work = Work {
            store: Arc::clone(&self.store),
            engine: Arc::clone(&self.engine),
            request,
            schema: split.schema(PushdownLevel::Full),
            failed: AtomicU32::new(0),
            late: AtomicU32::new(0),
            notes: Mutex::default(),
        };
        let about = split.annotation();
        Ok(Ok((work, keys, about)))
    }

    /// Runs the sub-plan at the OSDs; or why that can't be.
    async fn at_osds(&self, plan: &SubPlan) -> Result<Result<DeliveryStream, &'static str>> {
        let begun = Instant::now();
        let (work, keys, about) = match self.divided(plan).await? {
            Ok(divided) => divided,
            Err(why) => return Ok(Err(why)),
        };
        let work = Arc::new(work);
        let annotation = Annotation {
            cse: self.inner.info().name.clone(),
            rung: Some(PushdownLevel::Full),
            slices_total: about.slices_total,
            slices_pruned: about.slices_pruned,
            bytes_received: plan.bytes() as u64,
            ..Annotation::default()
        };
        let (schema, own) = (Arc::clone(&work.schema), Arc::clone(&work));
        let batches = stream::iter(keys)
            .map(move |key| Arc::clone(&own).slice(key))
            .buffer_unordered(UNDER_WAY)
            .flat_map(|done| match done {
                Ok(batches) => stream::iter(batches.into_iter().map(Ok).collect::<Vec<_>>()),
                Err(error) => stream::iter(vec![Err(error)]),
            })
            .map(|batch| Ok(ResultMessage::Batch { epoch: EPOCH, batch: batch? }));
        let last = stream::once(async move {
            let annotation = work.annotation(annotation, begun);
            stream::iter([Ok(ResultMessage::EpochComplete { epoch: EPOCH }), Ok(ResultMessage::Done(annotation))])
        })
        .flatten();
        let messages: BoxStream<'static, Result<ResultMessage>> = until_error(batches.chain(last).boxed());
        Ok(Ok(DeliveryStream { schema, messages }))
    }
}

/// The same messages up to the first error.
fn until_error(messages: BoxStream<'static, Result<ResultMessage>>) -> BoxStream<'static, Result<ResultMessage>> {
    stream::unfold(Some(messages), |messages| async move {
        let mut messages = messages?;
        let next = messages.next().await?;
        let left = next.is_ok().then_some(messages);
        Some((next, left))
    })
    .boxed()
}

/// The numbers of the slices that the sub-plan reads.
fn slices(split: &SplitExecution) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for stripe in split.slice_manifest() {
        // Where only the number of rows is wanted, a stripe names no slice; its only slice has its number.
        let own = split.slices_of(stripe.stripe)?;
        all.push(own.first().copied().unwrap_or(stripe.stripe));
    }
    Ok(all)
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
    /// The result over one slice, from its OSD or from here.
    async fn slice(self: Arc<Self>, key: Key) -> Result<Vec<RecordBatch>> {
        let why = if self.failed.load(Ordering::Relaxed) >= GIVE_UP || self.late.load(Ordering::Relaxed) >= GIVE_UP_LATE {
            None
        } else {
            match self.there(&key).await? {
                Ok((receipt, batches)) => {
                    self.failed.store(0, Ordering::Relaxed);
                    self.note(&receipt, &batches);
                    return Ok(batches);
                }
                Err(why) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                    Some(why)
                }
            }
        };
        if let Some(why) = why {
            self.notes.lock().why.get_or_insert(why);
        }
        self.here(key).await
    }

    /// The result of the OSD; or why there is none.
    async fn there(self: &Arc<Self>, key: &Key) -> Result<Result<(Receipt, Vec<RecordBatch>), String>> {
        for attempt in 0.. {
            let (own, asked) = (Arc::clone(self), key.clone());
            let called = skytether_engine::blocking(move || {
                own.store.call(&asked, CLASS, RUN, |len, crc32c| Request { object: Object::Slice { len, crc32c }, ..own.request.clone() }.encode())
            });
            let Some(called) = called.await? else { return Ok(Err(format!("there is no slice {key}"))) };
            let response = match (Response::decode(&called.output), called.error()) {
                (Ok(response), _) => response,
                (Err(_), Some(error)) => return Ok(Err(error)),
                (Err(wrong), None) => return Ok(Err(format!("the answer of an OSD can't be read: {wrong}"))),
            };
            match response.outcome {
                Outcome::Rows(rows) => match decoded(&rows, &self.schema) {
                    Ok(batches) => return Ok(Ok((response.receipt, batches))),
                    Err(error) => return Ok(Err(format!("{}: {}", response.receipt.name(), error.report()))),
                },
                Outcome::Refused(Refusal::Busy, _) if attempt < AGAIN => tokio::time::sleep(PAUSE * (attempt + 1)).await,
                Outcome::Refused(why, reason) => {
                    if why == Refusal::Late {
                        self.late.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(Err(format!("{}: {reason}", response.receipt.name())));
                }
            }
        }
        Ok(Err("the engines are busy".to_owned()))
    }

    /// The same, over a slice that is read from the cluster.
    async fn here(self: Arc<Self>, key: Key) -> Result<Vec<RecordBatch>> {
        let begun = Instant::now();
        let store = Arc::clone(&self.store);
        let (bytes, entry) = skytether_engine::blocking(move || {
            let bytes = store.get(&key)?;
            let crc32c = skytether_common::checksum::crc32c(&bytes);
            Ok((bytes, crc32c))
        })
        .await?;
        let request = Request { object: Object::Slice { len: bytes.len() as u64, crc32c: entry }, ..self.request.clone() };
        let read = Arc::default();
        let object: Arc<dyn ObjectBytes> = Arc::new(bytes);
        let Opened::Rows(mut delivery) = start(&self.engine, request, object, &read).await? else {
            return Err(Error::internal("a sub-plan without a plan came to an OSD's drive"));
        };
        let (mut batches, mut peak) = (Vec::new(), 0);
        while let Some(message) = delivery.messages.next().await {
            match message? {
                ResultMessage::Batch { batch, .. } => batches.push(batch),
                ResultMessage::EpochComplete { .. } => {}
                ResultMessage::Done(annotation) => peak = annotation.peak_memory,
            }
        }
        let mut notes = self.notes.lock();
        notes.own.slices += 1;
        notes.own.bytes_read += read.load(Ordering::Relaxed);
        notes.own.seconds += begun.elapsed().as_secs_f64();
        notes.own.peak_memory = notes.own.peak_memory.max(peak);
        notes.own.rows_out += batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>();
        Ok(batches)
    }

    /// Takes an OSD's receipt into the notes.
    fn note(&self, receipt: &Receipt, batches: &[RecordBatch]) {
        let sent: usize = batches.iter().map(RecordBatch::get_array_memory_size).sum();
        let told = Annotation {
            cse: receipt.name(),
            rung: Some(PushdownLevel::Full),
            slices: 1,
            rows_out: receipt.rows,
            bytes_read: receipt.bytes_read,
            bytes_sent: sent as u64,
            seconds: receipt.time.as_secs_f64(),
            peak_memory: receipt.peak_memory,
            ..Annotation::default()
        };
        let mut notes = self.notes.lock();
        match notes.osds.get_mut(&told.cse) {
            Some(own) => own.add(told),
            None => {
                notes.osds.insert(told.cse.clone(), told);
            }
        }
    }

    /// The annotation of the whole.
    fn annotation(&self, about: Annotation, begun: Instant) -> Annotation {
        let notes = std::mem::take(&mut *self.notes.lock());
        let mut whole = about;
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

impl Layer for OsdDrive {
    fn info(&self) -> &CseInfo {
        self.inner.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.inner.as_ref())
    }

    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        async move {
            match self.at_osds(&plan).await? {
                Ok(delivery) => Ok(delivery),
                Err(why) => Ok(reasoned(self.inner.execute(plan).await?, why)),
            }
        }
        .boxed()
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        async move {
            let why = match self.at_osds(&plan).await? {
                Ok(delivery) => return Ok(OpenReply::Whole(delivery)),
                Err(why) => why,
            };
            Ok(match self.inner.open(plan).await? {
                OpenReply::Whole(delivery) => OpenReply::Whole(reasoned(delivery, why)),
                OpenReply::Session(session) => {
                    let messages = session.messages.map(move |message| match message {
                        Ok(Message::Done(mut annotation)) => {
                            annotation.reason.get_or_insert_with(|| not_there(why));
                            Ok(Message::Done(annotation))
                        }
                        other => other,
                    });
                    OpenReply::Session(Session { messages: messages.boxed(), ..session })
                }
            })
        }
        .boxed()
    }
}

fn not_there(why: &str) -> String {
    format!("done here, and not at OSDs: {why}")
}

/// A delivery whose annotation says why it is none of OSDs.
fn reasoned(delivery: DeliveryStream, why: &'static str) -> DeliveryStream {
    let messages = delivery.messages.map(move |message| match message {
        Ok(ResultMessage::Done(mut annotation)) => {
            annotation.reason.get_or_insert_with(|| not_there(why));
            Ok(ResultMessage::Done(annotation))
        }
        other => other,
    });
    DeliveryStream { schema: delivery.schema, messages: messages.boxed() }
}
