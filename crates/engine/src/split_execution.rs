//! A sub-plan that several lanes run stripe by stripe, at several pushdown levels.
//!
//! It is planned once per level. The whole plan is made first. The part below the upper operators is planned when it
//! [is wanted](SplitExecution::ready), because most drives never work at `filter` and planning takes long on slow ones.
//! Each lane runs a copy of its plan in one partition, over the stripes that its [`SliceFeed`] gives, with a state of
//! its own.
//!
//! Lanes over different stripes give parts of one result, on any node. `full` runs where the slices are, or on the
//! parent over raw slices. `filter` runs where the slices are, and [`SplitExecution::above`] runs over its rows.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{LogicalPlan, UserDefinedLogicalNode};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PhysicalExpr, PlanProperties};
use datafusion::physical_planner::{DefaultPhysicalPlanner, ExtensionPlanner, PhysicalPlanner};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use skytether_common::{Error, PartitionName, Result};
use skytether_device::session::Stripe;
use skytether_device::{Annotation, DeliveryStream, OperatorNote, SubPlan};
use skytether_emulation::paced;
use skytether_plan::combine;
use skytether_plan::error::from_datafusion;
use skytether_plan::opaque::opaque;
use skytether_plan::pushdown_level::{self, Delivered};
use skytether_scheduler::message::PushdownLevel;
use tokio::sync::OnceCell;

use crate::annotate;
use crate::batches::Coalescer;
use crate::execute::{Engine, Planned};
use crate::feed::{SliceFeed, SliceFetcher};
use crate::meter::{Meter, Metered};
use crate::plan_cache::physical;
use crate::scan::SliceScanExec;

/// What became of a sub-plan.
pub enum Taken {
    /// It runs as a whole: metadata answers it, or it has a stripe at most, or is none that divides.
    Whole(DeliveryStream),
    /// It can be run stripe by stripe.
    Split(Box<SplitExecution>),
}

/// A sub-plan that can be run stripe by stripe.
pub struct SplitExecution {
    planned: Planned,
    full: Arc<dyn ExecutionPlan>,
    /// Where there is an upper part.
    parts: Option<Parts>,
    fetcher: SliceFetcher,
    scan: SliceScanExec,
    slice_manifest: Vec<Stripe>,
    notes: Mutex<[Notes; 2]>,
}

/// A sub-plan in two.
struct Parts {
    lower: LogicalPlan,
    /// The schema of the lower part's rows.
    schema: SchemaRef,
    planned: OnceCell<Lower>,
    /// The upper part, over rows that the lower part delivers.
    upper: LogicalPlan,
    /// The upper operators; planned only if it processes filtered rows.
    finishes: Option<Arc<dyn ExecutionPlan>>,
}

/// The operators of a lower part.
struct Lower {
    plan: Arc<dyn ExecutionPlan>,
    fetcher: SliceFetcher,
}

/// Notes that the lanes of a level have reported.
#[derive(Debug, Default)]
struct Notes {
    operators: Vec<OperatorNote>,
    rows_read: u64,
}

impl fmt::Debug for SplitExecution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SplitExecution").field("stripes", &self.slice_manifest.len()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Plans `plan` to be run stripe by stripe, or runs it, where it can't be.
    ///
    /// # Errors
    /// As [`skytether_device::Cse::execute`].
    pub async fn take(self: &Arc<Self>, plan: SubPlan) -> Result<Taken> {
        let read = self.read(&plan).await?;
        if !pushdown_level::divides(read.logical()) {
            return Ok(Taken::Whole(self.run(read.planned(self.threads).await?, &plan)));
        }
        // A lane has one partition.
        let planned = read.planned(1).await?;
        let scan = only_scan(&planned.physical);
        let stripes = scan.and_then(|scan| Some((scan.slice_manifest(false)?.len(), scan.slice_manifest(self.joined)?, scan)));
        Ok(match stripes {
            Some((apart, slice_manifest, scan)) if apart >= FEW => Taken::Split(Box::new(SplitExecution::new(planned, scan, slice_manifest)?)),
            // No more than one partition's work.
            Some(_) => Taken::Whole(self.run(planned, &plan)),
            None if self.threads == 1 => Taken::Whole(self.run(planned, &plan)),
            None => Taken::Whole(self.run(self.planned(&plan, self.threads).await?, &plan)),
        })
    }
}

