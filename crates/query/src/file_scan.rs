//! A scan of files as one sub-plan: columns, and a filter. Queries over files are planned as those over any fleet, by
//! crate `file-sql`.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::catalog::MemTable;
use datafusion::common::TableReference;
use datafusion::datasource::provider_as_source;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::prelude::ident;
use skytether_cluster::options::HostOptions;
use skytether_common::{DatasetName, Detail, Error, Result};
use skytether_exec::query_runtime::QueryRuntime;
use skytether_plan::codec;
use skytether_plan::error::from_datafusion;

use crate::planner::base_state;
use crate::planning_threads::PlanningThreads;

/// Memory that planning takes for calls of constants.
const MEMORY: usize = 64 << 20;

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

impl FileScan {
    /// The scan as a sub-plan. Nothing else is read than the columns that it needs.
    ///
    /// # Errors
    /// `NotFound` for columns that the table does not have; as [`codec::decode_expressions`] for the filter;
    /// `Exhausted` where planning takes too long.
    pub async fn sub_plan(self) -> Result<Bytes> {
        let options = HostOptions { threads: 1, ..HostOptions::default() };
        let state = base_state(&options, &QueryRuntime::new(MEMORY, 0, None)?)?;
        PlanningThreads::new(options.planning_deadline).run(async move { self.plan(&state).await }).await
    }

    async fn plan(&self, state: &SessionState) -> Result<Bytes> {
        let mut needed = BTreeSet::new();
        let column = |name: &str| {
            let at = self.schema.index_of(name);
            at.map_err(|_| {
                Error::not_found(format!("the table {} has no column {name:?}", self.table)).with_detail(Detail::MissingColumn { column: name.to_owned() })
            })
        };
        for name in &self.columns {
            needed.insert(column(name)?);
        }
        let condition = match &self.filter {
            None => None,
            Some(bytes) => match codec::decode_expressions(bytes, &self.schema, state).await?.pop() {
                Some((_, condition)) => Some(condition),
                None => return Err(Error::invalid("a filter is one expression, and there is none")),
            },
        };
        for of in condition.iter().flat_map(Expr::column_refs) {
            needed.insert(column(&of.name)?);
        }
        let table = MemTable::try_new(Arc::clone(&self.schema), vec![vec![]]).map_err(from_datafusion)?;
        let name = TableReference::full(self.dataset.domain(), self.dataset.dataset(), self.table.as_str());
        let source = provider_as_source(Arc::new(table));
        let plan = || {
            let mut plan = LogicalPlanBuilder::scan(name, source, Some(needed.into_iter().collect()))?;
            if let Some(condition) = condition {
                plan = plan.filter(condition)?;
            }
            plan.project(self.columns.iter().map(ident))?.build()
        };
        codec::encode(&plan().map_err(from_datafusion)?, state)
    }
}
