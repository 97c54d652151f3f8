//! Maps values of any orderable column to 64-bit numbers in their order.
//!
//! The map is monotone: a smaller value never gets a larger number. It is not always one to one: texts with a common
//! beginning, and decimals beyond 64 bits, may share a number. So a range of values becomes a range of numbers that has
//! all of its rows and perhaps others; the scan's filters look at the values themselves. NULLs have a number of their
//! own, above all values. Floats are in IEEE's total order except for the two zeros, which share a number. A NaN is
//! above all numbers or, with a sign, below them: a search for large values looks at [`Order::nans`] as well.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Decimal128Type, Float64Type};
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

/// The number of a NULL.
pub const NULL: u64 = u64::MAX;

/// The highest number of a value.
pub const TOP: u64 = NULL - 1;

/// The largest whole number up to which floats represent all whole numbers.
const EXACT: f64 = (1u64 << 52) as f64;

/// Numbers from `low` to `high`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The lowest.
    pub low: u64,
    /// The highest.
    pub high: u64,
}

impl Interval {
    /// All values, and NULLs.
    pub const ALL: Self = Self { low: 0, high: NULL };
    /// All values.
    pub const VALUES: Self = Self { low: 0, high: TOP };
    /// NULLs.
    pub const NULLS: Self = Self { low: NULL, high: NULL };

    /// What is in both; `None` if nothing is.
    #[must_use]
    pub fn and(self, other: Self) -> Option<Self> {
        let both = Self { low: self.low.max(other.low), high: self.high.min(other.high) };
        (both.low <= both.high).then_some(both)
    }

    /// Whether it has `number`.
    #[must_use]
    pub fn has(self, number: u64) -> bool {
        self.low <= number && number <= self.high
    }
}

/// How values are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Class {
    Signed,
    Unsigned,
    Float,
    Boolean,
    Decimal,
    Bytes,
}

impl Class {
    fn of(column: &DataType) -> Option<Self> {
        Some(match column {
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Self::Signed,
            DataType::Date32 | DataType::Date64 | DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => Self::Signed,
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => Self::Unsigned,
            DataType::Float16 | DataType::Float32 | DataType::Float64 => Self::Float,
            DataType::Boolean => Self::Boolean,
            DataType::Decimal128(..) => Self::Decimal,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Self::Bytes,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => Self::Bytes,
            DataType::Dictionary(_, values) if !matches!(**values, DataType::Dictionary(..)) => return Self::of(values),
            _ => return None,
        })
    }
}

/// How the values of a column become numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    class: Class,
    /// What all texts begin with: their numbers are of what follows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    prefix: Vec<u8>,
}

impl Order {
    /// The order of a column of type `column`; `None` for types that have none. If all texts are between two `bounds`,
    /// their common beginning is left out of the numbers.
    #[must_use]
    pub fn of(column: &DataType, bounds: Option<(&[u8], &[u8])>) -> Option<Self> {
        let class = Class::of(column)?;
        let prefix = match (class, bounds) {
            (Class::Bytes, Some((low, high))) => low.iter().zip(high).take_while(|(a, b)| a == b).map(|(a, _)| *a).collect(),
            _ => Vec::new(),
        };
        Some(Self { class, prefix })
    }

    /// Whether it orders columns of type `column`.
    #[must_use]
    pub fn fits(&self, column: &DataType) -> bool {
        Class::of(column) == Some(self.class)
    }

