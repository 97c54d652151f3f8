//! What must not grow: sub-plans of wide tables, of long conditions, of deep expressions.

use std::sync::Arc;

use crate::common::*;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::record_batch::RecordBatch;
use skytether_plan::{DriveScan, Pushdown, codec, partial};

async fn scan_of(sql: &str) -> (DriveScan, usize) {
    let host = whole();
    let cut = cut_with(&host, optimized(&host, sql).await, Pushdown::Full);
    let bytes = codec::encode(&cut.scans[0].sub_plan, &host.state()).unwrap();
    codec::decode(&bytes, &host.state()).await.unwrap();
    (cut.scans[0].clone(), cut.notes.len())
}

#[tokio::test]
async fn long_conditions_go_down() {
    let conditions: Vec<String> = (0..60).map(|i| format!("i <> {} AND (k > {} OR u < {i})", i + 1000, i - 500)).collect();
    let (scan, notes) = scan_of(&format!("SELECT i FROM t WHERE {}", conditions.join(" AND "))).await;
    assert!(scan.sub_plan.display_indent().to_string().contains("Filter"));
    assert_eq!(notes, 0);
}

#[tokio::test]
async fn expressions_go_down_to_the_depth_limit_only() {
    let nested = |depth: usize| format!("SELECT {}i{} AS x FROM t", "abs(1 - ".repeat(depth), ")".repeat(depth));
    let (_, notes) = scan_of(&nested(9)).await;
    assert_eq!(notes, 0);
    let (_, notes) = scan_of(&nested(11)).await;
    assert_eq!(notes, 1);
}

#[tokio::test]
async fn a_column_of_a_wide_table_takes_a_small_plan() {
    let host = session();
    let fields: Vec<Field> =
        (0..20_000).map(|i| Field::new(format!("column{i}"), if i % 2 == 0 { DataType::Decimal64(9, 2) } else { DataType::Int32 }, true)).collect();
    register(&host, "t", RecordBatch::new_empty(Arc::new(Schema::new(fields))));
    let cut = cut_with(&host, optimized(&host, "SELECT sum(column777) FROM t WHERE column13 > 4").await, Pushdown::Full);
    let bytes = codec::encode(&cut.scans[0].sub_plan, &host.state()).unwrap();
    assert!(bytes.len() < 600, "{} bytes", bytes.len());
    codec::decode(&bytes, &host.state()).await.unwrap();
}

#[tokio::test]
async fn equal_plans_have_equal_bytes() {
    let host = whole();
    let sql = "SELECT k, sum(i), avg(f), max(upper(s)) FROM t WHERE i > 3 AND f < 8 AND NOT b GROUP BY k";
    let mut seen = std::collections::HashSet::new();
    for _ in 0..8 {
        let cut = cut_with(&host, optimized(&host, sql).await, Pushdown::Full);
        seen.insert(codec::encode(&cut.scans[0].sub_plan, &host.state()).unwrap());
    }
    assert_eq!(seen.len(), 1);
}

#[test]
fn each_mergeable_aggregate_has_both_forms_once() {
    use datafusion::execution::FunctionRegistry;
    let mut state = session().state();
    let before = state.udafs();
    partial::register(&mut state).unwrap();
    assert_eq!(before, state.udafs());
    for name in ["sum", "avg", "count", "stddev", "median", "approx_distinct"] {
        assert!(partial::is_mergeable(&state.udaf(name).unwrap()));
        assert!(before.contains(&partial::state_name(name)) && before.contains(&partial::merge_name(name)));
    }
    for name in ["nth_value", "grouping", "__sum_state"] {
        assert!(!partial::is_mergeable(&state.udaf(name).unwrap()));
        assert!(!before.contains(&partial::state_name(name)));
    }
}
