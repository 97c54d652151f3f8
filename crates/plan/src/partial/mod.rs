//! Aggregates in two halves.
//!
//! Substrait does not carry DataFusion's aggregation phases, so the halves travel as functions by
//! name. For an aggregate `f`:
//!
//! - `__f_state(args...)` returns `f`'s partial state over its rows as one struct, a field per state column;
//! - `__f_merge(state, args...)` combines such states and finishes them into what `f(args...)` would have returned.
//!   Literal arguments are passed again as they are (some aggregates read them: the percentile of
//!   `approx_percentile_cont`), others as typed NULLs, which are never read: `f` derives its types from them.
//!
//! `f(DISTINCT ...)` has another state, which holds the values themselves: `__f_distinct_state` and
//! `__f_distinct_merge` are the halves of those that know how.
//!
//! Both forms are complete aggregates: each can itself run in phases, and a merge is a merge of any
//! number of states in any order.

mod averages;
mod extremes;
mod forms;
mod merge;
mod moments;
mod named;
mod nested_extremes;
mod ordered;
mod percentiles;
mod queue;
mod replacement;
mod sliding;
mod state;
mod sums;

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::logical_expr::AggregateUDF;

use forms::{PREFIX, names_of};

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

/// Whether states of `udaf` over disjoint sets of rows, merged in any order, give its result over all rows.
///
/// DataFusion requires this of every aggregate anyway (it aggregates in phases), so the code lists only the exceptions.
#[must_use]
pub fn is_mergeable(udaf: &AggregateUDF) -> bool {
    let name = udaf.name();
    !NOT_MERGEABLE.contains(&name) && !name.starts_with(PREFIX) && name == name.to_lowercase()
}

/// Aggregates that replace DataFusion's: `min` and `max` that order floats and lists as SQL does, `sum` and `avg` that
/// do not wrap around, truths and bits over frames that slide, moments of floats, ordered lists of distinct values, and
/// first and last values that keep their name.
fn own() -> Vec<Arc<AggregateUDF>> {
    extremes::udafs()
        .into_iter()
        .chain([averages::udaf(), sums::udaf()])
        .chain(moments::udafs())
        .chain(named::udafs())
        .chain(ordered::udafs())
        .chain(percentiles::udafs())
        .chain(sliding::udafs())
        .collect()
}

/// Registers both forms of every mergeable aggregate in `registry`, and our own aggregates.
/// Call it after user aggregates were registered; a second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    for udaf in own() {
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
    let own = own();
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
