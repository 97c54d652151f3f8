//! Ties to the outer row that cannot be pulled up.
//!
//! DataFusion joins a subquery to the outer rows by the conditions that name them, and moves these conditions above all
//! that the subquery does. Above a window, `DISTINCT ON` or the optional side of an outer join, the same condition
//! keeps other rows.

use std::collections::HashSet;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, Result, not_impl_err};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Distinct, Expr, LogicalPlan, Subquery};

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
            LogicalPlan::Join(join) if join.join_type != JoinType::Inner && node.contains_outer_reference() => true,
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
        node.apply_expressions(|e| {
            e.apply(|e| {
                if let Expr::ScalarSubquery(of) = e {
                    check_names(of)?;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Refuses a subquery for one value whose ties have two columns of one name: DataFusion takes the first of them twice.
fn check_names(subquery: &Subquery) -> Result<()> {
    let mut tied: HashSet<Column> = HashSet::new();
    subquery.subquery.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            let ties = split_conjunction(&filter.predicate).into_iter().filter(|conjunct| conjunct.contains_outer());
            ties.for_each(|tie| tied.extend(tie.column_refs().into_iter().cloned()));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut names = HashSet::new();
    match tied.iter().find(|column| !names.insert(column.name.as_str())) {
        Some(column) => not_impl_err!(
            "a subquery for one value that is tied to the outer row by two columns called {}: give one of them another name, in a subquery \
             of its FROM",
            column.name
        ),
        None => Ok(()),
    }
}

/// Whether a column that ties `subquery` to the outer row, or is its value, shares its name with another. DataFusion
/// gives the relation that it joins a new name, and finds such a column in it by its name alone.
pub(super) fn is_ambiguous(subquery: &Subquery) -> bool {
    if subquery.outer_ref_columns.is_empty() {
        return false;
    }
    let mut named: HashSet<String> = subquery.subquery.schema().iter().map(|(_, field)| field.name().clone()).collect();
    let mut shared: HashSet<String> = HashSet::new();
    let walked = subquery.subquery.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            let ties = split_conjunction(&filter.predicate).into_iter().filter(|conjunct| conjunct.contains_outer());
            named.extend(ties.flat_map(|tie| tie.column_refs().into_iter().map(|column| column.name.clone()).collect::<Vec<_>>()));
        }
        let mut seen = HashSet::new();
        shared.extend(node.schema().iter().filter(|(_, field)| !seen.insert(field.name())).map(|(_, field)| field.name().clone()));
        Ok(TreeNodeRecursion::Continue)
    });
    walked.is_err() || !named.is_disjoint(&shared)
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
