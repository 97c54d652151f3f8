//! Trees of drives: hosts that are drives of other hosts. Every tree gives the same answer, and receipts show every
//! level.

use std::path::Path;
use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use skytether::{AdaptiveMode, DatasetKind, HostOptions, Placement, Pushdown, QueryOptions, Receipt};
use skytether_aggregator::Aggregator;
use skytether_common::{Kind, Result};
use skytether_drive::{Cse, Device, Drive, DriveOptions, linked};
use skytether_flight_drive::{ConnectOptions, FlightCse};
use skytether_host::{Founding, Host};
use skytether_scheduler::message::PushdownLevel;
use skytether_scheduler::query::Policy;
use skytether_slice::SliceOptions;
use skytether_store::disk::DriveIdentity;

use crate::expression::{CELLS, matrix, tables, write_by, write_cells};
use crate::served::Server;
use crate::tables::{QUERIES, assert_as_reference};
use crate::util::{batches, lines, name};

const POLICIES: [Policy; 4] =
    [Policy::Adaptive, Policy::Static(PushdownLevel::Full), Policy::Static(PushdownLevel::Filter), Policy::Static(PushdownLevel::Raw)];

fn options(moving: AdaptiveMode) -> HostOptions {
    HostOptions { slices: SliceOptions { target_bytes: 8 << 10, ..SliceOptions::default() }, moving, threads: 2, ..HostOptions::default() }
}

fn drive(dir: &Path, name: &str, device: Option<&str>) -> Arc<dyn Cse> {
    let digits = name.bytes().fold(0u128, |sum, byte| sum * 256 + u128::from(byte));
    let identity = DriveIdentity { id: uuid::Uuid::from_u128(digits + 1), name: name.to_owned() };
    let device = device.and_then(|device| Device::given(device).unwrap());
    linked(Drive::open(&dir.join(name), Some(identity), DriveOptions { memory_limit: 64 << 20, device, ..DriveOptions::default() }).unwrap())
}

async fn aggregator(name: &str, drives: Vec<Arc<dyn Cse>>, moving: AdaptiveMode) -> Result<Arc<dyn Cse>> {
    Ok(Aggregator::open(name, drives, options(moving), Founding::EmptyDrives, None).await? as Arc<dyn Cse>)
}

/// Three levels. The host is over three members: an aggregator of three drives, an aggregator of an aggregator of two
/// and a drive, and a drive.
async fn tree(dir: &Path, above: AdaptiveMode, below: AdaptiveMode) -> Host {
    let left = aggregator("left", ["a", "b", "c"].map(|name| drive(dir, name, None)).to_vec(), below).await.unwrap();
    let inner = aggregator("inner", vec![drive(dir, "d", None), drive(dir, "e", None)], below).await.unwrap();
    let right = aggregator("right", vec![inner, drive(dir, "f", None)], below).await.unwrap();
    Host::join(vec![left, right, drive(dir, "g", None)], options(above), Founding::EmptyDrives).await.unwrap().0
}

