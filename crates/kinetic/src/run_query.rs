//! Sub-plans that a drive's query engine runs.
//!
//! Each runs on a connection of its own, which is closed to abort it, and kept for the next when it has ended. While
//! it runs, noops on that connection tell whether the drive lives.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use skytether_common::{Detail, Error, Kind, Result};
use skytether_device::arrow_messages::{ArrowMessage, ArrowStream};
use skytether_device::{Annotation, CseInfo, DeliveryStream, ProgramKind, ResultMessage, SubPlan};
use skytether_kinetic_protocol::command::Body;
use skytether_kinetic_protocol::kinds::{AcknowledgeMode, AppletType, Language, Synchronization};
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::{MessageType, StatusCode};
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::connection::{Connection, Queue, Request};
use crate::drive::Inner;
use crate::failure::{Failure, Outcome};
use crate::layout::{PLANS, ROWS, passing_name};
use crate::programs::Executed;
use crate::queries::{ENGINE_LOG, Report, SPILL, part_key, to_program};
use crate::traffic::Proof;
use crate::values::Delete;

/// Connections that are kept for the next sub-plans.
const KEPT: usize = 4;

/// The longest that a sub-plan runs.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// How often a drive is asked whether it lives, where the caller does not say.
const INTERVAL: Duration = Duration::from_secs(2);

/// Parts of rows that are under way at a time.
const AHEAD: usize = 4;

/// How long a drive may be too busy for a sub-plan.
const BUSY: Duration = Duration::from_secs(5);

/// The epoch of everything.
const EPOCH: u32 = 0;

/// What the drive says of its query engine; `None` where it has none. Drives of other makers have no such log, do not
/// know logs of vendors, or close the connection.
pub(crate) async fn engine(client: &Client) -> Option<CseInfo> {
    match client.read(|on| async move { on.get_device_log(Bytes::from_static(ENGINE_LOG.as_bytes())).await }).await {
        Ok(log) => serde_json::from_slice(&log).ok().filter(|info: &CseInfo| info.capabilities.runs(ProgramKind::Substrait)),
        Err(failure) => {
            let drive = client.at().authority();
            match failure.code() {
                Some(StatusCode::NotFound | StatusCode::InvalidRequest) => {
                    tracing::debug!(%failure, drive, "the drive has no query engine: it is used as a store")
                }
                _ => tracing::warn!(%failure, drive, "the drive does not tell whether it has a query engine: it is used as a store"),
            }
            None
        }
    }
}

impl Inner {
    /// Runs `plan` on the drive.
    pub(crate) async fn query(self: &Arc<Self>, plan: &SubPlan) -> Result<DeliveryStream> {
        let program = to_program(plan)?;
        let begun = Instant::now();
        let mut pause = Duration::from_millis(20);
        let ran = loop {
            match self.run(&program).await {
                Err(failure) if failure.code() == Some(StatusCode::ServiceBusy) && begun.elapsed() < BUSY => sleep(pause).await,
                ran => break ran,
            }
            pause = (pause * 2).min(Duration::from_millis(500));
        };
        let (executed, rows) = ran.map_err(|failure| match failure {
            Failure::Refused(refusal) => self.named(not_run(format!("it does not run the sub-plan: {refusal}"))),
            lost @ Failure::Lost { .. } => self.failed_to("run a sub-plan", lost),
        })?;
        self.answer(executed, rows).await.map_err(|e| self.named(e))
    }

    /// Runs a program; how it ended, and the key of rows that do not fit into a response.
    async fn run(self: &Arc<Self>, program: &Bytes) -> Outcome<(Executed, Bytes)> {
        let kept = self.idle.lock().pop().filter(|on| !on.is_ended());
        let on = match kept {
            Some(on) => on,
            None => self.client.another().await?,
        };
        let unnamed = |error: Error| Failure::unsent(error.kind(), error.report());
        let rows = Bytes::from(passing_name(ROWS).map_err(unnamed)?);
        let mut applet = ManageApplet {
            manage_applet_type: Some(AppletType::Execute.into()),
            lang: Some(Language::Substrait.into()),
            program_param: vec![Bytes::from_static(SPILL.as_bytes())],
            acknowledge_mode: Some(AcknowledgeMode::OnCompletion.into()),
            output_key: Some(rows.clone()),
            set_value_in_response: Some(true),
            ..ManageApplet::default()
        };
        let is_short = program.len() <= on.longest_value();
        let mut stored = None;
        if !is_short {
            let name = passing_name(PLANS).map_err(unnamed)?;
            // Deleted with this, however the run ends.
            stored = Some(Stored { inner: Arc::clone(self), rows: name.clone().into(), parts: on.parts(program.len()) });
            applet.program_key = on.put_parts(&name, program).await?;
        }
        let request = Request::new(MessageType::ManageApplet).body(Body { manage_applet: Some(applet), ..Body::default() });
        let request = if is_short { request.value(program.clone()) } else { request };
        let answer = tokio::select! {
            biased;
            answer = on.call(Queue::Write, request, Proof::Hmac, LONGEST) => answer,
            failure = watch(&on, self.client.keepalive().unwrap_or(INTERVAL)) => Err(failure),
        };
        drop(stored);
        if !matches!(answer, Err(Failure::Lost { .. })) {
            let mut idle = self.idle.lock();
            if idle.len() < KEPT {
                idle.push(on);
            }
        }
        let response = answer?;
        let executed = Executed::read(&response.command, response.value).map_err(|e| Failure::lost(Kind::Corrupt, e.message(), true))?;
        Ok((executed, rows))
    }

