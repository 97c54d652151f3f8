//! An engine in this process over the values of a drive that can't run its sub-plans itself.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::memory_pool::MemoryPool;
use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::{DeliveryStream, OpenReply, Storage, SubPlan};
use skytether_engine::lane_pool::LanePool;
use skytether_engine::remote::RemoteStore;
use skytether_engine::session::{Bounds, Sessions};
use skytether_engine::split_execution::Taken;
use skytether_engine::{Engine, Reader};
use skytether_runtime::threads::{Threads, spawn_blocking_thread};

use skytether_recovery::fallback::{Fallback, FallbackExecutor};

/// Sub-plans that run at the same time for one drive.
const PLANS: usize = 4;

/// Epochs that may run or wait.
const EPOCHS: u32 = 64;

/// Threads that wait for reads and decoding. Decoding has other threads: a thread that waits must not take the place of
/// one that it waits for.
const WAITING: usize = 16;

/// Makes engines that share a memory pool, and the threads that wait for values.
#[derive(Debug)]
pub struct EngineFallback {
    pool: Arc<dyn MemoryPool>,
    deadline: Duration,
    waiting: Arc<Threads>,
}

impl EngineFallback {
    /// Engines with memory from `pool`, over drives that may take up to `deadline` for one storage operation.
    pub fn new(pool: Arc<dyn MemoryPool>, deadline: Duration) -> Self {
        Self { pool, deadline, waiting: Arc::new(Threads::new(WAITING)) }
    }
}

impl Fallback for EngineFallback {
    fn executor(&self, values: Arc<dyn Storage>, drives: usize) -> Result<Arc<dyn FallbackExecutor>> {
        let (name, memory) = (values.info().name.clone(), values.info().memory_limit);
        // Decoding waits for several reads, one after the other where one fails.
        let store = RemoteStore::new(values, self.deadline.saturating_mul(4));
        let reader = Reader::sharing(Arc::new(store), drives).waiting_on(Arc::clone(&self.waiting));
        let engine = Arc::new(Engine::new(name, Arc::new(reader), Arc::clone(&self.pool), 1, PLANS)?);
        let sessions = Sessions::new(Arc::clone(&engine), memory, None, Bounds { epochs: EPOCHS, load: f64::INFINITY });
        Ok(Arc::new(EngineExecutor { engine, sessions }))
    }
}

#[derive(Debug)]
struct EngineExecutor {
    engine: Arc<Engine>,
    sessions: Arc<Sessions>,
}

impl EngineExecutor {
    /// Plans on a thread that may wait for what drives read.
    async fn planned<T: Send + 'static>(&self, planning: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        spawn_blocking_thread(move || futures::executor::block_on(planning)).await.map_err(|e| self.engine.named(e))
    }
}

impl FallbackExecutor for EngineExecutor {
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        let engine = Arc::clone(&self.engine);
        Box::pin(self.planned(async move { engine.start(plan).await }))
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        let (engine, taken) = (Arc::clone(&self.engine), plan.clone());
        Box::pin(async move {
            Ok(match self.planned(async move { engine.take(taken).await }).await? {
                Taken::Whole(stream) => OpenReply::Whole(stream),
                Taken::Split(divided) => OpenReply::Session(self.sessions.open(&plan, LanePool::new(Arc::clone(&self.engine), *divided, None))),
            })
        })
    }
}
