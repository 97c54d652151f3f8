//! A result that several operators of a query read, computed once.
//!
//! The first reader that is polled starts a task, which runs the input and keeps its batches. All readers wait for the
//! task, and then replay the batches. The task waits for no reader, because a hash join reads one side to the end
//! before it asks for the other: it keeps everything. What the shared results of a query keep counts in its memory
//! pool, and is at most [`MOST_BYTES`] and an eighth of the pool.
//!
//! A larger result is no longer shared. One reader gets the kept batches and the rest of the running input. Every other
//! reader runs a copy of the input.
//!
//! Filters and limits from above do not pass: they would drop rows of other readers. No deadlock is possible: the input
//! waits for nothing outside of it, because filters of joins do not pass either.
//!
//! Rows come in the order of the input, but no operator above may rely on it: the readers promise no order.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, Statistics, internal_datafusion_err, internal_err};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::UserDefinedLogicalNodeCore;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType, reset_plan_states};
use datafusion::physical_plan::filter_pushdown::{ChildPushdownResult, FilterDescription, FilterPushdownPhase, FilterPushdownPropagation};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PlanProperties};
use futures::future::{BoxFuture, Shared};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use skytether_common::Error;
use skytether_device::size::batch_bytes;
use skytether_plan::error::to_datafusion;
use skytether_plan::shared::{self, title};
use tokio_util::task::AbortOnDropHandle;

/// The most bytes that the shared results of one query keep in memory.
const MOST_BYTES: usize = 64 << 20;

/// The shared results of one query.
#[derive(Debug, Default)]
pub struct SharedResults {
    all: Mutex<Vec<Arc<SharedResult>>>,
    kept: Arc<AtomicUsize>,
}

impl SharedResults {
    /// The operator for `node`; `input` computes it if `node` is where that happens.
    ///
    /// # Errors
    /// Internal if `node` has more inputs than that.
    pub fn reader(&self, node: &shared::Shared, input: &[Arc<dyn ExecutionPlan>]) -> Result<Arc<dyn ExecutionPlan>> {
        let mut all = self.all.lock();
        let result = match all.iter().find(|result| result.number == node.number) {
            Some(known) => Arc::clone(known),
            None => {
                let result = Arc::new(SharedResult::new(node.number, node.uses, Arc::clone(&self.kept)));
                all.push(Arc::clone(&result));
                result
            }
        };
        drop(all);
        match input {
            [] => Ok(Arc::new(SharedResultExec::new(result, None, Arc::clone(UserDefinedLogicalNodeCore::schema(node).inner())))),
            [input] => {
                result.planned(Arc::clone(input));
                Ok(Arc::new(SharedResultExec::new(result, Some(Arc::clone(input)), input.schema())))
            }
            more => internal_err!("a shared result of {} inputs", more.len()),
        }
    }
}

/// Tells the shared results of `plan` what computes them. `plan` is what runs: no rule rewrites it from here on.
pub fn bind(plan: &dyn ExecutionPlan) {
    if let Some(SharedResultExec { result, input: Some(input), .. }) = plan.downcast_ref() {
        result.planned(Arc::clone(input));
    }
    plan.children().into_iter().for_each(|child| bind(child.as_ref()));
}

type Computing = Shared<BoxFuture<'static, std::result::Result<Arc<Computed>, Arc<DataFusionError>>>>;

/// One shared result.
struct SharedResult {
    number: usize,
    uses: usize,
    /// The bytes that all shared results of the query keep.
    kept: Arc<AtomicUsize>,
    statistics: OnceLock<Arc<Statistics>>,
    run: Mutex<Run>,
}

/// How far a shared result is.
#[derive(Default)]
struct Run {
    /// What computes it.
    input: Option<Arc<dyn ExecutionPlan>>,
    /// Whether the input has run: a plan runs once, and a copy of it from then on.
    began: bool,
    computing: Option<Computing>,
    /// Readers that were polled and are not dropped.
    active: usize,
    /// Readers that were dropped.
    gone: usize,
}

impl fmt::Debug for SharedResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedResult").field("number", &self.number).field("uses", &self.uses).finish_non_exhaustive()
    }
}

impl SharedResult {
    fn new(number: usize, uses: usize, kept: Arc<AtomicUsize>) -> Self {
        Self { number, uses, kept, statistics: OnceLock::new(), run: Mutex::default() }
    }

    fn planned(&self, input: Arc<dyn ExecutionPlan>) {
        self.run.lock().input = Some(input);
    }

