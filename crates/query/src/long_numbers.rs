//! Numbers that a double does not hold, where they are compared.
//!
//! DataFusion reads a number with a point, or one beyond 64 bits, as a double: of `9999999999999999.98` nothing is left
//! behind the point, and a decimal of that value differs from it. PostgreSQL and DuckDB read a decimal. So does this
//! rule, for operands of comparisons with more digits than any double holds: it writes `CAST('...' AS DECIMAL(p, s))`.
//! Next to a float the constant is a float again, by the rule over floats next to decimals, which reads it exactly.
//!
//! Elsewhere such numbers stay doubles. A decimal there would make products with decimals too wide for 38 digits.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{BinaryOperator, CastKind, DataType, ExactNumberInfo, Expr, Value, visit_expressions_mut};

/// Digits of a decimal that every double of its size tells apart from the next.
const DOUBLE: usize = 15;

/// The most digits of a decimal of 128 bits.
const MOST: usize = 38;

/// The most digits behind the point: those of BIGINT are still compared with them as decimals.
const PLACES: usize = MOST - 20;

/// Makes decimals of the numbers in `statement` that a comparison would see cut.
pub(crate) fn keep_digits(statement: &mut Statement) {
    let Statement::Statement(statement) = statement else { return };
    let _ = visit_expressions_mut(statement.as_mut(), |e| {
        match e {
            Expr::BinaryOp { left, op, right } if compares(op) => operands([left.as_mut(), right.as_mut()]),
            Expr::IsDistinctFrom(left, right) | Expr::IsNotDistinctFrom(left, right) => operands([left.as_mut(), right.as_mut()]),
            Expr::Between { expr, low, high, .. } => operands([expr.as_mut(), low.as_mut(), high.as_mut()]),
            Expr::InList { expr, list, .. } => operands(std::iter::once(expr.as_mut()).chain(list)),
            _ => {}
        }
        ControlFlow::<()>::Continue(())
    });
}

fn compares(op: &BinaryOperator) -> bool {
    use BinaryOperator::{Eq, Gt, GtEq, Lt, LtEq, NotEq, Spaceship};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | Spaceship)
}

fn operands<'e>(all: impl IntoIterator<Item = &'e mut Expr>) {
    let mut all: Vec<&mut Expr> = all.into_iter().collect();
    // A parameter would have the type of the constant, and take no number with more digits.
    if !all.iter().any(|e| matches!(inner(e), Expr::Value(value) if matches!(value.value, Value::Placeholder(_)))) {
        all.iter_mut().for_each(|e| number(e));
    }
}

/// Without parentheses and signs.
fn inner(e: &Expr) -> &Expr {
    match e {
        Expr::Nested(e) | Expr::UnaryOp { expr: e, .. } => inner(e),
        e => e,
    }
}

fn number(e: &mut Expr) {
    match e {
        Expr::Nested(e) | Expr::UnaryOp { expr: e, .. } => number(e),
        Expr::Value(value) => {
            let Value::Number(text, _) = &value.value else { return };
            let Some((precision, scale)) = beyond_double(text) else { return };
            let text = Expr::value(Value::SingleQuotedString(text.clone()));
            let data_type = DataType::Decimal(ExactNumberInfo::PrecisionAndScale(precision, scale));
            *e = Expr::Cast { kind: CastKind::Cast, expr: Box::new(text), data_type, array: false, format: None };
        }
        _ => {}
    }
}

/// Precision and scale of the decimal that `text` writes, where doubles do not hold its digits and a decimal does.
fn beyond_double(text: &str) -> Option<(u64, i64)> {
    if !text.bytes().all(|b| b.is_ascii_digit() || b == b'.') || text.parse::<u64>().is_ok() {
        return None;
    }
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole = whole.trim_start_matches('0');
    let significant = if whole.is_empty() { part.trim_start_matches('0').len() } else { whole.len() + part.len() };
    let precision = (whole.len() + part.len()).max(1);
    (significant > DOUBLE && precision <= MOST && part.len() <= PLACES).then_some((precision as u64, part.len() as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_beyond_doubles_and_within_decimals_count() {
        for (text, wanted) in [
            ("0.5", None),
            ("123456789012345", None),
            ("12345678901234.5", None),
            ("000.00000000000000000001", None),
            ("18446744073709551615", None),
            ("1e400", None),
            ("18446744073709551616", Some((20, 0))),
            ("9007199254740992.5", Some((17, 1))),
            ("0.30000000000000004", Some((17, 17))),
            (".1234567890123456", Some((16, 16))),
            ("9999999999999999999999999999999.9999998", Some((38, 7))),
            ("99999999999999999999999999999999.9999998", None),
            ("10.123456789012345678", Some((20, 18))),
            ("10.1234567890123456789", None),
        ] {
            assert_eq!(beyond_double(text), wanted, "{text}");
        }
    }
}
