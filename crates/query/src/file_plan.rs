//! A query over files as one sub-plan, for EXEC: nothing of it stays on a host.
//!
//! The text passes the same rules as a query over a fleet, so that it has the same answer. DataFusion's own planner
//! gives others ([`docs/internals/sql-semantics.md`]): for NaN, signed zeros, integers that overflow and more.
//!
//! [`docs/internals/sql-semantics.md`]: ../../../docs/internals/sql-semantics.md

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::catalog::{
    CatalogProvider, CatalogProviderList, MemTable, MemoryCatalogProvider, MemoryCatalogProviderList, MemorySchemaProvider, SchemaProvider, TableProvider,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{TableReference, internal_err};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result as DfResult;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, SubqueryAlias, TableScanBuilder};
use datafusion::prelude::ident;
use datafusion::sql::parser::Statement;
use skytether_cluster::options::HostOptions;
use skytether_common::{DatasetName, Detail, Error, Result};
use skytether_exec::query_runtime::QueryRuntime;
use skytether_plan::codec;
use skytether_plan::error::from_datafusion;
use skytether_plan::sort_keys::sort_keys;

use crate::join_numbers::Learned;
use crate::merged_keys::{self, Joins};
use crate::planner::{Ambiguous, base_state, parse};
use crate::planning_threads::PlanningThreads;
use crate::tables::PLAIN;
use crate::{chunked, outer_aliases, parameters, set_operations, star, unnest};

/// Memory that planning takes for calls of constants.
const MEMORY: usize = 64 << 20;

/// Plans queries over files. Cheap to clone.
#[derive(Clone)]
pub struct FilePlanner {
    base: SessionState,
    threads: Arc<PlanningThreads>,
}

impl fmt::Debug for FilePlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilePlanner").finish_non_exhaustive()
    }
}

impl FilePlanner {
    /// A planner.
    ///
    /// # Errors
    /// Internal if the functions can't be registered; those of the directory for temporary files.
    pub fn new() -> Result<Self> {
        let options = HostOptions { threads: 1, ..HostOptions::default() };
        let base = base_state(&options, &QueryRuntime::new(MEMORY, 0, None)?)?;
        Ok(Self { base, threads: Arc::new(PlanningThreads::new(options.planning_deadline)) })
    }

    /// The sub-plan of `text`, one `SELECT` over `tables` by their names, which are those of the files of `dataset`.
    ///
    /// # Errors
    /// Invalid for SQL that is wrong or has parameters, `NotFound` for other tables, `Unsupported` for what a sub-plan
    /// can't carry, by its name; `Exhausted` where planning takes too long.
    pub async fn plan(&self, text: &str, dataset: &DatasetName, tables: &BTreeMap<String, SchemaRef>) -> Result<Bytes> {
        let (planner, text, dataset, tables) = (self.clone(), text.to_owned(), dataset.clone(), tables.clone());
        self.threads.run(async move { planner.plan_here(&text, &dataset, &tables).await }).await
    }

    async fn plan_here(&self, text: &str, dataset: &DatasetName, tables: &BTreeMap<String, SchemaRef>) -> Result<Bytes> {
        let mut statement = parse(&self.base, text)?;
        if parameters::number(&mut statement)? > 0 {
            return Err(Error::invalid("a query over files has no parameters: write their values into its text"));
        }
        for reference in self.base.resolve_table_references(&statement).map_err(from_datafusion)? {
            let known = matches!(&reference, TableReference::Bare { table } if tables.contains_key(&**table));
            if !known {
                let names: Vec<&str> = tables.keys().map(String::as_str).collect();
                return Err(Error::not_found(format!("there is no table {reference} among the files: there are {}", names.join(", "))));
            }
        }
        let mut state = self.base.clone();
        state.register_catalog_list(catalog(tables)?);
        state.mark_start_execution();
        let plan = logical(&statement, &state).await?;
        let passes = &mut state.config_mut().options_mut().optimizer.max_passes;
        *passes = chunked::passes(&plan, *passes);
        let plan = unnest::marked(plan).map_err(from_datafusion)?;
        let plan = unnest::unmarked(state.optimize(&plan).map_err(from_datafusion)?).map_err(from_datafusion)?;
        let plan = sort_keys(plan).map_err(from_datafusion)?;
        codec::encode(&at_files(plan, dataset).map_err(from_datafusion)?, &state)
    }
}

/// A scan of some columns of one table of files.
#[derive(Debug, Clone)]
pub struct FileScan {
    /// The data set and the table in it, as the plan names them.
    pub dataset: DatasetName,
    /// See there.
    pub table: String,
    /// The table's columns.
    pub schema: SchemaRef,
    /// The columns that are wanted, in this order.
    pub columns: Vec<String>,
    /// Only rows that pass this: a Substrait `ExtendedExpression` of one expression, as Arrow's tools write it.
    pub filter: Option<Bytes>,
}

impl FilePlanner {
    /// The sub-plan of a scan. Nothing else is read than the columns that it needs.
    ///
    /// # Errors
    /// `NotFound` for columns that the table does not have; as [`codec::decode_expressions`] for the filter.
    pub async fn scan(&self, scan: FileScan) -> Result<Bytes> {
        let planner = self.clone();
        self.threads.run(async move { planner.scan_here(&scan).await }).await
    }

