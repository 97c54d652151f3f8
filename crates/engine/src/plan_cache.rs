//! The plan cache: from the bytes of a sub-plan to the operators that run it.
//!
//! The drives of one process get the same bytes for a query, and again for the next query of its kind. Planning a list
//! of a thousand aggregates takes longer than summing its columns. So the cache keeps the last few plans of long lists
//! over one table. A kept plan holds nothing of a drive: its scan is taken out, and each drive inserts its own. Drives
//! that request one plan at the same time wait for the first. A kept plan only serves tables with the very same
//! columns.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, SchemaRef};
use bytes::Bytes;
use datafusion::catalog::TableProvider;
use datafusion::common::TableReference;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::error::Result as DfResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::builder::LogicalTableSource;
use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown, TableSource};
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use skytether_common::Result;
use skytether_plan::codec;
use skytether_plan::error::from_datafusion;
use skytether_plan::opaque::opaque;
use tokio::sync::OnceCell;

use crate::cache::Cache;
use crate::scan::SliceScanExec;

/// Expressions from which on a list is long.
const LONG: usize = 200;

/// Bytes that a long list has at least.
const LEAST: usize = 4 << 10;

/// How many plans are kept.
const KEPT: usize = 8;

/// Bytes of all kept sub-plans together; their plans take some thirty times as much memory.
const KEPT_BYTES: usize = 1 << 20;

/// A sub-plan that was read, over a session's tables.
pub(crate) enum Prepared {
    /// A plan that others may use as well, and this session's table.
    Shared(Arc<Shared>, Arc<dyn TableProvider>),
    /// Any other.
    Own(LogicalPlan),
}

impl Prepared {
    /// Reads the plan in `bytes` over the tables of `state`, whose functions are those of `base` and some
    /// that belong to one sub-plan.
    ///
    /// # Errors
    /// As [`codec::decode`].
    pub(crate) async fn read(bytes: &Bytes, state: &SessionState, base: &SessionState) -> Result<Self> {
        if !(LEAST..=KEPT_BYTES).contains(&bytes.len()) {
            return Ok(Self::Own(codec::decode(bytes, state).await?));
        }
        let (cell, mut own) = (cell(bytes), None);
        let shared = cell.get_or_try_init(async || {
            let logical = codec::decode(bytes, state).await?;
            let shared = Shared::of(&logical, base).map_err(from_datafusion)?.map(Arc::new);
            own = Some(logical);
            Ok(shared)
        });
        let shared = shared.await.inspect_err(|_| forget(bytes, &cell))?.clone();
        if let Some(shared) = &shared
            && let Some(table) = shared.table_of(state).await.map_err(from_datafusion)?
        {
            return Ok(Self::Shared(Arc::clone(shared), table));
        }
        // The plan cannot be shared, or its table has been replaced by another one of this name.
        forget(bytes, &cell);
        match own {
            Some(logical) => Ok(Self::Own(logical)),
            None => Ok(Self::Own(codec::decode(bytes, state).await?)),
        }
    }

    /// The plan over this session's table.
    ///
    /// # Errors
    /// Internal only.
    pub(crate) fn bound(&self) -> DfResult<LogicalPlan> {
        match self {
            Self::Shared(shared, table) => over(&shared.logical, provider_as_source(Arc::clone(table))),
            Self::Own(logical) => Ok(logical.clone()),
        }
    }

    /// The plan; of a shared one tables are but columns.
    pub(crate) fn logical(&self) -> &LogicalPlan {
        match self {
            Self::Shared(shared, _) => &shared.logical,
            Self::Own(logical) => logical,
        }
    }

    /// The operators over the tables of `state`, the session that it was read with.
    ///
    /// # Errors
    /// DataFusion's.
    pub(crate) async fn physical(&self, state: &SessionState) -> DfResult<Arc<dyn ExecutionPlan>> {
        match self {
            Self::Shared(shared, table) => shared.physical(table, state).await,
            Self::Own(logical) => physical(logical, state).await,
        }
    }
}

/// The operators of `logical`, a sub-plan or a part of one.
///
/// # Errors
/// DataFusion's.
pub(crate) async fn physical(logical: &LogicalPlan, state: &SessionState) -> DfResult<Arc<dyn ExecutionPlan>> {
    let plan = match without_rules(logical)? {
        Some(plan) => plan,
        None => state.optimize(logical)?,
    };
    state.query_planner().create_physical_plan(&opaque(plan)?, state).await
}

/// A plan of one table, without the table.
#[derive(Debug)]
pub(crate) struct Shared {
    logical: LogicalPlan,
    table: TableReference,
    /// The schema of the table.
    schema: SchemaRef,
    projection: Option<Vec<usize>>,
    /// Conditions that the scan may know, to leave rows out.
    filters: Vec<Expr>,
    operators: tokio::sync::Mutex<Vec<Operators>>,
}

