//! Types of operands that DataFusion has no common type for, or the wrong one.
//!
//! - TIME is compared with TIME of another unit as nanoseconds. A literal has nanoseconds, and columns of most files
//!   have microseconds.
//! - BIGINT UNSIGNED divided by BIGINT is a whole number, as other integers are. DataFusion computes with decimals that
//!   hold both, and so gets a fraction.
//! - A date and an interval with hours are a moment. DataFusion drops the hours.
//! - `^` is refused: it is a bit operation in DataFusion, and a power in PostgreSQL and DuckDB.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{BinaryExpr, Case, Expr, ExprSchemable, LogicalPlan, Operator, binary_expr, cast, lit};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use crate::float_keys::compares;
use crate::rewriting::{map_typed, with_types};

/// The planner of operators, as SQL names them.
#[derive(Debug)]
pub struct OperandTypes;

impl ExprPlanner for OperandTypes {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let op = match expr.op {
            BinaryOperator::Eq => Operator::Eq,
            BinaryOperator::NotEq => Operator::NotEq,
            BinaryOperator::Lt => Operator::Lt,
            BinaryOperator::LtEq => Operator::LtEq,
            BinaryOperator::Gt => Operator::Gt,
            BinaryOperator::GtEq => Operator::GtEq,
            BinaryOperator::Divide => Operator::Divide,
            BinaryOperator::Modulo => Operator::Modulo,
            BinaryOperator::Plus => Operator::Plus,
            BinaryOperator::Minus => Operator::Minus,
            BinaryOperator::BitwiseXor | BinaryOperator::PGExp => {
                return not_impl_err!("^, which is a power in some dialects and a bit operation in others: write power(a, b)");
            }
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else { return Ok(PlannerResult::Original(expr)) };
        let types = (left, right);
        if compares(op) {
            return Ok(match are_of_two_units([&types.0, &types.1]) {
                true => PlannerResult::Planned(binary_expr(finest(expr.left), op, finest(expr.right))),
                false => PlannerResult::Original(expr),
            });
        }
        let RawBinaryExpr { op: raw, left, right } = expr;
        if matches!(op, Operator::Plus | Operator::Minus) {
            return Ok(match (has_hours(&types.0, &right, &types.1), has_hours(&types.1, &left, &types.0)) {
                (true, _) => PlannerResult::Planned(binary_expr(cast(left, MOMENT), op, right)),
                (_, true) => PlannerResult::Planned(binary_expr(left, op, cast(right, MOMENT))),
                _ => PlannerResult::Original(RawBinaryExpr { op: raw, left, right }),
            });
        }
        Ok(match whole(left, op, right, schema)? {
            Ok(planned) => PlannerResult::Planned(planned),
            Err((left, right)) => PlannerResult::Original(RawBinaryExpr { op: raw, left, right }),
        })
    }
}

/// What a date and an interval that may have hours make. Microseconds hold all dates of four digits.
pub(crate) const MOMENT: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// Whether `date` is a date, and `interval` an interval that may have less than days, which a date would drop.
fn has_hours(date: &DataType, interval: &Expr, of: &DataType) -> bool {
    let in_days = matches!(interval, Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(of)), _) if of.nanoseconds == 0);
    matches!((date, of), (DataType::Date32 | DataType::Date64, DataType::Interval(_))) && !in_days
}

type Operands = (Expr, Expr);

/// A quotient or a remainder of unsigned and signed numbers.
fn whole(left: Expr, op: Operator, right: Expr, schema: &DFSchema) -> Result<std::result::Result<Expr, Operands>> {
    let types = (left.get_type(schema)?, right.get_type(schema)?);
    let mixed = match &types {
        (DataType::UInt64, other) | (other, DataType::UInt64) => other.is_signed_integer(),
        _ => false,
    };
    if mixed && let (Some(left), Some(right)) = (unsigned(&left, &types.0), unsigned(&right, &types.1)) {
        return Ok(Ok(binary_expr(left, op, right)));
    }
    // Sums and products of both are decimals.
    let decimals = matches!(types, (DataType::Decimal128(..), _) | (_, DataType::Decimal128(..)));
    if op == Operator::Divide && (mixed || decimals && is_whole(&left, schema)? && is_whole(&right, schema)?) {
        return Ok(Ok(cast(binary_expr(left, op, right), DataType::Int64)));
    }
    Ok(Err((left, right)))
}

/// `e` as BIGINT UNSIGNED, if it is, or is a constant that fits.
fn unsigned(e: &Expr, of: &DataType) -> Option<Expr> {
    match e {
        e if *of == DataType::UInt64 => Some(e.clone()),
        Expr::Literal(value, _) => match value.cast_to(&DataType::Int64) {
            Ok(ScalarValue::Int64(Some(number))) => u64::try_from(number).ok().map(lit),
            _ => None,
        },
        _ => None,
    }
}

/// Whether `e` is computed from whole numbers alone, whatever its type.
fn is_whole(e: &Expr, schema: &DFSchema) -> Result<bool> {
    Ok(match e {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Modulo, right }) => {
            is_whole(left, schema)? && is_whole(right, schema)?
        }
        Expr::Alias(alias) => is_whole(&alias.expr, schema)?,
        Expr::Negative(inner) => is_whole(inner, schema)?,
        other => other.get_type(schema)?.is_integer(),
    })
}

