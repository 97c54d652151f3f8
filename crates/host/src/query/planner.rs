//! A query from its text to its rows.

use futures::future::BoxFuture;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Instant;

use arrow::datatypes::{Field, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use datafusion::common::{ScalarValue, TableReference};
use datafusion::execution::FunctionRegistry;
use datafusion::execution::TaskContext;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::memory_pool::{MemoryPool, PeakRecordingPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast;
use futures::StreamExt;
use futures::stream::BoxStream;
use skytether_common::{DatasetName, Error, Result};
use skytether_engine::threads::Threads;
use skytether_expression::CellSource;
use skytether_plan::error::from_datafusion;
use skytether_plan::filter_before_project::filter_before_project;
use skytether_plan::join_types::JoinTypes;
use skytether_plan::keys::{KeySets, among_udf};
use skytether_plan::topk_heap_cap::topk_heap_cap;
use skytether_plan::{CutPlan, cut, partial};
use skytether_redundancy::Scheme;
use skytether_wire::{Cse, Storage};
use uuid::Uuid;

use crate::catalog::fencing::Fence;
use crate::catalog::health::Presence;
use crate::catalog::root_store::{Catalog, DatasetKind};
use crate::cluster::options::{HostOptions, QueryOptions};
use crate::common::append_vec::Growing;
use crate::exec::adaptive::local_worker::EngineAbove;
use crate::exec::drive_reader::Patience;
use crate::exec::profile::{Collector, ReceiptHandle, Source};
use crate::exec::query_limits::SpillFiles;
use crate::exec::scan::QueryContext;
use crate::exec::sort_reserve::SortRoom;
use crate::exec::spill_dir::SpillDirectory;
use crate::export::parquet_view::Door;
use crate::ingest::dataset_writer::DatasetWriter;
use crate::query::cells::{HostCells, needs};
use crate::query::chunked;
use crate::query::chunked::InParts;
use crate::query::cooperative_join::take_turns;
use crate::query::host_reasons as reasons;
use crate::query::join_key_routing::send_keys_apart;
use crate::query::mentioned_columns::Shown;
use crate::query::parameters;
use crate::query::scan_planner::ScanPlanner;
use crate::query::single_phase_merge::merge_once;
use crate::query::sql_limits;
use crate::query::star;
use crate::query::substrait;
use crate::query::substrait::Asked;
use crate::query::tables::{NamedTables, PLAIN, SchemaCache};
use crate::query::unnest as unnested;
use crate::recovery::failover::Covered;
use crate::recovery::missing_drive::Gone;
use crate::recovery::reconstruct::Cover;

use crate::query::result_stream::{Counted, Running};

use crate::cluster::cluster::check_names;

/// A host over some drives. Cheap to clone; it owns nothing durable.
#[derive(Clone)]
pub struct Host(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) drives: Growing<Arc<dyn Cse>>,
    pub(crate) catalog: Catalog,
    pub(crate) options: HostOptions,
    base: SessionState,
    schemas: SchemaCache,
    /// What it was called since it began, the newest last.
    instances: Mutex<Vec<Uuid>>,
    /// Held by the queries that began since a generation was last replaced.
    running: Mutex<Arc<()>>,
    /// What works off what drives hand out does so on these.
    pub(crate) readers: Arc<Threads>,
    /// The drives as they are, and what stands for them.
    pub(crate) cover: Arc<Cover>,
    /// The drives that were not there when it began.
    pub(crate) gone: OnceLock<Vec<Arc<Gone>>>,
    /// Whether the list of its drives is kept with them, in an embedded fleet's directory.
    pub(crate) kept: OnceLock<bool>,
    /// On which condition drives take changes from it.
    pub(crate) fence: OnceLock<Arc<Fence>>,
    /// For each drive what works off what it hands out.
    pub(crate) above: Growing<Arc<EngineAbove>>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drives: Vec<_> = self.0.drives.iter().map(|d| d.info().name.as_str()).collect();
        f.debug_struct("Host").field("drives", &drives).finish_non_exhaustive()
    }
}

/// A host, as long as others have it.
pub(crate) struct WeakHost(Weak<Inner>);

