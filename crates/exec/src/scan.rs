//! The physical operator that reads from drives: one partition per drive, one sub-plan for all of them.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::filter_pushdown::{ChildPushdownResult, FilterPushdownPhase, FilterPushdownPropagation, PushedDown};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, SpillMetrics};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::{RecordBatchReceiverStream, RecordBatchStreamAdapter};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, Distribution, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties};
use futures::stream;
use skytether_common::{DatasetName, PartitionName, Result};
use skytether_device::{Annotation, Cse, FaultReporter, Program, PushdownLevel, SubPlan};
use skytether_plan::error::to_datafusion;
use skytether_scheduler::kinds::Kinds;
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Limits, Policy, Setup};
use skytether_scheduler::work::{PRIORS, Work};
use std::collections::BTreeMap;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::adaptive::local_worker::LocalExecutor;
use crate::adaptive::scan_setup::{Member, Start};
use crate::adaptive::start as moving;
use crate::adaptive::start_once::Started;
use crate::broadcast::BroadcastTables;
use crate::drive_reader::{DriveStream, ProfileEntry, Sender, Timeouts};
use crate::estimate::Given;
use crate::forecast;
use crate::forecast::{MOST, equal_slices};
use crate::profile::Collector;
use crate::subplan_encoder::{Outgoing, Sent};
use skytether_api::estimate::WorkSplit;
use skytether_catalog::root_store::Catalog;

/// Batches that wait between a drive and its reader.
const PREFETCH: usize = 4;

/// A drive that takes part in a scan, with what it may see.
#[derive(Clone)]
pub struct Target {
    /// The drive.
    pub drive: Arc<dyn Cse>,
    /// Receives reports of faults of the drive.
    pub faults: Arc<dyn FaultReporter>,
    /// Its place among the host's drives.
    pub at: usize,
    /// Its partitions of the data set that is scanned, by the names of their tables.
    pub partitions: BTreeMap<String, PartitionName>,
    /// Its partitions of other data sets, which the sub-plan joins with those.
    pub with: BTreeMap<DatasetName, BTreeMap<String, PartitionName>>,
}

/// What the scans of one query share.
#[derive(Debug, Clone)]
pub struct QueryContext {
    /// The id of the query, which its sub-plans have as well.
    pub query: Uuid,
    /// Gathers the receipt.
    pub collector: Arc<Collector>,
    /// How long drives may be silent.
    pub patience: Timeouts,
    /// Rows of a batch, at most.
    pub batch_rows: u32,
    /// The catalog, which explains a missing part of a data set.
    pub catalog: Catalog,
}

