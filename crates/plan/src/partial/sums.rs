//! `sum` of integers, decimals and durations that says so where the total does not fit its type.
//!
//! DataFusion's wraps around: the sum of two large BIGINTs is negative. Here totals have 128 bits, and 256 of decimals
//! of more than 38 digits, in states as well, so that only the final total counts: it is right, or an error. Sums of
//! floats and intervals are left to DataFusion's, and so is the type of the result.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, PrimitiveArray};
use datafusion::arrow::buffer::NullBuffer;
use datafusion::arrow::datatypes::{
    ArrowNativeType, DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType, DurationMicrosecondType, DurationMillisecondType,
    DurationNanosecondType, DurationSecondType, Field, FieldRef, Int64Type, TimeUnit, UInt64Type, i256,
};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_err};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, EmitTo, GroupsAccumulator};

use super::moments;
use super::replacement::{Replacement, replaced};

/// What totals are kept in.
pub(super) trait Total: ArrowNativeType {
    /// The type of a state. States are never shown, and use all bits.
    type State: DecimalType<Native = Self>;

    /// `None` where the bits are not enough.
    fn plus(self, value: Self) -> Option<Self>;

    /// Without `value`, which was added before.
    fn minus(self, value: Self) -> Self;

    /// As a value of `of`; `None` where that does not hold it.
    fn finished(self, of: &DataType) -> Result<Option<ScalarValue>>;
}

impl Total for i128 {
    type State = Decimal128Type;

    fn plus(self, value: Self) -> Option<Self> {
        self.checked_add(value)
    }

    fn minus(self, value: Self) -> Self {
        self.wrapping_sub(value)
    }

    fn finished(self, of: &DataType) -> Result<Option<ScalarValue>> {
        let narrow = i64::try_from(self).ok();
        let digits = |precision: u8| (self.unsigned_abs() < 10_u128.pow(u32::from(precision))).then_some(self);
        Ok(match of {
            DataType::Int64 => narrow.map(|total| ScalarValue::Int64(Some(total))),
            DataType::UInt64 => u64::try_from(self).ok().map(|total| ScalarValue::UInt64(Some(total))),
            DataType::Decimal32(precision, scale) => {
                digits(*precision).and_then(|total| i32::try_from(total).ok()).map(|total| ScalarValue::Decimal32(Some(total), *precision, *scale))
            }
            DataType::Decimal64(precision, scale) => {
                digits(*precision).and_then(|total| i64::try_from(total).ok()).map(|total| ScalarValue::Decimal64(Some(total), *precision, *scale))
            }
            DataType::Decimal128(precision, scale) => digits(*precision).map(|total| ScalarValue::Decimal128(Some(total), *precision, *scale)),
            DataType::Duration(TimeUnit::Second) => narrow.map(|total| ScalarValue::DurationSecond(Some(total))),
            DataType::Duration(TimeUnit::Millisecond) => narrow.map(|total| ScalarValue::DurationMillisecond(Some(total))),
            DataType::Duration(TimeUnit::Microsecond) => narrow.map(|total| ScalarValue::DurationMicrosecond(Some(total))),
            DataType::Duration(TimeUnit::Nanosecond) => narrow.map(|total| ScalarValue::DurationNanosecond(Some(total))),
            other => return internal_err!("sum of {other} has no 128 bits"),
        })
    }
}

impl Total for i256 {
    type State = Decimal256Type;

    fn plus(self, value: Self) -> Option<Self> {
        self.checked_add(value)
    }

    fn minus(self, value: Self) -> Self {
        self.wrapping_sub(value)
    }

    fn finished(self, of: &DataType) -> Result<Option<ScalarValue>> {
        match of {
            DataType::Decimal256(precision, scale) => {
                let fits = Decimal256Type::is_valid_decimal_precision(self, *precision);
                Ok(fits.then_some(ScalarValue::Decimal256(Some(self), *precision, *scale)))
            }
            other => internal_err!("sum of {other} has no 256 bits"),
        }
    }
}

