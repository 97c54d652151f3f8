//! Comparisons with times that nanoseconds cannot hold (before 1677-09-21, after 2262-04-11).
//!
//! DataFusion compares a date with a timestamp of nanoseconds as such timestamps, which fails on the first date beyond.
//! It turns `EXTRACT(YEAR FROM t) < 9999` into a comparison of `t` with a time that it cannot write, and takes that for
//! NULL. This rule gives the right answer to both before its own rules see them:
//!
//! - A date is compared as a timestamp of seconds where the other side is a literal of whole seconds. Otherwise a date
//!   beyond is less or greater by itself.
//! - A year that a timestamp of nanoseconds cannot have stays a comparison of years.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions::math::expr_fn::abs;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, binary_expr, cast, lit, when};

use crate::rewriting::{decided, map_typed};

/// The first and the last day that are whole days of timestamps of nanoseconds, counted from 1970-01-01.
const DAYS: (i32, i32) = (-106_751, 106_750);

/// The first and the last year that are whole years of timestamps of nanoseconds.
const YEARS: (i64, i64) = (1678, 2261);

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, compared)
}

fn is_comparison(op: Operator) -> bool {
    matches!(
        op,
        Operator::Eq | Operator::NotEq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq | Operator::IsDistinctFrom | Operator::IsNotDistinctFrom
    )
}

fn compared(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = e else { return Ok(Transformed::no(e)) };
    if is_comparison(op) {
        if let Some(new) = with_year(&left, op, &right, schema)? {
            return Ok(Transformed::yes(new));
        }
        if let Some(date) = date_of(&left, schema)? {
            let of = right.get_type(schema)?;
            return with_date(date, op, *right, &of).map(Transformed::yes);
        }
        if let Some(date) = date_of(&right, schema)?
            && let Some(swapped) = op.swap()
        {
            let of = left.get_type(schema)?;
            return with_date(date, swapped, *left, &of).map(Transformed::yes);
        }
    }
    Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })))
}

/// `date_part('year', t) op literal`, on either side, where `t` has nanoseconds and cannot have that year.
fn with_year(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let beyond = |e: &Expr| match e {
        Expr::Literal(value, _) => {
            let year = value.cast_to(&DataType::Int64).ok();
            matches!(year, Some(ScalarValue::Int64(Some(year))) if year < YEARS.0 || year > YEARS.1)
        }
        _ => false,
    };
    let compare = |left: Expr, right: Expr| Some(binary_expr(left, op, right));
    // Years of nanoseconds are above 0. No rule looks through `abs`.
    if beyond(right) && is_year(left, schema)? {
        return Ok(compare(abs(left.clone()), right.clone()));
    }
    if beyond(left) && is_year(right, schema)? {
        return Ok(compare(left.clone(), abs(right.clone())));
    }
    Ok(None)
}

fn is_year(e: &Expr, schema: &DFSchema) -> Result<bool> {
    match e {
        Expr::Cast(Cast { expr, .. }) => is_year(expr, schema),
        Expr::ScalarFunction(call) if call.func.name() == "date_part" => {
            let [Expr::Literal(part, _), of] = call.args.as_slice() else { return Ok(false) };
            let is_year = part.try_as_str().flatten().is_some_and(|part| part.trim_matches('\'').eq_ignore_ascii_case("year"));
            Ok(is_year && matches!(of.get_type(schema)?, DataType::Timestamp(TimeUnit::Nanosecond, _)))
        }
        _ => Ok(false),
    }
}

/// The date of `CAST(date AS TIMESTAMP)`, in nanoseconds, unless it is written out.
fn date_of(e: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let Expr::Cast(Cast { expr, field }) = e else { return Ok(None) };
    if !matches!(field.data_type(), DataType::Timestamp(TimeUnit::Nanosecond, _)) || matches!(expr.as_ref(), Expr::Literal(..)) {
        return Ok(None);
    }
    Ok(match expr.get_type(schema)? {
        DataType::Date32 => Some(expr.as_ref().clone()),
        DataType::Date64 => Some(cast(expr.as_ref().clone(), DataType::Date32)),
        _ => None,
    })
}

/// `date op time`, where `time` is a timestamp `of` nanoseconds.
fn with_date(date: Expr, op: Operator, time: Expr, of: &DataType) -> Result<Expr> {
    const NANOSECONDS: i64 = 1_000_000_000;
    let compare = |left: Expr, right: Expr| binary_expr(left, op, right);
    if let Expr::Literal(ScalarValue::TimestampNanosecond(at, zone), _) = &time
        && at.is_none_or(|at| at % NANOSECONDS == 0)
    {
        let seconds = ScalarValue::TimestampSecond(at.map(|at| at / NANOSECONDS), zone.clone());
        return Ok(compare(cast(date, seconds.data_type()), lit(seconds)));
    }
    let day = |day: i32| lit(ScalarValue::Date32(Some(day)));
    let stamp = cast(date.clone(), of.clone());
    // The comparison of a date before, and of one after: by the greatest and the least time on the other side.
    let (before, after) = match op {
        Operator::Lt | Operator::LtEq => (true, false),
        Operator::Gt | Operator::GtEq => (false, true),
        Operator::NotEq | Operator::IsDistinctFrom => (true, true),
        Operator::Eq | Operator::IsNotDistinctFrom => (false, false),
        _ => return Ok(compare(stamp, time)),
    };
    let certain = |value: bool| match op {
        Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => lit(value),
        // NULL where the time is.
        _ => decided(time.clone(), value),
    };
    when(date.clone().lt(day(DAYS.0)), certain(before)).when(date.gt(day(DAYS.1)), certain(after)).otherwise(compare(stamp, time))
}
