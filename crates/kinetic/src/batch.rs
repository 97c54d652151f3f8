//! Batches: puts and deletes that are done together or not at all.

use bytes::Bytes;
use skytether_common::Kind;
use skytether_kinetic_protocol::MessageType;
use skytether_kinetic_protocol::command::{Batch, Body};
use skytether_kinetic_protocol::limits::told;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::connection::{Connection, Queue, Request};
use crate::failure::{Failure, Outcome};
use crate::traffic::Proof;
use crate::values::{Delete, Put};

/// Bytes of a batch where the drive does not tell, and at most. All of them wait in the drive's memory.
const BYTES: usize = 32 << 20;

/// Operations of a batch where the drive does not tell, and at most.
const OPERATIONS: usize = 1024;

/// What an operation takes with its key and value, in bytes: versions, header, HMAC.
const BESIDE: usize = 4096;

/// One operation of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes a value.
    Put(Put),
    /// Removes a key.
    Delete(Delete),
}

impl Change {
    /// The key that it is about.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Change::Put(put) => &put.key,
            Change::Delete(delete) => &delete.key,
        }
    }

    /// What it takes of a batch, in bytes, at most.
    fn bytes(&self) -> usize {
        match self {
            Change::Put(put) => put.key.len() + put.value.len() + BESIDE,
            Change::Delete(delete) => delete.key.len() + BESIDE,
        }
    }
}

impl Connection {
    /// How many operations a batch may have.
    #[must_use]
    pub fn batch_operations(&self) -> usize {
        let limits = self.limits();
        let limit = |field| told(field).map_or(OPERATIONS, |limit| limit as usize);
        limit(limits.max_operation_count_per_batch).min(limit(limits.max_deletes_per_batch)).clamp(1, OPERATIONS)
    }

    /// Whether `changes` fit into one batch.
    #[must_use]
    pub fn fits_batch(&self, changes: &[Change]) -> bool {
        let most = told(self.limits().max_batch_size).map_or(BYTES, |bytes| (bytes as usize).min(BYTES));
        changes.len() <= self.batch_operations() && changes.iter().map(Change::bytes).sum::<usize>() <= most
    }

    /// Does all changes or none. Versions are compared with what was stored before the batch.
    ///
    /// # Errors
    /// `VERSION_MISMATCH`, `NOT_FOUND` or another code of the first change that can't be done: nothing was done;
    /// [`Failure`], whose [`Failure::is_unknown`] says whether the batch may have been done.
    pub async fn batch(&self, changes: Vec<Change>) -> Outcome<()> {
        if !self.fits_batch(&changes) {
            return Err(Failure::unsent(Kind::Invalid, format!("a batch of {} changes is larger than the drive takes; send several", changes.len())));
        }
        let patience = self.options.patience(changes.iter().map(Change::bytes).sum());
        let _place = self.batch_place(patience).await?;
        let id = self.next_batch();
        let started = self.call(Queue::Free, in_batch(Request::new(MessageType::StartBatch), id), Proof::Hmac, patience).await;
        started.map_err(unstarted)?;
        let mut sent = Vec::with_capacity(changes.len());
        for change in changes {
            let request = match change {
                Change::Put(put) => put.request(),
                Change::Delete(delete) => delete.request(),
            };
            sent.push(self.post(in_batch(request, id)).map_err(unstarted)?);
        }
        let count = u32::try_from(sent.len()).ok();
        let end = Request::new(MessageType::EndBatch).body(Body { batch: Some(Batch { count, ..Batch::default() }), ..Body::default() });
        let response = self.call(Queue::Free, in_batch(end, id), Proof::Hmac, patience).await?;
        let done = response.body().batch.unwrap_or_default().sequence;
        // A drive may leave them out.
        if done.is_empty() || done == sent { Ok(()) } else { Err(self.wrong("the end of another batch")) }
    }

    /// Begins a batch and drops it: shows that the drive has batches.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn abort_batch(&self) -> Outcome<()> {
        let patience = self.options.patience(0);
        let _place = self.batch_place(patience).await?;
        let id = self.next_batch();
        self.call(Queue::Free, in_batch(Request::new(MessageType::StartBatch), id), Proof::Hmac, patience).await?;
        self.call(Queue::Free, in_batch(Request::new(MessageType::AbortBatch), id), Proof::Hmac, patience).await.map(drop)
    }

    async fn batch_place(&self, patience: std::time::Duration) -> Outcome<OwnedSemaphorePermit> {
        match timeout(patience, std::sync::Arc::clone(&self.batches).acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(Failure::unsent(Kind::Unavailable, format!("has batches under way for {:.1} s", patience.as_secs_f64()))),
        }
    }
}

/// Before its end is sent, nothing of a batch is done.
fn unstarted(failure: Failure) -> Failure {
    match failure {
        Failure::Lost { kind, text, .. } => Failure::unsent(kind, text),
        refused @ Failure::Refused(_) => refused,
    }
}

fn in_batch(mut request: Request, id: u32) -> Request {
    request.header.batch_id = Some(id);
    request
}
