//! The keys of one side of a join, for the scans of its other side on whichever host they run.
//!
//! On one host, a hash join tells the scans of its right side which keys its left side has, and drives drop other rows.
//! Here the partitions of the left side are on several hosts. Each partition tells its keys to the [`Told`] of its
//! host. A host whose scans wait for a join asks all hosts that run it, and puts the keys together.
//!
//! Keys are a hint. Where a partition has too many, was never read, or does not tell in time, drives drop nothing. Nor
//! do they where the keys of a query take more than a small part of the host's memory: each partition reserves what it
//! keeps, and tells none where that fails.
//!
//! A scan waits for all partitions of the join, so all of them must be read at the same time. That holds in stages that
//! deal by hash, and below a merge. Other joins tell no keys.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use arrow::array::{Array, ArrayRef, UInt32Array, new_empty_array};
use arrow::compute::{concat, filter, is_not_null, partition, sort, take};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::Result as DfResult;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, DynamicFilterPhysicalExpr, InListExpr, lit};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use skytether_plan::keys::takes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Rows of an operator, or the error that ends them.
pub(crate) type Rows = BoxStream<'static, DfResult<RecordBatch>>;

/// Keys of a partition, at most, and their bytes. Of more, none are told.
const MOST: (usize, usize) = (25_000, 1 << 20);

/// Keys of all partitions, at most, and their bytes.
const MOST_TOGETHER: (usize, usize) = (100_000, 8 << 20);

/// The part of a host's memory that the keys of a query take, at most.
const SHARE: usize = 32;

/// Copies of keys that there are while those of several partitions are put together.
const COPIES: usize = 3;

/// How long scans wait for keys, from when the host was asked to run its part of the query.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// For each key of a join the values that one side has; `None` where any value is possible.
pub(crate) type Keys = Vec<Option<ArrayRef>>;

/// Where a join runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runs {
    /// The number of its stage.
    pub(crate) stage: usize,
    /// The tasks of the stage.
    pub(crate) tasks: usize,
    /// Which partition of the stage the join's first one is.
    pub(crate) first: usize,
    /// The partitions of the join.
    pub(crate) partitions: usize,
}

impl Runs {
    /// The partitions of the join that `task` runs.
    pub(crate) fn of_task(self, task: usize) -> impl Iterator<Item = usize> {
        (0..self.partitions).filter(move |partition| (self.first + partition) % self.tasks == task)
    }
}

/// A join whose keys scans wait for.
#[derive(Debug, Clone)]
pub(crate) struct JoinKeys {
    /// Its number among those of the plan.
    pub(crate) number: usize,
    filter: Arc<dyn PhysicalExpr>,
    probe: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
    /// Where it tells its keys; nowhere if `None`.
    pub(crate) runs: Option<Runs>,
}

impl JoinKeys {
    /// Of a join that sends `filter` to the scans of its right side, which has the keys `probe` and this `schema`.
    pub(crate) fn new(number: usize, filter: Arc<dyn PhysicalExpr>, probe: Vec<Arc<dyn PhysicalExpr>>, schema: SchemaRef) -> Self {
        Self { number, filter, probe, schema, runs: None }
    }

    /// The id of the filter that scans wait for.
    pub(crate) fn id(&self) -> Option<u64> {
        self.filter.expression_id()
    }

    /// How many keys the join has.
    pub(crate) fn columns(&self) -> usize {
        self.probe.len()
    }

    /// Scans wait no longer. They drop the rows without any of `keys`, where there are some.
    pub(crate) fn complete(&self, keys: Option<&Keys>) {
        let Some(filter) = self.filter.downcast_ref::<DynamicFilterPhysicalExpr>() else { return };
        let condition = keys.map(|keys| self.condition(keys));
        match condition {
            Some(Ok(Some(condition))) => {
                if let Err(error) = filter.update(condition) {
                    tracing::warn!(%error, "the keys of a join do not reach its scans");
                }
            }
            Some(Err(error)) => tracing::warn!(%error, "the keys of a join make no condition"),
            Some(Ok(None)) | None => {}
        }
        filter.mark_complete();
    }