impl WeakHost {
    /// The host, if anybody has it still.
    pub(crate) fn upgrade(&self) -> Option<Host> {
        self.0.upgrade().map(Host)
    }
}

/// A running query.
pub struct Query {
    /// The columns of the result.
    pub schema: SchemaRef,
    /// The result, as it comes. Dropping it stops the query.
    pub stream: BoxStream<'static, Result<RecordBatch>>,
    /// What it cost: complete after the last row.
    pub receipt: ReceiptHandle,
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Query").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Query {
    /// The whole result in memory.
    ///
    /// # Errors
    /// The first error of the stream.
    pub fn collect(self) -> BoxFuture<'static, Result<Vec<RecordBatch>>> {
        Box::pin(async move {
            let mut this = self;

            let mut batches = Vec::new();
            while let Some(batch) = this.stream.next().await {
                batches.push(batch?);
            }
            Ok(batches)
        })
    }
}

/// A query as a logical plan, over tables that a session knows.
struct Logical {
    plan: LogicalPlan,
    /// Whether it has been through the rules for logical plans.
    optimised: bool,
    state: SessionState,
    tables: Arc<NamedTables>,
}

/// A query that is planned and has not begun.
pub(crate) struct Planned {
    pub(crate) optimised: LogicalPlan,
    pub(crate) cut: CutPlan,
    pub(crate) physical: Arc<dyn ExecutionPlan>,
    pub(crate) state: SessionState,
    pub(crate) collector: Arc<Collector>,
    /// Held as long as it runs.
    pub(crate) running: Option<Arc<()>>,
}

impl Host {
    /// A host over `drives`, which may be in this process or behind a wire.
    ///
    /// # Errors
    /// Invalid for no drive, one drive twice or two drives of one name; internal if the functions can't be registered.
    pub fn new(drives: Vec<Arc<dyn Cse>>, options: HostOptions) -> Result<Self> {
        check_names(&drives)?;
        let base = base_state(&options)?;
        let pool = &base.runtime_env().memory_pool;
        let presence = Arc::new(Presence::new(drives.len()));
        let cover = Cover::new(drives, presence, &options, Arc::clone(pool));
        let drives: Vec<Arc<dyn Cse>> = cover.drives().map(|at| Arc::new(Covered::new(&cover, at)) as _).collect();
        let storages = drives.iter().map(|d| Arc::clone(d) as Arc<dyn Storage>).collect();
        let catalog = Catalog::of_host(storages, &cover)?;
        let threads = Arc::new(Threads::new(READERS));
        let above =
            drives.iter().map(|drive| EngineAbove::new(Arc::clone(drive), Arc::clone(pool), options.storage_deadline, drives.len(), Arc::clone(&threads)));
        let above = above.map(Arc::new).collect();
        Ok(Self(Arc::new(Inner {
            drives: Growing::new(drives),
            catalog,
            options,
            base,
            schemas: SchemaCache::default(),
            instances: Mutex::new(vec![Uuid::new_v4()]),
            running: Mutex::default(),
            readers: threads,
            cover,
            gone: OnceLock::new(),
            kept: OnceLock::new(),
            fence: OnceLock::new(),
            above: Growing::new(above),
        })))
    }

    /// The drives, in order.
    #[must_use]
    pub fn drives(&self) -> &[Arc<dyn Cse>] {
        &self.0.drives
    }

