//! A hash join that uses disk where its tables don't fit into memory.
//!
//! DataFusion's hash join fails where a partition of its left side and the hash table over it exceed the memory. Its
//! join by sorting spills, and each of its sorts reserves 10 MiB for merging, which few of them get in little memory.
//!
//! [`SpillingJoinExec`] reads the left side first. If that fits, it joins in memory and the right side streams. If not,
//! it divides both sides by another hash of the keys among [`PARTS`] files each, and joins file by file. A file that
//! does not fit either is divided again. A join that writes holds no table, so a chain of joins needs memory for few.
//! Rows are gathered before they are divided, as far as memory allows: otherwise each division would make batches of a
//! sixteenth of the rows.
//!
//! Joins leave half of the memory to other operators. The memory of a table is reserved before the join makes it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::Array;
use arrow::buffer::NullBuffer;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{NullEquality, Result as DfResult, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::{SendableRecordBatchStream, SpillFile, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet, SpillMetrics};
use datafusion::physical_plan::spill::SpillManager;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties, ReplaceChildrenOptions,
};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use skytether_device::size::batch_bytes;

use crate::gathered::Gathered;
use crate::join_keys::{Rows, Teller};

/// Files among which a side is divided.
const PARTS: usize = 16;

/// How often a side is divided, at most. What is too large then has few keys, which no hash divides.
const DEPTH: u64 = 4;

/// Bytes of rows that are gathered before they are divided, at most, and the part of the memory that they may take.
const GATHERED: (usize, usize) = (8 << 20, 32);

/// A table of up to this many bytes needs no room.
const SMALL: usize = 64 << 10;

/// Bytes of the hash table for a row, at most, besides the row.
const ROW: usize = 48;

/// How long a side that can't be divided further waits for memory, and how often it asks.
const PATIENCE: (Duration, u32) = (Duration::from_millis(50), 200);

/// How long a piece of work keeps a thread.
const TURN: Duration = Duration::from_millis(20);

type Plan = Arc<dyn ExecutionPlan>;
type Keys = Vec<Arc<dyn PhysicalExpr>>;

/// See the module.
#[derive(Debug)]
pub(crate) struct SpillingJoinExec {
    join: Plan,
    teller: Option<Teller>,
    metrics: ExecutionPlanMetricsSet,
}

impl SpillingJoinExec {
    /// `join` with disk, where the order of its rows and their number allow it. It then tells `teller` its keys.
    pub(crate) fn around(join: Plan, teller: Option<Teller>) -> Plan {
        let may = join.downcast_ref::<HashJoinExec>().is_some_and(|hash| {
            // Pieces are joined one after another: each would stop at the limit, and none knows of another one's NULL.
            *hash.partition_mode() == PartitionMode::Partitioned && hash.fetch().is_none() && !hash.null_aware && join.output_ordering().is_none()
        });
        if may { Arc::new(Self::new(join, teller)) } else { join }
    }

