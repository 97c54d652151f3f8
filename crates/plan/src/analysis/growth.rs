//! How large conditions become once they are written out, and how long lists are.
//!
//! DataFusion moves a condition below the projections that compute its columns, and puts each column's expression in
//! the column's place. A query of a few lines, with nine projections below one another that each name the column of the
//! one before eight times, then has a condition over 8^9 columns. No planner ends with it.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::{Expr, LogicalPlan};
use skytether_common::Error;

use crate::codec::MAX_WIDTH;
use crate::error::to_datafusion;

/// By how many terms a condition may grow. The planner ends with as many within seconds.
const MAX_GROWTH: u64 = 1 << 17;

/// `plan` as it is.
///
/// # Errors
/// `Invalid` for a condition that grows by more than [`MAX_GROWTH`] terms, and for a list that no sub-plan carries.
pub(super) fn check(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    columns(&plan)?;
    Ok(plan)
}

/// The terms of each column of `plan`, written out down to the tables and aggregates that it comes from.
fn columns(plan: &LogicalPlan) -> Result<Vec<u64>> {
    let inputs = plan.inputs();
    let below = inputs.iter().map(|input| Ok((input.schema().as_ref(), columns(input)?))).collect::<Result<Vec<_>>>()?;
    let mut sizes = Vec::new();
    plan.apply_expressions(|e| {
        sizes.push(Size::of(e, &below)?);
        Ok(TreeNodeRecursion::Continue)
    })?;
    if matches!(plan, LogicalPlan::Filter(_) | LogicalPlan::Join(_)) && sizes.iter().any(|size| size.whole - size.own > MAX_GROWTH) {
        return Err(to_datafusion(Error::invalid(format!(
            "a condition has more than {MAX_GROWTH} terms once its columns are written out, as they are computed from one another: store the columns as a data set first"
        ))));
    }
    let schema = plan.schema();
    let width = schema.fields().len();
    Ok(match (plan, below.as_slice()) {
        (LogicalPlan::Projection(_), _) => sizes.iter().map(|size| size.whole).collect(),
        // Conditions on keys move below an aggregate; those on its values don't.
        (LogicalPlan::Aggregate(aggregate), _) => {
            let keys = sizes.iter().take(aggregate.group_expr.len()).map(|size| size.whole).max().unwrap_or(1);
            let values = aggregate.aggr_expr.len();
            (0..width).map(|at| if at + values < width { keys } else { 1 }).collect()
        }
        (LogicalPlan::Union(_), _) => (0..width).map(|at| below.iter().filter_map(|(_, sizes)| sizes.get(at)).copied().max().unwrap_or(1)).collect(),
        (_, [(_, sizes)]) if sizes.len() == width => sizes.clone(),
        _ => schema.columns().iter().map(|column| terms(column, &below)).collect(),
    })
}

/// The schemas below a node, with the terms of each of their columns.
type Below<'a> = [(&'a DFSchema, Vec<u64>)];

fn terms(column: &Column, below: &Below<'_>) -> u64 {
    let found = |(schema, sizes): &(&DFSchema, Vec<u64>)| sizes.get(schema.maybe_index_of_column(column)?).copied();
    below.iter().find_map(found).unwrap_or(1)
}

/// The terms of an expression, as it is and written out.
struct Size {
    own: u64,
    whole: u64,
}