/// Runs a sub-plan at some drives; partition `i` is what target `i` gives.
pub struct DriveScanExec {
    context: QueryContext,
    number: usize,
    of_cut: Option<usize>,
    table: String,
    rung: PushdownLevel,
    keep: bool,
    text: String,
    plan: Arc<Outgoing>,
    beside: BroadcastTables,
    targets: Vec<Target>,
    /// Which targets this scan reads; other hosts read the others. All of them where `None`.
    own: Option<Arc<[bool]>>,
    dataset: DatasetName,
    given: Given,
    /// Where its work moves: what that starts from.
    moves: Option<Arc<Moves>>,
    started: Started,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

/// What a scan whose work moves starts from.
pub struct Moves {
    /// What the sub-plan does, by kinds of operators, rows and bytes.
    pub work: Work,
    /// Whether the cost model decides where work runs, or all of it stays at one pushdown level.
    pub policy: Policy,
    /// Whether there is a forecast: the cost model decides, or has led to the static policy.
    pub estimated: bool,
    /// The device that this host is.
    pub host: Profile,
    /// The devices of the targets, in their order.
    pub profiles: Vec<Profile>,
    /// The cost of each kind of operator at each drive, relative to its prior, as earlier queries have shown.
    pub kinds: Vec<Kinds>,
    /// Memory and numbers of what may be under way.
    pub limits: Limits,
    /// The slices, rows and bytes of each drive's part, by the root records. Bytes are those of the columns that are
    /// read, if all columns are of a like size.
    pub parts: Vec<(u32, u64, u64)>,
    /// The engines on the host for slices that drives send raw, one per drive.
    pub engines: Vec<Arc<LocalExecutor>>,
}

impl Moves {
    /// The setup of its state machine, for the drives that `takes_part` is true for.
    fn setup(&self, takes_part: impl Fn(usize) -> bool) -> Setup {
        let some = |at: &usize| takes_part(*at);
        Setup {
            work: self.work.clone(),
            host: self.host,
            cses: (0..self.profiles.len()).filter(some).map(|at| self.profiles[at]).collect(),
            policy: self.policy,
            limits: self.limits,
            priors: PRIORS,
            kinds: (0..self.kinds.len()).filter(some).map(|at| self.kinds[at]).collect(),
            fed: false,
        }
    }
}

/// What a scan is made of.
pub struct ScanParts {
    /// Its number in the cut.
    pub of_cut: Option<usize>,
    /// The data set that is scanned.
    pub dataset: DatasetName,
    /// The table of it, as receipts name it.
    pub table: String,
    /// How much of the sub-plan drives run where nothing moves.
    pub rung: PushdownLevel,
    /// Whether drives may answer from a result that they kept, and keep this one.
    pub keep: bool,
    /// The sub-plan as text, for receipts and explanations.
    pub text: String,
    /// The sub-plan.
    pub plan: Outgoing,
    /// The drives that are asked.
    pub targets: Vec<Target>,
    /// Annotations for drives that have a part of the table and are left out, because nothing there can match.
    pub unasked: Vec<Annotation>,
    /// The columns of what each drive sends.
    pub schema: SchemaRef,
    /// About what all drives give together.
    pub given: Given,
    /// The tables of broadcast joins, which travel with the plan.
    pub beside: BroadcastTables,
    /// The order in which each drive gives its rows.
    pub order: Option<LexOrdering>,
    /// Where its work moves: what that starts from.
    pub moves: Option<Moves>,
}

impl DriveScanExec {
    /// The scan; the query's receipt knows it from here on.
    pub fn new(context: QueryContext, parts: ScanParts) -> Self {
        let ScanParts { of_cut, dataset, table, rung, keep, text, plan, targets, unasked, schema, given, beside, order, moves } = parts;
        let number = context.collector.scan(table.clone(), rung, text.clone(), of_cut.and_then(|n| u32::try_from(n).ok()));
        for one in unasked {
            context.collector.begin(number, one);
        }
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(schema, order),
            Partitioning::UnknownPartitioning(targets.len().max(1)),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            context,
            number,
            of_cut,
            table,
            rung,
            keep,
            text,
            plan: Arc::new(plan),
            beside,
            targets,
            own: None,
            dataset,
            given,
            moves: moves.map(Arc::new),
            started: Started::default(),
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The sub-plan for target `at`, without the program itself.
    fn sub_plan(&self, at: usize) -> SubPlan {
        let target = &self.targets[at];
        SubPlan {
            query: self.context.query,
            dataset: self.dataset.clone(),
            partitions: target.partitions.clone(),
            with: target.with.clone(),
            rung: self.rung,
            program: Program::default(),
            filters: BTreeMap::new(),
            tables: BTreeMap::new(),
            batch_rows: self.context.batch_rows,
            keep: self.keep,
        }
    }

    /// A reading of target `at`, which begins to work.
    fn reading(&self, at: usize) -> DriveStream {
        let drive = Arc::clone(&self.targets[at].drive);
        DriveStream {
            note: ProfileEntry {
                number: self.context.collector.begin(self.number, begun(&drive.info().name, self.rung)),
                collector: Arc::clone(&self.context.collector),
                scan: self.number,
            },
            metrics: BaselineMetrics::new(&self.metrics, at),
            patience: self.context.patience,
            catalog: Some(self.context.catalog.clone()),
            drive,
            schema: self.schema(),
            to_the_end: self.plan.gathers(),
        }
    }

    /// Starts a scan whose work moves.
    fn start(&self, moves: &Arc<Moves>, outputs: Vec<Sender>, context: Arc<TaskContext>) -> AbortOnDropHandle<()> {
        let own: Vec<usize> = (0..self.targets.len()).filter(|at| self.reads(*at)).collect();
        let members: Vec<_> = own.iter().map(|at| (self.reading(*at), self.sub_plan(*at))).collect();
        let faults: Vec<_> = own.iter().map(|at| Arc::clone(&self.targets[*at].faults)).collect();
        let engines: Vec<_> = own.iter().map(|at| Arc::clone(&moves.engines[*at])).collect();
        // Readers of what other hosts read find the end at once.
        let outputs: Vec<_> = outputs.into_iter().enumerate().filter(|(at, _)| self.reads(*at)).map(|(_, output)| output).collect();
        let setup = moves.setup(|at| own.contains(&at));
        let schema = self.schema();
        let (plan, beside) = (Arc::clone(&self.plan), self.beside.clone());
        let (runtime, spills) = (context.runtime_env(), SpillMetrics::new(&self.metrics, 0));
        let running = async move {
            let Some((first, _)) = members.first() else { return };
            let sent = match outgoing(&plan, &beside, &first.note, context).await {
                Ok(sent) => sent,
                Err(error) => {
                    if let Some(output) = outputs.first() {
                        let _ = output.send(Err(to_datafusion(error))).await;
                    }
                    return;
                }
            };
            let members = members.into_iter().zip(faults).zip(outputs).zip(engines);
            let members = members.map(|((((reading, sub_plan), faults), output), engine)| Member { reading, plan: sent.of(sub_plan), faults, engine, output });
            let start =
                Start { members: members.collect(), setup, schema, top: skytether_scheduler::message::PushdownLevel::Full, source: None, runtime, spills };
            moving::run(start).await;
        };
        AbortOnDropHandle::new(tokio::spawn(running))
    }

    /// The forecast, before any request to a drive; `None` where the cost model does not decide.
    pub fn expected(&self) -> Option<WorkSplit> {
        let moves = self.moves.as_ref().filter(|moves| moves.estimated)?;
        if moves.parts.iter().map(|(slices, ..)| *slices as usize).sum::<usize>() > MOST {
            return None;
        }
        let setup = moves.setup(|_| true);
        let names: Vec<&str> = self.targets.iter().map(|target| target.drive.info().name.as_str()).collect();
        let mut first = 0u32;
        let slices = moves.parts.iter().zip(0..).map(|((slices, rows, bytes), at)| {
            let of = equal_slices(at, first, *slices, *rows, *bytes);
            first = first.saturating_add(*slices);
            of
        });
        Some(forecast::expected(setup, &names, slices.collect()))
    }

    /// The same scan, which reads only the targets that `own` is true for. Its partitions keep their numbers; those of
    /// the other targets are empty.
    #[must_use]
    pub fn of_targets(&self, own: Vec<bool>) -> Self {
        Self { own: Some(own.into()), ..self.with(self.plan.with_filters([]), self.beside.clone()) }
    }

    /// Whether this scan reads target `at`, and no other host.
    fn reads(&self, at: usize) -> bool {
        self.own.as_ref().is_none_or(|own| own.get(at).copied().unwrap_or(false))
    }

    /// About how many rows the drives send.
    pub fn expected_rows(&self) -> u64 {
        self.given.rows
    }

    /// What is read, for a comparison of two hosts' plans: of each target the drive's id, and its partitions with their
    /// generations.
    pub fn identity(&self) -> String {
        let parts = self.targets.iter().map(|target| {
            let all = target.partitions.values().chain(target.with.values().flat_map(BTreeMap::values));
            format!("{}: {:?}", target.drive.info().id, all.collect::<Vec<_>>())
        });
        parts.collect::<Vec<_>>().join("; ")
    }

    /// The number of its sub-plan in the cut.
    pub fn of_cut(&self) -> Option<usize> {
        self.of_cut
    }

    /// Whether filters of joins can go down on top of the sub-plan.
    pub fn takes_filters(&self) -> bool {
        self.rung != PushdownLevel::Raw
    }

    /// The filters of joins that go down on top of the sub-plan.
    pub fn filters(&self) -> &[Arc<dyn PhysicalExpr>] {
        self.plan.filters()
    }

    /// The same scan, which waits for `filters` of joins and sends them down.
    pub fn with_filters(&self, filters: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        let plan = self.plan.with_filters(filters);
        self.context.collector.filtered(self.number, plan.filters().len());
        self.with(plan, self.beside.clone())
    }

    fn with(&self, plan: Outgoing, beside: BroadcastTables) -> Self {
        Self {
            context: self.context.clone(),
            number: self.number,
            of_cut: self.of_cut,
            table: self.table.clone(),
            rung: self.rung,
            keep: self.keep,
            text: self.text.clone(),
            plan: Arc::new(plan),
            beside,
            targets: self.targets.clone(),
            own: self.own.clone(),
            dataset: self.dataset.clone(),
            given: self.given.clone(),
            moves: self.moves.clone(),
            started: Started::default(),
            properties: Arc::clone(&self.properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }
}

impl fmt::Debug for DriveScanExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriveScanExec").field("table", &self.table).field("rung", &self.rung).field("drives", &self.targets.len()).finish_non_exhaustive()
    }
}

impl DisplayAs for DriveScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drives: Vec<_> = self.targets.iter().map(|t| t.drive.info().name.as_str()).collect();
        let plan: Vec<_> = self.text.lines().map(str::trim).collect();
        write!(f, "DriveScanExec: table={}, rung={}, drives=[{}], sub_plan=[{}]", self.table, self.rung.as_str(), drives.join(", "), plan.join(" <- "))?;
        if !self.plan.filters().is_empty() {
            write!(f, ", join_filters={}", self.plan.filters().len())?;
        }
        Ok(())
    }
}

