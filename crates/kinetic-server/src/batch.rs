//! Batches: puts and deletes that take effect together or not at all.
//!
//! The members have no answer. The answer to the end names them all, or the first that failed. Versions are compared
//! with the store as it is at the end. A batch ends with its connection, and by an erasure.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use skytether_kinetic_protocol::command::{Batch as BatchBody, Body, Header};
use skytether_kinetic_protocol::{MessageType, Refusal, StatusCode};
use skytether_kv::{Change, Durability};
use tokio::sync::OwnedSemaphorePermit;

use crate::admission::{Member, Request};
use crate::data;
use crate::reply::{Answer, Reply};
use crate::shared::{Shared, write_refusal};
use crate::watches;

/// Members of a batch, where the drive announces no number.
const MEMBERS: usize = 65_536;

/// What an operation takes in memory beyond its key and value, in bytes.
const OPERATION_BYTES: usize = 256;

/// The open batches of one connection.
pub(crate) struct Batches {
    shared: Arc<Shared>,
    open: HashMap<u32, Batch>,
}

struct Batch {
    changes: Vec<Change>,
    sequences: Vec<u64>,
    deletes: u64,
    value_bytes: u64,
    /// The strongest that a member asks for.
    durability: Durability,
    /// The first member that is refused whatever is stored.
    failed: Option<(u64, Refusal)>,
    /// How many erasures the drive had when the batch began.
    erasures: u64,
    rooms: Vec<OwnedSemaphorePermit>,
    _place: Place,
}

/// One of the places for open batches that the drive has.
struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.open_batches.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Batches {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, open: HashMap::new() }
    }

    /// Begins a batch.
    pub(crate) fn start(&mut self, request: &Request) -> Result<Reply, Refusal> {
        let id = number(request)?;
        if self.open.contains_key(&id) {
            return Err(Refusal::invalid(format!("batch {id} is open already")));
        }
        let open = self.shared.open_batches.fetch_add(1, Ordering::AcqRel) + 1;
        let place = Place(Arc::clone(&self.shared));
        if let Err(why) = self.shared.limits.check_batches(open) {
            return Ok(Reply::Close(why));
        }
        let erasures = self.shared.erasures();
        let batch = Batch {
            changes: Vec::new(),
            sequences: Vec::new(),
            deletes: 0,
            value_bytes: 0,
            durability: Durability::Back,
            failed: None,
            erasures,
            rooms: Vec::new(),
            _place: place,
        };
        self.open.insert(id, batch);
        Ok(Reply::Now(Answer::of(request, Ok(()))))
    }

    /// Notes that a member was not done; whether its batch is open.
    pub(crate) fn fail(&mut self, member: Member, why: Refusal) -> bool {
        let Some(batch) = self.open.get_mut(&member.batch) else { return false };
        if batch.sequences.len() < MEMBERS {
            batch.sequences.push(member.sequence);
        }
        batch.fails(member.sequence, why);
        true
    }

    /// Adds a put or a delete. What is wrong with it is told at the end of the batch.
    pub(crate) fn add(&mut self, request: &Request) -> Result<Reply, Refusal> {
        let id = request.header.batch_id();
        let Some(batch) = self.open.get_mut(&id) else {
            return Ok(Reply::Close(Refusal::invalid(format!("there is no batch {id}; begin it first"))));
        };
        let sequence = request.header.sequence();
        let deletes = batch.deletes + u64::from(request.kind() == MessageType::Delete);
        let value_bytes = batch.value_bytes.saturating_add(request.value_bytes());
        if let Err(why) = self.shared.limits.check_batch(batch.sequences.len() as u64 + 1, deletes, value_bytes) {
            return Ok(Reply::Close(why));
        }
        if batch.sequences.len() >= MEMBERS {
            return Ok(Reply::Close(Refusal::invalid(format!("a batch has more than {MEMBERS} operations"))));
        }
        (batch.deletes, batch.value_bytes) = (deletes, value_bytes);
        batch.sequences.push(sequence);
        if batch.failed.is_some() {
            return Ok(Reply::Silent);
        }
        match data::change(&self.shared, request) {
            Ok((change, durability)) => {
                let Some(room) = self.shared.batch_room(change.key.len() + request.value.len() + OPERATION_BYTES) else {
                    let text = "the open batches of this drive hold too many bytes; send this one again later, or smaller ones";
                    batch.fails(sequence, Refusal::new(StatusCode::ServiceBusy, text));
                    return Ok(Reply::Silent);
                };
                batch.rooms.push(room);
                batch.changes.push(change);
                batch.durability = stronger(batch.durability, durability);
            }
            Err(why) => batch.fails(sequence, why),
        }
        Ok(Reply::Silent)
    }

    /// Drops a batch.
    pub(crate) fn abort(&mut self, request: &Request) -> Result<Reply, Refusal> {
        self.take(request)?;
        Ok(Reply::Now(Answer::of(request, Ok(()))))
    }

    /// Commits a batch.
    pub(crate) async fn end(&mut self, request: &Request) -> Result<Reply, Refusal> {
        let batch = self.take(request)?;
        commit(&self.shared, batch, request).await
    }

    fn take(&mut self, request: &Request) -> Result<Batch, Refusal> {
        let id = number(request)?;
        self.open.remove(&id).ok_or_else(|| Refusal::new(StatusCode::InvalidBatch, format!("there is no batch {id}")))
    }
}