impl Size {
    fn of(e: &Expr, below: &Below<'_>) -> Result<Self> {
        let mut size = Self { own: 0, whole: 0 };
        // A term below one that is written twice counts twice.
        e.apply_children(|child| {
            let child = Self::of(child, below)?;
            size.own = size.own.saturating_add(child.own);
            size.whole = size.whole.saturating_add(child.whole);
            Ok(TreeNodeRecursion::Continue)
        })?;
        match e {
            Expr::Column(column) => return Ok(Self { own: 1, whole: terms(column, below) }),
            Expr::InList(list) if list.list.len() > MAX_WIDTH => {
                return Err(to_datafusion(Error::invalid(format!(
                    "IN lists {} values, at most {MAX_WIDTH}: ingest them as a data set and write IN (SELECT ...)",
                    list.list.len()
                ))));
            }
            Expr::ScalarSubquery(subquery) => drop(columns(&subquery.subquery)?),
            Expr::InSubquery(within) => drop(columns(&within.subquery.subquery)?),
            Expr::Exists(exists) => drop(columns(&exists.subquery.subquery)?),
            // The simplifier writes each of these values twice.
            Expr::Between(_) => size.whole = size.whole.saturating_mul(2),
            Expr::ScalarFunction(call) if call.func.short_circuits() => size.whole = size.whole.saturating_mul(2),
            _ => {}
        }
        Ok(Self { own: size.own + 1, whole: size.whole.saturating_add(1).max(size.own + 1) })
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::error::from_datafusion;

    /// What [`check`] says of a query over a table `t` with the number `x`.
    async fn checked(query: &str) -> skytether_common::Result<()> {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT 1 AS x").await.unwrap().collect().await.unwrap();
        let plan = context.state().create_logical_plan(query).await.unwrap();
        check(plan, &ConfigOptions::default()).map(drop).map_err(from_datafusion)
    }

    /// `rest` behind common table expressions. Each computes `x` as `expression` of the one before.
    /// The last is `large`.
    fn nested(expression: &str, levels: usize, rest: &str) -> String {
        let steps: String = (1..levels).map(|level| format!("t{level} AS (SELECT {expression} AS x FROM t{}), ", level - 1)).collect();
        format!("WITH t0 AS (SELECT x FROM t), {steps}large AS (SELECT {expression} AS x FROM t{}) {rest}", levels - 1)
    }

    #[tokio::test]
    async fn a_condition_counts_its_columns_written_out() {
        for (expression, fits) in [("x + x", 14), ("concat(x, x, x, x, x, x, x, x)", 5), ("coalesce(nullif(x, x), x)", 5), ("x + 1", 15)] {
            let query = |levels: usize| nested(expression, levels, "SELECT x FROM large WHERE x > 1");
            checked(&query(fits)).await.unwrap();
            assert_eq!(checked(&query(3 * fits)).await.is_err(), expression != "x + 1", "{expression}");
        }
    }

    // docs/sql.md: terms that a condition gets by columns that are computed from one another
    #[tokio::test]
    async fn columns_that_no_condition_names_may_be_of_any_size() {
        let large = |rest: &str| nested("x + x", 60, rest);
        checked(&large("SELECT x FROM large LIMIT 1")).await.unwrap();
        checked(&large("SELECT x FROM (SELECT max(x) AS x FROM large) m WHERE x > 1")).await.unwrap();
        for query in [
            "SELECT x FROM (SELECT x, count(*) AS n FROM large GROUP BY x) m WHERE x > 1",
            "SELECT a.x FROM large JOIN t a ON a.x + large.x > 1",
            "SELECT 1 FROM (SELECT x FROM large UNION ALL SELECT x FROM t) u WHERE x > 1",
            "SELECT 1 FROM t WHERE x IN (SELECT x FROM large WHERE x = 2)",
        ] {
            let error = checked(&large(query)).await.unwrap_err();
            assert!(error.message().contains("131072 terms"), "{error}");
        }
    }

    // docs/sql.md: values of one `IN`
    #[tokio::test]
    async fn a_list_is_as_long_as_sub_plans_carry() {
        let listed = |values: usize| format!("SELECT 1 FROM t WHERE x IN ({})", (0..values).map(|n| n.to_string()).collect::<Vec<_>>().join(","));
        checked(&listed(MAX_WIDTH)).await.unwrap();
        let error = checked(&listed(MAX_WIDTH + 1)).await.unwrap_err();
        assert!(error.message().contains("IN lists 65537 values, at most 65536"), "{error}");
    }
}