    /// The rows of a program that has ended.
    async fn answer(self: &Arc<Self>, executed: Executed, rows: Bytes) -> Result<DeliveryStream> {
        let result = executed.result;
        if result.signal != 0 {
            return Err(not_run(format!("the sub-plan was ended by the drive: {}", result.message)));
        }
        let (annotation, parts) = match Report::parse(&result.output)? {
            Report::Failed { kind, text, detail } => {
                let error = Error::new(kind, text);
                return Err(match detail {
                    Some(detail) => error.with_detail(detail),
                    None => error,
                });
            }
            Report::Done { annotation, parts, .. } => (*annotation, parts),
        };
        let (mut arrow, mut messages) = (ArrowStream::default(), VecDeque::new());
        arrow.push(&executed.value);
        let mut coming = self.parts(rows, parts);
        let schema = loop {
            if let Some(schema) = read(&mut arrow, &mut messages)? {
                break schema;
            }
            let part = coming.next().await.ok_or_else(|| Error::corrupt("the rows of a sub-plan have no schema"))?;
            arrow.push(&part?);
        };
        let reading = Reading { inner: Arc::clone(self), arrow: Some(arrow), coming, messages, annotation: Some(annotation) };
        Ok(DeliveryStream { schema, messages: stream::unfold(Some(reading), Reading::next).boxed() })
    }

    /// Parts of rows in their order, which are deleted in the end.
    fn parts(self: &Arc<Self>, rows: Bytes, parts: u32) -> BoxStream<'static, Result<Bytes>> {
        let stored = Arc::new(Stored { inner: Arc::clone(self), rows, parts });
        let get = move |number: u32| -> BoxFuture<'static, Result<Bytes>> {
            let stored = Arc::clone(&stored);
            async move {
                let key = part_key(&stored.rows, number);
                let record = stored.inner.record(&key).await?;
                record.map(|record| record.value).ok_or_else(|| Error::corrupt(format!("part {number} of a sub-plan's rows is absent")))
            }
            .boxed()
        };
        stream::iter(0..parts).map(get).buffered(AHEAD).boxed()
    }
}

/// The drive is there, and did not run a sub-plan: its values can be read all the same.
fn not_run(text: String) -> Error {
    Error::unavailable(text).with_detail(Detail::NotRun)
}

/// Ends when the drive does not answer any more on this connection. Another one would not do: a drive that was
/// restarted answers there, and never here.
async fn watch(on: &Connection, interval: Duration) -> Failure {
    loop {
        sleep(interval).await;
        if let Err(failure) = on.noop().await {
            return failure;
        }
    }
}

/// Reads what came; the schema, if it is among that.
fn read(arrow: &mut ArrowStream, messages: &mut VecDeque<ResultMessage>) -> Result<Option<SchemaRef>> {
    let mut schema = None;
    while let Some(message) = arrow.next_message()? {
        match message {
            ArrowMessage::Schema(read) => schema = Some(read),
            ArrowMessage::Dictionary => {}
            ArrowMessage::Batch(batch) => messages.push_back(ResultMessage::Batch { epoch: EPOCH, batch }),
        }
    }
    Ok(schema)
}

/// Rows, or a sub-plan, under keys; they are deleted with this.
struct Stored {
    inner: Arc<Inner>,
    rows: Bytes,
    parts: u32,
}

impl Drop for Stored {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (inner, rows) = (Arc::clone(&self.inner), std::mem::take(&mut self.rows));
        let delete = move |number: u32| {
            let (inner, key) = (Arc::clone(&inner), part_key(&rows, number));
            async move {
                let delete = Delete { synchronization: Synchronization::WriteBack, ..Delete::new(key, None) };
                // What is left is old soon, and goes with the garbage.
                let _ = inner.client.read(|on| on_delete(on, delete.clone())).await;
            }
        };
        runtime.spawn(stream::iter(0..self.parts).map(delete).buffer_unordered(AHEAD).collect::<()>());
    }
}

async fn on_delete(on: Arc<Connection>, delete: Delete) -> Outcome<()> {
    on.delete(delete).await
}

/// Rows that are read.
struct Reading {
    inner: Arc<Inner>,
    arrow: Option<ArrowStream>,
    coming: BoxStream<'static, Result<Bytes>>,
    messages: VecDeque<ResultMessage>,
    annotation: Option<Annotation>,
}

impl Reading {
    async fn next(reading: Option<Self>) -> Option<(Result<ResultMessage>, Option<Self>)> {
        let mut own = reading?;
        match own.message().await {
            Ok(Some(message)) => Some((Ok(message), Some(own))),
            Ok(None) => None,
            Err(error) => Some((Err(own.inner.named(error)), None)),
        }
    }

    async fn message(&mut self) -> Result<Option<ResultMessage>> {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Ok(Some(message));
            }
            let Some(arrow) = &mut self.arrow else {
                return Ok(self.annotation.take().map(|told| ResultMessage::Done(Annotation { cse: self.inner.info.name.clone(), ..told })));
            };
            match self.coming.next().await {
                Some(part) => {
                    arrow.push(&part?);
                    if read(arrow, &mut self.messages)?.is_some() {
                        return Err(Error::corrupt("the rows of a sub-plan have two schemas"));
                    }
                }
                None => {
                    self.arrow.take().map_or(Ok(()), ArrowStream::finish)?;
                    self.messages.push_back(ResultMessage::EpochComplete { epoch: EPOCH });
                }
            }
        }
    }
}
