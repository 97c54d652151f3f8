//! One queue: commands that are under way, transfers of their data, and what is sent back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Done};
use crate::command::{COMPLETION, Command, Place, Status, admin as opcode, completion, io as opcodes};
use crate::controller::{Controller, Queue, Subsystem};
use crate::identify::{EVENTS, TRANSFER};
use crate::io;
use crate::logs::Failure;
use crate::pdu::{Framing, flag, kind};

/// Bytes of all ranges that Dataset Management can have.
const RANGES: u32 = 256 * 16;

/// What a command holds of the connection's bytes, and of the door's.
pub(crate) type Room = [OwnedSemaphorePermit; 2];

/// What is written next. The slot is free again when this begins to be written, the room when it is.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) pieces: Vec<Bytes>,
    pub(crate) room: Option<Room>,
    pub(crate) slot: Option<OwnedSemaphorePermit>,
}

/// A connection that is a queue.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) controller: Arc<Controller>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) number: u16,
    /// Entries.
    pub(crate) size: u16,
    /// Whether the host follows the head of the submission queue.
    pub(crate) flow_control: bool,
    pub(crate) framing: Framing,
    /// Bytes that its commands may hold: one host can't hold all that the door has.
    pub(crate) share: Arc<Semaphore>,
    pub(crate) transfers: Mutex<HashMap<u16, Transfer>>,
    pub(crate) replies: mpsc::Sender<Reply>,
    pub(crate) head: AtomicU16,
}

/// Data of the host that comes in units of its own.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) expected: u32,
    pub(crate) received: BytesMut,
    /// Whether a digest was wrong.
    pub(crate) is_damaged: bool,
    pub(crate) done: oneshot::Sender<Result<Bytes, Status>>,
}

/// A command as it came.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) command: Command,
    /// What the capsule has, or that its digest is wrong.
    pub(crate) data: Result<Bytes, Status>,
    pub(crate) slot: OwnedSemaphorePermit,
    pub(crate) cancel: CancellationToken,
}

/// The second of two fused commands, for the first.
#[derive(Debug)]
pub(crate) struct Second {
    command: Command,
    data: Bytes,
    outcome: oneshot::Sender<Result<(), Status>>,
}

/// What a command has to do with its neighbours.
#[derive(Debug)]
pub(crate) enum Fused {
    /// Nothing.
    Alone,
    /// It is the first, and waits for the second.
    First(oneshot::Receiver<Second>),
    /// It is the second, and goes to the first.
    Second(oneshot::Sender<Second>),
    /// There is no first, or none that can be fused.
    Broken,
}

impl Drop for Connected {
    fn drop(&mut self) {
        // Also where its opening was given up half-way.
        self.subsystem.disconnect(&self.controller, self.number, &self.queue);
    }
}

impl Connected {
    /// Carries out a command and sends its completion, with its data before it.
    pub(crate) async fn handle(&self, arrived: Arrived, fused: Fused) {
        let Arrived { command, data, slot, cancel } = arrived;
        let mut room = None;
        let outcome = self.run(&command, data, &mut room, fused, cancel).await;
        self.queue.commands.lock().remove(&command.id());
        let (status, done) = match outcome {
            Ok(Some(done)) => (Status::SUCCESS, done),
            // The connection has ended, and so does what it waited for.
            Ok(None) => return,
            Err(_) if self.queue.ended.is_cancelled() => return,
            Err(status) => {
                self.note(&command, status);
                (status, Done::default())
            }
        };
        let mut pieces = Vec::new();
        // Without flow control a completion says nothing that the data does not.
        let is_complete = !done.data.is_empty() && done.result == 0 && !self.flow_control;
        if !done.data.is_empty() {
            pieces = self.framing.data(command.id(), if is_complete { flag::SUCCESS } else { 0 }, done.data);
        }
        if !is_complete {
            pieces.extend(self.completion(command.id(), status, done.result));
        }
        self.send(Reply { pieces, room, slot: Some(slot) }).await;
    }

