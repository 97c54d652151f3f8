//! Runs a sub-plan over one object, in the engine process next to an OSD.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use datafusion::execution::memory_pool::MemoryPool;
use futures::StreamExt;
use skytether_ceph_protocol::{Object, Outcome, Receipt, Refusal, Request, Response, Stripe};
use skytether_common::{DatasetName, Error, Kind, Result};
use skytether_device::{Annotation, DeliveryStream, ResultMessage, SubPlan};
use skytether_engine::Engine;
use skytether_runtime::threads::spawn_blocking_thread;

use crate::object::ObjectBytes;
use crate::stripes::Stripes;
use crate::table::{ObjectTable, provider};

/// An engine, and the memory of its plans.
#[derive(Clone)]
pub(crate) struct Pooled {
    pub(crate) engine: Arc<Engine>,
    pub(crate) pool: Arc<dyn MemoryPool>,
}

/// What came of a request, if not an error.
pub(crate) enum Answer {
    /// An Arrow IPC stream, its rows, and what it took.
    Rows(Vec<u8>, u64, Annotation),
    /// The keys of values that are needed first.
    Wants(Vec<String>),
    /// Another call reads the same slice for the same plan.
    Busy,
}

/// What a file is asked, opened.
pub(crate) enum Opened {
    /// The request asks for columns only.
    Columns(SchemaRef),
    /// Rows.
    Rows(DeliveryStream),
}

/// Opens the file in the object of `request`, and starts its plan in `engine`. `read` counts the bytes that are read.
pub(crate) async fn start(engine: &Arc<Engine>, request: Request, bytes: Arc<dyn ObjectBytes>, read: &Arc<AtomicU64>) -> Result<Opened> {
    let [domain, dataset, table] = request.table.clone();
    let name = DatasetName::new(&domain, &dataset)?;
    let (own, counter, dataset) = (request.clone(), Arc::clone(read), name.clone());
    let opened = spawn_blocking_thread(move || ObjectTable::open(&dataset, &own, bytes, &counter)).await?;
    if request.plan.is_empty() {
        return Ok(Opened::Columns(Arc::clone(opened.columns())));
    }
    let given = BTreeMap::from([(table, provider(opened))]);
    let named = |given: BTreeMap<String, Vec<u8>>| given.into_iter().map(|(name, bytes)| (name, Bytes::from(bytes))).collect();
    let plan = SubPlan::over_given(name, request.plan.into(), named(request.filters), named(request.tables));
    Ok(Opened::Rows(engine.start_over(plan, &given).await?))
}

/// Rows as an Arrow IPC stream of bounded length.
pub(crate) struct Written {
    writer: StreamWriter<Vec<u8>>,
    most: u64,
    rows: u64,
}

impl Written {
    pub(crate) fn new(schema: &SchemaRef, most: u64) -> Result<Self> {
        let plain = Schema::new(schema.fields().clone());
        let writer = StreamWriter::try_new(Vec::new(), &plain).map_err(unwritten)?;
        Ok(Self { writer, most, rows: 0 })
    }

    pub(crate) fn batch(&mut self, batch: &RecordBatch) -> Result<()> {
        let length = (self.writer.get_ref().len() + batch.get_array_memory_size()) as u64;
        // Batches may share buffers that are larger than what is written of them, so the limit counts what was written.
        if length > 2 * self.most.max(1 << 20) {
            return Err(Error::exhausted(format!("the rows take more than the {} bytes that the request allows", self.most)));
        }
        self.writer.write(batch).map_err(unwritten)?;
        self.rows += batch.num_rows() as u64;
        if self.writer.get_ref().len() as u64 > self.most {
            return Err(Error::exhausted(format!("the rows take more than the {} bytes that the request allows", self.most)));
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<(Vec<u8>, u64)> {
        let rows = self.rows;
        Ok((self.writer.into_inner().map_err(unwritten)?, rows))
    }
}

fn unwritten(e: arrow::error::ArrowError) -> Error {
    Error::internal("rows can't be written as an Arrow IPC stream").with_source(e)
}

/// An Arrow IPC stream without rows: how a request names columns.
///
/// # Errors
/// Internal only.
pub(crate) fn columns_of(schema: &SchemaRef) -> Result<Vec<u8>> {
    Ok(Written::new(schema, 0)?.finish()?.0)
}

/// A refusal's kind for an error.
pub(crate) fn refusal(error: &Error) -> Refusal {
    match error.kind() {
        Kind::NotFound => Refusal::Absent,
        Kind::Invalid | Kind::Conflict => Refusal::Invalid,
        Kind::Unsupported => Refusal::Unsupported,
        Kind::Exhausted => Refusal::Exhausted,
        Kind::Corrupt => Refusal::Corrupt,
        Kind::Unavailable => Refusal::NoEngine,
        _ => Refusal::Internal,
    }
}

/// Runs `request` over the object that `bytes` reads; always a response. Within the request's deadline, unless a plan
/// never gives way.
pub(crate) async fn evaluate(engine: &Pooled, stripes: &Stripes, osd: Option<u32>, request: Request, bytes: Arc<dyn ObjectBytes>) -> Response {
    let (begun, limits, read) = (Instant::now(), request.limits, Arc::<AtomicU64>::default());
    let work = answer(engine, stripes, request, bytes, &read);
    let done = match tokio::time::timeout(limits.deadline, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err((refusal(&error), error.report())),
        Err(_) => Err((Refusal::Late, format!("the plan takes longer than the {} ms that it may", limits.deadline.as_millis()))),
    };
    let mut receipt =
        Receipt { osd, engine: env!("CARGO_PKG_VERSION").to_owned(), bytes_read: read.load(Ordering::Relaxed), time: begun.elapsed(), ..Receipt::default() };
    let outcome = match done {
        Ok(Answer::Wants(keys)) => Outcome::Wants(keys),
        Ok(Answer::Busy) => Outcome::Refused(Refusal::Busy, "another call reads this slice".to_owned()),
        Ok(Answer::Rows(rows, number, annotation)) => {
            receipt.rows = number;
            receipt.peak_memory = annotation.peak_memory;
            receipt.annotation = serde_json::to_vec(&annotation).unwrap_or_default();
            Outcome::Rows(rows)
        }
        Err((why, reason)) => Outcome::Refused(why, reason),
    };
    Response { receipt, outcome }
}

async fn answer(engine: &Pooled, stripes: &Stripes, mut request: Request, bytes: Arc<dyn ObjectBytes>, read: &Arc<AtomicU64>) -> Result<Answer> {
    let most = request.limits.output;
    if let Object::Stripe(stripe) = &mut request.object {
        let stripe = std::mem::replace(stripe.as_mut(), Stripe::nothing());
        return stripes.run(&engine.engine, Arc::clone(&engine.pool), request, stripe, bytes, read).await;
    }
    let DeliveryStream { schema, mut messages } = match start(&engine.engine, request, bytes, read).await? {
        Opened::Columns(schema) => return Ok(Answer::Rows(columns_of(&schema)?, 0, Annotation::default())),
        Opened::Rows(delivery) => delivery,
    };
    let mut written = Written::new(&schema, most)?;
    while let Some(message) = messages.next().await {
        match message? {
            ResultMessage::Batch { batch, .. } => written.batch(&batch)?,
            ResultMessage::EpochComplete { .. } => {}
            ResultMessage::Done(annotation) => {
                let (rows, number) = written.finish()?;
                return Ok(Answer::Rows(rows, number, annotation));
            }
        }
    }
    Err(Error::unavailable("the plan ended without its last message"))
}
