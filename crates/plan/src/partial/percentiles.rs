//! `percentile_cont` and `median` of floats, to the last digit.
//!
//! DataFusion rounds the place between two values down to a millionth: `percentile_cont(0.123456789)` of 0 and 1 is
//! 0.123456 there. Between two infinities of one sign, and where a difference or a sum overflows, it has NaN or
//! infinity. Here the place is exact. The states are DataFusion's: lists of values.

use std::cmp::Ordering;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, BooleanArray, ListArray, PrimitiveArray, RecordBatch};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::functions_aggregate::median::median_udaf;
use datafusion::functions_aggregate::percentile_cont::percentile_cont_udaf;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF, ColumnarValue, EmitTo, GroupsAccumulator};

use super::replacement::{Replacement, replaced};

/// The aggregates, to replace DataFusion's.
pub(super) fn udafs() -> [Arc<AggregateUDF>; 2] {
    [replaced(percentile_cont_udaf(), Percentile::Given), replaced(median_udaf(), Percentile::Half)]
}

/// Which percentile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Percentile {
    /// The second argument.
    Given,
    Half,
}

/// The accumulator `$made` for the floats of the call `$of`; `$other` for other types.
macro_rules! for_floats {
    ($of:expr, $made:ident, $place:expr, $other:expr) => {
        Ok(match $of.expr_fields[0].data_type() {
            DataType::Float16 => Box::new($made::<Float16Type>::new($place)),
            DataType::Float32 => Box::new($made::<Float32Type>::new($place)),
            DataType::Float64 => Box::new($made::<Float64Type>::new($place)),
            _ => $other?,
        })
    };
}

impl Replacement for Percentile {
    fn accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        for_floats!(args, Values, self.place(&args)?, original.accumulator(args))
    }

    fn groups_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn GroupsAccumulator>> {
        for_floats!(args, Groups, self.place(&args)?, original.create_groups_accumulator(args))
    }

    fn sliding_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        self.accumulator(args, original)
    }
}

impl Percentile {
    /// # Errors
    /// A percentile that is no constant from 0 to 1.
    fn place(&self, args: &AccumulatorArgs) -> Result<Place> {
        let distinct = args.is_distinct;
        if *self == Self::Half {
            return Ok(Place { percentile: 0.5, descending: false, distinct });
        }
        let value = match args.exprs.get(1).map(|e| e.evaluate(&RecordBatch::new_empty(Arc::new(args.schema.clone())))).transpose()? {
            Some(ColumnarValue::Scalar(value)) => value.cast_to(&DataType::Float64)?,
            _ => ScalarValue::Null,
        };
        match value {
            ScalarValue::Float64(Some(percentile)) if (0.0..=1.0).contains(&percentile) => {
                let descending = args.order_bys.first().is_some_and(|sort| sort.options.descending);
                Ok(Place { percentile, descending, distinct })
            }
            other => plan_err!("percentile_cont takes a constant from 0 to 1, not {other}"),
        }
    }
}

/// Floats of a width.
trait Float: ArrowPrimitiveType + Debug + Send {
    fn wide(value: Self::Native) -> f64;
    fn narrow(value: f64) -> Self::Native;
}

impl Float for Float16Type {
    fn wide(value: Self::Native) -> f64 {
        value.to_f64()
    }

    fn narrow(value: f64) -> Self::Native {
        Self::Native::from_f64(value)
    }
}

impl Float for Float32Type {
    fn wide(value: f32) -> f64 {
        value.into()
    }

    fn narrow(value: f64) -> f32 {
        value as f32
    }
}

impl Float for Float64Type {
    fn wide(value: f64) -> f64 {
        value
    }

    fn narrow(value: f64) -> f64 {
        value
    }
}

/// Where among sorted values the percentile lies.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// From 0 to 1.
    percentile: f64,
    descending: bool,
    distinct: bool,
}