    /// A number for each value.
    ///
    /// # Errors
    /// Internal where the column is of another class.
    pub fn numbers(&self, column: &ArrayRef) -> Result<Vec<u64>> {
        let plain = plain(column)?;
        if Class::of(plain.data_type()) != Some(self.class) {
            return Err(Error::internal(format!("an index of other values was given a column of {}", column.data_type())));
        }
        let mut numbers = match self.class {
            Class::Signed => signed(&plain)?.into_iter().map(of_signed).collect(),
            Class::Unsigned => unsigned(&plain)?,
            Class::Float => floats(&plain)?.into_iter().map(of_float).collect(),
            Class::Boolean => (0..plain.len()).map(|at| u64::from(plain.as_boolean().value(at))).collect(),
            Class::Decimal => plain.as_primitive::<Decimal128Type>().values().iter().map(|value| of_signed(clamped(*value))).collect(),
            Class::Bytes => texts(&plain).map(|text| self.of_bytes(text)).collect::<Vec<u64>>(),
        };
        for number in &mut numbers {
            *number = (*number).min(TOP);
        }
        if let Some(nulls) = plain.logical_nulls() {
            for (at, number) in numbers.iter_mut().enumerate() {
                if nulls.is_null(at) {
                    *number = NULL;
                }
            }
        }
        Ok(numbers)
    }

    /// The numbers of NaNs, those whose sign is set first; `None` for columns that have no NaN.
    #[must_use]
    pub fn nans(&self) -> Option<[Interval; 2]> {
        let beyond = [Interval { low: 0, high: of_float(f64::NEG_INFINITY) - 1 }, Interval { low: of_float(f64::INFINITY) + 1, high: TOP }];
        (self.class == Class::Float).then_some(beyond)
    }

    fn of_bytes(&self, text: &[u8]) -> u64 {
        match text.strip_prefix(self.prefix.as_slice()) {
            Some(rest) => {
                let mut first = [0; 8];
                let len = rest.len().min(8);
                first[..len].copy_from_slice(&rest[..len]);
                u64::from_be_bytes(first).min(TOP)
            }
            None if text < self.prefix.as_slice() => 0,
            None => TOP,
        }
    }

    /// The range of numbers that values of a column of type `column` may have if they equal the only value of
    /// `literal`, or lie next to it. A value that is not below the literal has at least the lowest number, and one that
    /// is not above it at most the highest. `None` where values of the two types are not compared so.
    #[must_use]
    pub fn around(&self, column: &DataType, literal: &ArrayRef) -> Option<(u64, u64)> {
        let literal = plain(literal).ok()?;
        let column = match column {
            DataType::Dictionary(_, values) => values.as_ref(),
            column => column,
        };
        if literal.len() != 1 || literal.logical_nulls().is_some_and(|nulls| nulls.null_count() > 0) {
            return None;
        }
        let same = |number: u64| Some((number.min(TOP), number.min(TOP)));
        let is_number = |t: &DataType| t.is_integer();
        match (self.class, literal.data_type()) {
            (Class::Signed | Class::Unsigned, t) if is_number(column) => {
                let of = |n: i128| match self.class {
                    Class::Signed => of_signed(clamped(n)),
                    _ => u64::try_from(n.max(0)).unwrap_or(u64::MAX),
                };
                let (below, above) = whole(t, &literal)?;
                Some((of(below).min(TOP), of(above).min(TOP)))
            }
            (Class::Signed, t) if t == column || same_unit(t, column) => same(of_signed(*signed(&literal).ok()?.first()?)),
            (Class::Float, t) if t.is_floating() => same(of_float(*floats(&literal).ok()?.first()?)),
            (Class::Float, t) if t.is_integer() => {
                let (n, _) = whole(t, &literal)?;
                (n.unsigned_abs() < EXACT as u128).then(|| of_float(n as f64)).and_then(same)
            }
            (Class::Boolean, DataType::Boolean) => same(u64::from(literal.as_boolean().value(0))),
            (Class::Decimal, DataType::Decimal128(_, scale)) if matches!(column, DataType::Decimal128(_, own) if own == scale) => {
                same(of_signed(clamped(literal.as_primitive::<Decimal128Type>().value(0))))
            }
            (Class::Bytes, t) if Class::of(t) == Some(Class::Bytes) => same(self.of_bytes(texts(&literal).next()?)),
            _ => None,
        }
    }
}

/// The column without its dictionary.
fn plain(column: &ArrayRef) -> Result<ArrayRef> {
    match column.data_type() {
        DataType::Dictionary(_, values) => cast(column, values).map_err(|e| Error::invalid("cannot read the values of a dictionary column").with_source(e)),
        _ => Ok(ArrayRef::clone(column)),
    }
}