/// Before DataFusion finds common types: comparisons of TIME that are no operators of SQL's text.
pub(crate) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, times)
}

fn times(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    // What has no type yet is left to DataFusion's errors.
    let of = |all: &[&Expr]| {
        let types: Vec<DataType> = all.iter().map_while(|e| e.get_type(schema).ok().filter(is_time)).collect();
        types.len() == all.len() && are_of_two_units(&types)
    };
    Ok(match e {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(op) && of(&[&left, &right]) => {
            Transformed::yes(binary_expr(finest(*left), op, finest(*right)))
        }
        Expr::Between(Between { expr, negated, low, high }) if of(&[&expr, &low, &high]) => {
            let [expr, low, high] = [expr, low, high].map(|e| Box::new(finest(*e)));
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InList(InList { expr, list, negated }) if of(&std::iter::once(expr.as_ref()).chain(&list).collect::<Vec<_>>()) => {
            let list = list.into_iter().map(finest).collect();
            Transformed::yes(Expr::InList(InList { expr: Box::new(finest(*expr)), list, negated }))
        }
        Expr::Case(Case { expr: Some(expr), when_then_expr, else_expr })
            if of(&std::iter::once(expr.as_ref()).chain(when_then_expr.iter().map(|(when, _)| when.as_ref())).collect::<Vec<_>>()) =>
        {
            let when_then_expr = when_then_expr.into_iter().map(|(when, then)| (Box::new(finest(*when)), then)).collect();
            Transformed::yes(Expr::Case(Case { expr: Some(Box::new(finest(*expr))), when_then_expr, else_expr }))
        }
        Expr::InSubquery(mut among) => {
            let inner = Arc::clone(&among.subquery.subquery);
            let values: Vec<DataType> = inner.schema().fields().iter().map(|field| field.data_type().clone()).collect();
            match (among.expr.get_type(schema), values.as_slice()) {
                (Ok(of), [value]) if are_of_two_units([&of, value]) => {
                    among.expr = Box::new(finest(*among.expr));
                    among.subquery = among.subquery.with_plan(Arc::new(with_types(inner, &[Some(FINEST)])?));
                    Transformed::yes(Expr::InSubquery(among))
                }
                _ => Transformed::no(Expr::InSubquery(among)),
            }
        }
        other => Transformed::no(other),
    })
}

/// Whether all are TIME or NULL, in different units.
fn are_of_two_units<'t>(types: impl IntoIterator<Item = &'t DataType>) -> bool {
    let (mut first, mut differ) = (None, false);
    for of in types {
        if !is_time(of) {
            return false;
        }
        differ |= !of.is_null() && *first.get_or_insert(of) != of;
    }
    differ
}

fn is_time(of: &DataType) -> bool {
    matches!(of, DataType::Time32(_) | DataType::Time64(_) | DataType::Null)
}

const FINEST: DataType = DataType::Time64(TimeUnit::Nanosecond);

fn finest(e: Expr) -> Expr {
    cast(e, FINEST)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::{Field, Schema};
    use datafusion::prelude::col;

    use super::*;

    fn planned(left: Expr, op: BinaryOperator, right: Expr) -> Option<String> {
        let of = [("u", DataType::UInt64), ("i", DataType::Int64), ("s", DataType::Time32(TimeUnit::Second)), ("us", DataType::Time64(TimeUnit::Microsecond))];
        let fields: Vec<Field> = of.into_iter().map(|(name, of)| Field::new(name, of, true)).collect();
        let schema = DFSchema::try_from(Arc::new(Schema::new(fields))).unwrap();
        match OperandTypes.plan_binary_op(RawBinaryExpr { op, left, right }, &schema).unwrap() {
            PlannerResult::Planned(e) => Some(e.to_string()),
            PlannerResult::Original(_) => None,
        }
    }

    #[test]
    fn quotients_of_unsigned_numbers_are_whole() {
        let quotient = |left, right| planned(left, BinaryOperator::Divide, right);
        assert_eq!(quotient(col("u"), lit(2i64)).as_deref(), Some("u / UInt64(2)"));
        assert_eq!(quotient(col("u"), lit(-2i64)).as_deref(), Some("CAST(u / Int64(-2) AS Int64)"));
        assert_eq!(quotient(col("u") + col("i"), lit(2i64)).as_deref(), Some("CAST((u + i) / Int64(2) AS Int64)"));
        assert_eq!(planned(col("u"), BinaryOperator::Modulo, lit(10i64)).as_deref(), Some("u % UInt64(10)"));
        for (left, right) in [(col("i"), lit(2i64)), (col("u"), col("u")), (col("i"), lit(2.0))] {
            assert_eq!(quotient(left, right), None);
        }
    }

    #[test]
    fn times_of_two_units_are_compared_as_nanoseconds() {
        let equal = |left, right| planned(left, BinaryOperator::Eq, right);
        assert_eq!(equal(col("s"), col("us")).as_deref(), Some("CAST(s AS Time64(ns)) = CAST(us AS Time64(ns))"));
        assert_eq!(equal(col("s"), col("s")), None);
        assert_eq!(equal(col("i"), col("us")), None);
    }
}
