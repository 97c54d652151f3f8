//! Times without a zone, and dates, next to times with one.
//!
//! They are times in UTC, the session's zone, as in PostgreSQL and DuckDB.
//! DataFusion gives both the zone of the other side, so that `1970-01-01 00:00:00` is 23:00 in UTC next to a column of
//! Berlin, and 00:00 next to one of London. This rule comes before DataFusion's coercion, and casts the side without a
//! zone to UTC. The same goes for literals of text. Two instants in different zones are compared rightly by itself.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::{InList, InSubquery, ScalarFunction, SetComparison};
use datafusion::logical_expr::{Between, BinaryExpr, Case, Expr, ExprSchemable, Join, LogicalPlan, Projection, Subquery, Union, cast};

use crate::float_keys::compares;
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
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(op) => {
            sides([left, right], schema).update_data(|[left, right]| Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            sides([expr, low, high], schema).update_data(|[expr, low, high]| Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InList(InList { expr, list: mut all, negated }) => {
            all.push(*expr);
            alike(all, operand, schema).update_data(|mut list| {
                let expr = Box::new(list.pop().unwrap_or_default());
                Expr::InList(InList { expr, list, negated })
            })
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
            value_and_values(*expr, subquery, schema)?.update_data(|(expr, subquery)| Expr::InSubquery(InSubquery { expr: Box::new(expr), subquery, negated }))
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => value_and_values(*expr, subquery, schema)?
            .update_data(|(expr, subquery)| Expr::SetComparison(SetComparison { expr: Box::new(expr), subquery, op, quantifier })),
        Expr::ScalarFunction(ScalarFunction { func, args }) if ALIKE.contains(&func.name()) => {
            alike(args, zone, schema).update_data(|args| Expr::ScalarFunction(ScalarFunction { func, args }))
        }
        Expr::Case(case) => {
            let compared = operands(case, schema);
            let (case, compared) = (compared.data, compared.transformed);
            let results = case.when_then_expr.iter().map(|(_, then)| then.as_ref()).chain(case.else_expr.as_deref());
            let Some(unit) = mixed(results, zone, schema) else { return Ok(Transformed::new_transformed(Expr::Case(case), compared)) };
            let result = |e: Box<Expr>| {
                let own = zone(&e, schema);
                Box::new(of_utc(*e, own, unit))
            };
            let when_then_expr = case.when_then_expr.into_iter().map(|(when, then)| (when, result(then))).collect();
            Transformed::yes(Expr::Case(Case { when_then_expr, else_expr: case.else_expr.map(result), expr: case.expr }))
        }
        other => Transformed::no(other),
    })
}

/// A value, and those of a subquery that it is compared with. These keep their form where they have a zone: to cast the
/// value is enough.
fn value_and_values(e: Expr, mut subquery: Subquery, schema: &DFSchema) -> Result<Transformed<(Expr, Subquery)>> {
    let values = subquery.subquery.schema().fields().first().map(|field| Zone::of(field.data_type()));
    Ok(match (zone(&e, schema), values) {
        (Zone::Without(unit), Some(Zone::With(_))) => Transformed::yes((in_utc(e, unit), subquery)),
        (Zone::With(_), Some(Zone::Without(_))) => {
            let input = Arc::unwrap_or_clone(subquery.subquery);
            subquery.subquery = Arc::new(with_columns_in_utc(input, |_| true)?);
            Transformed::yes((e, subquery))
        }
        _ => Transformed::no((e, subquery)),
    })
}

/// `CASE x WHEN y`, where `x` and `y` are compared.
fn operands(case: Case, schema: &DFSchema) -> Transformed<Case> {
    let Case { expr: Some(of), when_then_expr, else_expr } = case else { return Transformed::no(case) };
    let (mut all, thens): (Vec<Expr>, Vec<Box<Expr>>) = when_then_expr.into_iter().map(|(when, then)| (*when, then)).unzip();
    all.push(*of);
    alike(all, operand, schema).update_data(|mut all| {
        let expr = all.pop().map(Box::new);
        Case { expr, when_then_expr: all.into_iter().map(Box::new).zip(thens).collect(), else_expr }
    })
}

/// What a type is to this rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zone {
    With(TimeUnit),
    Without(TimeUnit),
    /// It is a literal of text, which is read as a time where there is one.
    Text,
    /// It is none of these.
    Neither,
}

