//! Aggregates in two halves.
//!
//! Substrait does not carry DataFusion's aggregation phases, so the halves travel as functions by name. For an aggregate `f`:
//!
//! - `__f_state(args...)` returns `f`'s partial state over its rows as one struct, a field per state column;
//! - `__f_merge(state, args...)` combines such states and finishes them into what `f(args...)` would have returned. Literal arguments are
//!   passed again as they are (some aggregates read them: the percentile of `approx_percentile_cont`), others as typed
//!   NULLs, which are never read: `f` derives its types from them.
//!
//! `f(DISTINCT ...)` has another state, which holds the values themselves: `__f_distinct_state` and `__f_distinct_merge` are the halves of those that know how.
//!
//! Both forms are complete aggregates: each can itself run in phases, and a merge is a merge of any number of states in any order.

mod extremes;
mod merge;
mod state;

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, StructArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, exec_err};
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::logical_expr::AggregateUDF;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};

/// What begins the name of both forms; a function so named is itself a form and gets none.
const PREFIX: &str = "__";

/// Aggregates whose state can't be merged without the order of rows, or that are no aggregates of their own.
const NOT_MERGEABLE: [&str; 2] = ["nth_value", "grouping"];

/// Name of the form of `f` that returns its state: `__f_state`.
#[must_use]
pub fn state_name(f: &str) -> String {
    names_of(f, false).0
}

/// Name of the form of `f` that merges states: `__f_merge`.
#[must_use]
pub fn merge_name(f: &str) -> String {
    names_of(f, false).1
}

/// Aggregates that keep the distinct values as their state when they are called with DISTINCT.
const WITH_DISTINCT: [&str; 7] = ["array_agg", "avg", "bit_xor", "count", "median", "percentile_cont", "sum"];

/// Aggregates that give the same with DISTINCT and without.
const WITHOUT_MATTER: [&str; 6] = ["bit_and", "bit_or", "bool_and", "bool_or", "max", "min"];

/// The names of the forms for a call of `f`; `None` where the call is DISTINCT and `f` has no state for that.
#[must_use]
pub fn form_names(f: &str, distinct: bool) -> Option<(String, String)> {
    if distinct && !WITHOUT_MATTER.contains(&f) {
        return WITH_DISTINCT.contains(&f).then(|| names_of(f, true));
    }
    Some(names_of(f, false))
}

/// The names of both forms of `f`, or of those for `f(DISTINCT ...)`.
fn names_of(f: &str, distinct: bool) -> (String, String) {
    let kind = if distinct { "_distinct" } else { "" };
    (format!("{PREFIX}{f}{kind}_state"), format!("{PREFIX}{f}{kind}_merge"))
}

/// The name of the form that merges what the form of this name returns; `None` where that returns no state.
#[must_use]
pub fn merge_of_state(name: &str) -> Option<String> {
    let of = name.strip_prefix(PREFIX)?.strip_suffix("_state")?;
    (!of.starts_with(PREFIX)).then(|| format!("{PREFIX}{of}_merge"))
}

/// Whether `udaf` is the merging form of some aggregate.
#[must_use]
pub fn is_merge(udaf: &AggregateUDF) -> bool {
    (udaf.inner().as_ref() as &dyn std::any::Any).is::<merge::MergeForm>()
}

/// The form of `inner` that returns its partial state as a struct.
#[must_use]
pub fn state_udaf(inner: Arc<AggregateUDF>) -> AggregateUDF {
    AggregateUDF::from(state::StateForm::new(inner, false))
}

/// The form of `inner` that merges partial states and finishes them.
#[must_use]
pub fn merge_udaf(inner: Arc<AggregateUDF>) -> AggregateUDF {
    AggregateUDF::from(merge::MergeForm::new(inner, false))
}

/// Whether states of `udaf` over disjoint sets of rows, merged in any order, give what it gives over all rows.
///
/// DataFusion asks this of every aggregate anyway (it aggregates in phases), so the exceptions are what is listed.
#[must_use]
pub fn is_mergeable(udaf: &AggregateUDF) -> bool {
    let name = udaf.name();
    !NOT_MERGEABLE.contains(&name) && !name.starts_with(PREFIX) && name == name.to_lowercase()
}

