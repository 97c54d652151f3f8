//! Columns of conditions are decoded first, and the others only where few rows pass. Answers and errors are the same as
//! without that.

use std::sync::Arc;

use crate::common::*;
use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use skytether_drive::{Drive, DriveOptions};
use skytether_store::memory::MemoryStore;

const ROWS: i64 = 120_000;

fn price(id: i64) -> Option<f64> {
    match id % 1009 {
        0 => None,
        1 => Some(f64::NAN),
        m => Some(m as f64 / 4.0),
    }
}

/// A drive whose slices have some 20,000 rows and more.
fn drive() -> Arc<Drive> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(0..ROWS)),
        Arc::new((0..ROWS).map(|id| (id % 11 != 0).then(|| format!("kind-{}", id % 5))).collect::<StringArray>()),
        Arc::new((0..ROWS).map(price).collect::<Float64Array>()),
    ];
    let store = MemoryStore::new();
    let rows = RecordBatch::try_new(sales().schema(), columns).unwrap();
    let metadata = store_table(&store, &partition(&dataset("shop.sales"), "data"), &rows, 200 << 10);
    assert!(metadata.slices.len() > 1 && metadata.slices.iter().rev().skip(1).all(|slice| slice.rows > 8192), "{:?}", metadata.slices);
    drive_over(Arc::new(store), DriveOptions::default())
}

/// How many rows a condition lets through, and how many rows the scan made; it has looked at all of them.
async fn counted(drive: &Arc<Drive>, condition: &str) -> (usize, u64) {
    let (rows, annotation) = ask(drive.as_ref(), &format!("SELECT id, kind, price FROM shop.sales.data WHERE {condition}")).await;
    let scan = annotation.operators.iter().find(|operator| operator.name == "SliceScanExec").unwrap();
    assert!(annotation.slices_pruned > 0 || annotation.rows_read == Some(ROWS as u64), "{annotation:?}");
    (rows.num_rows(), scan.rows_out.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rows_that_pass_are_decoded_and_many_as_ever() {
    let drive = drive();
    let due = |wanted: &dyn Fn(i64) -> bool| (0..ROWS).filter(|id| wanted(*id)).count();
    let few = due(&|id| price(id) == Some(100.0));
    assert_eq!(counted(&drive, "price = 100.0").await, (few, few as u64));
    let nulls = due(&|id| price(id).is_none());
    assert_eq!(counted(&drive, "price IS NULL").await, (nulls, nulls as u64));
    // Together with a condition on texts, which is left to the filter.
    let both = due(&|id| price(id) == Some(100.0) && id % 11 != 0 && id % 5 == 3);
    assert_eq!(counted(&drive, "kind = 'kind-3' AND price = 100.0").await, (both, few as u64));
    // NaN is above all numbers, as the filter has it.
    let above = due(&|id| price(id).is_some_and(|p| p.is_nan() || p > 250.0));
    assert_eq!(counted(&drive, "price > 250.0").await, (above, above as u64));
    assert_eq!(counted(&drive, "price > 10000.0 AND price < 20000.0").await, (0, 0));
    let many = due(&|id| price(id).is_some_and(|p| p < 200.0));
    assert_eq!(counted(&drive, "price < 200.0").await, (many, ROWS as u64));
    // Rows come as they are, in their order.
    let (rows, _) = ask(drive.as_ref(), "SELECT id, kind FROM shop.sales.data WHERE price = 100.0").await;
    let expected: Vec<i64> = (0..ROWS).filter(|id| price(*id) == Some(100.0)).collect();
    assert_eq!(arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(rows.column(0)).values(), expected.as_slice());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_that_fail_do_so_still() {
    let error = run(drive().as_ref(), sub_plan("SELECT kind FROM shop.sales.data WHERE 10 / (id - 70000) > 5").await).await.unwrap_err();
    assert!(error.report().to_lowercase().contains("zero"), "{}", error.report());
}
