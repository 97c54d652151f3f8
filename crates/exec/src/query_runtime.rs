//! Memory and spill disk that all queries of a host share.

use std::path::Path;
use std::sync::Arc;

use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use skytether_common::Result;
use skytether_plan::error::from_datafusion;

use crate::query_limits::SpillFiles;
use crate::sort_reserve::SortReservePool;
use crate::spill_dir::SpillDirectory;

/// The memory and spill disk that all queries of a host share. It is made before the cluster, whose degraded reads take
/// from the same memory.
#[derive(Debug, Clone)]
pub struct QueryRuntime {
    runtime: Arc<RuntimeEnv>,
    /// Queries that run keep the session's configuration, and so the directory, for as long as they
    /// may put something there.
    spill: Arc<SpillDirectory>,
}

impl QueryRuntime {
    /// With these bytes of memory, and on disk below `spill_below` (the system's directory for
    /// temporary files if `None`).
    ///
    /// # Errors
    /// What the file system says of the directory for what memory can't hold.
    pub fn new(memory_limit: usize, spill_limit: u64, spill_below: Option<&Path>) -> Result<Self> {
        let spill = SpillDirectory::make(&spill_below.map_or_else(std::env::temp_dir, Path::to_owned))?;
        let disk = DiskManagerBuilder::default().with_temp_file_factory(SpillFiles::below(spill.path(), spill_limit)?);
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(SortReservePool::new(memory_limit)))
            .with_disk_manager_builder(disk)
            .build_arc()
            .map_err(from_datafusion)?;
        Ok(Self { runtime, spill: Arc::new(spill) })
    }

    /// The directory for what memory can't hold.
    pub fn spill(&self) -> &Arc<SpillDirectory> {
        &self.spill
    }

    /// The environment for DataFusion: memory pool and spill disk.
    pub fn env(&self) -> &Arc<RuntimeEnv> {
        &self.runtime
    }
}
