//! `__f_merge`: the half of an aggregate that merges states.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, BooleanArray, new_null_array};
use datafusion::arrow::compute::{and, filter as keep, is_not_null, prep_null_mask_filter};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, ScalarValue, exec_err, not_impl_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature, Volatility};

use super::forms::{from_struct, inner_args, names_of, nullable, struct_fields};

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct MergeForm {
    inner: Arc<AggregateUDF>,
    /// Whether it merges states of `f(DISTINCT ...)`.
    distinct: bool,
    name: String,
    signature: Signature,
}

impl MergeForm {
    pub(super) fn new(inner: Arc<AggregateUDF>, distinct: bool) -> Self {
        let (_, name) = names_of(inner.name(), distinct);
        Self { inner, distinct, name, signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for MergeForm {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// As they come; the first must be the state of `f` over arguments of the types of the others.
    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        let Some((state, rest)) = arg_types.split_first() else {
            return plan_err!("{} needs the state to merge as its first argument", self.name);
        };
        let expected = struct_fields(&self.inner, &nullable(rest), self.distinct)?;
        match state {
            DataType::Struct(fields) if fields.len() == expected.len() => Ok(arg_types.to_vec()),
            other => plan_err!("{} merges structs of {} fields, not {other}", self.name, expected.len()),
        }
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match arg_types.split_first() {
            Some((_, rest)) => self.inner.return_type(rest),
            None => plan_err!("{} needs the state to merge as its first argument", self.name),
        }
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        let Some((_, rest)) = arg_fields.split_first() else {
            return plan_err!("{} needs the state to merge as its first argument", self.name);
        };
        let field = self.inner.return_field(rest)?;
        Ok(Arc::new(Field::new(&self.name, field.data_type().clone(), field.is_nullable()).with_metadata(field.metadata().clone())))
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let Some((_, rest)) = args.input_fields.split_first() else {
            return plan_err!("{} needs the state to merge as its first argument", self.name);
        };
        let return_field = self.inner.return_field(rest)?;
        self.inner.state_fields(StateFieldsArgs { input_fields: rest, return_field, ordering_fields: &[], is_distinct: self.distinct, ..args })
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let inner_args = inner_args(&self.inner, &args, 1, self.distinct)?;
        let fields = struct_fields(&self.inner, inner_args.expr_fields, self.distinct)?;
        Ok(Box::new(Merge { inner: self.inner.accumulator(inner_args)?, fields }))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        inner_args(&self.inner, &args, 1, self.distinct).is_ok_and(|a| self.inner.groups_accumulator_supported(a))
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let inner_args = inner_args(&self.inner, &args, 1, self.distinct)?;
        let fields = struct_fields(&self.inner, inner_args.expr_fields, self.distinct)?;
        let nulls = inner_args.expr_fields.iter().map(|f| new_null_array(f.data_type(), 1)).collect();
        Ok(Box::new(MergeGroups { inner: self.inner.create_groups_accumulator(inner_args)?, fields, nulls }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }
}

/// Which rows hold a state: those that pass the filter and are not NULL. `None`: all of them.
fn with_state(states: &ArrayRef, filter: Option<&BooleanArray>) -> Result<Option<BooleanArray>> {
    let filter = filter.map(|f| if f.null_count() > 0 { prep_null_mask_filter(f) } else { f.clone() });
    if states.null_count() == 0 {
        return Ok(filter);
    }
    let there = is_not_null(states)?;
    Ok(Some(match filter {
        Some(f) => and(&f, &there)?,
        None => there,
    }))
}

fn first(values: &[ArrayRef]) -> Result<&ArrayRef> {
    match values.first() {
        Some(v) => Ok(v),
        None => exec_err!("a merge form was called without a state"),
    }
}

#[derive(Debug)]
struct Merge {
    inner: Box<dyn Accumulator>,
    fields: Fields,
}

impl Accumulator for Merge {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let states = first(values)?;
        let states = match with_state(states, None)? {
            Some(mask) => &keep(states, &mask)?,
            None => states,
        };
        if states.is_empty() {
            return Ok(());
        }
        self.inner.merge_batch(&from_struct(states, &self.fields)?)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.inner.evaluate()
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

struct MergeGroups {
    inner: Box<dyn GroupsAccumulator>,
    fields: Fields,
    /// A row of `f`'s arguments, all NULL.
    nulls: Vec<ArrayRef>,
}

impl GroupsAccumulator for MergeGroups {
    fn update_batch(&mut self, values: &[ArrayRef], groups: &[usize], filter: Option<&BooleanArray>, total: usize) -> Result<()> {
        let states = first(values)?;
        match with_state(states, filter)? {
            None => self.inner.merge_batch(&from_struct(states, &self.fields)?, groups, total),
            Some(mask) => {
                let states = keep(states, &mask)?;
                if states.is_empty() {
                    // Some groups have no states yet. Some accumulators take a batch without rows, and so without
                    // NULLs, to mean that every group was seen. DataFusion reports such groups by a row that the filter
                    // leaves out.
                    let none = BooleanArray::from(vec![false]);
                    return if total == 0 { Ok(()) } else { self.inner.update_batch(&self.nulls, &[0], Some(&none), total) };
                }
                let groups: Vec<usize> = groups.iter().zip(mask.values().iter()).filter_map(|(g, k)| k.then_some(*g)).collect();
                self.inner.merge_batch(&from_struct(&states, &self.fields)?, &groups, total)
            }
        }
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        self.inner.evaluate(emit_to)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.inner.state(emit_to)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], groups: &[usize], total: usize) -> Result<()> {
        self.inner.merge_batch(values, groups, total)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let states = first(values)?;
        if filter.is_some() || states.null_count() > 0 {
            // An empty state has no general form, so rows that the filter leaves out can't be converted one by one.
            return not_impl_err!("a merge form with a filter can't skip partial aggregation");
        }
        from_struct(states, &self.fields)
    }

    fn size(&self) -> usize {
        self.inner.size() + size_of_val(self)
    }
}
