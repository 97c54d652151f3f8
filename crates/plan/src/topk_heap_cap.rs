//! Limits that are too large for a heap.
//!
//! Where few groups are wanted in the order of their maximum (`GROUP BY k ORDER BY max(v) DESC LIMIT 10`), DataFusion
//! keeps only these, in a heap. It allocates the heap beforehand, as large as the limit says, past every memory budget:
//! `LIMIT 1000000000000` would end the process. A large limit saves nothing this way. So this rule removes the hint;
//! the sort above still gives no more rows than the limit.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;

use crate::physical_rule::PhysicalRule;

/// The most groups that are kept in a heap.
const MAX_HEAP: usize = 10_000;

/// Turns aggregations that keep more groups than a heap should hold into ones that keep all of them.
#[must_use]
pub fn topk_heap_cap() -> Arc<PhysicalRule> {
    PhysicalRule::new("small_heaps", without_large_heap)
}

fn without_large_heap(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    // Groups in no order are taken as they come, without a heap.
    let large = !aggregate.is_unordered_unfiltered_group_by_distinct() && aggregate.limit_options().is_some_and(|options| options.limit() > MAX_HEAP);
    Ok(large.then(|| Arc::new(aggregate.with_new_limit_options(None)) as _))
}

#[cfg(test)]
mod tests {
    use datafusion::execution::SessionStateBuilder;
    use datafusion::physical_plan::displayable;
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn a_limit_makes_no_room_beforehand() {
        let state = SessionStateBuilder::new().with_default_features().with_physical_optimizer_rule(topk_heap_cap()).build();
        let context = SessionContext::new_with_state(state);
        context.sql("CREATE TABLE t AS SELECT column1 AS k, column2 AS v FROM (VALUES (1, 5), (2, 7), (1, 9))").await.unwrap();
        for (query, limit) in [
            ("SELECT k, max(v) AS m FROM t GROUP BY k ORDER BY m DESC LIMIT", 1_000_000_000_000u64),
            ("SELECT k, max(v) AS m FROM t GROUP BY k ORDER BY m DESC LIMIT", 9_000_000_000_000_000_000),
            ("SELECT DISTINCT k FROM t ORDER BY k LIMIT", 1_000_000_000_000),
        ] {
            let rows = context.sql(&format!("{query} {limit}")).await.unwrap().collect().await.unwrap();
            assert_eq!(rows.iter().map(|b| b.num_rows()).sum::<usize>(), 2, "{query} {limit}");
        }
        let plan = context.sql("SELECT k, max(v) AS m FROM t GROUP BY k ORDER BY m DESC LIMIT 1").await.unwrap().create_physical_plan().await.unwrap();
        let text = displayable(plan.as_ref()).indent(false).to_string();
        assert!(text.contains("lim=[1]"), "a small limit keeps its heap: {text}");
    }
}
