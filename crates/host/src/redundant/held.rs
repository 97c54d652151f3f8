//! Rows of a sub-plan that runs as a whole: they are held back until it is known that it needs not be run again, as long as they are few.

use std::collections::VecDeque;
use std::pin::Pin;

use arrow::datatypes::SchemaRef;
use futures::future::BoxFuture;
use futures::{Stream, StreamExt, stream};
use skytether_common::{Error, Result};
use skytether_wire::size::batch_bytes;
use skytether_wire::{Delivery, DeliveryStream};

use super::rebuilt::covers;

/// Bytes of rows that are held back at most; where there are more, they go out and the drive may not be lost any more.
const HELD: u64 = 16 << 20;

type Messages = Pin<Box<dyn Stream<Item = Result<Delivery>> + Send>>;

/// Runs the same sub-plan elsewhere, after such an error.
pub(super) type Again = Box<dyn FnOnce(Error) -> BoxFuture<'static, Result<DeliveryStream>> + Send>;

struct Held {
    name: String,
    messages: Messages,
    /// Rows that came, in order, with their bytes.
    rows: VecDeque<Delivery>,
    bytes: u64,
    again: Option<Again>,
}

/// What `stream`, the answer of the drive called `name`, gives; where that fails before anything was handed on, what `again` gives.
pub(super) fn held(name: &str, stream: DeliveryStream, again: Again) -> DeliveryStream {
    let schema: SchemaRef = stream.schema;
    let held = Held { name: name.to_owned(), messages: stream.messages, rows: VecDeque::new(), bytes: 0, again: Some(again) };
    let messages = stream::unfold(held, |mut held| async move {
        let next = held.next().await?;
        Some((next, held))
    });
    DeliveryStream { schema, messages: Box::pin(messages) }
}

impl Held {
    async fn next(&mut self) -> Option<Result<Delivery>> {
        loop {
            if self.again.is_none()
                && let Some(first) = self.rows.pop_front()
            {
                return Some(Ok(first));
            }
            let cut_off = || Error::unavailable(format!("{} ended its answer without finishing it", self.name));
            match self.messages.next().await {
                Some(Ok(message)) if self.again.is_none() => return Some(Ok(message)),
                Some(Ok(message)) => {
                    if let Delivery::Batch { batch, .. } = &message {
                        self.bytes = self.bytes.saturating_add(batch_bytes(batch));
                    }
                    let over = matches!(message, Delivery::Done(_));
                    self.rows.push_back(message);
                    if over || self.bytes > HELD {
                        self.again = None;
                    }
                }
                None if self.again.is_none() => return None,
                ended => {
                    let error = match ended {
                        Some(Err(error)) => error,
                        _ => cut_off(),
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
