//! Forms of a query that DataFusion's planner answers wrongly or fails at, in forms that it answers rightly.
//!
//! | form | what DataFusion makes of it | here |
//! |---|---|---|
//! | one sort key twice, in the `ORDER BY` of an aggregate or of `DISTINCT ON` | an internal error, or a panic | once |
//! | the order of an aggregate that has none: `max(a ORDER BY b)` | an internal error, or a panic | no order |
//! | one key of `GROUP BY` twice | an internal error | once |
//! | a correlated subquery whose result is named like a column of its tables | an ambiguous column | another name |
//! | the same results again: `SELECT -k AS k FROM (SELECT -k AS k ...)` | takes the two for one | another name |
//! | `ORDER BY random()` below what needs no column | an internal error | the key is a column |
//! | a `LIMIT` that is larger than any table, with `OFFSET` | an overflow | no limit |

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Distinct, Expr, FetchType, Limit, LogicalPlan, Projection, Sort, SortExpr, Subquery};

use crate::rewriting::map_expressions;

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let count = Cell::new(0);
    plan.transform_up_with_subqueries(|node| {
        let node = map_expressions(node, |e| expression(e, &count))?;
        let changed = node.transformed;
        let node = match node.data {
            LogicalPlan::Sort(mut sort) => {
                let repeated = sort_keys_once(&mut sort.expr);
                if sort.expr.iter().any(|key| is_apart(&key.expr)) {
                    Transformed::yes(by_columns(sort)?)
                } else {
                    Transformed::new_transformed(LogicalPlan::Sort(sort), repeated)
                }
            }
            LogicalPlan::Limit(limit) if is_beyond_all(&limit) => Transformed::yes(LogicalPlan::Limit(Limit { fetch: None, ..limit })),
            LogicalPlan::Projection(projection) => again(projection)?,
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
            let unordered = without_order(&mut call);
            Ok(if each_once(&mut call) || unordered { Transformed::yes(Expr::AggregateFunction(call)) } else { Transformed::no(Expr::AggregateFunction(call)) })
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

/// Aggregates whose result depends on the order of rows, besides those with `WITHIN GROUP`.
const ORDERED: [&str; 6] = ["any_value", "array_agg", "first_value", "last_value", "nth_value", "string_agg"];

/// Drops the order of another aggregate, whose accumulators would take its keys for arguments. Returns whether there
/// was one. Forms of aggregates that drives have (`__array_agg_state`) keep theirs.
fn without_order(call: &mut AggregateFunction) -> bool {
    let name = call.func.name();
    let has_order = ORDERED.contains(&name) || name.starts_with("__") || call.func.inner().supports_within_group_clause();
    !has_order && !std::mem::take(&mut call.params.order_by).is_empty()
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

/// Whether no table has as many rows as the limit. DataFusion adds the offset to it.
fn is_beyond_all(limit: &Limit) -> bool {
    const ROWS: usize = 1 << 61;
    matches!(limit.get_fetch_type(), Ok(FetchType::Literal(Some(rows))) if rows > ROWS)
}

/// Whether a key is computed from no column.
fn is_apart(key: &Expr) -> bool {
    !key.any_column_refs() && !matches!(key, Expr::Literal(..))
}

/// The sort, whose keys without columns are columns of its input.
fn by_columns(mut sort: Sort) -> Result<LogicalPlan> {
    let columns: Vec<Expr> = sort.input.schema().columns().into_iter().map(Expr::Column).collect();
    let mut all = columns.clone();
    for (at, key) in sort.expr.iter_mut().enumerate().filter(|(_, key)| is_apart(&key.expr)) {
        let name = format!("__order_{at}");
        all.push(std::mem::replace(&mut key.expr, Expr::Column(Column::new_unqualified(&name))).alias(name));
    }
    sort.input = Arc::new(LogicalPlan::Projection(Projection::try_new(all, sort.input)?));
    Ok(LogicalPlan::Projection(Projection::try_new(columns, Arc::new(LogicalPlan::Sort(sort)))?))
}

/// The projection; over an equal one, with other names for what that computes.
fn again(projection: Projection) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Projection(below) = projection.input.as_ref() else { return Ok(Transformed::no(LogicalPlan::Projection(projection))) };
    if below.expr != projection.expr || below.expr.iter().all(|e| matches!(e, Expr::Column(_))) {
        return Ok(Transformed::no(LogicalPlan::Projection(projection)));
    }
    let columns = below.schema.columns();
    let name = |at: usize| format!("__again_{at}");
    let named = columns.iter().enumerate().map(|(at, column)| Expr::Column(column.clone()).alias(name(at))).collect();
    let between = LogicalPlan::Projection(Projection::try_new(named, Arc::clone(&projection.input))?);
    let results = projection.expr.iter().zip(projection.schema.iter()).map(|(e, (qualifier, field))| {
        let renamed = e.clone().transform_up(|e| {
            let at = match &e {
                Expr::Column(column) => columns.iter().position(|known| known == column),
                _ => None,
            };
            Ok(at.map_or_else(|| Transformed::no(e), |at| Transformed::yes(Expr::Column(Column::new_unqualified(name(at))))))
        });
        Ok(match renamed?.data {
            e @ Expr::Alias(_) => e,
            e => e.alias_qualified(qualifier.cloned(), field.name()),
        })
    });
    let results = results.collect::<Result<Vec<_>>>()?;
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(results, Arc::new(between))?)))
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
