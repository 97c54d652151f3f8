//! The physical operator that reads slices: it prefetches on threads that may block, decodes where the rows are wanted,
//! and counts.
//!
//! Decoding is not done ahead: a decoded slice is several times its stored size, and its rows are best used while they
//! are in the cache. So a sparse slice is decoded batch by batch, some 64 thousand values at a time. The slices of a
//! stripe of a wide table are decoded one after the other, all rows of each. A column's decoder takes more memory than
//! its rows ([`crate::stripe`]). Small stripes that follow one another are read and passed on together
//! ([`crate::stripe_coalescing`]).

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::Statistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result as DfResult;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning};
use datafusion::physical_plan::coop::cooperative;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use skytether_common::Result;
use skytether_device::session::Stripe;
use skytether_device::size::batch_bytes;
use skytether_plan::error::to_datafusion;

use crate::feed::{FetchedSlice, SliceFeed, SliceFetcher};
use crate::scan_spec::{ScanSpec, Shape};
use crate::slice_loader::{Fetching, Work};
use crate::statistics;

/// Runs of stripes that are read at the same time per partition: the next one and one more.
const PREFETCH: usize = 2;

/// Names of the metrics that an annotation sums up.
pub(crate) const SLICES: &str = "slices";
/// See [`SLICES`].
pub(crate) const SLICES_PRUNED: &str = "slices_pruned";
/// See [`SLICES`]: slices whose number of rows was all that the scan needed.
pub(crate) const SLICES_TOLD: &str = "slices_told";

/// The metric of rows that late materialisation skipped, because conditions did not hold for them.
pub(crate) const PASSED_OVER: &str = "rows_passed_over";
/// Shown next to [`SLICES`]; an annotation has the bytes from the reader, which sees more than scans.
const BYTES_READ: &str = "bytes_read";

/// Reads slices of one partition.
#[derive(Debug, Clone)]
pub(crate) struct SliceScanExec {
    pub(crate) spec: Arc<ScanSpec>,
    /// Stripes that are not read.
    pruned: usize,
    fetch: Option<usize>,
    /// Whence stripes come instead, while it runs.
    feed: Option<Arc<dyn SliceFeed>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// Computed at the first call.
    statistics: OnceLock<Arc<Statistics>>,
}

impl SliceScanExec {
    /// A scan by `spec`, with columns of `schema`.
    pub(crate) fn new(spec: ScanSpec, schema: SchemaRef, pruned: usize, fetch: Option<usize>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(spec.runs.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Self {
            spec: Arc::new(spec),
            pruned,
            fetch,
            feed: None,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            statistics: OnceLock::new(),
        }
    }

    /// What it reads if nothing feeds it, as [`ScanSpec::slice_manifest`]; `None` where it would not read all rows of
    /// that.
    pub(crate) fn slice_manifest(&self, joined: bool) -> Option<Vec<Stripe>> {
        if self.fetch.is_some() { None } else { self.spec.slice_manifest(joined) }
    }

    /// The same scan over the stripes that `feed` gives, in one partition.
    pub(crate) fn fed(&self, feed: Arc<dyn SliceFeed>) -> Self {
        let properties = PlanProperties::clone(&self.properties).with_partitioning(Partitioning::UnknownPartitioning(1));
        Self { feed: Some(feed), properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new(), statistics: OnceLock::new(), ..self.clone() }
    }

    /// What reads its stripes.
    pub(crate) fn fetcher(&self) -> Result<SliceFetcher> {
        let counter = |name: &'static str| MetricBuilder::new(&self.metrics).counter(name, 0);
        let (read, told, passed_over, bytes_read) = (counter(SLICES), counter(SLICES_TOLD), counter(PASSED_OVER), counter(BYTES_READ));
        let time = MetricBuilder::new(&self.metrics).elapsed_compute(0);
        Ok(SliceFetcher(Arc::new(Fetching { stored: self.spec.stored()?, spec: Arc::clone(&self.spec), read, told, passed_over, bytes_read, time })))
    }

    /// Pruned stripes, in slices.
    pub(crate) fn pruned(&self) -> u64 {
        (self.pruned * self.spec.partition.metadata.groups.len()) as u64
    }
}

impl DisplayAs for SliceScanExec {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = match self.spec.shape {
            Shape::Stored => "",
            Shape::Rows { .. } => "_rows",
            Shape::Dense(_) => " dense",
        };
        let each = self.spec.stored().map_or(1, |stored| self.spec.groups_of(&stored));
        let slices = self.spec.runs.iter().flatten().map(|run| run.len()).sum::<usize>() * each;
        let columns: Vec<&str> = self.properties.eq_properties.schema().fields().iter().map(|f| f.name().as_str()).collect();
        if matches!(form, DisplayFormatType::TreeRender) {
            // The same on all drives, whose slices are counted next to it.
            write!(f, "columns={}{view}", columns.join(", "))?;
        } else {
            write!(
                f,
                "SliceScanExec: table={}{view}, columns=[{}], slices={slices}, pruned={}",
                self.spec.partition.title(),
                columns.join(", "),
                self.pruned * self.spec.partition.metadata.groups.len()
            )?;
        }
        if let Some(fetch) = self.fetch {
            write!(f, ", fetch={fetch}")?;
        }
        if let Some(found) = self.spec.found() {
            write!(f, ", index={}", found.note.name)?;
        }
        Ok(())
    }
}

