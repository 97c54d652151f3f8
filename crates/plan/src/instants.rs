//! Times of all units as one kind of number: nanoseconds since 1970, in 128 bits.
//!
//! DataFusion compares times of two units in the finer one, and dates with timestamps in nanoseconds. Nanoseconds of 64
//! bits end in 2262, so the year 9999 in a column of microseconds is an error there. `__instant(x)` is `x` as a decimal
//! that holds all times of all units. The rule `analysis::time_pairs` puts it around both sides of such a comparison.
//! Decimals are compared, hashed and sent as any others are.
//!
//! `__length(x)` is the difference `x` of two times as an interval of days and nanoseconds. DataFusion's cast has
//! nanoseconds only, which hold 292 years.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal128Type, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, TimeUnit};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, plan_err};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

/// The function's name in plans.
pub const INSTANT: &str = "__instant";

/// The name of the function that [`length`] calls.
pub const LENGTH: &str = "__length";

/// The type of instants.
const COUNT: DataType = DataType::Decimal128(38, 0);

/// Registers `__instant` and `__length`.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    registry.register_udf(udf(INSTANT))?;
    registry.register_udf(udf(LENGTH)).map(drop)
}

fn udf(name: &'static str) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Exact { name, signature: Signature::any(1, Volatility::Immutable) }))
}

/// `e` as a number that compares with those of all times.
pub(crate) fn instant(e: Expr) -> Expr {
    udf(INSTANT).call(vec![e])
}

/// The difference `e` of two times as an interval.
pub(crate) fn length(e: Expr) -> Expr {
    udf(LENGTH).call(vec![e])
}

/// Whether values of type `of` are points in time.
pub(crate) fn is_time(of: &DataType) -> bool {
    nanoseconds(of).is_some()
}

/// Whether these are types of times, and no type of 64 bits holds all times of both.
pub(crate) fn differ(left: &DataType, right: &DataType) -> bool {
    let days = |of: &DataType| matches!(of, DataType::Date32 | DataType::Date64);
    match (left, right) {
        (DataType::Timestamp(left, _), DataType::Timestamp(right, _)) => left != right,
        (left, right) => is_time(left) && is_time(right) && !(days(left) && days(right)),
    }
}

/// How many nanoseconds one is in a type of times.
fn nanoseconds(of: &DataType) -> Option<i128> {
    Some(match of {
        DataType::Date32 => 86_400_000_000_000,
        DataType::Date64 => 1_000_000,
        DataType::Timestamp(unit, _) => i128::from(one(*unit)),
        _ => return None,
    })
}

fn one(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// The number of each time.
pub(crate) fn counted(times: &ArrayRef) -> Result<ArrayRef> {
    if times.data_type().is_null() {
        return Ok(cast(times, &COUNT)?);
    }
    let Some(ratio) = nanoseconds(times.data_type()) else { return exec_err!("{INSTANT} counts times, and {} is none", times.data_type()) };
    let numbers = match times.data_type() {
        DataType::Date32 => cast(&cast(times, &DataType::Int32)?, &DataType::Int64)?,
        _ => cast(times, &DataType::Int64)?,
    };
    // 64 bits and the nanoseconds of a day, which have 47: the product has fewer than 38 digits.
    let counts = numbers.as_primitive::<Int64Type>().unary::<_, Decimal128Type>(|number| i128::from(number) * ratio);
    Ok(Arc::new(counts.with_data_type(COUNT)))
}

/// The interval of each difference.
fn lengths(differences: &ArrayRef) -> Result<ArrayRef> {
    const DAY: i64 = 86_400_000_000_000;
    let DataType::Duration(unit) = differences.data_type() else { return exec_err!("{LENGTH} takes differences of times, not {}", differences.data_type()) };
    let (one, numbers) = (one(*unit), cast(differences, &DataType::Int64)?);
    let interval = |number: i64| {
        let per_day = DAY / one;
        // Nanoseconds of less than a day fit, always.
        let nanoseconds = number.rem_euclid(per_day) * one;
        let days = i32::try_from(number.div_euclid(per_day)).or_else(|_| exec_err!("a difference of more than 5 million years"))?;
        Ok::<_, DataFusionError>(IntervalMonthDayNano::new(0, days, nanoseconds))
    };
    Ok(Arc::new(numbers.as_primitive::<Int64Type>().try_unary::<_, IntervalMonthDayNanoType, _>(interval)?))
}

/// A function that gives the exact value of its argument.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Exact {
    name: &'static str,
    signature: Signature,
}

