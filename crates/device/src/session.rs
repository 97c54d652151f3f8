//! A session: a sub-plan that a CSE processes slice by slice, at pushdown levels that change while it runs
//! (docs/internals/adaptive-execution.md).
//!
//! Orders go down and messages come up, in the types of `skytether_scheduler`. A slice goes by the number of its stripe
//! in the CSE's partition. Raw slices are not part of a session: the parent reads them through [`crate::Storage`].

use std::pin::Pin;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use futures::Stream;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};
use skytether_scheduler::message::{Down, EpochId, PushdownLevel, Up};
use tokio::sync::mpsc;

use crate::annotation::Annotation;
use crate::delivery::DeliveryStream;

/// A CSE's answer to a sub-plan that it should process slice by slice.
pub enum OpenReply {
    /// It runs as a whole: metadata answers it, or there is nothing to divide.
    Whole(DeliveryStream),
    /// It waits for orders.
    Session(Session),
}

/// A stripe that the sub-plan has to read, or several small ones that are taken together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stripe {
    /// Its number in the partition, or that of several together (docs/internals/adaptive-execution.md, "Runs").
    /// Orders call it so.
    pub stripe: u32,
    /// Its rows.
    pub rows: u64,
    /// Bytes of its slices as they are stored, as far as they have columns that are read.
    pub bytes: u64,
}

/// A sub-plan that runs at a CSE. Dropping `orders` ends it; dropping `messages` cancels it.
pub struct Session {
    /// The columns of batches at `full`.
    pub schema: SchemaRef,
    /// The columns of batches at `filter`, where that is less than `full`.
    pub lower: Option<SchemaRef>,
    /// The stripes to process, in storage order.
    pub slice_manifest: Vec<Stripe>,
    /// Orders, in the order in which they are given; few and small.
    pub orders: mpsc::UnboundedSender<Down>,
    /// Messages of the CSE. After the end of `orders` only [`Message::Done`] follows.
    pub messages: Pin<Box<dyn Stream<Item = Result<Message>> + Send>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("stripes", &self.slice_manifest.len()).finish_non_exhaustive()
    }
}

/// A message of the CSE.
#[derive(Debug, Clone)]
pub enum Message {
    /// A message of the CSE's state machine.
    Up(Up),
    /// Rows or states of an epoch; they count once the epoch is complete.
    Batch {
        /// The epoch.
        epoch: EpochId,
        /// Counts up from 0 in each epoch.
        number: u32,
        /// The pushdown level of the epoch, which decides the columns of the rows.
        rung: PushdownLevel,
        /// The rows.
        batch: RecordBatch,
    },
    /// Why an epoch failed; its `Failed` or `Refused` comes as a separate message.
    EpochError {
        /// The epoch.
        epoch: EpochId,
        /// What happened.
        error: Arc<Error>,
    },
    /// A heartbeat of the transport that carries the messages.
    Alive,
    /// The annotation; always the last message.
    Done(Box<Annotation>),
}