impl ExecutionPlan for SliceScanExec {
    fn name(&self) -> &'static str {
        "SliceScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn supports_limit_pushdown(&self) -> bool {
        false
    }

    fn with_fetch(&self, limit: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(Arc::new(Self { fetch: limit, metrics: ExecutionPlanMetricsSet::new(), statistics: OnceLock::new(), ..self.clone() }))
    }

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], args: &StatisticsArgs) -> DfResult<Arc<Statistics>> {
        let schema = self.properties.eq_properties.schema();
        if args.partition().is_some() || self.fetch.is_some() || self.feed.is_some() || self.spec.found().is_some() || !matches!(self.spec.shape, Shape::Stored)
        {
            return Ok(Arc::new(Statistics::new_unknown(schema)));
        }
        let made = self.statistics.get_or_init(|| Arc::new(statistics::of(&self.spec.partition, schema, &self.spec.stripes())));
        Ok(Arc::clone(made))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let runs = self.spec.runs.get(partition).cloned().unwrap_or_default();
        let counter = |name: &'static str| MetricBuilder::new(&self.metrics).counter(name, partition);
        let (read, told, pruned, bytes_read) = (counter(SLICES), counter(SLICES_TOLD), counter(SLICES_PRUNED), counter(BYTES_READ));
        let passed_over = counter(PASSED_OVER);
        if partition == 0 && self.feed.is_none() {
            pruned.add(self.pruned * self.spec.partition.metadata.groups.len());
        }
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let schema = Arc::clone(self.properties.eq_properties.schema());
        let stored = self.spec.stored().map_err(to_datafusion)?;
        let batch_rows = self.spec.batch_rows(context.session_config().batch_size(), &stored);
        let time = baseline.elapsed_compute().clone();
        let fetching = Fetching { spec: Arc::clone(&self.spec), stored, read, told, passed_over, bytes_read, time: time.clone() };
        let fetching = Arc::new(fetching);
        let work = Arc::new(Work { fetching: Arc::clone(&fetching), schema: Arc::clone(&schema), batch_rows, time, pool: Arc::clone(context.memory_pool()) });
        let inner = match self.feed.clone() {
            None => {
                let fetched = stream::iter(runs).map(move |run| Arc::clone(&fetching).fetch(run)).buffered(PREFETCH);
                let loaded = fetched.map(move |fetched| fetched.and_then(|fetched| work.load(fetched)).map_err(to_datafusion));
                let loaded = loaded.map_ok(|loaded| stream::iter(loaded).map(|batch| batch.map_err(to_datafusion))).try_flatten();
                let told = self.spec.found().filter(|_| partition == 0).and_then(|found| found.values.clone());
                let told = told
                    .into_iter()
                    .flat_map(move |rows| (0..rows.num_rows()).step_by(batch_rows).map(move |at| rows.slice(at, batch_rows.min(rows.num_rows() - at))));
                stream::iter(told.map(Ok)).chain(loaded).boxed()
            }
            Some(feed) => {
                let asked = Arc::clone(&feed);
                let fed = stream::unfold(asked, |feed| async move { feed.next().await.map(|fed| (fed, feed)) });
                let loaded = fed.map(move |fed| {
                    let FetchedSlice { stripe, fetched } = fed?;
                    let (loaded, feed) = (work.load(fetched)?, Arc::clone(&feed));
                    // A request for more than the last batch means that the stripe is processed.
                    let over = stream::poll_fn(move |_| {
                        feed.done(stripe);
                        Poll::Ready(None)
                    });
                    Ok(stream::iter(loaded).chain(over))
                });
                loaded.try_flatten().map(|batch: Result<RecordBatch>| batch.map_err(to_datafusion)).boxed()
            }
        };
        // Batches of a wide table are parts of a stripe, which the pool knows already.
        let memory = (self.spec.partition.metadata.groups.len() == 1).then(|| MemoryConsumer::new("SliceScanExec").register(context.memory_pool()));
        Ok(Box::pin(cooperative(ScanStream { schema, inner: Some(inner), left: self.fetch.unwrap_or(usize::MAX), baseline, memory })))
    }
}

/// Stops at the fetch limit, counts rows, and reserves the batch that it passes on in the memory pool.
struct ScanStream {
    schema: SchemaRef,
    inner: Option<BoxStream<'static, DfResult<RecordBatch>>>,
    left: usize,
    baseline: BaselineMetrics,
    memory: Option<MemoryReservation>,
}

impl ScanStream {
    fn step(&mut self, came: Option<DfResult<RecordBatch>>) -> Option<DfResult<RecordBatch>> {
        let Some(Ok(batch)) = came else {
            self.inner = None;
            self.memory = None;
            return came;
        };
        let bytes = || usize::try_from(batch_bytes(&batch)).unwrap_or(usize::MAX);
        if let Some(Err(error)) = self.memory.as_ref().map(|memory| memory.try_resize(bytes())) {
            self.inner = None;
            return Some(Err(error));
        }
        let batch = if batch.num_rows() > self.left { batch.slice(0, self.left) } else { batch };
        self.left -= batch.num_rows();
        Some(Ok(batch))
    }
}

impl Stream for ScanStream {
    type Item = DfResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            // What is still being read ahead is not needed.
            self.inner = None;
        }
        let Some(inner) = self.inner.as_mut() else {
            return self.baseline.record_poll(Poll::Ready(None));
        };
        let came = ready!(inner.poll_next_unpin(cx));
        let came = self.step(came);
        self.baseline.record_poll(Poll::Ready(came))
    }
}

impl RecordBatchStream for ScanStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
