//! Which results drives should keep: those of aggregates over whole matrices, which read much and give little, and are
//! asked again for each contrast between the same groups.

use datafusion::logical_expr::{Expr, LogicalPlan};
use skytether_expression::cell_sums::CELL_SUMS;
use skytether_expression::clipped_moments::CLIPPED_MOMENTS;
use skytether_expression::moments::MOMENTS;
use skytether_expression::rank_sums::RANK_SUMS;
use skytether_plan::partial::state_name;

/// The aggregates of matrices.
const OF_MATRICES: [&str; 4] = [MOMENTS, RANK_SUMS, CELL_SUMS, CLIPPED_MOMENTS];

/// Whether what `sub_plan` gives is worth a place on the drives.
pub(crate) fn is_worth_it(sub_plan: &LogicalPlan) -> bool {
    match sub_plan {
        LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => sub_plan.inputs().first().is_some_and(|input| is_worth_it(input)),
        LogicalPlan::Aggregate(aggregate) => aggregate.aggr_expr.iter().any(is_of_matrix),
        _ => false,
    }
}

fn is_of_matrix(call: &Expr) -> bool {
    match call {
        Expr::Alias(alias) => is_of_matrix(&alias.expr),
        Expr::AggregateFunction(call) => OF_MATRICES.iter().any(|name| call.func.name() == *name || call.func.name() == state_name(name)),
        _ => false,
    }
}
