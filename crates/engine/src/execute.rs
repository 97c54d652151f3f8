//! Runs one sub-plan: decode, bind, optimise, run under the memory pool, deliver, annotate.
//!
//! A sub-plan that waits for its reader returns its permit meanwhile, so a slow reader delays no other sub-plan.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{MemoryPool, PeakRecordingPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{FunctionRegistry, SessionState, SessionStateBuilder, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{Optimizer, OptimizerRule};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::{FutureExt, StreamExt, stream};
use skytether_common::{DatasetName, Error, PartitionName, Result};
use skytether_device::size::batch_bytes;
use skytether_device::{Annotation, DeliveryStream, ResultMessage, SubPlan};
use skytether_emulation::paced;
use skytether_plan::barriers::guarded;
use skytether_plan::bounded_results::ResultLimits;
use skytether_plan::error::from_datafusion;
use skytether_plan::filter_before_project::filter_before_project;
use skytether_plan::filters_above_aggregates::filters_above_aggregates;
use skytether_plan::keys::{KeySets, among_udf};
use skytether_plan::null_equal_joins::null_equal_joins;
use skytether_plan::pinned::pinned;
use skytether_plan::planning::{limited, limited_physical};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio_util::task::AbortOnDropHandle;

use crate::annotate;
use crate::batches::Coalescer;
use crate::broadcast::BroadcastTables;
use crate::cells::TicketCells;
use crate::indexed::{Costs, IndexLookup, Indexes};
use crate::metadata_aggregates;
use crate::passing_filters::passing_filters;
use crate::plan_cache::Prepared;
use crate::reader::Reader;
use crate::scan_spec::rows_for_width;
use crate::throttle;
use crate::ticket::{self, Ticket};
use crate::ticket_catalog::{PLAIN, ROWS, TicketCatalog};

/// Rows per batch where the sender has no wish.
const BATCH_ROWS: usize = 8192;

/// Deliveries that wait for the receiver.
const CHANNEL: usize = 2;

/// The epoch of everything: a sub-plan is one epoch, until drives can push back in the middle of one.
const EPOCH: u32 = 0;

/// The state that all sub-plans of a drive share, or those of a host over raw slices.
#[derive(Debug)]
pub struct Engine {
    name: String,
    reader: Arc<Reader>,
    /// The drive's indexes, and what reading costs without them.
    indexes: Option<(Arc<Indexes>, Costs)>,
    pool: Arc<dyn MemoryPool>,
    pub(crate) threads: usize,
    running: Arc<Semaphore>,
    /// Functions and rules, made once: that takes some milliseconds.
    base: SessionState,
    /// Whether small stripes are surveyed together.
    pub(crate) joined: bool,
}