fn same_unit(a: &DataType, b: &DataType) -> bool {
    matches!((a, b), (DataType::Timestamp(a, _), DataType::Timestamp(b, _)) if a == b)
}

/// The whole numbers next below and above an exact number, or itself twice.
fn whole(of: &DataType, literal: &ArrayRef) -> Option<(i128, i128)> {
    match of {
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => unsigned(literal).ok()?.first().map(|n| (i128::from(*n), i128::from(*n))),
        t if t.is_integer() => signed(literal).ok()?.first().map(|n| (i128::from(*n), i128::from(*n))),
        DataType::Float64 => {
            let value = literal.as_primitive::<Float64Type>().value(0);
            // Above that whole numbers are rounded before they are compared.
            (value.abs() < EXACT).then(|| (value.floor() as i128, value.ceil() as i128))
        }
        DataType::Decimal128(_, scale) => {
            let (value, unit) = (literal.as_primitive::<Decimal128Type>().value(0), 10i128.checked_pow(u32::try_from(*scale).ok()?)?);
            let below = value.div_euclid(unit);
            Some((below, below + i128::from(value.rem_euclid(unit) != 0)))
        }
        _ => None,
    }
}

fn clamped(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

fn of_signed(value: i64) -> u64 {
    value as u64 ^ (1 << 63)
}

fn of_float(value: f64) -> u64 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

/// The integers of an array of any type that is stored as signed ones.
fn signed(array: &ArrayRef) -> Result<Vec<i64>> {
    let data = array.to_data();
    Ok(match array.data_type().primitive_width() {
        Some(1) => data.buffer::<i8>(0)[..data.len()].iter().map(|v| i64::from(*v)).collect(),
        Some(2) => data.buffer::<i16>(0)[..data.len()].iter().map(|v| i64::from(*v)).collect(),
        Some(4) => data.buffer::<i32>(0)[..data.len()].iter().map(|v| i64::from(*v)).collect(),
        Some(8) => data.buffer::<i64>(0)[..data.len()].to_vec(),
        _ => return Err(Error::internal(format!("columns of {} are no whole numbers", array.data_type()))),
    })
}

fn unsigned(array: &ArrayRef) -> Result<Vec<u64>> {
    let data = array.to_data();
    Ok(match array.data_type().primitive_width() {
        Some(1) => data.buffer::<u8>(0)[..data.len()].iter().map(|v| u64::from(*v)).collect(),
        Some(2) => data.buffer::<u16>(0)[..data.len()].iter().map(|v| u64::from(*v)).collect(),
        Some(4) => data.buffer::<u32>(0)[..data.len()].iter().map(|v| u64::from(*v)).collect(),
        Some(8) => data.buffer::<u64>(0)[..data.len()].to_vec(),
        _ => return Err(Error::internal(format!("columns of {} are no whole numbers", array.data_type()))),
    })
}

fn floats(array: &ArrayRef) -> Result<Vec<f64>> {
    let wide = cast(array, &DataType::Float64).map_err(|e| Error::internal("cannot widen floats").with_source(e))?;
    Ok(wide.as_primitive::<Float64Type>().values().to_vec())
}

fn texts(array: &ArrayRef) -> Box<dyn Iterator<Item = &[u8]> + '_> {
    let all = 0..array.len();
    match array.data_type() {
        DataType::Utf8 => Box::new(all.map(|at| array.as_string::<i32>().value(at).as_bytes())),
        DataType::LargeUtf8 => Box::new(all.map(|at| array.as_string::<i64>().value(at).as_bytes())),
        DataType::Utf8View => Box::new(all.map(|at| array.as_string_view().value(at).as_bytes())),
        DataType::Binary => Box::new(all.map(|at| array.as_binary::<i32>().value(at))),
        DataType::LargeBinary => Box::new(all.map(|at| array.as_binary::<i64>().value(at))),
        DataType::BinaryView => Box::new(all.map(|at| array.as_binary_view().value(at))),
        DataType::FixedSizeBinary(_) => Box::new(all.map(|at| array.as_fixed_size_binary().value(at))),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array, StringArray, UInt64Array};

    use super::*;

    fn numbers(column: ArrayRef) -> Vec<u64> {
        Order::of(column.data_type(), None).unwrap().numbers(&column).unwrap()
    }

    #[test]
    fn numbers_are_in_the_order_of_values_and_nulls_above_them() {
        let floats = [f32::NEG_INFINITY, -1.5, -0.0, 0.0, 1e-30, 2.0, f32::INFINITY, f32::NAN];
        let got = numbers(Arc::new(Float32Array::from(floats.to_vec())));
        assert!(got.is_sorted() && got[2] == got[3] && got[1] < got[2] && got[6] < got[7], "{got:?}");
        assert!(numbers(Arc::new(Float64Array::from(vec![-f64::NAN, f64::NEG_INFINITY]))).is_sorted());
        let ints = numbers(Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(-1), Some(0), Some(i64::MAX), None])));
        assert!(ints.is_sorted() && ints[4] == NULL && ints[3] == TOP, "{ints:?}");
        let unsigned = numbers(Arc::new(UInt64Array::from(vec![Some(0), Some(u64::MAX - 2), Some(u64::MAX), None])));
        assert_eq!(unsigned, [0, u64::MAX - 2, TOP, NULL]);
        assert_eq!(numbers(Arc::new(BooleanArray::from(vec![Some(false), Some(true), None]))), [0, 1, NULL]);
        let decimals = Decimal128Array::from(vec![i128::MIN, -5, 7, i128::MAX]);
        assert!(numbers(Arc::new(decimals)).is_sorted());
    }

    #[test]
    fn texts_are_ordered_behind_their_common_prefix() {
        let order = Order::of(&DataType::Utf8, Some((b"particle-1", b"particle-9z"))).unwrap();
        let column: ArrayRef = Arc::new(StringArray::from(vec!["a", "particle", "particle-", "particle-1", "particle-12", "particle-9", "q"]));
        let got = order.numbers(&column).unwrap();
        assert!(got.is_sorted() && got[3] < got[4] && got[0] == 0 && got[6] == TOP, "{got:?}");
        let literal: ArrayRef = Arc::new(StringArray::from(vec!["particle-12"]));
        assert_eq!(order.around(&DataType::Utf8, &literal), Some((got[4], got[4])));
    }

    #[test]
    fn literals_of_other_types_are_rounded_outwards() {
        let order = Order::of(&DataType::Int32, None).unwrap();
        let of = |n: i32| order.numbers(&(Arc::new(Int32Array::from(vec![n])) as ArrayRef)).unwrap()[0];
        let around = |literal: ArrayRef| order.around(&DataType::Int32, &literal);
        assert_eq!(around(Arc::new(Float64Array::from(vec![2.5]))), Some((of(2), of(3))));
        assert_eq!(around(Arc::new(Float64Array::from(vec![-2.5]))), Some((of(-3), of(-2))));
        assert_eq!(around(Arc::new(Decimal128Array::from(vec![-25]).with_precision_and_scale(10, 1).unwrap())), Some((of(-3), of(-2))));
        assert_eq!(around(Arc::new(Float64Array::from(vec![1e300]))), None);
        assert_eq!(around(Arc::new(StringArray::from(vec!["2"]))), None);
        assert!(around(Arc::new(Int64Array::from(vec![None::<i64>]))).is_none());
        let unsigned = Order::of(&DataType::UInt64, None).unwrap();
        assert_eq!(unsigned.around(&DataType::UInt64, &(Arc::new(Int64Array::from(vec![-4])) as ArrayRef)), Some((0, 0)));
        assert!(Order::of(&DataType::Date32, None).unwrap().around(&DataType::Date32, &(Arc::new(Int64Array::from(vec![1])) as ArrayRef)).is_none());
    }
}
