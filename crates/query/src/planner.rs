//! Plans and runs a query: from its text to its rows.

use futures::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{Field, SchemaRef};
use bytes::Bytes;
use datafusion::common::{DataFusionError, ScalarValue, SchemaError, TableReference};
use datafusion::execution::FunctionRegistry;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryLimit, PeakRecordingPool};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::eliminate_duplicated_expr::EliminateDuplicatedExpr;
use datafusion::optimizer::{Optimizer, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::aggregate_statistics::AggregateStatistics;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement as SqlStatement;
use datafusion::sql::sqlparser::ast;
use futures::StreamExt;
use skytether_common::{Error, Result};
use skytether_expression::CellSource;
use skytether_plan::analysis;
use skytether_plan::barriers::guarded;
use skytether_plan::bounded_results::ResultLimits;
use skytether_plan::error::from_datafusion;
use skytether_plan::filter_before_project::filter_before_project;
use skytether_plan::filters_above_aggregates::filters_above_aggregates;
use skytether_plan::join_types::JoinTypes;
use skytether_plan::kept_types::kept_types;
use skytether_plan::keys::{KeySets, among_udf};
use skytether_plan::null_equal_joins::null_equal_joins;
use skytether_plan::opaque::opaque;
use skytether_plan::pinned::pinned;
use skytether_plan::planning::{limited, limited_physical};
use skytether_plan::shared::share;
use skytether_plan::sort_keys::sort_keys;
use skytether_plan::{CutPlan, cut, expr_planners, partial, register_functions};
use uuid::Uuid;

use crate::cells::{HostCells, needs};
use crate::chunked;
use crate::chunked::InParts;
use crate::constant_inputs;
use crate::cooperative_join::take_turns;
use crate::distinct_from;
use crate::expansion;
use crate::far_times;
use crate::host_reasons as reasons;
use crate::ignored_clauses;
use crate::join_key_routing::send_keys_apart;
use crate::join_numbers::Learned;
use crate::list_quantifiers;
use crate::long_numbers;
use crate::matrix_parts;
use crate::mentioned_columns::Shown;
use crate::merged_keys::{self, Joins};
use crate::order_names;
use crate::outer_aliases;
use crate::parameters;
use crate::patterns;
use crate::planning_threads::PlanningThreads;
use crate::scan_planner::ScanPlanner;
use crate::set_operations;
use crate::signed_intervals;
use crate::single_phase_merge::merge_once;
use crate::sql_limits;
use crate::star;
use crate::substrait;
use crate::tables::{NamedTables, PLAIN, SchemaCache};
use crate::unnest as unnested;
use skytether_api::receipt::ReceiptHandle;
use skytether_api::statement::Query;
use skytether_api::statement::QueryOptions;
use skytether_api::statement::Statement;
use skytether_cluster::cluster::Cluster;
use skytether_cluster::options::HostOptions;
use skytether_exec::drive_reader::Timeouts;
use skytether_exec::local_executors::LocalExecutors;
use skytether_exec::profile::Collector;
use skytether_exec::query_runtime::QueryRuntime;
use skytether_exec::scan::QueryContext;
use skytether_exec::scan::scan_numbers;
use skytether_exec::shared_result::{self, SharedResults};

use crate::result_stream::{Counted, Running};

/// Plans queries over a cluster, and runs them. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Planner(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    base: SessionState,
    schemas: SchemaCache,
    executors: LocalExecutors,
    threads: Arc<PlanningThreads>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Planner").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

/// A query as a logical plan, over tables that a session knows.
struct Logical {
    plan: LogicalPlan,
    /// Whether it has been through the rules for logical plans.
    optimised: bool,
    /// How many parameters its text has, used or not.
    parameters: usize,
    state: SessionState,
    tables: Arc<NamedTables>,
}

/// A query that is planned and has not begun.
pub struct Planned {
    pub(crate) optimised: LogicalPlan,
    pub(crate) cut: CutPlan,
    /// The physical plan of the host's part, whose leaves read from drives.
    pub physical: Arc<dyn ExecutionPlan>,
    pub(crate) state: SessionState,
    pub(crate) collector: Arc<Collector>,
    /// Held as long as it runs.
    pub(crate) running: Option<Arc<()>>,
}

impl Planned {
    /// What its operators run in, and the record of the memory that they take.
    pub fn context(&self) -> (Arc<TaskContext>, Arc<PeakRecordingPool>) {
        // Of the memory that all queries share, what this one takes.
        let shared = self.state.runtime_env();
        let taken = Arc::new(PeakRecordingPool::new(Arc::clone(&shared.memory_pool)));
        let runtime = RuntimeEnv { memory_pool: Arc::clone(&taken) as _, ..shared.as_ref().clone() };
        (Arc::new(TaskContext::from(&self.state).with_runtime(Arc::new(runtime))), taken)
    }

    /// Gathers its receipt.
    pub fn collector(&self) -> &Arc<Collector> {
        &self.collector
    }
}

impl Planner {
    /// A planner over `cluster`. Its queries take memory and spill disk from `runtime`.
    ///
    /// # Errors
    /// Internal if the functions can't be registered.
    pub fn new(cluster: Cluster, runtime: &QueryRuntime) -> Result<Self> {
        let base = base_state(cluster.options(), runtime)?;
        let pool = Arc::clone(&base.runtime_env().memory_pool);
        let executors = LocalExecutors::new(pool, cluster.options().storage_deadline);
        let threads = Arc::new(PlanningThreads::new(cluster.options().planning_deadline));
        Ok(Self(Arc::new(Inner { cluster, base, schemas: SchemaCache::default(), executors, threads })))
    }

    /// A planner over the same cluster, whose plans are to be spread over several hosts. They have `partitions`
    /// partitions, and no build side that all partitions of a join share, which one process alone could have.
    #[must_use]
    pub fn spread(&self, partitions: usize) -> Self {
        let mut base = self.0.base.clone();
        let memory = base.runtime_env().memory_pool.memory_limit();
        let options = base.config_mut().options_mut();
        options.execution.target_partitions = partitions.max(1);
        options.optimizer.hash_join_single_partition_threshold = 0;
        options.optimizer.hash_join_single_partition_threshold_rows = 0;
        if let MemoryLimit::Finite(memory) = memory {
            // Each sort reserves this much for merging. A worker has several sorts at a time.
            let reserved = &mut options.execution.sort_spill_reservation_bytes;
            *reserved = (*reserved).min(memory / 16 / self.0.cluster.options().threads.max(1));
        }
        let Inner { cluster, executors, threads, .. } = self.0.as_ref();
        Self(Arc::new(Inner { cluster: cluster.clone(), base, schemas: SchemaCache::default(), executors: executors.clone(), threads: Arc::clone(threads) }))
    }

    /// The drives that it plans over.
    pub(crate) fn cluster(&self) -> &Cluster {
        &self.0.cluster
    }

    /// Runs a query: one `SELECT`, in DataFusion's SQL.
    ///
    /// # Errors
    /// Invalid for SQL that is wrong or no query, `NotFound` for data sets and tables, and what the drives say
    /// when asked for metadata.
    pub fn sql<'a>(&'a self, text: &'a str, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.ask(&Statement::Sql(text.into()), options).await })
    }

    /// Runs a plan of another producer: the bytes of a Substrait `Plan`.
    ///
    /// # Errors
    /// Invalid for bytes that are no plan, contradict themselves or the tables, or are more than
    /// [`crate::substrait::LIMITS`]; unsupported for relations, expressions and functions that this engine does not
    /// know, by name; and as [`Planner::sql`].
    pub fn substrait<'a>(&'a self, plan: Bytes, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.ask(&Statement::Substrait(plan), options).await })
    }

    /// Runs a query, in whichever form it is asked.
    ///
    /// # Errors
    /// As [`Planner::sql`] and [`Planner::substrait`].
    pub fn ask<'a>(&'a self, asked: &'a Statement, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.run(self.plan_asked(asked, options, Vec::new()).await?) })
    }

    /// Starts a planned query.
    ///
    /// # Errors
    /// Those of operators that can not start.
    pub fn run(&self, planned: Planned) -> Result<Query> {
        let (context, taken) = planned.context();
        let Planned { physical, collector, cut, running, .. } = planned;
        collector.plan(Arc::clone(&physical), reasons::of(&cut, physical.as_ref()), scan_numbers(physical.as_ref()), taken);
        let schema = physical.schema();
        let receipt = ReceiptHandle::new(Arc::clone(&collector) as _);
        // Begins at the first poll: a query without a reader must not hold the drives' turns.
        let memory = Arc::clone(context.memory_pool());
        let stream = Counted { inner: Running::Planned(physical, context), collector, memory, running }.boxed();
        Ok(Query { schema, stream, receipt })
    }

    /// Plans a query, with `values` in the place of the parameters `$1`, `$2`, ...
    ///
    /// # Errors
    /// As [`Planner::sql`]; `Exhausted` at [`HostOptions::planning_deadline`].
    pub async fn plan_asked(&self, asked: &Statement, options: &QueryOptions, values: Vec<ScalarValue>) -> Result<Planned> {
        let (planner, asked, options) = (self.clone(), asked.clone(), options.clone());
        self.0.threads.run(async move { planner.plan_here(&asked, &options, values).await }).await
    }

    async fn plan_here(&self, asked: &Statement, options: &QueryOptions, values: Vec<ScalarValue>) -> Result<Planned> {
        let (begun, shown) = (Instant::now(), Shown::named());
        let catalog = self.0.cluster.catalog();
        if catalog.check_presence().is_err() {
            // The first query after the drives are back.
            catalog.probe_lost().await;
        } else {
            catalog.look_again();
        }
        // Taken before it is known what the query reads.
        let running = self.0.cluster.running();
        let planned = match self.plan_over(&shown, asked, options, values.clone(), begun).await {
            Err(_) if shown.hid() => self.plan_over(&Shown::all(), asked, options, values, begun).await,
            done => done,
        };
        planned.map(|planned| Planned { running: Some(running), ..planned })
    }

    async fn plan_over(&self, shown: &Shown, asked: &Statement, options: &QueryOptions, values: Vec<ScalarValue>, begun: Instant) -> Result<Planned> {
        let collector = Arc::new(Collector::new(begun, options.cut));
        let Logical { plan, optimised, parameters, state, tables } = self.logical(asked, shown, &collector, true).await?;
        let work = async {
            let plan = parameters::bind(plan, parameters, values)?;
            if optimised {
                self.plan_optimised(plan, state, tables, collector, options).await
            } else {
                self.plan_logical(plan, state, tables, collector, options).await
            }
        };
        match asked {
            Statement::Sql(_) => work.await,
            Statement::Substrait(_) => substrait::guarded(work).await,
        }
    }

    /// The columns of a query's result, as far as known before its parameters have values, and the parameters in order.
    /// Parameters whose type the query does not determine are of type null.
    ///
    /// # Errors
    /// As [`Planner::plan_asked`].
    pub async fn prepare(&self, asked: &Statement) -> Result<(SchemaRef, Vec<Field>)> {
        let (planner, asked) = (self.clone(), asked.clone());
        self.0.threads.run(async move { planner.prepare_here(&asked).await }).await
    }

    async fn prepare_here(&self, asked: &Statement) -> Result<(SchemaRef, Vec<Field>)> {
        let collector = Arc::new(Collector::new(Instant::now(), QueryOptions::default().cut));
        let shown = Shown::named();
        let Logical { plan, parameters, .. } = match self.logical(asked, &shown, &collector, false).await {
            Err(_) if shown.hid() => self.logical(asked, &Shown::all(), &collector, false).await?,
            done => done?,
        };
        Ok((Arc::clone(plan.schema().inner()), parameters::of(&plan, parameters)?))
    }

    /// The logical plan of `asked`. With `optimise`, a plan that is optimised faster in parts comes back optimised.
    async fn logical(&self, asked: &Statement, shown: &Shown, collector: &Collector, optimise: bool) -> Result<Logical> {
        let (text, mut statement) = match asked {
            Statement::Sql(text) => (text, parse(&self.0.base, text)?),
            Statement::Substrait(plan) => {
                let mut state = self.0.base.clone();
                state.mark_start_execution();
                let (plan, tables) = substrait::logical(plan, &state, self.0.cluster.catalog(), &self.0.schemas, collector).await?;
                state.register_catalog_list(tables.catalog_list()?);
                return Ok(Logical { plan, optimised: false, parameters: 0, state, tables: Arc::new(tables) });
            }
        };
        let parameters = parameters::number(&mut statement)?;
        let merged = Joins::of(&statement);
        let planned = match self.logical_learned(text, &statement, merged, shown, collector, optimise).await {
            Err(e) if merged == Joins::Outer && Ambiguous::is_cause_of(&e) => {
                self.logical_learned(text, &statement, Joins::All, shown, collector, optimise).await.map_err(|_| e)
            }
            planned => planned,
        };
        let planned = match planned {
            Ok(logical) if outer_aliases::are_missed(&logical.plan) => match outer_aliases::renamed(&statement) {
                Some(other) => self.logical_learned(text, &other, Joins::of(&other), shown, collector, optimise).await.or(Ok(logical)),
                None => Ok(logical),
            },
            planned => planned,
        };
        planned.map(|logical| Logical { parameters, ..logical })
    }

    /// Plans `statement` as often as it learns what joins merge, once for each level of subqueries at most.
    async fn logical_learned(
        &self,
        text: &str,
        statement: &SqlStatement,
        merged: Joins,
        shown: &Shown,
        collector: &Collector,
        optimise: bool,
    ) -> Result<Logical> {
        let learned = Arc::new(Learned::default());
        let mut before = 0;
        loop {
            let planned = self.logical_sql(text, statement.clone(), (merged, &learned), shown, collector, optimise).await;
            match learned.open() {
                Some(known) if known > before => before = known,
                _ => return planned,
            }
        }
    }

    async fn logical_sql(
        &self,
        text: &str,
        mut statement: SqlStatement,
        (merged, learned): (Joins, &Arc<Learned>),
        shown: &Shown,
        collector: &Collector,
        optimise: bool,
    ) -> Result<Logical> {
        let references = self.0.base.resolve_table_references(&statement).map_err(from_datafusion)?;
        let (tables, mut state) = self.named(references, collector).await?;
        if let Some(planner) = merged_keys::wrap(&mut statement, merged, learned)? {
            state.register_relation_planner(Arc::new(planner)).map_err(from_datafusion)?;
        }
        if set_operations::take_out(&mut statement) {
            state.register_relation_planner(Arc::new(set_operations::Copies)).map_err(from_datafusion)?;
        }
        if let Some(few) = shown.few(&tables, text, &statement)? {
            state.register_catalog_list(few);
        }
        if let Some(InParts { plan, optimised }) = chunked::plan(&mut statement, &state, optimise && !tables.has_parts()).await {
            return Ok(Logical { plan, optimised, parameters: 0, state, tables });
        }
        let star = star::take_out(&mut statement);
        let plan = state.statement_to_plan(statement).await.map_err(Ambiguous::noted)?;
        let plan = if star { star::put_back(plan).map_err(from_datafusion)? } else { plan };
        Ok(Logical { plan, optimised: false, parameters: 0, state, tables })
    }

    /// The tables that a query names, and a session that knows them.
    pub(crate) async fn tables(&self, references: Vec<TableReference>, collector: &Collector) -> Result<NamedTables> {
        let cluster = &self.0.cluster;
        NamedTables::resolve(references, &cluster.options().names, cluster.catalog(), &self.0.schemas, collector).await
    }

    pub(crate) async fn named(&self, references: Vec<TableReference>, collector: &Collector) -> Result<(Arc<NamedTables>, SessionState)> {
        let tables = Arc::new(self.tables(references, collector).await?);
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
        let plan = if crate::dense::calls_cell_moments(&plan)? {
            // The rewrite reads the sparse rows of a dense view, which the text of the query does not name.
            tables = Arc::new(tables.with_rows(self.0.cluster.catalog(), &self.0.schemas, &collector).await?);
            crate::dense::to_sparse_rows(plan, &tables, &state)?
        } else {
            plan
        };
        let plan = matrix_parts::united(plan, &tables)?;
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
        mut state: SessionState,
        tables: Arc<NamedTables>,
        collector: Arc<Collector>,
        options: &QueryOptions,
    ) -> Result<Planned> {
        let optimised = sort_keys(optimised).map_err(from_datafusion)?;
        if constant_inputs::are_sorted(&optimised).map_err(from_datafusion)? {
            state.config_mut().options_mut().optimizer.repartition_sorts = false;
        }
        let cut = share(cut(optimised.clone(), options.cut, tables.as_ref(), &state)?)?;
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
                matrix_parts::check_blocks(&spec, cut.scans.iter().filter_map(|scan| tables.get(&scan.table)))?;
                cells.fetch(&spec, record, self.0.cluster.catalog(), &collector).await?;
            }
            with_cells(cut.super_plan.clone(), cells)?
        };
        let context = QueryContext {
            query: Uuid::new_v4(),
            collector: Arc::clone(&collector),
            patience: Timeouts { begin: self.0.cluster.options().begin_deadline, silence: self.0.cluster.options().silence_deadline },
            batch_rows: options.batch_rows.max(1),
            catalog: self.0.cluster.catalog().clone(),
        };
        let scans = ScanPlanner {
            cluster: self.0.cluster.clone(),
            executors: self.0.executors.clone(),
            cut: cut.clone(),
            tables,
            context,
            state: Arc::new(state.clone()),
            asked: options.cut,
            shared: SharedResults::default(),
        };
        let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(scans)]);
        let super_plan = opaque(super_plan).map_err(from_datafusion)?;
        let physical = planner.create_physical_plan(&super_plan, &state).await.map_err(from_datafusion)?;
        shared_result::bind(physical.as_ref());
        Ok(Planned { optimised, cut, physical, state, collector, running: None })
    }
}

