//! Grouped moments over the dense view of a matrix, turned into moments over its sparse rows.

use datafusion::common::TableReference;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::{Expr, LogicalPlan};
use skytether_common::Result;
use skytether_expression::cell_moments::CELL_MOMENTS;
use skytether_expression::rewrite;
use skytether_plan::error::from_datafusion;

use crate::tables::{NamedTables, rows_of};
use skytether_catalog::table_view::View;

/// Whether the plan calls `cell_moments` anywhere.
pub(crate) fn calls_cell_moments(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|e| {
            e.apply(|e| {
                found |= matches!(e, Expr::AggregateFunction(call) if call.func.name() == CELL_MOMENTS);
                Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })
    })
    .map_err(from_datafusion)?;
    Ok(found)
}

/// `plan` with moments over sparse rows wherever it can read them instead of the dense view; `tables` must know them.
pub(crate) fn to_sparse_rows(plan: LogicalPlan, tables: &NamedTables, registry: &dyn FunctionRegistry) -> Result<LogicalPlan> {
    let moments = registry.udaf("moments").map_err(from_datafusion)?;
    let find = |table: &TableReference| {
        let dense = tables.get(table).filter(|n| n.view == View::Dense)?;
        let reference = rows_of(dense);
        let rows = tables.get(&reference)?;
        Some((rows.source(), reference, dense.record.name.clone(), dense.stored.clone()))
    };
    rewrite::rewrite(plan, &find, &moments).map(|t| t.data).map_err(from_datafusion)
}
