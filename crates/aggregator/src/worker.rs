//! Runs a sub-plan at an aggregator: the drives below process the epochs that the parent feeds.
//!
//! An epoch is one lane: an adaptive scan over sessions with the drives, which takes its slices from the parent. The
//! aggregator merges the states that come of it, or passes the rows on, and sends them to the parent.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use datafusion::common::TableReference;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, SpillMetrics};
use futures::future::BoxFuture;
use futures::stream::{self, SelectAll};
use futures::{FutureExt, StreamExt};
use parking_lot::{Mutex, MutexGuard};
use skytether_common::Pushdown;
use skytether_common::{Error, Result};
use skytether_device::session::Stripe;
use skytether_device::{Annotation, SubPlan};
use skytether_engine::meter::Meter;
use skytether_engine::session::{Lane, Worker};
use skytether_engine::split_execution::{Combiner, SplitExecution};
use skytether_plan::error::from_datafusion;
use skytether_scheduler::cost::CostModel;
use skytether_scheduler::drive::{Meters, Next};
use skytether_scheduler::message::{EpochId, PushdownLevel, Seconds, SliceCost, SliceId};
use skytether_scheduler::query::{Limits, Policy, Setup};
use skytether_scheduler::work::{PRIORS, Work as Cost};
use tokio::sync::mpsc;

use crate::striped_storage::{StripedStorage, copied};
use datafusion::execution::runtime_env::RuntimeEnv;
use skytether_api::device_profile::profile_of;
use skytether_api::receipt::ReceiptSource;
use skytether_cluster::cluster::Cluster;
use skytether_cluster::options::AdaptiveMode;
use skytether_exec::adaptive::cost_inputs::work;
use skytether_exec::adaptive::local_worker::LocalExecutor;
use skytether_exec::adaptive::scan_setup::SliceSource;
use skytether_exec::adaptive::scan_setup::{Member, Start};
use skytether_exec::adaptive::start as moving;
use skytether_exec::column_stats::KnownTable;
use skytether_exec::drive_reader::{DriveStream, ProfileEntry, Timeouts};
use skytether_exec::estimate::{Estimated, Estimates};
use skytether_exec::local_executors::LocalExecutors;
use skytether_exec::profile::Collector;

/// What all sub-plans share: the drives below, the engines over their storage, and the memory of queries.
pub(crate) struct Below {
    pub(crate) cluster: Cluster,
    pub(crate) executors: LocalExecutors,
    pub(crate) runtime: Arc<RuntimeEnv>,
}

impl Below {
    /// The engine over what drive `at` stores.
    fn engine(&self, at: usize) -> Result<Arc<LocalExecutor>> {
        let drives = self.cluster.drives();
        let drive = drives.get(at).ok_or_else(|| Error::internal("a drive is not one of the aggregator's"))?;
        Ok(self.executors.get(drive, drives.len()))
    }
}

/// A sub-plan at an aggregator.
pub(crate) struct AggregatorJob {
    below: Below,
    plan: SubPlan,
    divided: SplitExecution,
    combiner: Option<Combiner>,
    cost: Cost,
    /// The drive of each stripe.
    places: Arc<HashMap<u32, usize>>,
    state: Mutex<State>,
}

/// The last reports of the drives, and what they did in epochs that are over.
#[derive(Default)]
struct State {
    loads: Vec<f64>,
    /// Seconds for which each drive may report no progress, by its own report.
    slack: Vec<Seconds>,
    running: HashMap<SliceId, Seconds>,
    below: Vec<Annotation>,
    /// Cost models that earlier epochs learnt, by their pushdown level.
    learnt: BTreeMap<PushdownLevel, CostModel>,
}

impl fmt::Debug for AggregatorJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AggregatorJob").field("divided", &self.divided).finish_non_exhaustive()
    }
}

/// The drive of each stripe of `divided`, the split `plan`. `None` where no drive can process its stripes alone. Then
/// the plan reads several slices of a stripe, or another table that drives do not have whole.
pub(crate) fn places(divided: &SplitExecution, plan: &SubPlan, placed: &StripedStorage) -> Result<Option<HashMap<u32, usize>>> {
    let partition = divided.partition();
    if copied(partition) || plan.partitions.values().any(|other| other != partition && !copied(other)) {
        return Ok(None);
    }
    let mut places = HashMap::new();
    for surveyed in divided.slice_manifest() {
        let stripe = surveyed.stripe;
        // A plan that reads no slice of the stripe can run at any drive with the metadata slice.
        let mut slices = divided.slices_of(stripe)?;
        if slices.is_empty() {
            slices.push(stripe);
        }
        // Several slices may be on several drives, or on several below one aggregator.
        let &[only] = slices.as_slice() else { return Ok(None) };
        places.insert(stripe, placed.place(partition, only)?);
    }
    Ok(Some(places))
}

