//! Joins rewritten over other inputs, in forms that come back from Substrait as they are.

use std::sync::Arc;

use datafusion::common::{JoinConstraint, Result};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, Join, LogicalPlan, Operator, Projection};

/// `join` over other sides of the same columns. Substrait has no `USING`: its keys are in `on`, and a projection above
/// the join merges their columns.
pub(crate) fn over(join: &Join, left: LogicalPlan, right: LogicalPlan) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Join(Join { left: Arc::new(left), right: Arc::new(right), join_constraint: JoinConstraint::On, ..join.clone() }))
}

/// The condition of a join apart from its keys, in a form that survives Substrait. The reader takes each part
/// `column = column` for a key of both sides, even where both columns are of one side.
pub(crate) fn within_a_side(join: &Join) -> Option<Expr> {
    let filter = join.filter.clone()?;
    let both_of = |a: &Expr, b: &Expr| match (a, b) {
        (Expr::Column(a), Expr::Column(b)) => [&join.left, &join.right].iter().any(|side| side.schema().has_column(a) && side.schema().has_column(b)),
        _ => false,
    };
    let parts = split_conjunction_owned(filter).into_iter().map(|part| match &part {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq | Operator::IsNotDistinctFrom, right }) if both_of(left, right) => Expr::IsTrue(Box::new(part)),
        _ => part,
    });
    conjunction(parts)
}

/// `join` over other sides of the same columns, the right one read first, with the columns in the join's own order.
pub(crate) fn swapped(join: &Join, left: LogicalPlan, right: LogicalPlan) -> Result<LogicalPlan> {
    let on = join.on.iter().map(|(l, r)| (r.clone(), l.clone())).collect();
    let (filter, how) = (join.filter.clone(), join.join_type.swap());
    let swapped = Join::try_new(Arc::new(right), Arc::new(left), on, filter, how, JoinConstraint::On, join.null_equality, false)?;
    let columns: Vec<_> = join.schema.columns();
    let plan = LogicalPlan::Join(swapped);
    if plan.schema().columns() == columns {
        return Ok(plan);
    }
    Ok(LogicalPlan::Projection(Projection::try_new(columns.into_iter().map(Expr::Column).collect(), Arc::new(plan))?))
}
