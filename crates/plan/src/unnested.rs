//! What follows from keys does not follow any more once lists are unnested.
//!
//! DataFusion knows of each relation which columns determine which: after `GROUP BY g` the column `g` determines all others, so that `ORDER BY g, x` sorts by `g` alone. It hands that on through the unnesting of lists, which gives
//! several rows of each `g`, and would then sort by too little. This rule takes it away there, and has everything above work out its own again.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, FunctionalDependencies, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::AnalyzerRule;

/// Takes from unnested rows what was determined before.
#[derive(Debug, Default)]
pub struct Unnested;

impl AnalyzerRule for Unnested {
    fn name(&self) -> &'static str {
        "unnested"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !plan.exists(|node| Ok(matches!(node, LogicalPlan::Unnest(_)) || in_subquery(node)?))? {
            return Ok(plan);
        }
        plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Unnest(mut unnest) => {
                let schema = DFSchema::clone(&unnest.schema);
                unnest.schema = Arc::new(schema.with_functional_dependencies(FunctionalDependencies::empty())?);
                Ok(Transformed::yes(LogicalPlan::Unnest(unnest)))
            }
            // Its schema says what it determines, from those of its inputs.
            node if !node.inputs().is_empty() => Ok(Transformed::yes(node.recompute_schema()?)),
            node => Ok(Transformed::no(node)),
        })
        .map(|plan| plan.data)
    }
}

/// Whether a subquery in the expressions of `node` unnests.
fn in_subquery(node: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    node.apply_subqueries(|plan| {
        found |= plan.exists(|node| Ok(matches!(node, LogicalPlan::Unnest(_)) || in_subquery(node)?))?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::Int64Array;
    use datafusion::arrow::record_batch::RecordBatch;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    async fn sorted(by_us: bool) -> Vec<String> {
        let mut builder = SessionStateBuilder::new().with_default_features();
        if by_us {
            builder = builder.with_analyzer_rule(Arc::new(Unnested));
        }
        let context = SessionContext::new_with_state(builder.build());
        let column = |values: [i64; 6]| Arc::new(Int64Array::from(values.to_vec())) as _;
        let batch = RecordBatch::try_from_iter([("g", column([1, 1, 2, 2, 1, 2])), ("x", column([3, 1, 2, 5, 2, 1]))]).unwrap();
        context.register_batch("t", batch).unwrap();
        let sql = "SELECT g, u FROM (SELECT g, unnest(xs) AS u FROM (SELECT g, array_agg(x) AS xs FROM t GROUP BY g)) ORDER BY g, u";
        let plan = context.state().create_logical_plan(sql).await.unwrap();
        let plan = context.state().optimize(&plan).unwrap();
        plan.display_indent().to_string().lines().map(ToOwned::to_owned).collect()
    }

    #[tokio::test]
    async fn unnested_rows_are_sorted_by_all_that_was_asked_for() {
        let [ours, theirs] = [sorted(true).await, sorted(false).await];
        assert!(ours[0].contains("u ASC"), "{ours:?}");
        // When this fails, DataFusion does it right, and this rule may go.
        assert!(!theirs[0].contains("u ASC"), "{theirs:?}");
    }
}
