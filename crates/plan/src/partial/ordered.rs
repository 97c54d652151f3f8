//! `array_agg` and `string_agg` in an order, next to others with another.
//!
//! DataFusion sorts the input for one of an operator's aggregates, and reverses those that want the opposite. With
//! `DISTINCT` they sort their values by themselves, and came out in the reversed order:
//! `array_agg(DISTINCT u ORDER BY u), array_agg(DISTINCT u ORDER BY u DESC)` were the same twice. `string_agg` sorts by
//! itself as well, but asked for a sorted input: two with orders of their own were refused.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::functions_aggregate::array_agg::array_agg_udaf;
use datafusion::functions_aggregate::string_agg::string_agg_udaf;
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, AggregateUDF};

use super::replacement::{Replacement, replaced};

/// The aggregates, to replace DataFusion's.
pub(super) fn udafs() -> [Arc<AggregateUDF>; 2] {
    [replaced(array_agg_udaf(), Ordered), replaced(string_agg_udaf(), Ordered)]
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Ordered;

impl Replacement for Ordered {
    fn accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        if !(args.is_distinct && args.is_reversed) {
            return original.accumulator(args);
        }
        let mut keys = args.order_bys.to_vec();
        keys.iter_mut().for_each(|key| key.options = !key.options);
        original.accumulator(AccumulatorArgs { order_bys: &keys, is_reversed: false, ..args })
    }

    fn sorts(&self) -> bool {
        true
    }
}
