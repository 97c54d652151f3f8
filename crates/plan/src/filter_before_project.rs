//! Filters rows before anything is computed from them.
//!
//! DataFusion's pushdown of projections puts a projection that narrows the columns below the filter, even if it
//! computes something. Then `i / j` is computed, and may fail, for rows that the filter would have dropped
//! (`SELECT k, i / j FROM t WHERE k <= 3`). This rule comes last and puts such projections back.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::ExpressionPlacement;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::expressions::Column;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use crate::physical_rule::PhysicalRule;

/// Turns `Filter <- Projection` into `Projection <- Filter` where the projection computes something and the
/// filter needs nothing of that.
#[must_use]
pub fn filter_before_project() -> Arc<PhysicalRule> {
    PhysicalRule::new("filter_first", filtered_first)
}

fn filtered_first(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(None) };
    let Some(projection) = filter.input().downcast_ref::<ProjectionExec>() else { return Ok(None) };
    let computed = projection.expr();
    // Columns, literals and fields of structs can't fail, and are better taken early.
    if computed.iter().all(|e| e.expr.placement() != ExpressionPlacement::KeepInPlace) {
        return Ok(None);
    }
    let Some(predicate) = below(filter.predicate(), computed)? else { return Ok(None) };
    let first = FilterExecBuilder::from(filter).with_input(Arc::clone(projection.input())).with_predicate(predicate).apply_projection(None)?.build()?;
    let first: Arc<dyn ExecutionPlan> = Arc::new(first);
    // It may now stand on another projection that computes.
    let first = filtered_first(&first)?.unwrap_or(first);
    let kept: Vec<ProjectionExpr> = match filter.projection().as_ref() {
        Some(kept) => kept.iter().map(|i| computed[*i].clone()).collect(),
        None => computed.to_vec(),
    };
    Ok(Some(Arc::new(ProjectionExec::try_new(kept, first)?)))
}

/// `predicate` over what is below the projection of `computed`; `None` if it needs what is computed there.
fn below(predicate: &Arc<dyn PhysicalExpr>, computed: &[ProjectionExpr]) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let mut needs_more = false;
    let moved = Arc::clone(predicate).transform_up(|expr| {
        let Some(column) = expr.downcast_ref::<Column>() else { return Ok(Transformed::no(expr)) };
        match computed.get(column.index()).filter(|e| e.expr.is::<Column>()) {
            Some(source) => Ok(Transformed::yes(Arc::clone(&source.expr))),
            None => {
                needs_more = true;
                Ok(Transformed::new(expr, false, TreeNodeRecursion::Stop))
            }
        }
    })?;
    Ok((!needs_more).then_some(moved.data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int64Array};
    use arrow::record_batch::RecordBatch;
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::session_state::SessionStateBuilder;
    use datafusion::prelude::{SessionConfig, SessionContext};

    fn context() -> SessionContext {
        // As hosts have it: nothing stands between the projection and the filter.
        let mut config = SessionConfig::new().with_target_partitions(2);
        config.options_mut().optimizer.enable_round_robin_repartition = false;
        let state = SessionStateBuilder::new_with_default_features().with_config(config).with_physical_optimizer_rule(filter_before_project()).build();
        let context = SessionContext::new_with_state(state);
        let column = |values: [i64; 4]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let rows = RecordBatch::try_from_iter([("k", column([1, 2, 3, 4])), ("i", column([7, -7, 8, 0])), ("j", column([2, 2, -2, 0]))]).unwrap();
        context.register_batch("t", rows).unwrap();
        context
    }

    async fn run(sql: &str) -> String {
        let rows = context().sql(sql).await.unwrap().collect().await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let table = pretty_format_batches(&rows).unwrap().to_string();
        table.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.replace([' ', '|'], "")).collect::<Vec<_>>().join(" ")
    }

    #[tokio::test]
    async fn dropped_rows_are_not_computed() {
        assert_eq!(run("SELECT k * 10, i / j FROM t WHERE k <= 3").await, "103 20-3 30-4");
        assert_eq!(run("SELECT k, i / j AS q FROM t WHERE k <= 3 ORDER BY k DESC").await, "3-4 2-3 13");
        assert_eq!(run("SELECT j, (i + k) / j AS q FROM t WHERE j <> 0").await, "24 2-2 -2-5");
        assert_eq!(run("SELECT q FROM (SELECT k, i / j AS q FROM t WHERE k <= 3) WHERE k > 1").await, "-3 -4");
        assert_eq!(run("SELECT k, i % j FROM t WHERE k <= 3 LIMIT 1").await, "11");
    }

    #[tokio::test]
    async fn filter_over_a_computed_column_stays_in_place() {
        assert_eq!(run("SELECT q FROM (SELECT DISTINCT i - j AS q FROM t) WHERE q > 5").await, "10");
        assert_eq!(run("SELECT i - j AS q FROM t WHERE i - j > 5").await, "10");
    }
}
