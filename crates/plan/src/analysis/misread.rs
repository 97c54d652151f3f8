//! Operators, casts and patterns that DataFusion's simplifier takes for others.
//!
//! | form | taken for |
//! |---|---|
//! | `-(a & b)`, `a & -a` | `-` for the complement of bits |
//! | `d % 1` of decimals | a remainder of integers, which is 0 |
//! | `d * 0` of decimals | the constant, of another type |
//! | `TRY_CAST(b AS TINYINT) <> 1`, `CAST(d AS BIGINT) = 1` | `b <> 1`, `d = 1`: a cast that never fails or rounds |
//! | `s ~ 'a\\b'` | `LIKE '%a\b%'`, where `\` escapes |
//! | `s ~ '.*'` | `s IS NOT NULL`, which is never NULL |
//!
//! Such forms also arise where projections are merged and filters move. This rule therefore makes each part that can be
//! misread [opaque](crate::opaque_values), whatever stands around it.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, TryCast};
use regex_syntax::hir::{Hir, HirKind};

use crate::failing::holds_all;
use crate::opaque_values::{opaque, unlike, within_opaque};
use crate::rewriting::map_typed;

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, within)
}

fn within(e: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    Ok(match e {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::BitwiseAnd | Operator::BitwiseOr | Operator::BitwiseXor), right })
            if varies(&left) || varies(&right) =>
        {
            // No side is what the other one is the negative of, and all of it is nothing to negate by parts.
            let (left, right) = if within_opaque(&left).is_none() { (Box::new(opaque(*left)), right) } else { (left, Box::new(unlike(*right))) };
            Transformed::yes(opaque(Expr::BinaryExpr(BinaryExpr { left, op, right })))
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Modulo, right })
            if varies(&left) && may_be_one(&right) && within_opaque(&right).is_none() && left.get_type(schema).is_ok_and(|of| of.is_decimal()) =>
        {
            Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op: Operator::Modulo, right: Box::new(opaque(*right)) }))
        }
        // The product would have the type of the constant.
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Multiply, right }) if is_zero_decimal(&left) || is_zero_decimal(&right) => {
            let hidden = |e: Box<Expr>| if is_zero_decimal(&e) { Box::new(opaque(*e)) } else { e };
            Transformed::yes(Expr::BinaryExpr(BinaryExpr { left: hidden(left), op: Operator::Multiply, right: hidden(right) }))
        }
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: op @ (Operator::RegexMatch | Operator::RegexIMatch | Operator::RegexNotMatch | Operator::RegexNotIMatch),
            right,
        }) if is_misread(&right) => Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right: Box::new(opaque(*right)) })),
        Expr::ScalarFunction(ScalarFunction { func, mut args }) if func.name() == "regexp_like" && args.get(1).is_some_and(is_misread) => {
            if let Some(pattern) = args.get_mut(1) {
                *pattern = opaque(std::mem::take(pattern));
            }
            Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args }))
        }
        Expr::Cast(Cast { ref expr, ref field }) if varies(expr) && expr.get_type(schema).is_ok_and(|of| is_lossy(&of, field.data_type(), false)) => {
            Transformed::yes(opaque(e))
        }
        Expr::TryCast(TryCast { ref expr, ref field }) if varies(expr) && expr.get_type(schema).is_ok_and(|of| is_lossy(&of, field.data_type(), true)) => {
            Transformed::yes(opaque(e))
        }
        other => Transformed::no(other),
    })
}

/// Whether `e` is no constant. Constants are computed, and not misread; some functions ask for them.
fn varies(e: &Expr) -> bool {
    let is_constant = |e: &Expr| {
        matches!(e, Expr::Literal(..) | Expr::Alias(_) | Expr::Cast(_) | Expr::TryCast(_) | Expr::Negative(_) | Expr::BinaryExpr(_) | Expr::ScalarFunction(_))
    };
    e.is_volatile() || e.exists(|e| Ok(!is_constant(e))).unwrap_or(true)
}