impl AggregatorJob {
    /// Runs `plan` on the drives of `below`; `places` has the drive of each stripe.
    pub(crate) async fn new(below: Below, plan: SubPlan, divided: SplitExecution, places: HashMap<u32, usize>) -> Result<Arc<Self>> {
        let combiner = divided.combiner().await?;
        let cost = cost(&divided)?;
        let state = Mutex::new(State { loads: vec![1.0; below.cluster.drives().len()], slack: vec![0.0; below.cluster.drives().len()], ..State::default() });
        Ok(Arc::new(Self { below, plan, divided, combiner, cost, places: Arc::new(places), state }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds the drives' annotations of an epoch to that of this sub-plan.
    fn tell(&self, collector: &Collector) {
        let mut state = self.state();
        for told in collector.receipt().scans.into_iter().flat_map(|scan| scan.annotations) {
            // The parent decides which slices are read. Each drive knows all of them, so a sum would count slices
            // several times.
            let told = Annotation { slices_pruned: 0, slices_total: None, ..told };
            match state.below.iter_mut().find(|one| one.cse == told.cse) {
                Some(one) => one.add(told),
                None => state.below.push(told),
            }
        }
    }

    /// A stream of drive `at`, whose figures go to a scan of `collector`.
    fn reading(&self, at: usize, collector: &Arc<Collector>, scan: usize) -> DriveStream {
        let drive = Arc::clone(&self.below.cluster.drives()[at]);
        let options = self.below.cluster.options();
        let begun = Annotation { cse: drive.info().name.clone(), rung: Some(PushdownLevel::Full), ..Annotation::default() };
        DriveStream {
            note: ProfileEntry { number: collector.begin(scan, begun), collector: Arc::clone(collector), scan },
            metrics: BaselineMetrics::new(&ExecutionPlanMetricsSet::new(), at),
            patience: Timeouts { begin: options.begin_deadline, silence: options.silence_deadline },
            catalog: None,
            drive,
            schema: self.divided.schema(PushdownLevel::Full),
            to_the_end: false,
        }
    }

    /// The start of an epoch at pushdown level `top`.
    fn start(
        &self,
        top: PushdownLevel,
        source: Arc<dyn SliceSource>,
        outputs: Vec<skytether_exec::adaptive::scan_setup::Output>,
        collector: &Arc<Collector>,
    ) -> Result<Start> {
        let scan = collector.scan(self.plan.dataset.to_string(), self.plan.rung, String::new(), None);
        let options = self.below.cluster.options();
        let drives = self.below.cluster.drives();
        let profiled = drives.iter().any(|drive| drive.info().profile.is_some());
        let policy = match options.moving {
            AdaptiveMode::Always(policy) => policy,
            AdaptiveMode::AsNeeded if profiled => Policy::Adaptive,
            AdaptiveMode::AsNeeded | AdaptiveMode::Never => Policy::Static(PushdownLevel::Full),
        };
        let members = outputs.into_iter().enumerate().map(|(at, output)| {
            let (engine, faults) = (self.below.engine(at)?, self.below.cluster.faults(at)?);
            Ok(Member { reading: self.reading(at, collector, scan), plan: self.plan.clone(), faults, engine, output })
        });
        let cost = match top {
            PushdownLevel::Full => self.cost.clone(),
            // The parent wants rows as they are, so no upper part remains.
            PushdownLevel::Filter | PushdownLevel::Raw => Cost { upper: Vec::new(), result: self.cost.filtered, ..self.cost.clone() },
        };
        Ok(Start {
            members: members.collect::<Result<_>>()?,
            setup: Setup {
                work: cost,
                policy,
                host: options.profile(),
                cses: drives.iter().map(|drive| profile_of(drive.info())).collect(),
                limits: Limits { memory: options.limits.memory.min((options.memory_limit / 4) as u64), ..options.limits },
                priors: PRIORS,
                kinds: (0..drives.len()).map(|at| self.below.engine(at).map(|engine| engine.kinds()).unwrap_or_default()).collect(),
                fed: true,
            },
            schema: self.divided.schema(top),
            top,
            source: Some(source),
            runtime: Arc::clone(&self.below.runtime),
            spills: SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0),
        })
    }
}

/// The cost of a sub-plan, as far as the metadata of its partition tell it.
fn cost(divided: &SplitExecution) -> Result<Cost> {
    let plan = divided.logical()?;
    let rows = divided.slice_manifest().iter().map(|stripe| stripe.rows).sum();
    let mut tables: Vec<TableReference> = Vec::new();
    let visited = plan.apply(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            tables.push(scan.table_name.clone());
        }
        Ok(TreeNodeRecursion::Continue)
    });
    visited.map_err(from_datafusion)?;
    let known = Arc::new(KnownTable::default());
    let estimates: Estimates = tables.into_iter().map(|table| (table, Estimated { rows, known: Arc::clone(&known) })).collect();
    work(&plan, &estimates, rows, divided.is_sparse())
}

impl Meters for AggregatorJob {
    /// The mean of the last loads that the drives reported.
    fn load(&self) -> f64 {
        let state = self.state();
        state.loads.iter().sum::<f64>() / state.loads.len().max(1) as f64
    }

    fn cpu(&self, _: EpochId, slice: SliceId) -> Seconds {
        self.state().running.get(&slice).copied().unwrap_or(0.0)
    }

