use super::*;
use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;

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
    for (of, rest) in [("c", " WHERE c1 > 3"), ("c", " LIMIT 2")] {
        let (plan, base) = list(|c| format!("{of}{c} + 1 AS x{c}"), rest).await;
        assert!(Shared::of(&plan, &base).unwrap().is_none(), "{rest}");
    }
}

#[test]
fn few_plans_are_kept() {
    for n in 0..3 * KEPT {
        drop(cell(&Bytes::from(vec![n as u8; 100])));
        assert!(plans().len() <= KEPT);
    }
    drop(cell(&Bytes::from(vec![1; KEPT_BYTES])));
    assert!(plans().iter().map(|(kept, _)| kept.len()).sum::<usize>() <= KEPT_BYTES);
}