/// Stripes below which there is nothing to decide.
const FEW: usize = 2;

/// The scan of a plan that has one.
fn only_scan(plan: &Arc<dyn ExecutionPlan>) -> Option<SliceScanExec> {
    let mut scans = Vec::new();
    let visited = plan.apply(|node| {
        scans.extend(node.downcast_ref::<SliceScanExec>().cloned());
        Ok(TreeNodeRecursion::Continue)
    });
    if visited.is_ok() && scans.len() == 1 { scans.pop() } else { None }
}

impl SplitExecution {
    fn new(planned: Planned, scan: SliceScanExec, slice_manifest: Vec<Stripe>) -> Result<Self> {
        let logical = planned.prepared.bound().map_err(from_datafusion)?;
        let parts = pushdown_level::split(&logical).map_err(from_datafusion)?.map(|split| {
            let schema = Arc::clone(split.lower.schema().inner());
            Parts { lower: split.lower, schema, planned: OnceCell::new(), upper: split.upper, finishes: None }
        });
        Ok(Self { full: Arc::clone(&planned.physical), planned, parts, fetcher: scan.fetcher()?, scan, slice_manifest, notes: Mutex::default() })
    }

    /// Plans what lanes at `rung` run, unless that is done: before the first of them.
    ///
    /// # Errors
    /// As [`Engine::take`]: a table's names and indexes are read once more.
    pub async fn ready(&self, rung: PushdownLevel) -> Result<()> {
        let (Some(parts), PushdownLevel::Filter) = (&self.parts, rung) else { return Ok(()) };
        let planned = parts.planned.get_or_try_init(|| async {
            let plan = paced(self.planned.reader.processor(), physical(&parts.lower, &self.planned.state)).await.map_err(from_datafusion)?;
            let scan = only_scan(&plan).ok_or_else(|| Error::internal("the lower part of a sub-plan has another scan than the whole"))?;
            Ok(Lower { plan, fetcher: scan.fetcher()? })
        });
        planned.await.map(drop)
    }

    /// The same, prepared for lanes [above](Self::above) others as well.
    ///
    /// # Errors
    /// Internal only.
    pub async fn finishing(mut self) -> Result<Self> {
        self.ready(PushdownLevel::Filter).await?;
        if let Some(parts) = &mut self.parts {
            parts.finishes = Some(over_delivered(&parts.upper, &self.planned.state).await?);
        }
        Ok(self)
    }

    /// The stripes to read, in storage order.
    #[must_use]
    pub fn slice_manifest(&self) -> &[Stripe] {
        &self.slice_manifest
    }

    /// The columns of what lanes give at `rung`.
    #[must_use]
    pub fn schema(&self, rung: PushdownLevel) -> SchemaRef {
        match &self.parts {
            Some(parts) if rung == PushdownLevel::Filter => Arc::clone(&parts.schema),
            _ => self.full.schema(),
        }
    }

    /// The partition whose stripes they are.
    #[must_use]
    pub fn partition(&self) -> &PartitionName {
        self.scan.spec.partition()
    }

    /// The numbers of the slices of a stripe that are read.
    ///
    /// # Errors
    /// Internal only.
    pub fn slices_of(&self, stripe: u32) -> Result<Vec<u32>> {
        self.scan.spec.slices_of(stripe)
    }