    fn condition(&self, keys: &Keys) -> DfResult<Option<Arc<dyn PhysicalExpr>>> {
        let mut all: Option<Arc<dyn PhysicalExpr>> = None;
        for (key, values) in self.probe.iter().zip(keys) {
            let Some(values) = values else { continue };
            let one: Arc<dyn PhysicalExpr> = match values.is_empty() {
                true => lit(false),
                false => Arc::new(InListExpr::try_new_from_array(Arc::clone(key), Arc::clone(values), false, &self.schema)?),
            };
            all = Some(match all {
                Some(others) => Arc::new(BinaryExpr::new(others, Operator::And, one)),
                None => one,
            });
        }
        Ok(all)
    }
}

/// The memory of the keys of a query on this host.
#[derive(Debug)]
struct Room {
    /// Empty: each that holds keys has a reservation of its own.
    memory: MemoryReservation,
    used: Arc<AtomicUsize>,
    most: usize,
}

impl Room {
    fn of(pool: &Arc<dyn MemoryPool>) -> Self {
        let most = match pool.memory_limit() {
            MemoryLimit::Finite(limit) => limit / SHARE,
            MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
        };
        Self { memory: MemoryConsumer::new("keys of joins").register(pool), used: Arc::default(), most }
    }

    fn nothing_yet(&self) -> Held {
        Held { memory: self.memory.new_empty(), used: Arc::clone(&self.used), most: self.most }
    }
}

/// Memory that is reserved for keys, until this is dropped.
#[derive(Debug)]
struct Held {
    memory: MemoryReservation,
    used: Arc<AtomicUsize>,
    most: usize,
}

impl Held {
    /// Reserves `bytes` in all: whether there is room.
    fn resize(&self, bytes: usize) -> bool {
        let before = self.memory.size();
        if bytes <= before {
            self.memory.shrink(before - bytes);
            self.used.fetch_sub(before - bytes, Ordering::Relaxed);
            return true;
        }
        let more = bytes - before;
        let all = self.used.fetch_add(more, Ordering::Relaxed).saturating_add(more);
        let fits = all <= self.most && self.memory.try_grow(more).is_ok();
        if !fits {
            self.used.fetch_sub(more, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.resize(0);
    }
}

fn bytes_of<'a>(arrays: impl IntoIterator<Item = &'a ArrayRef>) -> usize {
    arrays.into_iter().map(|array| array.get_array_memory_size()).sum()
}

/// What the partitions of joins on this host have told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    known: Mutex<BTreeMap<(usize, usize), (Keys, Option<Held>)>>,
    news: Notify,
    /// Without it no keys are kept: those of the coordinator's joins no host asks for.
    room: OnceLock<Room>,
}

impl Told {
    /// Keeps keys from now on, in the memory of `pool`.
    pub(crate) fn keep_in(&self, pool: &Arc<dyn MemoryPool>) {
        self.room.get_or_init(|| Room::of(pool));
    }

    fn nothing_yet(&self) -> Option<Held> {
        self.room.get().map(Room::nothing_yet)
    }

    /// `held` is the memory of `keys`, or more.
    fn tell(&self, join: usize, partition: usize, mut keys: Keys, held: Option<Held>) {
        let fits = held.as_ref().is_some_and(|held| held.resize(bytes_of(keys.iter().flatten())));
        if !fits {
            keys.fill(None);
        }
        self.known.lock().insert((join, partition), (keys, held.filter(|_| fits)));
        self.news.notify_waiters();
    }

