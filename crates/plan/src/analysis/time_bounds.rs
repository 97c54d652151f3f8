//! Comparisons with times that nanoseconds cannot hold (before 1677-09-21, after 2262-04-11).
//!
//! DataFusion compares a date with a timestamp of nanoseconds as such timestamps, which fails on the first date beyond.
//! This rule gives the right answer before its own rules see a comparison with a constant. Two columns are compared by
//! [`super::time_pairs`].
//!
//! - A date is compared as a timestamp of seconds or microseconds where the constant is whole in them. Otherwise a date
//!   beyond is less or greater by itself.
//! - A constant beyond, which has another unit, is less or greater than any timestamp of nanoseconds.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, binary_expr, cast, lit, when};

use crate::float_keys::compares;
use crate::rewriting::{decided, map_typed, tree};

/// The first and the last day that are whole days of timestamps of nanoseconds, counted from 1970-01-01.
const DAYS: (i32, i32) = (-106_751, 106_750);

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, compared)
}

fn compared(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (left, op, right) = match e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => (left, op, right),
        Expr::Between(between) => return as_two(between, schema),
        Expr::InList(list) => return without_beyond(list, schema),
        other => return Ok(Transformed::no(other)),
    };
    if compares(op) {
        if let Some(new) = with_beyond(&left, op, &right, schema)? {
            return Ok(Transformed::yes(new));
        }
        if let Some(swapped) = op.swap()
            && let Some(new) = with_beyond(&right, swapped, &left, schema)?
        {
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

/// A constant that is cast to nanoseconds, which cannot hold it.
fn beyond(e: &Expr) -> Option<ScalarValue> {
    let Expr::Cast(Cast { expr, field }) = e else { return None };
    let DataType::Timestamp(TimeUnit::Nanosecond, zone) = field.data_type() else { return None };
    let value = match constant(expr)? {
        date @ (ScalarValue::Date32(_) | ScalarValue::Date64(_)) => date.cast_to(&DataType::Timestamp(TimeUnit::Microsecond, zone.clone())).ok()?,
        time => time,
    };
    let (at, ratio) = match value {
        ScalarValue::TimestampSecond(Some(at), _) => (at, 1_000_000_000),
        ScalarValue::TimestampMillisecond(Some(at), _) => (at, 1_000_000),
        ScalarValue::TimestampMicrosecond(Some(at), _) => (at, 1_000),
        _ => return None,
    };
    at.checked_mul(ratio).is_none().then_some(value)
}

/// The value of a literal, cast as it is.
pub(super) fn constant(e: &Expr) -> Option<ScalarValue> {
    match e {
        Expr::Literal(value, _) => Some(value.clone()),
        Expr::Cast(Cast { expr, field }) => constant(expr)?.cast_to(field.data_type()).ok(),
        _ => None,
    }
}

/// `left op right`, where `right` is a constant beyond nanoseconds.
fn with_beyond(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Result<Option<Expr>> {
    let Some(value) = beyond(right) else { return Ok(None) };
    if let Some(date) = date_of(left, schema)? {
        return Ok(Some(binary_expr(cast(date, value.data_type()), op, lit(value))));
    }
    if let Some(other) = beyond(left) {
        return Ok(Some(binary_expr(lit(other).cast_to(&value.data_type(), schema)?, op, lit(value))));
    }
    // A time of a coarser unit may be beyond as well.
    if let Expr::Cast(Cast { expr, .. }) = left
        && let (DataType::Timestamp(own, _), DataType::Timestamp(unit, zone)) = (expr.get_type(schema)?, value.data_type())
        && own != TimeUnit::Nanosecond
    {
        let of = DataType::Timestamp(own.max(unit), zone);
        return Ok(Some(binary_expr(cast(expr.as_ref().clone(), of.clone()), op, lit(value.cast_to(&of)?))));
    }
    let zero = ScalarValue::new_zero(&value.data_type())?;
    let is_after = value > zero;
    Ok(Some(match op {
        Operator::IsDistinctFrom => lit(true),
        Operator::IsNotDistinctFrom => lit(false),
        Operator::Lt | Operator::LtEq => decided(left.clone(), is_after),
        Operator::Gt | Operator::GtEq => decided(left.clone(), !is_after),
        op => decided(left.clone(), op == Operator::NotEq),
    }))
}

/// `BETWEEN` as its two comparisons, if a bound is beyond nanoseconds.
fn as_two(between: Between, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (from, to) = if between.negated { (Operator::Lt, Operator::Gt) } else { (Operator::GtEq, Operator::LtEq) };
    let low = with_beyond(&between.expr, from, &between.low, schema)?;
    let high = with_beyond(&between.expr, to, &between.high, schema)?;
    if (low.is_none() && high.is_none()) || between.expr.is_volatile() {
        return Ok(Transformed::no(Expr::Between(between)));
    }
    let Between { expr, negated, low: least, high: most } = between;
    let plain = |op: Operator, bound: Box<Expr>| compared(binary_expr(expr.as_ref().clone(), op, *bound), schema).map(|e| e.data);
    let low = low.map_or_else(|| plain(from, least), Ok)?;
    let high = high.map_or_else(|| plain(to, most), Ok)?;
    Ok(Transformed::yes(if negated { low.or(high) } else { low.and(high) }))
}

/// A list without the constants beyond nanoseconds, and a comparison with each of those.
fn without_beyond(list: InList, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let (apart, kept): (Vec<Expr>, Vec<Expr>) = list.list.into_iter().partition(|e| beyond(e).is_some());
    let (expr, negated) = (list.expr, list.negated);
    if apart.is_empty() || expr.is_volatile() {
        let list = kept.into_iter().chain(apart).collect();
        return Ok(Transformed::no(Expr::InList(InList { expr, list, negated })));
    }
    let op = if negated { Operator::NotEq } else { Operator::Eq };
    let mut parts = apart.iter().filter_map(|e| with_beyond(&expr, op, e, schema).transpose()).collect::<Result<Vec<_>>>()?;
    if !kept.is_empty() {
        parts.push(Expr::InList(InList { expr, list: kept, negated }));
    }
    let all = tree(parts, if negated { Expr::and } else { Expr::or });
    Ok(all.map_or_else(|| Transformed::no(lit(negated)), Transformed::yes))
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
    let compare = |left: Expr, right: Expr| binary_expr(left, op, right);
    if let Some(ScalarValue::TimestampNanosecond(at, zone)) = constant(&time) {
        let by = |ratio: i64| at.is_none_or(|at| at % ratio == 0).then(|| at.map(|at| at / ratio));
        let seconds = by(1_000_000_000).map(|at| ScalarValue::TimestampSecond(at, zone.clone()));
        if let Some(coarse) = seconds.or_else(|| by(1_000).map(|at| ScalarValue::TimestampMicrosecond(at, zone))) {
            return Ok(compare(cast(date, coarse.data_type()), lit(coarse)));
        }
    }
    let day = |day: i32| lit(ScalarValue::Date32(Some(day)));
    // The optimiser takes a CASE of truths apart, and then the last branch is computed for all dates.
    let within = when(date.clone().between(day(DAYS.0), day(DAYS.1)), date.clone()).end()?;
    let stamp = cast(within, of.clone());
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
