//! `sum` of integers, decimals and durations that says so where the total does not fit its type.
//!
//! DataFusion's wraps around: the sum of two large BIGINTs is negative. Here totals have 128 bits, in states as well,
//! so that only the final total counts: it is right, or an error. Sums of floats and intervals are left to
//! DataFusion's, and so is the type of the result.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, Decimal128Array, PrimitiveArray};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Field, FieldRef, Int64Type, TimeUnit, UInt64Type,
};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_err};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, EmitTo, GroupsAccumulator};

use super::moments;
use super::replacement::{Replacement, replaced};

/// The digits of a state: those of 128 bits that a decimal may show. States are never shown, and use all bits.
const DIGITS: u8 = 38;

/// `sum`, to replace DataFusion's.
pub(super) fn udaf() -> Arc<AggregateUDF> {
    replaced(sum_udaf(), Sum)
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sum;

/// Whether values of this type are added up in 128 bits.
fn is_wide(of: &DataType) -> bool {
    matches!(of, DataType::Int64 | DataType::UInt64 | DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Duration(_))
}

/// The type of a state of sums of this type.
fn state_type(of: &DataType) -> DataType {
    match of {
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) => DataType::Decimal128(DIGITS, *scale),
        _ => DataType::Decimal128(DIGITS, 0),
    }
}

/// Makes `$make::<T>` of the type whose values are added up.
macro_rules! of_type {
    ($of:expr, $make:ident) => {
        match $of {
            DataType::Int64 => $make!(Int64Type),
            DataType::UInt64 => $make!(UInt64Type),
            DataType::Decimal32(..) => $make!(Decimal32Type),
            DataType::Decimal64(..) => $make!(Decimal64Type),
            DataType::Decimal128(..) => $make!(Decimal128Type),
            DataType::Duration(TimeUnit::Second) => $make!(DurationSecondType),
            DataType::Duration(TimeUnit::Millisecond) => $make!(DurationMillisecondType),
            DataType::Duration(TimeUnit::Microsecond) => $make!(DurationMicrosecondType),
            DataType::Duration(TimeUnit::Nanosecond) => $make!(DurationNanosecondType),
            other => internal_err!("sum of {other} has no 128 bits"),
        }
    };
}

impl Replacement for Sum {
    fn state_fields(&self, args: &StateFieldsArgs) -> Option<Vec<FieldRef>> {
        let of = args.return_type();
        (!args.is_distinct && is_wide(of)).then(|| vec![Arc::new(Field::new(format_state_name(args.name, "sum"), state_type(of), true))])
    }

    fn accumulator(&self, args: AccumulatorArgs, inner: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        let of = args.return_field.data_type().clone();
        if !is_wide(&of) {
            return inner.accumulator(args);
        }
        if args.is_distinct {
            return Ok(Box::new(Distinct { inner: inner.accumulator(args)?, of }));
        }
        one(&of)
    }

    fn groups_accumulator(&self, args: AccumulatorArgs, inner: &AggregateUDF) -> Result<Box<dyn GroupsAccumulator>> {
        let of = args.return_field.data_type().clone();
        if !is_wide(&of) {
            return inner.create_groups_accumulator(args);
        }
        macro_rules! make {
            ($t:ty) => {
                Ok(Box::new(Groups::<$t> { of, sums: Vec::new(), seen: Vec::new(), values: PhantomData }))
            };
        }
        of_type!(of, make)
    }

    fn sliding_accumulator(&self, args: AccumulatorArgs, inner: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        if !args.is_distinct && *args.return_field.data_type() == DataType::Float64 {
            return Ok(moments::sliding_sum());
        }
        if args.is_distinct || !is_wide(args.return_field.data_type()) {
            return inner.create_sliding_accumulator(args);
        }
        one(args.return_field.data_type())
    }
}

fn one(of: &DataType) -> Result<Box<dyn Accumulator>> {
    macro_rules! make {
        ($t:ty) => {
            Ok(Box::new(One::<$t> { of: of.clone(), sum: 0, count: 0, values: PhantomData }))
        };
    }
    of_type!(of, make)
}

fn beyond(of: &DataType) -> datafusion::common::DataFusionError {
    let instead = if matches!(of, DataType::Duration(_)) {
        "add up fewer rows at a time, or numbers: CAST(CAST(x AS BIGINT) AS DOUBLE)"
    } else {
        "add up values CAST to DOUBLE, or to a wider DECIMAL"
    };
    exec_datafusion_err!("sum: the total does not fit {of}; {instead}")
}

fn add(total: &mut i128, value: i128, of: &DataType) -> Result<()> {
    *total = total.checked_add(value).ok_or_else(|| beyond(of))?;
    Ok(())
}

/// `total` as a value of `of`.
fn finished(total: Option<i128>, of: &DataType) -> Result<ScalarValue> {
    let Some(total) = total else { return ScalarValue::try_from(of) };
    let narrow = || i64::try_from(total).map_err(|_| beyond(of));
    let digits = |precision: u8| if total.unsigned_abs() < 10_u128.pow(u32::from(precision)) { Ok(total) } else { Err(beyond(of)) };
    Ok(match of {
        DataType::Int64 => ScalarValue::Int64(Some(narrow()?)),
        DataType::UInt64 => ScalarValue::UInt64(Some(u64::try_from(total).map_err(|_| beyond(of))?)),
        DataType::Decimal32(precision, scale) => ScalarValue::Decimal32(Some(i32::try_from(digits(*precision)?).map_err(|_| beyond(of))?), *precision, *scale),
        DataType::Decimal64(precision, scale) => ScalarValue::Decimal64(Some(i64::try_from(digits(*precision)?).map_err(|_| beyond(of))?), *precision, *scale),
        DataType::Decimal128(precision, scale) => ScalarValue::Decimal128(Some(digits(*precision)?), *precision, *scale),
        DataType::Duration(TimeUnit::Second) => ScalarValue::DurationSecond(Some(narrow()?)),
        DataType::Duration(TimeUnit::Millisecond) => ScalarValue::DurationMillisecond(Some(narrow()?)),
        DataType::Duration(TimeUnit::Microsecond) => ScalarValue::DurationMicrosecond(Some(narrow()?)),
        DataType::Duration(TimeUnit::Nanosecond) => ScalarValue::DurationNanosecond(Some(narrow()?)),
        other => return internal_err!("sum of {other} has no 128 bits"),
    })
}

