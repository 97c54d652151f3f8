//! Conditions that compare a column with a constant, in the one form that DataFusion's filter reads rightly.
//!
//! A filter that moves below a projection or into a union meets the constants there: `k > c` becomes `k > NULL`. The
//! rule that moves filters keeps the strictest of several bounds of a column. It takes NULL for the least value, and
//! reads no bound rightly whose constant stands on the left. It does so before constants are computed and turned around
//! again. So this rule does both first: a condition on NULL is false, and the constant stands on the right.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator, lit};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::push_down_filter::PushDownFilter;

use crate::wrapped_rules::{Rule, wrapped};

/// `rules`, the one that moves filters down after this one.
#[must_use]
pub(crate) fn literal_conditions(rules: Vec<Rule>) -> Vec<Rule> {
    wrapped(rules, &PushDownFilter::new(), rewrite)
}

fn rewrite(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let plain = plain(plan)?;
    let moved = rule.rewrite(plain.data, config)?;
    Ok(Transformed::new_transformed(moved.data, moved.transformed || plain.transformed))
}

/// A filter, and those right below it, which the rule merges with it.
fn plain(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Filter(mut filter) = plan else { return Ok(Transformed::no(plan)) };
    let mut changed = false;
    if is_misread_somewhere(&filter.predicate) {
        let parts = split_conjunction_owned(filter.predicate).into_iter().map(|part| if is_misread(&part) { read(part) } else { part });
        filter.predicate = conjunction(parts).unwrap_or_else(|| lit(true));
        changed = true;
    }
    if matches!(filter.input.as_ref(), LogicalPlan::Filter(_)) {
        let below = plain(Arc::unwrap_or_clone(filter.input))?;
        filter.input = Arc::new(below.data);
        changed |= below.transformed;
    }
    Ok(Transformed::new_transformed(LogicalPlan::Filter(filter), changed))
}

fn is_misread_somewhere(predicate: &Expr) -> bool {
    match predicate {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => is_misread_somewhere(left) || is_misread_somewhere(right),
        other => is_misread(other),
    }
}

fn is_misread(part: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = part else { return false };
    compares(*op) && (is_null(left) || is_null(right) || (left.as_literal().is_some() && right.as_literal().is_none()))
}

fn read(part: Expr) -> Expr {
    match part {
        Expr::BinaryExpr(BinaryExpr { left, right, .. }) if is_null(&left) || is_null(&right) => lit(false),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op.swap() {
            Some(op) => Expr::BinaryExpr(BinaryExpr { left: right, op, right: left }),
            None => Expr::BinaryExpr(BinaryExpr { left, op, right }),
        },
        other => other,
    }
}

fn compares(op: Operator) -> bool {
    matches!(op, Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq)
}

fn is_null(e: &Expr) -> bool {
    e.as_literal().is_some_and(|value| value.is_null())
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::optimizer::Optimizer;
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn constants_that_filters_meet_keep_their_meaning() {
        let rules = literal_conditions(Optimizer::default().rules);
        let context = SessionContext::new_with_state(SessionStateBuilder::new().with_default_features().with_optimizer_rules(rules).build());
        context.sql("CREATE TABLE t AS SELECT value AS k FROM generate_series(1, 3)").await.unwrap();
        for (query, rows) in [
            ("SELECT k FROM (SELECT CAST(NULL AS BIGINT) AS c, k FROM t) AS x WHERE k > c AND k > 1", vec![]),
            ("SELECT k FROM (SELECT CAST(NULL AS BIGINT) AS c, k FROM t) AS x WHERE k < 3 AND c > k", vec![]),
            ("SELECT k FROM (SELECT * FROM (SELECT nullif(1, 1) AS c, k FROM t) AS x WHERE k >= c) AS y WHERE k >= 1", vec![]),
            ("SELECT k FROM (SELECT k, 1 AS c FROM t UNION ALL SELECT k + 10, NULL FROM t) AS x WHERE k > c AND k > 0", vec!["2", "3"]),
            ("SELECT k FROM (SELECT CAST(1 AS BIGINT) AS a, k FROM t) AS x WHERE a = k AND k = 1", vec!["1"]),
            ("SELECT k FROM (SELECT CAST(1 AS BIGINT) AS a, k FROM t) AS x WHERE k >= 1 AND a < k", vec!["2", "3"]),
            ("SELECT k FROM (SELECT CAST(3 AS BIGINT) AS a, k FROM t) AS x WHERE k <= 3 AND a > k", vec!["1", "2"]),
        ] {
            let found = context.sql(query).await.unwrap().collect().await.unwrap();
            let text = pretty_format_batches(&found).unwrap().to_string();
            let mut got: Vec<&str> = text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.trim_matches(['|', ' '])).collect();
            got.sort_unstable();
            assert_eq!(got, rows, "{query}\n{text}");
        }
    }
}
