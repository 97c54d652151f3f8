//! Texts to times, and bins of times.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, make_array};
use datafusion::arrow::compute::kernels::zip::zip;
use datafusion::arrow::compute::{CastOptions, cast, cast_with_options, not, nullif};
use datafusion::arrow::datatypes::{DataType, Float64Type, Int64Type, TimeUnit};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use super::arguments::{all_constant, as_given, spread};
use super::calendar::{MONTHS, Moved, beyond, is_even, shown};

/// `to_timestamp` and its relatives. Of a column of texts DataFusion makes times without the zone that it planned. A
/// float that no time is becomes the first or the last one.
pub(super) fn parsed(inner: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    spread(&mut args)?;
    if let Some(seconds) = args.args.first().filter(|of| of.data_type().is_floating()) {
        in_range(inner.name(), seconds)?;
    }
    let of = args.return_field.data_type().clone();
    let result = inner.invoke_with_args(args)?;
    match result {
        ColumnarValue::Array(times) if *times.data_type() != of => Ok(ColumnarValue::Array(labelled(&times, &of)?)),
        result => Ok(result),
    }
}

/// `times` as times of type `of`: the same instants with a zone.
fn labelled(times: &ArrayRef, of: &DataType) -> Result<ArrayRef> {
    match (times.data_type(), of) {
        (DataType::Timestamp(unit, None), DataType::Timestamp(to, Some(_))) if unit == to => {
            Ok(make_array(times.to_data().into_builder().data_type(of.clone()).build()?))
        }
        _ => Ok(cast(times, of)?),
    }
}

/// An error for a number of seconds that `to_timestamp` has no time for. The relatives count in their own units, and
/// take whole numbers.
fn in_range(name: &str, numbers: &ColumnarValue) -> Result<()> {
    let most = if name == "to_timestamp" { NANOSECONDS_HOLD } else { i64::MAX as f64 };
    let fits = |number: f64| number.abs() < most;
    let array = match numbers {
        ColumnarValue::Array(array) => array.clone(),
        ColumnarValue::Scalar(scalar) => scalar.to_array()?,
    };
    let array = cast(&array, &DataType::Float64)?;
    match array.as_primitive::<Float64Type>().iter().flatten().find(|number| !fits(*number)) {
        Some(number) => exec_err!("{name}: there is no time for {number:e}"),
        None => Ok(()),
    }
}

/// Seconds before and after 1970 that nanoseconds of 64 bits hold.
const NANOSECONDS_HOLD: f64 = 9_223_372_036.0;

/// `date_trunc`, of a constant as of a column: before 1970 DataFusion rounds fractions of constants up. DataFusion
/// calculates in nanoseconds; what these do not hold is moved to where they do.
pub(super) fn truncated(inner: &ScalarUDF, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let constant = all_constant(&args);
    let rows = if constant { 1 } else { args.number_rows };
    let is_coarse = matches!(args.args.first(), Some(ColumnarValue::Scalar(part)) if part.try_as_str().flatten().is_some_and(is_coarse));
    let Some(time) = args.args.get_mut(1) else { return inner.invoke_with_args(args) };
    let DataType::Timestamp(unit, zone) = time.data_type() else { return inner.invoke_with_args(args) };
    let times = time.to_array(rows)?;
    let moved = match zone.as_deref() {
        zone if is_even(zone) => Moved::of(&times)?,
        Some(zone) => {
            let far = beyond(&times, unit)?;
            if far.true_count() > 0 && is_coarse {
                let result = apart(inner, &args, &times, &far, |far| shown(far, unit, zone))?;
                return as_given(result, constant);
            }
            None
        }
        None => None,
    };
    *time = ColumnarValue::Array(moved.as_ref().map_or(times, |moved| ArrayRef::clone(&moved.times)));
    args.number_rows = rows;
    match inner.invoke_with_args(args)? {
        ColumnarValue::Array(result) => as_given(moved.map_or(Ok(ArrayRef::clone(&result)), |moved| moved.back(&result))?, constant),
        result => Ok(result),
    }
}

/// Whether `date_trunc` calculates in nanoseconds, and not in the time's own unit.
fn is_coarse(part: &str) -> bool {
    ["hour", "day", "week", "month", "quarter", "year"].iter().any(|coarse| coarse.eq_ignore_ascii_case(part))
}

