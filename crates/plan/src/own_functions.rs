//! All functions of ours that the host and the drives need to know besides the aggregates of [`crate::partial`].

use datafusion::common::Result;
use datafusion::execution::FunctionRegistry;

use crate::{bounded_results, float_keys, list_functions, masked_structs, window_functions};

/// Registers them, some in place of DataFusion's of the same name. A second call does no harm.
///
/// # Errors
/// Those of a registry that can't be written.
pub fn register(registry: &mut dyn FunctionRegistry) -> Result<()> {
    bounded_results::register(registry)?;
    float_keys::register(registry)?;
    list_functions::register(registry)?;
    masked_structs::register(registry)?;
    window_functions::register(registry)
}
