//! Conditions that compute something, in a form that DataFusion's filter draws no conclusions from.
//!
//! A filter looks for columns that have one value above it, by calculating with bounds. To it, `x / 10 = 1` says that
//! `x` is 10, and `CAST(x AS DATE) = DATE '2024-01-01'` that `x` is that day's midnight: it takes the inverse of a
//! division or a cast that rounds for exact. Such a column is dropped from `ORDER BY` and from groups, and rows come in
//! the wrong order. The same bounds can become wider than they were, which is an internal error. `(x / 10 = 1) IS TRUE`
//! keeps the same rows, and the filter does not look into it. Comparisons of columns and constants stay as they are.
//!
//! The change comes last, right before operators are made: rules for logical plans and scans see the plain conditions.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan};

/// `plan`, whose filters conclude nothing from what their conditions compute.
///
/// # Errors
/// None that the plan does not have already.
pub fn opaque_conditions(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_down_with_subqueries(|node| match node {
        LogicalPlan::Filter(mut filter) => {
            let parts = split_conjunction(&filter.predicate);
            if !parts.iter().any(|part| computes(part)) {
                return Ok(Transformed::no(LogicalPlan::Filter(filter)));
            }
            let opaque = |part: &Expr| if computes(part) { part.clone().is_true() } else { part.clone() };
            if let Some(predicate) = conjunction(parts.into_iter().map(opaque)) {
                filter.predicate = predicate;
            }
            Ok(Transformed::yes(LogicalPlan::Filter(filter)))
        }
        other => Ok(Transformed::no(other)),
    })
    .data()
}

/// Whether a condition has arithmetic or a cast, and is not opaque already.
fn computes(condition: &Expr) -> bool {
    let calculation = |e: &Expr| match e {
        Expr::Cast(_) | Expr::Negative(_) => true,
        Expr::BinaryExpr(BinaryExpr { op, .. }) => op.is_numerical_operators(),
        _ => false,
    };
    !matches!(condition, Expr::IsTrue(_)) && condition.exists(|e| Ok(calculation(e))).unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn conditions(condition: &str) -> String {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT value AS x, value AS y FROM generate_series(1, 30)").await.unwrap();
        let plan = context.sql(&format!("SELECT x FROM t WHERE {condition}")).await.unwrap().into_optimized_plan().unwrap();
        let shown = opaque_conditions(plan).unwrap().display_indent().to_string();
        shown.lines().find_map(|line| line.trim().strip_prefix("Filter: ")).unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn computed_parts_alone_become_opaque() {
        assert_eq!(conditions("x / 10 = 1 AND y = 3").await, "t.x / Int64(10) = Int64(1) IS TRUE AND t.y = Int64(3)");
        assert_eq!(conditions("CAST(x AS DOUBLE) = 3.5 OR y = 3").await, "CAST(t.x AS Float64) = Float64(3.5) OR t.y = Int64(3) IS TRUE");
        assert_eq!(conditions("x > 1 AND y = x").await, "t.x > Int64(1) AND t.y = t.x");
    }

    /// DataFusion's own plan has no sort: its filter takes `x` for 10.
    #[tokio::test]
    async fn rows_of_a_rounded_quotient_are_sorted() {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT (value * 7) % 30 AS x FROM generate_series(1, 30)").await.unwrap();
        let plan = context.sql("SELECT x FROM t WHERE x / 10 = 1 ORDER BY x DESC").await.unwrap().into_optimized_plan().unwrap();
        let state = context.state();
        let physical = state.query_planner().create_physical_plan(&opaque_conditions(plan).unwrap(), &state).await.unwrap();
        let rows = datafusion::physical_plan::collect(physical, context.task_ctx()).await.unwrap();
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
        let got: Vec<&str> = text.lines().skip(3).filter(|l| l.starts_with('|')).map(|l| l.trim_matches(['|', ' '])).collect();
        assert_eq!(got, ["19", "18", "17", "16", "15", "14", "13", "12", "11", "10"], "{text}");
    }
}
