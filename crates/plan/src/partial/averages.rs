//! `avg` of durations and of decimals of more than 38 digits, with totals that do not wrap around.
//!
//! DataFusion's totals have the type of the values. 64 bits of nanoseconds are 292 years: the average of ten durations
//! of 40 years was below 0. Here totals are those of [`sums`]. Floats, and decimals of at most 38 digits, have totals
//! of enough digits in DataFusion.
//!
//! The result of decimals has four digits more behind the point, as DataFusion's has, and is cut, not rounded.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array, new_empty_array};
use datafusion::arrow::datatypes::{DataType, Decimal256Type, DecimalType, Field, FieldRef, UInt64Type, i256};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, internal_err};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, EmitTo, GroupsAccumulator};

use super::replacement::{Replacement, replaced};
use super::{moments, sums};
use crate::engine_words::NO_AVERAGE;

/// `avg`, to replace DataFusion's.
pub(super) fn udaf() -> Arc<AggregateUDF> {
    replaced(avg_udaf(), Average)
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Average;

/// Whether averages of this type are computed here.
fn is_ours(of: &DataType) -> bool {
    matches!(of, DataType::Duration(_) | DataType::Decimal256(..))
}

impl Replacement for Average {
    fn state_fields(&self, args: &StateFieldsArgs) -> Option<Vec<FieldRef>> {
        let of = args.input_fields.first()?.data_type();
        let field = |name: &str, of: DataType| Arc::new(Field::new(format_state_name(args.name, name), of, true));
        (!args.is_distinct && is_ours(of)).then(|| vec![field("count", DataType::UInt64), field("sum", sums::state_type(of))])
    }

    fn accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        match (Of::of(&args), args.is_distinct) {
            (Some(of), false) => Ok(Box::new(One::new(of)?)),
            (Some(of), true) if matches!(of.values, DataType::Decimal256(..)) => Ok(Box::new(Distinct { inner: original.accumulator(args)?, of })),
            _ => original.accumulator(args),
        }
    }

    fn groups_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn GroupsAccumulator>> {
        match Of::of(&args) {
            Some(of) => Ok(Box::new(Groups { sums: sums::groups("avg", &of.values)?, of, counts: Vec::new() })),
            None => original.create_groups_accumulator(args),
        }
    }

    fn sliding_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        match Of::of(&args) {
            _ if args.is_distinct => original.create_sliding_accumulator(args),
            Some(of) => Ok(Box::new(One::new(of)?)),
            None if *args.return_type() == DataType::Float64 => Ok(moments::sliding_average()),
            None => original.create_sliding_accumulator(args),
        }
    }
}

/// The types of an average.
#[derive(Debug, Clone)]
struct Of {
    values: DataType,
    result: DataType,
}

impl Of {
    /// `None` where the average is DataFusion's.
    fn of(args: &AccumulatorArgs) -> Option<Self> {
        let values = args.expr_fields.first()?.data_type().clone();
        is_ours(&values).then(|| Self { values, result: args.return_type().clone() })
    }

    /// The average of `count` values whose total is the state `total`.
    fn average(&self, total: &ScalarValue, count: u64) -> Result<ScalarValue> {
        match (total, &self.result) {
            _ if count == 0 || total.is_null() => ScalarValue::try_from(&self.result),
            (ScalarValue::Decimal128(Some(total), ..), DataType::Duration(_)) => {
                let average = i64::try_from(total / i128::from(count)).map_err(|_| exec_datafusion_err!("{NO_AVERAGE}"))?;
                ScalarValue::Int64(Some(average)).cast_to(&self.result)
            }
            (ScalarValue::Decimal256(Some(total), _, scale), DataType::Decimal256(precision, places)) => {
                let average = shifted(*total, count, places.saturating_sub(*scale).unsigned_abs());
                let average = average.filter(|average| Decimal256Type::is_valid_decimal_precision(*average, *precision));
                let average = average.ok_or_else(|| exec_datafusion_err!("{NO_AVERAGE}"))?;
                Ok(ScalarValue::Decimal256(Some(average), *precision, *places))
            }
            (total, result) => internal_err!("an average of {result} from a total of {}", total.data_type()),
        }
    }
}

/// `total / count` with `digits` more digits behind the point. The whole part and the rest are multiplied apart, so
/// that the result alone has to fit.
fn shifted(total: i256, count: u64, digits: u8) -> Option<i256> {
    let count = i256::from_i128(i128::from(count));
    let shift = i256::from_i128(10).checked_pow(u32::from(digits))?;
    let whole = total.checked_div(count)?.checked_mul(shift)?;
    whole.checked_add(total.checked_rem(count)?.checked_mul(shift)?.checked_div(count)?)
}

