//! Sub-plans over a drive's slices, in this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type, UInt32Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::StreamExt;
use skytether_common::{Detail, Key, Kind, Result};
use skytether_device::{Program, ResultMessage};
use skytether_drive::{Cse, Drive, DriveOptions, Storage};
use skytether_slice::Metadata;
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, StoreLayer};

#[tokio::test]
async fn queries_over_a_table_equal_datafusions_own() {
    let drive = drive();
    for sql in [
        "SELECT * FROM shop.sales.data",
        "SELECT price, id FROM shop.sales.data WHERE id % 100 = 3",
        "SELECT id FROM shop.sales.data WHERE kind = 'kind-2' AND price > 1000 AND id < 5000",
        "SELECT id * 2 AS twice, upper(kind) AS k FROM shop.sales.data WHERE kind IS NULL OR price IS NULL",
        "SELECT kind, count(*) AS n, sum(id) AS s, min(price) AS lo, max(price) AS hi FROM shop.sales.data GROUP BY kind",
        "SELECT count(*) AS n FROM shop.sales.data",
        "SELECT count(*) AS n FROM shop.sales.data WHERE id > 1234567",
        "SELECT id FROM shop.sales.data WHERE kind IN ('kind-1', 'kind-9') AND id BETWEEN 300 AND 400",
    ] {
        let (rows, _) = ask(drive.as_ref(), sql).await;
        assert_eq!(lines(&rows), lines(&reference(sql).await), "{sql}");
    }
}

#[tokio::test]
async fn several_threads_give_the_same_answer() {
    let drive = drive_with(DriveOptions { threads: 3, ..DriveOptions::default() });
    let sql = "SELECT kind, count(*) AS n, sum(id) AS s FROM shop.sales.data WHERE price > 100 GROUP BY kind";
    assert_eq!(lines(&ask(drive.as_ref(), sql).await.0), lines(&reference(sql).await));
}

#[tokio::test]
async fn partial_states_come_as_structs() {
    let drive = drive();
    let (rows, _) = ask(drive.as_ref(), "SELECT kind, __avg_state(price) AS s FROM shop.sales.data GROUP BY kind").await;
    let expected = reference("SELECT kind, count(price) AS n, sum(price) AS s FROM shop.sales.data GROUP BY kind").await;
    let state = rows.column(1).as_struct();
    let mut got: Vec<(u64, f64)> =
        (0..rows.num_rows()).map(|i| (state.column(0).as_primitive::<UInt64Type>().value(i), state.column(1).as_primitive::<Float64Type>().value(i))).collect();
    let mut due: Vec<(u64, f64)> = (0..expected.num_rows())
        .map(|i| (expected.column(1).as_primitive::<Int64Type>().value(i) as u64, expected.column(2).as_primitive::<Float64Type>().value(i)))
        .collect();
    got.sort_by(|a, b| a.partial_cmp(b).unwrap());
    due.sort_by(|a, b| a.partial_cmp(b).unwrap());
    assert_eq!(got, due);
}

/// A drive whose `shop.wide` is `rows`, and nothing else.
fn drive_of(rows: &RecordBatch) -> Arc<Drive> {
    let store = MemoryStore::new();
    store_table(&store, &partition(&dataset("shop.wide"), "data"), rows, 40 << 10);
    drive_over(Arc::new(store), DriveOptions::default())
}

/// A list of an aggregate for each column of `shop.wide`.
fn long_list(of: &str, rest: &str) -> String {
    let calls: Vec<_> = (0..300).map(|c| format!("{} AS x{c}", of.replace("c*", &format!("c{c}")))).collect();
    format!("SELECT {} FROM shop.wide.data{rest}", calls.join(", "))
}

