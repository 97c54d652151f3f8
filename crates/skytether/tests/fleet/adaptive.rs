//! Adaptive execution: whichever drive or host runs a slice, the answer is the same.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use skytether::{AdaptiveMode, Fleet, HostOptions, OpenOptions, Pushdown, QueryOptions, Receipt};
use skytether_common::Kind;
use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::query::Policy;
use skytether_slice::SliceOptions;

use crate::receipts::{assert_each_once, slices};
use crate::served::{serve_drive_at, serve_host_with};
use crate::tables::{QUERIES, assert_as_reference};
use crate::util::{Random, batches, ingest, lines, name, query};

const POLICIES: [Policy; 4] =
    [Policy::Adaptive, Policy::Static(PushdownLevel::Full), Policy::Static(PushdownLevel::Filter), Policy::Static(PushdownLevel::Raw)];

/// A fleet whose work moves as `moving` says.
async fn open(path: &Path, drives: usize, moving: AdaptiveMode) -> Fleet {
    let slices = SliceOptions { target_bytes: 8 << 10, ..SliceOptions::default() };
    let host = HostOptions { slices, moving, threads: 2, ..HostOptions::default() };
    Fleet::open_with(path, &OpenOptions { drives: Some(drives), memory_per_drive: Some(64 << 20), ..OpenOptions::default() }, host).await.unwrap()
}

