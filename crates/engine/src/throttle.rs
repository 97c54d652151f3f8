//! Operators that poll their inputs on tasks of their own must pay for a device's cores themselves. The task that polls
//! the root of the plan does not see that work.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties, ReplaceChildrenOptions};
use skytether_emulation::{Processor, paced};

/// `plan` with a [`ThrottledExec`] wherever work goes to another task; as it is where there are no cores to pay.
///
/// # Errors
/// DataFusion's, where an operator does not take its own input back.
pub(crate) fn throttled(plan: Arc<dyn ExecutionPlan>, processor: Option<Arc<Processor>>) -> DfResult<Arc<dyn ExecutionPlan>> {
    let Some(processor) = processor else { return Ok(plan) };
    let wrap = |node: Arc<dyn ExecutionPlan>| {
        if !(node.is::<RepartitionExec>() || node.is::<CoalescePartitionsExec>() || node.is::<SortPreservingMergeExec>()) {
            return Ok(Transformed::no(node));
        }
        let inputs: Vec<Arc<dyn ExecutionPlan>> =
            node.children().into_iter().map(|input| Arc::new(ThrottledExec { input: Arc::clone(input), processor: Arc::clone(&processor) }) as _).collect();
        Ok(Transformed::yes(node.replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))?))
    };
    Ok(plan.transform_up(wrap)?.data)
}

/// Runs its input on the cores of a device. Annotations leave this operator out.
#[derive(Debug)]
pub(crate) struct ThrottledExec {
    input: Arc<dyn ExecutionPlan>,
    processor: Arc<Processor>,
}

impl DisplayAs for ThrottledExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThrottledExec")
    }
}

impl ExecutionPlan for ThrottledExec {
    fn name(&self) -> &'static str {
        "ThrottledExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn with_new_children(self: Arc<Self>, mut inputs: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        match inputs.pop() {
            Some(input) => Ok(Arc::new(Self { input, processor: Arc::clone(&self.processor) })),
            None => Ok(self),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        let schema = rows.schema();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, paced(Some(Arc::clone(&self.processor)), rows).stream())))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::datatypes::{Schema, SchemaRef};
    use arrow::record_batch::RecordBatch;
    use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
    use futures::{StreamExt, stream};
    use parking_lot::Mutex;
    use skytether_emulation::processor::thread_time;
    use skytether_scheduler::profile::Profile;

    use super::*;

    /// Works for two milliseconds of processor time, and returns the measured time.
    #[derive(Debug)]
    struct Busy {
        schema: SchemaRef,
        spent: Arc<Mutex<Duration>>,
    }

    impl PartitionStream for Busy {
        fn schema(&self) -> &SchemaRef {
            &self.schema
        }

        fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
            let (schema, spent) = (Arc::clone(&self.schema), Arc::clone(&self.spent));
            let rows = stream::iter([()]).map(move |()| {
                let before = thread_time();
                while thread_time() - before < Duration::from_millis(2) {
                    std::hint::black_box((0..1000u64).sum::<u64>());
                }
                *spent.lock() += thread_time() - before;
                Ok(RecordBatch::new_empty(Arc::clone(&schema)))
            });
            Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), rows))
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_on_other_tasks_is_paid_for_once() {
        let (schema, spent) = (Arc::new(Schema::empty()), Arc::new(Mutex::new(Duration::ZERO)));
        let partitions = (0..3).map(|_| Arc::new(Busy { schema: Arc::clone(&schema), spent: Arc::clone(&spent) }) as _).collect();
        let scan = StreamingTableExec::try_new(Arc::clone(&schema), partitions, None, [], false, None).unwrap();
        let plan: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(Arc::new(scan)));
        assert!(Arc::ptr_eq(&plan, &throttled(Arc::clone(&plan), None).unwrap()), "nothing without a device");
        let profile = Profile { speed_per_core: 0.25, cores: 1, ..Profile::shipped("server").unwrap() };
        let processor = Arc::new(Processor::new(&profile));
        let throttled = throttled(plan, Some(Arc::clone(&processor))).unwrap();
        // The root pays as well, as that of a sub-plan does.
        let rows = datafusion::physical_plan::execute_stream(throttled, Arc::new(TaskContext::default())).unwrap();
        let came: Vec<DfResult<RecordBatch>> = paced(Some(Arc::clone(&processor)), rows).stream().collect().await;
        assert!(came.len() == 3 && came.iter().all(Result::is_ok), "{came:?}");
        let (busy, spent) = (processor.accounted().busy, *spent.lock());
        assert!(spent >= Duration::from_millis(6) && busy >= spent * 4, "{busy:?} for {spent:?}");
        assert!(busy < spent * 6, "{busy:?} for {spent:?}");
    }
}
