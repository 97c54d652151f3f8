//! Times without a zone next to times with one: they are times in UTC, the session's zone, as in PostgreSQL and DuckDB.
//!
//! DataFusion gives both the zone of the other side, so that `1970-01-01 00:00:00` is 23:00 in UTC next to a column of
//! Berlin, and 00:00 next to one of London. This rule comes before DataFusion's coercion, and casts the side without a
//! zone to UTC. Comparisons of two instants in different zones are right already.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{InList, InSubquery, ScalarFunction};
use datafusion::logical_expr::{Between, BinaryExpr, Case, Expr, ExprSchemable, Join, LogicalPlan, Projection, Union, cast};

use crate::rewriting::map_typed;

/// Functions whose arguments are values of one type.
const ALIKE: [&str; 6] = ["coalesce", "nullif", "nvl", "nvl2", "greatest", "least"];

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    let plan = map_typed(plan, expression)?;
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) => keys(join),
        LogicalPlan::Union(union) => columns(union),
        other => Ok(Transformed::no(other)),
    })
    .data()
}

fn expression(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            sides([left, right], schema).update_data(|[left, right]| Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            sides([expr, low, high], schema).update_data(|[expr, low, high]| Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InList(InList { expr, list: mut all, negated }) => {
            all.push(*expr);
            alike(all, schema).update_data(|mut list| {
                let expr = Box::new(list.pop().unwrap_or_default());
                Expr::InList(InList { expr, list, negated })
            })
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
            // The values keep their form: casting the value alone is enough where they have a zone.
            let values = subquery.subquery.schema().fields().first().map(|field| Zone::of(field.data_type()));
            match (zone(&expr, schema), values) {
                (Zone::Without(unit), Some(Zone::With)) => {
                    let expr = Box::new(in_utc(*expr, unit));
                    Transformed::yes(Expr::InSubquery(InSubquery { expr, subquery, negated }))
                }
                (Zone::With, Some(Zone::Without(_))) => {
                    let mut subquery = subquery;
                    let input = Arc::unwrap_or_clone(subquery.subquery);
                    subquery.subquery = Arc::new(with_columns_in_utc(input, |_| true)?);
                    Transformed::yes(Expr::InSubquery(InSubquery { expr, subquery, negated }))
                }
                _ => Transformed::no(Expr::InSubquery(InSubquery { expr, subquery, negated })),
            }
        }
        Expr::ScalarFunction(ScalarFunction { func, args }) if ALIKE.contains(&func.name()) => {
            alike(args, schema).update_data(|args| Expr::ScalarFunction(ScalarFunction { func, args }))
        }
        Expr::Case(case) if is_mixed(case.when_then_expr.iter().map(|(_, then)| then.as_ref()).chain(case.else_expr.as_deref()), schema) => {
            let result = |e: Box<Expr>| Box::new(of_utc(*e, schema));
            let when_then_expr = case.when_then_expr.into_iter().map(|(when, then)| (when, result(then))).collect();
            Transformed::yes(Expr::Case(Case { when_then_expr, else_expr: case.else_expr.map(result), expr: case.expr }))
        }
        other => Transformed::no(other),
    })
}

/// What a type is to this rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zone {
    With,
    Without(TimeUnit),
    /// It is no time.
    Neither,
}

impl Zone {
    fn of(of: &DataType) -> Self {
        match of {
            DataType::Timestamp(unit, None) => Zone::Without(*unit),
            DataType::Timestamp(_, Some(_)) => Zone::With,
            _ => Zone::Neither,
        }
    }
}

fn zone(e: &Expr, schema: &DFSchema) -> Zone {
    // What has no type yet is DataFusion's to refuse.
    e.get_type(schema).map_or(Zone::Neither, |of| Zone::of(&of))
}

fn is_mixed<'e>(all: impl Iterator<Item = &'e Expr>, schema: &DFSchema) -> bool {
    let (mut with, mut without) = (false, false);
    for e in all {
        match zone(e, schema) {
            Zone::With => with = true,
            Zone::Without(_) => without = true,
            Zone::Neither => {}
        }
    }
    with && without
}

fn in_utc(e: Expr, unit: TimeUnit) -> Expr {
    cast(e, DataType::Timestamp(unit, Some("UTC".into())))
}

/// `e`, in UTC if it is a time without a zone.
fn of_utc(e: Expr, schema: &DFSchema) -> Expr {
    match zone(&e, schema) {
        Zone::Without(unit) => in_utc(e, unit),
        _ => e,
    }
}

fn alike(all: Vec<Expr>, schema: &DFSchema) -> Transformed<Vec<Expr>> {
    if !is_mixed(all.iter(), schema) {
        return Transformed::no(all);
    }
    Transformed::yes(all.into_iter().map(|e| of_utc(e, schema)).collect())
}

fn sides<const N: usize>(all: [Box<Expr>; N], schema: &DFSchema) -> Transformed<[Box<Expr>; N]> {
    if !is_mixed(all.iter().map(AsRef::as_ref), schema) {
        return Transformed::no(all);
    }
    Transformed::yes(all.map(|e| Box::new(of_utc(*e, schema))))
}

/// The keys of a join.
fn keys(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut changed = false;
    for (left, right) in &mut join.on {
        match (zone(left, join.left.schema()), zone(right, join.right.schema())) {
            (Zone::Without(unit), Zone::With) => *left = in_utc(std::mem::take(left), unit),
            (Zone::With, Zone::Without(unit)) => *right = in_utc(std::mem::take(right), unit),
            _ => continue,
        }
        changed = true;
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
}

/// The columns of a union's branches.
fn columns(union: Union) -> Result<Transformed<LogicalPlan>> {
    let of = |at: usize| union.inputs.iter().filter_map(move |input| Some(Zone::of(input.schema().fields().get(at)?.data_type())));
    let is_mixed = |at: usize| of(at).any(|zone| zone == Zone::With) && of(at).any(|zone| matches!(zone, Zone::Without(_)));
    let mixed: Vec<bool> = (0..union.schema.fields().len()).map(is_mixed).collect();
    if !mixed.contains(&true) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let branch = |input: Arc<LogicalPlan>| Ok(Arc::new(with_columns_in_utc(Arc::unwrap_or_clone(input), |at| mixed.get(at) == Some(&true))?));
    let inputs = union.inputs.into_iter().map(branch).collect::<Result<_>>()?;
    Ok(Transformed::yes(LogicalPlan::Union(Union { inputs, schema: union.schema })))
}

/// `plan` with some of its times without a zone in UTC. Columns keep their names.
fn with_columns_in_utc(plan: LogicalPlan, is_meant: impl Fn(usize) -> bool) -> Result<LogicalPlan> {
    let schema = Arc::clone(plan.schema());
    let column = |(at, column): (usize, datafusion::common::Column)| match Zone::of(schema.field(at).data_type()) {
        Zone::Without(unit) if is_meant(at) => {
            let (table, name) = (column.relation.clone(), column.name.clone());
            in_utc(Expr::Column(column), unit).alias_qualified(table, name)
        }
        _ => Expr::Column(column),
    };
    let exprs = schema.columns().into_iter().enumerate().map(column).collect();
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(plan))?))
}
