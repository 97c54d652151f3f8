//! The commands of a session: from their headers to their responses, and the functions that end them.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use skytether_scsi::{Command, Management, ManagementReply, Nexus, Reply, TaskAttribute, Transfer};
use tokio::time::Instant;

use crate::answers::Answers;
use crate::memory::{Held, Queue};
use crate::pdu::{Header, NO_TAG, Reason, flag, opcode};
use crate::task::{Collecting, Failure, Phase, Plan, Task};

/// Immediate commands and management functions under way. They are outside the window of commands.
const MAX_IMMEDIATE: usize = 32;

/// TARGET COLD RESET: all sessions end after it (RFC 7143, 11.5.1).
const COLD_RESET: u8 = 7;

/// The connection must end: the initiator broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

/// Something that was awaited.
#[derive(Debug)]
pub(crate) enum Done {
    Command(u32, Reply),
    Management(u32, ManagementReply),
    /// A command has its memory.
    Memory(u32, Held),
}

/// A management function under way.
#[derive(Debug)]
struct Function {
    request: Header,
    reply: Option<ManagementReply>,
    /// Commands that it ends and that still run.
    running: usize,
    /// Commands that ended meanwhile. They are answered only if the function did not end them.
    ended: Vec<(Task, Reply)>,
}

/// Commands under way.
#[derive(Debug)]
pub(crate) struct Commands {
    nexus: Arc<Nexus>,
    /// The most that one command moves, in bytes.
    limit: u64,
    memory: Queue,
    tasks: HashMap<u32, Task>,
    functions: HashMap<u32, Function>,
    immediate: usize,
    /// Whether the initiator has set the whole target back as if its power had been off.
    cold: bool,
    works: FuturesUnordered<BoxFuture<'static, Done>>,
}

impl Commands {
    pub(crate) fn new(nexus: Arc<Nexus>, memory: Queue, limit: u32) -> Self {
        Self { nexus, limit: limit.into(), memory, tasks: HashMap::new(), functions: HashMap::new(), immediate: 0, cold: false, works: FuturesUnordered::new() }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.functions.is_empty()
    }

    /// Whether a reset of the target was answered after which all sessions end.
    pub(crate) fn is_cold(&self) -> bool {
        self.cold
    }

    /// Whether the data of a command takes longer than `time`.
    pub(crate) fn is_stuck(&self, time: Duration) -> bool {
        let waits = |task: &Task| matches!(&task.phase, Phase::Collecting(_)) && !task.queued && task.since.elapsed() > time;
        self.tasks.values().any(waits)
    }

    /// What the command of a header needs. It takes memory if there is some.
    pub(crate) fn plan(&self, command: &Header) -> Plan {
        let expected = u64::from(command.word5());
        let transfer = self.nexus.transfer(command.lun(), &command.cdb());
        let (want, answer) = match transfer {
            // What is longer than a command may be is refused without its data.
            Transfer::Out(length) if command.has(flag::WRITE) && length <= self.limit => (length.min(expected), 0),
            Transfer::In(length) => (0, length.min(self.limit)),
            _ => (0, 0),
        };
        let held = if want + answer > 0 { self.memory.take(want + answer) } else { None };
        Plan { transfer, want: want as usize, answer, held }
    }

    /// Whether a command of this tag is under way.
    pub(crate) fn has(&self, tag: u32) -> bool {
        self.tasks.contains_key(&tag)
    }

    /// A command has come, with its own data. One that is `early` is carried out after [`Commands::release`].
    pub(crate) fn begin(&mut self, command: Header, plan: Plan, data: BytesMut, early: bool, answers: &mut Answers) -> Result<(), Violation> {
        let (tag, parameters) = (command.tag(), answers.parameters);
        if self.tasks.contains_key(&tag) || tag == NO_TAG {
            answers.reject(&command, Reason::TaskInProgress);
            answers.done(&command);
            return Ok(());
        }
        if command.is_immediate() {
            if self.immediate + self.functions.len() >= MAX_IMMEDIATE {
                answers.reject(&command, Reason::Immediate);
                return Ok(());
            }
            self.immediate += 1;
        }
        let (reads, writes, more) = (command.has(flag::READ), command.has(flag::WRITE), !command.has(flag::FINAL));
        if more && (!writes || parameters.initial_r2t) {
            return Err(Violation("a command announced data that it may not send unasked"));
        }
        if !data.is_empty() && (!writes || !parameters.immediate_data) {
            return Err(Violation("a command carried data that it may not carry"));
        }
        if data.len() > (command.word5() as usize).min(parameters.first_burst as usize) {
            return Err(Violation("a command carried more data than it may send unasked"));
        }
        let mut collecting = Collecting::new(&command, data, plan.want);
        if reads && writes || command.additional_length() > 0 {
            // Bidirectional commands and long command blocks.
            collecting.failure = Some(Failure::Field);
        }
        let Plan { transfer, answer, held, .. } = plan;
        let (phase, since) = (Phase::Collecting(collecting), Instant::now());
        self.tasks.insert(tag, Task { command, transfer, answer, held, queued: false, phase, early, requests: 0, ended_by: None, since });
        self.advance(tag, answers);
        Ok(())
    }

