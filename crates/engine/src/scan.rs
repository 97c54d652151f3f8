//! The physical operator that reads slices: reads ahead on threads that may block, decodes where the rows are wanted, and counts.
//!
//! Decoding is not done ahead: a decoded slice is several times its stored size, and its rows are used best while they are in the cache. So a sparse
//! slice is decoded batch by batch, some 64 thousand values at a time. Of a wide table the slices of a stripe are decoded one after the other, all rows of each: a
//! decoder of a column takes more memory than its rows ([`crate::stripe`]). Small stripes that follow one another are read and handed on together ([`crate::runs`]).

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use arrow::array::{Array, ArrayRef};
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
use skytether_common::{PartitionName, Result};
use skytether_plan::error::to_datafusion;
use skytether_slice::Layout;
use skytether_wire::session::Stripe;
use skytether_wire::size::batch_bytes;

use crate::dense::Dense;
use crate::feed::{Fed, Feed, Fetcher};
use crate::indexed::Found;
use crate::loading::{Fetching, Work};
use crate::prefilter::Prefilter;
use crate::prune;
use crate::reader::{Partition, Reader};
use crate::runs::{self, Run};
use crate::statistics;

/// Runs of stripes that are read at the same time per partition: the one that is wanted next and one more.
const PREFETCH: usize = 2;

/// Runs that others are to decide about are at least so many, if there are as many stripes.
const DECISIONS: usize = 32;

/// Bytes of a column, as it is stored, in a batch of a wide table.
const COLUMN_BYTES: u64 = 2 << 10;

/// The most bytes of a batch of a wide table, as they are stored.
const WIDEST_BATCH: u64 = 16 << 20;

/// Names of the metrics that an annotation sums up.
pub(crate) const SLICES: &str = "slices";
/// See [`SLICES`].
pub(crate) const SLICES_PRUNED: &str = "slices_pruned";
/// See [`SLICES`]: those of which the number of rows was all that was wanted.
pub(crate) const SLICES_TOLD: &str = "slices_told";

/// The metric of rows that were looked at and passed over, as conditions did not hold for them.
pub(crate) const PASSED_OVER: &str = "rows_passed_over";
/// Shown beside [`SLICES`]; an annotation has the bytes from the reader, which sees more than scans.
const BYTES_READ: &str = "bytes_read";

/// How stored rows become rows of the table.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    /// They are.
    Stored,
    /// The gene's name comes in front, where it is wanted.
    Rows {
        /// Names by gene number.
        genes: Option<ArrayRef>,
    },
    /// The dense view.
    Dense(Arc<Dense>),
}

/// Reads slices of one partition.
#[derive(Debug, Clone)]
pub(crate) struct SliceScanExec {
    pub(crate) reader: Arc<Reader>,
    pub(crate) partition: Arc<Partition>,
    pub(crate) shape: Shape,
    /// Columns of the table, in order.
    pub(crate) projection: Vec<usize>,
    /// The stripes to read, in runs that are dealt to the output partitions.
    runs: Vec<Vec<Run>>,
    /// Stripes that are not.
    pruned: usize,
    fetch: Option<usize>,
    /// Whence stripes come instead, while it runs.
    feed: Option<Arc<dyn Feed>>,
    /// What an index says of the rows that are wanted.
    found: Option<Arc<Found>>,
    /// Which columns are decoded first.
    pub(crate) first: Option<Arc<Prefilter>>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// Made when first asked for.
    statistics: OnceLock<Arc<Statistics>>,
}