    /// The catalog over these drives.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.0.catalog
    }

    /// How many of the drives are lost now.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.0.catalog.presence().lost().len()
    }

    /// On how many hosts the drives are, where the record of the fleet says so; otherwise 0.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.0.catalog.presence().domains().map_or(0, |domains| domains.hosts())
    }

    /// How data sets are kept from loss unless their ingest says otherwise.
    #[must_use]
    pub fn redundancy(&self) -> Scheme {
        self.0.catalog.presence().scheme()
    }

    /// The drives as they are, and what stands for them.
    pub(crate) fn cover(&self) -> &Arc<Cover> {
        &self.0.cover
    }

    /// How this host works.
    #[must_use]
    pub fn options(&self) -> &HostOptions {
        &self.0.options
    }

    /// Memory, and room on disk beside it.
    pub(crate) fn runtime(&self) -> Arc<RuntimeEnv> {
        Arc::clone(self.0.base.runtime_env())
    }

    /// What its operators get their memory from.
    pub(crate) fn memory(&self) -> Arc<dyn MemoryPool> {
        Arc::clone(&self.0.base.runtime_env().memory_pool)
    }

    /// What works off what drive `at` hands out.
    pub(crate) fn above(&self, at: usize) -> Option<&Arc<EngineAbove>> {
        self.0.above.get(at)
    }

    /// New with each host: tells a restarted one from the one before. Also new when a drive has left: who knew the drives before must look again.
    #[must_use]
    pub fn instance(&self) -> Uuid {
        self.0.instances.lock().unwrap_or_else(PoisonError::into_inner).last().copied().unwrap_or_default()
    }

    /// Whether it was this one before drives left: of the same start, in which places mean the same.
    pub(crate) fn was(&self, instance: Uuid) -> bool {
        self.0.instances.lock().unwrap_or_else(PoisonError::into_inner).contains(&instance)
    }

    /// Whoever knew this host before is to look again.
    pub(crate) fn renew(&self) {
        self.0.instances.lock().unwrap_or_else(PoisonError::into_inner).push(Uuid::new_v4());
    }

    /// The same, for what is not to keep it from being closed.
    pub(crate) fn downgrade(&self) -> WeakHost {
        WeakHost(Arc::downgrade(&self.0))
    }

    /// What a query holds as long as it runs.
    pub(crate) fn running(&self) -> Arc<()> {
        Arc::clone(&self.0.running.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the queries hold that began before now: nobody else does any more when they are over.
    pub(crate) fn ran(&self) -> Arc<()> {
        std::mem::take(&mut *self.0.running.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins to write a data set; see [`DatasetWriter`].
    ///
    /// # Errors
    /// As [`DatasetWriter::begin`].
    pub fn writer<'a>(&'a self, name: &'a DatasetName, kind: DatasetKind, replace: bool) -> BoxFuture<'a, Result<DatasetWriter>> {
        Box::pin(async move {
            DatasetWriter::begin(self.0.catalog.clone(), self.0.options.slices.clone(), name.clone(), kind, replace, self.0.options.ids.generation()).await
        })
    }

    /// Reads tables as plain files.
    #[must_use]
    pub fn door(&self) -> Door {
        Door::new(self.0.catalog.clone(), None)
    }

    /// Runs a query: one `SELECT`, in DataFusion's SQL.
    ///
    /// # Errors
    /// Invalid for SQL that is wrong or no query, `NotFound` for data sets and tables, and what the drives say when asked for metadata.
    pub fn sql<'a>(&'a self, text: &'a str, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.ask(&Asked::Sql(text.into()), options).await })
    }

    /// Runs a plan of another producer: the bytes of a Substrait `Plan`.
    ///
    /// # Errors
    /// Invalid for bytes that are no plan, contradict themselves or the tables, or are more than [`crate::query::substrait::LIMITS`]; unsupported for
    /// relations, expressions and functions that this engine does not know, by name; and as [`Host::sql`].
    pub fn substrait<'a>(&'a self, plan: Bytes, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.ask(&Asked::Substrait(plan), options).await })
    }

    /// Runs a query, in whichever form it is asked.
    ///
    /// # Errors
    /// As [`Host::sql`] and [`Host::substrait`].
    pub fn ask<'a>(&'a self, asked: &'a Asked, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.run(self.plan_asked(asked, options, Vec::new()).await?) })
    }

    pub(crate) fn run(&self, planned: Planned) -> Result<Query> {
        let Planned { physical, state, collector, cut, running, .. } = planned;
        // Of the memory that all queries share, what this one takes.
        let shared = state.runtime_env();
        let taken = Arc::new(PeakRecordingPool::new(Arc::clone(&shared.memory_pool)));
        let runtime = RuntimeEnv { memory_pool: Arc::clone(&taken) as _, ..shared.as_ref().clone() };
        let context = Arc::new(TaskContext::from(&state).with_runtime(Arc::new(runtime)));
        collector.plan(Arc::clone(&physical), reasons::of(&cut, physical.as_ref()), taken);
        let schema = physical.schema();
        let receipt = ReceiptHandle(Source::Here(Arc::clone(&collector)));
        // Begun at the first poll: a query that nobody reads must not hold the drives' turns.
        let memory = Arc::clone(context.memory_pool());
        let stream = Counted { inner: Running::Planned(physical, context), collector, memory, running }.boxed();
        Ok(Query { schema, stream, receipt })
    }

    /// Plans a query, with `values` in the place of the parameters `$1`, `$2`, ...
    pub(crate) async fn plan_asked(&self, asked: &Asked, options: &QueryOptions, values: Vec<ScalarValue>) -> Result<Planned> {
        let (begun, shown) = (Instant::now(), Shown::named());
        self.0.catalog.look_again();
        // Before it is known what the query reads.
        let running = self.running();
        let planned = match self.plan_over(&shown, asked, options, values.clone(), begun).await {
            Err(_) if shown.hid() => self.plan_over(&Shown::all(), asked, options, values, begun).await,
            done => done,
        };
        planned.map(|planned| Planned { running: Some(running), ..planned })
    }

    async fn plan_over(&self, shown: &Shown, asked: &Asked, options: &QueryOptions, values: Vec<ScalarValue>, begun: Instant) -> Result<Planned> {
        let collector = Arc::new(Collector::new(begun, options.cut));
        let Logical { plan, optimised, state, tables } = self.logical(asked, shown, &collector, true).await?;
        let work = async {
            let plan = parameters::bind(plan, values)?;
            if optimised {
                self.plan_optimised(plan, state, tables, collector, options).await
            } else {
                self.plan_logical(plan, state, tables, collector, options).await
            }
        };
        match asked {
            Asked::Sql(_) => work.await,
            Asked::Substrait(_) => substrait::guarded(work).await,
        }
    }

    /// The columns of a query's result, as far as they can be told before its parameters have values, and the parameters in order; those of
    /// a type that the query does not tell are of type null.
    pub(crate) async fn prepare(&self, asked: &Asked) -> Result<(SchemaRef, Vec<Field>)> {
        let collector = Arc::new(Collector::new(Instant::now(), QueryOptions::default().cut));
        let shown = Shown::named();
        let Logical { plan, .. } = match self.logical(asked, &shown, &collector, false).await {
            Err(_) if shown.hid() => self.logical(asked, &Shown::all(), &collector, false).await?,
            done => done?,
        };
        Ok((Arc::clone(plan.schema().inner()), parameters::of(&plan)?))
    }

    /// The columns of `table` in a data set.
    pub(crate) async fn table_schema(&self, name: &DatasetName, table: &str) -> Result<SchemaRef> {
        let collector = Collector::new(Instant::now(), QueryOptions::default().cut);
        let reference = TableReference::full(name.domain(), name.dataset(), table);
        let tables = NamedTables::resolve(vec![reference.clone()], &self.0.catalog, &self.0.schemas, &collector).await?;
        let named = tables.get(&reference).ok_or_else(|| Error::internal(format!("{reference} was found and is not there")))?;
        Ok(Arc::clone(&named.schema))
    }

    /// What is asked as a logical plan; one that is quicker optimised on the way is, if the caller wants to `optimise` it anyway.
    async fn logical(&self, asked: &Asked, shown: &Shown, collector: &Collector, optimise: bool) -> Result<Logical> {
        let (text, mut statement) = match asked {
            Asked::Sql(text) => (text, parse(&self.0.base, text)?),
            Asked::Substrait(plan) => {
                let mut state = self.0.base.clone();
                state.mark_start_execution();
                let (plan, tables) = substrait::logical(plan, &state, &self.0.catalog, &self.0.schemas, collector).await?;
                state.register_catalog_list(tables.catalog_list()?);
                return Ok(Logical { plan, optimised: false, state, tables: Arc::new(tables) });
            }
        };
        parameters::number(&mut statement)?;
        let references = self.0.base.resolve_table_references(&statement).map_err(from_datafusion)?;
        let (tables, mut state) = self.named(references, collector).await?;
        if let Some(few) = shown.few(&tables, text, &statement)? {
            state.register_catalog_list(few);
        }
        if let Some(InParts { plan, optimised }) = chunked::plan(&mut statement, &state, optimise).await {
            return Ok(Logical { plan, optimised, state, tables });
        }
        let star = star::take_out(&mut statement);
        let plan = state.statement_to_plan(statement).await.map_err(from_datafusion)?;
        let plan = if star { star::put_back(plan).map_err(from_datafusion)? } else { plan };
        Ok(Logical { plan, optimised: false, state, tables })
    }

    /// The tables that a query names, and a session that knows them.
    pub(crate) async fn named(&self, references: Vec<TableReference>, collector: &Collector) -> Result<(Arc<NamedTables>, SessionState)> {
        let tables = Arc::new(NamedTables::resolve(references, &self.0.catalog, &self.0.schemas, collector).await?);
        let mut state = self.0.base.clone();
        state.register_catalog_list(tables.catalog_list()?);
        state.mark_start_execution();
        Ok((tables, state))
    }

    pub(crate) async fn plan_logical(
        &self,
        plan: LogicalPlan,
        mut state: SessionState,
        mut tables: Arc<NamedTables>,
        collector: Arc<Collector>,
        options: &QueryOptions,
    ) -> Result<Planned> {
        let plan = if crate::query::dense::calls_cell_moments(&plan)? {
            // The rewrite reads the sparse rows of a dense view, which the text of the query does not name.
            tables = Arc::new(tables.with_rows(&self.0.catalog, &self.0.schemas, &collector).await?);
            crate::query::dense::to_sparse_rows(plan, &tables, &state)?
        } else {
            plan
        };
        let passes = &mut state.config_mut().options_mut().optimizer.max_passes;
        *passes = chunked::passes(&plan, *passes);
        let plan = unnested::marked(plan).map_err(from_datafusion)?;
        let optimised = unnested::unmarked(state.optimize(&plan).map_err(from_datafusion)?).map_err(from_datafusion)?;
        self.plan_optimised(optimised, state, tables, collector, options).await
    }

    /// Cuts and plans what the rules for logical plans have rewritten.
    async fn plan_optimised(
        &self,
        optimised: LogicalPlan,
        state: SessionState,
        tables: Arc<NamedTables>,
        collector: Arc<Collector>,
        options: &QueryOptions,
    ) -> Result<Planned> {
        let cut = cut(optimised.clone(), options.cut, tables.as_ref(), &state)?;
        for note in &cut.notes {
            collector.note(format!("{}: {}", note.operator, note.reason));
        }
        let specs = needs(&cut.super_plan)?;
        let super_plan = if specs.is_empty() {
            cut.super_plan.clone()
        } else {
            let cells = Arc::new(HostCells::default());
            for spec in specs {
                let record = tables
                    .record(&spec.dataset)
                    .ok_or_else(|| Error::invalid(format!("the spec of moments names {}, which the query does not read", spec.dataset)))?;
                cells.fetch(&spec, record, &self.0.catalog, &collector).await?;
            }
            with_cells(cut.super_plan.clone(), cells)?
        };
        let context = QueryContext {
            query: Uuid::new_v4(),
            collector: Arc::clone(&collector),
            patience: Patience { begin: self.0.options.begin_deadline, silence: self.0.options.silence_deadline },
            batch_rows: options.batch_rows.max(1),
            catalog: self.0.catalog.clone(),
        };
        let scans = ScanPlanner { host: self.clone(), cut: cut.clone(), tables, context, state: Arc::new(state.clone()), asked: options.cut };
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(scans)]);
        let physical = planner.create_physical_plan(&super_plan, &state).await.map_err(from_datafusion)?;
        Ok(Planned { optimised, cut, physical, state, collector, running: None })
    }
}

