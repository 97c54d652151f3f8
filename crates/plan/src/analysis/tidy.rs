//! Forms of a query that DataFusion's planner answers wrongly or fails at, in forms that it answers rightly.
//!
//! | form | what DataFusion makes of it | here |
//! |---|---|---|
//! | one sort key twice, in the `ORDER BY` of an aggregate or of `DISTINCT ON` | an internal error, or a panic | once |
//! | one key of `GROUP BY` twice | an internal error | once |
//! | a correlated subquery whose result is named like a column of its tables | refuses it as ambiguous | another name |

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Distinct, Expr, LogicalPlan, Projection, SortExpr, Subquery};

use crate::rewriting::map_expressions;

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let count = Cell::new(0);
    plan.transform_up_with_subqueries(|node| {
        let node = map_expressions(node, |e| expression(e, &count))?;
        let changed = node.transformed;
        let node = match node.data {
            LogicalPlan::Sort(mut sort) => {
                let repeated = sort_keys_once(&mut sort.expr);
                Transformed::new_transformed(LogicalPlan::Sort(sort), repeated)
            }
            LogicalPlan::Distinct(Distinct::On(mut distinct)) => {
                let repeated = distinct.sort_expr.as_mut().is_some_and(sort_keys_once);
                Transformed::new_transformed(LogicalPlan::Distinct(Distinct::On(distinct)), repeated)
            }
            LogicalPlan::Aggregate(aggregate) => groups_once(aggregate)?,
            other => Transformed::no(other),
        };
        Ok(Transformed::new_transformed(node.data, node.transformed || changed))
    })
    .data()
}

fn expression(e: Expr, count: &Cell<u32>) -> Result<Transformed<Expr>> {
    match e {
        Expr::AggregateFunction(mut call) => {
            Ok(if each_once(&mut call) { Transformed::yes(Expr::AggregateFunction(call)) } else { Transformed::no(Expr::AggregateFunction(call)) })
        }
        Expr::ScalarSubquery(subquery) if !subquery.outer_ref_columns.is_empty() => {
            let renamed = renamed(&subquery, count)?;
            Ok(match renamed {
                Some(subquery) => Transformed::yes(Expr::ScalarSubquery(subquery)),
                None => Transformed::no(Expr::ScalarSubquery(subquery)),
            })
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Drops sort keys that come a second time. Returns whether there were any.
fn each_once(call: &mut AggregateFunction) -> bool {
    sort_keys_once(&mut call.params.order_by)
}

fn sort_keys_once(keys: &mut Vec<SortExpr>) -> bool {
    let before = keys.len();
    let mut seen = HashSet::new();
    keys.retain(|sort| seen.insert(sort.expr.clone()));
    keys.len() < before
}

/// The aggregate without keys of groups that come a second time.
fn groups_once(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let mut seen = HashSet::new();
    let once: Vec<Expr> = aggregate.group_expr.iter().filter(|key| seen.insert((*key).clone())).cloned().collect();
    if once.len() == aggregate.group_expr.len() {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    Ok(Transformed::yes(LogicalPlan::Aggregate(Aggregate::try_new(aggregate.input, once, aggregate.aggr_expr)?)))
}

/// The subquery with another name for its result, if that is computed.
fn renamed(subquery: &Subquery, count: &Cell<u32>) -> Result<Option<Subquery>> {
    let LogicalPlan::Projection(top) = subquery.subquery.as_ref() else { return Ok(None) };
    let [Expr::Alias(alias)] = top.expr.as_slice() else { return Ok(None) };
    count.set(count.get() + 1);
    let result = alias.expr.as_ref().clone().alias(format!("__result_{}", count.get()));
    let plan = LogicalPlan::Projection(Projection::try_new(vec![result], Arc::clone(&top.input))?);
    Ok(Some(subquery.with_plan(Arc::new(plan))))
}