    fn input(&self) -> Result<Arc<dyn ExecutionPlan>> {
        self.run.lock().input.clone().ok_or_else(|| internal_datafusion_err!("nothing computes shared result {}", self.number))
    }

    /// What is known of the rows before they are computed.
    fn statistics(&self, schema: &SchemaRef) -> Result<Arc<Statistics>> {
        if let Some(known) = self.statistics.get() {
            return Ok(Arc::clone(known));
        }
        let Ok(input) = self.input() else { return Ok(Arc::new(Statistics::new_unknown(schema))) };
        let computed = StatisticsContext::new().compute(input.as_ref(), &StatisticsArgs::new())?;
        Ok(Arc::clone(self.statistics.get_or_init(|| computed)))
    }
}

/// What became of a run.
enum Computed {
    Kept(Vec<RecordBatch>, #[expect(dead_code, reason = "held until the batches are dropped")] Memory),
    /// The result is too large to be kept; the first reader that asks gets it.
    TooLarge(Mutex<Option<Rest>>),
}

/// A run that goes on.
struct Rest {
    first: Vec<RecordBatch>,
    memory: Memory,
    rows: SendableRecordBatchStream,
}

/// What the kept batches of a run take, given back when it is dropped.
struct Memory {
    pool: MemoryReservation,
    /// What all shared results of the query take.
    all: Arc<AtomicUsize>,
    limit: usize,
}

impl Memory {
    fn new(pool: &Arc<dyn MemoryPool>, all: Arc<AtomicUsize>) -> Self {
        let limit = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) => MOST_BYTES.min(bytes / 8),
            _ => MOST_BYTES,
        };
        Self { pool: MemoryConsumer::new("shared result").register(pool), all, limit }
    }

    /// Whether `bytes` more can be kept.
    fn take(&mut self, bytes: usize) -> bool {
        let before = self.all.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.saturating_add(bytes) <= self.limit && self.pool.try_grow(bytes).is_ok();
        if !fits {
            self.all.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.pool.size(), Ordering::Relaxed);
    }
}

/// Runs `input`, and keeps its batches as long as they fit.
async fn compute(input: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>, all: Arc<AtomicUsize>) -> Result<Computed> {
    let mut memory = Memory::new(context.memory_pool(), all);
    let mut rows = input.execute(0, context)?;
    let mut batches = Vec::new();
    while let Some(batch) = rows.next().await {
        let batch = batch?;
        let bytes = usize::try_from(batch_bytes(&batch)).unwrap_or(usize::MAX / 2);
        batches.push(batch);
        if !memory.take(bytes) {
            return Ok(Computed::TooLarge(Mutex::new(Some(Rest { first: batches, memory, rows }))));
        }
    }
    Ok(Computed::Kept(batches, memory))
}

/// One reader of a shared result.
struct Reader {
    result: Arc<SharedResult>,
    active: bool,
}

impl Reader {
    /// The run of the input, which begins here if there is none.
    fn computing(&mut self, context: &Arc<TaskContext>) -> Result<Computing> {
        let mut run = self.result.run.lock();
        if !std::mem::replace(&mut self.active, true) {
            run.active += 1;
        }
        if let Some(computing) = &run.computing {
            return Ok(computing.clone());
        }
        let input = run.input.clone().ok_or_else(|| internal_datafusion_err!("nothing computes shared result {}", self.result.number))?;
        let input = if std::mem::replace(&mut run.began, true) { reset_plan_states(input)? } else { input };
        let task = AbortOnDropHandle::new(tokio::spawn(compute(input, Arc::clone(context), Arc::clone(&self.result.kept))));
        let stopped = |e| to_datafusion(Error::internal("the task that computes a shared result stopped").with_source(e));
        let computing = async move { task.await.unwrap_or_else(|e| Err(stopped(e))).map(Arc::new).map_err(Arc::new) }.boxed().shared();
        run.computing = Some(computing.clone());
        Ok(computing)
    }