impl Engine {
    /// An engine that calls itself `name` in errors and annotations, over what `reader` reads, with memory from `pool`;
    /// a sub-plan runs in `threads` partitions, at most `max_concurrent` of them at once.
    ///
    /// # Errors
    /// Internal only, where DataFusion does not take our functions.
    pub fn new(name: String, reader: Arc<Reader>, pool: Arc<dyn MemoryPool>, threads: usize, max_concurrent: usize) -> Result<Self> {
        let mut config =
            SessionConfig::new().with_information_schema(false).with_create_default_catalog_and_schema(false).with_default_catalog_and_schema(PLAIN, PLAIN);
        // The plan was optimised above; filters, limits and columns find their scans in one pass.
        config.options_mut().optimizer.max_passes = 1;
        // Round robin only pays where there is more to do per row than to hand it over.
        config.options_mut().optimizer.enable_round_robin_repartition = false;
        // As on the host (`skytether_query::planner`).
        config.options_mut().optimizer.enable_distinct_aggregation_soft_limit = false;
        config.options_mut().optimizer.enable_topk_aggregation = false;
        config.options_mut().optimizer.enable_window_limits = false;
        config.options_mut().execution.skip_physical_aggregate_schema_check = true;
        config.options_mut().execution.time_zone = Some("UTC".into());
        config.options_mut().extensions.insert(ResultLimits::of(pool.as_ref()));
        // Spilling would use the same disk that scans read; a drive returns `Exhausted` instead.
        let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool)).with_disk_manager_builder(disk).build_arc().map_err(from_datafusion)?;
        let mut base = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime)
            .with_default_features()
            .with_optimizer_rules(limited(rules()))
            .with_physical_optimizer_rules(limited_physical(guarded(metadata_aggregates::rules())))
            .with_physical_optimizer_rule(filter_before_project())
            .with_physical_optimizer_rule(passing_filters())
            .build();
        skytether_plan::partial::register(&mut base).map_err(from_datafusion)?;
        skytether_plan::register_functions(&mut base).map_err(from_datafusion)?;
        Ok(Self { name, reader, indexes: None, pool, threads: threads.max(1), running: Arc::new(Semaphore::new(max_concurrent.max(1))), base, joined: true })
    }

    /// The same, but without runs: it surveys stripe by stripe, however small they are, because they may be in several
    /// places.
    #[must_use]
    pub fn apart(self) -> Self {
        Self { joined: false, ..self }
    }

    /// The same, whose scans look into `indexes` where that saves time by `costs`.
    #[must_use]
    pub fn with_indexes(self, indexes: Arc<Indexes>, costs: Costs) -> Self {
        Self { indexes: Some((indexes, costs)), ..self }
    }

    /// The same, whose sub-plans take their turns with those of another engine.
    #[must_use]
    pub fn with_turns(self, turns: Arc<Semaphore>) -> Self {
        Self { running: turns, ..self }
    }

    /// Waits until one more sub-plan may run.
    async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        self.running.acquire().await.map_err(|_| Error::unavailable("the drive is shutting down"))
    }

    /// How many threads work on one sub-plan.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Its name in errors and annotations.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The permits to run: a sub-plan holds one while it works.
    #[must_use]
    pub fn turns(&self) -> &Arc<Semaphore> {
        &self.running
    }

    /// Bytes of memory that all sub-plans hold now.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.pool.reserved() as u64
    }

    /// Names this engine in an error.
    #[must_use]
    pub fn named(&self, error: Error) -> Error {
        error.context(self.name.clone())
    }

    /// A session that sees the ticket's tables and nothing else.
    fn session(&self, tickets: &Arc<[Ticket]>, filters: KeySets) -> Result<SessionState> {
        // A copy: to build one from its parts takes longer than to plan most sub-plans.
        let mut state = self.base.clone();
        state.register_catalog_list(Arc::new(TicketCatalog::new(Arc::clone(tickets))));
        let first = tickets.first().ok_or_else(|| Error::internal("a sub-plan without a data set"))?;
        skytether_expression::register(&mut state, Arc::new(TicketCells(first.clone())))?;
        state.register_udf(Arc::new(among_udf(filters))).map_err(from_datafusion)?;
        // The forms of what came with it; those of all others are in the base.
        let new: Vec<_> =
            state.aggregate_functions().iter().filter(|(name, _)| !self.base.aggregate_functions().contains_key(*name)).map(|(_, f)| Arc::clone(f)).collect();
        for form in new.iter().flat_map(skytether_plan::partial::forms) {
            state.register_udaf(form).map_err(from_datafusion)?;
        }
        Ok(state)
    }

    /// Starts `plan`; see [`skytether_device::Cse::execute`].
    ///
    /// # Errors
    /// As there.
    pub async fn start(self: &Arc<Self>, plan: SubPlan) -> Result<DeliveryStream> {
        let planned = self.planned(&plan, self.threads).await?;
        Ok(self.run(planned, &plan))
    }

    /// As [`Engine::start`], where tables of the plan's data set are `given`, by their names in it. A given table goes
    /// before a partition of that name.
    ///
    /// # Errors
    /// As there.
    pub async fn start_over(self: &Arc<Self>, plan: SubPlan, given: &BTreeMap<String, Arc<dyn TableProvider>>) -> Result<DeliveryStream> {
        let planned = self.read_over(&plan, given).await?.planned(self.threads).await?;
        Ok(self.run(planned, &plan))
    }

    /// Runs what was planned of `plan`.
    pub(crate) fn run(self: &Arc<Self>, planned: Planned, plan: &SubPlan) -> DeliveryStream {
        let Planned { physical, slices, reader, context, pool, started, .. } = planned;
        let annotation = Annotation { cse: self.name.clone(), rung: Some(plan.rung), bytes_received: plan.bytes() as u64, ..Annotation::default() };
        let job = Job { engine: Arc::clone(self), annotation, plan: Arc::clone(&physical), slices, reader, context, pool, started };
        DeliveryStream { schema: physical.schema(), messages: Box::pin(job.spawn()) }
    }

    /// Decodes, binds and plans `plan`, to run in `threads` partitions.
    pub(crate) async fn planned(&self, plan: &SubPlan, threads: usize) -> Result<Planned> {
        self.read(plan).await?.planned(threads).await
    }

    /// Decodes and binds `plan`.
    pub(crate) async fn read(&self, plan: &SubPlan) -> Result<Read> {
        self.read_over(plan, &BTreeMap::new()).await
    }

    async fn read_over(&self, plan: &SubPlan, given: &BTreeMap<String, Arc<dyn TableProvider>>) -> Result<Read> {
        let started = Instant::now();
        ticket::check(plan)?;
        let (reader, broadcast) = (Arc::new(self.reader.counting()), BroadcastTables::read(&plan.tables)?.and(given));
        let indexes = self.indexes.as_ref().map(|(indexes, costs)| Arc::new(IndexLookup::new(Arc::clone(indexes), *costs)));
        let ticket = |(dataset, partitions): (&DatasetName, &BTreeMap<String, PartitionName>)| Ticket {
            reader: Arc::clone(&reader),
            indexes: indexes.clone(),
            dataset: dataset.clone(),
            partitions: Arc::new(partitions.clone()),
            broadcast: broadcast.clone(),
        };
        let tickets: Arc<[Ticket]> = plan.datasets().map(ticket).collect();
        let pool = Arc::new(PeakRecordingPool::new(Arc::clone(&self.pool)));
        let filters = KeySets::read(&plan.filters).map_err(from_datafusion)?;
        let mut state = self.session(&tickets, filters)?;
        let prepared = Prepared::read(plan.program.substrait()?, &state, &self.base).await?;
        let logical = prepared.logical();
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false).verify_plan(logical).map_err(from_datafusion)?;
        let wanted = if plan.batch_rows == 0 { BATCH_ROWS } else { (plan.batch_rows as usize).clamp(1, 1 << 16) };
        let catalog = TicketCatalog::new(Arc::clone(&tickets));
        let references = scanned(logical)?;
        let tables: Vec<_> = references.iter().filter_map(|(table, named)| catalog.stored(table).map(|(ticket, stored)| (ticket, stored, named))).collect();
        let batch_rows = batch_rows(&tables, wanted)?;
        let mut slices = 0;
        for (ticket, table, _) in &tables {
            slices += ticket.open(stored_as(table, ticket))?.metadata.slices.len() as u64;
        }
        let mut config = state.config().clone().with_batch_size(batch_rows);
        // For a join of stored tables, the host has put the side that fits into memory on the left.
        config.options_mut().optimizer.join_reordering = tables.len() <= 1;
        *state.config_mut() = config;
        Ok(Read { prepared, slices, reader, state, pool, started })
    }
}

