//! The part of a query that one host runs: its tasks, and how they read from those of others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use arrow::record_batch::RecordBatch;
use datafusion::common::Result as DfResult;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use futures::future::{BoxFuture, try_join_all};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use skytether_api::receipt::{ReceiptSource, TaskReceipt};
use skytether_common::{Error, Result};
use skytether_device::size::batch_bytes;
use skytether_exec::profile::Collector;
use skytether_exec::query_limits::host_error;
use skytether_exec::scan::DriveScanExec;
use skytether_host::Host;
use skytether_plan::error::{from_datafusion, to_datafusion};
use skytether_query::planner::{Planned, Planner};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::join_keys::{JoinKeys, Keys, PATIENCE, Runs, Told};
use crate::peer::{Peer, Peers};
use crate::stage_read::{Links, Source};
use crate::stages::{Plan, Stages};
use crate::wire::{Ended, KEYS, NamedJoin, ToldKeys};

/// The worker of task `task` of stage `stage`, one of `workers`. Stages of few tasks begin at different workers.
#[must_use]
pub fn place(stage: usize, task: usize, workers: usize) -> usize {
    (stage + task) % workers.max(1)
}

/// The planners of a host for queries on several hosts, by their partitions. They keep what they know of tables.
#[derive(Debug)]
pub(crate) struct Planners {
    host: Host,
    made: Mutex<BTreeMap<usize, Planner>>,
}

impl Planners {
    /// Of `host`.
    pub(crate) fn new(host: Host) -> Self {
        Self { host, made: Mutex::default() }
    }

    /// The host.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The planner of plans with this number of partitions.
    pub(crate) fn of(&self, partitions: usize) -> Planner {
        self.made.lock().entry(partitions).or_insert_with(|| self.host.planner().spread(partitions)).clone()
    }
}

/// A text that is equal where the stages are.
#[must_use]
pub fn digest(stages: &Stages) -> String {
    blake3::hash(stages.text().as_bytes()).to_hex().to_string()
}

/// How a host reads from the tasks of a query.
#[derive(Debug)]
pub struct QueryLinks {
    query: Uuid,
    workers: Vec<Arc<Peer>>,
    /// The number of this host, where it is one of the workers, and its part.
    own: Option<(usize, OnceLock<Weak<Part>>)>,
}

impl QueryLinks {
    /// Of `query`, whose workers are at `urls`; this host is number `own` of them, or none.
    #[must_use]
    pub fn new(query: Uuid, peers: &Peers, urls: &[String], own: Option<usize>) -> Arc<Self> {
        let workers = urls.iter().map(|url| peers.get(url)).collect();
        Arc::new(Self { query, workers, own: own.map(|own| (own, OnceLock::new())) })
    }

    /// The id of the query.
    #[must_use]
    pub fn query(&self) -> Uuid {
        self.query
    }

    /// The workers.
    #[must_use]
    pub fn workers(&self) -> &[Arc<Peer>] {
        &self.workers
    }
}

impl QueryLinks {
    /// What all workers that run the join tell of its keys.
    async fn keys(&self, keys: &JoinKeys, runs: Runs) -> Result<Vec<Keys>> {
        let workers: BTreeSet<usize> = (0..runs.tasks).map(|task| place(runs.stage, task, self.workers.len())).collect();
        let asked = workers.into_iter().map(|at| async move {
            if let Some((own, part)) = &self.own
                && *own == at
            {
                let told = part.get().and_then(Weak::upgrade).ok_or_else(ended)?.keys(keys.number)?;
                return Ok(told.await);
            }
            let peer = self.workers.get(at).ok_or_else(|| Error::internal("a stage has no worker"))?;
            peer.act::<ToldKeys>(KEYS, &NamedJoin { query: self.query, join: keys.number }).await?.keys()
        });
        try_join_all(asked).await
    }
}

impl Links for QueryLinks {
    fn read(&self, source: Source) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>> {
        let at = place(source.stage, source.task, self.workers.len());
        if let Some((own, part)) = &self.own
            && *own == at
        {
            let part = part.get().and_then(Weak::upgrade).ok_or_else(|| to_datafusion(ended()))?;
            return Ok(part.read(source).map_err(to_datafusion)?.map(|batch| batch.map_err(to_datafusion)).boxed());
        }
        let peer = self.workers.get(at).ok_or_else(|| to_datafusion(Error::internal("a stage has no worker")))?;
        Ok(peer.read(self.query, source))
    }
}

/// The error of a reader whose query is over here.
pub(crate) fn ended() -> Error {
    Error::unavailable("this worker has no part of the query any more: the host that asked has ended it, or was silent for too long; run the query again")
}

/// A task of this host.
#[derive(Debug)]
struct Task {
    stage: usize,
    number: usize,
    plan: Plan,
    given: Arc<Given>,
    /// The partitions that were asked for.
    begun: Mutex<BTreeSet<usize>>,
}

