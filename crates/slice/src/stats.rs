//! What is known about a slice's columns without reading it: bounds for pruning, and null counts.
//!
//! Bounds are *bounds*: every non-null value lies between them, but they need not occur. Three rules make sure that
//! pruning by them is never wrong:
//! - **NaN**: comparisons of NaN differ between engines (IEEE, or a total order in which NaN is the largest), so a
//!   column with a NaN has no bounds.
//! - **Signed zero**: a lower bound of zero is stored as -0.0, an upper one as +0.0, which is right whether or
//!   not the two are told apart.
//! - **Long strings**: bounds are cut to [`MAX_BOUND`] bytes; the upper one is then rounded up, or missing
//!   where that is impossible.
//!
//! A missing bound is null and means "unknown".

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeBinaryArray, Float16Array, Float32Array, Float64Array, LargeBinaryArray,
    LargeStringArray, PrimitiveArray, StringArray, StringViewArray, new_null_array,
};
use arrow::compute;
use arrow::datatypes::{ArrowPrimitiveType, DataType, IntervalUnit};
use arrow::downcast_primitive_array;
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

/// The longest bound of a string or binary column, in bytes.
pub const MAX_BOUND: usize = 64;

/// Statistics of a slice.
#[derive(Debug, Clone)]
pub struct SliceStats {
    /// Number of rows.
    pub rows: u64,
    /// One entry per column; `None` where the column's type has no order that is of use (nested
    /// types, intervals, nulls).
    pub columns: Vec<Option<ColumnStats>>,
}

/// Statistics of one column of a slice.
#[derive(Debug, Clone)]
pub struct ColumnStats {
    /// A lower bound, in an array of one row of [`stats_type`]; null where unknown or all values are null.
    pub min: ArrayRef,
    /// An upper bound, likewise.
    pub max: ArrayRef,
    /// Number of nulls.
    pub nulls: u64,
}

impl ColumnStats {
    /// Statistics of a primitive column without nulls.
    pub(crate) fn of_values<T: ArrowPrimitiveType>(min: T::Native, max: T::Native) -> Self
    where
        PrimitiveArray<T>: From<Vec<T::Native>>,
    {
        Self { min: Arc::new(PrimitiveArray::<T>::from(vec![min])), max: Arc::new(PrimitiveArray::<T>::from(vec![max])), nulls: 0 }
    }
}

/// The type of the bounds of a column: its own, or for a dictionary the type of its values. `None`
/// for types without bounds.
#[must_use]
pub fn stats_type(column: &DataType) -> Option<DataType> {
    match column {
        DataType::Dictionary(_, value) if !matches!(**value, DataType::Dictionary(..)) => stats_type(value),
        DataType::FixedSizeBinary(width) => (*width > 0 && *width as usize <= MAX_BOUND).then(|| column.clone()),
        DataType::Interval(IntervalUnit::YearMonth | IntervalUnit::DayTime | IntervalUnit::MonthDayNano) => None,
        DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            Some(column.clone())
        }
        other => other.is_primitive().then(|| other.clone()),
    }
}

/// Statistics of one column over all `batches`.
///
/// # Errors
/// `Invalid` where Arrow cannot unpack a dictionary.
pub(crate) fn column_stats(batches: &[RecordBatch], column: usize, data_type: &DataType) -> Result<Option<ColumnStats>> {
    let Some(bound_type) = stats_type(data_type) else { return Ok(None) };
    let mut parts = Vec::with_capacity(batches.len());
    let mut nulls = 0;
    for batch in batches {
        let array = batch.column(column);
        // Nulls of a dictionary may hide in its values.
        nulls += array.logical_nulls().map_or(0, |n| n.null_count()) as u64;
        parts.push(bounds(&unpack(array, &bound_type)?)?);
    }
    // A part without values takes no part; a part with values but no bounds leaves the whole without.
    let (mut mins, mut maxs) = (Vec::new(), Vec::new());
    for part in &parts {
        match part {
            Bounds::Empty => {}
            Bounds::Unknown => return Ok(Some(unknown(&bound_type, nulls))),
            Bounds::Known(min, max) => {
                mins.push(min.as_ref());
                maxs.push(max.as_ref());
            }
        }
    }
    if mins.is_empty() {
        return Ok(Some(unknown(&bound_type, nulls)));
    }
    let arrow = |e: arrow::error::ArrowError| Error::internal("cannot combine a column's bounds").with_source(e);
    let (low, high) = (compute::concat(&mins).map_err(arrow)?, compute::concat(&maxs).map_err(arrow)?);
    let (Bounds::Known(min, _), Bounds::Known(_, max)) = (bounds(&low)?, bounds(&high)?) else {
        return Ok(Some(unknown(&bound_type, nulls)));
    };
    Ok(Some(shorten(min, max, nulls)))
}