impl SliceScanExec {
    #[allow(clippy::too_many_arguments, reason = "one caller, and every argument is a plain part of the operator")]
    pub(crate) fn new(
        reader: Arc<Reader>,
        partition: Arc<Partition>,
        shape: Shape,
        projection: Vec<usize>,
        schema: SchemaRef,
        stripes: Vec<u32>,
        pruned: usize,
        partitions: usize,
        fetch: Option<usize>,
    ) -> Self {
        let stored = stored(&partition, &shape, &projection);
        let runs = match stored {
            // Who wants some rows only is not given more than asked for; where their number is all that is wanted, metadata tells it stripe by stripe.
            Ok(stored) if fetch.is_none() && !projection.is_empty() => {
                runs::join(&sized(&partition, &stored, &stripes), partition.metadata.stripes(), partitions)
            }
            _ => stripes.into_iter().map(Run::single).collect(),
        };
        let partitions = partitions.min(runs.len()).max(1);
        let mut dealt = vec![Vec::new(); partitions];
        for (at, run) in runs.into_iter().enumerate() {
            dealt[at % partitions].push(run);
        }
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::Cooperative);
        Self {
            reader,
            partition,
            shape,
            projection,
            runs: dealt,
            pruned,
            fetch,
            feed: None,
            found: None,
            first: None,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            statistics: OnceLock::new(),
        }
    }

    /// The same scan, of which an index has told the rows: `stripes` are those that are read.
    pub(crate) fn indexed(self, found: Option<Arc<Found>>) -> Self {
        Self { found, ..self }
    }

    /// The same scan, which decodes the columns of some conditions first.
    pub(crate) fn first(self, first: Option<Prefilter>) -> Self {
        Self { first: first.map(Arc::new), ..self }
    }

    /// What an index says of the rows that are wanted.
    pub(crate) fn found(&self) -> Option<&Found> {
        self.found.as_deref()
    }

    /// The same scan over the stripes that `feed` gives, in one partition.
    pub(crate) fn fed(&self, feed: Arc<dyn Feed>) -> Self {
        let properties = PlanProperties::clone(&self.properties).with_partitioning(Partitioning::UnknownPartitioning(1));
        Self { feed: Some(feed), properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new(), statistics: OnceLock::new(), ..self.clone() }
    }

    /// The runs of stripes that it reads if nothing feeds it, in storage order: each with its rows and the bytes that are read of it as they are stored. `None` where it would not
    /// read all rows of them. Unless `joined`, each run is a stripe.
    pub(crate) fn survey(&self, joined: bool) -> Option<Vec<Stripe>> {
        // Rows that an index has itself are of no stripe.
        if self.fetch.is_some() || self.found().is_some_and(|found| found.values.is_some()) {
            return None;
        }
        let metadata = &self.partition.metadata;
        let stored = self.stored().ok()?;
        let sized = sized(&self.partition, &stored, &self.stripes());
        let groups = metadata.groups.split(&stored);
        let read = |n: usize| groups.iter().map(|(group, places)| self.partition.bytes_read(metadata.slice_of(n, *group), places)).sum::<Option<u64>>();
        let mut left = sized.iter();
        let surveyed = |run: Run| {
            let stripes = left.by_ref().take(run.len());
            // All rows, also where an index says which of them are wanted: whoever is handed the stripe unpacks all, and what the drive passes over is soon measured.
            let rows_and_bytes = stripes.map(|(n, _)| Some((metadata.stripe_rows(*n as usize)?, read(*n as usize)?)));
            let (rows, bytes) = rows_and_bytes.collect::<Option<Vec<_>>>()?.into_iter().fold((0, 0), |(rows, bytes), (r, b)| (rows + r, bytes + b));
            Some(Stripe { stripe: run.number(), rows, bytes })
        };
        let runs = if joined && !self.projection.is_empty() {
            runs::join(&sized, metadata.stripes(), DECISIONS)
        } else {
            sized.iter().map(|(n, _)| Run::single(*n)).collect()
        };
        runs.into_iter().map(surveyed).collect()
    }

    /// The numbers of all stripes that it reads, in storage order.
    fn stripes(&self) -> Vec<u32> {
        let mut stripes: Vec<u32> = self.runs.iter().flatten().flat_map(|run| run.stripes()).collect();
        stripes.sort_unstable();
        stripes
    }

    /// The partition whose stripes it reads.
    pub(crate) fn partition(&self) -> &PartitionName {
        &self.partition.name
    }

    /// Whether that is one of a matrix.
    pub(crate) fn is_sparse(&self) -> bool {
        matches!(self.partition.metadata.layout, Layout::Sparse { .. })
    }

    /// The groups of columns that it reads.
    fn groups(&self) -> Result<Vec<usize>> {
        Ok(self.partition.metadata.groups.split(&self.stored()?).into_iter().map(|(group, _)| group).collect())
    }

    /// The numbers of the slices of a stripe that it reads.
    ///
    /// # Errors
    /// Internal only.
    pub(crate) fn slices_of(&self, stripe: u32) -> Result<Vec<u32>> {
        let metadata = &self.partition.metadata;
        Ok(self.groups()?.into_iter().filter_map(|group| u32::try_from(metadata.slice_of(stripe as usize, group)).ok()).collect())
    }

    /// What reads its stripes.
    pub(crate) fn fetcher(&self) -> Result<Fetcher> {
        let counter = |name: &'static str| MetricBuilder::new(&self.metrics).counter(name, 0);
        let (read, told, passed_over, bytes_read) = (counter(SLICES), counter(SLICES_TOLD), counter(PASSED_OVER), counter(BYTES_READ));
        let time = MetricBuilder::new(&self.metrics).elapsed_compute(0);
        Ok(Fetcher(Arc::new(Fetching { stored: self.stored()?, scan: self.clone(), read, told, passed_over, bytes_read, time })))
    }

    /// Stripes that nothing of is wanted, in slices.
    pub(crate) fn pruned(&self) -> u64 {
        (self.pruned * self.partition.metadata.groups.len()) as u64
    }

    /// How many slices the table has here, read or not.
    pub(crate) fn slices(&self) -> usize {
        self.partition.metadata.slices.len()
    }

    /// The stored columns to read, ascending.
    fn stored(&self) -> Result<Vec<usize>> {
        match &self.shape {
            Shape::Dense(dense) if self.projection.is_empty() && self.uncounted(dense).next().is_none() => Ok(Vec::new()),
            shape => stored(&self.partition, shape, &self.projection),
        }
    }

    /// How many slices of a stripe have one of these columns; without columns it is one.
    fn groups_of(&self, stored: &[usize]) -> usize {
        self.partition.metadata.groups.split(stored).len().max(1)
    }

    /// The number of dense rows of stripe `n`, where metadata alone tells it.
    fn count(&self, dense: &Dense, n: u32) -> Option<u64> {
        let (min, max) = prune::bounds(&self.partition, "block")?;
        if min.is_null(n as usize) || max.is_null(n as usize) {
            return None;
        }
        let rows = self.partition.metadata.stripe_rows(n as usize)?;
        dense.count(u32::try_from(rows).ok()?, min.value(n as usize), max.value(n as usize))
    }

    /// The stripes whose dense rows metadata alone does not count.
    fn uncounted<'a>(&'a self, dense: &'a Dense) -> impl Iterator<Item = u32> + 'a {
        self.runs.iter().flatten().flat_map(|run| run.stripes()).filter(|&n| self.count(dense, n).is_none())
    }

    /// Rows without columns, where nothing has to be read for them.
    pub(crate) fn counted(&self, n: u32) -> Option<u64> {
        match &self.shape {
            Shape::Dense(dense) => self.count(dense, n),
            Shape::Stored | Shape::Rows { .. } => self.partition.metadata.stripe_rows(n as usize),
        }
    }

    /// Rows per batch, so that a batch of wide rows stays at a few megabytes.
    fn batch_rows(&self, wanted: usize, stored: &[usize]) -> usize {
        match self.shape {
            Shape::Dense(_) => wanted,
            Shape::Stored | Shape::Rows { .. } => wanted.min(rows_for_width(&self.partition, stored)).max(1),
        }
    }
}