/// A sub-plan that was decoded, and bound to what it reads.
pub(crate) struct Read {
    prepared: Prepared,
    slices: u64,
    reader: Arc<Reader>,
    state: SessionState,
    pool: Arc<PeakRecordingPool>,
    started: Instant,
}

impl Read {
    /// The plan; see [`Prepared::logical`].
    pub(crate) fn logical(&self) -> &LogicalPlan {
        self.prepared.logical()
    }

    /// Plans it, to run in `threads` partitions.
    pub(crate) async fn planned(self, threads: usize) -> Result<Planned> {
        let Self { prepared, slices, reader, mut state, pool, started } = self;
        *state.config_mut() = state.config().clone().with_target_partitions(threads);
        let physical = prepared.physical(&state).await.and_then(|plan| throttle::throttled(plan, reader.processor())).map_err(from_datafusion)?;
        let context = context(&state, Arc::clone(&pool) as _);
        Ok(Planned { prepared, physical, slices, reader, state, context, pool, started })
    }
}

/// A sub-plan before it runs.
pub(crate) struct Planned {
    pub(crate) prepared: Prepared,
    pub physical: Arc<dyn ExecutionPlan>,
    /// Slices of all tables that the sub-plan names.
    pub(crate) slices: u64,
    /// Counts what this sub-plan reads.
    pub(crate) reader: Arc<Reader>,
    pub(crate) state: SessionState,
    /// What its operators run in: their memory is taken from `pool`.
    pub(crate) context: Arc<TaskContext>,
    pub(crate) pool: Arc<PeakRecordingPool>,
    pub(crate) started: Instant,
}

