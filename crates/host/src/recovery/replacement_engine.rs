//! An engine in this process over the values of a drive that can't run its sub-plans itself.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use skytether_common::Result;
use skytether_device::session::Message;
use skytether_device::{Annotation, DeliveryStream, OpenReply, ResultMessage, Session, Storage, SubPlan};
use skytether_engine::lane_pool::LanePool;
use skytether_engine::remote::RemoteStore;
use skytether_engine::session::{Bounds, Sessions};
use skytether_engine::split_execution::Taken;
use skytether_engine::threads::spawn_blocking_thread;
use skytether_engine::{Engine, Reader};

use crate::recovery::degraded_storage::{Figures, Rebuilt, Tally};

/// Sub-plans that run at the same time for one drive.
const PLANS: usize = 4;

/// Epochs that may run or wait.
const EPOCHS: u32 = 64;

/// Runs sub-plans in the place of a drive: all that a drive does, but for writing.
pub(crate) struct StandIn {
    engine: Arc<Engine>,
    sessions: Arc<Sessions>,
    tally: Arc<Tally>,
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn").field("drive", &self.engine.name()).finish_non_exhaustive()
    }
}

impl StandIn {
    /// For the drive whose values `rebuilt` gives. Must be called in a runtime.
    ///
    /// # Errors
    /// Internal only, where DataFusion does not take our functions.
    pub(crate) fn new(rebuilt: &Arc<Rebuilt>) -> Result<Self> {
        let (cover, info) = (&rebuilt.cover, rebuilt.info());
        // Decoding waits for several reads, one after the other where one fails.
        let store = RemoteStore::new(Arc::clone(rebuilt) as Arc<dyn Storage>, cover.deadline.saturating_mul(4));
        let reader = Reader::sharing(Arc::new(store), cover.drives.len()).waiting_on(Arc::clone(&cover.waiting));
        let engine = Arc::new(Engine::new(info.name.clone(), Arc::new(reader), Arc::clone(&cover.pool), 1, PLANS)?);
        let sessions = Sessions::new(Arc::clone(&engine), info.memory_limit, None, Bounds { epochs: EPOCHS, load: f64::INFINITY });
        Ok(Self { engine, sessions, tally: Arc::clone(&rebuilt.tally) })
    }

    /// Plans on a thread that may wait for what drives read.
    async fn planned<T: Send + 'static>(&self, planning: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        spawn_blocking_thread(move || futures::executor::block_on(planning)).await.map_err(|e| self.engine.named(e))
    }

    /// As [`skytether_device::Cse::execute`]; `why` the drive itself does not.
    pub(crate) async fn execute(&self, plan: SubPlan, why: String) -> Result<DeliveryStream> {
        let (engine, tally) = (Arc::clone(&self.engine), Telling::new(&self.tally, why));
        let stream = self.planned(async move { engine.start(plan).await }).await?;
        Ok(tally.stream(stream))
    }

    /// As [`skytether_device::Cse::open`].
    pub(crate) async fn open(&self, plan: SubPlan, why: String) -> Result<OpenReply> {
        let (engine, taken, tally) = (Arc::clone(&self.engine), plan.clone(), Telling::new(&self.tally, why));
        Ok(match self.planned(async move { engine.take(taken).await }).await? {
            Taken::Whole(stream) => OpenReply::Whole(tally.stream(stream)),
            Taken::Split(divided) => {
                let session = self.sessions.open(&plan, LanePool::new(Arc::clone(&self.engine), *divided, None));
                let messages = session.messages.map(move |message| match message {
                    Ok(Message::Done(mut told)) => {
                        tally.tell(&mut told);
                        Ok(Message::Done(told))
                    }
                    other => other,
                });
                OpenReply::Session(Session { messages: Box::pin(messages), ..session })
            }
        })
    }
}

/// Adds to annotations what was decoded. Figures of sub-plans that run for one drive at the same time overlap.
struct Telling {
    tally: Arc<Tally>,
    before: Figures,
    why: String,
}

impl Telling {
    fn new(tally: &Arc<Tally>, why: String) -> Self {
        Self { tally: Arc::clone(tally), before: tally.read(), why }
    }

    fn tell(&self, annotation: &mut Annotation) {
        let Figures { slices, within, bytes } = self.tally.read().since(self.before);
        annotation.served_by_fallback = Some(self.why.clone());
        (annotation.slices_decoded, annotation.slices_within, annotation.bytes_decoded) = (slices, within, bytes);
    }

    fn stream(self, stream: DeliveryStream) -> DeliveryStream {
        let messages = stream.messages.map(move |message| match message {
            Ok(ResultMessage::Done(mut told)) => {
                self.tell(&mut told);
                Ok(ResultMessage::Done(told))
            }
            other => other,
        });
        DeliveryStream { schema: stream.schema, messages: Box::pin(messages) }
    }
}