/// The stored columns of `partition` that columns `projection` of a table of this shape need, ascending.
fn stored(partition: &Partition, shape: &Shape, projection: &[usize]) -> Result<Vec<usize>> {
    let mut columns = match shape {
        Shape::Stored => projection.to_vec(),
        Shape::Rows { .. } => {
            projection.iter().map(|&column| if column == 0 { partition.column("gene_id") } else { Ok(column - 1) }).collect::<Result<Vec<_>>>()?
        }
        Shape::Dense(dense) => dense.stored_columns().iter().map(|name| partition.column(name)).collect::<Result<Vec<_>>>()?,
    };
    columns.sort_unstable();
    columns.dedup();
    Ok(columns)
}

/// `stripes` with their bytes as they are stored, of the slices that have one of the columns `stored`.
fn sized(partition: &Partition, stored: &[usize], stripes: &[u32]) -> Vec<(u32, u64)> {
    let metadata = &partition.metadata;
    let groups: Vec<usize> = metadata.groups.split(stored).into_iter().map(|(group, _)| group).collect();
    let bytes = |n: u32| groups.iter().filter_map(|group| metadata.slices.get(metadata.slice_of(n as usize, *group))).map(|slice| slice.len).sum();
    stripes.iter().map(|&n| (n, bytes(n))).collect()
}

/// How many rows of `columns`, ascending stored columns of `partition`, make a batch of a few megabytes once decoded.
pub(crate) fn rows_for_width(partition: &Partition, columns: &[usize]) -> usize {
    let (metadata, groups) = (&partition.metadata, partition.metadata.groups);
    let width = if groups.len() == 1 {
        // Which of the columns are the long ones is not known, so that all of them count.
        metadata.slices.iter().map(|s| s.len).sum::<u64>().checked_div(metadata.rows)
    } else {
        let of = |(group, wanted): (usize, Vec<usize>)| {
            let bytes: u64 = metadata.slices.iter().skip(group).step_by(groups.len()).map(|s| s.len).sum();
            bytes.checked_mul(wanted.len() as u64)?.checked_div(groups.columns(group).len() as u64)?.checked_div(metadata.rows)
        };
        groups.split(columns).into_iter().map(of).sum()
    };
    // Encoded bytes; decoded ones are three to six times as many. Of many columns each has to be worth its handling.
    let wanted = (2u64 << 20).max(COLUMN_BYTES.saturating_mul(columns.len() as u64).min(WIDEST_BATCH));
    usize::try_from(wanted / width.unwrap_or(0).max(1)).unwrap_or(usize::MAX).max(1)
}

