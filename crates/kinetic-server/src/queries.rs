//! The query engine as a program: a sub-plan in, an Arrow IPC stream out.
//!
//! `skytether_kinetic::queries` has the bytes. The engine is that of the drive: its memory, its turns, its processor.
//! It runs over the slices under Kinetic keys, or, where these are not there, over the drive's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arrow::ipc::writer::StreamWriter;
use bytes::Bytes;
use futures::StreamExt;
use skytether_common::Error;
use skytether_device::{Annotation, DeliveryStream, ResultMessage};
use skytether_kinetic::queries::{MAGIC, Report, SPILL, of_program, part_key};
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::kinds::{AcknowledgeMode, Language};
use skytether_kinetic_protocol::limits::told;
use skytether_kinetic_protocol::program::{ManageApplet, ProgramResult};
use skytether_kinetic_protocol::status::Status;
use skytether_kinetic_protocol::{Permission, Refusal, StatusCode};
use skytether_kv::Change;
use tokio::runtime::Handle;

use crate::admission::Caller;
use crate::chain::Chain;
use crate::data::detached;
use crate::program_bytes::{bytes_of, interrupted, run_time};
use crate::program_list::Listed;
use crate::shared::{Shared, refusal};

/// The longest that a sub-plan may run, and how long it does where the request does not say.
const MOST: Duration = Duration::from_secs(24 * 3600);

/// How often a sub-plan that runs looks whether it is aborted.
const LOOK: Duration = Duration::from_millis(20);

/// A value where the drive tells no limit, in bytes.
const VALUE: usize = 1 << 20;

/// Whether the value under the first of these keys is a program for the query engine.
pub(crate) fn is_query(shared: &Shared, keys: &[Bytes]) -> Result<bool, Refusal> {
    let Some(first) = keys.first().filter(|_| shared.options.queries.is_some()) else { return Ok(false) };
    let record = shared.keys.get(first).map_err(|e| refusal(&e))?;
    Ok(record.is_some_and(|record| record.value.starts_with(MAGIC)))
}

/// Whether these bytes are a program for the query engine, or are said to be.
pub(crate) fn is_query_program(shared: &Shared, language: Language, program: &[u8]) -> bool {
    shared.options.queries.is_some() && (language == Language::Substrait || program.starts_with(MAGIC))
}

/// Checks that these bytes are a sub-plan. Whether it can be run depends on the data, and is told by the run.
pub(crate) fn check(program: &Bytes) -> Result<(), Refusal> {
    of_program(program).map(drop).map_err(|e| Refusal::new(StatusCode::InvalidExecute, e.report()))
}

/// A sub-plan that was asked for.
pub(crate) struct Query {
    shared: Arc<Shared>,
    caller: Caller,
    listed: Listed,
    keys: Vec<Bytes>,
    /// The program, where it is the value of the request.
    value: Bytes,
    erasures: u64,
    output_key: Option<Bytes>,
    output_in_response: bool,
    spill: bool,
    most: Duration,
}

/// Where the rows went.
struct Written {
    annotation: Annotation,
    bytes: u64,
    parts: u32,
    value: Bytes,
}

/// A sub-plan that did not come to its end.
enum Ended {
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Ended {
    fn from(why: Refusal) -> Self {
        Ended::Refused(why)
    }
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Ended::Failed(error)
    }
}