    fn new(join: Plan, teller: Option<Teller>) -> Self {
        Self { join, teller, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// The number of the join, if it tells its keys.
    pub(crate) fn tells(&self) -> Option<usize> {
        self.teller.as_ref().map(Teller::join)
    }
}

impl DisplayAs for SpillingJoinExec {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SpillingJoinExec: ")?;
        match self.join.downcast_ref::<HashJoinExec>() {
            Some(join) => join.fmt_as(form, f),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for SpillingJoinExec {
    fn name(&self) -> &str {
        "SpillingJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.join.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.join.children()
    }

    fn apply_expressions(&self, visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        self.join.apply_expressions(visit)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(Self::new(with_inputs(&self.join, children)?, self.teller.clone())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let Some(join) = self.join.downcast_ref::<HashJoinExec>() else { return internal_err!("SpillingJoinExec around {}", self.join.name()) };
        let (left, right) = (join.left().execute(partition, Arc::clone(&context))?, join.right().execute(partition, Arc::clone(&context))?);
        let (on_left, on_right): (Keys, Keys) = join.on().iter().cloned().unzip();
        let left = match &self.teller {
            Some(teller) => teller.listening(left.boxed(), &join.left().schema(), &on_left, partition),
            None => left.boxed(),
        };
        let work = Work {
            join: Arc::clone(&self.join),
            left: (join.left().schema(), on_left),
            right: (join.right().schema(), on_right),
            nulls_meet: join.null_equality == NullEquality::NullEqualsNull,
            spills: SpillMetrics::new(&self.metrics, partition),
            context,
        };
        let rows = stream::once(Arc::new(work).joined(left, right.boxed(), 0)).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        let mut all = self.metrics.clone_inner();
        // All pieces count in the figures of the join that they are copies of.
        self.join.metrics().iter().flat_map(MetricsSet::iter).for_each(|metric| all.push(Arc::clone(metric)));
        Some(all)
    }
}

fn with_inputs(join: &Plan, inputs: Vec<Plan>) -> DfResult<Plan> {
    Arc::clone(join).replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// The join of one partition.
struct Work {
    join: Plan,
    left: (SchemaRef, Keys),
    right: (SchemaRef, Keys),
    /// Whether NULL equals NULL.
    nulls_meet: bool,
    spills: SpillMetrics,
    context: Arc<TaskContext>,
}

impl Work {
    /// Joins two sides that were divided `depth` times.
    fn joined(self: Arc<Self>, mut left: Rows, right: Rows, depth: u64) -> BoxFuture<'static, DfResult<Rows>> {
        async move {
            let room = MemoryConsumer::new("SpillingJoin").register(self.context.memory_pool());
            let (mut table, mut need) = (Vec::new(), 0);
            while let Some(batch) = left.next().await {
                let batch = batch?;
                need += table_bytes(&batch);
                table.push(batch);
                if self.fits(&room, need) {
                    continue;
                }
                if depth < DEPTH {
                    // What is on its way to disk is in memory until it is there.
                    let written = stream::iter(table).map(move |batch| {
                        room.shrink(table_bytes(&batch).min(room.size()));
                        Ok(batch)
                    });
                    return self.in_parts(written.chain(left).boxed(), right, depth).await;
                }
                waited_for(&room, need, self.context.memory_pool().as_ref()).await?;
            }
            self.piece(table, right, room)
        }
        .boxed()
    }

    /// All of the memory.
    fn memory(&self) -> usize {
        match self.context.memory_pool().memory_limit() {
            MemoryLimit::Finite(limit) => limit,
            MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
        }
    }

    /// Reserves `need` bytes for a table. At least half of the memory stays for other operators.
    fn fits(&self, room: &MemoryReservation, need: usize) -> bool {
        if need <= SMALL {
            room.resize(need);
            return true;
        }
        let (pool, most) = (self.context.memory_pool(), self.memory() / 2);
        pool.reserved().saturating_add(need.saturating_sub(room.size())) <= most && room.try_resize(need).is_ok()
    }

    /// Joins `table`, whose memory is reserved, with `right`.
    fn piece(&self, table: Vec<RecordBatch>, right: Rows, room: MemoryReservation) -> DfResult<Rows> {
        let table = Handed::plan(&self.left.0, stream::iter(table).map(Ok).boxed())?;
        let join = with_inputs(&self.join, vec![table, Handed::plan(&self.right.0, right)?])?;
        let runtime = RuntimeEnv { memory_pool: Arc::new(UnboundedMemoryPool::default()), ..self.context.runtime_env().as_ref().clone() };
        let context = TaskContext::default().with_session_config(self.context.session_config().clone()).with_runtime(Arc::new(runtime));
        let rows = join.execute(0, Arc::new(context))?;
        Ok(rows
            .inspect(move |_| {
                // Reserved until the stream goes.
                let _ = room.size();
            })
            .boxed())
    }

    /// Divides both sides, and joins them part by part.
    async fn in_parts(self: Arc<Self>, left: Rows, right: Rows, depth: u64) -> DfResult<Rows> {
        let left = self.divided(left, &self.left, depth).await?;
        let right = self.divided(right, &self.right, depth).await?;
        // Where one part has all rows, the next hash divides them as little.
        let next = if left.iter().filter(|part| part.is_some()).count() > 1 { depth + 1 } else { DEPTH };
        let parts = left.into_iter().zip(right).filter(|(left, right)| left.is_some() || right.is_some());
        let joined = stream::iter(parts.collect::<Vec<_>>()).then(move |(left, right)| {
            let work = Arc::clone(&self);
            async move {
                let (left, right) = (work.read(&work.left.0, left)?, work.read(&work.right.0, right)?);
                work.joined(left, right, next).await
            }
        });
        Ok(joined.try_flatten().boxed())
    }

    fn files(&self, schema: &SchemaRef) -> SpillManager {
        SpillManager::new(self.context.runtime_env(), self.spills.clone(), Arc::clone(schema))
    }

    fn read(&self, schema: &SchemaRef, part: Option<Arc<dyn SpillFile>>) -> DfResult<Rows> {
        Ok(match part {
            Some(file) => self.files(schema).read_spill_as_stream_unbuffered(file, None)?.boxed(),
            None => stream::empty().boxed(),
        })
    }

    /// Writes rows to files by a hash of their keys that no other depth has, and no exchange.
    async fn divided(&self, mut rows: Rows, (schema, keys): &(SchemaRef, Keys), depth: u64) -> DfResult<Vec<Option<Arc<dyn SpillFile>>>> {
        let (files, state) = (self.files(schema), RandomState::with_seed(0x5ca1_ab1e + depth));
        let mut parts: Vec<Option<_>> = (0..PARTS).map(|_| None).collect();
        let mut write = |part: usize, batch: &RecordBatch| {
            let file = match &mut parts[part] {
                Some(file) => file,
                none => none.insert(files.create_in_progress_file("a part of a join")?),
            };
            file.append_batch(batch).map(drop)
        };
        let room = MemoryConsumer::new("SpillingJoin").register(self.context.memory_pool());
        let (most, share) = GATHERED;
        let (mut gathered, most) = (Gathered::new(schema, PARTS, self.context.session_config().batch_size()), most.min(self.memory() / share));
        let (mut hashes, mut turn, mut unmatched) = (Vec::new(), Turn::begins(), 0);
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            if batch.num_rows() == 0 {
                continue;
            }
            let values = keys.iter().map(|key| key.evaluate(&batch)?.into_array(batch.num_rows())).collect::<DfResult<Vec<_>>>()?;
            hashes.clear();
            hashes.resize(batch.num_rows(), 0);
            create_hashes(&values, &state, &mut hashes)?;
            let nulls = values.iter().filter(|_| !self.nulls_meet).fold(None, |all, key| NullBuffer::union(all.as_ref(), key.logical_nulls().as_ref()));
            let part = |(at, hash): (usize, &u64)| {
                // Rows that meet no other one may go anywhere, and many of them have NULL.
                let meets_none = nulls.as_ref().is_some_and(|nulls| nulls.is_null(at));
                unmatched += usize::from(meets_none);
                if meets_none { unmatched % PARTS } else { ((hash ^ (hash >> 32)) % PARTS as u64) as usize }
            };
            gathered.add(batch, hashes.iter().enumerate().map(part));
            if gathered.is_full() || gathered.bytes() >= most || !self.fits(&room, gathered.bytes()) {
                gathered.divide(&mut write)?;
                room.free();
            }
            turn.may_end().await;
        }
        gathered.divide(&mut write)?;
        parts.iter_mut().map(|part| part.as_mut().map_or(Ok(None), |file| file.finish())).collect()
    }
}

/// The memory of a hash table over `batch`, which is copied once while it is made.
fn table_bytes(batch: &RecordBatch) -> usize {
    usize::try_from(batch_bytes(batch)).unwrap_or(usize::MAX).saturating_mul(2).saturating_add(ROW.saturating_mul(batch.num_rows()))
}

/// Reserves `need` bytes once others have given them back.
async fn waited_for(room: &MemoryReservation, need: usize, pool: &dyn MemoryPool) -> DfResult<()> {
    let (pause, times) = PATIENCE;
    for _ in 0..times {
        let too_large = matches!(pool.memory_limit(), MemoryLimit::Finite(limit) if need > limit);
        if too_large || room.try_resize(need).is_ok() {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    room.try_resize(need)
}

/// The time that a piece of work has had on its thread.
struct Turn(Instant);

impl Turn {
    fn begins() -> Self {
        Self(Instant::now())
    }

    async fn may_end(&mut self) {
        if self.0.elapsed() >= TURN {
            tokio::task::yield_now().await;
            self.0 = Instant::now();
        }
    }
}

/// Gives rows that are there already, once.
struct Handed {
    schema: SchemaRef,
    rows: Mutex<Option<Rows>>,
}

impl Handed {
    fn plan(schema: &SchemaRef, rows: Rows) -> DfResult<Plan> {
        let part = Self { schema: Arc::clone(schema), rows: Mutex::new(Some(rows)) };
        Ok(Arc::new(StreamingTableExec::try_new(Arc::clone(schema), vec![Arc::new(part)], None, [], false, None)?))
    }
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handed")
    }
}

impl PartitionStream for Handed {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.rows.lock().take().unwrap_or_else(|| stream::once(async { internal_err!("rows were handed on already") }).boxed());
        let rows = stream::unfold((rows, Turn::begins()), |(mut rows, mut turn)| async move {
            turn.may_end().await;
            rows.next().await.map(|batch| (batch, (rows, turn)))
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
    }
}

#[cfg(test)]
mod tests;