    /// The commands before the early one `tag` have come.
    pub(crate) fn release(&mut self, tag: u32, answers: &mut Answers) {
        if let Some(task) = self.tasks.get_mut(&tag) {
            task.early = false;
            self.advance(tag, answers);
        }
    }

    /// The header of a data unit came: the buffer that its data goes to, or `None` if it is to be dropped.
    pub(crate) fn announce(&mut self, unit: &Header, answers: &Answers) -> Result<Option<BytesMut>, Violation> {
        // The command may have been ended while its data was on the way.
        let Some(task) = self.tasks.get_mut(&unit.tag()) else { return Ok(None) };
        let Phase::Collecting(collecting) = &mut task.phase else { return Ok(None) };
        if unit.word5() == NO_TAG && !collecting.takes_unasked() {
            return Err(Violation("data came unasked for a command that announced none"));
        }
        if !collecting.announce(unit, &answers.parameters) {
            return Ok(None);
        }
        Ok(Some(collecting.buffer(task.held.is_some())))
    }

    /// A data unit has come whole. `data` is the buffer of [`Commands::announce`].
    pub(crate) fn data(&mut self, unit: &Header, data: Option<BytesMut>, intact: bool, answers: &mut Answers) {
        let tag = unit.tag();
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let Phase::Collecting(collecting) = &mut task.phase else { return };
        if !intact {
            answers.reject(unit, Reason::DataDigest);
            collecting.failure = collecting.failure.or(Some(Failure::Digest));
        }
        collecting.arrived(unit, data.filter(|_| intact));
        self.advance(tag, answers);
    }