impl Query {
    /// The query of a request, whose keys are checked.
    ///
    /// `value` is absent where it was too long. `list` gives the run its place until then.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        caller: &Caller,
        asked: &ManageApplet,
        keys: &[Bytes],
        value: Option<Bytes>,
        list: impl FnOnce(Instant) -> Result<Listed, Refusal>,
    ) -> Result<Self, Refusal> {
        if shared.options.queries.is_none() {
            return Err(Refusal::new(StatusCode::InvalidExecute, "this drive has no query engine behind its Kinetic door"));
        }
        let value = value.ok_or_else(|| Refusal::invalid("the sub-plan is longer than a value: put it under keys, and name these"))?;
        let most = run_time(asked, MOST);
        if keys.is_empty() && asked.output_key.is_none() && asked.acknowledge_mode() == AcknowledgeMode::OnReceipt {
            return Err(Refusal::invalid("a sub-plan that is answered on receipt needs an output key: it has no other result, and no name for ABORT"));
        }
        Ok(Self {
            shared: Arc::clone(shared),
            caller: caller.clone(),
            listed: list(Instant::now() + most)?,
            keys: keys.to_vec(),
            value,
            erasures: shared.erasures(),
            output_key: asked.output_key.as_ref().map(detached),
            output_in_response: asked.set_value_in_response(),
            spill: asked.program_param.iter().any(|argument| argument == SPILL.as_bytes()),
            most,
        })
    }

    /// Runs it. Dropping the future ends the sub-plan.
    pub(crate) async fn run(self) -> Result<(Status, Bytes), Refusal> {
        let aborted = Arc::clone(&self.listed.aborted);
        let done = tokio::select! {
            biased;
            done = self.answered() => done?,
            () = is_set(&aborted) => stopped(9, "aborted".to_owned()),
            () = tokio::time::sleep(self.most) => stopped(14, format!("it ran for {} s, as long as it may", self.most.as_secs_f64())),
        };
        let (result, value) = done;
        let text = format!("the query engine has ended; {}", result.message);
        let status = Status { status_message: Some(text.into()), detailed_message: Some(result.to_bytes()), ..Status::of(StatusCode::Success) };
        Ok((status, value))
    }

    async fn answered(&self) -> Result<(ProgramResult, Bytes), Refusal> {
        let printed = |report: &Report| report.to_bytes().map_err(|e| refusal(&e));
        match self.rows().await {
            Ok(Written { annotation, bytes, parts, value }) => {
                let output = printed(&Report::Done { annotation: Box::new(annotation), bytes, parts })?;
                Ok((ProgramResult { exit_code: 0, signal: 0, message: "finished".to_owned(), output }, value))
            }
            Err(Ended::Failed(error)) => {
                let output = printed(&Report::failed(&error))?;
                Ok((ProgramResult { exit_code: 1, signal: 0, message: error.message().to_owned(), output }, Bytes::new()))
            }
            Err(Ended::Refused(why)) => Err(why),
        }
    }

    async fn rows(&self) -> Result<Written, Ended> {
        let queries = self.shared.options.queries.as_ref().ok_or_else(interrupted)?;
        let _planned = self.shared.programs.queries.acquire().await.map_err(|_| interrupted())?;
        let (program, received) = self.program().await?;
        let plan = of_program(&program).map_err(|e| Refusal::new(StatusCode::InvalidExecute, e.report()))?;
        for (_, partitions) in plan.datasets() {
            for partition in partitions.values() {
                // All keys of a partition begin with its own.
                self.caller.check(Permission::Read, Target::Key(partition.key()?.as_str().as_bytes()))?;
            }
        }
        let engine = queries.over(&self.shared.drive, &plan)?;
        let stream = engine.execute(plan).await?;
        self.write(stream, received).await
    }

    /// The program's bytes, and how many came with the request.
    async fn program(&self) -> Result<(Bytes, u64), Ended> {
        if self.keys.is_empty() {
            return Ok((self.value.clone(), self.value.len() as u64));
        }
        let (shared, keys) = (Arc::clone(&self.shared), self.keys.clone());
        let program = tokio::task::spawn_blocking(move || bytes_of(&shared, &keys)).await.map_err(|_| interrupted())??;
        let bytes = program.len() as u64;
        Ok((program, bytes))
    }

    /// Writes the rows as one value, or, where they are longer, under keys.
    async fn write(&self, stream: DeliveryStream, received: u64) -> Result<Written, Ended> {
        let longest = told(self.shared.limits.max_value_size).map_or(VALUE, |limit| limit as usize);
        let failed = |e: arrow::error::ArrowError| Error::internal("cannot write rows as Arrow IPC").with_source(e);
        let DeliveryStream { schema, mut messages } = stream;
        let mut writer = StreamWriter::try_new(Vec::new(), &schema).map_err(failed)?;
        let mut parts = Parts {
            shared: Arc::clone(&self.shared),
            chain: self.caller.chain.clone(),
            key: self.output_key.clone(),
            erasures: self.erasures,
            written: 0,
            bytes: 0,
        };
        let mut annotation = None;
        while let Some(message) = messages.next().await {
            match message? {
                ResultMessage::Batch { batch, .. } => writer.write(&batch).map_err(failed)?,
                ResultMessage::EpochComplete { .. } => {}
                ResultMessage::Done(told) => annotation = Some(told),
            }
            self.put_parts(&mut parts, writer.get_mut(), longest, longest).await?;
        }
        let annotation = annotation.ok_or_else(|| Error::internal("the query engine ended without an annotation"))?;
        let mut last = writer.into_inner().map_err(failed)?;
        self.put_parts(&mut parts, &mut last, longest, longest).await?;
        if parts.written > 0 {
            // Rows in parts have no part in the response.
            self.put_parts(&mut parts, &mut last, longest, 0).await?;
        }
        let (written, bytes) = (parts.written, parts.bytes + last.len() as u64);
        let value = Bytes::from(last);
        if let (Some(key), 0, false) = (&self.output_key, written, self.spill && self.output_in_response) {
            self.put(key.clone(), value.clone()).await?;
        }
        self.clear_former(written).await?;
        parts.written = 0;
        let annotation = Annotation { bytes_received: received, bytes_sent: bytes, ..annotation };
        Ok(Written { annotation, bytes, parts: written, value: if self.output_in_response { value } else { Bytes::new() } })
    }

    /// Puts parts of `longest` bytes from the beginning of `buffer`, while it has more than `kept`.
    async fn put_parts(&self, parts: &mut Parts, buffer: &mut Vec<u8>, longest: usize, kept: usize) -> Result<(), Ended> {
        while buffer.len() > kept {
            let Some(key) = &self.output_key else {
                let text = "the rows are longer than a value: name an output key, and they go under it, with numbers";
                return Err(Refusal::new(StatusCode::InvalidExecute, text).into());
            };
            let rest = buffer.split_off(longest.min(buffer.len()));
            let part = std::mem::replace(buffer, rest);
            let number = parts.written;
            (parts.written, parts.bytes) = (number + 1, parts.bytes + part.len() as u64);
            self.put(part_key(key, number), part.into()).await?;
        }
        Ok(())
    }

    /// Removes what a former run left under the output key: it would pass for this run's.
    async fn clear_former(&self, parts: u32) -> Result<(), Ended> {
        let Some(key) = self.output_key.as_ref().filter(|_| parts > 0 || !(self.spill && self.output_in_response)) else { return Ok(()) };
        let is_there = |key: &Bytes| Ok::<_, Ended>(self.shared.keys.meta(key)?.is_some());
        if parts > 0 && is_there(key)? {
            self.shared.write_of_program(&self.caller.chain, Change::delete(key.clone()), self.erasures).await?;
        }
        for number in parts.. {
            let part = part_key(key, number);
            if !is_there(&part)? {
                break;
            }
            self.shared.write_of_program(&self.caller.chain, Change::delete(part), self.erasures).await?;
        }
        Ok(())
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<(), Ended> {
        self.shared.limits.check_key(&key)?;
        self.caller.check(Permission::Write, Target::Key(&key))?;
        Ok(self.shared.write_of_program(&self.caller.chain, Change::put(key, value), self.erasures).await?)
    }
}