    /// The keys that any of `some` has, as long as there is memory to put them together. Those without any partition of
    /// the join have no columns.
    pub(crate) fn together(&self, some: &[Keys]) -> Keys {
        let bytes = bytes_of(some.iter().flatten().flatten());
        let held = self.nothing_yet().filter(|held| held.resize(bytes.saturating_mul(COPIES)));
        match held {
            Some(_) => together(some),
            None => vec![None; some.iter().map(Vec::len).max().unwrap_or(0)],
        }
    }

    /// The keys of these partitions, once all of them have told theirs; `None` where one has not by `until`.
    pub(crate) async fn of(&self, join: usize, partitions: &[usize], until: Instant) -> Option<Vec<Keys>> {
        timeout_at(until, self.all_of(join, partitions)).await.ok()
    }

    async fn all_of(&self, join: usize, partitions: &[usize]) -> Vec<Keys> {
        loop {
            let mut news = std::pin::pin!(self.news.notified());
            // From here on no news is missed.
            news.as_mut().enable();
            let known: Option<Vec<_>> = {
                let known = self.known.lock();
                partitions.iter().map(|partition| known.get(&(join, *partition)).map(|(keys, _)| keys.clone())).collect()
            };
            if let Some(known) = known {
                return known;
            }
            news.await;
        }
    }
}

fn together(some: &[Keys]) -> Keys {
    let some: Vec<&Keys> = some.iter().filter(|keys| !keys.is_empty()).collect();
    let (most, bytes) = MOST_TOGETHER;
    let column = |at: usize| {
        let parts = some.iter().map(|keys| keys.get(at).cloned().flatten()).collect::<Option<Vec<_>>>()?;
        distinct(&parts).ok().filter(|keys| keys.len() <= most && keys.get_array_memory_size() <= bytes)
    };
    (0..some.first().map_or(0, |keys| keys.len())).map(column).collect()
}

/// Each value once.
fn distinct(parts: &[ArrayRef]) -> DfResult<ArrayRef> {
    let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
    let sorted = sort(&concat(&parts)?, None)?;
    let first = partition(&[Arc::clone(&sorted)])?.ranges().into_iter().map(|range| range.start as u32);
    Ok(take(&sorted, &UInt32Array::from_iter_values(first), None)?)
}

/// How a join tells its keys.
#[derive(Debug, Clone)]
pub(crate) struct Teller {
    join: usize,
    told: Arc<Told>,
}

impl Teller {
    /// Of the join with this number, whose partitions tell `told`.
    pub(crate) fn new(join: usize, told: &Arc<Told>) -> Self {
        Self { join, told: Arc::clone(told) }
    }

    /// The number of the join.
    pub(crate) fn join(&self) -> usize {
        self.join
    }

    /// `rows` of `schema`, whose keys are told when they end.
    pub(crate) fn listening(&self, rows: Rows, schema: &SchemaRef, keys: &[Arc<dyn PhysicalExpr>], partition: usize) -> Rows {
        let held = self.told.nothing_yet();
        let none_yet = |key: &Arc<dyn PhysicalExpr>| {
            let of = key.data_type(schema).ok().filter(|of| held.is_some() && takes(of))?;
            Some(vec![new_empty_array(&of)])
        };
        let (known, keys) = (keys.iter().map(none_yet).collect(), keys.to_vec());
        Listening { rows, keys, known, held, partition, teller: Some(self.clone()) }.boxed()
    }
}

struct Listening {
    rows: Rows,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    /// For each key the values so far.
    known: Vec<Option<Vec<ArrayRef>>>,
    /// Their memory.
    held: Option<Held>,
    partition: usize,
    /// Until it has told.
    teller: Option<Teller>,
}

impl Listening {
    fn add(&mut self, batch: &RecordBatch) {
        for (known, key) in self.known.iter_mut().zip(&self.keys) {
            *known = known.take().and_then(|parts| added(parts, key, batch).ok().flatten());
        }
        let bytes = bytes_of(self.known.iter().flatten().flatten());
        if !self.held.as_ref().is_some_and(|held| held.resize(bytes)) {
            self.known.fill(None);
            self.held = None;
        }
    }

