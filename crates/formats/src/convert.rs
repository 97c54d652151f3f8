//! Conversions of columns that keep every value, or name the row that does not survive.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray, new_null_array};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Float32Type, Float64Type, TimeUnit};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// `array` as `to`, every value equal to what it was.
///
/// # Errors
/// Where a value does not fit.
pub(super) fn exactly(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    use DataType as T;
    Ok(match (array.data_type(), to) {
        (from, to) if from == to => Arc::clone(array),
        (T::Null, to) => new_null_array(to, array.len()),
        (T::Dictionary(..) | T::RunEndEncoded(..), to) => {
            let values = super::storage_schema::plain(array.data_type()).ok_or_else(|| mismatch(array.data_type(), to))?;
            exactly(&cast(array, &values)?, to)?
        }
        (T::List(_), T::List(item)) => list::<i32>(array, item)?,
        (T::LargeList(_), T::LargeList(item)) => list::<i64>(array, item)?,
        (T::List(_), T::LargeList(item)) => {
            let items = list::<i32>(array, item)?;
            cast(&items, to)?
        }
        (T::ListView(item) | T::FixedSizeList(item, _), T::List(_) | T::LargeList(_)) => exactly(&cast(array, &T::List(Arc::clone(item)))?, to)?,
        (T::LargeListView(item), T::LargeList(_)) => exactly(&cast(array, &T::LargeList(Arc::clone(item)))?, to)?,
        (T::FixedSizeList(_, _), T::FixedSizeList(item, n)) => {
            let list = array.as_fixed_size_list();
            Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *n, exactly(list.values(), item.data_type())?, list.nulls().cloned())?)
        }
        (T::Map(..), T::Map(entries, sorted)) => {
            let map = array.as_map();
            let inner: ArrayRef = Arc::new(map.entries().clone());
            // Rename the entries' fields by position: writers call them as they like.
            let inner = by_position(&inner, entries.data_type())?;
            Arc::new(MapArray::try_new(Arc::clone(entries), map.offsets().clone(), inner.as_struct().clone(), map.nulls().cloned(), *sorted)?)
        }
        (T::Struct(_), T::Struct(fields)) => {
            let rows = array.as_struct();
            let columns = fields.iter().map(|field| match rows.column_by_name(field.name()) {
                Some(column) => exactly(column, field.data_type()),
                None => Ok(new_null_array(field.data_type(), rows.len())),
            });
            Arc::new(StructArray::try_new_with_length(fields.clone(), columns.collect::<Result<_, _>>()?, rows.nulls().cloned(), rows.len())?)
        }
        (from, T::Float32 | T::Float64) if from.is_integer() => {
            let floats = cast(array, to)?;
            // Beyond 53 bits some integers lie between two doubles.
            if !round_trips(array, &floats) {
                return Err(ArrowError::CastError(format!("a whole number has more digits than {to} holds")));
            }
            floats
        }
        // Days count less than a unit of time, so their product may not fit.
        (T::Date32, T::Timestamp(_, _)) => exactly(&cast(array, &T::Timestamp(TimeUnit::Second, None))?, to)?,
        (T::Date64, T::Timestamp(_, _)) => exactly(&cast(array, &T::Timestamp(TimeUnit::Millisecond, None))?, to)?,
        (_, to) => cast(array, to)?,
    })
}

/// `array` in its plain form `to`: only how values are written changes.
///
/// # Errors
/// Where a value does not fit.
pub(super) fn plainly(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == to { Ok(Arc::clone(array)) } else { cast(array, to) }
}

fn mismatch(from: &DataType, to: &DataType) -> ArrowError {
    ArrowError::CastError(format!("{from} is no {to}"))
}

fn cast(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    cast_with_options(array, to, &CastOptions { safe: false, format_options: FormatOptions::default() })
}

fn round_trips(integers: &ArrayRef, floats: &ArrayRef) -> bool {
    // Wide enough for all integers, so that the way back can't overflow.
    let Ok(wide) = cast(integers, &DataType::Decimal128(20, 0)) else { return false };
    let wide = wide.as_primitive::<arrow::datatypes::Decimal128Type>();
    let back = |row: usize| match floats.data_type() {
        DataType::Float32 => f64::from(floats.as_primitive::<Float32Type>().value(row)),
        _ => floats.as_primitive::<Float64Type>().value(row),
    };
    (0..wide.len()).all(|row| wide.is_null(row) || back(row) as i128 == wide.value(row))
}

fn list<O: OffsetSizeTrait>(array: &ArrayRef, item: &FieldRef) -> Result<ArrayRef, ArrowError> {
    let list = array.as_list::<O>();
    let values = exactly(list.values(), item.data_type())?;
    Ok(Arc::new(GenericListArray::<O>::try_new(Arc::clone(item), list.offsets().clone(), values, list.nulls().cloned())?))
}

fn by_position(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    let DataType::Struct(fields) = to else { return Err(mismatch(array.data_type(), to)) };
    let rows = array.as_struct();
    let columns = rows.columns().iter().zip(fields).map(|(column, field)| exactly(column, field.data_type()));
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns.collect::<Result<_, _>>()?, rows.nulls().cloned(), rows.len())?))
}

/// The first row of `array` at which `fails`, for a conversion of the whole that failed.
pub(super) fn row_at_fault(array: &ArrayRef, fails: impl Fn(&ArrayRef) -> bool) -> Option<usize> {
    let (mut from, mut to) = (0, array.len());
    if to == 0 || !fails(array) {
        return None;
    }
    while to - from > 1 {
        let middle = from + (to - from) / 2;
        if fails(&array.slice(from, middle - from)) {
            to = middle;
        } else {
            from = middle;
        }
    }
    Some(from)
}

/// A value for people, cut where it is long.
pub(super) fn shown(array: &ArrayRef, row: usize) -> String {
    let text = ArrayFormatter::try_new(array.as_ref(), &FormatOptions::default()).ok().and_then(|f| f.value(row).try_to_string().ok());
    let text = text.unwrap_or_default();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int64Array, TimestampMicrosecondArray};

    #[test]
    fn what_a_wider_type_does_not_hold_is_refused_with_its_row() {
        let big: ArrayRef = Arc::new(Int64Array::from(vec![Some(1 << 53), None, Some((1 << 53) + 1), Some(i64::MAX)]));
        let double = |a: &ArrayRef| exactly(a, &DataType::Float64);
        assert!(double(&big.slice(0, 2)).is_ok());
        assert_eq!(row_at_fault(&big, |part| double(part).is_err()), Some(2));
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![0, 253_402_214_400_000_000]));
        let finer = |a: &ArrayRef| exactly(a, &DataType::Timestamp(TimeUnit::Nanosecond, None));
        assert_eq!(row_at_fault(&times, |part| finer(part).is_err()), Some(1));
        assert_eq!(shown(&times, 1), "9999-12-31T00:00:00");
    }
}
