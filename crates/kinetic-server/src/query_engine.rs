//! The drive's query engine, as the door knows it.

use std::sync::Arc;

use skytether_common::Result;
use skytether_device::{Cse, SubPlan};
use skytether_store::SliceStore;

use crate::stored_slices::StoredSlices;

/// The drive's engine over the slices that its Kinetic clients stored.
#[derive(Debug, Clone)]
pub struct QueryEngine {
    slices: Arc<StoredSlices>,
    engine: Arc<dyn Cse>,
}

impl QueryEngine {
    /// `engine` must run over `slices`.
    #[must_use]
    pub fn new(slices: Arc<StoredSlices>, engine: Arc<dyn Cse>) -> Self {
        Self { slices, engine }
    }

    /// What the engine says of itself.
    pub(crate) fn engine(&self) -> &Arc<dyn Cse> {
        &self.engine
    }

    /// The CSE that has the first partition of `plan`: data sets of the two stores may have the same names.
    pub(crate) fn over(&self, own: &Arc<dyn Cse>, plan: &SubPlan) -> Result<Arc<dyn Cse>> {
        let first = plan.datasets().flat_map(|(_, partitions)| partitions.values()).next();
        let is_here = match first {
            Some(partition) => self.slices.stat(&partition.key()?)?.is_some(),
            None => true,
        };
        Ok(Arc::clone(if is_here { &self.engine } else { own }))
    }
}
