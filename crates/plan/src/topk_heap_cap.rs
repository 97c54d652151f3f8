//! Limits that a heap of groups cannot keep: too large ones, over sorted input, and of groups by floats.
//!
//! Where few groups are wanted in the order of their maximum (`GROUP BY k ORDER BY max(v) DESC LIMIT 10`), DataFusion
//! keeps only these, in a heap. It allocates the heap beforehand, as large as the limit says, past every memory budget:
//! `LIMIT 1000000000000` would end the process. A large limit saves nothing this way. So this rule removes the hint;
//! the sort above still gives no more rows than the limit.
//!
//! Over input that comes sorted by the group, the aggregation promises its output in the same order, and the heap gives
//! it in the order of the limit. A merge above then takes the wrong rows: `DISTINCT x ... ORDER BY x LIMIT 3` over what
//! is sorted by `x DESC`. There, too, the hint is removed.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};

use crate::physical_rule::PhysicalRule;

/// The most groups that are kept in a heap.
const MAX_HEAP: usize = 10_000;

/// Turns aggregations whose heap is too large, or whose input is sorted, into ones that keep all groups.
#[must_use]
pub fn topk_heap_cap() -> Arc<PhysicalRule> {
    PhysicalRule::new("small_heaps", without_large_heap)
}

fn without_large_heap(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
    // Groups in no order are taken as they come, without a heap.
    let heap = aggregate.limit_options().filter(|_| !aggregate.is_unordered_unfiltered_group_by_distinct());
    // A heap looks a group up by comparing it, and NaN does not equal itself.
    let floats = aggregate.group_expr().expr().iter().any(|(e, _)| e.data_type(&aggregate.input_schema()).is_ok_and(|of| of.is_floating()));
    let sorted = *aggregate.input_order_mode() != InputOrderMode::Linear;
    let unfit = heap.is_some_and(|options| sorted || floats || options.limit() > MAX_HEAP);
    Ok(unfit.then(|| Arc::new(aggregate.with_new_limit_options(None)) as _))
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

    #[tokio::test]
    async fn groups_by_nan_leave_the_heap_alone() {
        let state = SessionStateBuilder::new().with_default_features().with_physical_optimizer_rule(topk_heap_cap()).build();
        let context = SessionContext::new_with_state(state);
        let floats = "SELECT CASE WHEN value % 3 = 0 THEN CAST('NaN' AS REAL) ELSE CAST(value AS REAL) END AS x FROM generate_series(0, 300)";
        let rows = context.sql(&format!("SELECT DISTINCT x FROM ({floats}) ORDER BY x DESC LIMIT 3")).await.unwrap().collect().await.unwrap();
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
        assert!(text.contains("NaN") && text.contains("299.0") && text.contains("298.0"), "{text}");
    }

    #[tokio::test]
    async fn distinct_over_the_other_order_gives_the_first_rows() {
        let state = SessionStateBuilder::new().with_default_features().with_physical_optimizer_rule(topk_heap_cap()).build();
        let context = SessionContext::new_with_state(state);
        context.sql("CREATE TABLE t AS SELECT value AS x FROM generate_series(0, 39)").await.unwrap();
        let half = "(SELECT x FROM t ORDER BY x DESC LIMIT 30)";
        let query = format!("SELECT DISTINCT x FROM (SELECT * FROM {half} UNION ALL SELECT * FROM {half}) AS u ORDER BY x LIMIT 3");
        let rows = context.sql(&query).await.unwrap().collect().await.unwrap();
        let text = datafusion::arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
        assert_eq!(text.lines().skip(3).take(3).map(|line| line.trim_matches(['|', ' '])).collect::<Vec<_>>(), ["10", "11", "12"], "{text}");
    }
}