/// `date_trunc` of `times` in a zone, those that are `far` as the zone shows them.
fn apart(
    inner: &ScalarUDF,
    args: &ScalarFunctionArgs,
    times: &ArrayRef,
    far: &BooleanArray,
    shown: impl Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    let call = |of: ArrayRef| -> Result<ArrayRef> {
        let mut args = args.clone();
        args.number_rows = of.len();
        if let Some(time) = args.args.get_mut(1) {
            *time = ColumnarValue::Array(of);
        }
        truncated(inner, args)?.to_array(times.len())
    };
    let near = call(nullif(times, far)?)?;
    let distant = call(shown(&nullif(times, &not(far)?)?)?)?;
    let in_zone = cast_with_options(&distant, times.data_type(), &CastOptions { safe: false, ..CastOptions::default() })?;
    Ok(zip(far, &in_zone, &near)?)
}

/// `date_bin`, also of times that nanoseconds do not hold. DataFusion calculates in nanoseconds, and gives NULL where
/// they end.
pub(super) fn binned(inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let again = args.clone();
    let (rows, constant) = (args.number_rows, all_constant(&args));
    let result = inner.invoke_with_args(args)?;
    let [stride, source, origin @ ..] = again.args.as_slice() else { return Ok(result) };
    let DataType::Timestamp(unit, _) = source.data_type() else { return Ok(result) };
    if matches!(stride, ColumnarValue::Scalar(stride) if stride.is_null()) {
        return Ok(result);
    }
    let of = result.data_type();
    let rows = if constant { 1 } else { rows };
    let (binned, source) = (result.to_array(rows)?, source.to_array(rows)?);
    if binned.null_count() == source.null_count() {
        return Ok(result);
    }
    let Some(bins) = Bins::of(stride, origin.first(), unit) else {
        return of_months(inner, again, &source).and_then(|binned| as_given(binned, constant));
    };
    let times = cast(&source, &DataType::Int64)?;
    let values = times.as_primitive::<Int64Type>().iter().map(|time| time.map(|time| bins.begin(time)).transpose());
    let values: Int64Array = values.collect::<Result<_>>()?;
    as_given(make_array(values.to_data().into_builder().data_type(of).build()?), constant)
}

/// Bins of months, of times that nanoseconds do not all hold.
fn of_months(inner: &ScalarUDF, mut args: ScalarFunctionArgs, times: &ArrayRef) -> Result<ArrayRef> {
    let repeats = match args.args.first() {
        Some(ColumnarValue::Scalar(ScalarValue::IntervalMonthDayNano(Some(of)))) => of.months != 0 && MONTHS % of.months == 0,
        _ => false,
    };
    if let Some(moved) = Moved::of(times)?.filter(|_| repeats)
        && let Some(source) = args.args.get_mut(1)
    {
        *source = ColumnarValue::Array(ArrayRef::clone(&moved.times));
        args.number_rows = times.len();
        let binned = moved.back(&inner.invoke_with_args(args)?.to_array(times.len())?)?;
        if binned.null_count() == times.null_count() {
            return Ok(binned);
        }
    }
    exec_err!("date_bin: bins of months beyond the years 1678 to 2261, unless 400 years are a whole number of them; use date_trunc")
}

/// Bins of a fixed length, in nanoseconds of more than 64 bits.
struct Bins {
    length: i128,
    origin: i128,
    /// Nanoseconds of the times' unit.
    unit: i128,
}

impl Bins {
    /// `None` for bins of months.
    fn of(length: &ColumnarValue, origin: Option<&ColumnarValue>, unit: TimeUnit) -> Option<Self> {
        let length = match length {
            ColumnarValue::Scalar(ScalarValue::IntervalMonthDayNano(Some(of))) if of.months == 0 => i128::from(of.days) * DAY + i128::from(of.nanoseconds),
            ColumnarValue::Scalar(ScalarValue::IntervalDayTime(Some(of))) => i128::from(of.days) * DAY + i128::from(of.milliseconds) * 1_000_000,
            _ => return None,
        };
        let origin = match origin {
            Some(ColumnarValue::Scalar(ScalarValue::TimestampNanosecond(Some(origin), _))) => i128::from(*origin),
            Some(_) => return None,
            None => 0,
        };
        let unit = match unit {
            TimeUnit::Second => 1_000_000_000,
            TimeUnit::Millisecond => 1_000_000,
            TimeUnit::Microsecond => 1_000,
            TimeUnit::Nanosecond => 1,
        };
        (length > 0).then_some(Self { length, origin, unit })
    }

    /// Where the bin of `time` begins.
    fn begin(&self, time: i64) -> Result<i64> {
        let since = i128::from(time) * self.unit - self.origin;
        let begin = (self.origin + since.div_euclid(self.length) * self.length).div_euclid(self.unit);
        i64::try_from(begin).or_else(|_| exec_err!("date_bin: the bin begins before the first time"))
    }
}

const DAY: i128 = 86_400_000_000_000;