pub(crate) fn unknown(bound_type: &DataType, nulls: u64) -> ColumnStats {
    ColumnStats { min: new_null_array(bound_type, 1), max: new_null_array(bound_type, 1), nulls }
}

/// The values of a dictionary that are in use, each once; any other array as it is.
fn unpack(array: &ArrayRef, bound_type: &DataType) -> Result<ArrayRef> {
    let Some(dictionary) = array.as_any_dictionary_opt() else { return Ok(Arc::clone(array)) };
    if dictionary.values().data_type() != bound_type {
        return Err(Error::internal(format!("the values of a column of type {} are not of type {bound_type}", array.data_type())));
    }
    // By dictionary key, not by row: a text that a million rows share would be copied a million times.
    let mut used = vec![false; dictionary.values().len()];
    if !used.is_empty() {
        let nulls = dictionary.keys().logical_nulls();
        for (row, key) in dictionary.normalized_keys().into_iter().enumerate() {
            used[key] |= nulls.as_ref().is_none_or(|n| n.is_valid(row));
        }
    }
    compute::filter(dictionary.values(), &BooleanArray::from(used)).map_err(|e| Error::invalid("cannot read the values of a dictionary column").with_source(e))
}

enum Bounds {
    /// No value that is not null.
    Empty,
    /// Values, but not in an order that everybody shares.
    Unknown,
    Known(ArrayRef, ArrayRef),
}

fn bounds(array: &ArrayRef) -> Result<Bounds> {
    macro_rules! of {
        ($array:ty, $min:path, $max:path) => {{
            let a = downcast::<$array>(array)?;
            match ($min(a), $max(a)) {
                (Some(min), Some(max)) => Bounds::Known(Arc::new(<$array>::from_iter_values([min])), Arc::new(<$array>::from_iter_values([max]))),
                _ => Bounds::Empty,
            }
        }};
    }
    macro_rules! float {
        ($array:ty, $zero:expr) => {{
            let a = downcast::<$array>(array)?;
            if a.iter().flatten().any(|v| v.is_nan()) {
                Bounds::Unknown
            } else {
                match (compute::min(a), compute::max(a)) {
                    (Some(min), Some(max)) => {
                        let (min, max) = (if min == $zero { -$zero } else { min }, if max == $zero { $zero } else { max });
                        Bounds::Known(Arc::new(<$array>::from_iter_values([min])), Arc::new(<$array>::from_iter_values([max])))
                    }
                    _ => Bounds::Empty,
                }
            }
        }};
    }
    let array = array.as_ref();
    Ok(match array.data_type() {
        DataType::Utf8 => of!(StringArray, compute::min_string, compute::max_string),
        DataType::LargeUtf8 => of!(LargeStringArray, compute::min_string, compute::max_string),
        DataType::Utf8View => of!(StringViewArray, compute::min_string_view, compute::max_string_view),
        DataType::Binary => of!(BinaryArray, compute::min_binary, compute::max_binary),
        DataType::LargeBinary => of!(LargeBinaryArray, compute::min_binary, compute::max_binary),
        DataType::BinaryView => of!(BinaryViewArray, compute::min_binary_view, compute::max_binary_view),
        DataType::Boolean => {
            let a = downcast::<BooleanArray>(array)?;
            match (compute::min_boolean(a), compute::max_boolean(a)) {
                (Some(min), Some(max)) => Bounds::Known(Arc::new(BooleanArray::from(vec![min])), Arc::new(BooleanArray::from(vec![max]))),
                _ => Bounds::Empty,
            }
        }
        DataType::FixedSizeBinary(_) => {
            let a = downcast::<FixedSizeBinaryArray>(array)?;
            let valid = || (0..a.len()).filter(|&i| a.is_valid(i));
            match (valid().min_by_key(|&i| a.value(i)), valid().max_by_key(|&i| a.value(i))) {
                (Some(min), Some(max)) => Bounds::Known(Arc::new(a.slice(min, 1)), Arc::new(a.slice(max, 1))),
                _ => Bounds::Empty,
            }
        }
        DataType::Float16 => float!(Float16Array, <arrow::datatypes::Float16Type as ArrowPrimitiveType>::Native::from_f32_const(0.0)),
        DataType::Float32 => float!(Float32Array, 0.0f32),
        DataType::Float64 => float!(Float64Array, 0.0f64),
        _ => downcast_primitive_array!(
            array => primitive_bounds(array),
            other => return Err(Error::internal(format!("columns of type {other} have no bounds"))),
        ),
    })
}

