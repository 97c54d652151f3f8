//! Calls that DataFusion's planner makes itself, such as those for `x <> ALL(list)`, `list @> list` and `[1] || [2]`,
//! as calls of our functions. A drive finds a function by its name, and so always calls ours.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::own_functions::registered;
use crate::rewriting::map_typed;

pub(super) fn rewrite(plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
    map_typed(plan, ours)
}

fn ours(e: Expr, _: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::ScalarFunction(ScalarFunction { func, args }) = e else { return Ok(Transformed::no(e)) };
    let found = registered(&func);
    let changed = found.is_some();
    Ok(Transformed::new_transformed(Expr::ScalarFunction(ScalarFunction { func: found.unwrap_or(func), args }), changed))
}