impl Place {
    /// The value there, of `values` in any order; none of none.
    fn value<T: Float>(self, values: &mut [T::Native]) -> Option<T::Native> {
        let last = values.len().checked_sub(1)?;
        let at = self.percentile * last as f64;
        // Not above `last`, as the percentile is at most 1.
        let place = |place: f64| if self.descending { last - place as usize } else { place as usize };
        let (first, second) = (place(at.floor()), place(at.ceil()));
        let (below, value, above) = values.select_nth_unstable_by(first, |a, b| a.compare(*b));
        let low = *value;
        let high = match second.cmp(&first) {
            Ordering::Less => below.iter().copied().max_by(|a, b| a.compare(*b)),
            Ordering::Equal => None,
            Ordering::Greater => above.iter().copied().min_by(|a, b| a.compare(*b)),
        };
        let high = high.unwrap_or(low);
        let part = at.fract();
        if part == 0.0 || low.is_eq(high) {
            return Some(low);
        }
        let (from, to) = (T::wide(low), T::wide(high));
        let gap = to - from;
        // A difference that overflows, or of an infinity.
        Some(T::narrow(if gap.is_finite() { from + gap * part } else { from * (1.0 - part) + to * part }))
    }
}

/// The values of one group or frame.
#[derive(Debug)]
struct Values<T: Float> {
    values: Vec<T::Native>,
    place: Place,
}

impl<T: Float> Values<T> {
    fn new(place: Place) -> Self {
        Self { values: Vec::new(), place }
    }

    /// Values without those that come again.
    fn distinct(&self) -> Vec<T::Native> {
        let mut values = self.values.clone();
        values.sort_unstable_by(|a, b| a.compare(*b));
        values.dedup_by(|a, b| a.is_eq(*b));
        values
    }
}

impl<T: Float> Accumulator for Values<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.extend(values[0].as_primitive::<T>().iter().flatten());
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        states[0].as_list::<i32>().iter().flatten().try_for_each(|values| self.update_batch(&[values]))
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let mut left: Vec<T::Native> = values[0].as_primitive::<T>().iter().flatten().collect();
        left.sort_unstable_by(|a, b| a.compare(*b));
        // Those that leave are among the first that came.
        let mut at = 0;
        while at < self.values.len() && !left.is_empty() {
            match left.binary_search_by(|of| of.compare(self.values[at])) {
                Ok(found) => {
                    left.remove(found);
                    self.values.swap_remove(at);
                }
                Err(_) => at += 1,
            }
        }
        if left.is_empty() { Ok(()) } else { internal_err!("values leave a frame of percentile_cont that it never had") }
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = if self.place.distinct { self.place.value::<T>(&mut self.distinct()) } else { self.place.value::<T>(&mut self.values) };
        ScalarValue::new_primitive::<T>(value, &T::DATA_TYPE)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.capacity() * size_of::<T::Native>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = if self.place.distinct { self.distinct() } else { std::mem::take(&mut self.values) };
        Ok(vec![ScalarValue::List(Arc::new(lists::<T>(vec![values])?))])
    }
}

/// One list for each of `groups`.
fn lists<T: Float>(groups: Vec<Vec<T::Native>>) -> Result<ListArray> {
    let offsets = OffsetBuffer::from_lengths(groups.iter().map(Vec::len));
    let values = PrimitiveArray::<T>::from_iter_values(groups.into_iter().flatten());
    Ok(ListArray::try_new(Arc::new(Field::new_list_field(T::DATA_TYPE, true)), offsets, Arc::new(values), None)?)
}

/// The values of many groups, none of them of `DISTINCT`.
#[derive(Debug)]
struct Groups<T: Float> {
    groups: Vec<Vec<T::Native>>,
    place: Place,
    of: PhantomData<T>,
}

impl<T: Float> Groups<T> {
    fn new(place: Place) -> Self {
        Self { groups: Vec::new(), place, of: PhantomData }
    }
}

