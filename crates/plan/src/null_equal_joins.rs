//! Joins that take NULLs for equal stay apart from those that do not.
//!
//! DataFusion takes the inner joins next to one another apart, with the filter above them, and joins the inputs again
//! by all keys. What the topmost join says of NULLs then goes for all keys: after `a JOIN b ON a.k = b.k JOIN c ON c.k
//! IS NOT DISTINCT FROM b.k`, the first join takes NULLs for equal as well. While that rule runs, joins that take NULLs
//! for equal, and inner joins below them, are hidden from those around them. Another rule makes keys of conditions, and
//! adds them to keys that take NULLs for equal. It leaves such joins out.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::logical_expr::{Join, Limit, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;

use crate::wrapped_rules::{Rule, wrapped};

/// `rules`, the one that takes joins apart with this exception.
#[must_use]
pub fn null_equal_joins(rules: Vec<Rule>) -> Vec<Rule> {
    let rules = wrapped(rules, &EliminateCrossJoin::new(), apart_from_others);
    wrapped(rules, &ExtractEquijoinPredicate::new(), without_new_keys)
}

/// The rule that takes joins apart, while those that take NULLs for equal are hidden.
fn apart_from_others(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let mut any = false;
    plan.apply_with_subqueries(|node| {
        any |= is_null_equal(node);
        Ok(if any { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !any {
        return rule.rewrite(plan, config);
    }
    let hidden = plan.transform_up_with_subqueries(hide)?;
    rule.rewrite(hidden.data, config)?.transform_data(|plan| plan.transform_up_with_subqueries(show))
}

/// The rule that makes keys of conditions, not for joins whose keys take NULLs for equal.
fn without_new_keys(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let has_keys = matches!(&plan, LogicalPlan::Join(join) if join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty());
    if has_keys { Ok(Transformed::no(plan)) } else { rule.rewrite(plan, config) }
}

fn is_null_equal(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Join(join) if join.join_type == JoinType::Inner && join.null_equality == NullEquality::NullEqualsNull)
}

fn is_inner(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Join(join) if join.join_type == JoinType::Inner)
}

/// A limit without a number: no rule but this one sees it.
fn apart(plan: Arc<LogicalPlan>) -> LogicalPlan {
    LogicalPlan::Limit(Limit { skip: None, fetch: None, input: plan })
}

fn hide(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !is_null_equal(&node) {
        return Ok(Transformed::no(node));
    }
    let LogicalPlan::Join(join) = node else { return Ok(Transformed::no(node)) };
    let side = |side: Arc<LogicalPlan>| if is_inner(&side) { Arc::new(apart(side)) } else { side };
    let join = Join { left: side(join.left), right: side(join.right), ..join };
    Ok(Transformed::yes(apart(Arc::new(LogicalPlan::Join(join)))))
}

fn show(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Limit(Limit { skip: None, fetch: None, input }) => Ok(Transformed::yes(Arc::unwrap_or_clone(input))),
        other => Ok(Transformed::no(other)),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::optimizer::Optimizer;
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn joins_keep_what_they_say_of_nulls() {
        let rules = null_equal_joins(Optimizer::default().rules);
        let context = SessionContext::new_with_state(SessionStateBuilder::new().with_default_features().with_optimizer_rules(rules).build());
        for name in ["a", "b", "c"] {
            context.sql(&format!("CREATE TABLE {name} AS SELECT * FROM (VALUES (1, 1), (NULL, 2), (3, NULL)) AS v (k, x)")).await.unwrap();
        }
        for (from, rows) in [
            ("a JOIN b ON a.k = b.k JOIN c ON c.k IS NOT DISTINCT FROM b.k", 2),
            ("a JOIN b ON a.k IS NOT DISTINCT FROM b.k JOIN c ON c.k = b.k", 2),
            ("a JOIN b ON a.k IS NOT DISTINCT FROM b.k JOIN c ON c.k IS NOT DISTINCT FROM b.k", 3),
            ("a JOIN b ON a.k IS NOT DISTINCT FROM b.k WHERE a.x = b.x", 2),
            ("a, b, c WHERE a.k = b.k AND (b.k IS NOT DISTINCT FROM c.k) AND a.x = c.x", 1),
        ] {
            let given = context.sql(&format!("SELECT count(*) AS n FROM {from}")).await.unwrap().collect().await.unwrap();
            let text = pretty_format_batches(&given).unwrap().to_string();
            assert!(text.contains(&format!("| {rows} ")), "{from}: {text}");
        }
    }
}