    /// Does what can be done for a command.
    fn advance(&mut self, tag: u32, answers: &mut Answers) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        if let Phase::Collecting(collecting) = &mut task.phase {
            if !collecting.is_complete() {
                if !collecting.must_ask() {
                    return;
                }
                if task.held.is_none() {
                    if !task.queued {
                        task.queued = true;
                        self.memory.wait(tag, task.answer + needed(task.transfer, &task.command, self.limit));
                    }
                    return;
                }
                let mut next = answers.tag();
                while let Some((offset, length)) = collecting.ask(&answers.parameters, next) {
                    answers.ready(&task.command, next, task.requests, offset, length);
                    task.requests += 1;
                    next = answers.tag();
                }
                return;
            }
            if let Some(failure) = collecting.failure {
                if !task.early {
                    self.finish(tag, failure.reply(), answers);
                }
                return;
            }
            let empty = Collecting::new(&task.command, BytesMut::new(), 0);
            let data = std::mem::replace(collecting, empty).finish();
            task.phase = Phase::Waiting(data);
        }
        let Phase::Waiting(data) = &mut task.phase else { return };
        if task.early {
            return;
        }
        if task.answer > 0 && task.held.is_none() {
            if !task.queued {
                task.queued = true;
                self.memory.wait(tag, task.answer);
            }
            return;
        }
        let data = std::mem::take(data);
        task.phase = Phase::Running;
        let command = scsi_command(&task.command, data);
        let nexus = Arc::clone(&self.nexus);
        let expected = if task.command.has(flag::WRITE) { u64::from(task.command.word5()) } else { 0 };
        let mut work = async move { Done::Command(tag, nexus.execute_expecting(command, expected).await) }.boxed();
        // What is cached is answered at once. The rest is polled again, with a waker.
        match (&mut work).now_or_never() {
            Some(done) => self.settle(done, answers),
            None => self.works.push(work),
        }
    }

    /// What was awaited next.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Done> {
        if let Poll::Ready((tag, held)) = self.memory.poll_next(cx) {
            return Poll::Ready(Done::Memory(tag, held));
        }
        match self.works.poll_next_unpin(cx) {
            Poll::Ready(Some(done)) => Poll::Ready(done),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    /// Goes on after what was awaited.
    pub(crate) fn settle(&mut self, done: Done, answers: &mut Answers) {
        match done {
            Done::Memory(tag, held) => {
                if let Some(task) = self.tasks.get_mut(&tag) {
                    (task.held, task.queued, task.since) = (Some(held), false, Instant::now());
                    self.advance(tag, answers);
                }
            }
            Done::Command(tag, reply) => match self.tasks.get(&tag).and_then(|task| task.ended_by) {
                Some(by) => {
                    if let Some(task) = self.tasks.remove(&tag)
                        && let Some(function) = self.functions.get_mut(&by)
                    {
                        function.running -= 1;
                        function.ended.push((task, reply));
                    }
                    self.conclude(by, answers);
                }
                None => self.finish(tag, reply, answers),
            },
            Done::Management(tag, reply) => {
                if let Some(function) = self.functions.get_mut(&tag) {
                    function.reply = Some(reply);
                }
                self.conclude(tag, answers);
            }
        }
    }

    fn finish(&mut self, tag: u32, reply: Reply, answers: &mut Answers) {
        if let Some(task) = self.tasks.remove(&tag) {
            self.answer(task, Some(reply), answers);
        }
    }

    /// A command is over, with a response if there is one.
    fn answer(&mut self, task: Task, reply: Option<Reply>, answers: &mut Answers) {
        if task.command.is_immediate() {
            self.immediate -= 1;
        }
        answers.done(&task.command);
        if let Some(reply) = reply.filter(|reply| !reply.is_aborted()) {
            answers.respond(&task.command, task.transfer, reply, task.requests, task.held);
        }
    }

    /// A task management function has come.
    pub(crate) fn manage(&mut self, request: Header, answers: &mut Answers) {
        let (lun, by) = (request.lun(), request.tag());
        let luns_tasks = |task: &Task| task.command.lun() == lun;
        let (function, ends): (_, Box<dyn Fn(&Task) -> bool>) = match request.flags() & 0x7f {
            1 => (Management::AbortTask { lun, tag: request.word5().into() }, Box::new(|task| task.command.tag() == request.word5())),
            2 => (Management::AbortTaskSet { lun }, Box::new(luns_tasks)),
            4 => (Management::ClearTaskSet { lun }, Box::new(luns_tasks)),
            5 => (Management::LunReset { lun }, Box::new(luns_tasks)),
            6 => (Management::TargetWarmReset, Box::new(|_| true)),
            COLD_RESET => (Management::TargetColdReset, Box::new(|_| true)),
            8 => return self.managed(&request, 4, answers),
            _ => return self.managed(&request, 5, answers),
        };
        if self.functions.contains_key(&by) || by == NO_TAG {
            answers.reject(&request, Reason::TaskInProgress);
            return answers.done(&request);
        }
        if self.functions.len() + self.immediate >= MAX_IMMEDIATE {
            answers.reject(&request, Reason::Immediate);
            return answers.done(&request);
        }
        let found: Vec<u32> = self.tasks.iter().filter(|(_, task)| task.ended_by.is_none() && ends(task)).map(|(tag, _)| *tag).collect();
        let mut running = 0;
        for tag in &found {
            match self.tasks.get_mut(tag) {
                Some(task) if matches!(task.phase, Phase::Running) => {
                    task.ended_by = Some(by);
                    running += 1;
                }
                // The command set has not seen it.
                _ => {
                    self.memory.forget(*tag);
                    if let Some(task) = self.tasks.remove(tag) {
                        self.answer(task, None, answers);
                    }
                }
            }
        }
        if running == 0
            && let Management::AbortTask { .. } = function
        {
            let response = if found.is_empty() { 1 } else { 0 };
            return self.managed(&request, response, answers);
        }
        self.functions.insert(by, Function { request, reply: None, running, ended: Vec::new() });
        let nexus = Arc::clone(&self.nexus);
        self.works.push(async move { Done::Management(by, nexus.manage(function).await) }.boxed());
    }

    fn managed(&mut self, request: &Header, response: u8, answers: &mut Answers) {
        answers.done(request);
        answers.short(request, opcode::TASK_MANAGEMENT_RESPONSE, response, [0; 2]);
    }

    /// Answers a management function once all commands that it ends are over.
    fn conclude(&mut self, tag: u32, answers: &mut Answers) {
        if !self.functions.get(&tag).is_some_and(|function| function.reply.is_some() && function.running == 0) {
            return;
        }
        let Some(function) = self.functions.remove(&tag) else { return };
        let complete = function.reply == Some(ManagementReply::Complete);
        for (task, reply) in function.ended {
            self.answer(task, (!complete).then_some(reply), answers);
        }
        self.cold |= complete && function.request.flags() & 0x7f == COLD_RESET;
        let response = match function.reply {
            Some(ManagementReply::Complete) => 0,
            Some(ManagementReply::TaskDoesNotExist) => 1,
            Some(ManagementReply::LunDoesNotExist) => 2,
            Some(ManagementReply::NotSupported) => 5,
            Some(ManagementReply::Rejected) | None => 255,
        };
        self.managed(&function.request, response, answers);
    }

    /// The session is over: its commands end without responses.
    pub(crate) fn lost(&mut self) {
        self.nexus.lost();
        self.tasks.clear();
        self.works.clear();
    }
}

/// Bytes that a command needs from the initiator.
fn needed(transfer: Transfer, command: &Header, limit: u64) -> u64 {
    match transfer {
        Transfer::Out(length) => length.min(command.word5().into()).min(limit),
        _ => 0,
    }
}

fn scsi_command(command: &Header, data: Bytes) -> Command {
    let attribute = match command.flags() & 7 {
        2 => TaskAttribute::Ordered,
        3 => TaskAttribute::HeadOfQueue,
        4 => TaskAttribute::Aca,
        // Untagged and simple commands, and reserved values.
        _ => TaskAttribute::Simple,
    };
    Command { lun: command.lun(), tag: command.tag().into(), cdb: command.cdb(), attribute, data }
}