/// What operators that were planned in `state` run in, with memory from `pool`. It knows no functions: operators
/// hold those that they call.
fn context(state: &SessionState, pool: Arc<dyn MemoryPool>) -> Arc<TaskContext> {
    let runtime = RuntimeEnv { memory_pool: pool, ..state.runtime_env().as_ref().clone() };
    let (id, config) = (state.session_id().to_owned(), state.config().clone());
    Arc::new(TaskContext::new(None, id, config, HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new(), Arc::new(runtime)))
}

/// DataFusion's rules for logical plans but for those that have nothing left to do in a part of a plan that was
/// optimised before it was cut, and that walk through all of its expressions.
fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    /// Sub-plans have no subqueries; a DISTINCT in a call that goes down is done as it is; the others have been
    /// through the same expressions.
    const DONE_ABOVE: [&str; 9] = [
        "rewrite_set_comparison",
        "decorrelate_predicate_subquery",
        "scalar_subquery_to_join",
        "decorrelate_lateral_join",
        "single_distinct_aggregation_to_group_by",
        "eliminate_duplicated_expr",
        "common_sub_expression_eliminate",
        "extract_leaf_expressions",
        "push_down_leaf_projections",
    ];
    let kept = Optimizer::default().rules.into_iter().filter(|rule| !DONE_ABOVE.contains(&rule.name())).collect();
    pinned(null_equal_joins(filters_above_aggregates(kept)))
}

/// The tables of `plan`, each as often as it is scanned, with the columns that it names.
fn scanned(plan: &LogicalPlan) -> Result<Vec<(TableReference, SchemaRef)>> {
    let mut tables = Vec::new();
    plan.apply(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            tables.push((scan.table_name.clone(), Arc::clone(scan.projected_schema.inner())));
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(from_datafusion)?;
    Ok(tables)
}

/// The name under which `table` is stored: without the mark of a matrix's sparse rows.
fn stored_as<'a>(table: &'a str, ticket: &Ticket) -> &'a str {
    if ticket.partitions.contains_key(table) { table } else { table.strip_suffix(ROWS).unwrap_or(table) }
}

/// The rows per batch with which no operator gathers too many bytes, whichever table's rows it sees.
fn batch_rows(tables: &[(&Ticket, &str, &SchemaRef)], wanted: usize) -> Result<usize> {
    let mut rows = wanted;
    for (ticket, table, named) in tables {
        let stored = stored_as(table, ticket);
        // The dense view's rows are narrow, whatever is stored.
        if stored == *table && ticket.matrix(stored)?.is_some() {
            continue;
        }
        let partition = ticket.open(stored)?;
        let schema = &partition.metadata.schema;
        let named: HashSet<&String> = named.fields().iter().map(|field| field.name()).collect();
        let columns: Vec<usize> = (0..schema.fields().len()).filter(|&i| named.contains(schema.field(i).name())).collect();
        rows = rows.min(rows_for_width(&partition, &columns));
    }
    Ok(rows.max(1))
}

/// A sub-plan ready to run.
struct Job {
    engine: Arc<Engine>,
    annotation: Annotation,
    plan: Arc<dyn ExecutionPlan>,
    /// Slices of all tables that the sub-plan names.
    slices: u64,
    /// Counts what this sub-plan reads.
    reader: Arc<Reader>,
    context: Arc<TaskContext>,
    pool: Arc<PeakRecordingPool>,
    started: Instant,
}

