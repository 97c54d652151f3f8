//! Conditions that equate a column with something computed, such as `least(a, b) = b`.
//!
//! DataFusion puts both sides of such a condition into one class of equal expressions, and writes sort keys in terms of
//! that class. Where the column is within the computed side, each rewriting adds another copy of that side. The sort's
//! keys and those that are asked of it then differ, and there is no plan. Two such conditions can do the same to each
//! other. Here the condition is `(least(a, b) = b) IS NOT DISTINCT FROM true`. It keeps the same rows, and DataFusion
//! reads no class from it. What is lost is a sort that could be left out, by a column that is computed from the others.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};

use crate::physical_rule::PhysicalRule;

/// The rule that hides such equalities. It comes before sorts are placed.
pub(crate) fn computed_equalities() -> Arc<PhysicalRule> {
    PhysicalRule::new("computed_equalities", hide)
}

fn hide(node: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let Some(filter) = node.downcast_ref::<FilterExec>() else { return Ok(None) };
    let conditions = split_conjunction(filter.predicate());
    if !conditions.iter().any(|condition| equates(condition)) {
        return Ok(None);
    }
    let hidden = conditions.into_iter().map(|condition| -> Arc<dyn PhysicalExpr> {
        let condition = Arc::clone(condition);
        if equates(&condition) { Arc::new(BinaryExpr::new(condition, Operator::IsNotDistinctFrom, lit(true))) } else { condition }
    });
    Ok(Some(Arc::new(FilterExecBuilder::from(filter).with_predicate(conjunction(hidden)).build()?)))
}

/// Whether a condition equates a column with an expression of columns.
fn equates(condition: &Arc<dyn PhysicalExpr>) -> bool {
    let Some(equality) = condition.downcast_ref::<BinaryExpr>().filter(|binary| *binary.op() == Operator::Eq) else { return false };
    let column = |side: &Arc<dyn PhysicalExpr>| side.downcast_ref::<Column>().is_some();
    let computed = |side: &Arc<dyn PhysicalExpr>| !column(side) && !collect_columns(side).is_empty();
    column(equality.left()) && computed(equality.right()) || column(equality.right()) && computed(equality.left())
}
