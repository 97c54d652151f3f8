//! [`OsdDrive`]: a drive of a fleet in Ceph. Each stripe is processed by the OSD that has its slice.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use skytether_ceph_protocol::proxy::Probe;
use skytether_ceph_protocol::request::MAX_REQUEST;
use skytether_ceph_protocol::{CLASS, Limits, Object, PROBE, Request, Stripe};
use skytether_common::{Key, Result};
use skytether_device::session::Message;
use skytether_device::{Annotation, Cse, CseInfo, DeliveryStream, Layer, OpenReply, Program, ResultMessage, Session, SubPlan};
use skytether_engine::Engine;
use skytether_engine::split_execution::{SplitExecution, Taken};
use skytether_rados::RadosStore;
use skytether_scheduler::message::PushdownLevel;

use crate::values::{Named, Readable, Values, kind_of};
use crate::work::{Place, Progress, Work};

/// Calls of one drive that are under way at the same time.
const UNDER_WAY: usize = 4;

const UNKNOWN: u8 = 0;
const CAN: u8 = 1;
const CANNOT: u8 = 2;

const CODED: &str = "the values are in an erasure-coded pool, where no object class of this release can read";

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

/// A drive whose sub-plans run at the OSDs, stripe by stripe. What can't run there runs in this process.
pub struct OsdDrive {
    inner: Arc<dyn Cse>,
    store: Arc<RadosStore>,
    /// Plans, and runs what the OSDs don't; it surveys slice by slice.
    engine: Arc<Engine>,
    values: Arc<Values>,
    /// Whether the class can read the values: [`UNKNOWN`], [`CAN`] or [`CANNOT`].
    reads: AtomicU8,
}

impl fmt::Debug for OsdDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OsdDrive").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl OsdDrive {
    /// `inner`, a drive over `store`. `engine` must survey slice by slice ([`Engine::apart`]).
    #[must_use]
    pub fn new(inner: Arc<dyn Cse>, store: Arc<RadosStore>, engine: Arc<Engine>) -> Self {
        Self { inner, store, engine, values: Arc::default(), reads: AtomicU8::new(UNKNOWN) }
    }

    /// The sub-plan as work of the OSDs, with its stripes; or why it does not divide by stripes.
    async fn divided(&self, plan: &SubPlan) -> Result<Result<(Work, Vec<Place>), &'static str>> {
        if self.reads.load(Ordering::Relaxed) == CANNOT {
            return Ok(Err(CODED));
        }
        let Program::Substrait(program) = &plan.program else { return Ok(Err("OSDs run Substrait plans only")) };
        if plan.rung != PushdownLevel::Full || !plan.with.is_empty() || plan.bytes() > MAX_REQUEST / 4 {
            return Ok(Err("the sub-plan reads two data sets, is a filter only, or has more than 4 MiB"));
        }
        let Taken::Split(split) = self.engine.take(plan.clone()).await? else {
            return Ok(Err("metadata answers the sub-plan, or it reads one slice, or it sorts or limits"));
        };
        let Some(places) = places(&split)? else { return Ok(Err("metadata answers the sub-plan, or its rows are in several slices of a wide table")) };
        let named = |map: &BTreeMap<String, bytes::Bytes>| map.iter().map(|(name, bytes)| (name.clone(), bytes.to_vec())).collect();
        let request = Request {
            limits: Limits::default(),
            object: Object::Stripe(Box::new(Stripe::nothing())),
            table: [plan.dataset.domain().to_owned(), plan.dataset.dataset().to_owned(), split.partition().table.clone()],
            schema: Vec::new(),
            plan: program.to_vec(),
            filters: named(&plan.filters),
            tables: named(&plan.tables),
        };
        let keys = plan.partitions.iter().map(|(table, name)| Ok((table.clone(), name.key()?.as_str().to_owned()))).collect::<Result<_>>()?;
        let work = Work {
            store: Arc::clone(&self.store),
            turns: Arc::clone(self.engine.turns()),
            schema: split.schema(PushdownLevel::Full),
            readable: Readable::of(&plan.partitions, split.partition(), split.is_sparse()),
            split: *split,
            request,
            keys,
            values: Arc::clone(&self.values),
            kind: kind_of(plan),
            named: Named::default(),
            progress: Progress::default(),
        };
        Ok(Ok((work, places)))
    }

    /// Whether the class can read the object of `key`, which no class of Ceph 16 to 20 can in an erasure-coded pool.
    /// One call, the first time; an OSD without the class leaves it open.
    async fn may_read(&self, key: &Key) -> Result<bool> {
        if self.reads.load(Ordering::Relaxed) == UNKNOWN {
            let (store, key) = (Arc::clone(&self.store), key.clone());
            let called = skytether_engine::blocking(move || store.call(&key, CLASS, PROBE, |_, _| Vec::new())).await?;
            if let Some(probe) = called.and_then(|called| Probe::decode(&called.output).ok()) {
                self.reads.store(if probe.read == -libc::EOPNOTSUPP { CANNOT } else { CAN }, Ordering::Relaxed);
            }
        }
        Ok(self.reads.load(Ordering::Relaxed) != CANNOT)
    }

    /// Runs the sub-plan at the OSDs; or why that can't be.
    async fn at_osds(&self, plan: &SubPlan) -> Result<Result<DeliveryStream, &'static str>> {
        let begun = Instant::now();
        let (work, places) = match self.divided(plan).await? {
            Ok(divided) => divided,
            Err(why) => return Ok(Err(why)),
        };
        let Some(first) = places.first() else { return Ok(Err("all slices are pruned")) };
        if !self.may_read(&first.key).await? {
            return Ok(Err(CODED));
        }
        let work = Arc::new(work);
        // Metadata, and what the last query of this kind needed. What is not there any more is left out.
        let (own, mut noted) = (Arc::clone(&work), self.values.noted(&work.kind));
        let learns = work.split.is_sparse() && noted.is_empty();
        noted.insert(work.split.partition().key()?);
        skytether_engine::blocking(move || noted.iter().try_for_each(|key| own.name_value(key).map(drop))).await?;
        let about = work.split.annotation();
        let annotation = Annotation {
            cse: self.inner.info().name.clone(),
            rung: Some(PushdownLevel::Full),
            slices_total: about.slices_total,
            slices_pruned: about.slices_pruned,
            bytes_received: plan.bytes() as u64,
            ..Annotation::default()
        };
        let schema = Arc::clone(&work.schema);
        // Of a matrix the first stripe goes alone: the others would ask for the same labels of cells.
        let (alone, all) = (first.clone(), places.into_iter().skip(usize::from(learns)).collect::<Vec<_>>());
        let (own, one) = (Arc::clone(&work), Arc::clone(&work));
        let batches = stream::iter(learns.then_some(alone))
            .then(move |place| Arc::clone(&one).stripe(place))
            .chain(stream::iter(all).map(move |place| Arc::clone(&own).stripe(place)).buffer_unordered(UNDER_WAY))
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

/// The stripes of the sub-plan, each with its one slice; `None` where one has several, or none is read.
fn places(split: &SplitExecution) -> Result<Option<Vec<Place>>> {
    let mut all = Vec::new();
    for stripe in split.slice_manifest() {
        let [slice] = split.slices_of(stripe.stripe)?[..] else { return Ok(None) };
        all.push(Place { stripe: stripe.stripe, key: split.partition().slice_key(slice)? });
    }
    Ok(Some(all))
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
