//! Plans cut into stages and run by several tasks give what one process gives, whatever the numbers of workers and
//! partitions. The workers are in one process here; python/tests/test_several_hosts.py has them as processes.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, Int64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::Result as DfResult;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use futures::StreamExt;
use futures::stream::BoxStream;
use skytether_distributed::part::place;
use skytether_distributed::stage_read::{Links, Source};
use skytether_distributed::stages::{Plan, Stages};

const QUERIES: [&str; 8] = [
    "SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k ORDER BY k",
    "SELECT a.k, count(*) AS n, sum(a.v * b.v) AS s FROM t a JOIN t b ON a.k = b.k GROUP BY a.k ORDER BY a.k",
    "SELECT a.v, b.v FROM t a FULL JOIN (SELECT * FROM t WHERE v < 40) b ON a.v = b.v + 3 ORDER BY a.v, b.v",
    "SELECT v, k FROM t ORDER BY k, v DESC LIMIT 17",
    "SELECT v, sum(v) OVER (PARTITION BY k ORDER BY v) AS s FROM t ORDER BY v",
    "SELECT k, n FROM (SELECT k, count(*) AS n FROM t GROUP BY k) WHERE n >= (SELECT avg(k) FROM t) ORDER BY k",
    "SELECT count(*) AS n FROM (SELECT v FROM t WHERE v % 2 = 0 UNION ALL SELECT k FROM t) x JOIN t ON x.v = t.v",
    "SELECT count(*) AS n, count(DISTINCT s.v) AS d FROM t JOIN (SELECT v FROM t LIMIT 9) s ON t.v = s.v",
];

/// Workers that read from one another.
#[derive(Debug, Default)]
struct Workers {
    tasks: Vec<OnceLock<HashMap<(usize, usize), Plan>>>,
    context: OnceLock<SessionContextOf>,
}

/// A session without a form for debugging.
struct SessionContextOf(SessionContext);

impl std::fmt::Debug for SessionContextOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SessionContext")
    }
}

impl Links for Workers {
    fn read(&self, source: Source) -> DfResult<BoxStream<'static, DfResult<RecordBatch>>> {
        let at = place(source.stage, source.task, self.tasks.len());
        let plan = &self.tasks[at].get().unwrap()[&(source.stage, source.task)];
        Ok(plan.execute(source.partition, self.context.get().unwrap().0.task_ctx())?.boxed())
    }
}

/// A table of 200 rows in `partitions` partitions, some of them empty.
fn session(partitions: usize, target: usize) -> SessionContext {
    let schema = Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, false), Field::new("v", DataType::Int64, false)]));
    let part = |at: usize| {
        let rows: Vec<i64> = (0..200).filter(|row| (row * 7 % 11) as usize % partitions == at).collect();
        let columns: [ArrayRef; 2] = [Arc::new(Int64Array::from_iter_values(rows.iter().map(|v| v % 13))), Arc::new(Int64Array::from(rows.clone()))];
        vec![RecordBatch::try_new(Arc::clone(&schema), columns.to_vec()).unwrap()]
    };
    let table = MemTable::try_new(Arc::clone(&schema), (0..partitions).map(part).collect()).unwrap();
    let mut config = SessionConfig::new().with_target_partitions(target);
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.enable_round_robin_repartition = false;
    optimizer.hash_join_single_partition_threshold = 0;
    optimizer.hash_join_single_partition_threshold_rows = 0;
    optimizer.enable_join_dynamic_filter_pushdown = false;
    optimizer.enable_topk_dynamic_filter_pushdown = false;
    let context = SessionContext::new_with_config(config);
    context.register_table("t", Arc::new(table)).unwrap();
    context
}

async fn planned(context: &SessionContext, sql: &str) -> Plan {
    context.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

#[tokio::test]
async fn no_row_is_lost_for_any_workers_and_partitions() {
    let mut spread = 0;
    for workers in 1..=7 {
        for partitions in 1..=7 {
            for sql in QUERIES {
                let context = session(partitions, workers * 2);
                let wanted = collect(planned(&context, sql).await, context.task_ctx()).await.unwrap();

                let links = Arc::new(Workers { tasks: (0..workers).map(|_| OnceLock::new()).collect(), context: OnceLock::new() });
                links.context.set(SessionContextOf(context.clone())).unwrap();
                let all: Arc<dyn Links> = Arc::clone(&links) as _;
                for worker in 0..workers {
                    // Each plans for itself.
                    let stages = Stages::of(&planned(&context, sql).await, workers, &all).unwrap().stages;
                    let own = stages.iter().flat_map(|stage| (0..stage.tasks).map(move |task| (stage, task)));
                    let own = own.filter(|(stage, task)| place(stage.number, *task, workers) == worker);
                    links.tasks[worker].set(own.map(|(stage, task)| ((stage.number, task), stage.of_task(task).unwrap())).collect()).unwrap();
                }
                let cut = Stages::of(&planned(&context, sql).await, workers, &all).unwrap();
                spread += usize::from(cut.stages.iter().any(|stage| stage.tasks > 1));
                assert!(cut.stages.iter().all(|stage| (1..=workers).contains(&stage.tasks)), "{}", cut.described());
                let text = cut.described();
                let found = collect(cut.root, context.task_ctx()).await.unwrap();
                let shown = |batches: &[RecordBatch]| pretty_format_batches(batches).unwrap().to_string();
                assert_eq!(shown(&found), shown(&wanted), "{sql} on {workers} workers in {partitions} partitions\n{text}");
            }
        }
    }
    assert!(spread >= 200, "{spread} of {} plans had tasks for several workers", 7 * 7 * QUERIES.len());
}

#[tokio::test]
async fn value_of_a_subquery_stays_with_what_computes_it() {
    let context = session(3, 4);
    let all: Arc<dyn Links> = Arc::new(Workers::default());
    let cut = Stages::of(&planned(&context, QUERIES[5]).await, 2, &all).unwrap();
    // The groups are counted by the workers; the comparison with the value is the host's.
    assert!(cut.stages.len() >= 2, "{}", cut.described());
    assert!(cut.stages.iter().all(|stage| !text(&stage.plan).contains("FilterExec")), "{}", cut.described());
    assert!(text(&cut.root).contains("ScalarSubqueryExec") || text(&cut.root).contains("Join"), "{}", cut.described());
}

fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    datafusion::physical_plan::displayable(plan.as_ref()).indent(false).to_string()
}