/// The operators of a [`Shared`] plan.
#[derive(Debug)]
struct Operators {
    /// The partitions that the session wants, and those that the scan has.
    partitions: (usize, usize),
    /// With an [`EmptyExec`] in place of the scan. `None` where the operators belong to one drive: with answers from
    /// its metadata, for example.
    plan: Option<Arc<dyn ExecutionPlan>>,
}

impl Shared {
    /// What can be shared of `logical`; `None` where that has more than one table and long lists, or calls functions
    /// that are not in `base`, which may know one drive's cells.
    fn of(logical: &LogicalPlan, base: &SessionState) -> DfResult<Option<Self>> {
        let Some(told) = without_rules(logical)?.filter(|_| calls_only(logical, base).unwrap_or(false)) else { return Ok(None) };
        let Some(LogicalPlan::TableScan(scan)) = leaf(&told) else { return Ok(None) };
        let filters = scan.filters.clone();
        let (table, schema, projection) = (scan.table_name.clone(), source_as_provider(&scan.source)?.schema(), scan.projection.clone());
        if scan.fetch.is_some() {
            return Ok(None);
        }
        let columns = Arc::new(LogicalTableSource::new(Arc::clone(&schema)));
        let logical = over(logical, columns)?;
        Ok(Some(Self { logical, table, schema, projection, filters, operators: tokio::sync::Mutex::default() }))
    }

    /// The table of `state` that it reads, if that has the same columns.
    async fn table_of(&self, state: &SessionState) -> DfResult<Option<Arc<dyn TableProvider>>> {
        let table = state.schema_for_ref(self.table.clone())?.table(self.table.table()).await?;
        Ok(table.filter(|table| Arc::ptr_eq(&table.schema(), &self.schema) || table.schema() == self.schema))
    }

    async fn physical(&self, table: &Arc<dyn TableProvider>, state: &SessionState) -> DfResult<Arc<dyn ExecutionPlan>> {
        // Scans know their columns by their names alone.
        let scan = table.scan(state, self.projection.as_ref(), &unnormalize_cols(self.filters.iter().cloned()), None).await?;
        let partitions = (state.config().target_partitions(), scan.output_partitioning().partition_count());
        let plan = async || {
            let source = provider_as_source(Arc::clone(table));
            let logical = told(over(&self.logical, source)?, &self.filters)?;
            state.query_planner().create_physical_plan(&opaque(logical)?, state).await
        };
        // Held while the first one plans.
        let mut all = self.operators.lock().await;
        let Some(known) = all.iter().find(|o| o.partitions == partitions) else {
            let planned = plan().await?;
            all.push(Operators { partitions, plan: without_scan(&planned, &scan)? });
            return Ok(planned);
        };
        let known = known.plan.clone();
        drop(all);
        match known {
            Some(operators) => with_scan(operators, &scan),
            None => plan().await,
        }
    }
}

/// `plan` with `source` as its table.
fn over(plan: &LogicalPlan, source: Arc<dyn TableSource>) -> DfResult<LogicalPlan> {
    plan.clone()
        .transform_down(|node| match node {
            LogicalPlan::TableScan(mut scan) => {
                scan.source = Arc::clone(&source);
                Ok(Transformed::new(LogicalPlan::TableScan(scan), true, TreeNodeRecursion::Stop))
            }
            node => Ok(Transformed::no(node)),
        })
        .data()
}

/// What `plan`, which has one input at each step, begins with.
fn leaf(plan: &LogicalPlan) -> Option<&LogicalPlan> {
    let mut at = plan;
    loop {
        match at.inputs().as_slice() {
            [] => return Some(at),
            [input] => at = input,
            _ => return None,
        }
    }
}

/// `plan` with nothing in the place of a scan like `scan`; `None` where it does not consist of that and
/// of what can be used again.
fn without_scan(plan: &Arc<dyn ExecutionPlan>, scan: &Arc<dyn ExecutionPlan>) -> DfResult<Option<Arc<dyn ExecutionPlan>>> {
    let (mut scans, mut others) = (0, 0);
    plan.apply(|node| {
        let like = node.is::<SliceScanExec>()
            && node.fetch().is_none()
            && node.schema() == scan.schema()
            && node.output_partitioning().partition_count() == scan.output_partitioning().partition_count();
        scans += usize::from(like);
        // What operators learn while they run is no plan's that others run.
        others += usize::from(!like && node.children().is_empty() || !node.dynamic_expressions_produced().is_empty());
        Ok(TreeNodeRecursion::Continue)
    })?;
    if (scans, others) != (1, 0) {
        return Ok(None);
    }
    let nothing: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(scan.schema()).with_partitions(scan.output_partitioning().partition_count()));
    replaced::<SliceScanExec>(Arc::clone(plan), &nothing).map(Some)
}

