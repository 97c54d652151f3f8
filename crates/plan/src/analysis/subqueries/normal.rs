//! Subqueries in their simplest form.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result, not_impl_err};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, GroupingSet, InSubquery};
use datafusion::logical_expr::{Aggregate, Distinct, Expr, FetchType, LogicalPlan, LogicalPlanBuilder, Projection, SkipType, lit, not};

use super::marks::subquery;
use super::untied::is_tied_subquery;
use crate::opaque_values::nullable;

/// `e`, if it is a subquery under `EXISTS` or `IN`, in its simplest form.
pub(super) fn form(e: Expr) -> Result<Transformed<Expr>> {
    match e {
        Expr::Exists(Exists { subquery, negated }) => {
            let exists = exists(Arc::unwrap_or_clone(subquery.subquery))?;
            Ok(Transformed::yes(match exists {
                Expr::Exists(exists) => Expr::Exists(Exists { negated, ..exists }),
                other if negated => not(other),
                other => other,
            }))
        }
        Expr::InSubquery(of) => membership(of),
        other => Ok(Transformed::no(other)),
    }
}

/// `e`; if it is a subquery for one value that may have no row, it is declared as a value that may be NULL. DataFusion
/// declares it as the subquery's column, which may never be NULL: `(SELECT 1 WHERE FALSE) IS NOT NULL` was true.
pub(super) fn missing_value(e: Expr) -> Result<Transformed<Expr>> {
    let Expr::ScalarSubquery(of) = &e else { return Ok(Transformed::no(e)) };
    let schema = of.subquery.schema();
    // A subquery that is tied to the outer row becomes an outer join, whose columns may be NULL.
    if schema.fields().iter().any(|field| field.is_nullable()) || is_tied_subquery(of) || has_row(&of.subquery) {
        return Ok(Transformed::no(e));
    }
    let value = |column: Column| nullable(Expr::Column(column.clone())).alias_qualified(column.relation, column.name);
    let values = schema.columns().into_iter().map(value).collect();
    let plan = LogicalPlan::Projection(Projection::try_new(values, Arc::clone(&of.subquery))?);
    Ok(Transformed::yes(Expr::ScalarSubquery(subquery(plan))))
}

/// Whether `plan` has a row, whatever the tables hold; false where that is not known.
fn has_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(node) => has_row(&node.input),
        LogicalPlan::SubqueryAlias(node) => has_row(&node.input),
        LogicalPlan::Window(node) => has_row(&node.input),
        LogicalPlan::Sort(node) if node.fetch.is_none() => has_row(&node.input),
        LogicalPlan::Aggregate(node) => has_row_without_input(node),
        LogicalPlan::EmptyRelation(node) => node.produce_one_row,
        LogicalPlan::Values(node) => !node.values.is_empty(),
        _ => false,
    }
}

/// Whether `plan` has a row, by the part of it that decides.
fn exists(mut plan: LogicalPlan) -> Result<Expr> {
    loop {
        plan = match plan {
            LogicalPlan::Projection(node) => Arc::unwrap_or_clone(node.input),
            LogicalPlan::SubqueryAlias(node) => Arc::unwrap_or_clone(node.input),
            LogicalPlan::Window(node) => Arc::unwrap_or_clone(node.input),
            LogicalPlan::Distinct(Distinct::All(input)) => Arc::unwrap_or_clone(input),
            LogicalPlan::Distinct(Distinct::On(node)) => Arc::unwrap_or_clone(node.input),
            LogicalPlan::Sort(node) if node.fetch == Some(0) => return Ok(lit(false)),
            LogicalPlan::Sort(node) => Arc::unwrap_or_clone(node.input),
            LogicalPlan::Limit(node) => match (node.get_skip_type()?, node.get_fetch_type()?) {
                (_, FetchType::Literal(Some(0))) => return Ok(lit(false)),
                (SkipType::Literal(0), FetchType::Literal(_)) => Arc::unwrap_or_clone(node.input),
                (SkipType::Literal(skip), FetchType::Literal(_)) => return has_more_than(Arc::unwrap_or_clone(node.input), skip),
                _ => return not_impl_err!("LIMIT and OFFSET within EXISTS by an expression: write numbers"),
            },
            LogicalPlan::Aggregate(node) if has_row_without_input(&node) => return Ok(lit(true)),
            LogicalPlan::Aggregate(node) => Arc::unwrap_or_clone(node.input),
            other => break plan_exists(other),
        };
    }
}

