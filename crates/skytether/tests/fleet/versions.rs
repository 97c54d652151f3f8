//! Versions: new generations that keep tables of the generation before. What is kept is written once, is found by every
//! kind of work, and goes with the last version that names it.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use skytether::{DatasetKind, Fleet, Placement, Pushdown, QueryOptions, RepairOptions};
use skytether_common::{Generation, Kind, Result};
use skytether_host::{DatasetWriter, RootRecord};

use crate::drive_replacement::repair;
use crate::expression::{CELLS, write};
use crate::growth::{adding, clean, no_leaks, reopen, resize, retiring};
use crate::indexes::built;
use crate::killed_processes::{Job, MANY, VICTIM, killed_at};
use crate::redundancy::{bring_back, dir_of, lose};
use crate::served::serve;
use crate::util::{CUTS, batches, ingest, name, open, query, usage, value};

const OF_X: &str = "SELECT gene, count(*), sum(value) FROM blood.tiny.x GROUP BY gene ORDER BY gene";
const BY_TYPE: &str =
    "SELECT o.cluster, count(*), sum(x.value) FROM blood.tiny.x x JOIN blood.tiny.obs o ON o.cell = x.cell GROUP BY o.cluster ORDER BY o.cluster";

pub(crate) async fn record(fleet: &Fleet, dataset: &str) -> RootRecord {
    fleet.describe(&name(dataset)).await.unwrap_or_else(|e| panic!("{dataset}: {}", e.report()))
}

pub(crate) async fn begun(fleet: &Fleet, dataset: &str) -> Result<DatasetWriter> {
    let from = fleet.describe(&name(dataset)).await?.generation;
    fleet.version(&name(dataset), from).await
}