/// Registers both forms of every mergeable aggregate in `registry`, and `min` and `max` that order floats as SQL does. Call it after user aggregates were registered; again
/// does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    for udaf in extremes::udafs() {
        registry.register_udaf(udaf)?;
    }
    let mut names: Vec<String> = registry.udafs().into_iter().collect();
    names.sort_unstable();
    for name in names {
        let udaf = registry.udaf(&name)?;
        for form in forms(&udaf) {
            registry.register_udaf(form)?;
        }
    }
    Ok(())
}

/// As [`register`], for a session that is being built: the builder's own aggregates and their forms.
pub fn register_with(builder: &mut SessionStateBuilder) {
    let list = builder.aggregate_functions().get_or_insert_default();
    let own = extremes::udafs();
    list.retain(|f| own.iter().all(|own| own.name() != f.name()));
    list.extend(own);
    let known: Vec<String> = list.iter().map(|f| f.name().to_owned()).collect();
    let new: Vec<_> = list.iter().flat_map(forms).filter(|f| !known.iter().any(|k| k == f.name())).collect();
    list.extend(new);
}

/// The forms of `udaf`, those for DISTINCT among them; none where it is not mergeable.
#[must_use]
pub fn forms(udaf: &Arc<AggregateUDF>) -> Vec<Arc<AggregateUDF>> {
    let mut forms = vec![];
    if is_mergeable(udaf) {
        forms.extend([state_udaf(Arc::clone(udaf)), merge_udaf(Arc::clone(udaf))]);
        if WITH_DISTINCT.contains(&udaf.name()) {
            forms.push(AggregateUDF::from(state::StateForm::new(Arc::clone(udaf), true)));
            forms.push(AggregateUDF::from(merge::MergeForm::new(Arc::clone(udaf), true)));
        }
    }
    forms.into_iter().map(Arc::new).collect()
}

/// The struct's fields: one per state column of `inner` over `inputs`, named `s0..`, all nullable.
///
/// `inner` names its state after the call, which differs between levels; the position is what counts.
fn struct_fields(inner: &AggregateUDF, inputs: &[FieldRef], is_distinct: bool) -> Result<Fields> {
    let args = StateFieldsArgs { name: inner.name(), input_fields: inputs, return_field: inner.return_field(inputs)?, ordering_fields: &[], is_distinct };
    Ok(inner.state_fields(args)?.iter().enumerate().map(|(i, f)| Field::new(format!("s{i}"), f.data_type().clone(), true)).collect())
}

/// State columns as one struct column of `fields`.
fn to_struct(fields: &Fields, columns: Vec<ArrayRef>) -> Result<StructArray> {
    if columns.len() != fields.len() {
        return exec_err!("an aggregate gave {} state columns where it had announced {}", columns.len(), fields.len());
    }
    let rows = columns.first().map_or(0, |c| c.len());
    // Some aggregates announce a state type that differs from what they give in the name of a list's item.
    let columns = columns
        .into_iter()
        .zip(fields)
        .map(|(c, f)| if c.data_type() == f.data_type() { Ok(c) } else { cast(&c, f.data_type()) })
        .collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(StructArray::try_new_with_length(fields.clone(), columns, None, rows)?)
}

/// The struct column's children, as state columns for `inner`.
fn from_struct(column: &ArrayRef, fields: &Fields) -> Result<Vec<ArrayRef>> {
    let Some(states) = column.as_any().downcast_ref::<StructArray>() else {
        return exec_err!("a merge form was given {} where it needs a struct", column.data_type());
    };
    if states.num_columns() != fields.len() {
        return exec_err!("a merge form was given a state of {} columns where it needs {}", states.num_columns(), fields.len());
    }
    states.columns().iter().zip(fields).map(|(c, f)| if c.data_type() == f.data_type() { Ok(Arc::clone(c)) } else { Ok(cast(c, f.data_type())?) }).collect()
}

/// `args` as `inner` wants to see them: its own result field, and of the arguments those from `skip` on.
fn inner_args<'a>(inner: &AggregateUDF, args: &AccumulatorArgs<'a>, skip: usize, is_distinct: bool) -> Result<AccumulatorArgs<'a>> {
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

/// Fields of `types`, as aggregates see arguments of which only types are known.
fn nullable(types: &[DataType]) -> Vec<FieldRef> {
    types.iter().enumerate().map(|(i, t)| Arc::new(Field::new(format!("a{i}"), t.clone(), true))).collect()
}