impl<T: Float> GroupsAccumulator for Groups<T> {
    fn update_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        self.groups.resize(total, Vec::new());
        let values = values[0].as_primitive::<T>();
        let taken = |row: usize| values.is_valid(row) && filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        for (row, group) in group_indices.iter().enumerate().filter(|(row, _)| taken(*row)) {
            self.groups[*group].push(values.value(row));
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], group_indices: &[usize], total: usize) -> Result<()> {
        self.groups.resize(total, Vec::new());
        for (values, group) in states[0].as_list::<i32>().iter().zip(group_indices) {
            if let Some(values) = values {
                self.groups[*group].extend(values.as_primitive::<T>().iter().flatten());
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let groups = emit_to.take_needed(&mut self.groups);
        Ok(Arc::new(groups.into_iter().map(|mut values| self.place.value::<T>(&mut values)).collect::<PrimitiveArray<T>>()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![Arc::new(lists::<T>(emit_to.take_needed(&mut self.groups))?)])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<T>();
        let taken = |row: usize| values.is_valid(row) && filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        let one = |row: usize| if taken(row) { vec![values.value(row)] } else { Vec::new() };
        Ok(vec![Arc::new(lists::<T>((0..values.len()).map(one).collect())?)])
    }

    fn size(&self) -> usize {
        self.groups.iter().map(|values| values.capacity() * size_of::<T::Native>()).sum::<usize>() + self.groups.capacity() * size_of::<Vec<T::Native>>()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::Float64Array;

    use super::*;

    fn value(values: &[f64], percentile: f64, descending: bool) -> Option<f64> {
        Place { percentile, descending, distinct: false }.value::<Float64Type>(&mut values.to_vec())
    }

    /// The values are DuckDB's.
    #[test]
    fn places_between_values_are_exact() {
        let inf = f64::INFINITY;
        for (values, expected) in [([0.0, 1.0], 0.123456789), ([-inf, -inf], -inf), ([5.0, -inf], -inf), ([5.0, inf], inf), ([-1e308, 1e308], -7.53086422e307)]
        {
            let given = value(&values, 0.123456789, false).unwrap();
            assert!(given == expected || ((given - expected) / expected).abs() < 1e-15, "{values:?}: {given}");
        }
        assert!(value(&[inf, -inf], 0.5, false).unwrap().is_nan());
        assert!(value(&[5.0, f64::NAN], 0.25, false).unwrap().is_nan());
        assert_eq!(value(&[3.0, 1.0, 2.0, 4.0], 0.25, true), Some(3.25));
        assert_eq!(value(&[1.5e308, 1.7e308], 0.5, false), Some(1.6e308));
        assert_eq!((value(&[], 0.5, false), value(&[7.0], 0.3, true)), (None, Some(7.0)));
        assert_eq!((value(&[2.0, 1.0], 0.0, false), value(&[2.0, 1.0], 1.0, false)), (Some(1.0), Some(2.0)));
    }

    #[test]
    fn values_leave_frames_as_often_as_they_came() {
        let place = Place { percentile: 0.5, descending: false, distinct: true };
        let mut values = Values::<Float64Type>::new(place);
        let column = |of: &[f64]| -> Vec<ArrayRef> { vec![Arc::new(Float64Array::from(of.to_vec()))] };
        values.update_batch(&column(&[1.0, 1.0, 1.0, 5.0])).unwrap();
        assert_eq!(values.evaluate().unwrap(), ScalarValue::Float64(Some(3.0)));
        values.retract_batch(&column(&[1.0, 1.0])).unwrap();
        assert_eq!(values.evaluate().unwrap(), ScalarValue::Float64(Some(3.0)));
        values.retract_batch(&column(&[1.0])).unwrap();
        assert_eq!(values.evaluate().unwrap(), ScalarValue::Float64(Some(5.0)));
        assert!(values.retract_batch(&column(&[1.0])).is_err());
    }
}