async fn fill(host: &Host, rows: &[RecordBatch]) {
    let mut writer = host.writer(&name("lab.plain"), DatasetKind::Table, true).await.unwrap();
    writer.write_table("data", Placement::Spread, rows[0].schema(), rows.iter().cloned().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();
}

async fn ask(host: &Host, sql: &str) -> Result<(Vec<String>, Receipt)> {
    let query = host.sql(sql, &QueryOptions { cut: Pushdown::Adaptive, ..QueryOptions::default() }).await?;
    let receipt = query.receipt.clone();
    let rows = lines(&query.collect().await?);
    Ok((rows, receipt.receipt()))
}

async fn check(host: &Host, rows: &[RecordBatch], what: &str, queries: impl Iterator<Item = &'static (&'static str, bool)>) {
    for (sql, ordered) in queries {
        let (given, _) = ask(host, sql).await.unwrap_or_else(|e| panic!("{what}: {sql}: {e}"));
        assert_as_reference(rows, (sql, *ordered), given, what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_tree_answers_as_one_engine() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(8, 500);
    let host = tree(dir.path(), AdaptiveMode::Never, AdaptiveMode::Never).await;
    fill(&host, &rows).await;
    check(&host, &rows, "as a whole", QUERIES.iter()).await;
    drop(host);
    for (at, below) in POLICIES.into_iter().enumerate() {
        for above in POLICIES {
            let host = tree(dir.path(), AdaptiveMode::Always(above), AdaptiveMode::Always(below)).await;
            // Each query under four of the sixteen pairs.
            check(&host, &rows, &format!("{above:?} over {below:?}"), QUERIES.iter().skip(at).step_by(4)).await;
        }
    }
}

/// Drives of an aggregator send states of about all groups each. The aggregator sends each group once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregators_merge_states_and_receipts_show_every_level() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(30, 1000);
    let host = tree(dir.path(), AdaptiveMode::Always(Policy::Static(PushdownLevel::Full)), AdaptiveMode::Always(Policy::Static(PushdownLevel::Full))).await;
    fill(&host, &rows).await;
    let (lines, receipt) = ask(&host, "SELECT grp, n % 20, sum(n), avg(x), stddev(x), min(name) FROM lab.plain GROUP BY grp, n % 20").await.unwrap();
    let groups = lines.len() as u64;
    let [left, right] = ["left", "right"].map(|name| receipt.drives.iter().find(|drive| drive.name == name).unwrap());
    assert_eq!(left.below.iter().map(|drive| drive.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(right.below.iter().map(|drive| drive.name.as_str()).collect::<Vec<_>>(), ["f", "inner"]);
    assert_eq!(right.below[1].below.iter().map(|drive| drive.name.as_str()).collect::<Vec<_>>(), ["d", "e"]);
    // Each of its drives has states of about all groups, and what goes up has each group once.
    let came: u64 = left.below.iter().map(|drive| drive.rows_out).sum();
    assert!(left.rows_out <= groups && came > 2 * left.rows_out, "{} of {came} states went up for {groups} groups", left.rows_out);
    // An aggregator's figures are the sums of its drives', and no slice was read twice.
    for drive in [left, right] {
        assert!(drive.slices > 0 && drive.slices == drive.below.iter().map(|below| below.slices).sum::<u64>(), "{drive:?}");
        assert_eq!(drive.bytes_read, drive.below.iter().map(|below| below.bytes_read).sum::<u64>());
    }
    let slices: u64 = receipt.drives.iter().map(|drive| drive.slices).sum();
    assert_eq!(Some(slices), receipt.drives.iter().map(|drive| drive.slices_total).sum::<Option<u64>>());
    let shown = receipt.to_string();
    for name in ["left", "inner", "│  ├─ a:", "d:"] {
        assert!(shown.contains(name), "{name} is missing in\n{shown}");
    }
}

/// Its drives send raw slices, which the aggregator processes. Receipts count rows, bytes and seconds for the
/// aggregator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_of_an_aggregator_counts_for_it_not_for_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let host = tree(dir.path(), AdaptiveMode::Always(Policy::Static(PushdownLevel::Full)), AdaptiveMode::Always(Policy::Static(PushdownLevel::Raw))).await;
    fill(&host, &batches(30, 1000)).await;
    let (_, receipt) = ask(&host, "SELECT grp, sum(n), avg(x), min(name) FROM lab.plain GROUP BY grp").await.unwrap();
    for name in ["left", "right"] {
        let drive = receipt.drives.iter().find(|drive| drive.name == name).unwrap();
        assert!(drive.below.iter().all(|below| below.slices == 0 && below.bytes_read >= below.above.bytes_read), "{drive:?}");
        assert!(drive.slices > 0 && drive.slices == drive.below.iter().map(|below| below.above.slices).sum::<u64>(), "{drive:?}");
        assert!(drive.below.iter().map(|below| below.above.seconds).sum::<f64>() > 0.0, "{drive:?}");
        assert_eq!(drive.bytes_read, drive.below.iter().map(|below| below.bytes_read).sum::<u64>());
        assert!(drive.bytes_read > 0 && drive.rows_read.is_some_and(|rows| rows > 0), "{drive:?}");
    }
    let slices: u64 = receipt.drives.iter().map(|drive| drive.slices).sum();
    assert_eq!(Some(slices), receipt.drives.iter().map(|drive| drive.slices_total).sum::<Option<u64>>());
    assert!(receipt.host_work.is_none(), "{:?}", receipt.host_work);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drives_of_many_speeds_work_in_one_tree() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(30, 1000);
    let slow = "speed_per_core = 0.02\ncores = 2\nmemory_bytes = 67108864\ndisk_bytes_per_s = 2e8\nlink_bits_per_s = 1e9\n";
    let quick = "speed_per_core = 0.5\ncores = 1\nmemory_bytes = 67108864\ndisk_bytes_per_s = 1e9\nlink_bits_per_s = 1e10\n";
    let below = aggregator("below", vec![drive(dir.path(), "a", Some(slow)), drive(dir.path(), "b", Some(quick))], AdaptiveMode::AsNeeded).await.unwrap();
    let middle = aggregator("middle", vec![below, drive(dir.path(), "c", Some(slow))], AdaptiveMode::AsNeeded).await.unwrap();
    let profile = middle.info().profile.unwrap();
    assert_eq!((profile.cores, profile.disk_bytes_per_s), (5, 1.4e9));
    assert!((profile.speed_per_core - (4.0 * 0.02 + 0.5) / 5.0).abs() < 1e-9);
    let host = Host::join(vec![middle, drive(dir.path(), "d", None)], options(AdaptiveMode::AsNeeded), Founding::EmptyDrives).await.unwrap().0;
    fill(&host, &rows).await;
    check(&host, &rows, "many speeds", QUERIES.iter().step_by(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_drive_of_an_aggregator_returns_its_slices() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(30, 1000);
    let plain = Host::join(vec![drive(dir.path(), "a", None)], options(AdaptiveMode::Never), Founding::EmptyDrives).await.unwrap().0;
    fill(&plain, &rows).await;
    drop(plain);
    // Nothing takes less than its processor time.
    let busy = DriveOptions { memory_limit: 64 << 20, max_load: 1.0, ..DriveOptions::default() };
    for policy in [Policy::Adaptive, Policy::Static(PushdownLevel::Full)] {
        let drive: Arc<dyn Cse> = Drive::open(&dir.path().join("a"), None, busy.clone()).unwrap();
        let host = Host::join(vec![drive], options(AdaptiveMode::Always(policy)), Founding::EmptyDrives).await.unwrap().0;
        check(&host, &rows, "busy", QUERIES.iter().step_by(6)).await;
        let (_, receipt) = ask(&host, "SELECT grp, sum(n) FROM lab.plain GROUP BY grp").await.unwrap();
        assert_eq!(receipt.drives[0].rung, Some(PushdownLevel::Raw), "{:?}", receipt.drives);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drives_of_an_aggregator_belong_to_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let drives = || vec![drive(dir.path(), "a", None), drive(dir.path(), "b", None)];
    let left = aggregator("left", drives(), AdaptiveMode::AsNeeded).await.unwrap();
    let id = left.info().id;
    let host = Host::join(vec![left], options(AdaptiveMode::AsNeeded), Founding::EmptyDrives).await.unwrap().0;
    fill(&host, &batches(4, 100)).await;
    drop(host);
    // A host would take everything for garbage.
    let error = Host::join(drives(), options(AdaptiveMode::AsNeeded), Founding::EmptyDrives).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("the aggregator left"), "{error}");
    let error = aggregator("other", drives(), AdaptiveMode::AsNeeded).await.unwrap_err();
    assert!(error.to_string().contains("the aggregator left, not of other"), "{error}");
    let error = aggregator("left", drives().split_off(1), AdaptiveMode::AsNeeded).await.unwrap_err();
    assert!(error.to_string().contains("missing: a"), "{error}");
    // In any order of its drives it is the same aggregator with the same content.
    let mut turned = drives();
    turned.reverse();
    let left = aggregator("left", turned, AdaptiveMode::AsNeeded).await.unwrap();
    assert_eq!(left.info().id, id);
    let host = Host::join(vec![left], options(AdaptiveMode::AsNeeded), Founding::EmptyDrives).await.unwrap().0;
    let (rows, _) = ask(&host, "SELECT count(*) FROM lab.plain").await.unwrap();
    assert_eq!(rows, ["400"]);
    // What is dropped is gone from all of them.
    host.catalog().drop_dataset(&name("lab.plain")).await.unwrap();
    drop(host);
    for drive in drives() {
        let keys: Vec<_> = drive.list("", None, 100).await.unwrap().into_iter().map(|entry| entry.key.to_string()).collect();
        assert!(keys.iter().all(|key| key.starts_with("skytether-fleet")), "{keys:?}");
    }
}

/// Cells after an append.
const MORE: u32 = CELLS + 40;

/// Appends the cells up to [`MORE`], as a part of the matrix.
async fn append(host: &Host) {
    let from = host.catalog().read(&name("lab.tiny")).await.unwrap().0.generation;
    let mut writer = host.version(&name("lab.tiny"), from).await.unwrap();
    writer.append_cells("x", &matrix(CELLS..MORE)).await.unwrap();
    for (title, batch) in tables(MORE) {
        writer.write_table(title, Placement::Everywhere, batch.schema(), [Ok(batch)].into_iter()).await.unwrap();
    }
    writer.commit().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expression_queries_work_over_a_tree() {
    let dir = tempfile::tempdir().unwrap();
    let queries = [
        "SELECT gene, m['group'], m['n'], m['nnz'], round(m['mean'], 4), round(m['m2'], 2) FROM \
         (SELECT gene, unnest(cell_moments(cell, value, 'cell_type', NULL)) AS m FROM lab.tiny.x GROUP BY gene)",
        "SELECT gene, count(*) FROM (SELECT gene, cell_moments(cell, value, 'cell_type', 'log1p_cp10k') AS m FROM lab.tiny.x GROUP BY gene) GROUP BY gene ORDER BY gene",
        "SELECT cell, sum(value) FROM lab.tiny.x WHERE gene = 'G7' GROUP BY cell ORDER BY cell",
        "SELECT gene, sum(value) FROM lab.tiny.x GROUP BY gene ORDER BY gene",
        "SELECT cell_type, count(*) FROM lab.tiny.obs GROUP BY cell_type ORDER BY cell_type",
        "SELECT count(DISTINCT gene), sum(nnz) FROM lab.tiny.x_rows",
        "SELECT gene, r['sum'], r['ties'] FROM (SELECT gene, unnest(rank_sums(idx, val, block, \
         '{\"of\": {\"dataset\": \"lab.tiny\", \"matrix\": \"x\", \"groups\": {\"obs\": \"cell_type\"}, \"transform\": null}}')) AS r \
         FROM lab.tiny.x_rows GROUP BY gene)",
    ];
    let plain = Host::join(vec![drive(dir.path(), "plain", None)], options(AdaptiveMode::Never), Founding::EmptyDrives).await.unwrap().0;
    let mut expected = Vec::new();
    for cells in [CELLS, MORE] {
        write_cells(plain.writer(&name("lab.tiny"), DatasetKind::Expression, true).await.unwrap(), cells).await;
        let mut of_cells = Vec::new();
        for sql in queries {
            let (mut rows, _) = ask(&plain, sql).await.unwrap();
            rows.sort();
            of_cells.push(rows);
        }
        expected.push(of_cells);
    }
    // One slice per aggregator, and several.
    for max_rows in [SliceOptions::default().max_rows, 4] {
        for moving in [
            AdaptiveMode::Never,
            AdaptiveMode::Always(Policy::Static(PushdownLevel::Full)),
            AdaptiveMode::Always(Policy::Adaptive),
            AdaptiveMode::Always(Policy::Static(PushdownLevel::Raw)),
        ] {
            let mut options = options(moving);
            options.slices.max_rows = max_rows;
            let dir = tempfile::tempdir().unwrap();
            let left = aggregator("left", ["a", "b", "c"].map(|name| drive(dir.path(), name, None)).to_vec(), moving).await.unwrap();
            let host = Host::join(vec![left, drive(dir.path(), "d", None)], options, Founding::EmptyDrives).await.unwrap().0;
            write_by(host.writer(&name("lab.tiny"), DatasetKind::Expression, false).await.unwrap()).await;
            for (cells, expected) in [CELLS, MORE].into_iter().zip(&expected) {
                if cells == MORE {
                    append(&host).await;
                }
                for (sql, expected) in queries.iter().zip(expected) {
                    let (mut given, _) = ask(&host, sql).await.unwrap_or_else(|e| panic!("{cells} cells, {moving:?}: {sql}: {e}"));
                    given.sort();
                    assert_eq!(given, *expected, "{cells} cells, {moving:?}: {sql}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregator_is_served_like_a_drive() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(20, 1000);
    let open = |name: &'static str, drives: [&'static str; 2]| {
        let (send, receive) = std::sync::mpsc::channel();
        let path = dir.path().to_owned();
        let server = Server::start(move |listener| async move {
            let drives = drives.map(|name| drive(&path, name, None)).to_vec();
            let served = aggregator(name, drives, AdaptiveMode::AsNeeded).await.unwrap();
            send.send(()).unwrap();
            skytether_flight_drive::serve(served, listener, std::future::pending()).await.unwrap();
        });
        receive.recv().unwrap();
        server
    };
    let servers = [open("left", ["a", "b"]), open("right", ["c", "d"])];
    let connect = || async {
        let mut drives: Vec<Arc<dyn Cse>> = Vec::new();
        for server in &servers {
            drives.push(FlightCse::connect(&server.address, ConnectOptions::default()).await.unwrap());
        }
        drives
    };
    let host = Host::join(connect().await, options(AdaptiveMode::AsNeeded), Founding::EmptyDrives).await.unwrap().0;
    fill(&host, &rows).await;
    check(&host, &rows, "served", QUERIES.iter()).await;
    for policy in POLICIES {
        let host = Host::join(connect().await, options(AdaptiveMode::Always(policy)), Founding::EmptyDrives).await.unwrap().0;
        check(&host, &rows, "served", QUERIES.iter().step_by(5)).await;
    }
    let (_, receipt) = ask(&host, "SELECT grp, sum(n) FROM lab.plain GROUP BY grp").await.unwrap();
    assert!(receipt.drives.iter().all(|drive| drive.below.len() == 2), "{:?}", receipt.drives);
}