#[tokio::test]
async fn drives_that_share_a_plan_answer_from_their_own_rows() {
    let (all, some) = (wide(), wide().slice(100, 17));
    let (first, second) = (drive_of(&all), drive_of(&some));
    for (of, rest) in [("avg(c* + 1)", ""), ("sum(c*) FILTER (WHERE c1 % 2 = 0)", ""), ("max(c* - c3)", " GROUP BY c2 % 3"), ("min(c*)", ""), ("count(c*)", "")]
    {
        let sql = long_list(of, rest);
        let plan = sub_plan(&sql).await;
        // At once, and again.
        for _ in 0..2 {
            let (one, other) = tokio::join!(run(first.as_ref(), plan.clone()), run(second.as_ref(), plan.clone()));
            for ((rows, annotation), of) in [(one.unwrap(), &all), (other.unwrap(), &some)] {
                assert_eq!(lines(&rows), lines(&reference_over(of, &sql).await), "{sql}");
                // Its own figures: what it read itself, or found in its metadata.
                let told = of_metadata(&sql);
                assert_eq!(
                    (annotation.rows_read, annotation.slices_told > 0),
                    (Some(if told { 0 } else { of.num_rows() as u64 }), told),
                    "{sql} {annotation:?}"
                );
            }
        }
    }
}

fn of_metadata(sql: &str) -> bool {
    sql.contains("min(") || sql.contains("count(")
}

#[tokio::test]
async fn a_shared_plan_is_not_run_over_columns_of_other_types() {
    let plan = sub_plan(&long_list("max(c*)", "")).await;
    let (rows, _) = run(drive_of(&wide()).as_ref(), plan.clone()).await.unwrap();
    assert_eq!(rows.num_columns(), 300);
    let floats = wide().columns().iter().map(|column| arrow::compute::cast(column, &DataType::Float64).unwrap()).collect::<Vec<_>>();
    let floats = RecordBatch::try_from_iter(floats.into_iter().enumerate().map(|(c, column)| (format!("c{c}"), column))).unwrap();
    let error = run(drive_of(&floats).as_ref(), plan.clone()).await.unwrap_err().report();
    assert!(error.contains("is Float64, and the plan takes it for Int64"), "{error}");
    let (again, _) = run(drive_of(&wide()).as_ref(), plan).await.unwrap();
    assert_eq!(lines(&again), lines(&rows));
}

#[tokio::test]
async fn statistics_spare_slices() {
    let drive = drive();
    let (_, whole) = ask(drive.as_ref(), "SELECT id FROM shop.sales.data").await;
    assert!(whole.slices >= 10 && whole.slices_pruned == 0, "{whole:?}");
    let (rows, some) = ask(drive.as_ref(), "SELECT price FROM shop.sales.data WHERE id BETWEEN 5000 AND 5010").await;
    assert_eq!(rows.num_rows(), 11);
    assert!(some.slices <= 2, "{some:?}");
    assert_eq!(some.slices + some.slices_pruned, whole.slices);
    assert!(some.bytes_read * 4 < whole.bytes_read, "{some:?} {whole:?}");
    let (rows, none) = ask(drive.as_ref(), "SELECT price FROM shop.sales.data WHERE id < 0").await;
    assert_eq!((rows.num_rows(), none.slices, none.slices_pruned, none.bytes_read), (0, 0, whole.slices, 0));
}

#[tokio::test]
async fn a_limit_reads_no_more_slices_than_it_needs() {
    let (rows, annotation) = ask(drive().as_ref(), "SELECT id FROM shop.sales.data LIMIT 5").await;
    assert_eq!(rows.num_rows(), 5);
    assert_eq!(annotation.slices, 1, "{annotation:?}");
    assert!(annotation.slices_total >= Some(10) && annotation.slices_told == 0, "{annotation:?}");
}

#[tokio::test]
async fn counting_rows_reads_only_metadata_and_that_once() {
    let drive = drive();
    let (_, cold) = ask(drive.as_ref(), "SELECT __count_state(1) AS n FROM shop.sales.data").await;
    let metadata = drive.get(&partition(&dataset("shop.sales"), "data").key().unwrap()).await.unwrap().len() as u64;
    assert_eq!(cold.bytes_read, metadata, "{cold:?}");
    let (rows, annotation) = ask(drive.as_ref(), "SELECT __count_state(1) AS n FROM shop.sales.data").await;
    assert_eq!(rows.column(0).as_struct().column(0).as_primitive::<Int64Type>().value(0), SALES);
    assert_eq!(annotation.bytes_read, 0, "{annotation:?}");
    assert!(annotation.slices_told >= 10 && annotation.slices_total == Some(annotation.slices_told), "{annotation:?}");
    assert_eq!((annotation.slices, annotation.slices_pruned, annotation.rows_read), (0, 0, Some(0)));
    let (_, annotation) = ask(drive.as_ref(), "SELECT __count_state(1) AS n FROM shop.sales.data WHERE id < 10000").await;
    assert_eq!((annotation.slices_told, annotation.slices_total), (0, Some(annotation.slices + annotation.slices_pruned)), "{annotation:?}");
    let (rows, annotation) = ask(drive.as_ref(), "SELECT count(*) AS n FROM blood.tiny.x").await;
    assert_eq!(rows.column(0).as_primitive::<Int64Type>().value(0), i64::from(CELLS) * i64::from(GENES));
    assert!(annotation.slices <= 1, "only a slice with rows of both blocks must be read: {annotation:?}");
    assert!(annotation.slices_told > 0 && annotation.slices_total == Some(annotation.slices + annotation.slices_told), "{annotation:?}");
}

