//! Reports of lost drives: which are missing, blank or foreign, and what to do.

use std::fs;
use std::path::Path;

use skytether::{DriveStatus, Fleet};
use skytether_common::Kind;
use skytether_drive::{Drive, DriveOptions};
use skytether_store::disk::DriveIdentity;
use uuid::Uuid;

use crate::redundancy::{bring_back, dir_of, lose, open, receipt};
use crate::util::{batches, ingest, value};

const COUNT: &str = "SELECT count(*) FROM lab.t";

/// A fleet with 6000 rows, closed; the ids of its drives.
async fn filled(dir: &Path, drives: usize, redundancy: &str) -> Vec<Uuid> {
    let fleet = open(dir, drives, redundancy).await.unwrap();
    ingest(&fleet, "lab.t", &batches(6, 1000), false).await.unwrap();
    fleet.status().await.unwrap().into_iter().map(|drive| drive.info.id).collect()
}

fn why(drive: &DriveStatus) -> &str {
    drive.error.as_deref().unwrap_or_default()
}

/// Which drives there is something to be said of.
fn lost(status: &[DriveStatus]) -> Vec<usize> {
    (0..status.len()).filter(|n| status[*n].error.is_some()).collect()
}

/// Status and receipts tell the two cases apart, and say what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_without_directory_is_missing_and_new_one_is_blank() {
    let dir = tempfile::tempdir().unwrap();
    let ids = filled(dir.path(), 4, "ec:2+1").await;
    lose(dir.path(), &[1]);
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let status = fleet.status().await.unwrap();
    assert!(lost(&status) == [1] && !status[1].blank && status[1].usage.is_none(), "{status:?}");
    for says in ["it is missing: there is no drive in ", "drives/1", "`skytether repair --replace drive-1`"] {
        assert!(why(&status[1]).contains(says), "{}", why(&status[1]));
    }
    assert!(!why(&status[1]).contains("blank, in the place"), "{}", why(&status[1]));
    let (_, receipt) = receipt(&fleet, "SELECT grp, sum(n) FROM lab.t GROUP BY grp").await;
    let told = receipt.to_string();
    assert!(told.contains("drive-1 is lost (it is missing: there is no drive in ") && !told.contains("it is blank"), "{told}");
    assert!(!told.lines().any(|line| line.contains("drive-1") && line.contains("everything ran here")), "{told}");
    // The other drives have all root records.
    let listing = fleet.listing().await.unwrap();
    assert!(listing.whole && listing.datasets.len() == 1 && listing.silent.keys().eq(["drive-1"]), "{listing:?}");
    drop(fleet);

    let identity = DriveIdentity { id: ids[1], name: "drive-1".into() };
    drop(Drive::open(&dir_of(dir.path(), 1), Some(identity), DriveOptions::default()).unwrap());
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let status = fleet.status().await.unwrap();
    assert!(lost(&status) == [1] && status[1].blank && status[1].usage.is_some(), "{status:?}");
    assert!(why(&status[1]).contains("it is blank") && why(&status[1]).contains("`skytether repair`"), "{}", why(&status[1]));
    let listing = fleet.listing().await.unwrap();
    assert!(listing.whole && listing.silent.keys().eq(["drive-1"]), "{listing:?}");
    assert_eq!(value(&fleet, COUNT).await.unwrap(), "6000");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_missing_drives_are_named_and_the_others_listed() {
    for redundancy in ["none", "ec:2+1"] {
        let dir = tempfile::tempdir().unwrap();
        let ids = filled(dir.path(), 4, redundancy).await;
        assert!(lost(&Fleet::offline_status(dir.path()).await.unwrap()).is_empty());
        lose(dir.path(), &[1, 3]);
        let error = open(dir.path(), 4, "none").await.unwrap_err();
        let text = error.report();
        assert_eq!(error.kind(), Kind::Unavailable, "{text}");
        assert!(text.contains("2 drives are lost") && text.contains("drive-1 (") && text.contains("drive-3 (") && text.contains("bring"), "{text}");
        assert!(!text.contains("drive-0 (") && !text.contains("it is blank") && text.matches("it is missing").count() == 2, "{text}");
        let status = Fleet::offline_status(dir.path()).await.unwrap();
        assert_eq!(status.iter().map(|drive| drive.info.id).collect::<Vec<_>>(), ids, "{redundancy}");
        assert!(status.iter().enumerate().all(|(n, drive)| drive.info.name == format!("drive-{n}")), "{status:?}");
        assert!(lost(&status) == [1, 3] && status[0].usage.is_some_and(|usage| usage.keys > 0), "{status:?}");
        bring_back(dir.path(), &[1, 3]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        assert_eq!(value(&fleet, COUNT).await.unwrap(), "6000");
        // The status needs the lock, which the open fleet has.
        assert_eq!(Fleet::offline_status(dir.path()).await.unwrap_err().kind(), Kind::Conflict);
    }
    let nothing = tempfile::tempdir().unwrap();
    assert_eq!(Fleet::offline_status(nothing.path()).await.unwrap_err().kind(), Kind::NotFound);
    assert!(fs::read_dir(nothing.path()).unwrap().next().is_none(), "a look left something behind");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drives_of_a_fleet_may_be_in_any_of_its_directories() {
    for redundancy in ["none", "ec:2+1"] {
        let dir = tempfile::tempdir().unwrap();
        let ids = filled(dir.path(), 3, redundancy).await;
        let turn = |moves: [(usize, usize); 4]| moves.iter().for_each(|(from, to)| fs::rename(dir_of(dir.path(), *from), dir_of(dir.path(), *to)).unwrap());
        // Two are exchanged, and one is where none was.
        turn([(0, 9), (2, 0), (9, 2), (1, 7)]);
        for _ in 0..2 {
            let fleet = open(dir.path(), 3, "none").await.unwrap();
            let status = fleet.status().await.unwrap();
            assert!(lost(&status).is_empty(), "{status:?}");
            assert_eq!(status.iter().map(|drive| drive.info.id).collect::<Vec<_>>(), ids);
            assert_eq!(value(&fleet, COUNT).await.unwrap(), "6000");
        }
        let list = fs::read_to_string(dir.path().join("fleet.json")).unwrap();
        let list: serde_json::Value = serde_json::from_str(&list).unwrap();
        assert_eq!(list["places"], serde_json::json!([2, 7, 0]), "{list}");
        // Back in their places.
        turn([(0, 9), (2, 0), (9, 2), (7, 1)]);
        assert_eq!(value(&open(dir.path(), 3, "none").await.unwrap(), COUNT).await.unwrap(), "6000");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_in_the_directory_of_a_missing_one_is_used() {
    let dir = tempfile::tempdir().unwrap();
    filled(dir.path(), 3, "ec:2+1").await;
    lose(dir.path(), &[0]);
    fs::rename(dir_of(dir.path(), 1), dir_of(dir.path(), 0)).unwrap();
    let fleet = open(dir.path(), 3, "none").await.unwrap();
    let status = fleet.status().await.unwrap();
    assert!(lost(&status) == [0] && why(&status[0]).contains("drives/1"), "{status:?}");
    assert_eq!(value(&fleet, COUNT).await.unwrap(), "6000");
    // The repair makes a blank drive in an empty directory.
    let report = crate::drive_replacement::repair(&fleet, crate::drive_replacement::replacing(&[0])).await;
    assert!(report.left.is_empty() && report.lost.is_empty() && report.drives == ["drive-0"], "{report}");
    drop(fleet);
    let fleet = open(dir.path(), 3, "none").await.unwrap();
    assert!(lost(&fleet.status().await.unwrap()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_drive_is_named_and_left_alone() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    filled(one.path(), 3, "ec:2+1").await;
    let others = filled(two.path(), 2, "none").await;
    lose(one.path(), &[1]);
    fs::rename(dir_of(two.path(), 1), dir_of(one.path(), 1)).unwrap();
    let fleet = open(one.path(), 3, "none").await.unwrap();
    let status = fleet.status().await.unwrap();
    assert_eq!(lost(&status), [1], "{status:?}");
    let other = others[1].to_string();
    for says in ["drives/1 holds a drive that is not of this fleet", other.as_str(), "move that one away first"] {
        assert!(why(&status[1]).contains(says), "{}", why(&status[1]));
    }
    assert_eq!(value(&fleet, COUNT).await.unwrap(), "6000");
    // It is not overwritten either.
    let error = fleet.repair(&crate::drive_replacement::replacing(&[1]), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("is not empty"), "{error}");
    drop(fleet);
    fs::rename(dir_of(one.path(), 1), dir_of(two.path(), 1)).unwrap();
    assert_eq!(value(&open(two.path(), 2, "none").await.unwrap(), COUNT).await.unwrap(), "6000");
    bring_back(one.path(), &[1]);
    assert!(lost(&open(one.path(), 3, "none").await.unwrap().status().await.unwrap()).is_empty());
}
