//! The messages of a sub-plan that a CSE runs as a whole.

use std::pin::Pin;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::Stream;
use skytether_common::Result;

use crate::annotation::Annotation;

/// One message of a running sub-plan.
#[derive(Debug, Clone)]
pub enum ResultMessage {
    /// Rows of epoch `epoch`; they count once the epoch is complete.
    Batch {
        /// The epoch, from 0.
        epoch: u32,
        /// The rows.
        batch: RecordBatch,
    },
    /// The epoch is complete: all its batches were delivered.
    EpochComplete {
        /// The epoch.
        epoch: u32,
    },
    /// The sub-plan is finished; always the last message.
    Done(Annotation),
}

/// The answer to a sub-plan: its schema at once, then the messages.
pub struct DeliveryStream {
    /// Schema of every batch.
    pub schema: SchemaRef,
    /// The messages. Dropping the stream cancels the work.
    pub messages: Pin<Box<dyn Stream<Item = Result<ResultMessage>> + Send>>,
}
