//! Reads a drive's results: retries, collects figures for the receipt, and names the drive in errors.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::Result as DfResult;
use datafusion::physical_plan::metrics::BaselineMetrics;
use futures::StreamExt;
use skytether_common::{Detail, Error, Kind, PartitionName, Result};
use skytether_device::conform::{check_schema, conform};
use skytether_device::size::batch_bytes;
use skytether_device::{Annotation, Cse, DeliveryStream, ParentWork, ResultMessage, SubPlan};

use crate::broadcast::Table;
use crate::profile::Collector;
use skytether_api::estimate::Estimate;
use skytether_api::receipt::ShippedReceipt;
use skytether_catalog::missing;
use skytether_catalog::root_store::Catalog;
use skytether_runtime::within;

/// How long a drive may be silent that sends no heartbeats.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Until it has taken a sub-plan.
    pub begin: Duration,
    /// Between two messages.
    pub silence: Duration,
}

/// The partition whose key `error` reports as missing, if it is of a generation that `plan` reads.
fn missing_of(error: &Error, plan: &SubPlan) -> Option<PartitionName> {
    let (Kind::NotFound, Some(Detail::MissingKey { key })) = (error.kind(), error.detail()) else { return None };
    let (missing, _) = PartitionName::parse(key)?;
    let reads = |partition: &PartitionName| partition.generation == missing.generation;
    plan.datasets().any(|(dataset, partitions)| *dataset == missing.dataset && partitions.values().any(reads)).then_some(missing)
}

/// One drive's annotation in the receipt: the host's own figures until the drive sends its own.
pub struct ProfileEntry {
    /// Gathers the receipt of the query.
    pub collector: Arc<Collector>,
    /// The number of the scan in the receipt.
    pub scan: usize,
    /// The number of the annotation within the scan.
    pub number: usize,
}

impl ProfileEntry {
    fn update(&self, change: impl FnOnce(&mut Annotation)) {
        self.collector.update(self.scan, self.number, change);
    }

    /// What the scan was expected to take, and what it took.
    pub(crate) fn estimate(&self, estimate: Estimate) {
        self.collector.estimate(self.scan, estimate);
    }

    /// These tables travel with the sub-plan.
    pub(crate) fn beside(&self, tables: &[Table]) {
        let told = tables.iter().map(|table| ShippedReceipt { name: table.name.clone(), rows: table.rows, bytes: table.bytes.len() as u64 });
        self.collector.beside(self.scan, told.collect());
    }
}

/// What a host sees of a drive.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WireCounters {
    rows: u64,
    sent: u64,
    received: u64,
}

impl WireCounters {
    /// These counters without `received` bytes sent to the drive, and without `handed` bytes of raw slices. The caller
    /// counts both separately.
    pub(crate) fn without(self, received: u64, handed: u64) -> Self {
        Self { received: self.received.saturating_sub(received), sent: self.sent.saturating_sub(handed), ..self }
    }
}

/// One drive's part of a scan: its figures, and the name for errors.
pub struct DriveStream {
    /// The drive.
    pub drive: Arc<dyn Cse>,
    /// The columns that the drive must send.
    pub schema: SchemaRef,
    /// Where its figures go.
    pub note: ProfileEntry,
    /// Rows and time, as DataFusion counts them.
    pub metrics: BaselineMetrics,
    /// How long it may be silent.
    pub patience: Timeouts,
    /// The catalog, which explains a missing part of a data set.
    pub catalog: Option<Catalog>,
    /// Whether the last batch is withheld until the drive has sent its annotation. A reader that takes only the first
    /// rows of each drive stops reading then, and the drive's figures would be lost.
    pub to_the_end: bool,
}

pub(crate) type Sender = tokio::sync::mpsc::Sender<DfResult<RecordBatch>>;

impl DriveStream {
    pub(crate) async fn run(self, plan: SubPlan, send: &Sender) -> Result<()> {
        match self.read(&plan, send).await {
            Err(e) => Err(self.attribute_error(&plan, e).await),
            done => done,
        }
    }

    pub(crate) fn drive(&self) -> &Arc<dyn Cse> {
        &self.drive
    }

    /// The drive's error, worded for the query that reads what `plan` names.
    pub(crate) async fn attribute_error(&self, plan: &SubPlan, e: Error) -> Error {
        let name = &self.drive.info().name;
        // A slice of this generation is missing, or something that the query names and that does not exist, such as a
        // column.
        match missing_of(&e, plan).zip(self.catalog.as_ref()) {
            Some((missing, catalog)) => missing::explain(catalog, &missing, name, e).await,
            None if e.mentions(name) => e,
            None => e.context(format!("{name} failed while it read {}", plan.dataset)),
        }
    }

    /// How patient to be: a connection that gets signs of life knows better than a clock whether its drive
    /// is dead or has much to do.
    fn patience(&self) -> Timeouts {
        if self.drive.capabilities().heartbeats { Timeouts { begin: Duration::MAX, silence: Duration::MAX } } else { self.patience }
    }

