//! All functions of ours that the host and the drives need to know besides the aggregates of [`crate::partial`], and
//! what makes expressions of SQL's operators.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{FunctionRegistry, SessionStateDefaults};
use datafusion::logical_expr::planner::ExprPlanner;

use crate::list_elements::ListElements;
use crate::operand_types::OperandTypes;
use crate::{bounded_results, float_keys, list_functions, masked_structs, opaque_values, pinned, window_functions};

/// What makes expressions of SQL's operators: ours, then DataFusion's. The first that knows an operator is taken.
#[must_use]
pub fn expr_planners() -> Vec<Arc<dyn ExprPlanner>> {
    let ours: [Arc<dyn ExprPlanner>; 2] = [Arc::new(OperandTypes), Arc::new(ListElements)];
    ours.into_iter().chain(SessionStateDefaults::default_expr_planners()).collect()
}

/// Registers them, some in place of DataFusion's of the same name. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    bounded_results::register(registry)?;
    float_keys::register(registry)?;
    list_functions::register(registry)?;
    masked_structs::register(registry)?;
    opaque_values::register(registry)?;
    pinned::register(registry)?;
    window_functions::register(registry)
}
