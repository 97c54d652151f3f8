//! An aggregate in two halves: states by its finest groups below, their merge by its own groups above.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DataFusionError, Result, ScalarValue};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::{Aggregate, Expr, ExprSchemable, LogicalPlan};

use crate::expressions::check_aggregate;
use crate::partial::form_names;
use crate::wide_projection::{self, Columns};

/// Both halves.
#[derive(Clone)]
pub(crate) struct Halves {
    /// The finest groups, as columns `__g0`, `__g1`, ...
    groups: Vec<Expr>,
    /// A state per aggregate, as columns `__s0`, `__s1`, ...
    states: Vec<Expr>,
    /// The aggregate's own groups, of the columns of `groups`.
    above: Vec<Expr>,
    merges: Vec<Expr>,
    original: Aggregate,
}

impl Halves {
    /// The halves of `aggregate`, or why it has none, in words. [`crate::classify()`] has let it go.
    pub(crate) fn of(aggregate: &Aggregate, registry: &dyn FunctionRegistry) -> Result<std::result::Result<Self, &'static str>> {
        let schema = aggregate.input.schema();
        let columns = Columns::of(schema);
        let (mut states, mut merges) = (vec![], vec![]);
        for (i, expr) in aggregate.aggr_expr.iter().enumerate() {
            let call = check_aggregate(expr, &columns, registry).map_err(DataFusionError::Plan)?;
            let Some((state, merge)) = form_names(call.func.name(), call.params.distinct) else { return Ok(Err("it has no state with DISTINCT")) };
            let (Ok(state), Ok(merge)) = (registry.udaf(&state), registry.udaf(&merge)) else { return Ok(Err("it has no form that returns its state")) };
            let mut call = call.clone();
            let mut args = vec![column(&format!("__s{i}"))];
            for arg in &call.params.args {
                args.push(match arg {
                    Expr::Literal(..) => arg.clone(),
                    other => match ScalarValue::try_from(&other.get_type(&columns)?) {
                        Ok(null) => Expr::Literal(null, None),
                        Err(_) => return Ok(Err("an argument's type has no NULL to stand for it above")),
                    },
                });
            }
            merges.push(merge.call(args).alias(format!("__m{i}")));
            call.func = state;
            call.params.order_by.clear();
            call.params.distinct = false;
            states.push(Expr::AggregateFunction(call).alias(format!("__s{i}")));
        }
        let finest = finest(&aggregate.group_expr);
        let groups = finest.iter().enumerate().map(|(i, e)| e.clone().unalias().alias(format!("__g{i}"))).collect();
        let above = aggregate
            .group_expr
            .iter()
            .map(|expr| {
                expr.clone().transform_down(|e| match finest.iter().position(|g| *g == e) {
                    Some(i) => Ok(Transformed::new(column(&format!("__g{i}")), true, TreeNodeRecursion::Jump)),
                    None => Ok(Transformed::no(e)),
                })
            })
            .map(|t| t.map(|t| t.data))
            .collect::<Result<_>>()?;
        Ok(Ok(Self { groups, states, above, merges, original: aggregate.clone() }))
    }

    /// The states of `input`'s rows.
    pub(crate) fn below(&self, input: LogicalPlan) -> Result<LogicalPlan> {
        Ok(LogicalPlan::Aggregate(wide_projection::aggregate(Arc::new(input), self.groups.clone(), self.states.clone())?))
    }

    /// The aggregate, from its states, with its own names; `None` where that would have other types.
    pub(crate) fn merged(self, states: LogicalPlan) -> Result<Option<LogicalPlan>> {
        let merged = LogicalPlan::Aggregate(wide_projection::aggregate(Arc::new(states), self.above, self.merges)?);
        let columns = self
            .original
            .schema
            .iter()
            .zip(merged.schema().columns())
            .map(|((qualifier, field), from)| Expr::Alias(Alias::new(Expr::Column(from), qualifier.cloned(), field.name())));
        let restored = LogicalPlan::Projection(wide_projection::projection(columns.collect(), Arc::new(merged))?);
        Ok(same_columns(restored.schema(), &self.original.schema).then_some(restored))
    }
}

/// The groups that all sets are made of; without sets, the groups themselves.
pub(crate) fn finest(groups: &[Expr]) -> Vec<Expr> {
    match groups {
        [Expr::GroupingSet(sets)] => sets.distinct_expr().into_iter().cloned().collect(),
        groups => groups.to_vec(),
    }
}

fn column(name: &str) -> Expr {
    Expr::Column(Column::new_unqualified(name))
}

/// The same names, qualifiers and types in the same order.
fn same_columns(a: &DFSchema, b: &DFSchema) -> bool {
    a.fields().len() == b.fields().len()
        && a.iter().zip(b.iter()).all(|((qa, fa), (qb, fb))| qa == qb && fa.name() == fb.name() && fa.data_type() == fb.data_type())
}