impl DisplayAs for SliceScanExec {
    fn fmt_as(&self, form: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = match self.shape {
            Shape::Stored => "",
            Shape::Rows { .. } => "_rows",
            Shape::Dense(_) => " dense",
        };
        let each = self.stored().map_or(1, |stored| self.groups_of(&stored));
        let slices = self.runs.iter().flatten().map(|run| run.len()).sum::<usize>() * each;
        let columns: Vec<&str> = self.properties.eq_properties.schema().fields().iter().map(|f| f.name().as_str()).collect();
        if matches!(form, DisplayFormatType::TreeRender) {
            // The same at all drives, whose slices are counted beside it.
            write!(f, "columns={}{view}", columns.join(", "))?;
        } else {
            write!(
                f,
                "SliceScanExec: table={}{view}, columns=[{}], slices={slices}, pruned={}",
                self.partition.title(),
                columns.join(", "),
                self.pruned * self.partition.metadata.groups.len()
            )?;
        }
        if let Some(fetch) = self.fetch {
            write!(f, ", fetch={fetch}")?;
        }
        if let Some(found) = self.found() {
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
        if args.partition().is_some() || self.fetch.is_some() || self.feed.is_some() || self.found.is_some() || !matches!(self.shape, Shape::Stored) {
            return Ok(Arc::new(Statistics::new_unknown(schema)));
        }
        let made = self.statistics.get_or_init(|| Arc::new(statistics::of(&self.partition, schema, &self.stripes())));
        Ok(Arc::clone(made))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let runs = self.runs.get(partition).cloned().unwrap_or_default();
        let counter = |name: &'static str| MetricBuilder::new(&self.metrics).counter(name, partition);
        let (read, told, pruned, bytes_read) = (counter(SLICES), counter(SLICES_TOLD), counter(SLICES_PRUNED), counter(BYTES_READ));
        let passed_over = counter(PASSED_OVER);
        if partition == 0 && self.feed.is_none() {
            pruned.add(self.pruned * self.partition.metadata.groups.len());
        }
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let schema = Arc::clone(self.properties.eq_properties.schema());
        let stored = self.stored().map_err(to_datafusion)?;
        let batch_rows = self.batch_rows(context.session_config().batch_size(), &stored);
        let time = baseline.elapsed_compute().clone();
        let fetching = Fetching { scan: self.clone(), stored, read, told, passed_over, bytes_read, time: time.clone() };
        let fetching = Arc::new(fetching);
        let work = Arc::new(Work { fetching: Arc::clone(&fetching), schema: Arc::clone(&schema), batch_rows, time, pool: Arc::clone(context.memory_pool()) });
        let inner = match self.feed.clone() {
            None => {
                let fetched = stream::iter(runs).map(move |run| Arc::clone(&fetching).fetch(run)).buffered(PREFETCH);
                let loaded = fetched.map(move |fetched| fetched.and_then(|fetched| work.load(fetched)).map_err(to_datafusion));
                let loaded = loaded.map_ok(|loaded| stream::iter(loaded).map(|batch| batch.map_err(to_datafusion))).try_flatten();
                let told = self.found().filter(|_| partition == 0).and_then(|found| found.values.clone());
                let told = told
                    .into_iter()
                    .flat_map(move |rows| (0..rows.num_rows()).step_by(batch_rows).map(move |at| rows.slice(at, batch_rows.min(rows.num_rows() - at))));
                stream::iter(told.map(Ok)).chain(loaded).boxed()
            }
            Some(feed) => {
                let asked = Arc::clone(&feed);
                let fed = stream::unfold(asked, |feed| async move { feed.next().await.map(|fed| (fed, feed)) });
                let loaded = fed.map(move |fed| {
                    let Fed { stripe, fetched } = fed?;
                    let (loaded, feed) = (work.load(fetched)?, Arc::clone(&feed));
                    // Whoever asks for more than the last batch is done with the stripe.
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
        let memory = (self.partition.metadata.groups.len() == 1).then(|| MemoryConsumer::new("SliceScanExec").register(context.memory_pool()));
        Ok(Box::pin(cooperative(ScanStream { schema, inner: Some(inner), left: self.fetch.unwrap_or(usize::MAX), baseline, memory })))
    }
}

/// Stops at the fetch limit, records what came, and tells the memory pool of the batch that is on its way.
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
