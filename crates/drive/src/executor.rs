//! What a drive runs: one [`Executor`] for each kind of program.
//!
//! The drive validates nothing of a program itself. It finds the executor of the program's kind, plans on a task of
//! its own, and puts the name of the emulated device into annotations. Sessions are a capability of an executor:
//! today [`SubstraitExecutor`] has them, because it can divide a plan by slices.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::execution::memory_pool::MemoryPool;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::{DeliveryStream, OpenReply, ProgramKind, SubPlan};
use skytether_emulation::Processor;
use skytether_engine::Engine;
use skytether_engine::lane_pool::LanePool;
use skytether_engine::session::Sessions;
use skytether_engine::split_execution::Taken;
use skytether_scheduler::profile::Profile;
use skytether_store::SliceStore;
use tokio::sync::Semaphore;

/// What a drive gives to its executors.
#[derive(Debug, Clone)]
pub struct ExecutionContext {
    /// The drive's name, for annotations. The drive itself puts it in front of errors.
    pub name: String,
    /// What the drive stores. A program may read the partitions that its sub-plan names, and no others. Reading takes
    /// the time of the emulated device's disk.
    pub store: Arc<dyn SliceStore>,
    /// The memory pool of all programs together; without room they end as `Exhausted`.
    pub memory: Arc<dyn MemoryPool>,
    /// A program holds a permit while it runs; the drive's options give their number.
    pub turns: Arc<Semaphore>,
    /// The cores of the emulated device, if there is one.
    pub processor: Option<Arc<Processor>>,
}

/// Runs programs of one kind over a drive's store.
pub trait Executor: Send + Sync + Debug + 'static {
    /// The kind that it runs.
    fn kind(&self) -> ProgramKind;

    /// Validates and runs the program of `plan`, over the inputs that `plan` names.
    ///
    /// # Errors
    /// As [`Cse::execute`](skytether_device::Cse::execute).
    fn execute(self: Arc<Self>, plan: SubPlan, context: ExecutionContext) -> BoxFuture<'static, Result<DeliveryStream>>;

    /// Validates the program of `plan` and waits for orders about its slices, or runs it as a whole, which is the
    /// default.
    ///
    /// # Errors
    /// As [`Cse::open`](skytether_device::Cse::open).
    fn open(self: Arc<Self>, plan: SubPlan, context: ExecutionContext) -> BoxFuture<'static, Result<OpenReply>> {
        async move { Ok(OpenReply::Whole(self.execute(plan, context).await?)) }.boxed()
    }
}

/// Runs Substrait plans by [`Engine`], which has the parts of [`ExecutionContext`] from its making.
#[derive(Debug)]
pub(crate) struct SubstraitExecutor {
    pub(crate) engine: Arc<Engine>,
    pub(crate) sessions: Arc<Sessions>,
    /// The emulated device, if there is one.
    pub(crate) profile: Option<Profile>,
}

impl Executor for SubstraitExecutor {
    fn kind(&self) -> ProgramKind {
        ProgramKind::Substrait
    }

    fn execute(self: Arc<Self>, plan: SubPlan, _: ExecutionContext) -> BoxFuture<'static, Result<DeliveryStream>> {
        async move { self.engine.start(plan).await }.boxed()
    }

    fn open(self: Arc<Self>, plan: SubPlan, _: ExecutionContext) -> BoxFuture<'static, Result<OpenReply>> {
        async move {
            Ok(match self.engine.take(plan.clone()).await? {
                Taken::Whole(stream) => OpenReply::Whole(stream),
                Taken::Split(divided) => {
                    let lanes = LanePool::new(Arc::clone(&self.engine), *divided, self.profile.as_ref());
                    OpenReply::Session(self.sessions.open(&plan, lanes))
                }
            })
        }
        .boxed()
    }
}