/// The sum of all rows.
#[derive(Debug)]
struct One<T> {
    of: DataType,
    sum: i128,
    /// Values in the sum.
    count: u64,
    values: PhantomData<fn() -> T>,
}

impl<T> One<T>
where
    T: ArrowPrimitiveType + Debug,
    T::Native: Into<i128>,
{
    fn scalar(&self) -> Option<i128> {
        (self.count > 0).then_some(self.sum)
    }
}

impl<T> Accumulator for One<T>
where
    T: ArrowPrimitiveType + Debug,
    T::Native: Into<i128>,
{
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            add(&mut self.sum, value.into(), &self.of)?;
            self.count += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            // It was added before.
            self.sum = self.sum.wrapping_sub(value.into());
            self.count = self.count.saturating_sub(1);
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for total in states[0].as_primitive::<Decimal128Type>().iter().flatten() {
            add(&mut self.sum, total, &self.of)?;
            self.count += 1;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let DataType::Decimal128(precision, scale) = state_type(&self.of) else { return internal_err!("states are decimals") };
        Ok(vec![ScalarValue::Decimal128(self.scalar(), precision, scale)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        finished(self.scalar(), &self.of)
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// The sum of distinct values; DataFusion's accumulator collects them.
#[derive(Debug)]
struct Distinct {
    inner: Box<dyn Accumulator>,
    of: DataType,
}

impl Accumulator for Distinct {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut sum = one(&self.of)?;
        for state in self.inner.state()? {
            if let ScalarValue::List(values) = state {
                sum.update_batch(&[Arc::clone(values.values())])?;
            }
        }
        sum.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }
}

/// The sum of each group.
struct Groups<T> {
    of: DataType,
    sums: Vec<i128>,
    seen: Vec<bool>,
    values: PhantomData<fn() -> T>,
}

impl<T> Groups<T> {
    fn room(&mut self, groups: usize) {
        self.sums.resize(groups.max(self.sums.len()), 0);
        self.seen.resize(groups.max(self.seen.len()), false);
    }

    fn add_all<V: ArrowPrimitiveType>(&mut self, values: &PrimitiveArray<V>, groups: &[usize], filter: Option<&BooleanArray>) -> Result<()>
    where
        V::Native: Into<i128>,
    {
        let Self { of, sums, seen, .. } = self;
        let mut take = |at: usize, group: usize| {
            seen[group] = true;
            add(&mut sums[group], values.value(at).into(), of)
        };
        if filter.is_none() && values.null_count() == 0 {
            return groups.iter().enumerate().try_for_each(|(at, group)| take(at, *group));
        }
        for (at, group) in groups.iter().enumerate() {
            if values.is_valid(at) && filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at)) {
                take(at, *group)?;
            }
        }
        Ok(())
    }

    fn emit(&mut self, emit_to: EmitTo) -> (Vec<i128>, Vec<bool>) {
        (emit_to.take_needed(&mut self.sums), emit_to.take_needed(&mut self.seen))
    }

    fn as_states(&self, sums: Vec<i128>, seen: Vec<bool>) -> Result<ArrayRef> {
        let DataType::Decimal128(precision, scale) = state_type(&self.of) else { return internal_err!("states are decimals") };
        let states = Decimal128Array::new(sums.into(), Some(NullBuffer::from(seen))).with_precision_and_scale(precision, scale)?;
        Ok(Arc::new(states))
    }
}

impl<T> GroupsAccumulator for Groups<T>
where
    T: ArrowPrimitiveType,
    T::Native: Into<i128>,
{
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        self.room(total);
        self.add_all(values[0].as_primitive::<T>(), groups, filter)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.room(total);
        self.add_all(states[0].as_primitive::<Decimal128Type>(), groups, None)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (sums, seen) = self.emit(emit_to);
        if sums.is_empty() {
            return Ok(datafusion::arrow::array::new_empty_array(&self.of));
        }
        if let DataType::Int64 = self.of {
            // The usual case, without a scalar for each group.
            let narrow = sums.iter().map(|sum| i64::try_from(*sum).map_err(|_| beyond(&self.of))).collect::<Result<Vec<_>>>()?;
            return Ok(Arc::new(PrimitiveArray::<Int64Type>::new(narrow.into(), Some(NullBuffer::from(seen)))));
        }
        let scalars = sums.into_iter().zip(seen).map(|(sum, seen)| finished(seen.then_some(sum), &self.of)).collect::<Result<Vec<_>>>()?;
        ScalarValue::iter_to_array(scalars)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (sums, seen) = self.emit(emit_to);
        Ok(vec![self.as_states(sums, seen)?])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<T>();
        let counts = |at: usize| values.is_valid(at) && filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
        let sums = values.values().iter().map(|value| (*value).into()).collect();
        Ok(vec![self.as_states(sums, (0..values.len()).map(counts).collect())?])
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i128>() + self.seen.capacity()
    }
}
