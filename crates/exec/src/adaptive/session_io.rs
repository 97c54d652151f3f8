//! Sessions with drives: how they open, what drives send in them, and how they end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use parking_lot::Mutex;
use skytether_common::{Error, Kind, Result};
use skytether_device::conform::{check_schema, conform};
use skytether_device::session::{Message, Session};
use skytether_device::size::batch_bytes;
use skytether_device::{Annotation, OpenReply};
use skytether_scheduler::message::{CseId, PushdownLevel, Up};
use skytether_scheduler::query::Event;
use tokio::sync::mpsc;

use crate::adaptive::cost_feedback::learnt;
use crate::adaptive::drive_state::{Drive, Handed};
use crate::adaptive::spill_buffer::BufferedBatch;
use crate::adaptive::task::{Batch, DriveReply, Task, waiting};
use skytether_api::estimate::Estimate;

/// How long drives may take to send their annotations after the last order.
const LAST_WORDS: Duration = Duration::from_secs(6);

impl Task {
    pub(crate) fn opened(&mut self, at: usize, opened: Result<OpenReply>) -> Result<()> {
        let cse = CseId(at as u32);
        self.drives[at].opening = false;
        let first = !self.drives[at].is_surveyed;
        match opened {
            Err(error) if first => Err(error),
            Err(error) => {
                self.drives[at].trouble = Some(Arc::new(error));
                self.drives[at].held.clear();
                self.handle(Event::Lost { cse, again: false });
                Ok(())
            }
            Ok(OpenReply::Whole(_)) if self.source.is_some() => {
                let name = &self.drives[at].cse.info().name;
                Err(Error::internal(format!(
                    "{name} runs a sub-plan as a whole, although the aggregator above it feeds its slices: do they have the same version?"
                )))
            }
            Ok(OpenReply::Whole(stream)) if first => {
                let drive = &mut self.drives[at];
                (drive.is_surveyed, drive.whole) = (true, true);
                self.left += 1;
                let (reading, inbox, mouth, flow) = (Arc::clone(&drive.reading), self.inbox.clone(), Arc::clone(&drive.output), Arc::clone(&self.flow));
                let (plan, room) = (drive.plan.clone(), Arc::clone(&self.room));
                self.tasks.spawn(async move {
                    let failed = Mutex::new(None);
                    let give = |batch: RecordBatch| {
                        let (mouth, flow, room, failed) = (&mouth, &flow, &room, &failed);
                        async move {
                            while flow.clogged() {
                                let _ = tokio::time::timeout(Duration::from_millis(5), flow.room.notified()).await;
                            }
                            match waiting(flow, room, BufferedBatch::loose(batch)) {
                                Ok((rows, bytes)) => flow.give(mouth, rows, bytes),
                                Err(error) => {
                                    *failed.lock() = Some(error);
                                    false
                                }
                            }
                        }
                    };
                    let over = match reading.deliver(stream, &plan, give).await {
                        Err(e) => Err(reading.attribute_error(&plan, e).await),
                        done => done,
                    };
                    let over = failed.into_inner().map_or(over, Err);
                    mouth.reading.over.store(true, Ordering::Relaxed);
                    let _ = inbox.send(DriveReply::Whole(over));
                });
                self.handle(Event::Surveyed { cse, slices: Vec::new() });
                Ok(())
            }
            Ok(OpenReply::Session(session)) => match self.begin(at, session) {
                Err(error) if error.kind() != Kind::Unavailable => self.announced(at, first, error),
                begun => begun,
            },
            Ok(OpenReply::Whole(_)) => Err(Error::internal(format!("{} divides a sub-plan once and not again", self.drives[at].cse.info().name))),
        }
    }

    /// What drive `at` announced at the opening of its session is invalid. The first time, another session is opened,
    /// which may fail over to another reader.
    ///
    /// # Errors
    /// `error`, where the second opening was invalid too.
    fn announced(&mut self, at: usize, first: bool, error: Error) -> Result<()> {
        if !first {
            self.garbled(at, error);
            self.handle(Event::Lost { cse: CseId(at as u32), again: true });
            return Ok(());
        }
        if std::mem::replace(&mut self.drives[at].misannounced, true) {
            return Err(error);
        }
        self.garbled(at, error);
        self.open(at);
        Ok(())
    }