/// The most keys per part of a join that drives get.
const JOIN_KEYS: usize = 150_000;

pub(crate) fn base_state(options: &HostOptions, runtime: &QueryRuntime) -> Result<SessionState> {
    let mut config = SessionConfig::new()
        .with_target_partitions(options.threads.max(1))
        .with_create_default_catalog_and_schema(false)
        .with_default_catalog_and_schema(PLAIN, PLAIN)
        .with_information_schema(false);
    // What the drives send is spread over their number already, and usually small.
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.enable_round_robin_repartition = false;
    // Drives wait for the filters that joins make. Other operators make filters from the very rows that would wait for
    // them.
    optimizer.enable_topk_dynamic_filter_pushdown = false;
    optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    optimizer.hash_join_inlist_pushdown_max_distinct_values = JOIN_KEYS;
    optimizer.hash_join_inlist_pushdown_max_size = JOIN_KEYS * 32;
    // A field of a struct that moves below the projection that computes a column of the same name reads the wrong one.
    optimizer.enable_leaf_expression_pushdown = false;
    // It stops a DISTINCT at a limit that belongs to what stands above a union, or a window.
    optimizer.enable_distinct_aggregation_soft_limit = false;
    // It finds the key of a sort by its name alone, and looks through windows: groups that these need are left out. Its
    // heap takes memory by the limit, past every budget, and takes no NaN for equal to another.
    optimizer.enable_topk_aggregation = false;
    // It adds up too few rows for windows over windows, and none for `lag` with a negative offset.
    optimizer.enable_window_limits = false;
    // The planner takes a column for one that is never NULL, and the operator does not know it: that is no error.
    config.options_mut().execution.skip_physical_aggregate_schema_check = true;
    // Without it, literals lose their zone next to a column with another one.
    config.options_mut().execution.time_zone = Some("UTC".into());
    config.options_mut().extensions.insert(ResultLimits::of(runtime.env().memory_pool.as_ref()));
    config.set_extension(Arc::clone(runtime.spill()));
    let mut state = SessionStateBuilder::new_with_default_features()
        .with_expr_planners(expr_planners())
        .with_analyzer_rules(analysis::rules())
        .with_config(config)
        .with_runtime_env(Arc::clone(runtime.env()))
        .with_optimizer_rules(limited(rules()))
        .with_physical_optimizer_rules(limited_physical(guarded(physical_rules())))
        .with_optimizer_rule(Arc::new(JoinTypes))
        .with_physical_optimizer_rule(filter_before_project())
        .with_physical_optimizer_rule(merge_once())
        .with_physical_optimizer_rule(send_keys_apart())
        .with_physical_optimizer_rule(take_turns())
        .build();
    let nothing: Arc<dyn CellSource> = Arc::new(HostCells::default());
    skytether_expression::register(&mut state, nothing)?;
    partial::register(&mut state).map_err(from_datafusion)?;
    register_functions(&mut state).map_err(from_datafusion)?;
    state.register_udf(Arc::new(among_udf(KeySets::default()))).map_err(from_datafusion)?;
    state.register_relation_planner(Arc::new(unnested::Relations)).map_err(from_datafusion)?;
    Ok(state)
}