/// What a task gave.
#[derive(Debug, Default)]
struct Given {
    rows: AtomicU64,
    bytes: AtomicU64,
}

/// The part of a query that this host runs.
pub struct Part {
    own: String,
    tasks: Vec<Task>,
    digest: String,
    context: Arc<TaskContext>,
    collector: Arc<Collector>,
    /// For each scan, how many annotations the plan alone had: the coordinator has made the same.
    before: Vec<usize>,
    heard: Mutex<Instant>,
    /// The number of this worker, and how it reaches the others.
    number: usize,
    links: Arc<QueryLinks>,
    /// The joins that tell their keys, and what those that run here told.
    keys: Vec<JoinKeys>,
    told: Arc<Told>,
    /// When scans of any host stop waiting for keys.
    keys_until: tokio::time::Instant,
    /// Gets the keys that scans here wait for, from the first read on: then all workers have their parts.
    getting: OnceLock<Vec<AbortOnDropHandle<()>>>,
    /// Keeps what the query reads from being deleted.
    _planned: Planned,
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part").field("own", &self.own).field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl Part {
    /// The part of worker `own` in what was `planned`.
    ///
    /// # Errors
    /// Those of operators that do not take their new inputs; `Invalid` for a number that no worker has.
    pub fn new(planned: Planned, links: &Arc<QueryLinks>, own: usize) -> Result<Arc<Self>> {
        let workers = links.workers.len();
        let peer = links.workers.get(own).ok_or_else(|| Error::invalid(format!("worker {own} of {workers}: the first is number 0")))?;
        let stages = Stages::of(&planned.physical, workers, &(Arc::clone(links) as Arc<dyn Links>)).map_err(from_datafusion)?;
        let mut tasks = Vec::new();
        for stage in &stages.stages {
            for task in (0..stage.tasks).filter(|task| place(stage.number, *task, workers) == own) {
                let plan = stage.of_task(task).map_err(from_datafusion)?;
                tasks.push(Task { stage: stage.number, number: task, plan, given: Arc::default(), begun: Mutex::default() });
            }
        }
        let (context, _) = planned.context();
        stages.told.keep_in(context.memory_pool());
        let collector = Arc::clone(planned.collector());
        let before = collector.receipt().scans.iter().map(|scan| scan.annotations.len()).collect();
        let part = Arc::new(Self {
            own: peer.url().to_owned(),
            tasks,
            digest: digest(&stages),
            context,
            collector,
            before,
            heard: Mutex::new(Instant::now()),
            number: own,
            links: Arc::clone(links),
            keys: stages.keys,
            told: stages.told,
            keys_until: tokio::time::Instant::now() + PATIENCE,
            getting: OnceLock::new(),
            _planned: planned,
        });
        if let Some((_, link)) = &links.own {
            // Set once, here.
            let _ = link.set(Arc::downgrade(&part));
        }
        Ok(part)
    }

    /// The digest of the stages.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The host that asked was heard.
    pub(crate) fn touch(&self) {
        *self.heard.lock() = Instant::now();
    }

    /// When the host that asked was last heard.
    pub(crate) fn heard(&self) -> Instant {
        *self.heard.lock()
    }