#[tokio::test]
async fn gene_names_count_as_bytes_read_of_the_first_query() {
    let drive = drive();
    let sql = "SELECT gene, count(*) AS n FROM blood.tiny.x WHERE gene = 'GENE-4' GROUP BY gene";
    let (_, cold) = ask(drive.as_ref(), sql).await;
    let (_, warm) = ask(drive.as_ref(), sql).await;
    // The names of the genes and the metadata of both tables; the caches have them the second time.
    let mut extra = 0;
    for table in ["x", "var"] {
        extra += drive.get(&partition(&dataset("blood.tiny"), table).key().unwrap()).await.unwrap().len() as u64;
    }
    extra += drive.get(&partition(&dataset("blood.tiny"), "var").slice_key(0).unwrap()).await.unwrap().len() as u64;
    assert!(warm.bytes_read > 0 && cold.bytes_read >= warm.bytes_read + extra, "{} {} {extra}", cold.bytes_read, warm.bytes_read);
}

#[tokio::test]
async fn paused_reader_delays_no_other_query() {
    let drive = drive_with(DriveOptions { max_concurrent: 1, ..DriveOptions::default() });
    let unread = drive.execute(sub_plan("SELECT gene, cell, value FROM blood.tiny.x").await).await.unwrap();
    let sql = "SELECT count(*) AS n FROM blood.tiny.obs WHERE cell_type = 'B'";
    let next = tokio::time::timeout(Duration::from_secs(60), ask(drive.as_ref(), sql)).await;
    next.expect("the sub-plan that nobody reads holds its turn");
    // And that one still comes whole.
    let mut rows = 0;
    let mut messages = unread.messages;
    while let Some(message) = messages.next().await {
        if let ResultMessage::Batch { batch, .. } = message.unwrap() {
            rows += batch.num_rows();
        }
    }
    assert_eq!(rows, CELLS as usize * GENES as usize);
}

#[tokio::test]
async fn annotation_names_the_operators_that_ran() {
    let mut plan = sub_plan("SELECT kind, count(*) AS n FROM shop.sales.data WHERE id < 10000 GROUP BY kind").await;
    plan.query = uuid::Uuid::from_u128(99);
    let received = plan.program.bytes().len() as u64;
    let (rows, a) = run(drive().as_ref(), plan).await.unwrap();
    assert_eq!((a.cse.as_str(), a.rows_out, a.bytes_received), ("drive-2", rows.num_rows() as u64, received));
    assert_eq!(a.reason, None);
    assert!(a.bytes_sent > 0 && a.bytes_sent < 10_000 && a.seconds > 0.0 && a.peak_memory > 0, "{a:?}");
    let root = a.operators.first().unwrap();
    assert_eq!((root.depth, root.rows_out), (0, Some(rows.num_rows() as u64)));
    let scan = a.operators.last().unwrap();
    assert_eq!(scan.name, "SliceScanExec");
    assert!(scan.rows_out >= Some(10_000) && scan.seconds > 0.0, "{scan:?}");
    assert!(scan.detail.contains("kind") && a.rows_read == scan.rows_out, "{a:?}");
    assert_eq!(a.slices_total, Some(a.slices + a.slices_pruned));
}