    fn tell(&mut self, keys: Keys) {
        let held = self.held.take();
        if let Some(Teller { join, told }) = self.teller.take() {
            told.tell(join, self.partition, keys, held);
        }
    }
}

/// `parts` with the values of `key` in `batch`; `None` where they are too many.
fn added(mut parts: Vec<ArrayRef>, key: &Arc<dyn PhysicalExpr>, batch: &RecordBatch) -> DfResult<Option<Vec<ArrayRef>>> {
    let values = key.evaluate(batch)?.into_array(batch.num_rows())?;
    // NULL equals nothing.
    parts.push(filter(&values, &is_not_null(&values)?)?);
    let (rows, bytes) = MOST;
    let large = |parts: &[ArrayRef], times: usize| {
        parts.iter().map(|part| part.len()).sum::<usize>() > times * rows
            || parts.iter().map(|part| part.get_array_memory_size()).sum::<usize>() > times * bytes
    };
    if large(&parts, 2) {
        parts = vec![distinct(&parts)?];
        if large(&parts, 1) {
            return Ok(None);
        }
    }
    Ok(Some(parts))
}

impl Stream for Listening {
    type Item = DfResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.rows.poll_next_unpin(cx));
        match &next {
            Some(Ok(batch)) => self.add(batch),
            Some(Err(_)) => {}
            None => {
                let known = std::mem::take(&mut self.known);
                let (rows, _) = MOST;
                let keys = |parts: Vec<ArrayRef>| distinct(&parts).ok().filter(|keys| keys.len() <= rows);
                let keys = known.into_iter().map(|parts| parts.and_then(keys)).collect();
                self.tell(keys);
            }
        }
        Poll::Ready(next)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // No reader is left here, and other hosts must not wait for these keys.
        let unknown = self.keys.iter().map(|_| None).collect();
        self.tell(unknown);
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, Float64Array, Int64Array};
    use arrow::datatypes::Int64Type;
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use datafusion::physical_expr::expressions::col;
    use futures::stream;

    use super::*;
    use crate::wire::ToldKeys;

    fn batch(ids: Vec<Option<i64>>) -> RecordBatch {
        let ids = Int64Array::from(ids);
        let reals = Float64Array::from_iter_values((0..ids.len()).map(|at| at as f64));
        RecordBatch::try_from_iter([("id", Arc::new(ids) as ArrayRef), ("real", Arc::new(reals) as ArrayRef)]).unwrap()
    }

    /// A partition of join 3 that has these batches, read to the end or not at all.
    async fn heard(told: &Arc<Told>, partition: usize, batches: Vec<RecordBatch>, reads: bool) {
        let schema = batch(vec![]).schema();
        let keys = [col("id", &schema).unwrap(), col("real", &schema).unwrap()];
        let rows = Teller::new(3, told).listening(stream::iter(batches).map(Ok).boxed(), &schema, &keys, partition);
        if reads {
            rows.count().await;
        }
    }

    /// What partitions tell on a host with this memory.
    fn told(memory: usize) -> Arc<Told> {
        let told = Arc::new(Told::default());
        told.keep_in(&(Arc::new(GreedyMemoryPool::new(memory)) as _));
        told
    }

    /// A moment that no test waits for.
    fn late() -> Instant {
        Instant::now() + PATIENCE
    }

    fn ids(keys: &Keys) -> Option<Vec<i64>> {
        keys[0].as_ref().map(|ids| ids.as_primitive::<Int64Type>().values().to_vec())
    }

    #[tokio::test]
    async fn keys_of_all_partitions_come_together() {
        let told = told(1 << 30);
        heard(&told, 0, vec![batch(vec![Some(7), None, Some(5)]), batch(vec![Some(7)])], true).await;
        heard(&told, 2, vec![], true).await;
        let all = tokio::spawn({
            let told = Arc::clone(&told);
            async move { told.of(3, &[0, 1, 2], late()).await }
        });
        tokio::task::yield_now().await;
        assert!(!all.is_finished(), "one partition has told nothing");
        heard(&told, 1, vec![batch(vec![Some(1)])], true).await;
        let all = together(&all.await.unwrap().unwrap());
        // Sets of doubles do not travel.
        assert_eq!((ids(&all), all[1].is_none()), (Some(vec![1, 5, 7]), true));
        let sent = ToldKeys::new(&all).unwrap();
        assert_eq!(sent.keys().unwrap(), all);
        // A host without a partition of the join knows nothing of its keys, and none of them is lost.
        assert_eq!(together(&[vec![], all.clone(), vec![]]), all);
    }

    #[tokio::test]
    async fn too_many_keys_and_unread_partitions_are_unknown() {
        let told = told(1 << 30);
        heard(&told, 0, vec![batch((0..30_000).map(Some).collect()), batch((0..30_000).map(|at| Some(at * 2)).collect())], true).await;
        heard(&told, 1, (0..9).map(|_| batch((0..20_000).map(Some).collect())).collect(), true).await;
        heard(&told, 2, vec![batch(vec![Some(1)])], false).await;
        assert_eq!(ids(&together(&told.of(3, &[0], late()).await.unwrap())), None);
        assert_eq!(ids(&together(&told.of(3, &[1], late()).await.unwrap())).unwrap().len(), 20_000);
        assert_eq!(ids(&together(&told.of(3, &[1, 2], late()).await.unwrap())), None);
    }

    /// A partition that never tells its keys holds up who asks for no longer than was agreed.
    #[tokio::test]
    async fn keys_that_do_not_come_in_time_are_unknown() {
        let told = told(1 << 30);
        heard(&told, 0, vec![batch(vec![Some(1)])], true).await;
        assert!(told.of(3, &[0, 1], Instant::now()).await.is_none());
        assert_eq!(ids(&told.of(3, &[0], Instant::now()).await.unwrap()[0]), Some(vec![1]));
    }

    #[tokio::test]
    async fn keys_beyond_the_memory_of_the_host_are_dropped() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(SHARE * (100 << 10)));
        let told = Arc::new(Told::default());
        told.keep_in(&pool);
        // Each partition has 64 KB of keys.
        for partition in 0..3 {
            let first = i64::from(partition) * 8_000;
            heard(&told, partition as usize, vec![batch((first..first + 8_000).map(Some).collect())], true).await;
        }
        let all = told.of(3, &[0, 1, 2], late()).await.unwrap();
        let lens: Vec<Option<usize>> = all.iter().map(|keys| keys[0].as_ref().map(|keys| keys.len())).collect();
        assert_eq!(lens, [Some(8_000), None, None]);
        assert!((64_000..100 << 10).contains(&pool.reserved()), "{}", pool.reserved());
        // Put together, several copies of them do not fit.
        assert_eq!(told.together(&all[..1]), vec![None, None]);
        // Nor do they where others have the memory.
        let others = MemoryConsumer::new("others").register(&pool);
        others.grow(SHARE * (100 << 10) - pool.reserved());
        heard(&told, 4, vec![batch(vec![Some(1)])], true).await;
        assert_eq!(ids(&told.of(3, &[4], late()).await.unwrap()[0]), None);
        drop((told, others));
        assert_eq!(pool.reserved(), 0);
    }

    /// A coordinator's joins are asked by none: their keys take no memory.
    #[tokio::test]
    async fn keys_without_a_reader_are_not_kept() {
        let told = Arc::new(Told::default());
        heard(&told, 0, vec![batch(vec![Some(1)])], true).await;
        assert_eq!(told.of(3, &[0], late()).await.unwrap(), vec![vec![None, None]]);
    }
}
