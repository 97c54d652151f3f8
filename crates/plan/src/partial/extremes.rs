//! `min` and `max` of floats in SQL's order: NaN equals itself and is above all numbers, infinities are numbers.
//!
//! DataFusion's begin each group with the largest finite number: a group of nothing but infinities returns that number,
//! and the effect of a NaN depends on the order of rows. Lists and structs are those of `nested_extremes`. Everything
//! else is left to DataFusion's.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use datafusion::arrow::compute::{not, nullif, prep_null_mask_filter};
use datafusion::arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF, EmitTo, GroupsAccumulator};

use super::nested_extremes::{Nested, Sliding, has_order};
use super::replacement::{Replacement, replaced};

/// `min` and `max`, to replace DataFusion's.
pub(super) fn udafs() -> [Arc<AggregateUDF>; 2] {
    [replaced(min_udaf(), Extreme { greatest: false }), replaced(max_udaf(), Extreme { greatest: true })]
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Extreme {
    greatest: bool,
}

impl Extreme {
    fn own(&self, of: &DataType) -> Result<Option<Box<dyn Extremes>>> {
        Ok(match of {
            DataType::Float32 => Some(Box::new(Floats::<Float32Type>::new(self.greatest))),
            DataType::Float64 => Some(Box::new(Floats::<Float64Type>::new(self.greatest))),
            of if has_order(of) => Some(Box::new(Nested::new(of, self.greatest)?)),
            _ => None,
        })
    }
}

impl Replacement for Extreme {
    fn accumulator(&self, args: AccumulatorArgs, inner: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        match self.own(args.return_field.data_type())? {
            Some(own) => Ok(Box::new(One(own))),
            None => inner.accumulator(args),
        }
    }

    fn sliding_accumulator(&self, args: AccumulatorArgs, inner: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        let of = args.return_field.data_type();
        if has_order(of) { Ok(Box::new(Sliding::new(of, self.greatest)?)) } else { inner.create_sliding_accumulator(args) }
    }

    fn groups_accumulator(&self, args: AccumulatorArgs, inner: &AggregateUDF) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_field.data_type() {
            DataType::Float32 => Ok(Box::new(Floats::<Float32Type>::new(self.greatest))),
            DataType::Float64 => Ok(Box::new(Floats::<Float64Type>::new(self.greatest))),
            of if has_order(of) => Ok(Box::new(Nested::new(of, self.greatest)?)),
            _ => inner.create_groups_accumulator(args),
        }
    }
}

/// The extreme value of each group.
struct Floats<T: ArrowPrimitiveType> {
    greatest: bool,
    /// Values by group; a group without values has an unused placeholder.
    values: Vec<T::Native>,
    seen: Vec<bool>,
}

/// Extremes of any type, with one group.
pub(super) trait Extremes: GroupsAccumulator + Debug + Sync {
    fn add_all(&mut self, values: &ArrayRef) -> Result<()>;
    fn value(&self) -> Result<ScalarValue>;
}

impl<T: ArrowPrimitiveType> Floats<T> {
    fn new(greatest: bool) -> Self {
        Self { greatest, values: Vec::new(), seen: Vec::new() }
    }

    fn room(&mut self, groups: usize) {
        self.values.resize(groups.max(self.values.len()), T::default_value());
        self.seen.resize(groups.max(self.seen.len()), false);
    }

    fn add(&mut self, group: usize, value: T::Native) {
        // Not comparable with itself: NaN, which is above all others.
        let is_nan = |v: T::Native| v.partial_cmp(&v).is_none();
        let now = self.values[group];
        let better = if self.greatest { value > now || is_nan(value) } else { value < now || is_nan(now) };
        if !self.seen[group] || better {
            self.values[group] = value;
            self.seen[group] = true;
        }
    }

    fn emit(&mut self, emit_to: EmitTo) -> ArrayRef {
        let (values, seen) = (emit_to.take_needed(&mut self.values), emit_to.take_needed(&mut self.seen));
        Arc::new(PrimitiveArray::<T>::new(values.into(), Some(seen.into())))
    }
}

impl<T: ArrowPrimitiveType> Debug for Floats<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Floats").field("greatest", &self.greatest).field("groups", &self.values.len()).finish_non_exhaustive()
    }
}