/// DataFusion's rules for logical plans, without the one that drops sort keys which others determine: after a join it
/// takes the key of one side for a key of the result. (Keys that come twice are dropped by [`analysis`].)
fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let dropped = EliminateDuplicatedExpr::new();
    let kept = Optimizer::default().rules.into_iter().filter(|rule| rule.name() != dropped.name()).collect();
    pinned(analysis::again(null_equal_joins(kept_types(filters_above_aggregates(kept)))))
}

/// DataFusion's rules for physical plans, without the one that answers aggregates from statistics. It takes an
/// aggregate with a `FILTER` for the aggregate below it, and the host has no exact statistics.
fn physical_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let dropped = AggregateStatistics::new();
    PhysicalOptimizer::default().rules.into_iter().filter(|rule| rule.name() != dropped.name()).collect()
}

/// The cause of an error about a column that DataFusion takes for ambiguous.
#[derive(Debug)]
pub(crate) struct Ambiguous;

impl fmt::Display for Ambiguous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("several relations of the query have it; write which")
    }
}

impl std::error::Error for Ambiguous {}

impl Ambiguous {
    pub(crate) fn noted(error: DataFusionError) -> Error {
        let is = matches!(error.find_root(), DataFusionError::SchemaError(e, _) if matches!(e.as_ref(), SchemaError::AmbiguousReference { .. }));
        let ours = from_datafusion(error);
        if is { ours.with_source(Self) } else { ours }
    }

