//! A hash join that uses disk where its tables don't fit into memory.
//!
//! DataFusion's hash join fails where a partition of its left side and the hash table over it exceed the memory. Its
//! join by sorting spills, and each of its sorts reserves 10 MiB for merging, which few of them get in little memory.
//!
//! [`SpillingJoinExec`] reads the left side first. If that fits, it joins in memory and the right side streams. If not,
//! it divides both sides by another hash of the keys among [`PARTS`] files each, and joins file by file. A file that
//! does not fit either is divided again. A join that writes holds no table, so a chain of joins needs memory for few.
//!
//! Joins leave half of the memory to other operators. The memory of a table is reserved before the join makes it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, UInt32Array};
use arrow::buffer::NullBuffer;
use arrow::compute::take_record_batch;
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

use crate::join_keys::{Rows, Teller};

/// Files among which a side is divided.
const PARTS: usize = 16;

/// How often a side is divided, at most. What is too large then has few keys, which no hash divides.
const DEPTH: u64 = 4;

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

    /// Reserves `need` bytes for a table. At least half of the memory stays for other operators.
    fn fits(&self, room: &MemoryReservation, need: usize) -> bool {
        if need <= SMALL {
            room.resize(need);
            return true;
        }
        let pool = self.context.memory_pool();
        let most = match pool.memory_limit() {
            MemoryLimit::Finite(limit) => limit / 2,
            MemoryLimit::Infinite | MemoryLimit::Unknown => usize::MAX,
        };
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
        let (mut hashes, mut turn, mut unmatched) = (Vec::new(), Turn::begins(), 0);
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            let values = keys.iter().map(|key| key.evaluate(&batch)?.into_array(batch.num_rows())).collect::<DfResult<Vec<_>>>()?;
            hashes.clear();
            hashes.resize(batch.num_rows(), 0);
            create_hashes(&values, &state, &mut hashes)?;
            let mut of_part = vec![Vec::new(); PARTS];
            let nulls = values.iter().filter(|_| !self.nulls_meet).fold(None, |all, key| NullBuffer::union(all.as_ref(), key.logical_nulls().as_ref()));
            for (at, (hash, row)) in hashes.iter().zip(0u32..).enumerate() {
                // Rows that meet no other one may go anywhere, and many of them have NULL.
                let meets_none = nulls.as_ref().is_some_and(|nulls| nulls.is_null(at));
                unmatched += usize::from(meets_none);
                let part = if meets_none { unmatched % PARTS } else { ((hash ^ (hash >> 32)) % PARTS as u64) as usize };
                of_part[part].push(row);
            }
            for (part, rows) in parts.iter_mut().zip(of_part).filter(|(_, rows)| !rows.is_empty()) {
                let file = match part {
                    Some(file) => file,
                    None => part.insert(files.create_in_progress_file("a part of a join")?),
                };
                file.append_batch(&take_record_batch(&batch, &UInt32Array::from(rows))?)?;
            }
            turn.may_end().await;
        }
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
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::common::DataFusionError;
    use datafusion::common::tree_node::{Transformed, TreeNode};
    use datafusion::datasource::MemTable;
    use datafusion::execution::memory_pool::FairSpillPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    /// Tables `a` and `b` of `rows` rows, whose keys meet some others and none at all, in a session of `memory` bytes.
    fn session(rows: i64, memory: usize, key: fn(i64) -> Option<i64>) -> SessionContext {
        let table = |first: i64| {
            let of = first..first + rows;
            let columns: [(&str, ArrayRef); 3] = [
                ("k", Arc::new(Int64Array::from_iter(of.clone().map(key)))),
                ("v", Arc::new(Int64Array::from_iter_values(of.clone()))),
                ("t", Arc::new(StringArray::from_iter_values(of.map(|row| format!("a text that is no short one {row}"))))),
            ];
            let rows = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
            let parts = (0..4).map(|at| rows.slice(at * rows.num_rows() / 4, rows.num_rows() / 4));
            MemTable::try_new(rows.schema(), parts.map(|part| (0..5).map(|at| part.slice(at * part.num_rows() / 5, part.num_rows() / 5)).collect()).collect())
                .unwrap()
        };
        let mut config = SessionConfig::new().with_target_partitions(2);
        let optimizer = &mut config.options_mut().optimizer;
        optimizer.hash_join_single_partition_threshold = 0;
        optimizer.hash_join_single_partition_threshold_rows = 0;
        optimizer.enable_join_dynamic_filter_pushdown = false;
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(FairSpillPool::new(memory))).build_arc().unwrap();
        let context = SessionContext::new_with_config_rt(config, runtime);
        context.register_table("a", Arc::new(table(0))).unwrap();
        context.register_table("b", Arc::new(table(rows / 2))).unwrap();
        context
    }

    /// The rows in order, and the bytes put on disk by joins of this module.
    async fn run(context: &SessionContext, sql: &str, with_disk: bool) -> DfResult<(String, usize)> {
        let plan = context.sql(sql).await?.create_physical_plan().await?;
        let around = |node: Plan| {
            let joins = node.is::<HashJoinExec>();
            Ok(if joins && with_disk { Transformed::yes(SpillingJoinExec::around(node, None)) } else { Transformed::no(node) })
        };
        let plan = plan.transform_up(around)?.data;
        let rows = collect(Arc::clone(&plan), context.task_ctx()).await?;
        let mut lines: Vec<String> = pretty_format_batches(&rows)?.to_string().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        fn spilled(plan: &dyn ExecutionPlan) -> usize {
            let own = if plan.is::<SpillingJoinExec>() { plan.metrics().and_then(|m| m.spilled_bytes()).unwrap_or(0) } else { 0 };
            own + plan.children().into_iter().map(|child| spilled(child.as_ref())).sum::<usize>()
        }
        Ok((lines.join("\n"), spilled(plan.as_ref())))
    }

    const JOINS: [&str; 8] = [
        "SELECT a.v, b.v, b.t FROM a JOIN b ON a.k = b.k",
        "SELECT a.v, b.v, a.t FROM a JOIN b ON a.k = b.k AND a.t = b.t",
        "SELECT a.v, b.t FROM a LEFT JOIN b ON a.k = b.k AND a.v < b.v",
        "SELECT a.t, b.t FROM a RIGHT JOIN b ON a.k = b.k AND a.v % 3 = b.v % 2",
        "SELECT a.t, b.t FROM a FULL JOIN b ON a.k = b.k AND a.v <> b.v",
        "SELECT a.t FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.v > a.v)",
        "SELECT a.t FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.v > a.v)",
        "SELECT a.t FROM a JOIN b ON (a.k IS NOT DISTINCT FROM b.k) AND a.v = b.v",
    ];

    /// Some keys are NULL, some come twice, and some on one side only.
    fn keys(row: i64) -> Option<i64> {
        (row % 11 != 0).then_some(row / 2 * 7 % 100_003)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn joins_of_all_kinds_on_disk_give_the_same_rows() {
        let (roomy, little) = (session(20_000, 1 << 30, keys), session(20_000, 1 << 20, keys));
        for sql in JOINS {
            let (wanted, none) = run(&roomy, sql, true).await.unwrap();
            assert_eq!(none, 0, "{sql}: nothing is put on disk where all fits");
            assert_eq!(run(&roomy, sql, false).await.unwrap().0, wanted, "{sql}");
            let (found, spilled) = run(&little, sql, true).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
            assert!(found == wanted, "{sql}: other rows on disk");
            assert!(spilled > 1 << 20, "{sql}: {spilled}");
            // Tasks of the plan end soon after it.
            for _ in 0..100 {
                tokio::time::sleep(Duration::from_millis(if little.runtime_env().memory_pool.reserved() == 0 { 0 } else { 20 })).await;
            }
            assert_eq!(little.runtime_env().memory_pool.reserved(), 0, "{sql}");
        }
        let alone = run(&little, JOINS[1], false).await.unwrap_err();
        assert!(matches!(alone.find_root(), DataFusionError::ResourcesExhausted(_)), "{alone}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn chains_of_joins_need_the_memory_of_few() {
        let sql = "SELECT count(*) AS n, sum(a.v + e.v) AS s, max(d.t) AS m FROM a JOIN b ON a.k = b.k JOIN b c ON a.v = c.v JOIN a d ON d.v = c.v JOIN b e ON e.t = d.t";
        let (roomy, little) = (session(20_000, 1 << 30, keys), session(20_000, 2 << 20, keys));
        let (wanted, _) = run(&roomy, sql, false).await.unwrap();
        let (found, spilled) = run(&little, sql, true).await.unwrap();
        assert_eq!(found, wanted);
        assert!(spilled > 2 << 20, "{spilled}");
    }

    /// Rows without a key meet no other one, and no part of the join has all of them.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_rows_without_a_key_need_little_memory() {
        let few = |row: i64| (row % 50 == 0).then_some(row);
        let sql = "SELECT a.v, b.v, a.t FROM a FULL JOIN b ON a.k = b.k";
        let (roomy, little) = (session(20_000, 1 << 30, few), session(20_000, 1 << 20, few));
        let (wanted, _) = run(&roomy, sql, false).await.unwrap();
        let (found, spilled) = run(&little, sql, true).await.unwrap();
        assert!(found == wanted && spilled > 1 << 20, "{spilled}");
    }

    /// No hash divides the rows of one key: their table is made where all of the memory has room for it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_key_alone_takes_more_than_half_of_the_memory() {
        let sql = "SELECT count(*) AS n FROM a JOIN b ON a.k = b.k AND a.v - b.v = 1 WHERE a.t <> b.t";
        let (roomy, little) = (session(2_000, 1 << 30, |_| Some(5)), session(2_000, 500 << 10, |_| Some(5)));
        let (wanted, _) = run(&roomy, sql, false).await.unwrap();
        let (found, spilled) = run(&little, sql, true).await.unwrap();
        assert_eq!(found, wanted);
        assert!(spilled > 100 << 10, "{spilled}");
    }
}
