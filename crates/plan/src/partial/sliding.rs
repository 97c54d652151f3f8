//! `bool_and`, `bool_or` and the bit operations over windows whose frames slide: rows leave them again.
//!
//! DataFusion refuses them, and its `bit_xor` is 0 where no value is left. Here each bit has a count of the values that
//! set it, from which all of them follow. Groups, and frames that only grow, are left to DataFusion's. `count` is
//! replaced for its results' order alone.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type, UInt64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::functions_aggregate::bit_and_or_xor::{bit_and_udaf, bit_or_udaf, bit_xor_udaf};
use datafusion::functions_aggregate::bool_and_or::{bool_and_udaf, bool_or_udaf};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF};

use super::replacement::{Replacement, replaced};

/// The aggregates, to replace DataFusion's.
pub(super) fn udafs() -> [Arc<AggregateUDF>; 6] {
    [
        replaced(count_udaf(), Count),
        replaced(bool_and_udaf(), Bits::All),
        replaced(bool_or_udaf(), Bits::Any),
        replaced(bit_and_udaf(), Bits::All),
        replaced(bit_or_udaf(), Bits::Any),
        replaced(bit_xor_udaf(), Bits::Odd),
    ]
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Count;

impl Replacement for Count {}

/// When a bit of the result is set: all values set it, any does, or an odd number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Bits {
    All,
    Any,
    Odd,
}

impl Replacement for Bits {
    fn sliding_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        let of = args.return_field.data_type();
        if (args.is_distinct && *self == Self::Odd) || !(of.is_integer() || *of == DataType::Boolean) {
            return original.create_sliding_accumulator(args);
        }
        Ok(Box::new(Counts { bits: *self, of: of.clone(), values: 0, ones: [0; 64] }))
    }
}

/// How many values a frame has, and how many of them set each bit. Narrow numbers are widened with their sign.
#[derive(Debug)]
struct Counts {
    bits: Bits,
    of: DataType,
    values: u64,
    ones: [u64; 64],
}

impl Counts {
    /// Adds the values, or takes them away.
    fn count(&mut self, values: &ArrayRef, add: bool) -> Result<()> {
        let change = |count: &mut u64, by: u64| *count = if add { count.wrapping_add(by) } else { count.wrapping_sub(by) };
        let mut one = |value: u64| {
            change(&mut self.values, 1);
            for (bit, ones) in self.ones.iter_mut().enumerate() {
                change(ones, value >> bit & 1);
            }
        };
        match values.data_type() {
            DataType::UInt64 => values.as_primitive::<UInt64Type>().iter().flatten().for_each(&mut one),
            _ => cast(values, &DataType::Int64)?.as_primitive::<Int64Type>().iter().flatten().for_each(|value| one(value as u64)),
        }
        Ok(())
    }

    fn result(&self) -> Result<ScalarValue> {
        if self.values == 0 {
            return ScalarValue::try_from(&self.of);
        }
        let is_set = |ones: u64| match self.bits {
            Bits::All => ones == self.values,
            Bits::Any => ones > 0,
            Bits::Odd => ones % 2 == 1,
        };
        let bits = self.ones.iter().enumerate().fold(0u64, |bits, (bit, ones)| bits | u64::from(is_set(*ones)) << bit);
        match self.of {
            DataType::UInt64 => Ok(ScalarValue::UInt64(Some(bits))),
            _ => ScalarValue::Int64(Some(bits as i64)).cast_to(&self.of),
        }
    }
}

impl Accumulator for Counts {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.count(&values[0], true)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.count(&values[0], false)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.result()
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    /// A window has no states that are merged; this one is its value, as DataFusion's.
    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.result()?])
    }

    fn merge_batch(&mut self, _: &[ArrayRef]) -> Result<()> {
        datafusion::common::not_impl_err!("frames that slide are not merged")
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{BooleanArray, Int8Array, UInt64Array};

    use super::*;

    /// The result over each two neighbours of `values`.
    fn over_pairs(bits: Bits, values: ArrayRef) -> Vec<ScalarValue> {
        let mut counts = Counts { bits, of: values.data_type().clone(), values: 0, ones: [0; 64] };
        let each = |at: usize| {
            counts.update_batch(&[values.slice(at, 1)]).unwrap();
            if at > 1 {
                counts.retract_batch(&[values.slice(at - 2, 1)]).unwrap();
            }
            counts.evaluate().unwrap()
        };
        (0..values.len()).map(each).collect()
    }

    #[test]
    fn values_that_leave_a_frame_count_no_more() {
        let truths: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, None, Some(false), Some(true)]));
        let of = |bits| {
            over_pairs(bits, Arc::clone(&truths)).into_iter().map(|v| if let ScalarValue::Boolean(v) = v { v } else { panic!("{v}") }).collect::<Vec<_>>()
        };
        assert_eq!(of(Bits::All), [Some(true), Some(true), None, Some(false), Some(false)]);
        assert_eq!(of(Bits::Any), [Some(true), Some(true), None, Some(false), Some(true)]);
        let small: ArrayRef = Arc::new(Int8Array::from(vec![Some(-1), Some(6), Some(-128), None]));
        let of =
            |bits| over_pairs(bits, Arc::clone(&small)).into_iter().map(|v| if let ScalarValue::Int8(v) = v { v } else { panic!("{v}") }).collect::<Vec<_>>();
        assert_eq!(of(Bits::All), [Some(-1), Some(6), Some(0), Some(-128)]);
        assert_eq!(of(Bits::Any), [Some(-1), Some(-1), Some(-122), Some(-128)]);
        assert_eq!(of(Bits::Odd), [Some(-1), Some(-7), Some(-122), Some(-128)]);
        let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, 1]));
        assert_eq!(over_pairs(Bits::Odd, large), [u64::MAX, u64::MAX - 1].map(|v| ScalarValue::UInt64(Some(v))));
    }
}
