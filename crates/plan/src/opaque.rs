//! What is computed, in a form that DataFusion's operators draw no conclusions from.
//!
//! - **Conditions.** A filter looks for columns that have one value above it, by calculating with bounds. To it,
//!   `x / 10 = 1` says that `x` is 10, and `CAST(x AS DATE) = DATE '2024-01-01'` that `x` is that day's midnight: it
//!   takes the inverse of a division or a cast that rounds for exact. Such a column is dropped from `ORDER BY` and from
//!   groups, and rows come in the wrong order. The same bounds can become wider than they were, which is an internal
//!   error. `(x / 10 = 1) IS TRUE` keeps the same rows, and the filter does not look into it. Comparisons of columns
//!   and constants stay as they are.
//! - **Orders.** Over rows that are sorted by `x`, an operator takes `CAST(x AS TIME)`, `-x`, `x < y` and others for
//!   sorted, and leaves a sort out. That is wrong at midnight, at the smallest number, and where NULLs are. What is
//!   computed above a sort or a window is `__opaque(...)`: the identity, whose order it does not know.
//!
//! The changes come last, right before operators are made: rules for logical plans and scans see the plain form.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, SortExpr};

use crate::float_keys::FLOAT_KEY;
use crate::opaque_values::{self, OPAQUE};
use crate::rewriting::map_whole;

/// `plan`, whose operators conclude nothing from what it computes.
///
/// # Errors
/// None that the plan does not have already.
pub fn opaque(plan: LogicalPlan) -> Result<LogicalPlan> {
    orders(conditions(plan)?)
}

/// `plan` with nothing computed above a sort or a window that could be taken for sorted.
fn orders(plan: LogicalPlan) -> Result<LogicalPlan> {
    let sorts = |node: &LogicalPlan| matches!(node, LogicalPlan::Sort(_) | LogicalPlan::Window(_));
    plan.transform_up_with_subqueries(|node| {
        let computes = match &node {
            LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) | LogicalPlan::Sort(_) | LogicalPlan::Window(_) => {
                // A window sorts its own input, for several windows.
                let within = matches!(node, LogicalPlan::Window(_)) || node.inputs().into_iter().any(|input| input.exists(|n| Ok(sorts(n))).unwrap_or(true));
                within && node.expressions().iter().any(|e| !is_plain(e))
            }
            _ => false,
        };
        if computes { map_whole(node, unordered) } else { Ok(Transformed::no(node)) }
    })
    .data()
}