fn plan_exists(plan: LogicalPlan) -> Result<Expr> {
    Ok(Expr::Exists(Exists { subquery: subquery(plan), negated: false }))
}

/// `(SELECT count(*) FROM plan) > skip`.
fn has_more_than(mut plan: LogicalPlan, skip: usize) -> Result<Expr> {
    // Without what changes no number of rows, and keeps DataFusion from joining what is below.
    while let LogicalPlan::Sort(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) = plan {
        plan = match plan {
            LogicalPlan::Sort(node) if node.fetch.is_none() => Arc::unwrap_or_clone(node.input),
            LogicalPlan::Projection(node) => Arc::unwrap_or_clone(node.input),
            LogicalPlan::SubqueryAlias(node) => Arc::unwrap_or_clone(node.input),
            other => return counted(other, skip),
        };
    }
    counted(plan, skip)
}

fn counted(plan: LogicalPlan, skip: usize) -> Result<Expr> {
    let rows = LogicalPlanBuilder::from(plan).aggregate(Vec::<Expr>::new(), [count(lit(1_i64)).alias("__rows")])?.build()?;
    Ok(Expr::ScalarSubquery(subquery(rows)).gt(lit(i64::try_from(skip).unwrap_or(i64::MAX))))
}

/// `IN` over a subquery with exactly one row is a comparison: its value may be NULL where there is no row to aggregate.
fn membership(of: InSubquery) -> Result<Transformed<Expr>> {
    let mut at = of.subquery.subquery.as_ref();
    while let LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) = at {
        let Some(below) = at.inputs().first().copied() else { break };
        at = below;
    }
    match of_aggregate(at) {
        Some(aggregate) if aggregate.group_expr.is_empty() => {
            let value = Expr::ScalarSubquery(of.subquery);
            Ok(Transformed::yes(if of.negated { of.expr.as_ref().clone().not_eq(value) } else { of.expr.as_ref().clone().eq(value) }))
        }
        _ => named(of),
    }
}

/// `IN` over a subquery whose value has a name of its own if it is computed: a cast of a column has the column's name,
/// and the column joins it where it ties the subquery to the outer row.
fn named(of: InSubquery) -> Result<Transformed<Expr>> {
    Ok(match with_named_value(&of.subquery.subquery)? {
        Some(plan) => Transformed::yes(Expr::InSubquery(InSubquery { subquery: subquery(plan), ..of })),
        None => Transformed::no(Expr::InSubquery(of)),
    })
}

/// `plan` with a name for its value, if projections compute it.
fn with_named_value(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    const VALUE: &str = "__value";
    let LogicalPlan::Projection(node) = plan else { return Ok(None) };
    let [value] = node.expr.as_slice() else { return Ok(None) };
    let (value, input) = match with_named_value(&node.input)? {
        Some(below) => {
            // There is no other column below.
            let value = value.clone().transform(|e| {
                Ok(if matches!(e, Expr::Column(_)) { Transformed::yes(Expr::Column(Column::new_unqualified(VALUE))) } else { Transformed::no(e) })
            });
            (value.data()?, Arc::new(below))
        }
        None if matches!(value, Expr::Column(_)) => return Ok(None),
        None => (value.clone(), Arc::clone(&node.input)),
    };
    Ok(Some(LogicalPlan::Projection(Projection::try_new(vec![value.unalias().alias(VALUE)], input)?)))
}

fn of_aggregate(plan: &LogicalPlan) -> Option<&Aggregate> {
    match plan {
        LogicalPlan::Aggregate(aggregate) => Some(aggregate),
        _ => None,
    }
}

/// Whether `aggregate` has a row even if its input has none: one without groups, or with a total among its groups.
fn has_row_without_input(aggregate: &Aggregate) -> bool {
    match aggregate.group_expr.as_slice() {
        [] => true,
        [Expr::GroupingSet(GroupingSet::Rollup(_) | GroupingSet::Cube(_))] => true,
        [Expr::GroupingSet(GroupingSet::GroupingSets(sets))] => sets.iter().any(Vec::is_empty),
        _ => false,
    }
}
