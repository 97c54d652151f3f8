//! Turns our errors into DataFusion's.

use datafusion::error::DataFusionError;
use skytether_common::Error;

/// One of ours on its way through DataFusion; `Error::find` gets it back out.
pub(crate) fn through(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
