use super::*;
use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::catalog::{MemTable, Session};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::TableType;
use datafusion::prelude::SessionContext;
use parking_lot::Mutex;

async fn list(of: impl Fn(usize) -> String, rest: &str) -> (LogicalPlan, SessionState) {
    let context = SessionContext::new();
    let columns = (0..300i64).map(|c| (format!("c{c}"), Arc::new(Int64Array::from_iter_values(0..c % 3 + 20).slice(0, 20)) as ArrayRef));
    context.register_batch("t", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
    let calls: Vec<_> = (0..240).map(of).collect();
    let plan = context.sql(&format!("SELECT {} FROM t{rest}", calls.join(", "))).await.unwrap().into_optimized_plan().unwrap();
    (plan, context.state())
}

#[tokio::test]
async fn long_lists_of_known_functions_are_shared_without_their_table() {
    let (plan, base) = list(|c| format!("sum(c{c}) AS s{c}"), " GROUP BY c1").await;
    let shared = Shared::of(&plan, &base).unwrap().unwrap();
    assert_eq!(shared.logical.schema(), plan.schema());
    assert_eq!(shared.logical.display_indent().to_string(), plan.display_indent().to_string());
    let Some(LogicalPlan::TableScan(scan)) = leaf(&shared.logical) else { panic!("no scan") };
    assert!(source_as_provider(&scan.source).is_err(), "the table is kept");
}

#[tokio::test]
async fn other_plans_are_not_shared() {
    let (plan, base) = list(|c| format!("sum(c{c}) AS s{c}"), "").await;
    // A function that a session has and others have not: it may know something of its own.
    let without = SessionStateBuilder::new_from_existing(base.clone()).with_aggregate_functions(vec![]).build();
    assert!(without.aggregate_functions().is_empty());
    assert!(Shared::of(&plan, &without).unwrap().is_none());
    // The table of these tests takes no conditions: the rules know what that means.
    for rest in [" WHERE c1 > 3", " LIMIT 2"] {
        let (plan, base) = list(|c| format!("c{c} + 1 AS x{c}"), rest).await;
        assert!(Shared::of(&plan, &base).unwrap().is_none(), "{rest}");
    }
}

/// A table that takes conditions as hints, and remembers those that its scans were given.
#[derive(Debug)]
struct Hinted {
    rows: MemTable,
    given: Arc<Mutex<Vec<Vec<String>>>>,
}

#[async_trait]
impl TableProvider for Hinted {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DfResult<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(&self, state: &dyn Session, projection: Option<&Vec<usize>>, filters: &[Expr], limit: Option<usize>) -> DfResult<Arc<dyn ExecutionPlan>> {
        self.given.lock().push(filters.iter().map(ToString::to_string).collect());
        self.rows.scan(state, projection, &[], limit).await
    }
}

#[tokio::test]
async fn scans_of_long_lists_get_their_filters_without_rules() {
    let context = SessionContext::new();
    let columns = (0..300i64).map(|c| (format!("c{c}"), Arc::new(Int64Array::from_iter_values((0..20).map(|r| r % (c + 2)))) as ArrayRef));
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let given = Arc::new(Mutex::new(Vec::new()));
    let table = Hinted { rows: MemTable::try_new(rows.schema(), vec![vec![rows]]).unwrap(), given: Arc::clone(&given) };
    context.register_table("t", Arc::new(table)).unwrap();
    let state = context.state();
    for (groups, list) in [("", "c"), ("", "sum(c"), (" GROUP BY c5", "max(c")] {
        let end = if list == "c" { "" } else { ")" };
        let list: Vec<_> = (0..240).map(|c| format!("{list}{c}{end} AS x{c}")).collect();
        // Columns of conditions that the list has, and others.
        let sql = format!("SELECT {} FROM t WHERE c1 > 0 AND c299 IN (3, 4, 5, 6){groups} ", list.join(", "));
        let optimised = context.sql(&sql).await.unwrap().into_optimized_plan().unwrap();
        // As a host sends it: the scan has no condition.
        let plan = told_nothing(&optimised);
        assert!(without_rules(&plan).unwrap().is_some(), "{sql}");
        let shared = Shared::of(&plan, &state).unwrap().unwrap();
        let table = shared.table_of(&state).await.unwrap().unwrap();
        let by_rules = state.create_physical_plan(&plan).await.unwrap();
        let expected = std::mem::take(&mut *given.lock()).pop().unwrap();
        assert_eq!(expected.len(), 2, "{expected:?}");
        let answer = datafusion::physical_plan::collect(by_rules, context.task_ctx()).await.unwrap();
        for shares in [true, true, false] {
            // Planned, planned again, and by itself.
            let operators = if shares { shared.physical(&table, &state).await.unwrap() } else { physical(&plan, &state).await.unwrap() };
            let scans = std::mem::take(&mut *given.lock());
            assert!(!scans.is_empty() && scans.iter().all(|scan| *scan == expected), "{scans:?}");
            let rows = datafusion::physical_plan::collect(operators, context.task_ctx()).await.unwrap();
            let sorted = |rows: &[RecordBatch]| {
                let text = datafusion::arrow::util::pretty::pretty_format_batches(rows).unwrap().to_string();
                let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
                lines.sort_unstable();
                lines
            };
            assert_eq!(sorted(&rows), sorted(&answer));
        }
    }
}

/// `plan` with its conditions above the scan only.
fn told_nothing(plan: &LogicalPlan) -> LogicalPlan {
    plan.clone()
        .transform_down(|node| match node {
            LogicalPlan::TableScan(mut scan) => {
                scan.filters.clear();
                Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
            }
            node => Ok(Transformed::no(node)),
        })
        .data()
        .unwrap()
}

#[test]
fn few_plans_are_kept() {
    for n in 0..3 * KEPT {
        drop(cell(&Bytes::from(vec![n as u8; 100])));
    }
    let kept = |n: &usize| PLANS.get(&Bytes::from(vec![*n as u8; 100])).is_some();
    assert!((1..=KEPT).contains(&(0..3 * KEPT).filter(kept).count()));
    let large = Bytes::from(vec![1; KEPT_BYTES / 4 * 3]);
    drop(cell(&large));
    assert!(PLANS.get(&large).is_some() && PLANS.weight() <= KEPT_BYTES as u64);
}
