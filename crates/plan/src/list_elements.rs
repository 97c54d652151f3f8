//! `array_agg(x)[n]` is the element of a list.
//!
//! DataFusion makes `nth_value(x, n)` of it, which drops a `DISTINCT`, and takes only constants for `n`.

use datafusion::common::{DFSchema, Result};
use datafusion::functions_nested::expr_fn::array_element;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawFieldAccessExpr};
use datafusion::logical_expr::{Expr, GetFieldAccess};

/// The planner of elements of aggregated lists. It stands before DataFusion's own, as the first that plans is taken.
#[derive(Debug)]
pub(crate) struct ListElements;

impl ExprPlanner for ListElements {
    fn plan_field_access(&self, access: RawFieldAccessExpr, _: &DFSchema) -> Result<PlannerResult<RawFieldAccessExpr>> {
        Ok(match access {
            RawFieldAccessExpr { expr: list @ Expr::AggregateFunction(_), field_access: GetFieldAccess::ListIndex { key } } => {
                PlannerResult::Planned(array_element(list, *key))
            }
            other => PlannerResult::Original(other),
        })
    }
}