    /// Whether the partition is one of a matrix.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.scan.spec.is_sparse()
    }

    /// The sub-plan.
    ///
    /// # Errors
    /// Internal only.
    pub fn logical(&self) -> Result<LogicalPlan> {
        self.planned.prepared.bound().map_err(from_datafusion)
    }

    /// Runs it as a whole after all.
    #[must_use]
    pub fn whole(self, engine: &Arc<Engine>, plan: &SubPlan) -> DeliveryStream {
        engine.run(self.planned, plan)
    }

    /// Whether `filter` is less than `full`.
    #[must_use]
    pub fn has_upper(&self) -> bool {
        self.parts.is_some()
    }

    /// Bytes of memory that its lanes hold now.
    #[must_use]
    pub fn memory(&self) -> u64 {
        use datafusion::execution::memory_pool::MemoryPool;
        self.planned.pool.reserved() as u64
    }

    fn place(&self, rung: PushdownLevel) -> usize {
        usize::from(rung == PushdownLevel::Filter && self.parts.is_some())
    }

    /// The lower part where `rung` is that; nothing where it runs as a whole.
    fn lower(&self, rung: PushdownLevel) -> Result<Option<&Lower>> {
        match &self.parts {
            Some(parts) if rung == PushdownLevel::Filter => {
                parts.planned.get().map(Some).ok_or_else(|| Error::internal("a lane began before its plan was ready"))
            }
            _ => Ok(None),
        }
    }

    /// The reader of stripes for lanes at `rung`, which must be [ready](Self::ready).
    ///
    /// # Errors
    /// Internal, where it is not.
    pub fn fetcher(&self, rung: PushdownLevel) -> Result<&SliceFetcher> {
        Ok(self.lower(rung)?.map_or(&self.fetcher, |lower| &lower.fetcher))
    }

    /// One more lane at `rung` (`Full` for all but `Filter`), which must be [ready](Self::ready), over the stripes of
    /// `feed`; `meter` measures it.
    ///
    /// # Errors
    /// Internal only.
    pub fn lane(&self, rung: PushdownLevel, feed: Arc<dyn SliceFeed>, meter: Arc<Meter>) -> Result<Lane> {
        let plan = self.lower(rung)?.map_or(&self.full, |lower| &lower.plan);
        let fed = |node: &dyn ExecutionPlan| node.downcast_ref::<SliceScanExec>().map(|scan| Arc::new(scan.fed(Arc::clone(&feed))) as _);
        self.start(of_its_own(plan, fed)?, meter)
    }

    /// One more lane that runs the upper part over `rows` that lanes at `filter` gave.
    ///
    /// # Errors
    /// Internal, where there is no upper part, or it is not [planned](Self::finishing).
    pub fn above(&self, rows: BoxStream<'static, Result<RecordBatch>>, meter: Arc<Meter>) -> Result<Lane> {
        let upper = self.parts.as_ref().and_then(|parts| parts.finishes.as_ref());
        let upper = upper.ok_or_else(|| Error::internal("a sub-plan without an upper part was to be finished above"))?;
        self.over(upper, rows, meter)
    }

    /// Combines states of lanes at `full`, from any node, into fewer. `None` for a sub-plan that gives rows, which are
    /// passed on as they are.
    ///
    /// # Errors
    /// Internal only.
    pub async fn combiner(&self) -> Result<Option<Combiner>> {
        let state = &self.planned.state;
        let logical = self.planned.prepared.bound().map_err(from_datafusion)?;
        let Some(combined) = combine::combined(&logical, state).map_err(from_datafusion)? else { return Ok(None) };
        over_delivered(&combined, state).await.map(Combiner).map(Some)
    }

    /// A lane that puts the states in `rows` together.
    ///
    /// # Errors
    /// Internal only.
    pub fn combine(&self, combiner: &Combiner, rows: BoxStream<'static, Result<RecordBatch>>, meter: Arc<Meter>) -> Result<Lane> {
        self.over(&combiner.0, rows, meter)
    }

    /// A lane of `plan` over rows that are delivered.
    fn over(&self, plan: &Arc<dyn ExecutionPlan>, rows: BoxStream<'static, Result<RecordBatch>>, meter: Arc<Meter>) -> Result<Lane> {
        let rows = Arc::new(Mutex::new(Some(rows)));
        let delivered = |node: &dyn ExecutionPlan| node.downcast_ref::<DeliveredExec>().map(|one| Arc::new(one.over(Arc::clone(&rows))) as _);
        self.start(of_its_own(plan, delivered)?, meter)
    }

    fn start(&self, plan: Arc<dyn ExecutionPlan>, meter: Arc<Meter>) -> Result<Lane> {
        let partitions = plan.output_partitioning().partition_count();
        if partitions != 1 {
            return Err(Error::internal(format!("a lane has {partitions} partitions")));
        }
        let rows = plan.execute(0, Arc::clone(&self.planned.context)).map_err(from_datafusion)?;
        let given = Coalescer::small(rows.schema());
        let rows = paced(self.planned.reader.processor(), Metered { inner: rows, meter }).stream().boxed();
        Ok(Lane { plan, rows: Some(rows), given })
    }

    /// Takes the figures of a lane that is over into the annotation.
    pub fn ended(&self, rung: PushdownLevel, lane: &Lane) {
        let mut told = Annotation::default();
        annotate::operators(lane.plan.as_ref(), 0, &mut told);
        let mut notes = self.notes.lock();
        let notes = &mut notes[self.place(rung)];
        notes.rows_read += told.rows_read.unwrap_or(0);
        if notes.operators.is_empty() {
            notes.operators = told.operators;
            return;
        }
        for (all, one) in notes.operators.iter_mut().zip(told.operators) {
            all.rows_out = all.rows_out.zip(one.rows_out).map(|(a, b)| a + b);
            all.seconds += one.seconds;
            all.peak_memory = all.peak_memory.max(one.peak_memory);
            all.bytes_spilled += one.bytes_spilled;
        }
    }

    /// What its lanes did, as far as they are over.
    #[must_use]
    pub fn annotation(&self) -> Annotation {
        let mut annotation = Annotation { slices_total: Some(self.planned.slices), slices_pruned: self.scan.pruned(), ..Annotation::default() };
        annotation.indexes.extend(self.scan.spec.found().map(|found| found.note.clone()));
        let lower = self.parts.as_ref().and_then(|parts| parts.planned.get()).map(|lower| &lower.fetcher);
        for fetcher in [&self.fetcher].into_iter().chain(lower) {
            let (read, told) = fetcher.counted();
            annotation.slices += read;
            annotation.slices_told += told;
        }
        let notes = self.notes.lock();
        annotation.rows_read = Some(notes.iter().map(|notes| notes.rows_read).sum());
        annotation.operators = notes.iter().find(|notes| !notes.operators.is_empty()).map(|notes| notes.operators.clone()).unwrap_or_default();
        annotation.bytes_read = self.planned.reader.bytes_read();
        annotation.peak_memory = self.planned.pool.max_reserved() as u64;
        annotation.seconds = self.planned.started.elapsed().as_secs_f64();
        annotation
    }
}

