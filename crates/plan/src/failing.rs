//! What can fail when a query runs: casts that do not hold all values, and divisors.

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::{Cast, Expr};

/// Whether a divisor may be zero, as far as the plan says.
pub(crate) fn may_be_zero(divisor: &Expr) -> bool {
    match divisor {
        Expr::Literal(value, _) => !value.is_null() && value.cast_to(&DataType::Float64).is_ok_and(|value| value == 0.0.into()),
        Expr::Cast(Cast { expr, .. }) => may_be_zero(expr),
        _ => true,
    }
}

/// Whether a cast is an error for some value of type `from`. Years that nanoseconds do not hold are not counted:
/// columns of other units are compared everywhere, and such years are rare.
pub(crate) fn cast_can_fail(from: &DataType, to: &DataType) -> bool {
    let moment = |of: &DataType| matches!(of, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64);
    let holds = match (from, to) {
        (from, to) if from == to || *from == DataType::Null => true,
        (DataType::Dictionary(_, from), to) => return cast_can_fail(from, to),
        (from, DataType::Dictionary(_, to)) => return cast_can_fail(from, to),
        (from, DataType::Boolean) | (DataType::Boolean, from) if from.is_numeric() => true,
        // Bytes need not be a text.
        (from, to) if to.is_string() => from.is_numeric() || from.is_temporal() || from.is_string() || *from == DataType::Boolean,
        (from, to) if to.is_floating() => from.is_numeric(),
        (from, DataType::Time32(_) | DataType::Time64(_)) => matches!(from, DataType::Timestamp(..)),
        (from, to) if moment(to) => moment(from),
        (from, to) if to.is_binary() => from.is_binary(),
        (from, to) => holds_all(from, to),
    };
    !holds
}

/// Whether numbers of type `to` hold all values of `from` exactly.
pub(crate) fn holds_all(from: &DataType, to: &DataType) -> bool {
    match (integer(from), integer(to), decimal(from), decimal(to)) {
        (Some((signed, bits)), Some((to_signed, to_bits)), ..) => {
            if signed == to_signed {
                bits <= to_bits
            } else {
                !signed && bits < to_bits
            }
        }
        (Some((_, bits)), _, _, Some((digits, scale))) => {
            // The most digits that integers of these bits have.
            let most = match bits {
                8 => 3,
                16 => 5,
                32 => 10,
                _ => 20,
            };
            scale >= 0 && digits - scale >= most
        }
        (_, _, Some((digits, scale)), Some((to_digits, to_scale))) => scale <= to_scale && digits - scale <= to_digits - to_scale,
        _ => false,
    }
}

/// Whether a type of integers has a sign, and its bits.
fn integer(of: &DataType) -> Option<(bool, usize)> {
    of.is_integer().then(|| (of.is_signed_integer(), of.primitive_width().unwrap_or(0) * 8))
}

/// The digits of a type of decimals, and those behind the point.
fn decimal(of: &DataType) -> Option<(i16, i16)> {
    match of {
        DataType::Decimal32(digits, scale) | DataType::Decimal64(digits, scale) | DataType::Decimal128(digits, scale) | DataType::Decimal256(digits, scale) => {
            Some((i16::from(*digits), i16::from(*scale)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::TimeUnit;
    use datafusion::logical_expr::lit;
    use datafusion::prelude::{cast, col};

    use super::*;

    #[test]
    fn casts_that_lose_values_can_fail() {
        use DataType::{Binary, Boolean, Date32, Decimal128, Float32, Float64, Int32, Int64, Time64, Timestamp, UInt32, Utf8, Utf8View};
        let micros = || Timestamp(TimeUnit::Microsecond, None);
        for (from, to) in [
            (Int32, Int64),
            (UInt32, Int64),
            (Int64, Float64),
            (Float64, Float32),
            (Decimal128(10, 2), Float64),
            (Int32, Decimal128(12, 2)),
            (Decimal128(9, 2), Decimal128(12, 4)),
            (Boolean, Int32),
            (Int64, Utf8View),
            (Date32, Utf8),
            (Date32, micros()),
            (micros(), Timestamp(TimeUnit::Nanosecond, None)),
            (micros(), Date32),
            (micros(), Time64(TimeUnit::Microsecond)),
        ] {
            assert!(!cast_can_fail(&from, &to), "{from} to {to}");
            assert!(!cast_can_fail(&DataType::Dictionary(Box::new(Int32), Box::new(from.clone())), &to), "a dictionary of {from} to {to}");
        }
        for (from, to) in [
            (Int64, Int32),
            (Int32, UInt32),
            (Float64, Int64),
            (Decimal128(10, 2), Int64),
            // 9.99 becomes 10.0.
            (Decimal128(3, 2), Decimal128(2, 1)),
            (Utf8, Int64),
            (Utf8, Date32),
            (Utf8, Float64),
            (Binary, Utf8),
        ] {
            assert!(cast_can_fail(&from, &to), "{from} to {to}");
        }
    }

    #[test]
    fn divisors_are_known_where_they_are_constants() {
        for (divisor, zero) in [(lit(3), false), (lit(0), true), (lit(0.0), true), (cast(lit(2), DataType::Int64), false), (col("x"), true)] {
            assert_eq!(may_be_zero(&divisor), zero, "{divisor}");
        }
    }
}
