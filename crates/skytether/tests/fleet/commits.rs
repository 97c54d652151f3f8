//! A replacement is atomic, and one of two writers wins.

use futures::StreamExt;
use skytether::{DatasetKind, Placement, Pushdown, QueryOptions};
use skytether_common::{Error, Kind};
use skytether_store::{Expect, Op};

use crate::util::{batches, ingest, name, open, query, usage, value};

const COUNT: &str = "SELECT count(*) FROM lab.t";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_old_or_new_and_nothing_between() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    let (old, new) = (batches(2, 500), batches(3, 500));
    ingest(&fleet, "lab.t", &old, false).await.unwrap();
    let before = usage(&fleet).await;

    let mut writer = fleet.writer(&name("lab.t"), DatasetKind::Table, true).await.unwrap();
    writer.write_table("data", Placement::Spread, new[0].schema(), new.iter().cloned().map(Ok)).await.unwrap();
    assert_eq!(value(&fleet, COUNT).await.unwrap(), "1000", "an uncommitted generation was seen");
    writer.commit().await.unwrap();
    assert_eq!(value(&fleet, COUNT).await.unwrap(), "1500");

    ingest(&fleet, "lab.t", &old, true).await.unwrap();
    assert_eq!(usage(&fleet).await.0, before.0, "old generations were left behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_of_a_replaced_generation_ends_whole_or_fails() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(20, 500), false).await.unwrap();
    let mut running = fleet.sql("SELECT id FROM lab.t", &QueryOptions { cut: Pushdown::Full, batch_rows: 100 }).await.unwrap();
    let mut rows = running.stream.next().await.unwrap().unwrap().num_rows();
    ingest(&fleet, "lab.t", &batches(1, 10), true).await.unwrap();
    let mut end = Ok(());
    while let Some(batch) = running.stream.next().await {
        match batch {
            Ok(batch) => rows += batch.num_rows(),
            Err(e) => end = Err(e),
        }
    }
    match end {
        Ok(()) => assert_eq!(rows, 10_000, "rows are missing without an error"),
        Err(e) => {
            assert_eq!(e.kind(), Kind::Conflict, "{e}");
            assert!(e.to_string().contains("run the query again"), "{e}");
        }
    }
    assert_eq!(value(&fleet, COUNT).await.unwrap(), "10");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_writers_wins_and_the_other_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    for replace in [false, true] {
        let before = usage(&fleet).await;
        let mut first = fleet.writer(&name("lab.t"), DatasetKind::Table, replace).await.unwrap();
        let mut second = fleet.writer(&name("lab.t"), DatasetKind::Table, replace).await.unwrap();
        for (writer, n) in [(&mut first, 1), (&mut second, 2)] {
            let rows = batches(n, 100);
            writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
        }
        second.commit().await.unwrap();
        let error = first.commit().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Conflict);
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        assert_eq!(value(&fleet, COUNT).await.unwrap(), "200");
        if replace {
            drop(fleet);
            let fleet = open(dir.path(), 2).await.unwrap();
            assert_eq!(usage(&fleet).await.0, before.0, "what the loser wrote was left behind");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_data_sets_are_not_replaced_by_accident() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    ingest(&fleet, "lab.t", &batches(1, 10), false).await.unwrap();
    let error = ingest(&fleet, "lab.t", &batches(1, 10), false).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    assert!(error.to_string().contains("replace"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_ingest_leaks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 2).await.unwrap();
    let empty = usage(&fleet).await;
    let rows = batches(20, 500);
    let failing = rows.iter().cloned().map(Ok).chain([Err(Error::invalid("line 10001 is wrong"))]);
    let error = fleet.ingest_table(&name("lab.t"), rows[0].schema(), failing, false).await.unwrap_err();
    assert!(error.to_string().contains("line 10001"), "{error}");
    assert_eq!(usage(&fleet).await, empty);
    assert!(fleet.list().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_sets_are_listed_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    let empty = usage(&fleet).await;
    for dataset in ["b.two", "a.one", "a.one-more"] {
        ingest(&fleet, dataset, &batches(4, 500), false).await.unwrap();
    }
    let list = fleet.list().await.unwrap();
    let shown: Vec<_> = list.iter().map(|d| (d.name.to_string(), d.rows, d.kind)).collect();
    assert_eq!(
        shown,
        [
            ("a.one".to_owned(), 2000, Some(DatasetKind::Table)),
            ("a.one-more".into(), 2000, Some(DatasetKind::Table)),
            ("b.two".into(), 2000, Some(DatasetKind::Table))
        ]
    );
    assert_eq!(list.iter().map(|d| d.bytes).sum::<u64>(), usage(&fleet).await.1 - empty.1 - roots(&fleet).await);
    for d in &list {
        fleet.drop_dataset(&d.name).await.unwrap();
    }
    assert_eq!(usage(&fleet).await, empty);
    assert_eq!(fleet.drop_dataset(&name("a.one")).await.unwrap_err().kind(), Kind::NotFound);
    assert_eq!(query(&fleet, "SELECT 1 FROM a.one", Pushdown::Full).await.unwrap_err().kind(), Kind::NotFound);
}

/// Bytes of all root records.
async fn roots(fleet: &skytether::Fleet) -> u64 {
    let mut bytes = 0;
    for d in fleet.list().await.unwrap() {
        bytes += fleet.describe(&d.name).await.unwrap().encode().unwrap().len() as u64;
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_root_record_is_shown_as_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "a.good", &batches(1, 10), false).await.unwrap();
    ingest(&fleet, "a.bad", &batches(1, 10), false).await.unwrap();
    let bad = name("a.bad");
    let catalog = fleet.host().unwrap().catalog();
    let home = &catalog.drives()[catalog.home(&bad)];
    home.apply(vec![Op::Put { key: bad.root_key(), value: "{".into(), expect: Expect::Any }]).await.unwrap();

    let list = fleet.list().await.unwrap();
    let shown: Vec<_> = list.iter().map(|d| (d.name.to_string(), d.kind, d.error.is_some())).collect();
    assert_eq!(shown, [("a.bad".to_owned(), None, true), ("a.good".into(), Some(DatasetKind::Table), false)]);
    for drive in fleet.status().await.unwrap() {
        let unreadable: Vec<_> = drive.unreadable.iter().map(|u| (u.name.clone(), u.error.contains("the root record of a.bad"))).collect();
        assert_eq!(unreadable, if drive.info.id == home.info().id { vec![(bad.clone(), true)] } else { vec![] });
        assert!(drive.error.is_none());
    }
    // It can be dropped, and is gone then.
    fleet.drop_dataset(&bad).await.unwrap();
    assert!(fleet.status().await.unwrap().iter().all(|d| d.unreadable.is_empty()));
}