impl<T: ArrowPrimitiveType + Send> GroupsAccumulator for Floats<T> {
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        self.room(total);
        let values = values[0].as_primitive::<T>();
        let counts = |row: usize| values.is_valid(row) && filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
        for (row, group) in groups.iter().enumerate() {
            if counts(row) {
                self.add(*group, values.value(row));
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        Ok(self.emit(emit_to))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.emit(emit_to)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.update_batch(states, groups, None, total)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        Ok(vec![kept(&values[0], filter)?])
    }

    fn size(&self) -> usize {
        self.values.capacity() * size_of::<T::Native>() + self.seen.capacity()
    }
}

/// `values`, NULL where `filter` drops them.
pub(super) fn kept(values: &ArrayRef, filter: Option<&BooleanArray>) -> Result<ArrayRef> {
    Ok(match filter {
        Some(filter) => nullif(values, &not(&prep_null_mask_filter(filter))?)?,
        None => Arc::clone(values),
    })
}

impl<T: ArrowPrimitiveType + Send> Extremes for Floats<T> {
    fn add_all(&mut self, values: &ArrayRef) -> Result<()> {
        self.room(1);
        for value in values.as_primitive::<T>().iter().flatten() {
            self.add(0, value);
        }
        Ok(())
    }

    fn value(&self) -> Result<ScalarValue> {
        let value = self.values.first().copied().filter(|_| self.seen == [true]);
        ScalarValue::new_primitive::<T>(value, &T::DATA_TYPE)
    }
}

/// All rows as one group.
#[derive(Debug)]
struct One(Box<dyn Extremes>);

impl Accumulator for One {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.0.add_all(&values[0])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.0.value()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.0.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.0.value()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::array::Float64Array;

    const INF: f64 = f64::INFINITY;

    fn floats(greatest: bool) -> Floats<Float64Type> {
        Floats::new(greatest)
    }

    fn of(greatest: bool, values: &[Option<f64>]) -> Option<f64> {
        let array: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
        let mut grouped = floats(greatest);
        grouped.update_batch(&[Arc::clone(&array)], &vec![0; values.len()], None, 1).unwrap();
        let grouped = grouped.evaluate(EmitTo::All).unwrap();
        let grouped = grouped.as_primitive::<Float64Type>().iter().next().unwrap();
        let mut one = One(Box::new(floats(greatest)));
        one.update_batch(&[array]).unwrap();
        let ScalarValue::Float64(alone) = one.evaluate().unwrap() else { panic!("another type") };
        assert_eq!(alone.map(f64::to_bits), grouped.map(f64::to_bits));
        grouped
    }

    #[test]
    fn nan_is_above_all_and_infinities_are_numbers() {
        for nan in [f64::NAN, -f64::NAN] {
            for values in [[Some(nan), Some(1.0), None], [Some(1.0), None, Some(nan)], [None, Some(nan), Some(1.0)]] {
                assert!(of(true, &values).unwrap().is_nan());
                assert_eq!(of(false, &values), Some(1.0));
            }
            assert!(of(false, &[Some(nan), None]).unwrap().is_nan());
        }
        assert_eq!((of(false, &[Some(INF), Some(INF)]), of(true, &[Some(-INF)])), (Some(INF), Some(-INF)));
        assert_eq!((of(true, &[Some(-INF), Some(-3.0)]), of(false, &[Some(INF), Some(3.0)])), (Some(-3.0), Some(3.0)));
        assert_eq!((of(true, &[None]), of(false, &[])), (None, None));
    }

    #[test]
    fn groups_are_apart_and_filters_hold() {
        let mut least = floats(false);
        let values: ArrayRef = Arc::new(Float64Array::from(vec![Some(5.0), Some(INF), None, Some(2.0), Some(1.0)]));
        let filter = BooleanArray::from(vec![Some(true), Some(true), Some(true), None, Some(false)]);
        least.update_batch(&[Arc::clone(&values)], &[0, 1, 2, 0, 0], Some(&filter), 4).unwrap();
        let state = least.convert_to_state(&[values], Some(&filter)).unwrap();
        assert_eq!(state[0].as_primitive::<Float64Type>().iter().collect::<Vec<_>>(), [Some(5.0), Some(INF), None, None, None]);
        let first = least.evaluate(EmitTo::First(1)).unwrap();
        assert_eq!(first.as_primitive::<Float64Type>().iter().collect::<Vec<_>>(), [Some(5.0)]);
        least.merge_batch(&[Arc::new(Float64Array::from(vec![-1.0]))], &[2], 3).unwrap();
        let rest = least.state(EmitTo::All).unwrap();
        assert_eq!(rest[0].as_primitive::<Float64Type>().iter().collect::<Vec<_>>(), [Some(INF), None, Some(-1.0)]);
    }
}
