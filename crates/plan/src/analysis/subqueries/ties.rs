//! Ties to the outer row that cannot be pulled up.
//!
//! DataFusion joins a subquery to the outer rows by the conditions that name them, and moves these conditions above all
//! that the subquery does. Above a window, `DISTINCT ON` or the optional side of an outer join, the same condition
//! keeps other rows.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result, not_impl_err};
use datafusion::logical_expr::{Distinct, LogicalPlan};

/// Refuses `plan`, a query or a subquery, where a tie is below such an operator.
///
/// # Errors
/// `NotImplemented`.
pub(super) fn check(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        let below = match node {
            LogicalPlan::Window(window) => tied(&window.input)?,
            LogicalPlan::Distinct(Distinct::On(on)) => tied(&on.input)?,
            LogicalPlan::RecursiveQuery(query) => tied(&query.static_term)? || tied(&query.recursive_term)?,
            LogicalPlan::Join(join) => match join.join_type {
                JoinType::Inner => false,
                JoinType::Full => tied(&join.left)? || tied(&join.right)?,
                JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => tied(&join.right)?,
                JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => tied(&join.left)?,
            },
            _ => false,
        };
        if below {
            return not_impl_err!(
                "a subquery that is tied to the outer row below a window, DISTINCT ON, EXCEPT, INTERSECT or the optional side of an outer \
                 join: write it as a join"
            );
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Whether a condition of `plan` names the outer row. A derived table within that names the one before it is a query of
/// its own.
fn tied(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply(|node| {
        if matches!(node, LogicalPlan::Subquery(_)) {
            return Ok(TreeNodeRecursion::Jump);
        }
        found = node.contains_outer_reference();
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