/// `sum`, to replace DataFusion's.
pub(super) fn udaf() -> Arc<AggregateUDF> {
    replaced(sum_udaf(), Sum)
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sum;

/// Whether values of this type are added up here.
fn is_wide(of: &DataType) -> bool {
    matches!(of, DataType::Int64 | DataType::UInt64 | DataType::Duration(_)) || of.is_decimal()
}

/// The type of a state of sums of this type.
pub(super) fn state_type(of: &DataType) -> DataType {
    match of {
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) => {
            DataType::Decimal128(Decimal128Type::MAX_PRECISION, *scale)
        }
        DataType::Decimal256(_, scale) => DataType::Decimal256(Decimal256Type::MAX_PRECISION, *scale),
        _ => DataType::Decimal128(Decimal128Type::MAX_PRECISION, 0),
    }
}

/// Makes `$make::<T, W>` of the type whose values are added up, and that of their total.
macro_rules! of_type {
    ($of:expr, $make:ident) => {
        match $of {
            DataType::Int64 => $make!(Int64Type, i128),
            DataType::UInt64 => $make!(UInt64Type, i128),
            DataType::Decimal32(..) => $make!(Decimal32Type, i128),
            DataType::Decimal64(..) => $make!(Decimal64Type, i128),
            DataType::Decimal128(..) => $make!(Decimal128Type, i128),
            DataType::Decimal256(..) => $make!(Decimal256Type, i256),
            DataType::Duration(TimeUnit::Second) => $make!(DurationSecondType, i128),
            DataType::Duration(TimeUnit::Millisecond) => $make!(DurationMillisecondType, i128),
            DataType::Duration(TimeUnit::Microsecond) => $make!(DurationMicrosecondType, i128),
            DataType::Duration(TimeUnit::Nanosecond) => $make!(DurationNanosecondType, i128),
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
        one("sum", &of)
    }

    fn groups_accumulator(&self, args: AccumulatorArgs, inner: &AggregateUDF) -> Result<Box<dyn GroupsAccumulator>> {
        let of = args.return_field.data_type().clone();
        if !is_wide(&of) {
            return inner.create_groups_accumulator(args);
        }
        groups("sum", &of)
    }

    fn sliding_accumulator(&self, args: AccumulatorArgs, inner: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        if !args.is_distinct && *args.return_field.data_type() == DataType::Float64 {
            return Ok(moments::sliding_sum());
        }
        if args.is_distinct || !is_wide(args.return_field.data_type()) {
            return inner.create_sliding_accumulator(args);
        }
        one("sum", args.return_field.data_type())
    }
}

/// The total of all rows, as the aggregate `name` adds them up.
pub(super) fn one(name: &'static str, of: &DataType) -> Result<Box<dyn Accumulator>> {
    macro_rules! make {
        ($t:ty, $w:ty) => {
            Ok(Box::new(One::<$t, $w> { to: To { name, of: of.clone() }, sum: <$w>::default(), count: 0, values: PhantomData }))
        };
    }
    of_type!(of, make)
}

/// The total of each group, as the aggregate `name` adds them up.
pub(super) fn groups(name: &'static str, of: &DataType) -> Result<Box<dyn GroupsAccumulator>> {
    macro_rules! make {
        ($t:ty, $w:ty) => {
            Ok(Box::new(Groups::<$t, $w> { to: To { name, of: of.clone() }, sums: Vec::new(), seen: Vec::new(), values: PhantomData }))
        };
    }
    of_type!(of, make)
}

/// What totals are of, and become.
#[derive(Debug, Clone)]
struct To {
    /// The aggregate.
    name: &'static str,
    of: DataType,
}

impl To {
    fn beyond(&self) -> datafusion::common::DataFusionError {
        let instead = match &self.of {
            DataType::Duration(_) => "take fewer rows at a time, or numbers: CAST(CAST(x AS BIGINT) AS DOUBLE)",
            DataType::Int64 | DataType::UInt64 => "CAST the values to DECIMAL(38, 0), or to DOUBLE",
            DataType::Decimal256(Decimal256Type::MAX_PRECISION, _) => "CAST the values to DOUBLE",
            _ => "CAST the values to a wider DECIMAL, or to DOUBLE",
        };
        exec_datafusion_err!("{}: the total does not fit {}; {instead}", self.name, self.of)
    }

    fn add<W: Total>(&self, total: &mut W, value: W) -> Result<()> {
        *total = total.plus(value).ok_or_else(|| self.beyond())?;
        Ok(())
    }

    /// `total` as a value of the type.
    fn finished<W: Total>(&self, total: Option<W>) -> Result<ScalarValue> {
        match total {
            None => ScalarValue::try_from(&self.of),
            Some(total) => total.finished(&self.of)?.ok_or_else(|| self.beyond()),
        }
    }
}

/// The sum of all rows.
#[derive(Debug)]
struct One<T, W> {
    to: To,
    sum: W,
    /// Values in the sum.
    count: u64,
    values: PhantomData<fn() -> T>,
}

impl<T, W: Total> One<T, W> {
    fn total(&self) -> Option<W> {
        (self.count > 0).then_some(self.sum)
    }
}

impl<T, W> Accumulator for One<T, W>
where
    T: ArrowPrimitiveType + Debug,
    T::Native: Into<W>,
    W: Total,
{
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            self.to.add(&mut self.sum, value.into())?;
            self.count += 1;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            self.sum = self.sum.minus(value.into());
            self.count = self.count.saturating_sub(1);
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for total in states[0].as_primitive::<W::State>().iter().flatten() {
            self.to.add(&mut self.sum, total)?;
            self.count += 1;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::new_primitive::<W::State>(self.total(), &state_type(&self.to.of))?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.to.finished(self.total())
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
        let mut sum = one("sum", &self.of)?;
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
struct Groups<T, W> {
    to: To,
    sums: Vec<W>,
    seen: Vec<bool>,
    values: PhantomData<fn() -> T>,
}

impl<T, W: Total> Groups<T, W> {
    fn room(&mut self, groups: usize) {
        self.sums.resize(groups.max(self.sums.len()), W::default());
        self.seen.resize(groups.max(self.seen.len()), false);
    }

    fn add_all<V: ArrowPrimitiveType>(&mut self, values: &PrimitiveArray<V>, groups: &[usize], filter: Option<&BooleanArray>) -> Result<()>
    where
        V::Native: Into<W>,
    {
        let Self { to, sums, seen, .. } = self;
        let mut take = |at: usize, group: usize| {
            seen[group] = true;
            to.add(&mut sums[group], values.value(at).into())
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

    fn emit(&mut self, emit_to: EmitTo) -> (Vec<W>, Vec<bool>) {
        (emit_to.take_needed(&mut self.sums), emit_to.take_needed(&mut self.seen))
    }

    fn as_states(&self, sums: Vec<W>, seen: Vec<bool>) -> ArrayRef {
        Arc::new(PrimitiveArray::<W::State>::new(sums.into(), Some(NullBuffer::from(seen))).with_data_type(state_type(&self.to.of)))
    }
}

impl<T, W> GroupsAccumulator for Groups<T, W>
where
    T: ArrowPrimitiveType,
    T::Native: Into<W>,
    W: Total,
{
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        self.room(total);
        self.add_all(values[0].as_primitive::<T>(), groups, filter)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.room(total);
        self.add_all(states[0].as_primitive::<W::State>(), groups, None)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (sums, seen) = self.emit(emit_to);
        if sums.is_empty() {
            return Ok(datafusion::arrow::array::new_empty_array(&self.to.of));
        }
        if let DataType::Int64 = self.to.of {
            // The usual case, without a scalar for each group.
            let narrow = sums.iter().map(|sum| sum.to_i64().ok_or_else(|| self.to.beyond())).collect::<Result<Vec<_>>>()?;
            return Ok(Arc::new(PrimitiveArray::<Int64Type>::new(narrow.into(), Some(NullBuffer::from(seen)))));
        }
        let scalars = sums.into_iter().zip(seen).map(|(sum, seen)| self.to.finished(seen.then_some(sum))).collect::<Result<Vec<_>>>()?;
        ScalarValue::iter_to_array(scalars)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (sums, seen) = self.emit(emit_to);
        Ok(vec![self.as_states(sums, seen)])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<T>();
        let counts = |at: usize| values.is_valid(at) && filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
        let sums = values.values().iter().map(|value| (*value).into()).collect();
        Ok(vec![self.as_states(sums, (0..values.len()).map(counts).collect())])
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<W>() + self.seen.capacity()
    }
}