    /// The keys of the join with this number, once all of its partitions here know theirs. Any value is possible where
    /// they do not in time.
    ///
    /// # Errors
    /// `Invalid` where no such join tells keys.
    pub(crate) fn keys(&self, join: usize) -> Result<BoxFuture<'static, Keys>> {
        let found = self.keys.get(join).and_then(|keys| Some((keys.columns(), keys.runs?)));
        let (columns, runs) = found.ok_or_else(|| Error::invalid(format!("no join {join} tells its keys: run the same version on all hosts")))?;
        let here = (0..runs.tasks).filter(|task| place(runs.stage, *task, self.links.workers.len()) == self.number);
        let partitions: Vec<usize> = here.flat_map(|task| runs.of_task(task)).collect();
        let (told, until) = (Arc::clone(&self.told), self.keys_until);
        let known = async move {
            match told.of(join, &partitions, until).await {
                Some(keys) => told.together(&keys),
                None => vec![None; columns],
            }
        };
        Ok(known.boxed())
    }

    /// Begins to get the keys that scans here wait for.
    fn get_keys(&self) -> Vec<AbortOnDropHandle<()>> {
        let mut waiting = BTreeSet::new();
        self.tasks.iter().for_each(|task| filters_below(task.plan.as_ref(), &mut waiting));
        let wanted = self.keys.iter().filter(|keys| keys.id().is_some_and(|id| waiting.contains(&id)));
        let getting = wanted.filter_map(|keys| {
            let (keys, runs, links) = (keys.clone(), keys.runs?, Arc::clone(&self.links));
            let (told, until) = (Arc::clone(&self.told), self.keys_until);
            Some(AbortOnDropHandle::new(tokio::spawn(async move {
                match tokio::time::timeout_at(until, links.keys(&keys, runs)).await {
                    Ok(Ok(all)) => keys.complete(Some(&told.together(&all))),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "drives do without the keys of a join");
                        keys.complete(None);
                    }
                    Err(_) => {
                        tracing::warn!("the keys of a join did not come within {} s: drives do without them", PATIENCE.as_secs());
                        keys.complete(None);
                    }
                }
            })))
        });
        getting.collect()
    }

    /// The rows of `source`.
    ///
    /// # Errors
    /// `Invalid` for a task of another worker and a partition that there is not, `Unavailable` for one that is asked
    /// for again.
    pub fn read(&self, source: Source) -> Result<BoxStream<'static, Result<RecordBatch>>> {
        let Source { stage, task, partition } = source;
        let found = self.tasks.iter().find(|own| own.stage == stage && own.number == task);
        let found = found.ok_or_else(|| Error::invalid(format!("{} does not run task {task} of stage {stage}: ask the worker that does", self.own)))?;
        let partitions = found.plan.output_partitioning().partition_count();
        if partition >= partitions {
            return Err(Error::invalid(format!("stage {stage} has no partition {partition}: it has {partitions}, from number 0 on")));
        }
        if !found.begun.lock().insert(partition) {
            // A connection may have broken after the question had arrived.
            return Err(Error::unavailable(format!("partition {partition} of task {task} of stage {stage} was given already: run the query again")));
        }
        self.getting.get_or_init(|| self.get_keys());
        let memory = Arc::clone(self.context.memory_pool());
        let rows = found.plan.execute(partition, Arc::clone(&self.context)).map_err(|e| host_error(e, memory.as_ref()))?;
        let given = Arc::clone(&found.given);
        let counted = rows.map(move |batch| {
            let batch = batch.map_err(|e| host_error(e, memory.as_ref()))?;
            given.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
            given.bytes.fetch_add(batch_bytes(&batch), Ordering::Relaxed);
            Ok(batch)
        });
        Ok(counted.boxed())
    }

    /// The columns of `stage`.
    ///
    /// # Errors
    /// `Invalid` where this worker runs no task of the stage.
    pub fn schema(&self, stage: usize) -> Result<arrow::datatypes::SchemaRef> {
        let found = self.tasks.iter().find(|own| own.stage == stage);
        found.map(|task| task.plan.schema()).ok_or_else(|| Error::invalid(format!("{} runs no task of stage {stage}: ask the worker that does", self.own)))
    }

    /// A figure that grows while the part does anything.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.tasks.iter().map(|task| work(task.plan.as_ref()).0).fold(0, u64::wrapping_add)
    }

    /// What it did.
    #[must_use]
    pub fn figures(&self) -> Ended {
        let scans = self.collector.receipt().scans.into_iter().enumerate();
        let scans = scans.map(|(at, scan)| scan.annotations.into_iter().skip(self.before.get(at).copied().unwrap_or(0)).collect());
        let task = |task: &Task| {
            let (rows, bytes) = (task.given.rows.load(Ordering::Relaxed), task.given.bytes.load(Ordering::Relaxed));
            (task.stage, TaskReceipt { worker: self.own.clone(), rows, bytes, seconds: work(task.plan.as_ref()).1 })
        };
        Ended { known: true, scans: scans.collect(), tasks: self.tasks.iter().map(task).collect() }
    }
}

/// The ids of the filters of joins that scans in `plan` wait for.
fn filters_below(plan: &dyn ExecutionPlan, ids: &mut BTreeSet<u64>) {
    if let Some(scan) = plan.downcast_ref::<DriveScanExec>() {
        ids.extend(scan.filters().iter().filter_map(|filter| filter.expression_id()));
    }
    plan.children().into_iter().for_each(|child| filters_below(child.as_ref(), ids));
}

/// A figure that grows with each row, byte put on disk and moment of work of `plan` and below, and its seconds.
fn work(plan: &dyn ExecutionPlan) -> (u64, f64) {
    let own = plan.metrics().map_or((0, 0.0), |metrics| {
        let (rows, nanos) = (metrics.output_rows().unwrap_or(0) as u64, metrics.elapsed_compute().unwrap_or(0) as u64);
        let on_disk = metrics.spilled_bytes().unwrap_or(0) as u64;
        (rows.wrapping_add(nanos).wrapping_add(on_disk), nanos as f64 / 1e9)
    });
    plan.children().into_iter().map(|child| work(child.as_ref())).fold(own, |sum, one| (sum.0.wrapping_add(one.0), sum.1 + one.1))
}