/// The average of all rows.
#[derive(Debug)]
struct One {
    of: Of,
    sum: Box<dyn Accumulator>,
    count: u64,
}

impl One {
    fn new(of: Of) -> Result<Self> {
        Ok(Self { sum: sums::one("avg", &of.values)?, of, count: 0 })
    }

    fn total(&mut self) -> Result<ScalarValue> {
        match self.sum.state()?.pop() {
            Some(total) => Ok(total),
            None => internal_err!("a total has a state"),
        }
    }
}

/// Values that are not NULL.
fn known(values: &ArrayRef) -> u64 {
    (values.len() - values.null_count()) as u64
}

impl Accumulator for One {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.count += known(&values[0]);
        self.sum.update_batch(values)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.count = self.count.saturating_sub(known(&values[0]));
        self.sum.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.count += states[0].as_primitive::<UInt64Type>().iter().flatten().sum::<u64>();
        self.sum.merge_batch(&states[1..])
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::UInt64(Some(self.count)), self.total()?])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let total = self.total()?;
        self.of.average(&total, self.count)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.sum.size()
    }
}

/// The average of distinct values; DataFusion's accumulator collects them.
#[derive(Debug)]
struct Distinct {
    inner: Box<dyn Accumulator>,
    of: Of,
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
        let mut all = One::new(self.of.clone())?;
        for state in self.inner.state()? {
            if let ScalarValue::List(values) = state {
                all.update_batch(&[Arc::clone(values.values())])?;
            }
        }
        all.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.inner.size()
    }
}

/// The average of each group.
struct Groups {
    of: Of,
    sums: Box<dyn GroupsAccumulator>,
    counts: Vec<u64>,
}

impl Groups {
    fn room(&mut self, groups: usize) {
        self.counts.resize(groups.max(self.counts.len()), 0);
    }
}

/// Whether the value of this row counts.
fn counts(values: &ArrayRef, filter: Option<&BooleanArray>, at: usize) -> bool {
    values.is_valid(at) && filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at))
}

impl GroupsAccumulator for Groups {
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        self.room(total);
        for (at, group) in groups.iter().enumerate() {
            self.counts[*group] += u64::from(counts(&values[0], filter, at));
        }
        self.sums.update_batch(values, groups, filter, total)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.room(total);
        let given = states[0].as_primitive::<UInt64Type>();
        for (at, group) in groups.iter().enumerate().filter(|(at, _)| given.is_valid(*at)) {
            self.counts[*group] += given.value(at);
        }
        self.sums.merge_batch(&states[1..], groups, total)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let counts = emit_to.take_needed(&mut self.counts);
        let totals = self.sums.state(emit_to)?;
        if counts.is_empty() {
            return Ok(new_empty_array(&self.of.result));
        }
        let average = |(at, count): (usize, u64)| self.of.average(&ScalarValue::try_from_array(&totals[0], at)?, count);
        ScalarValue::iter_to_array(counts.into_iter().enumerate().map(average).collect::<Result<Vec<_>>>()?)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let counts: ArrayRef = Arc::new(UInt64Array::from(emit_to.take_needed(&mut self.counts)));
        Ok([vec![counts], self.sums.state(emit_to)?].concat())
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let ones: ArrayRef = Arc::new((0..values[0].len()).map(|at| Some(u64::from(counts(&values[0], filter, at)))).collect::<UInt64Array>());
        Ok([vec![ones], self.sums.convert_to_state(values, filter)?].concat())
    }

    fn size(&self) -> usize {
        self.counts.capacity() * size_of::<u64>() + self.sums.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_need_no_more_room_than_they_have() {
        let of = |total: i128, count, digits| shifted(i256::from_i128(total), count, digits).and_then(i256::to_i128);
        assert_eq!((of(7, 2, 0), of(7, 2, 1), of(-7, 2, 4), of(-7, 3, 4)), (Some(3), Some(35), Some(-35_000), Some(-23_333)));
        let large = i256::MAX.wrapping_div(i256::from_i128(10));
        assert_eq!(shifted(i256::MAX, 1_000_000, 4).map(|average| average > large), Some(false));
        assert_eq!(shifted(i256::MAX, 1, 1), None);
    }
}
