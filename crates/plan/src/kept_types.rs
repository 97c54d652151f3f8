//! Aggregates next to one of distinct values keep their types.
//!
//! DataFusion writes `sum(x), sum(DISTINCT x)` as sums over sums by `x`. A sum of decimals has ten digits more than its
//! argument, so a sum of sums has twenty more. The operators above know nothing of it: comparisons of the two are
//! errors, and results have another type than the plan says. The rule is left out where it changes a type. It is left
//! out as well where a column is called like those that it makes, such as `alias1`.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::single_distinct_to_groupby::SingleDistinctToGroupBy;

use crate::wrapped_rules::{Rule, wrapped};

/// `rules`, the one about distinct values with this exception.
#[must_use]
pub fn kept_types(rules: Vec<Rule>) -> Vec<Rule> {
    wrapped(rules, &SingleDistinctToGroupBy::new(), rewrite)
}

fn rewrite(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    if has_its_names(&plan) {
        return Ok(Transformed::no(plan));
    }
    let before = plan.clone();
    let done = rule.rewrite(plan, config)?;
    let (old, new) = (before.schema().fields(), done.data.schema().fields());
    let same = old.len() == new.len() && old.iter().zip(new).all(|(old, new)| old.data_type() == new.data_type());
    Ok(if same { done } else { Transformed::no(before) })
}

/// Whether a column has a name that the rule makes, by which it would find the wrong one.
fn has_its_names(plan: &LogicalPlan) -> bool {
    let own = |name: &str| name.starts_with("alias") || name.starts_with("group_alias_");
    let LogicalPlan::Aggregate(aggregate) = plan else { return false };
    aggregate.input.schema().fields().iter().chain(aggregate.schema.fields()).any(|field| own(field.name()))
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::optimizer::Optimizer;
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn sums_of_decimals_keep_their_type() {
        let rules = kept_types(Optimizer::default().rules);
        let context = SessionContext::new_with_state(SessionStateBuilder::new().with_default_features().with_optimizer_rules(rules).build());
        context.sql("CREATE TABLE t AS SELECT CAST(value AS DECIMAL(12, 2)) AS d, value AS x FROM generate_series(1, 3)").await.unwrap();
        let optimised = async |sql: &str| context.sql(sql).await.unwrap().into_optimized_plan().unwrap();
        let sums = optimised("SELECT sum(d) AS a, sum(DISTINCT d) AS b FROM t").await;
        let types: Vec<String> = sums.schema().fields().iter().map(|field| field.data_type().to_string()).collect();
        assert_eq!(types, ["Decimal128(22, 2)", "Decimal128(22, 2)"], "{}", sums.display_indent());
        // The rule works where types stay.
        let counts = optimised("SELECT sum(x), count(DISTINCT d) FROM t").await.display_indent().to_string();
        assert_eq!(counts.matches("Aggregate:").count(), 2, "{counts}");
    }
}