/// The operators of [`without_scan`] over `scan`, with figures of their own.
fn with_scan(operators: Arc<dyn ExecutionPlan>, scan: &Arc<dyn ExecutionPlan>) -> DfResult<Arc<dyn ExecutionPlan>> {
    replaced::<EmptyExec>(operators, scan)
}

/// `plan` with `by` in the place of its operator `T`.
fn replaced<T: ExecutionPlan>(plan: Arc<dyn ExecutionPlan>, by: &Arc<dyn ExecutionPlan>) -> DfResult<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| Ok(if node.is::<T>() { Transformed::yes(Arc::clone(by)) } else { Transformed::no(node) })).data()
}

/// Whether `plan` calls no function that is not in `base`.
fn calls_only(plan: &LogicalPlan, base: &SessionState) -> DfResult<bool> {
    let foreign = |expr: &Expr| {
        Ok(match expr {
            Expr::AggregateFunction(call) => !base.aggregate_functions().contains_key(call.func.name()),
            Expr::ScalarFunction(call) => !base.scalar_functions().contains_key(call.func.name()),
            Expr::WindowFunction(_) | Expr::HigherOrderFunction(_) => true,
            _ => false,
        })
    };
    let mut only = true;
    plan.apply(|node| {
        for expr in node.expressions() {
            only &= !expr.exists(foreign)?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(only)
}

/// `plan` in the form for making operators, if it needs no optimiser rules. That is a long list of expressions over the
/// columns of one table, or over its rows under a condition. Such a plan was analysed and optimised before the split,
/// and has no limit to push into the scan. The rules would only look for each column among all others, again and again.
/// The scan gets the condition.
fn without_rules(plan: &LogicalPlan) -> DfResult<Option<LogicalPlan>> {
    let (mut at, mut expressions, mut condition) = (plan, 0, None);
    let scan = loop {
        at = match at {
            LogicalPlan::Aggregate(aggregate) if condition.is_none() => {
                expressions += aggregate.aggr_expr.len();
                &aggregate.input
            }
            LogicalPlan::Projection(projection) if condition.is_none() => {
                expressions += projection.expr.len();
                &projection.input
            }
            LogicalPlan::Filter(filter) if condition.is_none() => {
                condition = Some(&filter.predicate);
                &filter.input
            }
            LogicalPlan::SubqueryAlias(alias) if condition.is_none() => &alias.input,
            LogicalPlan::TableScan(scan) => break scan,
            _ => return Ok(None),
        }
    };
    if !scan.filters.is_empty() || expressions <= LONG || has_moments(plan) {
        return Ok(None);
    }
    let filters = condition.map(split_conjunction).unwrap_or_default();
    // A source that filters exactly needs no filter above; only the rules handle that.
    let hints = scan.source.supports_filters_pushdown(&filters)?.iter().all(|pushed| *pushed == TableProviderFilterPushDown::Inexact);
    let filters: Vec<Expr> = filters.into_iter().cloned().collect();
    if hints { told(plan.clone(), &filters).map(Some) } else { Ok(None) }
}

/// `plan` with a scan that knows these conditions, which hold for all rows above it.
fn told(plan: LogicalPlan, filters: &[Expr]) -> DfResult<LogicalPlan> {
    if filters.is_empty() {
        return Ok(plan);
    }
    plan.transform_down(|node| match node {
        LogicalPlan::TableScan(mut scan) => {
            scan.filters = filters.to_vec();
            Ok(Transformed::new(LogicalPlan::TableScan(scan), true, TreeNodeRecursion::Stop))
        }
        node => Ok(Transformed::no(node)),
    })
    .data()
}

/// Whether `plan` has moments as constants, which travel in UTC: the analyser gives them the zone of
/// what they are compared with.
fn has_moments(plan: &LogicalPlan) -> bool {
    let moment = |expr: &Expr| Ok(matches!(expr, Expr::Literal(value, _) if matches!(value.data_type(), DataType::Timestamp(_, Some(_)))));
    let within = |expr: &Expr| expr.exists(moment).unwrap_or(true);
    plan.exists(|node| Ok(node.expressions().iter().any(within))).unwrap_or(true)
}

/// A kept plan, or the place for one; `None` in it for bytes whose plan is not to be shared.
type Cell = Arc<OnceCell<Option<Arc<Shared>>>>;

/// The process's kept plans by their bytes.
static PLANS: LazyLock<Cache<Bytes, Cell>> = LazyLock::new(|| Cache::new(KEPT_BYTES));

/// The place of the plan in `bytes`, made where there is none.
fn cell(bytes: &Bytes) -> Cell {
    // Each plan weighs at least its share of the cache, which bounds the number of plans.
    PLANS.get(bytes).unwrap_or_else(|| PLANS.put(bytes.clone(), Cell::default(), bytes.len().max(KEPT_BYTES / KEPT)))
}

fn forget(bytes: &Bytes, cell: &Cell) {
    PLANS.remove_if(bytes, |kept| Arc::ptr_eq(kept, cell));
}

#[cfg(test)]
mod tests;