/// Threads that wait for slices that drives hand out.
const READERS: usize = 64;

/// The most keys per part of a join that drives are told of.
const JOIN_KEYS: usize = 150_000;

fn base_state(options: &HostOptions) -> Result<SessionState> {
    let mut config = SessionConfig::new()
        .with_target_partitions(options.threads.max(1))
        .with_create_default_catalog_and_schema(false)
        .with_default_catalog_and_schema(PLAIN, PLAIN)
        .with_information_schema(false);
    // What the drives send is spread over their number already, and usually small.
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.enable_round_robin_repartition = false;
    // Drives wait for the filters that joins make. Those of other operators are made from the very rows that would wait for them.
    optimizer.enable_topk_dynamic_filter_pushdown = false;
    optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    optimizer.hash_join_inlist_pushdown_max_distinct_values = JOIN_KEYS;
    optimizer.hash_join_inlist_pushdown_max_size = JOIN_KEYS * 32;
    let spill = SpillDirectory::make(&options.spill_below.clone().unwrap_or_else(std::env::temp_dir))?;
    let disk = DiskManagerBuilder::default().with_temp_file_factory(SpillFiles::below(spill.path(), options.spill_limit)?);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(SortRoom::new(options.memory_limit)))
        .with_disk_manager_builder(disk)
        .build_arc()
        .map_err(from_datafusion)?;
    // Queries that run keep the session's configuration, and so the directory, for as long as they may put something there.
    config.set_extension(Arc::new(spill));
    let mut state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_optimizer_rule(Arc::new(JoinTypes))
        .with_physical_optimizer_rule(filter_before_project())
        .with_physical_optimizer_rule(topk_heap_cap())
        .with_physical_optimizer_rule(merge_once())
        .with_physical_optimizer_rule(send_keys_apart())
        .with_physical_optimizer_rule(take_turns())
        .build();
    let nothing: Arc<dyn CellSource> = Arc::new(HostCells::default());
    skytether_expression::register(&mut state, nothing)?;
    partial::register(&mut state).map_err(from_datafusion)?;
    state.register_udf(Arc::new(among_udf(KeySets::default()))).map_err(from_datafusion)?;
    state.register_relation_planner(Arc::new(unnested::Relations)).map_err(from_datafusion)?;
    Ok(state)
}

