//! Conditions without columns stay above aggregates.
//!
//! DataFusion moves a condition below an aggregate if all of its columns are grouped by. A condition without columns
//! meets that: `SELECT * FROM (SELECT 1 AS part, count(*) AS n FROM t) AS u WHERE part = 2` becomes a count of no rows,
//! which is a row. An aggregate without groups, or with the empty grouping set, has a row of nothing.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Aggregate, Expr, Filter, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::push_down_filter::PushDownFilter;

use crate::literal_conditions::literal_conditions;
use crate::wrapped_rules::{Rule, wrapped};

/// `rules`, the one that moves filters down with this exception, after [`literal_conditions`]. These come first: they
/// make conditions without columns, as `NULL = CASE n ...` is.
#[must_use]
pub fn filters_above_aggregates(rules: Vec<Rule>) -> Vec<Rule> {
    literal_conditions(wrapped(rules, &PushDownFilter::new(), rewrite))
}

fn rewrite(rule: &Rule, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let Some((aggregate, predicates)) = over_aggregate(&plan) else { return rule.rewrite(plan, config) };
    let (stay, others): (Vec<Expr>, Vec<Expr>) = predicates.into_iter().partition(|e| !e.any_column_refs());
    let Some(stay) = conjunction(stay) else { return rule.rewrite(plan, config) };
    let Some(others) = conjunction(others) else { return Ok(Transformed::no(plan)) };
    let filter = LogicalPlan::Filter(Filter::try_new(others, aggregate)?);
    let below = rule.rewrite(filter, config)?;
    Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(stay, Arc::new(below.data))?)))
}

/// The aggregate below the filters, `plan` and those below it, if it has a row of nothing; and their conditions.
fn over_aggregate(plan: &LogicalPlan) -> Option<(Arc<LogicalPlan>, Vec<Expr>)> {
    let mut predicates = Vec::new();
    let mut below = plan;
    loop {
        let LogicalPlan::Filter(filter) = below else { return None };
        predicates.extend(split_conjunction_owned(filter.predicate.clone()));
        match filter.input.as_ref() {
            LogicalPlan::Aggregate(aggregate) => return has_row_of_nothing(aggregate).then(|| (Arc::clone(&filter.input), predicates)),
            other => below = other,
        }
    }
}

fn has_row_of_nothing(aggregate: &Aggregate) -> bool {
    aggregate.group_expr.is_empty() || aggregate.group_expr.iter().any(|e| matches!(e, Expr::GroupingSet(_)))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::optimizer::Optimizer;
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn condition_on_a_constant_drops_the_row_of_an_aggregate() {
        let rules = filters_above_aggregates(Optimizer::default().rules);
        let state = SessionStateBuilder::new().with_default_features().with_optimizer_rules(rules).build();
        let context = SessionContext::new_with_state(state);
        context.sql("CREATE TABLE t AS SELECT value AS u, value % 2 AS k FROM generate_series(1, 3)").await.unwrap();
        let counts = "SELECT 1 AS part, count(*) AS n FROM t UNION ALL SELECT 2 AS part, count(*) AS n FROM t WHERE u > 1";
        for (query, rows) in [
            (format!("SELECT n FROM ({counts}) AS a WHERE part = 2"), vec!["2"]),
            (format!("SELECT n FROM ({counts}) AS a WHERE part = 2 AND n > 2"), vec![]),
            (format!("SELECT n FROM ({counts}) AS a WHERE part IS NULL"), vec![]),
            ("SELECT count(*) AS n FROM t HAVING (SELECT 1) = 2".to_owned(), vec![]),
            ("SELECT n FROM (SELECT count(*) AS n FROM t) AS a WHERE (SELECT max(u) FROM t) > 2".to_owned(), vec!["3"]),
            ("SELECT count(*) AS n FROM t GROUP BY ROLLUP (k) HAVING (SELECT 1) = 2".to_owned(), vec![]),
            ("SELECT a.n FROM (SELECT count(*) AS n FROM t) AS a JOIN t AS b ON CAST(NULL AS BOOLEAN)".to_owned(), vec![]),
            (
                "SELECT b.n FROM (SELECT * FROM t WHERE u < 0) AS a RIGHT JOIN (SELECT count(*) AS n FROM t) AS b ON CAST(NULL AS BOOLEAN) WHERE a.u > 3"
                    .to_owned(),
                vec![],
            ),
            // Without columns only once the constant has been put in.
            ("SELECT n FROM (SELECT 5 AS c, min(u) AS n FROM t) AS a WHERE nullif(c, c) = CASE n WHEN 8 THEN 6 ELSE nullif(c, c) END".to_owned(), vec![]),
            ("SELECT 1 AS c FROM (SELECT NULL AS c, min(u) AS n FROM t) AS a WHERE c < n + 1".to_owned(), vec![]),
            // Groups have rows of something only.
            ("SELECT k FROM (SELECT 1 AS part, k, count(*) AS n FROM t GROUP BY k) AS a WHERE part = 1 AND k = 0".to_owned(), vec!["0"]),
        ] {
            let found = context.sql(&query).await.unwrap().collect().await.unwrap();
            let text = pretty_format_batches(&found).unwrap().to_string();
            let got: Vec<&str> = text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.trim_matches(['|', ' '])).collect();
            assert_eq!(got, rows, "{query}\n{text}");
        }
    }
}