/// obs with a column of clusters.
fn obs(clusters: i64) -> RecordBatch {
    let columns: [(&str, ArrayRef); 2] = [
        ("cell", Arc::new(StringArray::from_iter_values((0..CELLS).map(|c| format!("cell-{c}"))))),
        ("cluster", Arc::new(Int64Array::from_iter_values((0..i64::from(CELLS)).map(|c| c % clusters)))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

async fn put(writer: &mut DatasetWriter, table: &str, placement: Placement, rows: RecordBatch) {
    writer.write_table(table, placement, rows.schema(), [Ok(rows)].into_iter()).await.unwrap();
}

/// A version with other clusters, and an entry of the application that says how many.
async fn cluster(fleet: &Fleet, clusters: i64) -> Result<RootRecord> {
    let mut writer = begun(fleet, "blood.tiny").await?;
    put(&mut writer, "obs", Placement::Everywhere, obs(clusters)).await;
    writer.application("clusters", clusters.to_string());
    let report = writer.commit().await?;
    assert!(report.bytes_written > 0 && report.bytes_written < report.bytes_stored, "{report:?}");
    Ok(record(fleet, "blood.tiny").await)
}

async fn clusters(fleet: &Fleet) -> String {
    value(fleet, "SELECT count(DISTINCT cluster) FROM blood.tiny.obs").await.unwrap_or_else(|e| panic!("{}", e.report()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_keeps_the_tables_that_it_does_not_write() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    let empty = usage(&fleet).await;
    write(&fleet, "blood.tiny").await;
    let first = record(&fleet, "blood.tiny").await;
    let whole = query(&fleet, OF_X, Pushdown::Full).await.unwrap();

    let second = cluster(&fleet, 4).await.unwrap();
    assert_eq!((first.format, second.format), (1, 4), "older programs refuse what they would not find");
    assert_ne!(second.generation, first.generation);
    for kept in ["x", "var", "cells"] {
        assert_eq!(second.tables[kept].generation, Some(first.generation), "{kept}");
        assert_eq!(second.tables[kept].partitions, first.tables[kept].partitions, "{kept}");
    }
    assert_eq!(second.tables["obs"].generation, None);
    assert_eq!(second.application["made by"], "a test", "entries that are not set stay");
    for cut in CUTS {
        assert_eq!(query(&fleet, OF_X, cut).await.unwrap(), whole, "{cut}");
        assert_eq!(query(&fleet, BY_TYPE, cut).await.unwrap().len(), 4, "{cut}");
    }

    // The generation of a table may be older than the version before.
    let third = cluster(&fleet, 5).await.unwrap();
    assert_eq!(third.tables["x"].generation, Some(first.generation));
    drop(fleet);
    let fleet = reopen(dir.path()).await;
    assert_eq!((query(&fleet, OF_X, Pushdown::Full).await.unwrap(), clusters(&fleet).await), (whole, "5".into()));
    let roots = record(&fleet, "blood.tiny").await.encode().unwrap().len() as u64;
    assert_eq!(usage(&fleet).await.1, empty.1 + third.bytes() + roots, "the open collects what versions have replaced");
    fleet.drop_dataset(&name("blood.tiny")).await.unwrap();
    assert_eq!(usage(&fleet).await, empty);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_left_out_of_a_version_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    write(&fleet, "blood.tiny").await;
    let mut writer = begun(&fleet, "blood.tiny").await.unwrap();
    writer.leave_out("cells").unwrap();
    writer.commit().await.unwrap();
    assert_eq!(query(&fleet, "SELECT * FROM blood.tiny.cells", Pushdown::Full).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(record(&fleet, "blood.tiny").await.tables.len(), 3);
    // All of it can't go, and a whole ingest has nothing to leave out.
    let mut writer = begun(&fleet, "blood.tiny").await.unwrap();
    ["x", "obs", "var"].iter().for_each(|table| writer.leave_out(table).unwrap());
    assert_eq!(writer.commit().await.unwrap_err().kind(), Kind::Invalid);
    let mut writer = fleet.writer(&name("blood.other"), DatasetKind::Expression, false).await.unwrap();
    assert_eq!(writer.leave_out("x").unwrap_err().kind(), Kind::Invalid);
}

/// A query reads a table that the next version replaces, and the one after that as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_of_an_older_version_ends_whole() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(20, 500), false).await.unwrap();
    let mut running = fleet.sql("SELECT id FROM lab.t", &QueryOptions { cut: Pushdown::Full, batch_rows: 100 }).await.unwrap();
    let mut rows = running.stream.next().await.unwrap().unwrap().num_rows();
    for n in 1..=2 {
        let mut writer = begun(&fleet, "lab.t").await.unwrap();
        let new = batches(n, 10);
        writer.write_table("data", Placement::Spread, new[0].schema(), new.into_iter().map(Ok)).await.unwrap();
        writer.commit().await.unwrap();
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), (10 * n).to_string());
    }
    while let Some(batch) = running.stream.next().await {
        rows += batch.unwrap_or_else(|e| panic!("{}", e.report())).num_rows();
    }
    assert_eq!(rows, 10_000);
}

/// The tables of two versions back are deleted, and no more than that stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_versions_take_no_more_room_than_three() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    write(&fleet, "blood.tiny").await;
    let mut keys = Vec::new();
    for n in 0..6 {
        let now = cluster(&fleet, 4 + n % 2).await.unwrap();
        assert!(now.superseded.len() <= 2, "{:?}", now.superseded);
        keys.push(usage(&fleet).await.0);
    }
    assert!(keys[2..].iter().all(|n| *n == keys[2]), "{keys:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn version_of_changed_content_is_a_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    let empty = usage(&fleet).await;
    let missing = fleet.version(&name("blood.tiny"), Generation(1)).await.unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    write(&fleet, "blood.tiny").await;
    let first = record(&fleet, "blood.tiny").await;
    for change in ["version", "replacement", "drop"] {
        let mut late = begun(&fleet, "blood.tiny").await.unwrap();
        put(&mut late, "obs", Placement::Everywhere, obs(7)).await;
        match change {
            "version" => drop(cluster(&fleet, 3).await.unwrap()),
            "replacement" => ingest(&fleet, "blood.tiny", &batches(1, 100), true).await.map(drop).unwrap(),
            _ => fleet.drop_dataset(&name("blood.tiny")).await.unwrap(),
        }
        let error = late.commit().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict, "{change}");
        let error = fleet.version(&name("blood.tiny"), first.generation).await.unwrap_err();
        assert_eq!(error.kind(), if change == "drop" { Kind::NotFound } else { Kind::Conflict }, "{change}");
        match change {
            "version" => assert_eq!(clusters(&fleet).await, "3"),
            "replacement" => assert_eq!(value(&fleet, "SELECT count(*) FROM blood.tiny").await.unwrap(), "100"),
            _ => assert_eq!(usage(&fleet).await, empty, "a version of what was dropped left something behind"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacement_deletes_what_all_versions_kept() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "blood.tiny", &batches(1, 100), false).await.unwrap();
    let before = usage(&fleet).await.0;
    fleet.drop_dataset(&name("blood.tiny")).await.unwrap();
    write(&fleet, "blood.tiny").await;
    for n in 2..5 {
        cluster(&fleet, n).await.unwrap();
    }
    ingest(&fleet, "blood.tiny", &batches(1, 100), true).await.unwrap();
    assert_eq!(usage(&fleet).await.0, before);
    assert_eq!(record(&fleet, "blood.tiny").await.format, 1);
}

/// With two versions of it: the matrix of the first, the clusters of the third.
async fn of_versions(path: &Path, drives: usize, redundancy: &str) -> (Fleet, Vec<String>) {
    let fleet = crate::redundancy::open(path, drives, redundancy).await.unwrap();
    write(&fleet, "blood.tiny").await;
    cluster(&fleet, 3).await.unwrap();
    cluster(&fleet, 6).await.unwrap();
    let whole = query(&fleet, OF_X, Pushdown::Full).await.unwrap();
    (fleet, whole)
}

async fn is_whole(fleet: &Fleet, whole: &[String], what: &str) {
    assert_eq!(query(fleet, OF_X, Pushdown::Full).await.unwrap_or_else(|e| panic!("{what}: {}", e.report())), whole, "{what}");
    assert_eq!(clusters(fleet).await, "6", "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_drive_of_several_versions_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (fleet, whole) = of_versions(dir.path(), 4, "ec:2+1").await;
    assert!(record(&fleet, "blood.tiny").await.tables["x"].redundancy.is_some());
    drop(fleet);
    for lost in 0..4 {
        lose(dir.path(), &[lost]);
        let fleet = reopen(dir.path()).await;
        is_whole(&fleet, &whole, &format!("without drive-{lost}")).await;
        drop(fleet);
        bring_back(dir.path(), &[lost]);
    }
    std::fs::remove_dir_all(dir_of(dir.path(), 1)).unwrap();
    let fleet = reopen(dir.path()).await;
    let report = repair(&fleet, RepairOptions { drives: vec!["drive-1".into()], ..RepairOptions::default() }).await;
    assert!(report.left.is_empty() && report.lost.is_empty(), "{report}");
    is_whole(&fleet, &whole, "rebuilt").await;
    clean(&fleet, "rebuilt").await;
    // There is no version while a drive is lost: its part of the matrix would lack the new tables.
    drop(fleet);
    lose(dir.path(), &[2]);
    let fleet = reopen(dir.path()).await;
    let error = cluster(&fleet, 6).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.to_string().contains("drive-2"), "{}", error.report());
    drop(fleet);
    bring_back(dir.path(), &[2]);
    let fleet = reopen(dir.path()).await;
    // The next version is of the same redundancy.
    assert!(cluster(&fleet, 6).await.unwrap().tables["x"].redundancy.is_some());
    is_whole(&fleet, &whole, "at the end").await;
    clean(&fleet, "at the end").await;
}

/// A table of the first generation and one of the last are damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_any_generation_is_found_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (fleet, whole) = of_versions(dir.path(), 4, "ec:2+1").await;
    let now = record(&fleet, "blood.tiny").await;
    drop(fleet);
    let drives = fleet_drives(dir.path());
    for table in ["x", "obs"] {
        let partition = &now.tables[table].partitions[0];
        let at = drives.iter().position(|id| *id == partition.drive).unwrap();
        let key = now.partition(table, partition.slot).slice_key(0).unwrap();
        crate::scrub::put(dir.path(), at, &key, None);
    }
    let fleet = reopen(dir.path()).await;
    let report = crate::scrub::all(&fleet).await;
    assert!(report.damaged == 2 && report.left() == 0, "{report}");
    is_whole(&fleet, &whole, "repaired").await;
    clean(&fleet, "repaired").await;
    drop(fleet);
    no_leaks_of(dir.path(), "repaired");
}

pub(crate) fn fleet_drives(dir: &Path) -> Vec<uuid::Uuid> {
    let list: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join("fleet.json")).unwrap()).unwrap();
    list["drives"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect()
}

pub(crate) fn no_leaks_of(dir: &Path, what: &str) {
    no_leaks(dir, 2, what);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resize_brings_all_tables_into_one_generation() {
    let dir = tempfile::tempdir().unwrap();
    let (fleet, whole) = of_versions(dir.path(), 4, "ec:2+1").await;
    let before = record(&fleet, "blood.tiny").await;
    let mut late = begun(&fleet, "blood.tiny").await.unwrap();
    resize(&fleet, &adding(2)).await;
    is_whole(&fleet, &whole, "grown").await;
    let grown = record(&fleet, "blood.tiny").await;
    assert_eq!((before.format, grown.format), (4, 2));
    assert!(grown.tables.values().all(|table| table.generation.is_none()) && grown.superseded.is_empty());
    assert_eq!(grown.written(), before.generation);
    // A version that began before the move keeps the tables where they are now.
    put(&mut late, "obs", Placement::Everywhere, obs(6)).await;
    late.commit().await.unwrap_or_else(|e| panic!("{}", e.report()));
    is_whole(&fleet, &whole, "a version after the move").await;
    resize(&fleet, &retiring(&[0, 4])).await;
    is_whole(&fleet, &whole, "shrunk").await;
    clean(&fleet, "shrunk").await;
    drop(fleet);
    no_leaks_of(dir.path(), "shrunk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_writes_versions_too() {
    let dir = tempfile::tempdir().unwrap();
    let (_drives, _host, fleet) = serve(dir.path()).await;
    write(&fleet, "blood.tiny").await;
    let whole = query(&fleet, OF_X, Pushdown::Full).await.unwrap();
    for n in [2, 3, 6] {
        cluster(&fleet, n).await.unwrap();
    }
    is_whole(&fleet, &whole, "served").await;
    assert_eq!(record(&fleet, "blood.tiny").await.superseded.len(), 2);
}

/// An index of a kept table stays, and one of a table that is written again is built again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_follow_their_tables_into_a_version() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    write(&fleet, "blood.tiny").await;
    let index = |table: &str, column: &str| skytether::NewIndex {
        dataset: name("blood.tiny"),
        table: table.into(),
        name: Some(format!("of_{table}")),
        columns: vec![column.into()],
        include: Vec::new(),
    };
    fleet.create_index(&index("var", "gene")).await.unwrap();
    fleet.create_index(&index("obs", "cell")).await.unwrap();
    cluster(&fleet, 4).await.unwrap();
    cluster(&fleet, 5).await.unwrap();
    let now = record(&fleet, "blood.tiny").await;
    assert_eq!(now.indexes.len(), 2);
    for table in ["var", "obs"] {
        built(&fleet, "blood.tiny", &format!("of_{table}")).await;
    }
    assert_eq!(value(&fleet, "SELECT cluster FROM blood.tiny.obs WHERE cell = 'cell-7'").await.unwrap(), "2");
    assert_eq!(value(&fleet, "SELECT count(*) FROM blood.tiny.var WHERE gene = 'G3'").await.unwrap(), "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_version_is_old_or_new_and_leaks_nothing() {
    for redundancy in ["none", "ec:2+1"] {
        let first = tempfile::tempdir().unwrap();
        let fleet = crate::redundancy::open(first.path(), 4, redundancy).await.unwrap();
        ingest(&fleet, VICTIM, &batches(3, 500), false).await.unwrap();
        let mut writer = begun(&fleet, VICTIM).await.unwrap();
        put(&mut writer, "note", Placement::Spread, obs(2)).await;
        writer.application("note", "old");
        writer.commit().await.unwrap();
        drop(fleet);
        // On a busy machine the process may end before the deletion has begun: then it is tried again.
        let mut deleted = false;
        for _ in 0..4 {
            let mut commits = 0;
            let look = async |dir: &Path, _: usize, at: &str, what: &str| {
                let fleet = reopen(dir).await;
                assert_eq!(
                    value(&fleet, &format!("SELECT count(*) FROM {VICTIM}")).await.unwrap_or_else(|e| panic!("{what}: {}", e.report())),
                    "1500",
                    "{what}"
                );
                let is = record(&fleet, VICTIM).await.application["note"].clone();
                // With parities, which come from a thread of their own, the commit may be any of some numbers.
                if at == "deletion" || at == "end" || (redundancy == "none" && commits > 0) {
                    assert_eq!(is, "new", "{what}");
                } else if redundancy == "none" {
                    assert_eq!(is, "old", "{what}");
                }
                commits += usize::from(at == "commit");
                clean_if(&fleet, redundancy, what).await;
                drop(fleet);
                no_leaks(dir, if redundancy == "none" { 1 } else { 2 }, what);
            };
            let places = killed_at(first.path(), Job::Version, 0..MANY, redundancy, look).await;
            assert!(places.contains_key("commit"), "{places:?}");
            deleted = places.contains_key("deletion");
            if deleted {
                break;
            }
        }
        assert!(deleted, "no process was killed in the deletion");
    }
}

async fn clean_if(fleet: &Fleet, redundancy: &str, what: &str) {
    if redundancy != "none" {
        clean(fleet, what).await;
    }
}