#[tokio::test]
async fn the_dense_view_is_the_matrix_with_its_zeros() {
    let drive = drive();
    for (sql, gene, cells) in
        [("SELECT * FROM blood.tiny.x WHERE gene = 'GENE-2'", 2, 0..CELLS), ("SELECT gene, cell, value FROM blood.tiny.x WHERE gene = 'GENE-3'", 3, 0..CELLS)]
    {
        let (rows, _) = ask(drive.as_ref(), sql).await;
        assert_eq!(rows.num_rows(), cells.len());
        let (genes, names, values) = (rows.column(0).as_string_view(), rows.column(1).as_string_view(), rows.column(2).as_primitive::<Float64Type>());
        for (i, cell) in cells.enumerate() {
            assert_eq!((genes.value(i), names.value(i)), (gene_name(gene).as_str(), cell_name(cell).as_str()));
            assert!((values.value(i) - f64::from(count(gene, cell))).abs() < f64::EPSILON);
        }
    }
}

#[tokio::test]
async fn dense_aggregates_equal_a_model() {
    let (rows, _) = ask(drive().as_ref(), "SELECT gene, count(*) AS n, sum(value) AS s, max(value) AS m FROM blood.tiny.x GROUP BY gene ORDER BY gene").await;
    assert_eq!(rows.num_rows(), GENES as usize);
    for gene in 0..GENES {
        let i = gene as usize;
        let values = (0..CELLS).map(|c| f64::from(count(gene, c)));
        assert_eq!(rows.column(0).as_string_view().value(i), gene_name(gene));
        assert_eq!(rows.column(1).as_primitive::<Int64Type>().value(i), i64::from(CELLS));
        assert!((rows.column(2).as_primitive::<Float64Type>().value(i) - values.clone().sum::<f64>()).abs() < 1e-9);
        assert!((rows.column(3).as_primitive::<Float64Type>().value(i) - values.fold(0.0, f64::max)).abs() < 1e-9);
    }
}

#[tokio::test]
async fn filters_on_the_dense_view_read_only_possible_matches() {
    let drive = drive();
    let (_, whole) = ask(drive.as_ref(), "SELECT sum(value) AS s FROM blood.tiny.x").await;
    let (rows, gene) = ask(drive.as_ref(), "SELECT sum(value) AS s FROM blood.tiny.x WHERE gene = 'GENE-4'").await;
    let due: f64 = (0..CELLS).map(|c| f64::from(count(4, c))).sum();
    assert!((rows.column(0).as_primitive::<Float64Type>().value(0) - due).abs() < 1e-9);
    assert!(gene.slices < whole.slices && gene.slices + gene.slices_pruned == whole.slices, "{gene:?} {whole:?}");
    let cell = 65_536 + 17;
    let (rows, one) = ask(drive.as_ref(), &format!("SELECT gene, value FROM blood.tiny.x WHERE cell = '{}' ORDER BY gene", cell_name(cell))).await;
    let values = rows.column(1).as_primitive::<Float64Type>();
    assert_eq!(values.len(), GENES as usize);
    assert!((0..GENES).all(|g| (values.value(g as usize) - f64::from(count(g, cell))).abs() < f64::EPSILON));
    assert!(one.slices < whole.slices, "the first block has no such cell: {one:?}");
    let scanned = one.operators.last().unwrap().rows_out;
    assert_eq!(scanned, Some(u64::from(GENES)), "only that cell's rows are made");
    let (rows, nonzero) = ask(drive.as_ref(), "SELECT count(*) AS n FROM blood.tiny.x WHERE value > 0").await;
    let due = (0..GENES).map(|g| (0..CELLS).filter(|&c| count(g, c) > 0).count()).sum::<usize>();
    assert_eq!(rows.column(0).as_primitive::<Int64Type>().value(0), due as i64);
    assert_eq!(nonzero.operators.last().unwrap().rows_out, Some(due as u64), "zeros are not made where they can't match");
    let (rows, none) = ask(drive.as_ref(), "SELECT cell FROM blood.tiny.x WHERE gene = 'no such gene'").await;
    assert_eq!((rows.num_rows(), none.slices), (0, 0));
    let (rows, _) = ask(drive.as_ref(), "SELECT value FROM blood.tiny.x LIMIT 12345").await;
    assert_eq!(rows.num_rows(), 12_345);
}