fn parse(state: &SessionState, text: &str) -> Result<Statement> {
    sql_limits::check(text)?;
    let dialect = state.config_options().sql_parser.dialect;
    let statement = state.sql_to_statement(text, &dialect).map_err(from_datafusion)?;
    let explain = || Error::unsupported("EXPLAIN is a call of its own: use `explain` instead of sql");
    let what = match &statement {
        Statement::Statement(inner) => match inner.as_ref() {
            ast::Statement::Query(_) => return Ok(statement),
            ast::Statement::Explain { .. } => return Err(explain()),
            ast::Statement::ExplainTable { table_name, .. } => {
                let columns = format!("`SELECT * FROM {table_name} LIMIT 0` gives a table's columns");
                return Err(Error::unsupported(format!("DESCRIBE is no query: {columns}, and `skytether ls` lists data sets and their tables")));
            }
            other => other.to_string(),
        },
        Statement::Explain(_) => return Err(explain()),
        other => other.to_string(),
    };
    let word: String = what.split_whitespace().next().unwrap_or("this").chars().take(20).collect();
    if word == "SHOW" {
        return Err(Error::unsupported("SHOW is no query: `skytether ls` lists data sets and their tables, `skytether status` the drives"));
    }
    Err(Error::unsupported(format!("{word} is no query: SQL only reads here; data sets are written by ingest and removed by drop")))
}

/// `plan` with its aggregates asking `cells` instead of nobody.
fn with_cells(plan: LogicalPlan, cells: Arc<HostCells>) -> Result<LogicalPlan> {
    use datafusion::common::tree_node::{Transformed, TreeNode};
    use datafusion::logical_expr::Expr;

    let mut registry = datafusion::execution::registry::MemoryFunctionRegistry::new();
    skytether_expression::register(&mut registry, cells)?;
    partial::register(&mut registry).map_err(from_datafusion)?;
    plan.transform_down_with_subqueries(|node| {
        node.map_expressions(|e| {
            e.transform_up(|e| match e {
                Expr::AggregateFunction(mut call) => match registry.udaf(call.func.name()) {
                    Ok(own) => {
                        call.func = own;
                        Ok(Transformed::yes(Expr::AggregateFunction(call)))
                    }
                    Err(_) => Ok(Transformed::no(Expr::AggregateFunction(call))),
                },
                e => Ok(Transformed::no(e)),
            })
        })
    })
    .map(|t| t.data)
    .map_err(from_datafusion)
}
