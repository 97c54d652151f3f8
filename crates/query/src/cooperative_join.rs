//! Joins that yield to other tasks.
//!
//! A join may look at billions of pairs before it has a row to give, all within one poll. A caller that wants to cancel
//! the query, and any other task of the same thread, waits for that poll. So the inputs and the output of joins pass
//! through [`YieldingJoinExec`], which yields every [`TURN`]. Joins that compare every pair get at most [`PAIRS`] of
//! them at a time.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, Statistics, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec, SymmetricHashJoinExec};
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions};
use futures::{Stream, StreamExt};
use skytether_plan::physical_rule::PhysicalRule;

/// How long a query keeps a thread.
const TURN: Duration = Duration::from_millis(20);

/// Pairs of rows that a nested loop compares in one go: some tens of milliseconds.
const PAIRS: usize = 8_000_000;

/// Puts [`YieldingJoinExec`] around joins.
pub(crate) fn take_turns() -> Arc<PhysicalRule> {
    PhysicalRule::new("take_turns", |node| if is_join(node.as_ref()) { around(node).map(Some) } else { Ok(None) })
}

fn is_join(node: &dyn ExecutionPlan) -> bool {
    node.is::<HashJoinExec>()
        || node.is::<NestedLoopJoinExec>()
        || node.is::<CrossJoinExec>()
        || node.is::<SortMergeJoinExec>()
        || node.is::<PiecewiseMergeJoinExec>()
        || node.is::<SymmetricHashJoinExec>()
}

fn around(join: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let inputs: Vec<_> = join.children().into_iter().map(Arc::clone).collect();
    let inputs = match <[_; 2]>::try_from(inputs) {
        Ok([kept, probe]) if join.is::<NestedLoopJoinExec>() => {
            let rows = Arc::new(AtomicUsize::new(0));
            vec![YieldingJoinExec::new(kept, Part::Kept(Arc::clone(&rows))), YieldingJoinExec::new(probe, Part::Probe(rows))]
        }
        Ok(both) => both.into_iter().map(|input| YieldingJoinExec::new(input, Part::Whole)).collect(),
        Err(other) => return internal_err!("a join of {} inputs", other.len()),
    };
    Ok(YieldingJoinExec::new(Arc::clone(join).replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))?, Part::Whole))
}

/// What a join does with the rows.
#[derive(Debug, Clone)]
enum Part {
    /// Takes them as they come.
    Whole,
    /// Keeps them all, this many.
    Kept(Arc<AtomicUsize>),
    /// Compares each with all that are kept.
    Probe(Arc<AtomicUsize>),
}

/// Passes its input's batches on, and yields from time to time.
#[derive(Debug)]
struct YieldingJoinExec {
    input: Arc<dyn ExecutionPlan>,
    part: Part,
}

impl YieldingJoinExec {
    #[expect(clippy::new_ret_no_self, reason = "used as a plan only")]
    fn new(input: Arc<dyn ExecutionPlan>, part: Part) -> Arc<dyn ExecutionPlan> {
        // A join that is an input of another has its turns already; only the counted ones are more than that.
        if matches!(part, Part::Whole) && input.is::<Self>() {
            return input;
        }
        Arc::new(Self { input, part })
    }
}

impl DisplayAs for YieldingJoinExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YieldingJoinExec")
    }
}

impl ExecutionPlan for YieldingJoinExec {
    fn name(&self) -> &str {
        "YieldingJoinExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(Self { input, part: self.part.clone() })),
            Err(other) => internal_err!("YieldingJoinExec has one input, not {}", other.len()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if let Part::Kept(rows) = &self.part {
            // A recursive query runs its plan again and again.
            rows.store(0, Ordering::Relaxed);
        }
        let input = self.input.execute(partition, context)?;
        Ok(Box::pin(Turns { input, part: self.part.clone(), began: Instant::now(), rest: None }))
    }

    fn child_stats_requests(&self, partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(partition)]
    }

    fn statistics_from_inputs(&self, inputs: &[Arc<Statistics>], _: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::clone(&inputs[0]))
    }
}

struct Turns {
    input: SendableRecordBatchStream,
    part: Part,
    began: Instant,
    /// The rest of a batch that is returned in pieces.
    rest: Option<RecordBatch>,
}

impl Turns {
    /// The next piece of `batch`; the others stay.
    fn piece(&mut self, batch: RecordBatch) -> RecordBatch {
        let rows = match &self.part {
            Part::Whole => return batch,
            Part::Kept(kept) => {
                kept.fetch_add(batch.num_rows(), Ordering::Relaxed);
                return batch;
            }
            Part::Probe(kept) => (PAIRS / kept.load(Ordering::Relaxed).max(1)).max(1),
        };
        if batch.num_rows() <= rows {
            return batch;
        }
        self.rest = Some(batch.slice(rows, batch.num_rows() - rows));
        batch.slice(0, rows)
    }
}

impl Stream for Turns {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.began.elapsed() >= TURN {
            self.began = Instant::now();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = match self.rest.take() {
            Some(rest) => Some(Ok(rest)),
            None => std::task::ready!(self.input.poll_next_unpin(cx)),
        };
        Poll::Ready(next.map(|batch| batch.map(|batch| self.piece(batch))))
    }
}

impl RecordBatchStream for Turns {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::execution::session_state::SessionStateBuilder;
    use datafusion::prelude::SessionContext;

    fn session() -> SessionContext {
        SessionContext::new_with_state(SessionStateBuilder::new_with_default_features().with_physical_optimizer_rule(take_turns()).build())
    }

    /// Endless work that gives no row can be stopped, and others have their turn meanwhile, on one thread.
    #[tokio::test]
    async fn a_join_without_rows_lets_go() {
        let numbers = |name: &str| format!("(SELECT value AS v FROM range(20000)) {name}");
        let queries = [
            // All pairs.
            format!("SELECT count(*) FROM {} , {} , {} WHERE a.v + b.v + c.v < 0", numbers("a"), numbers("b"), numbers("c")),
            // All pairs of one key.
            format!(
                "SELECT count(*) FROM {} JOIN {} ON a.v % 1 = b.v % 1 JOIN {} ON a.v % 1 = c.v % 1 WHERE a.v * b.v * c.v < 0",
                numbers("a"),
                numbers("b"),
                numbers("c")
            ),
            // All pairs, with those that found none.
            format!(
                "SELECT count(*) FROM {} FULL JOIN {} ON a.v > b.v + 30000 FULL JOIN {} ON a.v + b.v < c.v - 90000",
                numbers("a"),
                numbers("b"),
                numbers("c")
            ),
        ];
        for sql in queries {
            let frame = session().sql(&sql).await.unwrap();
            let work = tokio::spawn(frame.collect());
            for _ in 0..5 {
                // On a thread that is not given back this would never return.
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            let ended = work.is_finished();
            work.abort();
            let end = tokio::time::timeout(Duration::from_secs(20), work).await.expect("a turn ends");
            assert!(!ended && end.unwrap_err().is_cancelled(), "{sql}");
        }
    }

    #[tokio::test]
    async fn pieces_make_the_whole() {
        let count = |sql: &'static str| async move { session().sql(sql).await.unwrap().collect().await.unwrap() };
        let pairs = count("SELECT count(*) FROM range(9000) a JOIN range(9000) b ON a.value + b.value < 5000 AND a.value * b.value >= 0").await;
        let pairs = pairs[0].column(0).as_any().downcast_ref::<arrow::array::Int64Array>().unwrap().value(0);
        assert_eq!(pairs, 5000 * 5001 / 2);
    }
}
