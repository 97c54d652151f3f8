//! What a drive runs: one [`Executor`] for each kind of program.
//!
//! The drive validates nothing of a program itself. It finds the executor of the program's kind, plans on a task of
//! its own, and puts the name of the emulated device into annotations. Sessions are a capability of an executor:
//! today [`SubstraitExecutor`] has them, because it can divide a plan by slices.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use datafusion::execution::memory_pool::MemoryPool;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::kept::Identity;
use skytether_device::{DeliveryStream, OpenReply, ProgramKind, SubPlan};
use skytether_emulation::Processor;
use skytether_engine::lane_pool::LanePool;
use skytether_engine::session::Sessions;
use skytether_engine::split_execution::Taken;
use skytether_engine::{Engine, blocking_on};
use skytether_scheduler::profile::Profile;
use skytether_store::SliceStore;
use tokio::sync::Semaphore;

use crate::kept::{KeptResults, delivery};

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
    pub(crate) kept: Arc<KeptResults>,
}

impl SubstraitExecutor {
    /// The identity of the result of `plan`, if it is worth keeping; and that result, if it was kept.
    async fn kept(&self, plan: &SubPlan, processor: Option<Arc<Processor>>) -> Result<(Option<Identity>, Option<DeliveryStream>)> {
        let started = Instant::now();
        let Some(of) = Identity::of(plan)? else { return Ok((None, None)) };
        let (kept, key) = (Arc::clone(&self.kept), of.clone());
        let found = blocking_on(processor, move || Ok(kept.find(&key))).await?;
        let found = found.map(|(found, bytes)| delivery(self.engine.name(), plan.bytes(), found, bytes, started));
        Ok((Some(of), found))
    }
}

impl Executor for SubstraitExecutor {
    fn kind(&self) -> ProgramKind {
        ProgramKind::Substrait
    }

    fn execute(self: Arc<Self>, plan: SubPlan, context: ExecutionContext) -> BoxFuture<'static, Result<DeliveryStream>> {
        async move {
            match self.kept(&plan, context.processor).await? {
                (_, Some(found)) => Ok(found),
                (Some(of), None) => Ok(self.kept.of_whole(of, self.engine.start(plan).await?)),
                (None, None) => self.engine.start(plan).await,
            }
        }
        .boxed()
    }

    fn open(self: Arc<Self>, plan: SubPlan, context: ExecutionContext) -> BoxFuture<'static, Result<OpenReply>> {
        async move {
            let of = match self.kept(&plan, context.processor).await? {
                (_, Some(found)) => return Ok(OpenReply::Whole(found)),
                (of, None) => of,
            };
            Ok(match (self.engine.take(plan.clone()).await?, of) {
                (Taken::Whole(stream), None) => OpenReply::Whole(stream),
                (Taken::Whole(stream), Some(of)) => OpenReply::Whole(self.kept.of_whole(of, stream)),
                (Taken::Split(divided), of) => {
                    let lanes = LanePool::new(Arc::clone(&self.engine), *divided, self.profile.as_ref());
                    let session = self.sessions.open(&plan, lanes);
                    OpenReply::Session(match of {
                        Some(of) => self.kept.of_session(of, session),
                        None => session,
                    })
                }
            })
        }
        .boxed()
    }
}