/// `plan` for one lane, with the leaf that `input` makes of its own.
///
/// Hash joins keep their build side when they get other children: lanes share what they build of a broadcast table. A
/// build side that reads a lane's own input must not be shared. One lane would build it, and all would give its rows.
fn of_its_own(plan: &Arc<dyn ExecutionPlan>, input: impl Fn(&dyn ExecutionPlan) -> Option<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
    let own = |node: Arc<dyn ExecutionPlan>| {
        if let Some(input) = input(node.as_ref()) {
            return Ok(Transformed::yes(input));
        }
        match node.downcast_ref::<HashJoinExec>() {
            Some(join) if input_of(join.left().as_ref(), &input) => Ok(Transformed::yes(join.builder().reset_state().build_exec()?)),
            _ => Ok(Transformed::no(node)),
        }
    };
    Arc::clone(plan).transform_up(own).data().map_err(from_datafusion)
}

/// Whether `plan` reads an input of the lane.
fn input_of(plan: &dyn ExecutionPlan, input: &impl Fn(&dyn ExecutionPlan) -> Option<Arc<dyn ExecutionPlan>>) -> bool {
    input(plan).is_some() || plan.children().into_iter().any(|child| input_of(child.as_ref(), input))
}

/// The operators of `plan`, which reads what is delivered.
async fn over_delivered(plan: &LogicalPlan, state: &SessionState) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = state.optimize(plan).and_then(opaque).map_err(from_datafusion)?;
    let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(DeliveredPlanner)]);
    planner.create_physical_plan(&plan, state).await.map_err(from_datafusion)
}