#[tokio::test]
async fn sparse_rows_come_with_their_genes_names() {
    let (rows, annotation) = ask(drive().as_ref(), "SELECT nnz, gene, block, idx, val FROM blood.tiny.x_rows WHERE gene = 'GENE-5' ORDER BY block").await;
    assert_eq!(rows.num_rows(), 2);
    for block in 0..2u32 {
        let i = block as usize;
        let cells: Vec<u32> = (block * 65_536..CELLS.min((block + 1) * 65_536)).filter(|&c| count(5, c) > 0).collect();
        assert_eq!(rows.column(0).as_primitive::<UInt32Type>().value(i) as usize, cells.len());
        assert_eq!(rows.column(1).as_string_view().value(i), "GENE-5");
        assert_eq!(rows.column(3).as_list::<i32>().value(i).as_primitive::<UInt32Type>().values().as_ref(), cells);
    }
    assert!(annotation.slices_pruned > 0, "{annotation:?}");
}

#[tokio::test]
async fn grouped_moments_read_the_drives_own_obs() {
    let spec = r#"{"dataset": "blood.tiny", "matrix": "x", "groups": {"obs": "cell_type"}, "transform": null}"#;
    let sql = format!("SELECT gene, moments(idx, val, block, '{spec}') AS m FROM blood.tiny.x_rows GROUP BY gene ORDER BY gene");
    let (rows, _) = ask(drive().as_ref(), &sql).await;
    assert_eq!(rows.num_rows(), GENES as usize);
    for gene in 0..GENES {
        let groups = rows.column(1).as_list::<i32>().value(gene as usize);
        let groups = groups.as_struct();
        let field = |name: &str| groups.column_by_name(name).unwrap().clone();
        let mut seen = 0;
        for i in 0..groups.len() {
            let Some(name) = field("group").as_string_view().iter().nth(i).flatten().map(str::to_owned) else { continue };
            let values: Vec<f64> = (0..CELLS).filter(|&c| cell_type(c) == name).map(|c| f64::from(count(gene, c))).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            assert_eq!(field("n").as_primitive::<UInt64Type>().value(i), values.len() as u64);
            assert_eq!(field("nnz").as_primitive::<UInt64Type>().value(i), values.iter().filter(|v| **v > 0.0).count() as u64);
            assert!((field("mean").as_primitive::<Float64Type>().value(i) - mean).abs() < 1e-9);
            seen += 1;
        }
        assert_eq!(seen, 3);
    }
}

#[tokio::test]
async fn sub_plan_sees_only_partitions_of_its_ticket() {
    let drive = drive();
    let refuse = |plan| async { run(drive.as_ref(), plan).await.unwrap_err() };
    let error = refuse(sub_plan("SELECT cell FROM blood.tiny.secret").await).await;
    assert!(error.to_string().starts_with("drive-2: ") && error.to_string().contains("secret"), "{error}");
    assert_eq!(error.kind(), Kind::Invalid);
    let mut plan = sub_plan("SELECT cell FROM blood.tiny.obs").await;
    plan.partitions.remove("obs");
    assert!(refuse(plan).await.to_string().contains("\"obs\""));
    let mut plan = sub_plan("SELECT gene FROM blood.tiny.x").await;
    plan.partitions.remove("var");
    assert!(refuse(plan).await.to_string().contains("\"var\""));
    let mut plan = sub_plan("SELECT id FROM shop.sales.data").await;
    plan.partitions.insert("obs".into(), partition(&dataset("blood.tiny"), "obs"));
    assert_eq!(refuse(plan).await.kind(), Kind::Invalid);
    let mut plan = sub_plan("SELECT id FROM shop.sales.data").await;
    plan.dataset = dataset("blood.tiny");
    assert_eq!(refuse(plan).await.kind(), Kind::Invalid);
    let mut plan = sub_plan("SELECT id FROM shop.sales.data").await;
    plan.partitions.get_mut("data").unwrap().slot = 9;
    assert_eq!(refuse(plan).await.kind(), Kind::NotFound);
    for junk in [&b""[..], b"\xff\xff\xff", b"not substrait at all"] {
        let mut plan = sub_plan("SELECT id FROM shop.sales.data").await;
        plan.program = Program::Substrait(Bytes::from_static(junk));
        assert_eq!(refuse(plan).await.kind(), Kind::Invalid, "{junk:?}");
    }
}

