//! Indexes that drives build: the same answers with them as without, whatever becomes of them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array, Int64Array, StringArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::datatypes::Int32Type;
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use skytether::{
    DatasetKind, Fleet, HostOptions, IndexInfo, ListIndexes, NewIndex, OldIndex, Placement, Pushdown, QueryOptions, Receipt, RepairOptions, ResizeOptions,
};
use skytether_common::{Kind, PartitionName, Result};
use skytether_drive::{Cse, DriveOptions};
use skytether_host::{Founding, Host};
use skytether_store::disk::{DiskStore, DriveIdentity};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, StoreLayer};
use uuid::Uuid;

use crate::redundancy::{bring_back, dir_of, lose};
use crate::util::{CUTS, batches, drive_over, ingest, lines, name, open, query, usage};

pub(crate) fn new(dataset: &str, columns: &[&str], include: &[&str]) -> NewIndex {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    NewIndex { dataset: name(dataset), table: "data".into(), name: None, columns: owned(columns), include: owned(include) }
}

pub(crate) fn old(dataset: &str, index: &str) -> OldIndex {
    OldIndex { dataset: name(dataset), name: index.to_owned() }
}

pub(crate) async fn built(fleet: &Fleet, dataset: &str, index: &str) -> IndexInfo {
    fleet.wait_for_index(&old(dataset, index), |_| Ok(())).await.unwrap_or_else(|e| panic!("{}", e.report()))
}

async fn index(fleet: &Fleet, asked: NewIndex) -> IndexInfo {
    let dataset = asked.dataset.to_string();
    let name = fleet.create_index(&asked).await.unwrap_or_else(|e| panic!("{}", e.report()));
    built(fleet, &dataset, &name).await
}

async fn asked(fleet: &Fleet, sql: &str, cut: Pushdown) -> (Vec<String>, Receipt) {
    let options = QueryOptions { cut, ..QueryOptions::default() };
    let mut query = fleet.sql(sql, &options).await.unwrap_or_else(|e| panic!("{sql}: {}", e.report()));
    let mut rows = Vec::new();
    while let Some(batch) = futures::StreamExt::next(&mut query.stream).await {
        rows.push(batch.unwrap_or_else(|e| panic!("{sql} ({cut}): {}", e.report())));
    }
    (lines(&rows), query.receipt.receipt())
}

fn used(receipt: &Receipt) -> usize {
    receipt.drives.iter().map(|drive| drive.indexes.len()).sum()
}

