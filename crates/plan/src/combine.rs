//! Merges states into states: an aggregator does this with the states of its drives before it sends them up.
//!
//! A sub-plan that aggregates gives one row of group and states per group. Rows of equal groups, from any drive, can
//! become one. The merging form of the aggregate combines the states; it returns the state instead of the result.

use std::sync::Arc;

use datafusion::common::{Column, Result, ScalarValue, plan_err};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, Extension, LogicalPlan, Projection};

use crate::partial::{merge_of_state, state_udaf};
use crate::pushdown_level::Delivered;

/// Aggregates whose states are the values themselves: put together they are hardly fewer, and may be
/// more than a message takes.
const HOLDS_VALUES: [&str; 5] = ["_distinct_state", "__array_agg", "__median", "__percentile_cont", "__string_agg"];

/// A plan that combines rows of `plan`, over [`Delivered`] rows of its schema, into fewer rows of the same schema.
/// `None` where `plan` makes no states: its rows go up as they are.
///
/// # Errors
/// Internal only: where the parts of a valid plan are none.
pub fn combined(plan: &LogicalPlan, registry: &dyn FunctionRegistry) -> Result<Option<LogicalPlan>> {
    let Some((aggregate, outputs)) = states(plan) else { return Ok(None) };
    let own = plan.schema();
    let input = Arc::clone(&aggregate.input);
    let (mut groups, mut calls) = (Vec::new(), Vec::new());
    let from = aggregate.group_expr.len();
    for (at, output) in outputs.iter().enumerate() {
        let column = Expr::Column(Column::from(own.qualified_field(at)));
        if *output < from {
            groups.push(column);
            continue;
        }
        let Some(call) = state_call(&aggregate.aggr_expr[*output - from]) else { return Ok(None) };
        if HOLDS_VALUES.iter().any(|kind| call.func.name().contains(kind)) {
            return Ok(None);
        }
        let Some(merge) = merge_of_state(call.func.name()).map(|name| registry.udaf(&name)).transpose()? else { return Ok(None) };
        let mut args = vec![column];
        for arg in &call.params.args {
            args.push(match arg {
                Expr::Literal(..) => arg.clone(),
                other => Expr::Literal(ScalarValue::try_from(&other.get_type(input.schema())?)?, None),
            });
        }
        calls.push((at, Arc::new(state_udaf(merge)).call(args)));
    }
    // Without all group columns in the rows, groups can't be told apart.
    if groups.len() != from {
        return Ok(None);
    }
    let delivered = LogicalPlan::Extension(Extension { node: Arc::new(Delivered::of(Arc::clone(own))) });
    let named = calls.iter().map(|(at, call)| call.clone().alias(format!("__c{at}"))).collect();
    let aggregate = Aggregate::try_new(Arc::new(delivered), groups, named)?;
    let restored = own.iter().enumerate().map(|(at, (qualifier, field))| {
        let column = match calls.iter().any(|(call, _)| *call == at) {
            true => Column::new_unqualified(format!("__c{at}")),
            false => Column::from((qualifier, field)),
        };
        Expr::Column(column).alias_qualified(qualifier.cloned(), field.name())
    });
    let restored = Projection::try_new(restored.collect(), Arc::new(LogicalPlan::Aggregate(aggregate)))?;
    let same = restored.schema.fields().iter().zip(own.fields()).all(|(new, old)| new.data_type() == old.data_type());
    if same { Ok(Some(LogicalPlan::Projection(restored))) } else { plan_err!("combined states have other types than states") }
}

/// The aggregate that makes the states of `plan`, and for each column of `plan` the column of the aggregate that it is;
/// `None` where something else is done to them.
fn states(plan: &LogicalPlan) -> Option<(&Aggregate, Vec<usize>)> {
    match plan {
        LogicalPlan::Aggregate(aggregate) => {
            let made = !aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_)))
                && aggregate.aggr_expr.iter().all(|call| state_call(call).is_some());
            made.then(|| (aggregate, (0..aggregate.schema.fields().len()).collect()))
        }
        LogicalPlan::Projection(projection) => {
            let (aggregate, below) = states(&projection.input)?;
            let schema = projection.input.schema();
            let columns = projection.expr.iter().map(|expr| match bare(expr) {
                Expr::Column(column) => below.get(schema.maybe_index_of_column(column)?).copied(),
                _ => None,
            });
            Some((aggregate, columns.collect::<Option<_>>()?))
        }
        LogicalPlan::SubqueryAlias(alias) => states(&alias.input),
        _ => None,
    }
}

/// The call that makes a state.
fn state_call(expr: &Expr) -> Option<&AggregateFunction> {
    match bare(expr) {
        Expr::AggregateFunction(call) if merge_of_state(call.func.name()).is_some() => Some(call),
        _ => None,
    }
}

fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => bare(&alias.expr),
        expr => expr,
    }
}