/// `e`, or the keys in it, as values in no order.
fn unordered(e: Expr) -> Result<Transformed<Expr>> {
    Ok(match e {
        Expr::Alias(mut alias) => unordered(std::mem::take(alias.expr.as_mut()))?.update_data(|e| {
            *alias.expr = e;
            Expr::Alias(alias)
        }),
        Expr::AggregateFunction(mut call) => {
            // The key of DISTINCT, and of WITHIN GROUP, is the argument.
            if call.params.distinct || call.func.supports_within_group_clause() {
                return Ok(Transformed::no(Expr::AggregateFunction(call)));
            }
            let changed = keys(&mut call.params.order_by)?;
            Transformed::new(Expr::AggregateFunction(call), changed, datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }
        Expr::WindowFunction(mut call) => {
            let mut changed = keys(&mut call.params.order_by)?;
            for key in &mut call.params.partition_by {
                let done = unordered(std::mem::take(key))?;
                changed |= done.transformed;
                *key = done.data;
            }
            Transformed::new(Expr::WindowFunction(call), changed, datafusion::common::tree_node::TreeNodeRecursion::Continue)
        }
        e if is_plain(&e) => Transformed::no(e),
        e => Transformed::yes(opaque_values::opaque(e)),
    })
}

fn keys(keys: &mut [SortExpr]) -> Result<bool> {
    let mut changed = false;
    for key in keys {
        let done = unordered(std::mem::take(&mut key.expr))?;
        changed |= done.transformed;
        key.expr = done.data;
    }
    Ok(changed)
}

/// Whether `e` has an order that is the column's own, or none.
fn is_plain(e: &Expr) -> bool {
    match e {
        Expr::Column(_) | Expr::Literal(..) | Expr::GroupingSet(_) => true,
        Expr::Alias(alias) => is_plain(&alias.expr),
        Expr::ScalarFunction(ScalarFunction { func, args }) => func.name() == OPAQUE || func.name() == FLOAT_KEY && args.iter().all(is_plain),
        _ => false,
    }
}

/// `plan`, whose filters conclude nothing from what their conditions compute.
fn conditions(plan: LogicalPlan) -> Result<LogicalPlan> {
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

    async fn shown(condition: &str) -> String {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT value AS x, value AS y FROM generate_series(1, 30)").await.unwrap();
        let plan = context.sql(&format!("SELECT x FROM t WHERE {condition}")).await.unwrap().into_optimized_plan().unwrap();
        let shown = conditions(plan).unwrap().display_indent().to_string();
        shown.lines().find_map(|line| line.trim().strip_prefix("Filter: ")).unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn computed_parts_alone_become_opaque() {
        assert_eq!(shown("x / 10 = 1 AND y = 3").await, "t.x / Int64(10) = Int64(1) IS TRUE AND t.y = Int64(3)");
        assert_eq!(shown("CAST(x AS DOUBLE) = 3.5 OR y = 3").await, "CAST(t.x AS Float64) = Float64(3.5) OR t.y = Int64(3) IS TRUE");
        assert_eq!(shown("x > 1 AND y = x").await, "t.x > Int64(1) AND t.y = t.x");
    }

    /// DataFusion's own plan has no sort: its filter takes `x` for 10.
    #[tokio::test]
    async fn rows_of_a_rounded_quotient_are_sorted() {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT (value * 7) % 30 AS x FROM generate_series(1, 30)").await.unwrap();
        let plan = context.sql("SELECT x FROM t WHERE x / 10 = 1 ORDER BY x DESC").await.unwrap().into_optimized_plan().unwrap();
        let state = context.state();
        let physical = state.query_planner().create_physical_plan(&opaque(plan).unwrap(), &state).await.unwrap();
        let rows = datafusion::physical_plan::collect(physical, context.task_ctx()).await.unwrap();
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
        let got: Vec<&str> = text.lines().skip(3).filter(|l| l.starts_with('|')).map(|l| l.trim_matches(['|', ' '])).collect();
        assert_eq!(got, ["19", "18", "17", "16", "15", "14", "13", "12", "11", "10"], "{text}");
    }

    /// DataFusion takes minus for the reverse of any order, and NULLs stay where they are.
    #[tokio::test]
    async fn computed_results_above_a_window_are_sorted() {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT value AS x, CASE WHEN value % 3 = 0 THEN NULL ELSE value END AS y FROM generate_series(1, 9)").await.unwrap();
        let query = "SELECT z FROM (SELECT y < rn AS z FROM (SELECT y, row_number() OVER (ORDER BY y DESC NULLS FIRST) AS rn FROM t)) ORDER BY z NULLS LAST";
        let plan = context.sql(query).await.unwrap().into_optimized_plan().unwrap();
        let done = opaque(plan).unwrap();
        assert!(done.display_indent().to_string().contains(OPAQUE), "{}", done.display_indent());
        let state = context.state();
        let physical = state.query_planner().create_physical_plan(&done, &state).await.unwrap();
        let rows = datafusion::physical_plan::collect(physical, context.task_ctx()).await.unwrap();
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
        let got: Vec<&str> = text.lines().skip(3).filter(|l| l.starts_with('|')).map(|l| l.trim_matches(['|', ' '])).collect();
        assert_eq!(got, ["false", "false", "true", "true", "true", "true", "", "", ""], "{text}");
    }

    #[tokio::test]
    async fn stored_rows_are_computed_from_as_they_are() {
        let context = SessionContext::new();
        context.sql("CREATE TABLE t AS SELECT value AS x FROM generate_series(1, 9)").await.unwrap();
        for query in ["SELECT -x AS z FROM t", "SELECT x % 2, count(*) FROM t GROUP BY x % 2", "SELECT x FROM t ORDER BY x"] {
            let done = opaque(context.sql(query).await.unwrap().into_optimized_plan().unwrap()).unwrap();
            assert!(!done.display_indent().to_string().contains(OPAQUE), "{}", done.display_indent());
        }
    }
}
