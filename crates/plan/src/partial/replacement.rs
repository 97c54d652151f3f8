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

/// The accumulators of a replacement. Each is given the original, for types that it leaves alone.
pub(super) trait Replacement: Debug + Eq + Hash + Send + Sync + 'static {
    /// The fields of its state; none for those of the original.
    fn state_fields(&self, _: &StateFieldsArgs) -> Option<Vec<FieldRef>> {
        None
    }

    fn accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>>;

    fn groups_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn GroupsAccumulator>>;

    fn sliding_accumulator(&self, args: AccumulatorArgs, original: &AggregateUDF) -> Result<Box<dyn Accumulator>> {
        original.create_sliding_accumulator(args)
    }
}

/// `original` with the accumulators of `replacement`.
pub(super) fn replaced(original: Arc<AggregateUDF>, replacement: impl Replacement) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::from(Replaced { original, replacement }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Replaced<R> {
    original: Arc<AggregateUDF>,
    replacement: R,
}

impl<R: Replacement> AggregateUDFImpl for Replaced<R> {
    fn name(&self) -> &str {
        self.original.name()
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
        // The order of WITHIN GROUP is a direction, and none of the input.
        if self.original.supports_within_group_clause() { AggregateOrderSensitivity::Insensitive } else { self.original.order_sensitivity() }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.original.reverse_udf() {
            ReversedUDAF::Identical => ReversedUDAF::Identical,
            _ => ReversedUDAF::NotSupported,
        }
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.original.value_from_stats(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.original.documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.original.inner().set_monotonicity(data_type)
    }
}