    /// A session has begun.
    pub(crate) fn begin(&mut self, at: usize, session: Session) -> Result<()> {
        let cse = CseId(at as u32);
        let first = self.next_slice;
        let drive = &mut self.drives[at];
        let name = drive.cse.info().name.clone();
        let given = match (&session.lower, self.top) {
            (Some(lower), PushdownLevel::Filter) => lower,
            _ => &session.schema,
        };
        check_schema(given, &self.schema, &name)?;
        if self.top == PushdownLevel::Full && self.query.cost().has_upper() && session.lower.is_none() {
            return Err(Error::internal(format!("{name} does not say which columns it has below the aggregation: do host and drive have the same version?")));
        }
        drive.lower.clone_from(&session.lower);
        let slice_manifest = match &self.source {
            Some(source) => source.slice_manifest(at),
            None => session.slice_manifest,
        };
        let slice_manifest = drive.surveyed(&slice_manifest, cse, first)?;
        if drive.sessions > 0 {
            // The plan was sent for an earlier session; this session's own annotation counts it.
            drive.before = drive.reading.seen().without(drive.plan.bytes() as u64, drive.handed_out.bytes);
        }
        drive.sessions += 1;
        drive.silent = false;
        drive.heard = Instant::now();
        let number = drive.sessions;
        for down in drive.held.drain(..) {
            let _ = session.orders.send(down);
        }
        drive.orders = Some(session.orders);
        let messages = self.messages.clone();
        let mut incoming = session.messages;
        self.tasks.spawn(async move {
            loop {
                let message = incoming.next().await;
                let last = !matches!(&message, Some(Ok(message)) if !matches!(message, Message::Done(_)));
                if messages.send(DriveReply::Message(at, number, message)).await.is_err() || last {
                    break;
                }
            }
        });
        if let Some(slices) = slice_manifest {
            self.next_slice = first.saturating_add(u32::try_from(slices.len()).unwrap_or(u32::MAX));
            // The source decides which of them are wanted.
            let slices = if self.source.is_some() { Vec::new() } else { slices };
            self.handle(Event::Surveyed { cse, slices });
        }
        Ok(())
    }

    /// Drive `at` sent something invalid. The host ignores the rest of this session, and its open epochs are lost. The
    /// next order opens another session, which may fail over to another reader.
    pub(crate) fn garbled(&mut self, at: usize, error: Error) {
        let drive = &mut self.drives[at];
        drive.faults.protocol_violation(&drive.plan, &error.report());
        drive.trouble = Some(Arc::new(error));
        if drive.orders.take().is_some() {
            drive.sessions += 1;
        }
        drive.silent = true;
    }

    pub(crate) fn message(&mut self, at: usize, session: u32, message: Option<Result<Message>>) {
        let cse = CseId(at as u32);
        let has_upper = self.query.cost().has_upper();
        let drive = &mut self.drives[at];
        if drive.sessions != session {
            return;
        }
        drive.heard = Instant::now();
        match message {
            Some(Ok(Message::Up(up))) => {
                if let (Some(source), Up::Progress { done, running, load, slack, .. }) = (&self.source, &up) {
                    source.progress(at, running, *load, *slack);
                    done.iter().for_each(|cost| source.done(*cost));
                }
                drive.heard_of(&up);
                let up = drive.to_slices(up);
                self.handle(Event::Up { cse, up });
            }
            Some(Ok(Message::Batch { epoch, number, batch, .. })) => {
                // Checked before the epoch counts: afterwards no other reader could take its slices.
                let fits = match drive.columns(epoch, has_upper, &self.schema) {
                    Some(columns) => conform(&batch, &columns, &drive.cse.info().name),
                    None => Ok(batch),
                };
                let batch = match fits {
                    Ok(batch) => batch,
                    Err(error) => {
                        self.garbled(at, Error::corrupt(error.report()));
                        return self.handle(Event::Lost { cse, again: true });
                    }
                };
                let bytes = batch_bytes(&batch);
                drive.reading.on_batch(&batch, bytes);
                // An epoch of states may be all that a drive has. Other epochs are small, and the host aggregates their
                // rows at once.
                let kept = match drive.opened.get(&epoch) {
                    Some(PushdownLevel::Full) => self.room.keep(batch),
                    _ => Ok(self.room.hold(batch)),
                };
                match kept {
                    Ok(kept) => self.handle(Event::Batch { cse, epoch, number, bytes, batch: Batch::Rows(kept) }),
                    Err(error) => self.outcome = Some(Err((None, error))),
                }
            }
            Some(Ok(Message::EpochError { error, .. })) => drive.trouble = Some(error),
            // A heartbeat of the transport says nothing of the work; the machine judges silent epochs.
            Some(Ok(Message::Alive)) => {}
            Some(Ok(Message::Done(told))) => drive.told = Some(*told),
            Some(Err(error)) => {
                drive.orders = None;
                drive.silent = true;
                drive.trouble = Some(Arc::new(error));
                self.handle(Event::Lost { cse, again: true });
            }
            None => {
                drive.orders = None;
                drive.silent = true;
                if drive.told.is_none() {
                    drive.trouble = Some(Arc::new(Error::unavailable(format!("{} ended its answer without finishing it", drive.cse.info().name))));
                    self.handle(Event::Lost { cse, again: true });
                }
            }
        }
    }

