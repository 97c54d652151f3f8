//! Digits that numbers are rounded to.

use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, Int64Array, PrimitiveArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type};
use datafusion::common::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};

use super::arguments::{all_constant, as_given};

/// `round` and `trunc` of floats, to as many digits as they do not have. DataFusion multiplies by a power of ten that
/// may be infinite, or zero.
pub(super) fn to_places(inner: &ScalarUDF, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
    let [number, places] = args.args.as_slice() else { return inner.invoke_with_args(args) };
    if !matches!(number.data_type(), DataType::Float32 | DataType::Float64) {
        return inner.invoke_with_args(args);
    }
    let (number, places, rows, constant) = (number.clone(), places.clone(), args.number_rows, all_constant(&args));
    let result = inner.invoke_with_args(args)?;
    let rows = if constant { 1 } else { rows };
    let rounded = result.to_array(rows)?;
    let strays = match rounded.data_type() {
        DataType::Float32 => rounded.as_primitive::<Float32Type>().iter().flatten().any(|x| !x.is_finite()),
        DataType::Float64 => rounded.as_primitive::<Float64Type>().iter().flatten().any(|x| !x.is_finite()),
        _ => false,
    };
    if !strays {
        return Ok(result);
    }
    let (number, places) = (number.to_array(rows)?, cast(&places.to_array(rows)?, &DataType::Int64)?);
    let places = places.as_primitive::<Int64Type>();
    let mended: ArrayRef = match rounded.data_type() {
        DataType::Float32 => std::sync::Arc::new(finite::<Float32Type>(rounded.as_primitive(), number.as_primitive(), places, |x| x.is_finite())),
        _ => std::sync::Arc::new(finite::<Float64Type>(rounded.as_primitive(), number.as_primitive(), places, |x| x.is_finite())),
    };
    as_given(mended, constant)
}

/// `rounded`, where it is finite or the number is not. Digits behind the last one of a number leave it as it is, and
/// those before its first one leave zero.
fn finite<T: ArrowPrimitiveType>(
    rounded: &PrimitiveArray<T>,
    numbers: &PrimitiveArray<T>,
    places: &Int64Array,
    is_finite: fn(T::Native) -> bool,
) -> PrimitiveArray<T> {
    let each = rounded.iter().enumerate().map(|(row, rounded)| {
        let number = numbers.value(row);
        rounded.map(|rounded| match is_finite(rounded) || !is_finite(number) {
            true => rounded,
            false if places.value(row) > 0 => number,
            false => T::Native::default(),
        })
    });
    each.collect()
}
