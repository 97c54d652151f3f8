//! Rows of a sub-plan that runs as a whole. They are held back, up to a bound, until it is certain that the sub-plan
//! need not run again elsewhere.

use std::collections::VecDeque;
use std::pin::Pin;

use arrow::datatypes::SchemaRef;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt, stream};
use skytether_common::{Error, Result};
use skytether_device::conform::conform;
use skytether_device::size::batch_bytes;
use skytether_device::{DeliveryStream, ResultMessage};

use crate::degraded_storage::covers;

/// The most bytes of rows that are held back. Beyond this, rows leave, and a loss of the drive fails the sub-plan.
const HELD: u64 = 16 << 20;

type Messages = Pin<Box<dyn Stream<Item = Result<ResultMessage>> + Send>>;

/// Runs the same sub-plan elsewhere, after such an error.
pub(crate) type RetryFn = Box<dyn FnOnce(Error) -> BoxFuture<'static, Result<DeliveryStream>> + Send>;

struct Held {
    name: String,
    /// The columns that were announced.
    schema: SchemaRef,
    messages: Messages,
    /// The epoch that has sent rows and has not ended.
    epoch: Option<u32>,
    /// Rows so far, in order, with their bytes.
    rows: VecDeque<ResultMessage>,
    bytes: u64,
    again: Option<RetryFn>,
}

/// What `stream`, the answer of the drive called `name`, gives. Where it fails before any row has left, what `again`
/// gives.
pub(crate) fn held(name: &str, stream: DeliveryStream, again: RetryFn) -> DeliveryStream {
    let schema: SchemaRef = stream.schema;
    let (name, announced) = (name.to_owned(), SchemaRef::clone(&schema));
    let held = Held { name, schema: announced, messages: stream.messages, epoch: None, rows: VecDeque::new(), bytes: 0, again: Some(again) };
    let messages = stream::unfold(held, |mut held| async move {
        let next = held.next().await?;
        Some((next, held))
    });
    DeliveryStream { schema, messages: Box::pin(messages) }
}

impl Held {
    /// Checks that `message` can follow those before it.
    fn check(&mut self, message: &ResultMessage) -> Result<()> {
        match message {
            ResultMessage::Batch { epoch, batch } => {
                self.epoch = Some(*epoch);
                conform(batch, &self.schema, &self.name).map(drop).map_err(|e| Error::corrupt(e.report()))
            }
            ResultMessage::EpochComplete { epoch } => {
                self.epoch = self.epoch.filter(|open| open != epoch);
                Ok(())
            }
            ResultMessage::Done(_) => match self.epoch {
                Some(epoch) => Err(Error::corrupt(format!("{} finished without completing epoch {epoch}: its rows can't be counted", self.name))),
                None => Ok(()),
            },
        }
    }

    async fn next(&mut self) -> Option<Result<ResultMessage>> {
        loop {
            if self.again.is_none()
                && let Some(first) = self.rows.pop_front()
            {
                return Some(Ok(first));
            }
            let next = match self.messages.next().await {
                Some(Ok(message)) if self.again.is_some() => Some(self.check(&message).map(|()| message)),
                next => next,
            };
            match next {
                Some(Ok(message)) if self.again.is_none() => return Some(Ok(message)),
                Some(Ok(message)) => {
                    if let ResultMessage::Batch { batch, .. } = &message {
                        self.bytes = self.bytes.saturating_add(batch_bytes(batch));
                    }
                    let over = matches!(message, ResultMessage::Done(_));
                    self.rows.push_back(message);
                    if over || self.bytes > HELD {
                        self.again = None;
                    }
                }
                None if self.again.is_none() => return None,
                ended => {
                    let error = match ended {
                        Some(Err(error)) => error,
                        _ => Error::unavailable(format!("{} ended its answer without finishing it", self.name)),
                    };
                    match self.again.take() {
                        Some(again) if covers(&error) => {
                            self.rows.clear();
                            match again(error).await {
                                Ok(stream) => self.messages = stream.messages,
                                Err(error) => return Some(Err(error)),
                            }
                        }
                        _ => return Some(Err(error)),
                    }
                }
            }
        }
    }
}
