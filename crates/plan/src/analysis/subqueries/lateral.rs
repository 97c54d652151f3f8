//! Derived tables that name the ones before them, as joins.

use std::sync::Arc;

use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, JoinType, Result, not_impl_err};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, Projection, lit, when};

use super::marks::outer_columns;
use super::untied::{Names, Rows, Single, is_tied, next, untie};

/// Whether the right side of `join` names rows before it.
pub(super) fn is_lateral(join: &Join) -> Result<bool> {
    Ok(join.right.exists(|node| Ok(matches!(node, LogicalPlan::Subquery(_))))? && is_tied(&join.right)?)
}

/// `join` without ties of its right side.
///
/// # Errors
/// `NotImplemented` where no join has its rows.
pub(super) fn untied(join: Join, names: &Names) -> Result<LogicalPlan> {
    if !matches!(join.join_type, JoinType::Inner | JoinType::Left) {
        return not_impl_err!("LATERAL on the right of another join than INNER or LEFT: write it as a join");
    }
    let columns: Vec<Expr> = join.schema.columns().into_iter().map(Expr::Column).collect();
    let right = untie(&join.right, names, Rows::Bag)?;
    let ties = right.ties.into_iter().map(|tie| outer_columns(tie, join.left.schema())).collect::<Result<Vec<_>>>()?;
    let equal = join.on.iter().map(|(l, r)| l.clone().eq(r.clone()));
    let condition = conjunction(equal.chain(join.filter.clone()));
    let on = |join_type, condition| {
        let Join { left, join_constraint, null_equality, .. } = &join;
        Join::try_new(Arc::clone(left), Arc::new(right.plan), Vec::new(), condition, join_type, *join_constraint, *null_equality, false)
    };
    let Some(single) = right.single else {
        let joined = on(join.join_type, conjunction(ties.into_iter().chain(condition)))?;
        return project(columns, LogicalPlan::Join(joined));
    };
    let joined = LogicalPlan::Join(on(JoinType::Left, Some(conjunction(ties).unwrap_or_else(|| lit(true))))?);
    let width = join.left.schema().fields().len();
    let results = columns.iter().enumerate().map(|(at, e)| if at < width { Ok(e.clone()) } else { of_row(e, &single) });
    let mut results = results.collect::<Result<Vec<_>>>()?;
    let kept = kept(&single, &join, names, &mut results)?;
    let joined = project(results, joined)?;
    let Some(condition) = conjunction(kept.into_iter().chain(condition)) else { return Ok(joined) };
    match join.join_type {
        JoinType::Inner => project(columns, LogicalPlan::Filter(Filter::try_new(condition, Arc::new(joined))?)),
        _ if condition == lit(true) => Ok(joined),
        _ => {
            let given = |(at, e): (usize, Expr)| if at < width { Ok(e) } else { named(when(condition.clone(), e.clone()).end()?, &e) };
            project(columns.into_iter().enumerate().map(given).collect::<Result<Vec<_>>>()?, joined)
        }
    }
}

/// `column` of the row that `single` has.
fn of_row(column: &Expr, single: &Single) -> Result<Expr> {
    named(when(Expr::Column(single.found.clone()).is_null(), single.of_nothing(column)?).otherwise(column.clone())?, column)
}

/// Adds to `results` whether the row of `single` is kept, if that may be otherwise. Returns the column.
fn kept(single: &Single, join: &Join, names: &Names, results: &mut Vec<Expr>) -> Result<Option<Expr>> {
    let (row, nothing): (Vec<Expr>, Vec<Expr>) = single.kept.iter().cloned().unzip();
    let (Some(row), Some(nothing)) = (conjunction(row), conjunction(nothing)) else { return Ok(None) };
    let name = next("__kept_", names);
    let kept = when(Expr::Column(single.found.clone()).is_null(), nothing).otherwise(row)?;
    results.push(outer_columns(kept, join.left.schema())?.alias(name.as_str()));
    Ok(Some(Expr::Column(Column::new_unqualified(name))))
}

/// `e` with the name of `column`.
fn named(e: Expr, column: &Expr) -> Result<Expr> {
    let (relation, name) = column.qualified_name();
    Ok(e.alias_qualified(relation, name))
}

fn project(columns: Vec<Expr>, plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(plan))?))
}