impl Job {
    /// Runs on a task of its own; the messages as a stream. Dropping that aborts the task.
    fn spawn(self) -> impl futures::Stream<Item = Result<ResultMessage>> + Send + 'static {
        let engine = Arc::clone(&self.engine);
        let (sender, receiver) = mpsc::channel(CHANNEL);
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let engine = Arc::clone(&self.engine);
            let last = match AssertUnwindSafe(self.run(&sender)).catch_unwind().await {
                Ok(Ok(Some(annotation))) => Ok(ResultMessage::Done(annotation)),
                Ok(Ok(None)) => return,
                Ok(Err(error)) => Err(engine.named(error)),
                Err(panic) => Err(engine.named(Error::internal(format!("a defect while running the sub-plan: {}", panic_text(panic.as_ref()))))),
            };
            let _ = sender.send(last).await;
        }));
        stream::unfold((receiver, Some(task), engine), |(mut receiver, task, engine)| async move {
            let task = task?;
            match receiver.recv().await {
                Some(message) => {
                    let last = !matches!(message, Ok(ResultMessage::Batch { .. } | ResultMessage::EpochComplete { .. }));
                    Some((message, (receiver, (!last).then_some(task), engine)))
                }
                // The runtime that ran the task is going down.
                None => Some((Err(engine.named(Error::unavailable("the sub-plan was cancelled: the drive is shutting down"))), (receiver, None, engine))),
            }
        })
    }

    /// Runs the plan and returns its annotation, or `None` if the receiver is gone.
    async fn run(mut self, sender: &mpsc::Sender<Result<ResultMessage>>) -> Result<Option<Annotation>> {
        let engine = Arc::clone(&self.engine);
        let mut turn = Some(engine.turn().await?);
        let rows = execute_stream(Arc::clone(&self.plan), Arc::clone(&self.context)).map_err(from_datafusion)?;
        let mut coalescer = Coalescer::new(rows.schema());
        let mut rows = paced(self.reader.processor(), rows).stream();
        let joined = |e: arrow::error::ArrowError| Error::internal("cannot join batches").with_source(e);
        loop {
            let ready = match rows.next().await {
                Some(batch) => coalescer.push(batch.map_err(from_datafusion)?).map_err(joined)?,
                None => break,
            };
            if let Some(batch) = ready
                && !self.send(sender, batch, &engine, &mut turn).await?
            {
                return Ok(None);
            }
        }
        if let Some(batch) = coalescer.finish().map_err(joined)?
            && !self.send(sender, batch, &engine, &mut turn).await?
        {
            return Ok(None);
        }
        drop((rows, turn));
        if sender.send(Ok(ResultMessage::EpochComplete { epoch: EPOCH })).await.is_err() {
            return Ok(None);
        }
        annotate::operators(self.plan.as_ref(), self.slices, &mut self.annotation);
        self.annotation.bytes_read = self.reader.bytes_read();
        self.annotation.peak_memory = self.pool.max_reserved() as u64;
        self.annotation.seconds = self.started.elapsed().as_secs_f64();
        Ok(Some(self.annotation))
    }

    /// Sends a batch; false if the receiver is gone. Returns `turn` while the channel is full.
    async fn send<'a>(
        &mut self,
        sender: &mpsc::Sender<Result<ResultMessage>>,
        batch: RecordBatch,
        engine: &'a Engine,
        turn: &mut Option<SemaphorePermit<'a>>,
    ) -> Result<bool> {
        self.annotation.rows_out += batch.num_rows() as u64;
        self.annotation.bytes_sent += batch_bytes(&batch);
        match sender.try_send(Ok(ResultMessage::Batch { epoch: EPOCH, batch })) {
            Ok(()) => Ok(true),
            Err(TrySendError::Closed(_)) => Ok(false),
            Err(TrySendError::Full(message)) => {
                *turn = None;
                if sender.send(message).await.is_err() {
                    return Ok(false);
                }
                *turn = Some(engine.turn().await?);
                Ok(true)
            }
        }
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}