/// A ticket for several data sets: their tables are joined, and what it does not name is not there.
#[tokio::test]
async fn sub_plan_joins_only_data_sets_of_its_ticket() {
    let drive = drive();
    let (shop, blood) = (dataset("shop.sales"), dataset("blood.tiny"));
    let cell = "concat('AAACATACAACC', lpad(CAST(s.id AS VARCHAR), 6, '0'), '-1')";
    let sql = format!("SELECT o.cell_type, count(*) AS n FROM shop.sales.data s JOIN blood.tiny.obs o ON {cell} = o.cell WHERE s.id < 5 GROUP BY o.cell_type");
    let mut plan = sub_plan(&sql).await;
    let other = |table: &str| BTreeMap::from([(table.to_owned(), partition(&blood, table))]);
    plan.with = BTreeMap::from([(blood.clone(), other("obs"))]);
    let (rows, annotation) = run(drive.as_ref(), plan.clone()).await.unwrap();
    let mut types: Vec<_> = rows.column(0).as_string::<i32>().iter().map(|v| v.unwrap().to_owned()).collect();
    types.sort();
    assert_eq!(types, ["B", "NK", "T"]);
    assert_eq!(rows.column(1).as_primitive::<Int64Type>().values().iter().sum::<i64>(), 5);
    assert!(annotation.bytes_read > 0);

    let refuse = |plan| async { run(drive.as_ref(), plan).await.unwrap_err() };
    let changed = |change: &dyn Fn(&mut skytether_device::SubPlan)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan
    };
    let error = refuse(changed(&|p| p.with.clear())).await;
    assert!(error.to_string().contains("blood.tiny.obs"), "{error}");
    let error = refuse(changed(&|p| p.with = BTreeMap::from([(blood.clone(), other("var"))]))).await;
    assert!(error.to_string().contains("\"obs\""), "{error}");
    // Each data set once, and only partitions of its own.
    let error = refuse(changed(&|p| drop(p.with.insert(shop.clone(), p.partitions.clone())))).await;
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("each data set once"), "{error}");
    let error = refuse(changed(&|p| drop(p.with.insert(blood.clone(), p.partitions.clone())))).await;
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("names a partition of shop.sales"), "{error}");
    let error = refuse(changed(&|p| (0..20).for_each(|n| drop(p.with.insert(dataset(&format!("a.b{n}")), BTreeMap::new()))))).await;
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("at most 16"), "{error}");
}

#[tokio::test]
async fn plan_beyond_memory_is_refused_and_the_next_one_runs() {
    let drive = drive_with(DriveOptions { memory_limit: 700 << 10, ..DriveOptions::default() });
    let plan = sub_plan("SELECT id, count(*) AS n FROM shop.sales.data GROUP BY id").await;
    let error = run(drive.as_ref(), plan).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
    assert!(error.to_string().starts_with("drive-2: "), "{error}");
    let (rows, annotation) = ask(drive.as_ref(), "SELECT count(*) AS n FROM shop.sales.data WHERE price > 3").await;
    assert_eq!(rows.num_rows(), 1);
    assert!(annotation.peak_memory <= 700 << 10);
}

/// A store that panics on request.
#[derive(Debug)]
struct Spy {
    inner: MemoryStore,
    panic: AtomicBool,
}

impl Spy {
    fn new() -> Arc<Self> {
        let inner = MemoryStore::new();
        fill(&inner);
        Arc::new(Self { inner, panic: AtomicBool::new(false) })
    }
}