impl Zone {
    fn of(of: &DataType) -> Self {
        match of {
            DataType::Timestamp(unit, None) => Zone::Without(*unit),
            DataType::Timestamp(unit, Some(_)) => Zone::With(*unit),
            DataType::Date32 | DataType::Date64 => Zone::Without(TimeUnit::Second),
            _ => Zone::Neither,
        }
    }
}

/// What an operand of a comparison is: a literal of text is read as a time.
fn operand(e: &Expr, schema: &DFSchema) -> Zone {
    let is_text = matches!(e, Expr::Literal(value, _) if value.try_as_str().flatten().is_some());
    if is_text { Zone::Text } else { zone(e, schema) }
}

fn zone(e: &Expr, schema: &DFSchema) -> Zone {
    // What has no type yet is DataFusion's to refuse.
    e.get_type(schema).map_or(Zone::Neither, |of| Zone::of(&of))
}

/// The finest unit of the instants among `all`, if there is something without a zone next to them.
fn mixed<'e>(all: impl Iterator<Item = &'e Expr>, of: fn(&Expr, &DFSchema) -> Zone, schema: &DFSchema) -> Option<TimeUnit> {
    let (mut with, mut without) = (None, false);
    for e in all {
        match of(e, schema) {
            Zone::With(unit) => with = with.max(Some(unit)),
            Zone::Without(_) | Zone::Text => without = true,
            Zone::Neither => {}
        }
    }
    with.filter(|_| without)
}

fn in_utc(e: Expr, unit: TimeUnit) -> Expr {
    cast(e, DataType::Timestamp(unit, Some("UTC".into())))
}

/// `e`, in UTC if it has no zone. `unit` is that of the instants next to it.
fn of_utc(e: Expr, of: Zone, unit: TimeUnit) -> Expr {
    match of {
        Zone::Without(own) => in_utc(e, own),
        // A text may be finer than seconds.
        Zone::Text => in_utc(e, unit.max(TimeUnit::Microsecond)),
        _ => e,
    }
}

fn alike(all: Vec<Expr>, of: fn(&Expr, &DFSchema) -> Zone, schema: &DFSchema) -> Transformed<Vec<Expr>> {
    let Some(unit) = mixed(all.iter(), of, schema) else { return Transformed::no(all) };
    let in_utc = |e: Expr| {
        let own = of(&e, schema);
        of_utc(e, own, unit)
    };
    Transformed::yes(all.into_iter().map(in_utc).collect())
}

fn sides<const N: usize>(all: [Box<Expr>; N], schema: &DFSchema) -> Transformed<[Box<Expr>; N]> {
    let Some(unit) = mixed(all.iter().map(AsRef::as_ref), operand, schema) else { return Transformed::no(all) };
    Transformed::yes(all.map(|e| {
        let own = operand(&e, schema);
        Box::new(of_utc(*e, own, unit))
    }))
}

/// The keys of a join.
fn keys(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut changed = false;
    for (left, right) in &mut join.on {
        match (zone(left, join.left.schema()), zone(right, join.right.schema())) {
            (Zone::Without(unit), Zone::With(_)) => *left = in_utc(std::mem::take(left), unit),
            (Zone::With(_), Zone::Without(unit)) => *right = in_utc(std::mem::take(right), unit),
            _ => continue,
        }
        changed = true;
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), changed))
}

/// The columns of a union's branches.
fn columns(union: Union) -> Result<Transformed<LogicalPlan>> {
    let of = |at: usize| union.inputs.iter().filter_map(move |input| Some(Zone::of(input.schema().fields().get(at)?.data_type())));
    let is_mixed = |at: usize| of(at).any(|zone| matches!(zone, Zone::With(_))) && of(at).any(|zone| matches!(zone, Zone::Without(_)));
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