fn is_zero_decimal(e: &Expr) -> bool {
    let value = match e {
        Expr::Cast(Cast { expr, field }) if field.data_type().is_decimal() => expr.as_literal(),
        other => other.as_literal().filter(|value| value.data_type().is_decimal()),
    };
    value.is_some_and(|value| value.cast_to(&DataType::Float64).is_ok_and(|value| value == 0.0.into()))
}

fn may_be_one(e: &Expr) -> bool {
    match e {
        Expr::Literal(value, _) => value.cast_to(&DataType::Float64).is_ok_and(|value| value == 1.0.into()),
        _ => true,
    }
}

/// Whether a pattern loses its meaning on the way to `LIKE`: one that is not known yet may.
fn is_misread(pattern: &Expr) -> bool {
    let Expr::Literal(value, _) = pattern else { return within_opaque(pattern).is_none() };
    match value.try_as_str().flatten() {
        Some(".*") => true,
        // A pattern that is none is refused where it is simplified.
        Some(text) if text.contains(['\\', '[']) => regex_syntax::parse(text).is_ok_and(|hir| has_backslash(&hir)),
        _ => false,
    }
}

/// Whether a text that the pattern has literally has a `\` in it.
fn has_backslash(of: &Hir) -> bool {
    match of.kind() {
        HirKind::Literal(text) => text.0.contains(&b'\\'),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => parts.iter().any(has_backslash),
        HirKind::Capture(capture) => has_backslash(&capture.sub),
        HirKind::Repetition(repetition) => has_backslash(&repetition.sub),
        HirKind::Empty | HirKind::Class(_) | HirKind::Look(_) => false,
    }
}

/// Whether a cast between types that DataFusion compares before the cast rounds or fails for some value. It looks
/// itself at times that become coarser, and at dates. `tries` says that a failure is NULL.
fn is_lossy(from: &DataType, to: &DataType, tries: bool) -> bool {
    let (from, to) = (values(from), values(to));
    if from == to || !is_compared(from) || !is_compared(to) {
        return false;
    }
    match (from, to) {
        // Times beyond the range of a finer unit are errors at any rate, which other rules keep away.
        (DataType::Timestamp(..), DataType::Timestamp(..)) => tries,
        (a, b) if is_date(a) || is_date(b) => match (a, b) {
            (DataType::Date32, to) if to.is_integer() => !matches!(to, DataType::Int32 | DataType::Int64),
            (DataType::Date64, to) if to.is_integer() => !matches!(to, DataType::Int64),
            (from, _) => from.is_integer() && !matches!(from, DataType::Int8 | DataType::Int16 | DataType::Int32),
        },
        (DataType::Timestamp(..), to) => !matches!(to, DataType::Int64),
        (from, DataType::Timestamp(..)) => !from.is_integer() || matches!(from, DataType::UInt64),
        (from, to) => !holds_all(from, to),
    }
}

/// The type of a dictionary's values.
fn values(of: &DataType) -> &DataType {
    match of {
        DataType::Dictionary(_, of) => of,
        other => other,
    }
}

/// Whether DataFusion moves casts from or to such a type to the constant.
fn is_compared(of: &DataType) -> bool {
    of.is_integer() || of.is_decimal() || is_date(of) || matches!(of, DataType::Timestamp(..))
}