    pub(crate) fn is_cause_of(error: &Error) -> bool {
        std::error::Error::source(error).is_some_and(|cause| cause.is::<Self>())
    }
}

pub(crate) fn parse(state: &SessionState, text: &str) -> Result<SqlStatement> {
    sql_limits::check(text)?;
    let dialect = state.config_options().sql_parser.dialect;
    let mut statement = state.sql_to_statement(text, &dialect).map_err(|e| match e {
        // The parser has this variant for nothing else.
        DataFusionError::NotImplemented(_) => Error::unsupported("one query at a time: the text has several, with ';' between them"),
        other => from_datafusion(other),
    })?;
    if let SqlStatement::Statement(inner) = &statement {
        sql_limits::check_operators(inner)?;
    }
    expansion::check(&statement)?;
    distinct_from::bind(&mut statement);
    list_quantifiers::rewrite(&mut statement)?;
    patterns::rewrite(&mut statement)?;
    order_names::set_apart(&mut statement);
    ignored_clauses::heed(&mut statement, state)?;
    far_times::widen(&mut statement);
    long_numbers::keep_digits(&mut statement);
    signed_intervals::keep_signs(&mut statement);
    let explain = || Error::unsupported("EXPLAIN is a call of its own: use `explain` instead of sql");
    let what = match &statement {
        SqlStatement::Statement(inner) => match inner.as_ref() {
            ast::Statement::Query(_) => return Ok(statement),
            ast::Statement::Explain { .. } => return Err(explain()),
            ast::Statement::ExplainTable { table_name, .. } => {
                let columns = format!("`skytether describe {table_name}` shows a table's columns, and information_schema.columns has those of all");
                return Err(Error::unsupported(format!("DESCRIBE is no query: {columns}; `skytether ls` lists data sets and their tables")));
            }
            other => other.to_string(),
        },
        SqlStatement::Explain(_) => return Err(explain()),
        other => other.to_string(),
    };
    let word: String = what.split_whitespace().next().unwrap_or("this").chars().take(20).collect();
    if word == "SHOW" {
        return Err(Error::unsupported(
            "SHOW is no query: information_schema.tables and `skytether ls` list data sets and their tables, `skytether status` the drives",
        ));
    }
    Err(Error::unsupported(format!("{word} is no query: SQL only reads here; data sets are written by ingest and removed by drop")))
}

/// `plan` with `cells` as the source of cell groups for its aggregates, which had none.
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