    /// Every slice is covered, or no more rows are wanted: the host's lanes deliver what they hold, and drives send
    /// their annotations.
    pub(crate) async fn finish(mut self, heard: &mut mpsc::UnboundedReceiver<DriveReply>, said: &mut mpsc::Receiver<DriveReply>) -> Result<()> {
        for drive in &mut self.drives {
            self.left += drive.above.close();
            drive.orders = None;
        }
        while self.left > 0 {
            if let Some(what) = heard.recv().await {
                self.hear(what)?;
                if let Some(Err((_, error))) = self.outcome.take() {
                    return Err(error);
                }
            }
        }
        // A session that was being opened meanwhile has nothing to do.
        self.drives.iter_mut().for_each(|drive| drive.orders = None);
        let actual = self.actual();
        let deadline = tokio::time::sleep(LAST_WORDS);
        tokio::pin!(deadline);
        // A drive that owes epochs and has been silent for long has nothing to report: others have processed its
        // slices. A drive that sent all of its slices raw had nothing to report until now.
        let asked = Instant::now();
        let well = |drive: &Drive| drive.heard.elapsed() < LAST_WORDS / 2 || (drive.owes.is_empty() && asked.elapsed() < LAST_WORDS / 2);
        let speaks = |drive: &Drive| !drive.whole && !drive.silent && drive.told.is_none() && drive.sessions > 0 && well(drive);
        while self.drives.iter().any(speaks) {
            tokio::select! {
                Some(what) = said.recv() => {
                    if let DriveReply::Message(at, session, message) = what
                        && self.drives[at].sessions == session
                    {
                        let drive = &mut self.drives[at];
                        match message {
                            Some(Ok(Message::Done(told))) => drive.told = Some(*told),
                            Some(Ok(_)) => {}
                            Some(Err(_)) | None => drive.told = Some(Annotation::default()),
                        }
                    }
                }
                // Silent drives are checked again.
                () = tokio::time::sleep(LAST_WORDS / 8) => {}
                () = &mut deadline => break,
            }
        }
        for (at, drive) in self.drives.iter_mut().enumerate() {
            let told = drive.told.take().filter(|told| !told.cse.is_empty());
            // With lanes at two pushdown levels, an annotation has the operators of one level and the rows of both.
            let Handed { filtered, full, .. } = drive.handed_out;
            let told_of_one = told.as_ref().filter(|_| filtered == 0 || full == 0);
            if let Some(kinds) = told_of_one.and_then(|told| learnt(self.query.cost(), at, told)) {
                drive.above.learnt(kinds);
            }
            drive.note(told);
        }
        if let Some(source) = &self.source {
            source.learnt(self.query.cost().clone());
        }
        if let (Some(expected), Some(first)) = (self.expected.take(), self.drives.first()) {
            first.reading.note.estimate(Estimate { expected, actual: Some(actual) });
        }
        // Outputs end when what waits in them is read.
        let Self { drives, mut outlets, .. } = self;
        drop(drives);
        while outlets.join_next().await.is_some() {}
        Ok(())
    }
}