impl Batch {
    /// The first reason why nothing of the batch will be done.
    fn fails(&mut self, sequence: u64, why: Refusal) {
        self.failed.get_or_insert((sequence, why));
        self.changes = Vec::new();
        self.rooms = Vec::new();
    }
}

/// Commits a batch.
async fn commit(shared: &Shared, batch: Batch, request: &Request) -> Result<Reply, Refusal> {
    let count = request.body.batch.as_ref().and_then(|body| body.count);
    if let Some(count) = count.filter(|count| u64::from(*count) != batch.sequences.len() as u64) {
        let text = format!("the batch has {} operations, not {count}; nothing was done", batch.sequences.len());
        return Err(Refusal::new(StatusCode::InvalidBatch, text));
    }
    if batch.erasures != shared.erasures() {
        return Err(Refusal::new(StatusCode::InvalidBatch, "an erasure of the drive began after the batch; nothing was done"));
    }
    let (mut done, header) = (Answer::of(request, Ok(())), request.header.clone());
    if let Some((sequence, why)) = batch.failed {
        return Ok(Reply::Now(aborted(&header, &why, batch.sequences, Some(sequence))));
    }
    let Batch { changes, sequences, durability, rooms, _place, .. } = batch;
    let seen = shared.watches.seen(&request.caller.chain, &changes);
    let writing = match shared.keys.begin(changes, durability).await {
        Ok(writing) => watches::told(seen, writing),
        Err(failed) => {
            let failed_sequence = sequences.get(failed.index).copied();
            return Ok(Reply::Now(aborted(&header, &write_refusal(&failed.why), sequences, failed_sequence)));
        }
    };
    // The store has them now.
    drop((rooms, _place));
    Ok(Reply::Write(Box::pin(async move {
        match writing.await {
            Ok(()) => {
                done.command.body = Some(body(sequences, None));
                done
            }
            Err(failed) => {
                let failed_sequence = sequences.get(failed.index).copied();
                aborted(&header, &write_refusal(&failed.why), sequences, failed_sequence)
            }
        }
    })))
}

fn body(sequence: Vec<u64>, failed_sequence: Option<u64>) -> Body {
    Body { batch: Some(BatchBody { count: None, sequence, failed_sequence }), ..Body::default() }
}

/// The answer to a batch that was not done. Where a member is the reason, the code is INVALID_BATCH, as the simulator
/// has it, and the text says why. A failure of the drive keeps its code, because sending the batch again may help.
fn aborted(header: &Header, why: &Refusal, sequences: Vec<u64>, failed: Option<u64>) -> Answer {
    let of_the_drive = matches!(why.code, StatusCode::NoSpace | StatusCode::InternalError | StatusCode::PermDataError | StatusCode::ServiceBusy);
    let why = if of_the_drive { why.clone() } else { Refusal::new(StatusCode::InvalidBatch, why.to_string()) };
    let mut answer = Answer::refused(header, &why);
    answer.command.body = Some(body(sequences, failed));
    answer
}

fn number(request: &Request) -> Result<u32, Refusal> {
    request.header.batch_id.ok_or_else(|| Refusal::invalid("the header names no batch"))
}

fn stronger(one: Durability, other: Durability) -> Durability {
    let strength = |durability| match durability {
        Durability::Back => 0,
        Durability::Through => 1,
        Durability::Flush => 2,
    };
    if strength(one) >= strength(other) { one } else { other }
}
