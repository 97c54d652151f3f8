//! Sorts over unions with constants in an input.
//!
//! DataFusion sorts the inputs of a union side by side and merges them, where that is allowed. It leaves out the sort
//! of an input whose keys are constants. Its last check then concludes another order of the union and refuses the plan.

use datafusion::common::Result;
use datafusion::common::tree_node::TreeNode;
use datafusion::logical_expr::LogicalPlan;

/// Whether `plan` has a sort over a union with a constant column in one input.
pub(crate) fn are_sorted(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| Ok(matches!(node, LogicalPlan::Sort(sort) if of_union(&sort.input))))
}

fn of_union(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Union(union) => union.inputs.iter().any(|input| has_constants(input)),
        LogicalPlan::Projection(projection) => of_union(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => of_union(&alias.input),
        _ => false,
    }
}

fn has_constants(input: &LogicalPlan) -> bool {
    match input {
        LogicalPlan::Projection(projection) => projection.expr.iter().any(|e| !e.any_column_refs()),
        LogicalPlan::SubqueryAlias(alias) => has_constants(&alias.input),
        other => of_union(other),
    }
}
