use std::sync::atomic::AtomicBool;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, col, lit};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::filter_pushdown::FilterPushdown;
use datafusion::physical_optimizer::limit_pushdown::LimitPushdown;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions, collect, displayable};
use futures::future::join_all;
use skytether_common::Kind;
use skytether_plan::error::from_datafusion;

use super::*;

/// Batches of 1000 numbers each, in order, which take 8000 bytes.
#[derive(Debug, Default)]
struct Numbers {
    batches: i64,
    /// What comes after them.
    end: End,
    runs: AtomicUsize,
    stopped: Arc<AtomicBool>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum End {
    #[default]
    Plain,
    Error,
    Never,
}

/// Tells that it was dropped.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn batch(at: i64) -> RecordBatch {
    RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from_iter_values(at * 1000..(at + 1) * 1000)) as ArrayRef)]).unwrap()
}

impl PartitionStream for Numbers {
    fn schema(&self) -> &SchemaRef {
        static SCHEMA: OnceLock<SchemaRef> = OnceLock::new();
        SCHEMA.get_or_init(|| batch(0).schema())
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        self.runs.fetch_add(1, Ordering::Relaxed);
        let rows = stream::iter(0..self.batches).map(|at| Ok(batch(at)));
        // Each batch comes with a poll of its own.
        let rows = rows.then(|batch| async {
            tokio::task::yield_now().await;
            batch
        });
        let ends = Ends(Arc::clone(&self.stopped));
        let rows = match self.end {
            End::Plain => rows.boxed(),
            End::Error => rows.chain(stream::once(async { Err(to_datafusion(Error::corrupt("slice 7 is damaged; scrub the fleet"))) })).boxed(),
            End::Never => rows
                .chain(stream::pending())
                .inspect(move |_| {
                    let _held = &ends;
                })
                .boxed(),
        };
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.schema()), rows))
    }
}

/// Several readers of `numbers`, and a query whose shared results may keep `limit` bytes. The first reader has the
/// input.
fn readers(count: usize, numbers: &Arc<Numbers>, limit: usize) -> (Vec<Arc<dyn ExecutionPlan>>, Arc<TaskContext>) {
    let schema = Arc::clone(numbers.schema());
    let input = StreamingTableExec::try_new(Arc::clone(&schema), vec![Arc::clone(numbers) as _], None, None, false, None).unwrap();
    let result = Arc::new(SharedResult::new(1, count, Arc::default()));
    let reader = |at: usize| -> Arc<dyn ExecutionPlan> {
        let input = (at == 0).then(|| Arc::new(input.clone()) as Arc<dyn ExecutionPlan>);
        Arc::new(SharedResultExec::new(Arc::clone(&result), input, Arc::clone(&schema)))
    };
    let readers: Vec<_> = (0..count).map(reader).collect();
    bind(readers[0].as_ref());
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::new(GreedyMemoryPool::new(8 * limit))).build_arc().unwrap();
    (readers, Arc::new(TaskContext::default().with_runtime(runtime)))
}