impl StoreLayer for Spy {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.inner)
    }

    fn before_read(&self, key: &Key) -> Result<()> {
        assert!(!key.as_str().contains(';') || !self.panic.load(Ordering::Relaxed), "the store's own defect");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_stream_ends_the_work() {
    let drive = drive_with(DriveOptions { max_concurrent: 1, ..DriveOptions::default() });
    let mut stream = drive.execute(sub_plan("SELECT gene, cell, value FROM blood.tiny.x").await).await.unwrap();
    assert!(matches!(stream.messages.next().await, Some(Ok(ResultMessage::Batch { .. }))));
    drop(stream);
    // Only one sub-plan may run at a time. The other one still had rows to deliver and no reader; this one runs once it
    // has ended.
    let next = tokio::time::timeout(Duration::from_secs(60), ask(drive.as_ref(), "SELECT count(*) AS n FROM blood.tiny.obs WHERE cell_type = 'B'")).await;
    let due = (0..CELLS).filter(|&c| cell_type(c) == "B").count() as i64;
    assert_eq!(next.expect("the dropped sub-plan still holds its turn").0.column(0).as_primitive::<Int64Type>().value(0), due);
}

#[tokio::test]
async fn panic_in_the_engine_is_one_error_and_the_drive_goes_on() {
    let spy = Spy::new();
    let drive = drive_over(spy.clone(), DriveOptions::default());
    spy.panic.store(true, Ordering::Relaxed);
    let error = run(drive.as_ref(), sub_plan("SELECT id FROM shop.sales.data").await).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Internal, "{error}");
    assert!(error.to_string().starts_with("drive-2: "), "{error}");
    spy.panic.store(false, Ordering::Relaxed);
    assert_eq!(ask(drive.as_ref(), "SELECT id FROM shop.sales.data").await.0.num_rows(), SALES as usize);
}

#[tokio::test]
async fn slice_that_differs_from_its_metadata_is_found() {
    let drive = drive();
    let name = partition(&dataset("shop.sales"), "data");
    let (one, two) = (name.slice_key(1).unwrap(), name.slice_key(2).unwrap());
    let other = drive.get(&two).await.unwrap();
    drive.apply(vec![Op::Put { key: one.clone(), value: other, expect: Expect::Any }]).await.unwrap();
    let error = run(drive.as_ref(), sub_plan("SELECT id FROM shop.sales.data").await).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    assert!(error.to_string().contains(one.as_str()), "{error}");
    drive.apply(vec![Op::Delete { key: one.clone(), expect: Expect::Any }]).await.unwrap();
    let error = run(drive.as_ref(), sub_plan("SELECT id FROM shop.sales.data").await).await.unwrap_err();
    assert_eq!((error.kind(), error.detail()), (Kind::NotFound, Some(&Detail::missing_key(&one))), "{error}");
}

#[tokio::test]
async fn of_a_wide_table_only_the_slices_with_wanted_columns_are_read() {
    let drive = drive();
    let bytes = |n: u32| {
        let (drive, key) = (Arc::clone(&drive), partition(&dataset("shop.wide"), "data").slice_key(n).unwrap());
        async move { drive.get(&key).await.map_or(0, |b| b.len() as u64) }
    };
    let (_, all) = ask(drive.as_ref(), "SELECT * FROM shop.wide.data").await;
    let total = all.slices_total.unwrap();
    let stripes = total / 3;
    assert!(stripes >= 5 && all.slices == total && total % 3 == 0 && all.slices_pruned == 0, "{all:?}");
    let mut sizes = Vec::new();
    for n in 0..u32::try_from(total).unwrap() {
        sizes.push(bytes(n).await);
    }
    let metadata = Metadata::decode(&drive.get(&partition(&dataset("shop.wide"), "data").key().unwrap()).await.unwrap()).unwrap();
    assert!(sizes.iter().all(|&size| 0 < size && size <= 40 << 10), "{sizes:?}");

    let every: Vec<usize> = (0..300).collect();
    for (sql, groups, columns) in [
        ("SELECT c299 FROM shop.wide.data", &[2][..], &[299][..]),
        ("SELECT c128, c0 FROM shop.wide.data", &[0, 1], &[0, 128]),
        ("SELECT c250, c1, c129, c2, c256 FROM shop.wide.data WHERE c200 % 7 = 0", &[0, 1, 2], &[1, 2, 129, 200, 250, 256]),
        ("SELECT sum(c255) AS s, max(c128) AS m FROM shop.wide.data WHERE c128 % 2 = 1", &[1], &[128, 255]),
        ("SELECT * FROM shop.wide.data", &[0, 1, 2], &every),
    ] {
        let (rows, read) = ask(drive.as_ref(), sql).await;
        assert_eq!(lines(&rows), lines(&reference(sql).await), "{sql}");
        assert_eq!((read.slices, read.slices_pruned, read.slices_total), (stripes * groups.len() as u64, 0, Some(total)), "{sql}");
        // Of each slice its wanted columns, or all where they are most of it.
        let due = |(n, &size): (usize, &u64)| {
            let (_, places) = metadata.groups.split(columns).into_iter().find(|(group, _)| *group == n % 3)?;
            Some(metadata.pick(n, &places)?.bytes()).filter(|bytes| *bytes * 10 <= size * 7).or(Some(size))
        };
        assert_eq!(read.bytes_read, sizes.iter().enumerate().filter_map(due).sum::<u64>(), "{sql}");
    }
    // Statistics are of stripes, whichever group has the column.
    let sql = "SELECT c5 FROM shop.wide.data WHERE c290 BETWEEN 100000 AND 120000";
    let (rows, read) = ask(drive.as_ref(), sql).await;
    assert_eq!(lines(&rows), lines(&reference(sql).await));
    assert!(rows.num_rows() > 10 && read.slices <= 4 && read.slices_pruned == total - read.slices / 2 * 3, "{read:?}");
    let (rows, told) = ask(drive.as_ref(), "SELECT __count_state(1) AS n, __max_state(c299) AS m FROM shop.wide.data").await;
    assert_eq!(rows.column(0).as_struct().column(0).as_primitive::<Int64Type>().value(0), WIDE_ROWS);
    assert_eq!((told.slices, told.slices_told, told.bytes_read), (0, total, 0), "{told:?}");
    let (rows, read) = ask(drive.as_ref(), "SELECT c7, c8 FROM shop.wide.data LIMIT 3").await;
    assert_eq!((rows.num_rows(), read.slices), (3, 1), "{read:?}");
}