/// The parts of rows that were written. No caller learns of them unless the run comes to its end: they are deleted with
/// this.
struct Parts {
    shared: Arc<Shared>,
    chain: Chain,
    key: Option<Bytes>,
    erasures: u64,
    /// How many there are to delete.
    written: u32,
    /// Their bytes.
    bytes: u64,
}

impl Drop for Parts {
    fn drop(&mut self) {
        let (Some(key), Ok(runtime)) = (self.key.take().filter(|_| self.written > 0), Handle::try_current()) else { return };
        let (shared, chain, erasures, written) = (Arc::clone(&self.shared), self.chain.clone(), self.erasures, self.written);
        runtime.spawn(async move {
            for number in 0..written {
                // A part that was not written is no loss, and after an erasure none is left.
                let _ = shared.write_of_program(&chain, Change::delete(part_key(&key, number)), erasures).await;
            }
        });
    }
}

/// Ready when the flag is set.
async fn is_set(flag: &AtomicBool) {
    while !flag.load(Ordering::Relaxed) {
        tokio::time::sleep(LOOK).await;
    }
}

/// How a sub-plan ended that was stopped.
fn stopped(signal: i32, message: String) -> (ProgramResult, Bytes) {
    (ProgramResult { exit_code: -1, signal, message, output: Bytes::new() }, Bytes::new())
}
