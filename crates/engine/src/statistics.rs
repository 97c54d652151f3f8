//! Statistics of the rows of a scan, from a partition's metadata. DataFusion's optimiser answers `count`, `min` and
//! `max` from them without reading a slice.

use arrow::array::{Array, ArrayRef, UInt64Array};
use arrow::compute::{self, SortOptions};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::stats::Precision;
use datafusion::common::{ScalarValue, Statistics};

use crate::reader::Partition;

/// The statistics of the columns of `schema`, columns of `partition` as they are stored, over the stripes with these
/// numbers. All that is given is exact.
pub(crate) fn of(partition: &Partition, schema: &SchemaRef, stripes: &[u32]) -> Statistics {
    let mut statistics = Statistics::new_unknown(schema);
    let chosen = arrow::array::UInt32Array::from(stripes.to_vec());
    let take = |array: &dyn Array| compute::take(array, &chosen, None).ok();
    let stats = &partition.metadata.stats;
    let Some(rows) = take(stats.rows()) else { return statistics };
    let Some(rows) = rows.as_any().downcast_ref::<UInt64Array>() else { return statistics };
    let Some(all) = exact(rows) else { return statistics };
    statistics.num_rows = Precision::Exact(all);
    for (field, column) in schema.fields().iter().zip(&mut statistics.column_statistics) {
        let Some(nulls) = stats.nulls(field.name()).and_then(|n| take(&n)) else { continue };
        let Some(nulls) = nulls.as_any().downcast_ref::<UInt64Array>() else { continue };
        let Some(null_count) = exact(nulls) else { continue };
        column.null_count = Precision::Exact(null_count);
        let bound = |array: Option<ArrayRef>, descending: bool| {
            let array = array.and_then(|a| take(&a))?;
            // A stripe of NULLs has no bounds, and needs none.
            let known = (0..array.len()).all(|i| array.is_valid(i) || nulls.value(i) == rows.value(i));
            if !known || array.data_type() != field.data_type() {
                return None;
            }
            extreme(&array, descending).filter(is_value)
        };
        if let Some(min) = bound(stats.min(field.name()), false) {
            column.min_value = Precision::Exact(min);
        }
        if let Some(max) = bound(stats.max(field.name()), true) {
            column.max_value = Precision::Exact(max);
        }
    }
    statistics
}

/// The least of `values`, or the greatest; NULL is neither.
#[must_use]
pub fn extreme(values: &ArrayRef, greatest: bool) -> Option<ScalarValue> {
    let first = compute::sort_to_indices(values, Some(SortOptions { descending: greatest, nulls_first: false }), Some(1)).ok()?;
    let at = first.values().first().copied().filter(|&at| values.is_valid(at as usize))?;
    ScalarValue::try_from_array(values, at as usize).ok()
}

fn exact(counts: &UInt64Array) -> Option<usize> {
    usize::try_from(counts.values().iter().try_fold(0u64, |sum, n| sum.checked_add(*n))?).ok()
}

/// Whether a bound of this type is a value that occurs. Bounds of text and bytes may be shortened; a zero of floats has
/// whichever sign is the safer one.
fn is_value(bound: &ScalarValue) -> bool {
    let of_type = |t: &DataType| {
        t.is_integer()
            || t.is_decimal()
            || matches!(
                t,
                DataType::Boolean
                    | DataType::Date32
                    | DataType::Date64
                    | DataType::Time32(_)
                    | DataType::Time64(_)
                    | DataType::Timestamp(..)
                    | DataType::Duration(_)
            )
    };
    match bound {
        ScalarValue::Float64(Some(v)) => *v != 0.0,
        ScalarValue::Float32(Some(v)) => *v != 0.0,
        bound => !bound.is_null() && of_type(&bound.data_type()),
    }
}