/// Numbers in no order, the same in every run.
fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (n ^ (n >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
}

/// Columns of most types, with NULLs, NaNs, both zeros, and texts that begin alike.
fn anything(rows: u64, from: u64) -> RecordBatch {
    let all = || (from..from + rows).map(mixed);
    let some = |m: u64, every: u64| !m.is_multiple_of(every);
    let floats = |m: u64| match m % 23 {
        0 => f32::NAN,
        1 => -0.0,
        2 => 0.0,
        3 => f32::INFINITY,
        _ => (m % 20_011) as f32 / 64.0 - 100.0,
    };
    let words: DictionaryArray<Int32Type> = all().map(|m| some(m, 13).then(|| ["low", "middle", "high", "higher"][(m % 4) as usize])).collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("f", Arc::new(Float32Array::from_iter(all().map(|m| some(m, 29).then(|| floats(m)))))),
        ("i", Arc::new(Int64Array::from_iter(all().map(|m| some(m, 17).then_some((m % 4001) as i64 - 2000))))),
        ("u", Arc::new(UInt64Array::from_iter_values(all().map(|m| if m % 31 == 0 { u64::MAX - m % 5 } else { m % 100_000 })))),
        ("s", Arc::new(StringArray::from_iter(all().map(|m| some(m, 19).then(|| format!("particle-{:05}", m % 30_000)))))),
        ("b", Arc::new(BooleanArray::from_iter(all().map(|m| some(m, 7).then_some(m % 3 == 0))))),
        ("d", Arc::new(Date32Array::from_iter_values(all().map(|m| (m % 20_000) as i32)))),
        ("t", Arc::new(TimestampMicrosecondArray::from_iter_values(all().map(|m| (m % 1_000_000_000) as i64 * 1_000_000)))),
        ("c", Arc::new(Decimal128Array::from_iter_values(all().map(|m| i128::from(m % 1_000_000) - 500_000)).with_precision_and_scale(12, 2).unwrap())),
        ("w", Arc::new(words)),
        ("id", Arc::new(UInt64Array::from_iter_values(from..from + rows))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

/// A condition on some columns.
fn condition(seed: u64) -> String {
    let part = |seed: u64| {
        let m = mixed(seed);
        let (a, b) = (mixed(m) % 1000, mixed(m ^ 5) % 60);
        match m % 22 {
            0 => format!("f > {}", a as f64 / 5.0 + 5.0),
            1 => format!("f BETWEEN {} AND {}", a as f64 / 5.0 - 60.0, a as f64 / 5.0 - 59.0),
            2 => "f = 0.0".to_owned(),
            3 => "f = -0.0".to_owned(),
            4 => "f = CAST('NaN' AS FLOAT)".to_owned(),
            5 => "f IS NULL".to_owned(),
            6 => format!("i = {}", 4 * a as i64 - 2000),
            7 => format!("i IN ({}, {}, {})", a, b, a + b),
            8 => format!("i >= {} AND i < {}", a, a + b),
            9 => format!("i > {}.5", 1000 + a),
            10 => "i IS NULL AND f IS NOT NULL".to_owned(),
            11 => format!("u < {b}"),
            12 => "u > 18446744073709551610".to_owned(),
            13 => format!("s = 'particle-{:05}'", 30 * a),
            14 => format!("s > 'particle-{:05}' AND s <= 'particle-{:05}'", 20 * a, 20 * a + 30),
            15 => format!("d = DATE '1975-03-{:02}'", a % 31 + 1),
            16 => format!("t < TIMESTAMP '1970-01-{:02} 00:00:00'", b % 20 + 2),
            17 => format!("c > {}", 4990 - b as i64 / 2),
            18 => "b AND w = 'high'".to_owned(),
            19 => format!("(i = {a} OR s < 'particle-00100')"),
            20 => format!("NOT (f <= {})", 200 + a / 10),
            _ => format!("abs(i) < {b} AND i < 500"),
        }
    };
    if mixed(seed ^ 77).is_multiple_of(2) { part(seed) } else { format!("{} AND {}", part(seed), part(seed ^ 123_456)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_by_any_range_are_equal_with_and_without_indexes() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    let rows: Vec<_> = (0..12).map(|at| anything(2000, 2000 * at)).collect();
    ingest(&fleet, "lab.a", &rows, false).await.unwrap();
    let queries: Vec<String> = (0..120).map(|seed| format!("SELECT id, f, i, s FROM lab.a WHERE {} ORDER BY id", condition(seed))).collect();
    let mut due = Vec::new();
    for sql in &queries {
        let (rows, receipt) = asked(&fleet, sql, Pushdown::Full).await;
        assert_eq!(used(&receipt), 0);
        due.push(rows);
    }
    for columns in [&["f"][..], &["i", "s"], &["u", "d", "t", "c"], &["s"], &["b", "w", "f"]] {
        let info = index(&fleet, new("lab.a", columns, &[])).await;
        assert_eq!((info.rows, info.state.as_str(), info.drives.len()), (24_000, "ready", 2));
    }
    let values = index(&fleet, NewIndex { name: Some("values".into()), ..new("lab.a", &["i", "f"], &["id", "s"]) }).await;
    assert!(values.bytes > 24_000 * 20, "{values}");
    let mut uses = 0;
    for (sql, due) in queries.iter().zip(&due) {
        for cut in CUTS {
            let (rows, receipt) = asked(&fleet, sql, cut).await;
            assert_eq!(&rows, due, "{sql} ({cut})\n{receipt}");
            uses += used(&receipt);
        }
    }
    // Not with `raw`, where drives send slices raw, and not where most rows match.
    assert!(uses > 200, "{uses}");
    let (_, receipt) = asked(&fleet, "SELECT id, f, i, s FROM lab.a WHERE i = 7", Pushdown::Adaptive).await;
    assert!(receipt.drives.iter().all(|d| d.slices == 0 && d.indexes.iter().all(|index| index.covers && index.name == "values")), "{receipt}");
    assert!(receipt.to_string().contains("index values: ") && receipt.to_string().contains("of it read"), "{receipt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fewer_slices_are_read_for_the_rows_that_an_index_finds() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(60, 1000), false).await.unwrap();
    let sql = "SELECT id, name, x FROM lab.t WHERE x = 250.0 ORDER BY id";
    let (due, before) = asked(&fleet, sql, Pushdown::Full).await;
    index(&fleet, new("lab.t", &["x"], &[])).await;
    let (rows, after) = asked(&fleet, sql, Pushdown::Full).await;
    let slices = |receipt: &Receipt| receipt.drives.iter().map(|d| d.slices).sum::<u64>();
    assert_eq!(rows, due);
    assert!(!due.is_empty() && used(&after) == 2 && slices(&after) <= due.len() as u64 && slices(&before) > 10 * slices(&after), "{before}\n{after}");
    let scanned = |receipt: &Receipt| receipt.drives.iter().filter_map(|d| d.rows_read).sum::<u64>();
    assert_eq!(scanned(&after), due.len() as u64, "other rows are passed over");
    // Where nearly all is wanted, slices are read as ever.
    let (_, all) = asked(&fleet, "SELECT sum(n) FROM lab.t WHERE x > 1.0", Pushdown::Full).await;
    assert_eq!(used(&all), 0, "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_created_listed_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(6, 1000), false).await.unwrap();
    let before = usage(&fleet).await;
    let info = index(&fleet, NewIndex { name: Some("by-x".into()), ..new("lab.t", &["x", "n"], &["id"]) }).await;
    assert_eq!((info.index.columns.len(), info.done, info.rows, info.drives.len()), (2, 1.0, 6000, 3));
    assert!(info.to_string().contains("lab.t.data by-x on x, n with id: ready, 6,000 rows"), "{info}");
    let again = fleet.create_index(&NewIndex { name: Some("by-x".into()), ..new("lab.t", &["grp"], &[]) }).await.unwrap_err();
    assert!(again.kind() == Kind::Conflict && again.message().contains("by-x"), "{again}");
    for (wrong, kind) in [
        (new("lab.t", &["nothing"], &[]), Kind::NotFound),
        (new("lab.t", &["x"], &["x"]), Kind::Invalid),
        (new("lab.t", &[], &[]), Kind::Invalid),
        (new("lab.none", &["x"], &[]), Kind::NotFound),
        (NewIndex { table: "other".into(), ..new("lab.t", &["x"], &[]) }, Kind::NotFound),
        (NewIndex { name: Some("a/b".into()), ..new("lab.t", &["x"], &[]) }, Kind::Invalid),
    ] {
        assert_eq!(fleet.create_index(&wrong).await.unwrap_err().kind(), kind, "{wrong:?}");
    }
    // A data set that is replaced has its indexes again, and nothing of the old ones is left.
    ingest(&fleet, "lab.t", &batches(7, 1000), true).await.unwrap();
    assert_eq!(built(&fleet, "lab.t", "by-x").await.rows, 7000);
    assert_eq!(fleet.indexes(&ListIndexes::default()).await.unwrap().len(), 1);
    ingest(&fleet, "lab.t", &batches(6, 1000), true).await.unwrap();
    built(&fleet, "lab.t", "by-x").await;
    assert_eq!(fleet.drop_index(&old("lab.t", "by_x")).await.unwrap_err().kind(), Kind::NotFound);
    fleet.drop_index(&old("lab.t", "by-x")).await.unwrap();
    assert!(fleet.indexes(&ListIndexes::default()).await.unwrap().is_empty());
    assert_eq!(usage(&fleet).await.0, before.0);
    // Of a matrix there are none; a dropped data set takes its indexes along.
    crate::expression::write(&fleet, "blood.tiny").await;
    let matrix = fleet.create_index(&NewIndex { table: "x".into(), ..new("blood.tiny", &["nnz"], &[]) }).await.unwrap_err();
    assert_eq!(matrix.kind(), Kind::Unsupported, "{matrix}");
    fleet.drop_dataset(&name("blood.tiny")).await.unwrap();
    index(&fleet, new("lab.t", &["x"], &[])).await;
    fleet.drop_dataset(&name("lab.t")).await.unwrap();
    assert!(fleet.indexes(&ListIndexes::default()).await.unwrap().is_empty());
    let status = fleet.status().await.unwrap();
    assert!(status.iter().all(|d| d.usage.unwrap().keys == 1), "only the record of the fleet: {status:?}");
}

/// Files of values of a drive that begin like heads of indexes, or have more than that of any.
fn index_files(dir: &Path, drive: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for below in fs::read_dir(dir_of(dir, drive).join("slices")).unwrap() {
        for file in fs::read_dir(below.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            // Neither a slice nor a metadata slice nor JSON.
            if !bytes.starts_with(b"PAR1") && !bytes.starts_with(b"SKYMETA") && !bytes.starts_with(b"{") {
                found.push(path);
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_indexes_are_not_used_and_are_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let sql = "SELECT id, x FROM lab.t WHERE x = 250.0 ORDER BY id";
    let due = {
        let fleet = open(dir.path(), 2).await.unwrap();
        ingest(&fleet, "lab.t", &batches(60, 1000), false).await.unwrap();
        let due = query(&fleet, sql, Pushdown::Full).await.unwrap();
        index(&fleet, new("lab.t", &["x"], &["id"])).await;
        due
    };
    for heads in [false, true] {
        for file in index_files(dir.path(), 0) {
            let mut bytes = fs::read(&file).unwrap();
            if bytes.starts_with(b"SKYINDX") == heads {
                // Pages all over.
                bytes.iter_mut().skip(20).step_by(50).for_each(|byte| *byte ^= 0x10);
                fs::write(&file, &bytes).unwrap();
            }
        }
        let fleet = open(dir.path(), 2).await.unwrap();
        assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), due, "heads {heads}");
        // The drive finds the damage, and builds the index again by itself.
        let mut whole = false;
        for _ in 0..600 {
            let (rows, receipt) = asked(&fleet, sql, Pushdown::Full).await;
            assert_eq!(rows, due);
            whole = used(&receipt) == 2;
            if whole {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert!(whole, "heads {heads}: {:?}", fleet.indexes(&ListIndexes::default()).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn index_not_built_at_close_is_built_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(40, 1000);
    let sql = "SELECT count(*), sum(n) FROM lab.t WHERE x > 620.0";
    let due = {
        let fleet = open(dir.path(), 2).await.unwrap();
        ingest(&fleet, "lab.t", &rows, false).await.unwrap();
        let due = query(&fleet, sql, Pushdown::Full).await.unwrap();
        // It is closed at once, while the drives build.
        fleet.create_index(&new("lab.t", &["x"], &["n"])).await.unwrap();
        due
    };
    let fleet = open(dir.path(), 2).await.unwrap();
    // Queries and ingests continue during the build.
    for at in 0..5 {
        assert_eq!(query(&fleet, sql, CUTS[at % 4]).await.unwrap(), due);
        ingest(&fleet, "lab.other", &rows[..3], at > 0).await.unwrap();
    }
    assert_eq!(built(&fleet, "lab.t", "x").await.rows, 40_000);
    let (rows, receipt) = asked(&fleet, sql, Pushdown::Full).await;
    assert_eq!((rows, used(&receipt)), (due.clone(), 2), "{receipt}");
    drop(fleet);
    // And it is there at once from then on.
    let fleet = open(dir.path(), 2).await.unwrap();
    let (rows, receipt) = asked(&fleet, sql, Pushdown::Full).await;
    assert_eq!((rows, used(&receipt)), (due, 2), "{receipt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn degraded_reads_need_no_index_and_repair_rebuilds_them() {
    let dir = tempfile::tempdir().unwrap();
    let open = || crate::redundancy::open(dir.path(), 5, "ec:3+1");
    let sql = "SELECT id, x FROM lab.t WHERE x BETWEEN 100.0 AND 101.0 ORDER BY id";
    let due = {
        let fleet = open().await.unwrap();
        ingest(&fleet, "lab.t", &batches(60, 1000), false).await.unwrap();
        let due = query(&fleet, sql, Pushdown::Full).await.unwrap();
        index(&fleet, new("lab.t", &["x"], &["id"])).await;
        due
    };
    lose(dir.path(), &[2]);
    {
        let fleet = open().await.unwrap();
        let (rows, receipt) = asked(&fleet, sql, Pushdown::Adaptive).await;
        assert_eq!(rows, due, "{receipt}");
        assert!(used(&receipt) >= 3, "{receipt}");
        let listed = fleet.indexes(&ListIndexes::default()).await.unwrap();
        assert_eq!(listed[0].drives.len(), 4, "{listed:?}");
        let options = RepairOptions { drives: vec!["drive-2".into()], ..RepairOptions::default() };
        fleet.repair(&options, &|_| ()).await.unwrap_or_else(|e| panic!("{}", e.report()));
        let info = built(&fleet, "lab.t", "x").await;
        assert_eq!((info.drives.len(), info.rows), (5, 60_000), "{info}");
        let (rows, receipt) = asked(&fleet, sql, Pushdown::Adaptive).await;
        assert_eq!((rows, used(&receipt)), (due.clone(), 5), "{receipt}");
    }
    // A drive that was away while an index was dropped keeps nothing of it.
    lose(dir.path(), &[1]);
    open().await.unwrap().drop_index(&old("lab.t", "x")).await.unwrap();
    bring_back(dir.path(), &[1]);
    let fleet = open().await.unwrap();
    assert!(fleet.indexes(&ListIndexes::default()).await.unwrap().is_empty());
    drop(fleet);
    assert!((0..5).all(|drive| index_files(dir.path(), drive).iter().all(|file| !fs::read(file).unwrap().starts_with(b"SKYINDX"))));
}

/// Two drives over directories, each with an optional capacity in bytes.
pub(crate) fn drives_of(dir: &Path, capacities: [Option<u64>; 2]) -> Vec<Arc<dyn Cse>> {
    let drive = |n: usize| {
        let create = Some(DriveIdentity { id: Uuid::from_u128(n as u128 + 1), name: format!("drive-{n}") });
        let options = skytether_store::disk::OpenOptions { create, capacity: capacities[n], ..skytether_store::disk::OpenOptions::default() };
        let store = DiskStore::open(&dir.join(n.to_string()), options).unwrap();
        drive_over(n, Arc::new(store), DriveOptions { memory_limit: 64 << 20, index_free: 0.0, ..DriveOptions::default() }) as Arc<dyn Cse>
    };
    (0..2).map(drive).collect()
}

/// A full drive has no space for the definition of an index. The fleet opens, so that a client can drop something.
#[tokio::test(flavor = "multi_thread")]
async fn fleet_opens_although_a_full_drive_lacks_a_definition() {
    let dir = tempfile::tempdir().unwrap();
    let rows = batches(6, 1000);
    let small = || {
        let mut options = HostOptions::default();
        options.slices.target_bytes = 8 << 10;
        options
    };
    let (mut used, home) = {
        let host = Host::join(drives_of(dir.path(), [None; 2]), small(), Founding::EmptyDrives).await.unwrap().0;
        let mut writer = host.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
        writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
        writer.commit().await.unwrap();
        let mut used = [None; 2];
        for (n, drive) in host.drives().iter().enumerate() {
            used[n] = Some(drive.usage().await.unwrap().value_bytes);
        }
        (used, host.drives()[host.catalog().home(&name("lab.t"))].info().id)
    };
    // The drive of the root record has space.
    used[home.as_u128() as usize - 1] = None;
    let host = Host::join(drives_of(dir.path(), used), small(), Founding::EmptyDrives).await.unwrap().0;
    let error = host.catalog().create_index(&new("lab.t", &["x"], &[])).await.unwrap_err();
    assert!(error.kind() == Kind::Exhausted && error.report().contains("is noted, but not all drives could be told"), "{}", error.report());
    drop(host);
    // The fleet opens, with the index on drives with space, so that a client can drop something.
    let host = Host::join(drives_of(dir.path(), used), small(), Founding::EmptyDrives).await.unwrap_or_else(|e| panic!("{}", e.report())).0;
    let listed = host.catalog().indexes(&ListIndexes::default()).await.unwrap();
    assert!(listed[0].state != "ready" && listed[0].drives.len() == 2, "{listed:?}");
    host.catalog().drop_dataset(&name("lab.t")).await.unwrap();
    drop(host);
    // What was being written of it just then goes now.
    let host = Host::join(drives_of(dir.path(), used), small(), Founding::EmptyDrives).await.unwrap().0;
    for drive in host.drives() {
        assert_eq!(drive.usage().await.unwrap().keys, 1, "only the record of the fleet");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn index_changes_during_a_rebalance_persist() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = crate::redundancy::open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(60, 1000), false).await.unwrap();
    index(&fleet, new("lab.t", &["n"], &[])).await;
    // While slices are on their way, once.
    let (changed, runtime) = (std::sync::Once::new(), tokio::runtime::Handle::current());
    let tell = |progress: &skytether::Progress| {
        if progress.done > 0 {
            changed.call_once(|| {
                tokio::task::block_in_place(|| {
                    runtime.block_on(async {
                        fleet.create_index(&new("lab.t", &["x"], &["id"])).await.unwrap();
                        fleet.drop_index(&old("lab.t", "n")).await.unwrap();
                    });
                });
            });
        }
    };
    let report = fleet.resize(&ResizeOptions { count: 1, ..ResizeOptions::default() }, &tell).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert!(changed.is_completed() && report.datasets == 1, "{report}");
    let listed = fleet.indexes(&ListIndexes::default()).await.unwrap();
    assert_eq!(listed.iter().map(|info| info.index.name.as_str()).collect::<Vec<_>>(), ["x"]);
    let info = built(&fleet, "lab.t", "x").await;
    assert_eq!((info.drives.len(), info.rows), (5, 60_000), "{info}");
    let (_, receipt) = asked(&fleet, "SELECT id, x FROM lab.t WHERE x BETWEEN 100.0 AND 101.0", Pushdown::Full).await;
    assert_eq!(used(&receipt), 5, "{receipt}");
}

/// While the drive is away, the index is dropped and created by another column under the same name.
#[tokio::test(flavor = "multi_thread")]
async fn returning_drive_learns_a_redefined_index() {
    let dir = tempfile::tempdir().unwrap();
    let open = || crate::redundancy::open(dir.path(), 5, "ec:3+1");
    let by = |column: &str| NewIndex { name: Some("i".into()), ..new("lab.t", &[column], &["id"]) };
    {
        let fleet = open().await.unwrap();
        ingest(&fleet, "lab.t", &batches(60, 1000), false).await.unwrap();
        index(&fleet, by("n")).await;
    }
    lose(dir.path(), &[1]);
    {
        let fleet = open().await.unwrap();
        fleet.drop_index(&old("lab.t", "i")).await.unwrap();
        assert_eq!(index(&fleet, by("x")).await.drives.len(), 4);
    }
    bring_back(dir.path(), &[1]);
    let fleet = open().await.unwrap();
    let info = built(&fleet, "lab.t", "i").await;
    assert_eq!((info.drives.len(), info.rows), (5, 60_000), "{info}");
    let (_, receipt) = asked(&fleet, "SELECT id, x FROM lab.t WHERE x BETWEEN 100.0 AND 101.0", Pushdown::Full).await;
    assert_eq!(used(&receipt), 5, "{receipt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn drives_learn_their_indexes_although_another_one_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let open = || crate::redundancy::open(dir.path(), 5, "ec:3+1");
    let sql = "SELECT id, x FROM lab.t WHERE x BETWEEN 100.0 AND 101.0 ORDER BY id";
    let due = {
        let fleet = open().await.unwrap();
        ingest(&fleet, "lab.t", &batches(60, 1000), false).await.unwrap();
        index(&fleet, new("lab.t", &["x"], &["id"])).await;
        query(&fleet, sql, Pushdown::Full).await.unwrap()
    };
    // A crash came before one drive got the definition, and another drive's definition is damaged.
    for (n, damaged) in [(0, false), (2, true)] {
        let store = DiskStore::open(&dir_of(dir.path(), n), skytether_store::disk::OpenOptions::default()).unwrap();
        let all = store
            .list("", None, 100_000)
            .unwrap()
            .into_iter()
            .filter(|entry| PartitionName::parse(&entry.key).is_some_and(|(at, _)| at.table == "index/x/data"));
        let (definition, slices): (Vec<_>, Vec<_>) = all.partition(|entry| !entry.key.as_str().contains(';'));
        assert!(definition.len() == 1 && slices.len() > 1);
        let key = definition[0].key.clone();
        let change = if damaged { Op::Put { key, value: "{".into(), expect: Expect::Any } } else { Op::Delete { key, expect: Expect::Any } };
        let deletes = slices.into_iter().map(|entry| Op::Delete { key: entry.key, expect: Expect::Any });
        store.apply(std::iter::once(change).chain(deletes).collect()).unwrap();
    }
    lose(dir.path(), &[4]);
    let fleet = open().await.unwrap();
    let mut uses = 0;
    for _ in 0..400 {
        let (rows, receipt) = asked(&fleet, sql, Pushdown::Full).await;
        assert_eq!(rows, due);
        uses = used(&receipt);
        if uses >= 4 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(uses, 4, "{:?}", fleet.indexes(&ListIndexes::default()).await);
}

/// A store in which something happens once, just before it takes the definition of an index.
#[derive(Default)]
struct Interrupted {
    inner: MemoryStore,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interrupted")
    }
}

impl StoreLayer for Interrupted {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.inner)
    }

    fn before_apply(&self, batch: &[Op]) -> Result<()> {
        let is_definition = |key| PartitionName::parse(key).is_some_and(|(at, slice)| slice.is_none() && skytether_index::of_partition(&at).is_some());
        if batch.iter().any(|op| matches!(op, Op::Put { key, .. } if is_definition(key))) {
            let meanwhile = self.meanwhile.lock().take();
            if let Some(meanwhile) = meanwhile {
                meanwhile();
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn index_dropped_before_drives_learn_it_stays_dropped() {
    let stores: Vec<Arc<Interrupted>> = (0..2).map(|_| Arc::default()).collect();
    let drive = |(n, store): (usize, &Arc<Interrupted>)| {
        let options = DriveOptions { memory_limit: 64 << 20, index_free: 0.0, ..DriveOptions::default() };
        drive_over(n, Arc::clone(store) as Arc<dyn SliceStore>, options) as Arc<dyn Cse>
    };
    let drives = stores.iter().enumerate().map(drive).collect();
    let host = Host::join(drives, HostOptions::default(), Founding::EmptyDrives).await.unwrap().0;
    let rows = batches(6, 1000);
    let mut writer = host.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
    writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();
    let before: Vec<u64> = stores.iter().map(|store| store.usage().unwrap().keys).collect();
    let by = |column: &str| NewIndex { name: Some("i".into()), ..new("lab.t", &[column], &[]) };
    let interrupt = |other: Option<NewIndex>| {
        let (catalog, runtime) = (host.catalog().clone(), tokio::runtime::Handle::current());
        let meanwhile = move || {
            runtime.block_on(async {
                catalog.drop_index(&old("lab.t", "i")).await.unwrap();
                if let Some(other) = other {
                    catalog.create_index(&other).await.unwrap();
                }
            });
        };
        // A table of a single slice is on one of them.
        let meanwhile = Arc::new(Mutex::new(Some(meanwhile)));
        for store in &stores {
            let meanwhile = Arc::clone(&meanwhile);
            let once = move || {
                let meanwhile = meanwhile.lock().take();
                if let Some(meanwhile) = meanwhile {
                    meanwhile();
                }
            };
            *store.meanwhile.lock() = Some(Box::new(once));
        }
    };

    interrupt(None);
    host.catalog().create_index(&by("x")).await.unwrap();
    assert!(host.catalog().indexes(&ListIndexes::default()).await.unwrap().is_empty());
    for (drive, (store, before)) in host.drives().iter().zip(stores.iter().zip(&before)) {
        assert!(drive.indexes().await.unwrap().is_empty(), "{:?}", drive.indexes().await);
        assert_eq!(store.usage().unwrap().keys, *before);
    }

    // Nor is it the old one where another one has its name.
    interrupt(Some(by("n")));
    host.catalog().create_index(&by("x")).await.unwrap();
    let listed = host.catalog().indexes(&ListIndexes::default()).await.unwrap();
    // On a busy machine a drive may take a moment to see the definition.
    let mut told = 0;
    for _ in 0..200 {
        for drive in host.drives() {
            for state in drive.indexes().await.unwrap() {
                assert_eq!(state.definition.unwrap().columns, ["n"]);
                told += 1;
            }
        }
        if told > 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert!(told > 0);
    assert_eq!((listed.len(), listed[0].index.columns.as_slice()), (1, &["n".to_owned()][..]));
}