    /// The longest time after which the aggregator does without a silent drive, retries included.
    fn slack(&self) -> Seconds {
        let Limits { silence, pause, retries, .. } = self.below.cluster.options().limits;
        f64::from(retries + 1) * (silence + pause) + self.state().slack.iter().copied().fold(0.0, f64::max)
    }
}

impl Worker for AggregatorJob {
    fn execution(&self) -> &SplitExecution {
        &self.divided
    }

    fn lanes(&self) -> usize {
        1
    }

    fn annotation(&self) -> Annotation {
        let own = self.divided.annotation();
        let below = self.state().below.clone();
        let sum = |of: fn(&Annotation) -> u64| below.iter().map(of).fold(0, u64::saturating_add);
        Annotation {
            // Slices that drives sent raw were processed here, and the drives no longer count them.
            slices: sum(|one| one.slices.saturating_add(one.above.slices)),
            slices_told: sum(|one| one.slices_told),
            rows_read: below
                .iter()
                .map(|one| Some(one.rows_read?.saturating_add(one.above.rows_read)))
                .try_fold(0u64, |all, rows| Some(all.saturating_add(rows?))),
            bytes_read: sum(|one| one.bytes_read),
            below,
            ..own
        }
    }

    fn ahead(&self, _: &[(PushdownLevel, SliceId)]) {}

    fn forgotten(&self, _: EpochId) {}

    fn work(self: Arc<Self>, lane: Lane) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let top = if self.divided.has_upper() { lane.rung() } else { PushdownLevel::Full };
            let lane = Arc::new(lane);
            let fed = Arc::new(JobInput { work: Arc::clone(&self), top, lane: Arc::clone(&lane), over: AtomicBool::new(false) });
            let (outputs, rows): (Vec<_>, Vec<_>) = self.below.cluster.drives().iter().map(|_| mpsc::channel(2)).unzip();
            let collector = Arc::new(Collector::new(Instant::now(), Pushdown::Full));
            let start = self.start(top, fed, outputs, &collector)?;
            // The epoch's task ends with this lane.
            let mut running = tokio::task::JoinSet::new();
            running.spawn(moving::run(start));
            let rows: SelectAll<_> =
                rows.into_iter().map(|rows| stream::unfold(rows, |mut rows| async move { rows.recv().await.map(|batch| (batch, rows)) }).boxed()).collect();
            let mut rows = rows.map(|batch| batch.map_err(from_datafusion)).boxed();
            match &self.combiner {
                Some(combiner) if top == PushdownLevel::Full => {
                    let mut states = self.divided.combine(combiner, rows, Arc::new(Meter::default()))?;
                    while let Some(batch) = states.next().await? {
                        if !lane.send(batch).await {
                            return Ok(());
                        }
                    }
                    self.divided.ended(top, &states);
                }
                _ => {
                    while let Some(batch) = rows.next().await {
                        if !lane.send(batch?).await {
                            return Ok(());
                        }
                    }
                }
            }
            while let Some(over) = running.join_next().await {
                over.map_err(|e| Error::internal("a task that moves work ended early").with_source(e))?;
            }
            self.tell(&collector);
            Ok(())
        })
    }
}

/// The slices that the parent feeds to this epoch, as the source of the scan below.
struct JobInput {
    work: Arc<AggregatorJob>,
    /// The requested pushdown level.
    top: PushdownLevel,
    lane: Arc<Lane>,
    over: AtomicBool,
}

impl SliceSource for JobInput {
    fn slice_manifest(&self, drive: usize) -> Vec<Stripe> {
        self.work.divided.slice_manifest().iter().copied().filter(|stripe| self.work.places.get(&stripe.stripe) == Some(&drive)).collect()
    }

    fn take(&self, most: usize) -> Vec<(usize, u32)> {
        let mut taken = Vec::new();
        while taken.len() < most {
            match self.lane.next(|_| ()) {
                // A stripe without a place gets a number that no drive has. The scan then reports it.
                Next::Slice(slice) => taken.push((self.work.places.get(&slice.0).copied().unwrap_or(usize::MAX), slice.0)),
                Next::Wait => break,
                Next::End => {
                    self.over.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
        taken
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        self.lane.changed().boxed()
    }

    fn done(&self, cost: SliceCost) {
        self.work.state().running.remove(&cost.slice);
        self.lane.done(cost, (0, self.work.divided.memory()));
    }

    fn progress(&self, drive: usize, running: &[(SliceId, Seconds)], load: f64, slack: Seconds) {
        let mut state = self.work.state();
        if let Some(last) = state.slack.get_mut(drive) {
            *last = slack;
        }
        state.running.extend(running.iter().copied());
        if let Some(last) = state.loads.get_mut(drive) {
            *last = load;
        }
    }

    fn known(&self) -> Option<CostModel> {
        self.work.state().learnt.get(&self.top).cloned()
    }

    fn learnt(&self, cost: CostModel) {
        self.work.state().learnt.insert(self.top, cost);
    }
}