#[tokio::test]
async fn slice_of_any_column_group_that_differs_is_named() {
    for n in [0, 1, 2, 5] {
        let drive = drive();
        let key = partition(&dataset("shop.wide"), "data").slice_key(n).unwrap();
        let mut bytes = drive.get(&key).await.unwrap().to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        drive.apply(vec![Op::Put { key: key.clone(), value: bytes.into(), expect: Expect::Any }]).await.unwrap();
        let error = run(drive.as_ref(), sub_plan("SELECT * FROM shop.wide.data").await).await.unwrap_err();
        assert!(error.kind() == Kind::Corrupt && error.to_string().contains(key.as_str()), "{n}: {error}");
        // A reader of other groups does not meet the damage.
        let other = if n % 3 == 0 { "c140" } else { "c3" };
        assert_eq!(ask(drive.as_ref(), &format!("SELECT {other} FROM shop.wide.data")).await.0.num_rows(), WIDE_ROWS as usize);
    }
}

#[tokio::test]
async fn replaced_partition_is_read_again() {
    let store = Arc::new(MemoryStore::new());
    let name = partition(&dataset("shop.sales"), "data");
    let all = sales();
    store_table(store.as_ref(), &name, &all.slice(0, 10), 1 << 20);
    let drive = drive_over(store.clone(), DriveOptions::default());
    assert_eq!(ask(drive.as_ref(), "SELECT id FROM shop.sales.data").await.0.num_rows(), 10);
    let keys = [name.key().unwrap(), name.slice_key(0).unwrap()];
    store.apply(keys.into_iter().map(|key| Op::Delete { key, expect: Expect::Any }).collect()).unwrap();
    store_table(store.as_ref(), &name, &all.slice(0, 20), 1 << 20);
    assert_eq!(ask(drive.as_ref(), "SELECT id FROM shop.sales.data").await.0.num_rows(), 20);
}

#[tokio::test]
async fn a_drive_lives_in_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let identity = skytether_store::disk::DriveIdentity { id: uuid::Uuid::from_u128(5), name: "drive-5".into() };
    let drive = skytether_drive::Drive::open(dir.path(), Some(identity.clone()), DriveOptions::default()).unwrap();
    fill(drive.store().as_ref());
    let sql = "SELECT kind, count(*) AS n FROM shop.sales.data GROUP BY kind";
    let due = lines(&reference(sql).await);
    assert_eq!(lines(&ask(drive.as_ref(), sql).await.0), due);
    drop(drive);
    let drive = skytether_drive::Drive::open(dir.path(), None, DriveOptions::default()).unwrap();
    assert_eq!((drive.info().id, drive.info().name.as_str()), (identity.id, "drive-5"));
    assert_eq!(lines(&ask(drive.as_ref(), sql).await.0), due);
}