fn downcast<T: 'static>(array: &dyn Array) -> Result<&T> {
    array.as_any().downcast_ref().ok_or_else(|| Error::internal(format!("an array of type {} is none", array.data_type())))
}

fn primitive_bounds<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>) -> Bounds
where
    T::Native: arrow::datatypes::ArrowNativeTypeOp,
{
    match (compute::min(array), compute::max(array)) {
        (Some(min), Some(max)) => {
            // `with_data_type` keeps time zones, precisions and scales.
            let one = |v| Arc::new(PrimitiveArray::<T>::from_iter_values([v]).with_data_type(array.data_type().clone())) as ArrayRef;
            Bounds::Known(one(min), one(max))
        }
        _ => Bounds::Empty,
    }
}

/// Cuts long strings, see the module's text.
fn shorten(min: ArrayRef, max: ArrayRef, nulls: u64) -> ColumnStats {
    macro_rules! cut {
        ($array:ty, $low:path, $high:path) => {{
            let low = min.as_any().downcast_ref::<$array>().map(|a| Arc::new(<$array>::from_iter_values([$low(a.value(0))])) as ArrayRef);
            let high = max.as_any().downcast_ref::<$array>().map(|a| match $high(a.value(0)) {
                Some(v) => Arc::new(<$array>::from_iter_values([v])) as ArrayRef,
                None => new_null_array(a.data_type(), 1),
            });
            ColumnStats { min: low.unwrap_or(min), max: high.unwrap_or(max), nulls }
        }};
    }
    match min.data_type() {
        DataType::Utf8 => cut!(StringArray, text_below, text_above),
        DataType::LargeUtf8 => cut!(LargeStringArray, text_below, text_above),
        DataType::Utf8View => cut!(StringViewArray, text_below, text_above),
        DataType::Binary => cut!(BinaryArray, bytes_below, bytes_above),
        DataType::LargeBinary => cut!(LargeBinaryArray, bytes_below, bytes_above),
        DataType::BinaryView => cut!(BinaryViewArray, bytes_below, bytes_above),
        _ => ColumnStats { min, max, nulls },
    }
}

fn text_below(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_BOUND)]
}

fn text_above(text: &str) -> Option<String> {
    if text.len() <= MAX_BOUND {
        return Some(text.to_owned());
    }
    let mut cut = text_below(text).to_owned();
    // Characters that have no next one of the same or greater order are dropped until one has.
    while let Some(last) = cut.pop() {
        let next = (u32::from(last) + 1..=u32::from(last) + 0x801).find_map(char::from_u32);
        if let Some(next) = next {
            cut.push(next);
            return Some(cut);
        }
    }
    None
}

fn bytes_below(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(MAX_BOUND)]
}

fn bytes_above(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.len() <= MAX_BOUND {
        return Some(bytes.to_vec());
    }
    let mut cut = bytes_below(bytes).to_vec();
    while let Some(last) = cut.pop() {
        if let Some(next) = last.checked_add(1) {
            cut.push(next);
            return Some(cut);
        }
    }
    None
}

/// Bounds of plain floats under the rules for NaN and signed zero; `None` where there are no values or one is NaN.
pub(crate) fn f64_bounds(values: &[f64]) -> Option<(f64, f64)> {
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    for &v in values {
        if v.is_nan() {
            return None;
        }
        min = min.min(v);
        max = max.max(v);
    }
    (!values.is_empty()).then(|| (if min == 0.0 { -0.0 } else { min }, if max == 0.0 { 0.0 } else { max }))
}

#[cfg(test)]
mod tests;