/// A plan that puts states together, once planned.
pub struct Combiner(Arc<dyn ExecutionPlan>);

impl fmt::Debug for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Combiner")
    }
}

/// A lane at work.
pub struct Lane {
    plan: Arc<dyn ExecutionPlan>,
    /// Nothing once it ended.
    rows: Option<BoxStream<'static, DfResult<RecordBatch>>>,
    given: Coalescer,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("plan", &self.plan.name()).finish_non_exhaustive()
    }
}

impl Lane {
    /// The next rows, in batches that are worth sending; `None` at the end.
    ///
    /// # Errors
    /// As its operators and its feed have them.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let joined = |e: arrow::error::ArrowError| Error::internal("cannot join batches").with_source(e);
        while let Some(rows) = &mut self.rows {
            let ready = match rows.next().await {
                Some(batch) => self.given.push(batch.map_err(from_datafusion)?).map_err(joined)?,
                None => {
                    self.rows = None;
                    self.given.finish().map_err(joined)?
                }
            };
            if ready.is_some() {
                return Ok(ready);
            }
        }
        Ok(None)
    }
}

type Rows = Arc<Mutex<Option<BoxStream<'static, Result<RecordBatch>>>>>;

/// Rows that are delivered, in a physical plan.
struct DeliveredExec {
    properties: Arc<PlanProperties>,
    rows: Rows,
}

impl DeliveredExec {
    fn new(schema: SchemaRef) -> Self {
        let properties =
            PlanProperties::new(EquivalenceProperties::new(schema), Partitioning::UnknownPartitioning(1), EmissionType::Incremental, Boundedness::Bounded);
        Self { properties: Arc::new(properties), rows: Rows::default() }
    }

    fn over(&self, rows: Rows) -> Self {
        Self { properties: Arc::clone(&self.properties), rows }
    }
}

impl fmt::Debug for DeliveredExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeliveredExec")
    }
}

impl DisplayAs for DeliveredExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeliveredExec")
    }
}

impl ExecutionPlan for DeliveredExec {
    fn name(&self) -> &'static str {
        "DeliveredExec"
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

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let rows = self.rows.lock().take();
        let rows = rows.unwrap_or_else(|| stream::empty().boxed()).map(|batch| batch.map_err(skytether_plan::error::to_datafusion));
        Ok(Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.properties.eq_properties.schema()), rows)))
    }
}

/// Makes [`DeliveredExec`]s of [`Delivered`].
struct DeliveredPlanner;

#[async_trait]
impl ExtensionPlanner for DeliveredPlanner {
    async fn plan_extension(
        &self,
        _: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _: &[&LogicalPlan],
        _: &[Arc<dyn ExecutionPlan>],
        _: &dyn Session,
        _: &PhysicalPlanningContext,
    ) -> DfResult<Option<Arc<dyn ExecutionPlan>>> {
        let delivered = node.as_any().downcast_ref::<Delivered>();
        Ok(delivered.map(|_| Arc::new(DeliveredExec::new(Arc::clone(node.schema().inner()))) as _))
    }
}