impl Exact {
    fn values(&self, of: &ArrayRef) -> Result<ArrayRef> {
        if self.name == LENGTH { lengths(of) } else { counted(of) }
    }
}

impl ScalarUDFImpl for Exact {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [of] if self.name == INSTANT && (is_time(of) || of.is_null()) => Ok(COUNT),
            [DataType::Duration(_)] if self.name == LENGTH => Ok(DataType::Interval(IntervalUnit::MonthDayNano)),
            [of] => plan_err!("{} does not take {of}", self.name),
            _ => plan_err!("{} takes one value", self.name),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(match args.args.as_slice() {
            [ColumnarValue::Array(times)] => ColumnarValue::Array(self.values(times)?),
            [ColumnarValue::Scalar(time)] => ColumnarValue::Scalar(ScalarValue::try_from_array(&self.values(&time.to_array()?)?, 0)?),
            _ => return plan_err!("{} takes one value", self.name),
        })
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{Int64Array, new_null_array};

    use super::*;

    #[test]
    fn times_of_all_units_count_in_one() {
        let second = [("+09:30", TimeUnit::Second, 1), ("UTC", TimeUnit::Millisecond, 1_000), ("", TimeUnit::Microsecond, 1_000_000)];
        for (zone, unit, per_second) in second {
            let of = DataType::Timestamp(unit, (!zone.is_empty()).then(|| zone.into()));
            let given: ArrayRef = Arc::new(Int64Array::from(vec![Some(-per_second), None, Some(253_402_300_799 * per_second), Some(i64::MAX)]));
            let found = counted(&cast(&given, &of).unwrap()).unwrap();
            let expected = [Some(-1_000_000_000), None, Some(253_402_300_799_000_000_000), Some(i128::from(i64::MAX) * 1_000_000_000 / i128::from(per_second))];
            assert_eq!(found.as_primitive::<Decimal128Type>().iter().collect::<Vec<_>>(), expected, "{of}");
        }
        let dates: ArrayRef = Arc::new(datafusion::arrow::array::Date32Array::from(vec![-1, i32::MAX]));
        let found = counted(&dates).unwrap();
        assert_eq!(found.as_primitive::<Decimal128Type>().values().as_ref(), [-86_400_000_000_000, i128::from(i32::MAX) * 86_400_000_000_000]);
        assert_eq!(counted(&cast(&dates, &DataType::Date64).unwrap()).unwrap().to_data(), found.to_data());
        assert_eq!(counted(&new_null_array(&DataType::Null, 2)).unwrap().null_count(), 2);
        assert!(counted(&(Arc::new(Int64Array::from(vec![1])) as ArrayRef)).is_err());
    }

    #[test]
    fn differences_are_days_and_nanoseconds() {
        for (unit, one) in [(TimeUnit::Second, 1_i64), (TimeUnit::Microsecond, 1_000_000), (TimeUnit::Nanosecond, 1_000_000_000)] {
            let given: ArrayRef = Arc::new(Int64Array::from(vec![Some(90_000 * one), Some(-one), None]));
            let found = lengths(&cast(&given, &DataType::Duration(unit)).unwrap()).unwrap();
            let found: Vec<_> = found.as_primitive::<IntervalMonthDayNanoType>().iter().collect();
            let of = |days, seconds: i64| Some(IntervalMonthDayNano::new(0, days, seconds * 1_000_000_000));
            assert_eq!(found, [of(1, 3_600), of(-1, 86_399), None], "{unit}");
        }
        let far: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX]));
        assert!(lengths(&cast(&far, &DataType::Duration(TimeUnit::Second)).unwrap()).is_err());
    }

    #[test]
    fn only_times_of_two_units_differ() {
        let of = |unit| DataType::Timestamp(unit, None);
        let zoned = DataType::Timestamp(TimeUnit::Second, Some("UTC".into()));
        assert!(differ(&of(TimeUnit::Second), &of(TimeUnit::Nanosecond)) && differ(&DataType::Date32, &of(TimeUnit::Second)));
        assert!(!differ(&of(TimeUnit::Second), &zoned) && !differ(&DataType::Date32, &DataType::Date64));
        assert!(!differ(&DataType::Int64, &zoned) && !differ(&DataType::Null, &zoned));
    }
}