fn all(batches: &[RecordBatch]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

/// Lets other tasks run until `done`, or for ten seconds.
async fn until(done: impl Fn() -> bool) -> bool {
    let wait = async {
        while !done() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.is_ok()
}

#[tokio::test]
async fn readers_in_any_order_replay_one_run() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let numbers = Arc::new(Numbers { batches: 5, ..Numbers::default() });
        let (readers, context) = readers(3, &numbers, 1 << 20);
        // All are there before the first one reads, as the sides of joins are.
        let mut streams: Vec<_> = readers.iter().map(|reader| Some(reader.execute(0, Arc::clone(&context)).unwrap())).collect();
        for (read, at) in order.into_iter().enumerate() {
            let rows: Vec<_> = streams[at].take().unwrap().try_collect().await.unwrap();
            assert_eq!(all(&rows), (0..5000).collect::<Vec<_>>());
            assert_eq!(readers[at].metrics().unwrap().output_rows(), Some(5000));
            let kept = if read < 2 { 40_000 } else { 0 };
            assert_eq!(context.memory_pool().reserved(), kept, "kept for the readers to come");
        }
        assert_eq!(numbers.runs.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn too_large_results_are_read_whole_by_each_reader() {
    let numbers = Arc::new(Numbers { batches: 10, ..Numbers::default() });
    let (several, context) = readers(3, &numbers, 20_000);
    let read = several.iter().map(|reader| collect(Arc::clone(reader), Arc::clone(&context)));
    for rows in join_all(read).await {
        assert_eq!(all(&rows.unwrap()), (0..10_000).collect::<Vec<_>>());
    }
    assert_eq!(numbers.runs.load(Ordering::Relaxed), 3, "the first run goes on, and each other reader has its own");
    assert_eq!(context.memory_pool().reserved(), 0);
    let (several, context) = readers(2, &numbers, 20_000);
    for reader in several {
        assert_eq!(all(&collect(reader, Arc::clone(&context)).await.unwrap()).len(), 10_000, "one after the other");
    }
}

#[tokio::test]
async fn results_of_one_query_share_the_limit() {
    let numbers = Arc::new(Numbers { batches: 5, ..Numbers::default() });
    let (readers, context) = readers(2, &numbers, 60_000);
    let memory = Memory::new(context.memory_pool(), Arc::default());
    let (all_kept, limit) = (Arc::clone(&memory.all), memory.limit);
    let mut first = Memory::new(context.memory_pool(), Arc::clone(&all_kept));
    let mut second = Memory::new(context.memory_pool(), Arc::clone(&all_kept));
    assert!(limit == 60_000 && first.take(40_000) && !second.take(40_000) && second.take(20_000));
    drop(first);
    assert!(second.take(40_000));
    drop((second, memory));
    assert_eq!((all_kept.load(Ordering::Relaxed), context.memory_pool().reserved()), (0, 0));
    drop(readers);
}

#[tokio::test]
async fn a_dropped_reader_stops_no_other() {
    let numbers = Arc::new(Numbers { batches: 5, ..Numbers::default() });
    let (readers, context) = readers(3, &numbers, 1 << 20);
    let mut left = readers[0].execute(0, Arc::clone(&context)).unwrap();
    let other = readers[1].execute(0, Arc::clone(&context)).unwrap();
    assert!(left.next().now_or_never().is_none(), "the run has begun");
    let other = tokio::spawn(other.try_collect::<Vec<_>>());
    assert!(until(|| readers[1].metrics().is_some() && numbers.runs.load(Ordering::Relaxed) == 1).await);
    drop(left);
    assert_eq!(all(&other.await.unwrap().unwrap()).len(), 5000);
    assert_eq!(all(&collect(Arc::clone(&readers[2]), context).await.unwrap()).len(), 5000);
}

#[tokio::test]
async fn a_reader_that_leaves_early_loses_no_row_of_others() {
    for limit in [20_000, 1 << 20] {
        let numbers = Arc::new(Numbers { batches: 10, ..Numbers::default() });
        let (readers, context) = readers(2, &numbers, limit);
        let mut left = readers[1].execute(0, Arc::clone(&context)).unwrap();
        assert_eq!(left.next().await.unwrap().unwrap().num_rows(), 1000);
        drop(left);
        assert_eq!(all(&collect(Arc::clone(&readers[0]), Arc::clone(&context)).await.unwrap()), (0..10_000).collect::<Vec<_>>());
        assert_eq!(context.memory_pool().reserved(), 0);
    }
}

#[tokio::test]
async fn the_input_stops_when_nobody_waits() {
    let numbers = Arc::new(Numbers { batches: 2, end: End::Never, ..Numbers::default() });
    let (readers, context) = readers(2, &numbers, 1 << 20);
    let mut streams: Vec<_> = readers.iter().map(|reader| reader.execute(0, Arc::clone(&context)).unwrap()).collect();
    for stream in &mut streams {
        assert!(stream.next().now_or_never().is_none());
    }
    let pool = Arc::clone(context.memory_pool());
    assert!(until(|| pool.reserved() == 16_000).await, "both batches are kept");
    assert!(!numbers.stopped.load(Ordering::Relaxed));
    drop(streams);
    assert!(until(|| numbers.stopped.load(Ordering::Relaxed) && pool.reserved() == 0).await);
}

#[tokio::test]
async fn an_error_reaches_all_readers_with_its_kind() {
    let numbers = Arc::new(Numbers { batches: 2, end: End::Error, ..Numbers::default() });
    let (readers, context) = readers(3, &numbers, 1 << 20);
    let early = readers[..2].iter().map(|reader| collect(Arc::clone(reader), Arc::clone(&context)));
    let mut ends = join_all(early).await;
    ends.push(collect(Arc::clone(&readers[2]), Arc::clone(&context)).await);
    for end in ends {
        let error = from_datafusion(end.unwrap_err());
        assert_eq!((error.kind(), error.to_string().as_str()), (Kind::Corrupt, "slice 7 is damaged; scrub the fleet"));
    }
    assert_eq!((numbers.runs.load(Ordering::Relaxed), context.memory_pool().reserved()), (1, 0));
}

#[tokio::test]
async fn filters_and_limits_stay_above() {
    let numbers = Arc::new(Numbers { batches: 1, ..Numbers::default() });
    let (readers, _) = readers(2, &numbers, 1 << 20);
    for reader in readers {
        let large = Arc::new(BinaryExpr::new(col("n", &reader.schema()).unwrap(), Operator::Gt, lit(5i64)));
        let below: Vec<Arc<dyn ExecutionPlan>> =
            reader.children().into_iter().map(|input| Arc::new(FilterExec::try_new(lit(true), Arc::clone(input)).unwrap()) as _).collect();
        let reader = reader.replace_children(below, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute)).unwrap();
        let filter = Arc::new(FilterExec::try_new(large, reader).unwrap());
        let plan: Arc<dyn ExecutionPlan> = Arc::new(GlobalLimitExec::new(filter, 0, Some(3)));
        let config = ConfigOptions::default();
        let rules: [&dyn PhysicalOptimizerRule; 3] = [&FilterPushdown::new(), &FilterPushdown::new_post_optimization(), &LimitPushdown::new()];
        let plan = rules.iter().fold(plan, |plan, rule| rule.optimize(plan, &config).unwrap());
        let text = displayable(plan.as_ref()).indent(false).to_string();
        let (above, below) = text.split_once("SharedResultExec").unwrap();
        assert!(above.contains("n@0 > 5") && above.contains("fetch=3"), "{text}");
        assert!(!below.contains("n@0 > 5") && !below.contains("fetch"), "{text}");
    }
}
