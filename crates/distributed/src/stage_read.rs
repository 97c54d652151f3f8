//! The operator that reads what a stage gives, and the one that hands a stage only the partitions of its task.

use std::fmt;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as DfResult, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, Partitioning, PhysicalExpr};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};
use futures::stream::BoxStream;
use futures::{StreamExt, stream};

use crate::stages::{Exchange, Plan};

/// One partition of what one task of a stage gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source {
    /// The stage's number.
    pub stage: usize,
    /// The task's number within the stage.
    pub task: usize,
    /// The partition's number.
    pub partition: usize,
}

/// How a host reads from tasks, its own among them.
pub trait Links: Send + Sync + fmt::Debug {
    /// The rows of `source`. The stream ends with an error unless it gave every row.
    ///
    /// # Errors
    /// Those of a task of this host that can't start.
    fn read(&self, source: Source) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>>;
}

/// Reads what the tasks of a stage give.
pub struct StageReadExec {
    stage: usize,
    tasks: usize,
    exchange: Exchange,
    links: Arc<dyn Links>,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl StageReadExec {
    /// A reader with the `properties` of the stage's last operator.
    pub(crate) fn new(stage: usize, tasks: usize, exchange: Exchange, links: Arc<dyn Links>, properties: Arc<PlanProperties>) -> Self {
        Self { stage, tasks, exchange, links, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// What has to be read for `partition`.
    fn sources(&self, partition: usize) -> Vec<Source> {
        let of = |task| Source { stage: self.stage, task, partition };
        match self.exchange {
            Exchange::Hash => (0..self.tasks).map(of).collect(),
            Exchange::Pass => vec![of(partition % self.tasks)],
        }
    }
}

impl fmt::Debug for StageReadExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageReadExec").field("stage", &self.stage).field("tasks", &self.tasks).finish_non_exhaustive()
    }
}

impl DisplayAs for StageReadExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partitions = self.properties.output_partitioning().partition_count();
        write!(f, "StageReadExec: stage={}, tasks={}, partitions={partitions}", self.stage, self.tasks)
    }
}

impl ExecutionPlan for StageReadExec {
    fn name(&self) -> &str {
        "StageReadExec"
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

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let mut streams = self.sources(partition).into_iter().map(|source| self.links.read(source)).collect::<DfResult<Vec<_>>>()?;
        let rows = match streams.pop() {
            // One alone keeps its order.
            Some(only) if streams.is_empty() => only,
            Some(last) => {
                streams.push(last);
                stream::select_all(streams).boxed()
            }
            None => stream::empty().boxed(),
        };
        let metrics = BaselineMetrics::new(&self.metrics, partition);
        let counted = rows.map(move |batch| batch.record_output(&metrics));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), counted)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}

/// Gives only some partitions of its input, numbered from 0.
#[derive(Debug)]
pub(crate) struct PickExec {
    input: Plan,
    own: Vec<usize>,
    properties: Arc<PlanProperties>,
}

impl PickExec {
    pub(crate) fn new(input: Plan, own: Vec<usize>) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(input.schema()),
            Partitioning::UnknownPartitioning(own.len()),
            input.pipeline_behavior(),
            input.boundedness(),
        );
        Self { input, own, properties: Arc::new(properties) }
    }
}

impl DisplayAs for PickExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PickExec: partitions={:?}", self.own)
    }
}

impl ExecutionPlan for PickExec {
    fn name(&self) -> &str {
        "PickExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self::new(input, self.own.clone()))),
            Err(other) => internal_err!("PickExec has one input, not {}", other.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        match self.own.get(partition) {
            Some(own) => self.input.execute(*own, context),
            None => internal_err!("partition {partition} of {} was asked for", self.own.len()),
        }
    }
}
