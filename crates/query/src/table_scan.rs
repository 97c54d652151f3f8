//! A scan of one table: some of its columns, or expressions over them, of the rows that pass a filter. Arrow's datasets
//! ask for such scans.

use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use datafusion::common::TableReference;
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion::prelude::ident;
use skytether_common::{DatasetName, Detail, Error, Result};
use skytether_plan::codec::decode_expressions;
use skytether_plan::error::from_datafusion;

use crate::planner::{Planned, Planner};
use crate::tables::NamedTables;
use skytether_api::statement::{Output, Query, QueryOptions, TableScan};
use skytether_exec::profile::Collector;

impl Planner {
    /// Runs a scan.
    ///
    /// # Errors
    /// `NotFound` for data sets, tables and columns. `Unsupported`, by name, for what this engine would compute
    /// otherwise than Arrow, or not at all: the caller can compute that over the rows. Invalid for bytes that are no
    /// expressions.
    pub fn scan<'a>(&'a self, scan: &'a TableScan, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move {
            let running = self.cluster().running();
            let planned = self.plan_scan(scan, options).await?;
            self.run(Planned { running: Some(running), ..planned })
        })
    }

    async fn plan_scan(&self, scan: &TableScan, options: &QueryOptions) -> Result<Planned> {
        let collector = Arc::new(Collector::new(Instant::now(), options.cut));
        let reference = reference(&scan.table)?;
        let (tables, state) = self.named(vec![reference.clone()], &collector).await?;
        let named = named(&tables, &reference)?;
        let mut plan = LogicalPlanBuilder::scan(reference, named.source(), None).map_err(from_datafusion)?;
        if let Some(bytes) = &scan.filter {
            let found = decode_expressions(bytes, &named.schema, &state).await?;
            let [(_, condition)] = found.as_slice() else {
                return Err(Error::invalid(format!("a filter is one expression, not {}", found.len())));
            };
            plan = plan.filter(condition.clone()).map_err(from_datafusion)?;
        }
        // A column of a name that is there twice is the first; errors name the table.
        let column = |name: &String| match named.schema.field_with_name(name) {
            Ok(_) => Ok(ident(name)),
            Err(_) => Err(Error::not_found(format!("{} has no column {name:?}", scan.table)).with_detail(Detail::MissingColumn { column: name.clone() })),
        };
        let given: Option<Vec<Expr>> = match &scan.output {
            Output::All | Output::Count => None,
            Output::Columns(names) => Some(names.iter().map(column).collect::<Result<_>>()?),
            Output::Expressions(bytes) => Some(decode_expressions(bytes, &named.schema, &state).await?.into_iter().map(|(name, e)| e.alias(name)).collect()),
        };
        if let Some(expressions) = given {
            plan = plan.project(expressions).map_err(from_datafusion)?;
        }
        if scan.limit.is_some() {
            plan = plan.limit(0, scan.limit).map_err(from_datafusion)?;
        }
        if scan.output == Output::Count {
            plan = plan.aggregate(Vec::<Expr>::new(), [count(lit(1_i64)).alias("count")]).map_err(from_datafusion)?;
        }
        let plan: LogicalPlan = plan.build().map_err(from_datafusion)?;
        self.plan_logical(plan, state, tables, collector, options).await
    }

    /// The columns of a table: `domain.dataset` or `domain.dataset.table`.
    ///
    /// # Errors
    /// Invalid for a text that is no such name; `NotFound`.
    pub fn schema_of<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<SchemaRef>> {
        Box::pin(async move {
            let collector = Collector::new(Instant::now(), QueryOptions::default().cut);
            let reference = reference(table)?;
            let tables = self.tables(vec![reference.clone()], &collector).await?;
            Ok(Arc::clone(&named(&tables, &reference)?.schema))
        })
    }
}

fn named<'t>(tables: &'t NamedTables, reference: &TableReference) -> Result<&'t crate::tables::Named> {
    tables.get(reference).map(AsRef::as_ref).ok_or_else(|| Error::internal(format!("{reference} was found and is not there")))
}

/// The reference that a table's name is.
fn reference(text: &str) -> Result<TableReference> {
    let parts: Vec<&str> = text.splitn(3, '.').collect();
    match parts.as_slice() {
        [domain, dataset, table] => {
            let name = DatasetName::new(*domain, *dataset)?;
            Ok(TableReference::full(name.domain(), name.dataset(), *table))
        }
        _ => {
            let name: DatasetName = text.parse()?;
            Ok(TableReference::partial(name.domain(), name.dataset()))
        }
    }
}
