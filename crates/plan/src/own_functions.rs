//! All functions of ours that the host and the drives need to know besides the aggregates of [`crate::partial`], and
//! what makes expressions of SQL's operators.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::{FunctionRegistry, SessionStateDefaults};
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::planner::ExprPlanner;

use crate::list_elements::ListElements;
use crate::operand_types::OperandTypes;
use crate::{
    bounded_results, float_keys, instants, list_functions, list_sums, masked_structs, mended_functions, null_if, opaque_values, pinned, window_functions,
};

/// What makes expressions of SQL's operators: ours, then DataFusion's. The first that knows an operator is taken.
#[must_use]
pub fn expr_planners() -> Vec<Arc<dyn ExprPlanner>> {
    let ours: [Arc<dyn ExprPlanner>; 2] = [Arc::new(OperandTypes), Arc::new(ListElements)];
    ours.into_iter().chain(SessionStateDefaults::default_expr_planners()).collect()
}

/// `function` as it is registered; none if it is. DataFusion's planner makes some calls, such as `x = ANY(list)`,
/// without a look into the registry.
pub(crate) fn registered(function: &Arc<ScalarUDF>) -> Option<Arc<ScalarUDF>> {
    let mended = mended_functions::with_mend(function);
    let function = mended.as_ref().unwrap_or(function);
    bounded_results::with_bound(function).or_else(|| list_functions::replaced(function)).or(mended)
}

/// Registers them, some in place of DataFusion's of the same name. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    mended_functions::register(registry)?;
    bounded_results::register(registry)?;
    float_keys::register(registry)?;
    instants::register(registry)?;
    list_functions::register(registry)?;
    list_sums::register(registry)?;
    masked_structs::register(registry)?;
    null_if::register(registry)?;
    opaque_values::register(registry)?;
    pinned::register(registry)?;
    window_functions::register(registry)
}
