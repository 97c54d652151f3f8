//! Sub-plans of a drive that can't run them itself, and in their annotations what was decoded for them.

use std::sync::Arc;

use futures::StreamExt;
use skytether_common::Result;
use skytether_device::session::Message;
use skytether_device::{Annotation, DeliveryStream, OpenReply, PushdownLevel, ResultMessage, Session, Storage, SubPlan};

use crate::degraded_storage::{DegradedStorage, ReconstructionCounters, ReconstructionStats};
use crate::fallback::FallbackExecutor;

/// Runs sub-plans in the place of a drive: all that a drive does, but for writing.
#[derive(Debug)]
pub(crate) struct ReplacementEngine {
    executor: Arc<dyn FallbackExecutor>,
    tally: Arc<ReconstructionCounters>,
}

impl ReplacementEngine {
    /// For the drive whose values `rebuilt` gives. Must be called in a runtime.
    ///
    /// # Errors
    /// Internal only, where the engine does not take our functions.
    pub(crate) fn new(rebuilt: &Arc<DegradedStorage>) -> Result<Self> {
        let reconstructor = &rebuilt.reconstructor;
        let executor = reconstructor.fallback.executor(Arc::clone(rebuilt) as Arc<dyn Storage>, reconstructor.drives.len())?;
        Ok(Self { executor, tally: Arc::clone(&rebuilt.tally) })
    }

    /// As [`skytether_device::Cse::execute`]; `why` the drive itself does not.
    pub(crate) async fn execute(&self, plan: SubPlan, why: String) -> Result<DeliveryStream> {
        let tally = Telling::new(&self.tally, why);
        Ok(tally.stream(self.executor.execute(plan).await?))
    }

    /// As [`skytether_device::Cse::open`].
    pub(crate) async fn open(&self, plan: SubPlan, why: String) -> Result<OpenReply> {
        let tally = Telling::new(&self.tally, why);
        Ok(match self.executor.open(plan).await? {
            OpenReply::Whole(stream) => OpenReply::Whole(tally.stream(stream)),
            OpenReply::Session(session) => {
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

/// Adds the figures of decoding to annotations. Figures of sub-plans that run for one drive at the same time overlap.
struct Telling {
    tally: Arc<ReconstructionCounters>,
    before: ReconstructionStats,
    why: String,
}

impl Telling {
    fn new(tally: &Arc<ReconstructionCounters>, why: String) -> Self {
        Self { tally: Arc::clone(tally), before: tally.read(), why }
    }

    fn tell(&self, annotation: &mut Annotation) {
        let ReconstructionStats { slices, within, bytes, own } = self.tally.read().since(self.before);
        if own > 0 && slices == 0 && bytes == 0 {
            // The drive gave its values, and the results never left the host.
            annotation.rung = Some(PushdownLevel::Raw);
            annotation.bytes_sent = own;
            annotation.reason.get_or_insert_with(|| self.why.clone());
        }
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
