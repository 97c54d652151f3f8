//! A sub-plan in two parts: a drive may leave the upper one to its parent.
//!
//! The lower part gives rows, each from rows of one slice alone: scan, filters, projections, joins with broadcast
//! tables. The upper part makes states of groups of them. A drive at `full` runs both; at `filter` it runs the lower
//! part, and its parent runs the upper one. One merge takes states and rows of any parts of a table, so any node may
//! process any slice.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::{Aggregate, Expr, Extension, LogicalPlan, Projection, UserDefinedLogicalNodeCore};

/// Both parts.
#[derive(Debug, Clone)]
pub struct SplitSubPlan {
    /// Rows out of slices.
    pub lower: LogicalPlan,
    /// States of those rows, which it reads as [`Delivered`].
    pub upper: LogicalPlan,
}

/// The rows of the lower part, in the upper one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delivered {
    schema: DFSchemaRef,
}

impl Delivered {
    /// Rows of `schema`.
    pub(crate) fn of(schema: DFSchemaRef) -> Self {
        Self { schema }
    }
}

impl PartialOrd for Delivered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        (self == other).then_some(std::cmp::Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for Delivered {
    fn name(&self) -> &str {
        "Delivered"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        Vec::new()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivered")
    }

    fn with_exprs_and_inputs(&self, exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<Self> {
        if exprs.is_empty() && inputs.is_empty() { Ok(self.clone()) } else { plan_err!("delivered rows have no inputs and no expressions") }
    }
}

/// Whether `plan` over any parts of its table gives parts of its result over the whole: rows, or states of groups.
/// Sorts, limits and windows do not.
#[must_use]
pub fn divides(plan: &LogicalPlan) -> bool {
    let mut divides = true;
    let visited = plan.apply(|node| {
        divides &= match node {
            LogicalPlan::TableScan(scan) => scan.fetch.is_none(),
            LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Join(_) | LogicalPlan::Aggregate(_) => true,
            _ => false,
        };
        Ok(if divides { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    });
    visited.is_ok() && divides
}

/// Whether `plan` makes states of groups.
#[must_use]
pub fn aggregates(plan: &LogicalPlan) -> bool {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Aggregate(_)))).unwrap_or(true)
}

/// The two parts of `plan`; `None` where it has no upper one.
///
/// # Errors
/// Internal only: where the parts of a valid plan are none.
pub fn split(plan: &LogicalPlan) -> Result<Option<SplitSubPlan>> {
    let Some(lowest) = lowest(plan) else { return Ok(None) };
    let below = lowest.input.as_ref();
    // Columns that only the filters of the lower part name stay there.
    let mut named: Vec<Column> = Vec::new();
    for expr in lowest.group_expr.iter().chain(&lowest.aggr_expr) {
        expr.apply(|expr| {
            if let Expr::Column(column) = expr
                && !named.contains(column)
            {
                named.push(column.clone());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    let all = below.schema().columns();
    let mut kept: Vec<Column> = all.iter().filter(|column| named.contains(column)).cloned().collect();
    if kept.is_empty() {
        // Rows need a column to travel.
        kept.extend(all.first().cloned());
    }
    let lower = if kept.len() == all.len() {
        below.clone()
    } else {
        LogicalPlan::Projection(Projection::try_new(kept.into_iter().map(Expr::Column).collect(), Arc::clone(&lowest.input))?)
    };
    let delivered = LogicalPlan::Extension(Extension { node: Arc::new(Delivered::of(Arc::clone(lower.schema()))) });
    let states = LogicalPlan::Aggregate(Aggregate::try_new(Arc::new(delivered), lowest.group_expr.clone(), lowest.aggr_expr.clone())?);
    let mut placed = false;
    let upper = plan.clone().transform_down(|node| match &node {
        LogicalPlan::Aggregate(aggregate) if !placed && Arc::ptr_eq(&aggregate.input, &lowest.input) => {
            placed = true;
            Ok(Transformed::new(states.clone(), true, TreeNodeRecursion::Jump))
        }
        _ => Ok(Transformed::no(node)),
    })?;
    if placed { Ok(Some(SplitSubPlan { lower, upper: upper.data })) } else { plan_err!("an aggregate was lost") }
}

/// The lowest aggregate above all joins.
fn lowest(plan: &LogicalPlan) -> Option<&Aggregate> {
    let (mut at, mut found) = (plan, None);
    loop {
        if let LogicalPlan::Aggregate(aggregate) = at {
            found = Some(aggregate);
        }
        at = match at.inputs().as_slice() {
            [input] => input,
            _ => return found,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::datatypes::{DataType, Field, Schema};
    use datafusion::datasource::MemTable;
    use datafusion::prelude::SessionContext;

    async fn plan(sql: &str) -> LogicalPlan {
        let context = SessionContext::new();
        let fields = ["a", "b", "c", "d"].map(|name| Field::new(name, DataType::Int64, true));
        for table in ["t", "u"] {
            context.register_table(table, Arc::new(MemTable::try_new(Arc::new(Schema::new(fields.to_vec())), vec![vec![]]).unwrap())).unwrap();
        }
        let state = context.state();
        state.create_logical_plan(sql).await.unwrap()
    }

    #[tokio::test]
    async fn grouping_is_split_above_filtering() {
        let whole = plan("SELECT a, sum(b + 1) AS s FROM t WHERE c > 3 GROUP BY a").await;
        let SplitSubPlan { lower, upper } = split(&whole).unwrap().unwrap();
        assert_eq!(lower.display_indent().to_string(), "Projection: t.a, t.b\n  Filter: t.c > Int64(3)\n    TableScan: t");
        assert_eq!(
            upper.display_indent().to_string(),
            "Projection: t.a, sum(t.b + Int64(1)) AS s\n  Aggregate: groupBy=[[t.a]], aggr=[[sum(t.b + Int64(1))]]\n    Delivered"
        );
        assert_eq!(whole.schema(), upper.schema());
    }

    #[tokio::test]
    async fn rows_without_wanted_columns_travel_with_one() {
        let SplitSubPlan { lower, .. } = split(&plan("SELECT count(*) FROM t WHERE c > 3").await).unwrap().unwrap();
        assert_eq!(lower.schema().fields().len(), 1);
    }

    #[tokio::test]
    async fn joins_belong_to_the_rows() {
        let SplitSubPlan { lower, .. } = split(&plan("SELECT t.a, max(u.b) FROM t JOIN u ON t.c = u.c GROUP BY t.a").await).unwrap().unwrap();
        assert!(lower.display_indent().to_string().contains("Inner Join"), "{}", lower.display_indent());
        assert!(split(&plan("SELECT a + 1 FROM t WHERE b = 2").await).unwrap().is_none());
    }

    #[tokio::test]
    async fn orders_and_limits_are_of_the_whole() {
        for (sql, yes) in [
            ("SELECT a, sum(b) FROM t WHERE c > 3 GROUP BY a", true),
            ("SELECT a + b FROM t WHERE c > 3", true),
            ("SELECT t.a FROM t JOIN u ON t.a = u.a", true),
            ("SELECT a FROM t ORDER BY b", false),
            ("SELECT a FROM t LIMIT 3", false),
            ("SELECT row_number() OVER (ORDER BY a) FROM t", false),
            ("SELECT DISTINCT a FROM t", false),
            ("SELECT a FROM t UNION ALL SELECT b FROM t", false),
        ] {
            assert_eq!(divides(&plan(sql).await), yes, "{sql}");
        }
    }
}