impl ExecutionPlan for DriveScanExec {
    fn name(&self) -> &str {
        "DriveScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.beside.inputs().iter().collect()
    }

    /// Each is read once, for all drives.
    fn required_input_distribution(&self) -> Vec<Distribution> {
        vec![Distribution::SinglePartition; self.beside.inputs().len()]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.beside.inputs().len()]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![false; self.beside.inputs().len()]
    }

    fn apply_expressions(&self, visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        for filter in self.plan.filters() {
            if visit(filter)? == TreeNodeRecursion::Stop {
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    }

    /// Takes the filters of joins as a hint: the join would drop the same rows.
    fn handle_child_pushdown_result(
        &self,
        phase: FilterPushdownPhase,
        asked: ChildPushdownResult,
        _: &ConfigOptions,
    ) -> DfResult<FilterPushdownPropagation<Arc<dyn ExecutionPlan>>> {
        if phase != FilterPushdownPhase::Post || !self.takes_filters() {
            return Ok(FilterPushdownPropagation::if_all(asked));
        }
        let joins: Vec<_> = asked.parent_filters.iter().map(|f| &f.filter).filter(|f| f.is::<DynamicFilterPhysicalExpr>()).cloned().collect();
        let answer = FilterPushdownPropagation::with_parent_pushdown_result(vec![PushedDown::No; asked.parent_filters.len()]);
        Ok(if joins.is_empty() { answer } else { answer.with_updated_node(Arc::new(self.with_filters(joins))) })
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.with(self.plan.with_filters([]), self.beside.with_inputs(children)?)))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let schema = self.schema();
        if let Some(moves) = &self.moves {
            let outlet = self.started.partition(partition, self.targets.len(), |outputs| self.start(moves, outputs, context));
            let rows = stream::unfold(outlet, |outlet| async move {
                let (mut rows, ends) = outlet?;
                rows.recv().await.map(|batch| (batch, Some((rows, ends))))
            });
            return Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)));
        }
        let mut builder = RecordBatchReceiverStream::builder(schema, PREFETCH);
        if partition >= self.targets.len() || !self.reads(partition) {
            return Ok(builder.build());
        }
        let (sub_plan, reading) = (self.sub_plan(partition), self.reading(partition));
        let send = builder.tx();
        let (plan, beside) = (Arc::clone(&self.plan), self.beside.clone());
        builder.spawn(async move {
            let run = async {
                let sent = outgoing(&plan, &beside, &reading.note, context).await?;
                reading.run(sent.of(sub_plan), &send).await
            };
            if let Err(e) = run.await {
                // The reader may have stopped, and with it the need for the error.
                let _ = send.send(Err(to_datafusion(e))).await;
            }
            Ok(())
        });
        Ok(builder.build())
    }

    /// Prepares for another run, as the step of a recursive query needs. The join filters belong to the run before: no
    /// join would complete them now.
    fn reset_state(self: Arc<Self>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.with(self.plan.without_filters(), self.beside.with_inputs(self.beside.inputs().to_vec())?)))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], args: &StatisticsArgs) -> DfResult<Arc<Statistics>> {
        let parts = if args.partition().is_some() { self.targets.len().max(1) } else { 1 };
        let rows = usize::try_from(self.given.rows).unwrap_or(usize::MAX) / parts;
        let width: usize = self.schema().fields().iter().map(|f| f.data_type().primitive_width().unwrap_or(24)).sum();
        let mut statistics = Statistics::new_unknown(&self.schema());
        statistics.num_rows = Precision::Inexact(rows);
        for (column, values) in statistics.column_statistics.iter_mut().zip(&self.given.values) {
            if let Some(values) = values {
                column.distinct_count = Precision::Inexact(usize::try_from(*values).unwrap_or(usize::MAX).min(rows));
            }
        }
        statistics.total_byte_size = Precision::Inexact(rows.saturating_mul(width.max(1)));
        Ok(Arc::new(statistics))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// What all drives get alike.
struct Parcel {
    sent: Sent,
    tables: BTreeMap<String, Bytes>,
}

impl Parcel {
    fn of(&self, sub_plan: SubPlan) -> SubPlan {
        let Sent { plan, filters } = self.sent.clone();
        SubPlan { program: Program::Substrait(plan), filters, tables: self.tables.clone(), ..sub_plan }
    }
}

/// Waits for what travels with `plan`.
async fn outgoing(plan: &Outgoing, beside: &BroadcastTables, note: &ProfileEntry, context: Arc<TaskContext>) -> Result<Parcel> {
    let beside = beside.read(context).await?;
    note.beside(&beside);
    let tables = beside.iter().map(|table| (table.name.clone(), table.bytes.clone())).collect();
    Ok(Parcel { sent: plan.sent().await?, tables })
}

fn begun(name: &str, rung: PushdownLevel) -> Annotation {
    Annotation {
        cse: name.to_owned(),
        rung: Some(rung),
        reason: Some("the host needed no more rows and left before the end; figures are the host's".to_owned()),
        ..Annotation::default()
    }
}

/// For each operator of `plan`, from the root down: the number of the sub-plan whose rows it reads,
/// if it is a scan of drives.
pub fn scan_numbers(plan: &dyn ExecutionPlan) -> Vec<Option<u32>> {
    let own = plan.downcast_ref::<DriveScanExec>().and_then(DriveScanExec::of_cut).and_then(|n| u32::try_from(n).ok());
    std::iter::once(own).chain(plan.children().into_iter().flat_map(|child| scan_numbers(child.as_ref()))).collect()
}