    async fn scan_here(&self, scan: &FileScan) -> Result<Bytes> {
        let mut needed = BTreeSet::new();
        let column = |name: &str| {
            let at = scan.schema.index_of(name);
            at.map_err(|_| {
                Error::not_found(format!("the table {} has no column {name:?}", scan.table)).with_detail(Detail::MissingColumn { column: name.to_owned() })
            })
        };
        for name in &scan.columns {
            needed.insert(column(name)?);
        }
        let condition = match &scan.filter {
            None => None,
            Some(bytes) => match codec::decode_expressions(bytes, &scan.schema, &self.base).await?.pop() {
                Some((_, condition)) => Some(condition),
                None => return Err(Error::invalid("a filter is one expression, and there is none")),
            },
        };
        for of in condition.iter().flat_map(Expr::column_refs) {
            needed.insert(column(&of.name)?);
        }
        let table = MemTable::try_new(Arc::clone(&scan.schema), vec![vec![]]).map_err(from_datafusion)?;
        let name = TableReference::full(scan.dataset.domain(), scan.dataset.dataset(), scan.table.as_str());
        let source = provider_as_source(Arc::new(table));
        let plan = || {
            let mut plan = LogicalPlanBuilder::scan(name, source, Some(needed.into_iter().collect()))?;
            if let Some(condition) = condition {
                plan = plan.filter(condition)?;
            }
            plan.project(scan.columns.iter().map(ident))?.build()
        };
        codec::encode(&plan().map_err(from_datafusion)?, &self.base)
    }
}

/// The tables, as files without rows.
fn catalog(tables: &BTreeMap<String, SchemaRef>) -> Result<Arc<dyn CatalogProviderList>> {
    let (all, own, files) = (MemoryCatalogProviderList::new(), MemoryCatalogProvider::new(), MemorySchemaProvider::new());
    for (name, columns) in tables {
        let table: Arc<dyn TableProvider> = Arc::new(MemTable::try_new(Arc::clone(columns), vec![vec![]]).map_err(from_datafusion)?);
        files.register_table(name.clone(), table).map_err(from_datafusion)?;
    }
    own.register_schema(PLAIN, Arc::new(files)).map_err(from_datafusion)?;
    all.register_catalog(PLAIN.to_owned(), Arc::new(own));
    Ok(Arc::new(all))
}

/// As [`crate::planner::Planner`] plans a text: what joins merge is learned by planning.
async fn logical(statement: &Statement, state: &SessionState) -> Result<LogicalPlan> {
    let merged = Joins::of(statement);
    let planned = match learned(statement, merged, state).await {
        Err(e) if merged == Joins::Outer && Ambiguous::is_cause_of(&e) => learned(statement, Joins::All, state).await.map_err(|_| e),
        planned => planned,
    };
    match planned {
        Ok(plan) if outer_aliases::are_missed(&plan) => match outer_aliases::renamed(statement) {
            Some(other) => learned(&other, Joins::of(&other), state).await.or(Ok(plan)),
            None => Ok(plan),
        },
        planned => planned,
    }
}

async fn learned(statement: &Statement, merged: Joins, state: &SessionState) -> Result<LogicalPlan> {
    let learned = Arc::new(Learned::default());
    let mut before = 0;
    loop {
        let planned = planned(statement.clone(), merged, &learned, state.clone()).await;
        match learned.open() {
            Some(known) if known > before => before = known,
            _ => return planned,
        }
    }
}

async fn planned(mut statement: Statement, merged: Joins, learned: &Arc<Learned>, mut state: SessionState) -> Result<LogicalPlan> {
    if let Some(planner) = merged_keys::wrap(&mut statement, merged, learned)? {
        state.register_relation_planner(Arc::new(planner)).map_err(from_datafusion)?;
    }
    if set_operations::take_out(&mut statement) {
        state.register_relation_planner(Arc::new(set_operations::Copies)).map_err(from_datafusion)?;
    }
    let star = star::take_out(&mut statement);
    let plan = state.statement_to_plan(statement).await.map_err(Ambiguous::noted)?;
    if star { star::put_back(plan).map_err(from_datafusion) } else { Ok(plan) }
}

/// `plan`, whose scans have the names that EXEC gives to files. Columns keep theirs.
fn at_files(plan: LogicalPlan, dataset: &DatasetName) -> DfResult<LogicalPlan> {
    let renamed = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::TableScan(scan) => {
            if !scan.filters.is_empty() {
                return internal_err!("a scan of a file took a filter");
            }
            let shown = scan.table_name.clone();
            let named = TableReference::full(dataset.domain(), dataset.dataset(), shown.table());
            let files = TableScanBuilder::new(named, Arc::clone(&scan.source)).with_projection(scan.projection.clone()).with_fetch(scan.fetch).build()?;
            Ok(Transformed::yes(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(LogicalPlan::TableScan(files)), shown)?)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(renamed.data)
}
