//! Engines in this process over what drives store: one per drive, made on first use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::memory_pool::MemoryPool;
use parking_lot::Mutex;
use skytether_device::Cse;
use skytether_runtime::threads::Threads;
use uuid::Uuid;

use crate::adaptive::local_worker::LocalExecutor;

/// Threads that wait for raw slices of drives.
const READERS: usize = 64;

/// The engines of a host. Clones share them.
#[derive(Debug, Clone)]
pub struct LocalExecutors(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: Arc<dyn MemoryPool>,
    deadline: Duration,
    threads: Arc<Threads>,
    engines: Mutex<HashMap<Uuid, Arc<LocalExecutor>>>,
}

impl LocalExecutors {
    /// Engines with memory from `pool`, over drives that may take up to `deadline` for one storage operation.
    pub fn new(pool: Arc<dyn MemoryPool>, deadline: Duration) -> Self {
        let threads = Arc::new(Threads::new(READERS));
        Self(Arc::new(Inner { pool, deadline, threads, engines: Mutex::default() }))
    }

    /// The engine over what `drive` stores, one of `drives` that share the memory for caches.
    pub fn get(&self, drive: &Arc<dyn Cse>, drives: usize) -> Arc<LocalExecutor> {
        let Inner { pool, deadline, threads, engines } = self.0.as_ref();
        let mut engines = engines.lock();
        let make = || Arc::new(LocalExecutor::new(Arc::clone(drive), Arc::clone(pool), *deadline, drives, Arc::clone(threads)));
        Arc::clone(engines.entry(drive.info().id).or_insert_with(make))
    }
}