fn is_date(of: &DataType) -> bool {
    matches!(of, DataType::Date32 | DataType::Date64)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::TimeUnit;
    use datafusion::arrow::util::pretty::pretty_format_batches;
    use datafusion::execution::SessionStateBuilder;
    use datafusion::optimizer::Optimizer;
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::planning::limited;

    /// The column of a query over a table without NULL: a 1 to 3, b 1, 300, -1, d 1.50, 2.00, 0.25, s `a\b`, `ab`, `\`.
    async fn column(query: &str) -> String {
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_analyzer_rule(super::super::rule("misread", rewrite))
            .with_optimizer_rules(limited(Optimizer::default().rules));
        let mut state = state.build();
        crate::register_functions(&mut state).unwrap();
        let context = SessionContext::new_with_state(state);
        let rows = r"(1, 1, 1.50, 'a\b'), (2, 300, 2.00, 'ab'), (3, -1, 0.25, '\')";
        let create = format!("CREATE TABLE t AS SELECT a, b, CAST(d AS DECIMAL(10, 2)) AS d, s FROM (VALUES {rows}) AS v (a, b, d, s)");
        context.sql(&create).await.unwrap();
        let batches = context.sql(query).await.unwrap().collect().await.unwrap();
        let text = pretty_format_batches(&batches).unwrap().to_string();
        let rows = text.lines().skip(3).filter(|line| line.starts_with('|')).map(|line| line.trim_matches(['|', ' ']));
        rows.collect::<Vec<_>>().join(" ")
    }

    #[tokio::test]
    async fn forms_that_are_misread_keep_their_meaning() {
        for (query, expected) in [
            ("SELECT -(a & 1) FROM t ORDER BY a", "-1 0 -1"),
            ("SELECT -x FROM (SELECT a, a | 4 AS x FROM t) ORDER BY a", "-5 -6 -7"),
            ("SELECT a & -a FROM t ORDER BY a", "1 2 1"),
            ("SELECT (a & 6) & -(a & 6) FROM t ORDER BY a", "0 2 2"),
            ("SELECT a | m FROM (SELECT a, -a AS m FROM t) ORDER BY a", "-1 -2 -1"),
            ("SELECT d % 1 FROM t ORDER BY a", "0.50 0.00 0.25"),
            ("SELECT d % one FROM (SELECT a, d, 1 AS one FROM t) ORDER BY a", "0.50 0.00 0.25"),
            ("SELECT arrow_typeof(d * 0) = arrow_typeof(d * a) FROM t WHERE a = 1", "true"),
            ("SELECT a FROM t WHERE TRY_CAST(b AS TINYINT) <> 5 ORDER BY a", "1 3"),
            ("SELECT a FROM (SELECT a, TRY_CAST(b AS TINYINT) AS x FROM t) WHERE x NOT IN (5, 6, 7, 8) ORDER BY a", "1 3"),
            ("SELECT a FROM t WHERE CAST(d AS BIGINT) = 1", "1"),
            (r"SELECT a FROM t WHERE s ~ 'a\\b'", "1"),
            (r"SELECT a FROM t WHERE s !~ '[\\]'", "2"),
            (r"SELECT a FROM t WHERE regexp_like(s, 'A\\b', 'i')", "1"),
            (r"SELECT a FROM (SELECT a, s, '^\x5c' AS p FROM t) WHERE s ~ p", "3"),
            ("SELECT count(*) FROM t WHERE (nullif(s, 'ab') ~ '.*') IS NULL", "1"),
        ] {
            assert_eq!(column(query).await, expected, "{query}");
        }
    }

    #[test]
    fn casts_that_hold_all_values_stay_visible() {
        use DataType::{Date32, Decimal128, Float64, Int8, Int16, Int32, Int64, UInt8, UInt64};
        let times = |unit| DataType::Timestamp(unit, None);
        for (from, to, tries, expected) in [
            (Int32, Int64, false, false),
            (Int64, Int32, false, true),
            (UInt8, Int16, false, false),
            (UInt8, Int8, false, true),
            (Int64, UInt64, false, true),
            (Int64, Decimal128(20, 0), false, false),
            (Int64, Decimal128(10, 2), false, true),
            (Decimal128(10, 2), Decimal128(12, 2), false, false),
            (Decimal128(10, 2), Decimal128(12, 4), false, false),
            (Decimal128(10, 2), Decimal128(10, 0), false, true),
            (Decimal128(10, 2), Int64, false, true),
            (Int64, Float64, false, false),
            (Date32, Int32, false, false),
            (Int64, Date32, false, true),
            (times(TimeUnit::Second), times(TimeUnit::Nanosecond), false, false),
            (times(TimeUnit::Second), times(TimeUnit::Nanosecond), true, true),
            (times(TimeUnit::Nanosecond), Date32, false, false),
            (times(TimeUnit::Nanosecond), Int64, false, false),
            (times(TimeUnit::Nanosecond), Int32, false, true),
        ] {
            assert_eq!(is_lossy(&from, &to, tries), expected, "{from} {to} {tries}");
        }
    }
}