    /// Waits for `call`, with which the drive takes `plan`.
    pub(crate) async fn start<T>(&self, plan: &SubPlan, call: impl Future<Output = Result<T>>) -> Result<T> {
        let bytes = plan.bytes() as u64;
        // It may be sent again.
        self.note.update(|a| a.bytes_received += bytes);
        within(self.patience().begin, &self.drive.info().name, "begin a sub-plan", call).await
    }

    /// Rows have come from the drive.
    pub(crate) fn on_batch(&self, batch: &RecordBatch, bytes: u64) {
        self.note.update(|a| {
            a.rows_out += batch.num_rows() as u64;
            a.bytes_sent += bytes;
        });
    }

    /// Counts `bytes` of a slice that came raw. The drive read them for the host, outside of its own sub-plan.
    pub(crate) fn on_raw_bytes(&self, bytes: u64) {
        self.note.update(|a| {
            a.bytes_read += bytes;
            a.bytes_sent += bytes;
        });
    }

    /// The parent has done `above` in the place of the drive, in all; `new` is the part of its time that was not
    /// counted yet.
    pub(crate) fn worked(&self, above: ParentWork, new: Duration) {
        if !new.is_zero() {
            self.metrics.elapsed_compute().add_duration(new);
        }
        self.note.update(|a| a.above = above);
    }

    /// Counts rows that go to the reader of the scan.
    pub(crate) fn records(&self, batch: &RecordBatch) {
        self.metrics.record_output(batch.num_rows());
    }

    /// What this host saw of the drive so far. For a session that ends without an annotation, nothing else is known.
    pub(crate) fn seen(&self) -> WireCounters {
        let mut seen = WireCounters::default();
        self.note.update(|a| seen = WireCounters { rows: a.rows_out, sent: a.bytes_sent, received: a.bytes_received });
        seen
    }

    /// The drive has sent its annotation of the work since `before`, or the host has stopped waiting for it. `change`
    /// adds what only the host knows.
    pub(crate) fn end(&self, told: Option<Annotation>, before: WireCounters, change: impl FnOnce(&mut Annotation)) {
        let name = &self.drive.info().name;
        self.note.update(|a| {
            if let Some(told) = told {
                // The ticket around the plan is the drive's to count; less than the plan it can't have been.
                let bytes_received = told.bytes_received.saturating_add(before.received).max(a.bytes_received);
                let (rows_out, bytes_sent) = (told.rows_out.saturating_add(before.rows), told.bytes_sent.saturating_add(before.sent));
                *a = Annotation { bytes_received, rows_out, bytes_sent, ..told.taken_from(name) };
            }
            change(a);
        });
    }

    async fn read(&self, plan: &SubPlan, send: &Sender) -> Result<()> {
        let stream = self.start(plan, self.drive.execute(plan.clone())).await?;
        self.deliver(stream, plan, |batch| async {
            self.records(&batch);
            send.send(Ok(batch)).await.is_ok()
        })
        .await
    }

    /// Reads what the drive makes of `plan` to its end. `give` passes rows to the reader, and returns whether one takes
    /// them.
    pub(crate) async fn deliver<F: Future<Output = bool>>(&self, stream: DeliveryStream, plan: &SubPlan, mut give: impl FnMut(RecordBatch) -> F) -> Result<()> {
        let (name, dataset) = (self.drive.info().name.clone(), &plan.dataset);
        let patience = self.patience();
        let DeliveryStream { schema, mut messages } = stream;
        check_schema(&schema, &self.schema, &name)?;
        let (mut open_epoch, mut last) = (None, None);
        loop {
            let next = tokio::time::timeout(patience.silence, messages.next())
                .await
                .map_err(|_| Error::unavailable(format!("{name} has been silent for {} s in the middle of a query", patience.silence.as_secs_f64())))?;
            match next {
                None => {
                    return Err(Error::unavailable(format!("{name} ended its answer about {dataset} without finishing it: it may have stopped; try again")));
                }
                Some(Err(e)) => return Err(e),
                Some(Ok(ResultMessage::Batch { epoch, batch })) => {
                    open_epoch = Some(epoch);
                    let bytes = batch_bytes(&batch);
                    self.on_batch(&batch, bytes);
                    let timer = self.metrics.elapsed_compute().timer();
                    let batch = conform(&batch, &self.schema, &name)?;
                    timer.done();
                    if batch.num_rows() == 0 {
                        continue;
                    }
                    let ready = if self.to_the_end { last.replace(batch) } else { Some(batch) };
                    if let Some(batch) = ready
                        && !give(batch).await
                    {
                        return Ok(());
                    }
                }
                Some(Ok(ResultMessage::EpochComplete { epoch })) => {
                    if open_epoch == Some(epoch) {
                        open_epoch = None;
                    }
                }
                Some(Ok(ResultMessage::Done(annotation))) => {
                    if let Some(epoch) = open_epoch {
                        return Err(Error::internal(format!("{name} finished without completing epoch {epoch}: its rows can't be counted")));
                    }
                    self.end(Some(annotation), WireCounters::default(), |_| {});
                    if let Some(batch) = last {
                        // Where the reader has stopped, that is all.
                        give(batch).await;
                    }
                    return Ok(());
                }
            }
        }
    }
}
