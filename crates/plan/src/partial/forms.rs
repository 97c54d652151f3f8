//! The parts that both forms of an aggregate share: names, the state as a struct, and the arguments
//! of the aggregate itself.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, StructArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::AggregateUDF;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};

/// What begins the name of both forms; a function so named is itself a form and gets none.
pub(super) const PREFIX: &str = "__";

/// The names of both forms of `f`, or of those for `f(DISTINCT ...)`.
pub(super) fn names_of(f: &str, distinct: bool) -> (String, String) {
    let kind = if distinct { "_distinct" } else { "" };
    (format!("{PREFIX}{f}{kind}_state"), format!("{PREFIX}{f}{kind}_merge"))
}

/// The struct's fields: one per state column of `inner` over `inputs`, named `s0..`, all nullable.
///
/// `inner` names its state after the call, which differs between levels; the position is what counts.
pub(super) fn struct_fields(inner: &AggregateUDF, inputs: &[FieldRef], is_distinct: bool) -> Result<Fields> {
    let args = StateFieldsArgs { name: inner.name(), input_fields: inputs, return_field: inner.return_field(inputs)?, ordering_fields: &[], is_distinct };
    Ok(inner.state_fields(args)?.iter().enumerate().map(|(i, f)| Field::new(format!("s{i}"), f.data_type().clone(), true)).collect())
}

/// State columns as one struct column of `fields`.
pub(super) fn to_struct(fields: &Fields, columns: Vec<ArrayRef>) -> Result<StructArray> {
    if columns.len() != fields.len() {
        return exec_err!("an aggregate gave {} state columns where it had announced {}", columns.len(), fields.len());
    }
    let rows = columns.first().map_or(0, |c| c.len());
    // Some aggregates announce a state type whose list item has another name than in their states.
    let columns = columns
        .into_iter()
        .zip(fields)
        .map(|(c, f)| if c.data_type() == f.data_type() { Ok(c) } else { cast(&c, f.data_type()) })
        .collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(StructArray::try_new_with_length(fields.clone(), columns, None, rows)?)
}

/// The struct column's children, as state columns for `inner`.
pub(super) fn from_struct(column: &ArrayRef, fields: &Fields) -> Result<Vec<ArrayRef>> {
    let Some(states) = column.as_any().downcast_ref::<StructArray>() else {
        return exec_err!("a merge form was given {} where it needs a struct", column.data_type());
    };
    if states.num_columns() != fields.len() {
        return exec_err!("a merge form was given a state of {} columns where it needs {}", states.num_columns(), fields.len());
    }
    states.columns().iter().zip(fields).map(|(c, f)| if c.data_type() == f.data_type() { Ok(Arc::clone(c)) } else { Ok(cast(c, f.data_type())?) }).collect()
}

/// `args` in the form that `inner` expects: its own result field, and the arguments from `skip` on.
pub(super) fn inner_args<'a>(inner: &AggregateUDF, args: &AccumulatorArgs<'a>, skip: usize, is_distinct: bool) -> Result<AccumulatorArgs<'a>> {
    if args.exprs.len() < skip || args.expr_fields.len() < skip {
        return exec_err!("{} needs at least {skip} arguments", inner.name());
    }
    let expr_fields = &args.expr_fields[skip..];
    Ok(AccumulatorArgs {
        return_field: inner.return_field(expr_fields)?,
        schema: args.schema,
        ignore_nulls: false,
        order_bys: &[],
        is_reversed: false,
        name: args.name,
        is_distinct,
        exprs: &args.exprs[skip..],
        expr_fields,
    })
}

/// Fields of `types`, as aggregates see arguments when only their types are known.
pub(super) fn nullable(types: &[DataType]) -> Vec<FieldRef> {
    types.iter().enumerate().map(|(i, t)| Arc::new(Field::new(format!("a{i}"), t.clone(), true))).collect()
}