    /// The rows, once there are any.
    async fn rows(mut self, context: Arc<TaskContext>) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let computed = self.computing(&context)?.await.map_err(DataFusionError::Shared)?;
        let rest = match computed.as_ref() {
            Computed::Kept(batches, _) => {
                let count = batches.len();
                // The reader leaves with its last batch.
                let batch = move |at: usize| match (computed.as_ref(), &self) {
                    (Computed::Kept(batches, _), _) => Ok(batches[at].clone()),
                    (Computed::TooLarge(_), _) => internal_err!("a shared result was kept and is gone"),
                };
                return Ok(stream::iter(0..count).map(batch).boxed());
            }
            Computed::TooLarge(rest) => rest.lock().take(),
        };
        if let Some(Rest { first, memory, rows }) = rest {
            let first = stream::iter(first).map(move |batch| {
                let _held = &memory;
                Ok(batch)
            });
            let rows = rows.inspect(move |_| {
                let _held = &self;
            });
            return Ok(first.chain(rows).boxed());
        }
        let rows = reset_plan_states(self.result.input()?)?.execute(0, context)?;
        let rows = rows.inspect(move |_| {
            let _held = &self;
        });
        Ok(rows.boxed())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut run = self.result.run.lock();
        run.gone += 1;
        run.active -= usize::from(self.active);
        let unfinished = run.computing.as_ref().is_some_and(|computing| computing.peek().is_none());
        // No reader waits for the run, or all readers have left. Should one come all the same, it runs a copy.
        let ended = if run.active == 0 && (unfinished || run.gone >= self.result.uses) { run.computing.take() } else { None };
        // Dropped without the lock: the batches are freed, or the task is stopped.
        drop(run);
        drop(ended);
    }
}

/// Reads a shared result; one of its operators has the input that computes it.
#[derive(Debug)]
pub struct SharedResultExec {
    result: Arc<SharedResult>,
    input: Option<Arc<dyn ExecutionPlan>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl SharedResultExec {
    fn new(result: Arc<SharedResult>, input: Option<Arc<dyn ExecutionPlan>>, schema: SchemaRef) -> Self {
        let known = EquivalenceProperties::new(schema);
        let properties = PlanProperties::new(known, Partitioning::UnknownPartitioning(1), EmissionType::Final, Boundedness::Bounded)
            .with_scheduling_type(SchedulingType::Cooperative);
        Self { result, input, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }

    /// What computes the result, if that happens at another operator.
    pub fn elsewhere(&self) -> Option<Arc<dyn ExecutionPlan>> {
        if self.input.is_some() { None } else { self.result.input().ok() }
    }
}

impl DisplayAs for SharedResultExec {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !matches!(form, DisplayFormatType::TreeRender) {
            f.write_str("SharedResultExec: ")?;
        }
        f.write_str(&title(self.result.number, self.result.uses, self.input.is_some()))
    }
}

impl ExecutionPlan for SharedResultExec {
    fn name(&self) -> &str {
        "SharedResultExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.input.iter().collect()
    }

    fn required_input_distribution(&self) -> Vec<Distribution> {
        self.input.iter().map(|_| Distribution::SinglePartition).collect()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        self.input.iter().map(|_| false).collect()
    }

    /// With an order that is known above, a sort with a limit could move below, and drop rows of other readers.
    fn maintains_input_order(&self) -> Vec<bool> {
        self.input.iter().map(|_| false).collect()
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != self.children().len() {
            return internal_err!("a shared result has {} inputs, not {}", self.children().len(), children.len());
        }
        Ok(Arc::new(Self::new(Arc::clone(&self.result), children.into_iter().next(), self.schema())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if partition != 0 {
            return internal_err!("a shared result has one partition, not a partition {partition}");
        }
        let schema = self.schema();
        let (named, figures) = (Arc::clone(&schema), BaselineMetrics::new(&self.metrics, partition));
        let reader = Reader { result: Arc::clone(&self.result), active: false };
        // Begins at the first poll: a query without a reader must not hold the drives' turns.
        let rows = stream::once(reader.rows(context)).try_flatten().map(move |batch| {
            let batch = batch?;
            // Equal parts may differ in what their columns are called.
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(Arc::clone(&named), batch.columns().to_vec(), &options)?.record_output(&figures))
        });
        Ok(Box::pin(cooperative(RecordBatchStreamAdapter::new(schema, rows.boxed()))))
    }

    fn gather_filters_for_pushdown(&self, _: FilterPushdownPhase, filters: Vec<Arc<dyn PhysicalExpr>>, _: &ConfigOptions) -> Result<FilterDescription> {
        Ok(FilterDescription::all_unsupported(&filters, &self.children()))
    }

    fn handle_child_pushdown_result(
        &self,
        _: FilterPushdownPhase,
        result: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        Ok(FilterPushdownPropagation::all_unsupported(result))
    }

    fn child_stats_requests(&self, _: Option<usize>) -> Vec<ChildStats> {
        self.input.iter().map(|_| ChildStats::At(None)).collect()
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match inputs.first() {
            Some(input) => Ok(Arc::clone(input)),
            None => self.result.statistics(&self.schema()),
        }
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

#[cfg(test)]
mod tests;
