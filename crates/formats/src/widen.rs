//! One type for the values of two: the narrowest that holds every value of both exactly, or none.

use std::sync::Arc;

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, Field, FieldRef, Fields, TimeUnit};

use super::storage_schema::plain;

/// The type that holds the values of `a` and `b`, of files with types of their own. Numbers become wider; 64-bit
/// integers next to floats become doubles, whose reader refuses values that a double can't hold. Units of time become
/// finer, times of two zones are in UTC, and structs have the fields of both.
#[must_use]
pub fn exactly(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType as T;
    if a == b {
        return Some(a.clone());
    }
    let (a, b) = (&shallow(a)?, &shallow(b)?);
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (a, b) if a.is_integer() && b.is_integer() => integers(a, b),
        (a, b) if a.is_floating() && b.is_floating() => wider_float(a, b),
        (a, b) if (a.is_integer() && b.is_floating()) || (a.is_floating() && b.is_integer()) => number(a, b),
        (a, b) if is_exact(a) && is_exact(b) => decimals(a, b)?,
        (T::Timestamp(u, x), T::Timestamp(v, y)) if x.is_some() == y.is_some() => {
            T::Timestamp(finer(*u, *v), if x == y { x.clone() } else { Some(Arc::from("UTC")) })
        }
        (T::Date32 | T::Date64, T::Timestamp(unit, None)) | (T::Timestamp(unit, None), T::Date32 | T::Date64) => T::Timestamp(*unit, None),
        (T::Date32, T::Date64) | (T::Date64, T::Date32) => T::Date64,
        (T::Duration(u), T::Duration(v)) => T::Duration(finer(*u, *v)),
        (T::Time32(u) | T::Time64(u), T::Time32(v) | T::Time64(v)) => match finer(*u, *v) {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => T::Time32(unit),
            unit => T::Time64(unit),
        },
        (a, b) if a.is_string() && b.is_string() => larger(a, b, T::LargeUtf8, T::Utf8View),
        (a, b) if is_bytes(a) && is_bytes(b) => larger(a, b, T::LargeBinary, T::BinaryView),
        (T::List(x), T::List(y)) => T::List(field(x, y)?),
        (T::List(x) | T::LargeList(x), T::List(y) | T::LargeList(y)) => T::LargeList(field(x, y)?),
        (T::Map(x, sorted), T::Map(y, both)) => T::Map(field(x, y)?, *sorted && *both),
        (T::Struct(x), T::Struct(y)) => T::Struct(fields(x, y)?),
        _ => return None,
    })
}

/// A type without another encoding of its values. What is within keeps its own, and types without values stay so.
fn shallow(of: &DataType) -> Option<DataType> {
    use DataType as T;
    match of {
        T::Dictionary(_, values) => shallow(values),
        T::RunEndEncoded(_, values) => shallow(values.data_type()),
        T::FixedSizeList(item, _) | T::ListView(item) => Some(T::List(Arc::clone(item))),
        T::LargeListView(item) => Some(T::LargeList(Arc::clone(item))),
        of if of.is_nested() || of.is_null() => Some(of.clone()),
        of => plain(of),
    }
}

fn is_bytes(of: &DataType) -> bool {
    of.is_binary() || matches!(of, DataType::FixedSizeBinary(_))
}

fn is_exact(of: &DataType) -> bool {
    of.is_integer() || of.is_decimal()
}

fn larger(a: &DataType, b: &DataType, large: DataType, view: DataType) -> DataType {
    if *a == view || *b == view {
        view
    } else if *a == large || *b == large {
        large
    } else if a.is_string() {
        DataType::Utf8
    } else {
        DataType::Binary
    }
}

/// Bits and sign of an integer type.
fn bits(of: &DataType) -> (u8, bool) {
    use DataType as T;
    match of {
        T::Int8 => (8, true),
        T::Int16 => (16, true),
        T::Int32 => (32, true),
        T::UInt8 => (8, false),
        T::UInt16 => (16, false),
        T::UInt32 => (32, false),
        T::UInt64 => (64, false),
        _ => (64, true),
    }
}

fn integers(a: &DataType, b: &DataType) -> DataType {
    use DataType as T;
    let ((m, signed), (n, other)) = (bits(a), bits(b));
    if signed == other {
        return if m >= n { a.clone() } else { b.clone() };
    }
    let (unsigned, signed) = if signed { (n, m) } else { (m, n) };
    match signed.max(unsigned.saturating_mul(2)) {
        16 => T::Int16,
        32 => T::Int32,
        64 => T::Int64,
        // Signed and unsigned numbers of 64 bits have up to 20 digits.
        _ => T::Decimal128(20, 0),
    }
}

fn wider_float(a: &DataType, b: &DataType) -> DataType {
    use DataType as T;
    if *a == T::Float64 || *b == T::Float64 { T::Float64 } else { T::Float32 }
}

/// The type for an integer and a float.
fn number(a: &DataType, b: &DataType) -> DataType {
    let (integer, float) = if a.is_integer() { (a, b) } else { (b, a) };
    if *float != DataType::Float64 && bits(integer).0 <= 16 { DataType::Float32 } else { DataType::Float64 }
}

