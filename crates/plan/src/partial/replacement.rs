//! Aggregates that replace DataFusion's of the same name: the accumulators are ours, all else is that of the original.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature, StatisticsArgs,
};

/// The accumulators of a replacement, which are the original's unless it says otherwise. Each is given the original,
/// for types that it leaves alone.
pub(super) trait Replacement: Debug + Clone + Eq + Hash + Send + Sync + 'static {
    fn name<'a>(&'a self, original: &'a AggregateUDF) -> &'a str {
        original.name()
    }

    /// The fields of its state; none for those of the original.
    fn state_fields(&self, _: &StateFieldsArgs) -> Option<Vec<FieldRef>> {
        None
    }

    fn accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        original.accumulator(args)
    }

    fn groups_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn GroupsAccumulator>> {
        original.create_groups_accumulator(args)
    }

    fn sliding_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        original.create_sliding_accumulator(args)
    }

    /// Whether it sorts its values by itself where the input has another order.
    fn sorts(&self) -> bool {
        false
    }

    /// Whether it also replaces the original's aggregate over the reversed order. Otherwise nothing reverses it.
    fn replaces_reversed(&self) -> bool {
        self.sorts()
    }
}

/// `original` with the accumulators of `replacement`.
pub(super) fn replaced(original: Arc<AggregateUDF>, replacement: impl Replacement) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::from(Replaced { original, replacement }))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Replaced<R> {
    original: Arc<AggregateUDF>,
    replacement: R,
}

impl<R: Replacement> AggregateUDFImpl for Replaced<R> {
    fn name(&self) -> &str {
        self.replacement.name(&self.original)
    }

    fn aliases(&self) -> &[String] {
        self.original.aliases()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.original.supports_within_group_clause()
    }

    fn signature(&self) -> &Signature {
        self.original.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.original.return_type(arg_types)
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        self.original.return_field(arg_fields)
    }

    fn is_nullable(&self) -> bool {
        self.original.is_nullable()
    }

    fn default_value(&self, of: &DataType) -> Result<ScalarValue> {
        self.original.default_value(of)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.original.coerce_types(arg_types)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        match self.replacement.state_fields(&args) {
            Some(fields) => Ok(fields),
            None => self.original.state_fields(args),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.replacement.accumulator(args, &self.original)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.original.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.replacement.groups_accumulator(args, &self.original)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.replacement.sliding_accumulator(args, &self.original)
    }

    fn is_descending(&self) -> Option<bool> {
        self.original.is_descending()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        match self.original.order_sensitivity() {
            // The order of WITHIN GROUP is a direction, and none of the input.
            _ if self.original.supports_within_group_clause() => AggregateOrderSensitivity::Insensitive,
            _ if self.replacement.sorts() => AggregateOrderSensitivity::SoftRequirement,
            other => other,
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.original.reverse_udf() {
            ReversedUDAF::Identical => ReversedUDAF::Identical,
            ReversedUDAF::Reversed(original) if self.replacement.replaces_reversed() => ReversedUDAF::Reversed(replaced(original, self.replacement.clone())),
            _ => ReversedUDAF::NotSupported,
        }
    }

    fn with_beneficial_ordering(self: Arc<Self>, is_ordered: bool) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        let original = Arc::clone(self.original.inner()).with_beneficial_ordering(is_ordered)?;
        let again = |original| Self { original: Arc::new(AggregateUDF::new_from_shared_impl(original)), replacement: self.replacement.clone() };
        Ok(match original {
            Some(original) => Some(Arc::new(again(original))),
            // It sorts in either case.
            None if self.replacement.sorts() => Some(self),
            None => None,
        })
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.original.supports_null_handling_clause()
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.original.value_from_stats(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.original.documentation()
    }

    /// DataFusion takes the results of a window for sorted if the aggregate only grows with its rows. It forgets that
    /// they are NULL where a frame has no value, and that rows leave a frame: `max(x) OVER (ORDER BY t) AS m`, sorted
    /// by `m`, came unsorted.
    fn set_monotonicity(&self, _: &DataType) -> SetMonotonicity {
        SetMonotonicity::NotMonotonic
    }
}