async fn answer(fleet: &Fleet, sql: &str) -> (Vec<String>, Receipt) {
    let query = fleet.sql(sql, &QueryOptions::default()).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    let receipt = query.receipt.clone();
    let rows = lines(&query.collect().await.unwrap_or_else(|e| panic!("{sql}: {e}")));
    (rows, receipt.receipt())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_policy_answers_as_one_engine() {
    let rows = batches(8, 500);
    for drives in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(dir.path(), drives, AdaptiveMode::Never).await;
        ingest(&fleet, "lab.plain", &rows, false).await.unwrap();
        drop(fleet);
        for policy in POLICIES {
            let fleet = open(dir.path(), drives, AdaptiveMode::Always(policy)).await;
            for (sql, ordered) in QUERIES {
                let given = query(&fleet, sql, Pushdown::Adaptive).await.unwrap_or_else(|e| panic!("{drives} drives, {policy:?}: {sql}: {e}"));
                assert_as_reference(&rows, (sql, ordered), given, &format!("{drives} drives, {policy:?}")).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_name_where_each_slice_ran() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2, AdaptiveMode::Never).await;
    ingest(&fleet, "lab.plain", &batches(8, 500), false).await.unwrap();
    drop(fleet);
    let sql = "SELECT grp, sum(n) FROM lab.plain WHERE x > 3 GROUP BY grp ORDER BY grp";
    let mut moved = Vec::new();
    for (rung, says) in
        [(PushdownLevel::Full, None), (PushdownLevel::Filter, Some("slices were filtered here")), (PushdownLevel::Raw, Some("slices were handed to the host"))]
    {
        let fleet = open(dir.path(), 2, AdaptiveMode::Always(Policy::Static(rung))).await;
        let (_, receipt) = answer(&fleet, sql).await;
        assert_eq!(receipt.drives.len(), 2);
        for drive in &receipt.drives {
            assert_eq!(drive.rung, Some(rung), "{drive:?}");
            match says {
                None => assert!(drive.reason.is_none(), "{drive:?}"),
                Some(says) => assert!(drive.reason.as_ref().is_some_and(|reason| reason.contains(says)), "{drive:?}"),
            }
        }
        moved.push(receipt.drives.iter().map(|drive| drive.bytes_sent).sum::<u64>());
    }
    assert!(moved[0] < moved[1] && moved[0] < moved[2], "states are the least that moves: {moved:?}");
}

/// Under every policy each slice counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_sent_raw_count_as_read_by_drives_and_run_by_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2, AdaptiveMode::Never).await;
    ingest(&fleet, "lab.plain", &batches(8, 500), false).await.unwrap();
    let (slices, stored) = (slices(&fleet, "lab.plain").await, fleet.describe(&name("lab.plain")).await.unwrap().bytes());
    drop(fleet);
    // All columns and all rows.
    let sql = "SELECT grp, sum(n), max(id), min(name), avg(x) FROM lab.plain GROUP BY grp ORDER BY grp";
    for policy in POLICIES {
        let fleet = open(dir.path(), 2, AdaptiveMode::Always(policy)).await;
        let (_, receipt) = answer(&fleet, sql).await;
        let (work, what) = (receipt.host_work, format!("{policy:?}"));
        assert_each_once(&receipt, slices, &what);
        match policy {
            Policy::Static(PushdownLevel::Raw) => {
                assert_eq!((work.slices, work.rows_read), (slices, 4000), "{receipt}");
                assert!(receipt.drives.iter().all(|drive| drive.slices == 0 && drive.above.bytes_read > 0), "{receipt}");
                assert!(work.bytes_read > stored / 2 && work.bytes_read <= stored, "{work:?} of {stored} bytes");
                assert!(receipt.bytes_read < 3 * stored, "{} of {stored} bytes", receipt.bytes_read);
                let (text, tree) = (receipt.to_string(), receipt.tree());
                assert!(text.contains("that drives handed out (") && !text.contains(", 0 B read"), "{text}");
                assert!(tree.contains("the host in the place of drives"), "{tree}");
            }
            // Only their rows were aggregated here.
            Policy::Static(PushdownLevel::Filter) => {
                assert!(work.slices == 0 && work.seconds > 0.0, "{work:?}");
                assert!(receipt.to_string().contains("for rows that drives had filtered"), "{receipt}");
            }
            Policy::Static(PushdownLevel::Full) => assert!(work.is_none() && !receipt.to_string().contains("of it for"), "{receipt}"),
            Policy::Adaptive => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_sent_raw_count_although_the_reader_stops_early() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2, AdaptiveMode::Always(Policy::Static(PushdownLevel::Raw))).await;
    ingest(&fleet, "lab.plain", &batches(20, 500), false).await.unwrap();
    let mut query = fleet.sql("SELECT * FROM lab.plain WHERE n > 0", &QueryOptions::default()).await.unwrap();
    let handle = query.receipt.clone();
    query.stream.next().await.unwrap().unwrap();
    drop(query);
    let receipt = handle.receipt();
    assert!(!receipt.finished && receipt.bytes_read > 0, "{receipt}");
    assert!(receipt.drives.iter().any(|drive| drive.bytes_read > 0 && drive.bytes_sent > 0), "{receipt}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adaptive_execution_works_over_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(40, 2000);
    let drives: Vec<_> = (0..3).map(|n| serve_drive_at("127.0.0.1:0", dir.path(), n)).collect();
    for (at, policy) in POLICIES.into_iter().enumerate() {
        let host = serve_host_with("127.0.0.1:0", &drives, AdaptiveMode::Always(policy));
        let fleet = Fleet::connect(&format!("grpc://{}", host.address)).await.unwrap();
        if at == 0 {
            ingest(&fleet, "lab.plain", &rows, false).await.unwrap();
        }
        for (sql, ordered) in QUERIES.iter().step_by(2).take(8) {
            let given = query(&fleet, sql, Pushdown::Adaptive).await.unwrap_or_else(|e| panic!("{policy:?}: {sql}: {e}"));
            assert_as_reference(&rows, (sql, *ordered), given, &format!("{policy:?}")).await;
        }
        let (_, receipt) = answer(&fleet, "SELECT grp, sum(n) FROM lab.plain WHERE x > 3 GROUP BY grp").await;
        if let Policy::Static(rung) = policy {
            assert!(receipt.drives.iter().all(|drive| drive.rung == Some(rung)), "{:?}", receipt.drives);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_without_memory_for_states_leaves_them_to_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(160, 2000);
    let sql = "SELECT id, grp, sum(n), min(name) FROM lab.plain GROUP BY id, grp ORDER BY id";
    let fleet = open(dir.path(), 2, AdaptiveMode::Never).await;
    ingest(&fleet, "lab.plain", &rows, false).await.unwrap();
    let (expected, _) = answer(&fleet, sql).await;
    drop(fleet);
    let options = OpenOptions { drives: Some(2), memory_per_drive: Some(6 << 20), ..OpenOptions::default() };
    let host = |moving| HostOptions { moving, threads: 2, ..HostOptions::default() };
    let fleet = Fleet::open_with(dir.path(), &options, host(AdaptiveMode::Never)).await.unwrap();
    let error = fleet.sql(sql, &QueryOptions::default()).await.unwrap().collect().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
    drop(fleet);
    for policy in [Policy::Adaptive, Policy::Static(PushdownLevel::Full)] {
        let fleet = Fleet::open_with(dir.path(), &options, host(AdaptiveMode::Always(policy))).await.unwrap();
        let (given, receipt) = answer(&fleet, sql).await;
        assert_eq!(given, expected, "{policy:?}");
        assert!(receipt.drives.iter().all(|drive| drive.rung != Some(PushdownLevel::Full)), "{:?}", receipt.drives);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_reader_stops_drives_and_bounds_host_memory() {
    const ROWS: usize = 60_000;
    let dir = tempfile::tempdir().unwrap();
    let mut host = HostOptions { moving: AdaptiveMode::Always(Policy::Static(PushdownLevel::Full)), threads: 2, ..HostOptions::default() };
    // Rows wait for their epochs to be complete as well: those are small.
    host.limits.memory = 16 << 20;
    let options = OpenOptions { drives: Some(2), memory_per_drive: Some(64 << 20), ..OpenOptions::default() };
    let fleet = Fleet::open_with(dir.path(), &options, host).await.unwrap();
    let random = &mut Random(3);
    let mut column = || Arc::new(Int64Array::from_iter_values((0..ROWS).map(|_| random.below(1 << 52) as i64))) as ArrayRef;
    let batches: Vec<_> = (0..50).map(|_| RecordBatch::try_from_iter([("a", column()), ("b", column()), ("c", column()), ("d", column())]).unwrap()).collect();
    ingest(&fleet, "lab.big", &batches, false).await.unwrap();
    let mut query = fleet.sql("SELECT * FROM lab.big WHERE a >= 0", &QueryOptions::default()).await.unwrap();
    let receipt = query.receipt.clone();
    let sent = || receipt.receipt().drives.iter().map(|drive| drive.bytes_sent).sum::<u64>();
    let mut rows = query.stream.next().await.unwrap().unwrap().num_rows();
    // Longer than rows wait for others; what comes in comes in within that time.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let resting = sent();
    while let Some(batch) = query.stream.next().await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!(rows, ROWS * 50);
    // As long as one drive has sent nothing yet, on a busy machine, its reader may be what another one's rows wait for:
    // they go to disk then, at most all of that one. The rest does not come.
    assert!(resting < 84 << 20 && sent() > 90 << 20, "{resting} of {} bytes came while nobody read", sent());
}