fn decimals(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType as T;
    let digits = |of: &DataType| match of {
        T::Decimal32(p, s) | T::Decimal64(p, s) | T::Decimal128(p, s) | T::Decimal256(p, s) => (i16::from(*p) - i16::from(*s), i16::from(*s)),
        of => match bits(of) {
            (8, _) => (3, 0),
            (16, _) => (5, 0),
            (32, _) => (10, 0),
            (_, true) => (19, 0),
            (_, false) => (20, 0),
        },
    };
    let ((whole, scale), (other, more)) = (digits(a), digits(b));
    let (precision, scale) = (u8::try_from(whole.max(other) + scale.max(more)).ok()?, i8::try_from(scale.max(more)).ok()?);
    match precision {
        p if p <= DECIMAL128_MAX_PRECISION => Some(T::Decimal128(p, scale)),
        p if p <= DECIMAL256_MAX_PRECISION => Some(T::Decimal256(p, scale)),
        _ => None,
    }
}

fn field(a: &FieldRef, b: &FieldRef) -> Option<FieldRef> {
    let of = either(a.data_type(), b.data_type())?;
    Some(Arc::new(Field::new(a.name(), of, a.is_nullable() || b.is_nullable())))
}

/// As [`exactly`], also where one has no type.
pub(super) fn either(a: &DataType, b: &DataType) -> Option<DataType> {
    match (a, b) {
        (DataType::Null, other) | (other, DataType::Null) => Some(other.clone()),
        (a, b) => exactly(a, b),
    }
}

/// The fields of both, by name: those of `a`, then what only `b` has.
fn fields(a: &Fields, b: &Fields) -> Option<Fields> {
    let mut all = Vec::new();
    for x in a {
        all.push(match b.find(x.name()) {
            Some((_, y)) => field(x, y)?,
            None => Arc::new(x.as_ref().clone().with_nullable(true)),
        });
    }
    all.extend(b.iter().filter(|y| a.find(y.name()).is_none()).map(|y| Arc::new(y.as_ref().clone().with_nullable(true))));
    Some(Fields::from(all))
}

/// The narrowest type that holds the values of two inferred types, as inference itself chooses it within one file.
pub(super) fn inferred(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType as T;
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (T::Null, other) | (other, T::Null) => other.clone(),
        (a, b) if a.is_nested() || b.is_nested() => return None,
        (T::Int64 | T::UInt64, T::Float64) | (T::Float64, T::Int64 | T::UInt64) => T::Float64,
        (T::Date32, T::Timestamp(unit, None)) | (T::Timestamp(unit, None), T::Date32) => T::Timestamp(*unit, None),
        (T::Timestamp(a, None), T::Timestamp(b, None)) => T::Timestamp(finer(*a, *b), None),
        _ => T::Utf8,
    })
}

fn finer(a: TimeUnit, b: TimeUnit) -> TimeUnit {
    use TimeUnit as U;
    [U::Nanosecond, U::Microsecond, U::Millisecond].into_iter().find(|u| *u == a || *u == b).unwrap_or(U::Second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_type_holds_both_and_the_order_is_all_the_same() {
        use DataType as T;
        let zoned = |unit, zone: &str| T::Timestamp(unit, Some(zone.into()));
        let text = |of: T| T::Dictionary(Box::new(T::Int8), Box::new(of));
        for (a, b, both) in [
            (T::Int32, T::Int64, Some(T::Int64)),
            (T::UInt8, T::Int8, Some(T::Int16)),
            (T::UInt32, T::Int64, Some(T::Int64)),
            (T::UInt64, T::Int8, Some(T::Decimal128(20, 0))),
            (T::Int16, T::Float32, Some(T::Float32)),
            (T::Int32, T::Float32, Some(T::Float64)),
            (T::Int64, T::Float64, Some(T::Float64)),
            (T::Decimal128(10, 2), T::Decimal64(12, 0), Some(T::Decimal128(14, 2))),
            (T::Decimal128(38, 2), T::Int64, Some(T::Decimal128(38, 2))),
            (T::Decimal128(38, 0), T::Decimal128(38, 38), Some(T::Decimal256(76, 38))),
            (T::Decimal256(76, 0), T::Decimal128(38, 38), None),
            (T::Decimal128(10, 2), T::Float64, None),
            (T::Timestamp(TimeUnit::Microsecond, None), T::Timestamp(TimeUnit::Nanosecond, None), Some(T::Timestamp(TimeUnit::Nanosecond, None))),
            (zoned(TimeUnit::Second, "Europe/Rome"), zoned(TimeUnit::Second, "UTC"), Some(zoned(TimeUnit::Second, "UTC"))),
            (zoned(TimeUnit::Second, "UTC"), T::Timestamp(TimeUnit::Second, None), None),
            (T::Time32(TimeUnit::Second), T::Time64(TimeUnit::Microsecond), Some(T::Time64(TimeUnit::Microsecond))),
            (text(T::Utf8), T::LargeUtf8, Some(T::LargeUtf8)),
            (T::FixedSizeBinary(2), T::FixedSizeBinary(3), Some(T::Binary)),
            (T::Utf8, T::Int64, None),
            (T::Boolean, T::Int64, None),
        ] {
            assert_eq!(exactly(&a, &b), both, "{a} {b}");
            assert_eq!(exactly(&b, &a), both, "{b} {a}");
        }
        let row = |fields: &[(&str, T)]| T::Struct(fields.iter().map(|(n, t)| Field::new(*n, t.clone(), true)).collect());
        let both = exactly(&row(&[("a", T::Int32), ("b", T::Utf8)]), &row(&[("c", T::Date32), ("a", T::Int64)]));
        assert_eq!(both, Some(row(&[("a", T::Int64), ("b", T::Utf8), ("c", T::Date32)])));
    }
}
