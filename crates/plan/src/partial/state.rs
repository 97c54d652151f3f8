//! `__f_state`: the half of an aggregate that makes states.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, StatisticsArgs, Volatility};

use super::forms::{inner_args, names_of, nullable, struct_fields, to_struct};

/// Aggregates whose state is their value.
const VALUE_IS_STATE: [&str; 3] = ["count", "max", "min"];

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct StateForm {
    inner: Arc<AggregateUDF>,
    /// Whether it makes states of `f(DISTINCT ...)`.
    distinct: bool,
    name: String,
    signature: Signature,
}

impl StateForm {
    pub(super) fn new(inner: Arc<AggregateUDF>, distinct: bool) -> Self {
        let (name, _) = names_of(inner.name(), distinct);
        Self { inner, distinct, name, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for StateForm {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// As they come: the analyzer coerced the arguments for `f` before the plan was cut.
    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        Ok(arg_types.to_vec())
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Struct(struct_fields(&self.inner, &nullable(arg_types), self.distinct)?))
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        Ok(Arc::new(Field::new(&self.name, DataType::Struct(struct_fields(&self.inner, arg_fields, self.distinct)?), true)))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let return_field = self.inner.return_field(args.input_fields)?;
        self.inner.state_fields(StateFieldsArgs { return_field, ordering_fields: &[], is_distinct: self.distinct, ..args })
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let fields = struct_fields(&self.inner, args.expr_fields, self.distinct)?;
        let inner = self.inner.accumulator(inner_args(&self.inner, &args, 0, self.distinct)?)?;
        Ok(Box::new(State { inner, fields }))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        inner_args(&self.inner, &args, 0, self.distinct).is_ok_and(|a| self.inner.groups_accumulator_supported(a))
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let fields = struct_fields(&self.inner, args.expr_fields, self.distinct)?;
        let inner = self.inner.create_groups_accumulator(inner_args(&self.inner, &args, 0, self.distinct)?)?;
        Ok(Box::new(StateGroups { inner, fields }))
    }

    /// `f`'s value, where it is its state as well.
    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        let DataType::Struct(fields) = args.return_type else { return None };
        let [field] = fields.iter().as_slice() else { return None };
        if self.distinct || !VALUE_IS_STATE.contains(&self.inner.name()) {
            return None;
        }
        let value = self.inner.value_from_stats(&StatisticsArgs { return_type: field.data_type(), ..*args })?;
        let column = value.cast_to(field.data_type()).and_then(|v| v.to_array()).ok()?;
        Some(ScalarValue::Struct(Arc::new(to_struct(fields, vec![column]).ok()?)))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

#[derive(Debug)]
struct State {
    inner: Box<dyn Accumulator>,
    fields: Fields,
}

impl Accumulator for State {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let columns = self.inner.state()?.iter().map(ScalarValue::to_array).collect::<Result<Vec<_>>>()?;
        Ok(ScalarValue::Struct(Arc::new(to_struct(&self.fields, columns)?)))
    }

    fn size(&self) -> usize {
        self.inner.size() + size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }
}

struct StateGroups {
    inner: Box<dyn GroupsAccumulator>,
    fields: Fields,
}

impl GroupsAccumulator for StateGroups {
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        self.inner.update_batch(values, groups, filter, total)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let columns = self.inner.state(emit_to)?;
        Ok(Arc::new(to_struct(&self.fields, columns)?))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.inner.state(emit_to)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.inner.merge_batch(values, groups, total)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.inner.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        self.inner.size() + size_of_val(self)
    }
}