    /// The pieces of a completion.
    pub(crate) fn completion(&self, command: u16, status: Status, result: u64) -> Vec<Bytes> {
        let next = |head: u16| Some((head + 1) % self.size);
        let head = if self.flow_control {
            self.head.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).map_or(0, |head| (head + 1) % self.size)
        } else {
            0xffff
        };
        let header: [u8; COMPLETION] = completion(command, self.number, head, status, result);
        self.framing.unit(kind::RESPONSE, 0, &header, Bytes::new())
    }

    /// It fails where the connection has ended.
    pub(crate) async fn send(&self, reply: Reply) {
        let _ = self.replies.send(reply).await;
    }

    fn note(&self, command: &Command, status: Status) {
        self.subsystem.counters.errors.fetch_add(1, Ordering::Relaxed);
        let block = if self.number > 0 { command.first_block() } else { 0 };
        let failure = Failure { number: 0, queue: self.number, command: command.id(), status, block, namespace: command.namespace() };
        self.controller.note_failure(failure);
    }

    async fn run(
        &self,
        command: &Command,
        capsule: Result<Bytes, Status>,
        room: &mut Option<Room>,
        fused: Fused,
        cancel: CancellationToken,
    ) -> Result<Option<Done>, Status> {
        if command.opcode() == opcode::FABRICS {
            return admin::fabrics(&self.subsystem, &self.controller, self.number, command).await.map(Some);
        }
        if self.number == 0 {
            return self.run_admin(command, room).await;
        }
        let data = self.fetch(command, capsule, room).await?;
        match fused {
            Fused::Alone => io::run(&self.subsystem, &self.controller, command, data, cancel).await.map(Some),
            Fused::Broken => Err(Status::MISSING_FUSED),
            Fused::First(second) => {
                // It holds its data meanwhile, but not for ever.
                let came = tokio::time::timeout(self.subsystem.options.patience, second).await;
                let Ok(Ok(second)) = came else { return Err(Status::MISSING_FUSED) };
                let both = io::compare_and_write(&self.subsystem, &self.controller, (command, data), (&second.command, second.data)).await;
                let _ = second.outcome.send(both.as_ref().map(|_| ()).map_err(|_| Status::FAILED_FUSED));
                both.map(Some)
            }
            Fused::Second(first) => {
                let (outcome, said) = oneshot::channel();
                let handed = first.send(Second { command: *command, data, outcome });
                if handed.is_err() {
                    return Err(Status::FAILED_FUSED);
                }
                said.await.unwrap_or(Err(Status::FAILED_FUSED)).map(|()| Some(Done::default()))
            }
        }
    }

    async fn run_admin(&self, command: &Command, room: &mut Option<Room>) -> Result<Option<Done>, Status> {
        if command.opcode() == opcode::ASYNC_EVENT {
            {
                let mut state = self.controller.state.lock();
                if state.events >= EVENTS {
                    return Err(Status::EVENT_LIMIT);
                }
                state.events += 1;
            }
            // Volumes neither come nor go while a door is open, so that there are no events.
            self.queue.ended.cancelled().await;
            return Ok(None);
        }
        let gives = command.moves_data() & 2 != 0;
        // Commands that give nothing may say anything about its place.
        let place = if gives { command.place() } else { Err(Status::SGL_TYPE) };
        let len = place.map_or(0, |place| place.len().min(TRANSFER));
        *room = Some(self.room(len).await?);
        let done = admin::admin(&self.subsystem, &self.controller, command).await?;
        if done.data.len() > len as usize {
            return Err(place.err().unwrap_or(Status::DATA_LENGTH));
        }
        Ok(Some(done))
    }

    /// The data that the host has for an I/O command, after room was made for it, and for what it gets.
    async fn fetch(&self, command: &Command, capsule: Result<Bytes, Status>, room: &mut Option<Room>) -> Result<Bytes, Status> {
        let capsule = capsule?;
        let expected = io::data_of_host(command)?;
        let gives = io::data_of_controller(command)?;
        if expected == 0 && gives == 0 {
            *room = Some(self.room(io::room(command, 0)).await?);
            return Ok(Bytes::new());
        }
        let place = command.place()?;
        // Linux sends room for all ranges of Dataset Management, whatever their number.
        let fits = if command.opcode() == opcodes::DATASET_MANAGEMENT { expected..=RANGES } else { expected.max(gives)..=expected.max(gives) };
        if !fits.contains(&place.len()) {
            return Err(Status::DATA_LENGTH);
        }
        match place {
            Place::Capsule { .. } if expected == 0 => Err(Status::SGL_TYPE),
            Place::Capsule { offset, len } => {
                let from = usize::try_from(offset).map_err(|_| Status::SGL_OFFSET)?;
                let end = from.checked_add(len as usize).filter(|end| *end <= capsule.len()).ok_or(Status::SGL_OFFSET)?;
                *room = Some(self.room(io::room(command, 0)).await?);
                Ok(capsule.slice(from..end))
            }
            Place::Transfer { len } => {
                *room = Some(self.room(io::room(command, len)).await?);
                if expected == 0 { Ok(Bytes::new()) } else { self.transfer(command.id(), len).await }
            }
        }
    }

    async fn room(&self, bytes: u32) -> Result<Room, Status> {
        let own = Arc::clone(&self.share).acquire_many_owned(bytes).await.map_err(|_| Status::INTERNAL)?;
        Ok([own, Arc::clone(&self.subsystem.bytes).acquire_many_owned(bytes).await.map_err(|_| Status::INTERNAL)?])
    }

    /// Asks for data and waits for it. A host that does not send it in time is left.
    async fn transfer(&self, command: u16, len: u32) -> Result<Bytes, Status> {
        let (done, comes) = oneshot::channel();
        let transfer = Transfer { expected: len, received: BytesMut::with_capacity(len as usize), is_damaged: false, done };
        self.transfers.lock().insert(command, transfer);
        self.send(Reply { pieces: self.framing.ready(command, len), room: None, slot: None }).await;
        tokio::select! {
            came = comes => came.unwrap_or(Err(Status::INTERNAL)),
            () = tokio::time::sleep(self.subsystem.options.patience) => {
                self.queue.ended.cancel();
                Err(Status::INTERNAL)
            }
            () = self.queue.ended.cancelled() => Err(Status::INTERNAL),
        }
    }
}
