//! Sorts with a limit: by lists and structs, and by constants.
//!
//! A sort with a limit drops rows above the greatest that it holds. It compares them with `<`, to which NULL within a
//! list is below all values. The sort itself has such a NULL where it has NULLs: last going up, unless the query says
//! otherwise. So `ORDER BY list LIMIT 3` lost rows. By nested keys, all rows are sorted, and the limit follows.
//!
//! A sort by constants alone does nothing but its limit, and keeps its order for those above. In `SELECT c, sum(x) FROM
//! (SELECT 7 AS c ... ORDER BY 1 LIMIT 3) GROUP BY c ORDER BY 1, 2` DataFusion left the outer sort out, because one
//! group has every order. Then it divided the groups, and found no order. Such a sort is a limit here.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::AcrossPartitions;
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::physical_rule::PhysicalRule;

/// The rule that takes limits out of sorts by nested keys.
pub(crate) fn nested_sorts() -> Arc<PhysicalRule> {
    PhysicalRule::new("nested_sorts", whole)
}

fn whole(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some((sort, fetch)) = node.downcast_ref::<SortExec>().and_then(|sort| Some((sort, sort.fetch()?))) else { return Ok(None) };
    let schema = sort.input().schema();
    let mut nested = false;
    for key in sort.expr() {
        nested |= key.expr.data_type(&schema)?.is_nested();
    }
    let all = SortExec::new(sort.expr().clone(), Arc::clone(sort.input())).with_preserve_partitioning(sort.preserve_partitioning());
    Ok(nested.then(|| Arc::new(LocalLimitExec::new(Arc::new(all), fetch)) as Arc<dyn ExecutionPlan>))
}

/// The rule that makes limits of sorts by constants alone. It comes before sorts are left out.
pub(crate) fn constant_sorts() -> Arc<PhysicalRule> {
    PhysicalRule::new("constant_sorts", limit_alone)
}

fn limit_alone(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some((sort, fetch)) = node.downcast_ref::<SortExec>().and_then(|sort| Some((sort, sort.fetch()?))) else { return Ok(None) };
    let known = sort.input().equivalence_properties();
    let constant = sort.expr().iter().all(|key| matches!(known.is_expr_constant(&key.expr), Some(AcrossPartitions::Uniform(_))));
    // A sort that keeps its partitions has a limit for each of them, and a merge above.
    let limits = constant && !sort.preserve_partitioning();
    Ok(limits.then(|| Arc::new(GlobalLimitExec::new(Arc::clone(sort.input()), 0, Some(fetch))) as Arc<dyn ExecutionPlan>))
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
    use datafusion::prelude::{SessionConfig, SessionContext};

    use crate::barriers::guarded;

    /// The limit gives the first rows of the whole order; batches are small, so that the limit is known early.
    #[tokio::test]
    async fn limits_of_nested_keys_lose_no_row() {
        let rules = guarded(PhysicalOptimizer::default().rules);
        let config = SessionConfig::new().with_target_partitions(2).with_batch_size(4);
        let state = SessionStateBuilder::new().with_default_features().with_config(config).with_physical_optimizer_rules(rules).build();
        let context = SessionContext::new_with_state(state);
        let table = "SELECT value AS u, [CASE WHEN value % 3 = 0 THEN value % 5 END] AS l, {'a': CASE WHEN value % 3 = 0 THEN value % 5 END} AS s";
        context.sql(&format!("CREATE TABLE t AS {table} FROM generate_series(1, 60)")).await.unwrap();
        for key in ["l", "s"] {
            for order in ["ASC NULLS LAST", "ASC NULLS FIRST", "DESC NULLS LAST", "DESC NULLS FIRST"] {
                let rows = async |limit: &str| {
                    let query = format!("SELECT {key}, u FROM t ORDER BY {key} {order}, u {limit}");
                    let rows = context.sql(&query).await.unwrap().collect().await.unwrap();
                    let text = pretty_format_batches(&rows).unwrap().to_string();
                    text.lines().skip(3).filter(|l| l.starts_with('|')).map(|l| l.replace(' ', "")).collect::<Vec<_>>()
                };
                let all = rows("").await;
                for limit in [1, 7, 30, 45] {
                    assert_eq!(rows(&format!("LIMIT {limit}")).await, all[..limit], "{key} {order} {limit}");
                }
            }
        }
    }
}
