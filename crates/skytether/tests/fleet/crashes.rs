//! Processes that are killed before any change on a drive leave data sets absent, old or whole. Repeated jobs complete,
//! and nothing leaks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use skytether::{Fleet, Pushdown, RepairOptions};
use skytether_drive::{Drive, DriveOptions, Storage};
use skytether_host::Scheme;
use skytether_store::disk::DriveIdentity;

use crate::drive_replacement::{parts, repair};
use crate::growth::{clean, no_leaks, reopen};
use crate::killed_processes::{BATCHES, Job, MANY, ROWS, VICTIM, killed_at};
use crate::redundancy::{dir_of, open};
use crate::scrub::{all, files, mended, values};
use crate::util::{batches, ingest, name, query, usage, value};

/// How many drives fleets have here.
const DRIVES: usize = 4;

fn homes(redundancy: &str) -> usize {
    redundancy.parse::<Scheme>().unwrap().tolerates() + 1
}

/// A closed fleet with a data set that no job changes, and, with `rows`, one of that many rows for the jobs. Also gives
/// keys and bytes of the first one alone.
async fn begun(redundancy: &str, rows: Option<usize>) -> (tempfile::TempDir, (u64, u64)) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), DRIVES, redundancy).await.unwrap();
    ingest(&fleet, "lab.bystander", &batches(2, 300), false).await.unwrap();
    let alone = usage(&fleet).await;
    if let Some(rows) = rows {
        ingest(&fleet, VICTIM, &batches(1, rows), false).await.unwrap();
    }
    (dir, alone)
}

async fn keys_on_disk(dir: &Path) -> u64 {
    let mut keys = 0;
    for n in 0..DRIVES {
        keys += Drive::open(&dir_of(dir, n), None, DriveOptions::default()).unwrap().usage().await.unwrap().keys;
    }
    keys
}

/// The number of rows in the data set of the jobs, if it exists.
async fn rows(fleet: &Fleet) -> Option<usize> {
    let there = fleet.list().await.unwrap().iter().any(|d| d.name == name(VICTIM));
    if there { Some(value(fleet, &format!("SELECT count(*) FROM {VICTIM}")).await.unwrap().parse().unwrap()) } else { None }
}

/// Without the data set of the jobs, the fleet has what it had before, and that is whole.
async fn alone_again(dir: &Path, fleet: Fleet, redundancy: &str, alone: (u64, u64), what: &str) {
    assert_eq!(usage(&fleet).await, alone, "{what}");
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.bystander").await.unwrap(), "600", "{what}");
    clean(&fleet, what).await;
    drop(fleet);
    no_leaks(dir, homes(redundancy), what);
}

/// Kills an ingest before each of its changes. `old` is the previous number of rows, if any.
async fn killed_ingest(redundancy: &str, old: Option<usize>) {
    let (first, alone) = begun(redundancy, old).await;
    let mut collected = 0;
    let look = async |dir: &Path, _: usize, at: &str, what: &str| {
        let left = keys_on_disk(dir).await;
        let fleet = reopen(dir).await;
        // The open copies a root record to a home drive that did not get it.
        let deleted = left.saturating_sub(usage(&fleet).await.0);
        collected += deleted;
        let new = Some(BATCHES * ROWS);
        let due = match at {
            "deletion" | "end" => vec![new],
            // The first home drive decides, and the others follow.
            "commit" if homes(redundancy) > 1 => vec![old, new],
            _ => vec![old],
        };
        let now = rows(&fleet).await;
        assert!(due.contains(&now), "{what}: {now:?}, not one of {due:?}");
        if at == "deletion" {
            assert!(deleted > 0, "{what}: nothing was left to collect");
        }
        ingest(&fleet, VICTIM, &batches(BATCHES, ROWS), true).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        assert_eq!(rows(&fleet).await, new, "{what}");
        fleet.drop_dataset(&name(VICTIM)).await.unwrap();
        alone_again(dir, fleet, redundancy, alone, what).await;
    };
    let places = killed_at(first.path(), Job::Ingest, 0..MANY, redundancy, look).await;
    let count = |what: &str| places.get(what).copied().unwrap_or(0);
    // With parities, which come from a thread of their own, not every run sends as many batches of slices: the commit
    // may be any of some numbers.
    assert!(count("commit") == 1 || homes(redundancy) > 1, "{places:?}");
    assert!(count("slices") >= 3, "lanes should send: {places:?}");
    assert_eq!(count("deletion") > 0, old.is_some(), "{places:?}");
    assert!(collected > 0, "no kill left anything behind: {places:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_ingest_is_absent_or_whole_and_leaks_nothing() {
    killed_ingest("none", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_ingest_with_parity_is_absent_or_whole() {
    killed_ingest("ec:2+1", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replacement_leaves_old_or_new() {
    killed_ingest("none", Some(70)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replacement_with_parity_leaves_old_or_new() {
    killed_ingest("ec:2+1", Some(70)).await;
}

/// Kills a drop before each of its changes.
async fn killed_drop(redundancy: &str) {
    let (first, alone) = begun(redundancy, Some(1500)).await;
    let mut collected = 0;
    let look = async |dir: &Path, stop: usize, at: &str, what: &str| {
        let left = keys_on_disk(dir).await;
        let fleet = reopen(dir).await;
        collected += left.saturating_sub(usage(&fleet).await.0);
        let now = rows(&fleet).await;
        match at {
            // If one of several home drives still has the root record, it counts.
            "drop" if stop == 0 || homes(redundancy) > 1 => assert!(now == Some(1500) || (now.is_none() && stop > 0), "{what}: {now:?}"),
            _ => assert_eq!(now, None, "{what}"),
        }
        if now.is_some() {
            fleet.drop_dataset(&name(VICTIM)).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        }
        assert_eq!(rows(&fleet).await, None, "{what}");
        alone_again(dir, fleet, redundancy, alone, what).await;
        // Its name is free for a new ingest.
        let fleet = reopen(dir).await;
        ingest(&fleet, VICTIM, &batches(1, 70), false).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        assert_eq!(rows(&fleet).await, Some(70), "{what}");
    };
    let places = killed_at(first.path(), Job::Drop, 0..MANY, redundancy, look).await;
    assert_eq!(places.get("drop"), Some(&homes(redundancy)), "{places:?}");
    assert!(places.get("deletion").is_some_and(|count| *count >= 3), "every drive should delete: {places:?}");
    assert!(collected > 0, "no kill left anything behind: {places:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_drop_leaves_all_or_nothing() {
    killed_drop("none").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_drop_with_parity_leaves_all_or_nothing() {
    killed_drop("ec:2+1").await;
}

/// The files of those values of a drive whose keys are `wanted`.
fn files_of(dir: &Path, drive: usize, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let all = files(dir, drive);
    let of = |value: &Bytes| all.iter().find(|file| *value == fs::read(file).unwrap()).unwrap().clone();
    values(dir, drive).iter().filter(|(key, _)| wanted(key.as_str())).map(|(_, value)| of(value)).collect()
}

fn flip_a_bit(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 8;
    fs::write(file, bytes).unwrap();
}

/// Slices, parities and metadata of one drive are damaged. The scrub is killed before a change, and a second one
/// repairs the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_scrub_loses_nothing_and_the_next_one_repairs() {
    const SQL: &str = "SELECT grp, count(*), sum(id), sum(n), min(x), max(name) FROM lab.t GROUP BY grp ORDER BY grp";
    let first = tempfile::tempdir().unwrap();
    let fleet = open(first.path(), DRIVES, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(8, 1000), false).await.unwrap();
    let whole = query(&fleet, SQL, Pushdown::Full).await.unwrap();
    drop(fleet);
    let before: Vec<_> = (0..DRIVES).map(|n| values(first.path(), n)).collect();
    // All on one drive, so that no group has lost more than it survives.
    let is_parity = |key: &str| key.contains("parity%2F");
    let slices = files_of(first.path(), 1, |key| key.contains(';') && !is_parity(key));
    let parities = files_of(first.path(), 1, |key| key.contains(';') && is_parity(key));
    let metadata = files_of(first.path(), 1, |key| key.contains('.') && !key.contains(';'));
    flip_a_bit(&slices[0]);
    fs::remove_file(&slices[1]).unwrap();
    let cut_off = fs::read(&slices[2]).unwrap();
    fs::write(&slices[2], &cut_off[..cut_off.len() / 2]).unwrap();
    flip_a_bit(&parities[0]);
    flip_a_bit(&metadata[0]);
    let damaged = 5;
    let look = async |dir: &Path, stop: usize, _: &str, what: &str| {
        let fleet = reopen(dir).await;
        assert_eq!(query(&fleet, SQL, Pushdown::Full).await.unwrap_or_else(|e| panic!("{what}: {}", e.report())), whole, "{what}");
        // Values that were repaired before stay repaired.
        let report = mended(&fleet, what).await;
        assert_eq!(report.damaged as usize, damaged - stop, "{what}: {report}");
        assert_eq!(query(&fleet, SQL, Pushdown::Full).await.unwrap(), whole, "{what}");
        drop(fleet);
        no_leaks(dir, 2, what);
        assert!((0..DRIVES).all(|n| values(dir, n) == before[n]), "{what}: something is not what it was");
    };
    let places = killed_at(first.path(), Job::Scrub, 0..=damaged, "ec:2+1", look).await;
    assert_eq!(places, BTreeMap::from([("end".to_owned(), 1), ("slices".to_owned(), damaged)]));
}

/// Kills a repair before some of its changes, of a drive that is blank already (`made`), or is gone and gets
/// a blank one in its place.
async fn killed_repair(made: bool, stops: impl Iterator<Item = usize>) {
    let first = tempfile::tempdir().unwrap();
    let fleet = open(first.path(), DRIVES, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.a", &batches(6, 600), false).await.unwrap();
    ingest(&fleet, "lab.b", &batches(2, 400), false).await.unwrap();
    crate::expression::write(&fleet, "blood.tiny").await;
    let ask = async |fleet: &Fleet, what: &str| {
        let mut answers = Vec::new();
        for sql in [
            "SELECT grp, count(*), sum(id), min(x), max(name) FROM lab.a GROUP BY grp ORDER BY grp",
            "SELECT count(*), sum(n) FROM lab.b",
            "SELECT gene, cell, value FROM blood.tiny.x WHERE value > 3 ORDER BY gene, cell",
            "SELECT o.cell_type, count(*), max(o.cell) FROM blood.tiny.obs o GROUP BY o.cell_type ORDER BY o.cell_type",
        ] {
            answers.push(query(fleet, sql, Pushdown::Full).await.unwrap_or_else(|e| panic!("{what}: {sql}: {}", e.report())));
        }
        answers
    };
    let whole = ask(&fleet, "at first").await;
    let id = fleet.status().await.unwrap()[2].info.id;
    drop(fleet);
    let before = parts(first.path(), 2);
    fs::remove_dir_all(dir_of(first.path(), 2)).unwrap();
    if made {
        let identity = DriveIdentity { id, name: "drive-2".into() };
        drop(Drive::open(&dir_of(first.path(), 2), Some(identity), DriveOptions::default()).unwrap());
    }
    let mut kept = 0;
    let look = async |dir: &Path, _: usize, at: &str, what: &str| {
        let fleet = reopen(dir).await;
        assert_eq!(ask(&fleet, what).await, whole, "{what}");
        let status = fleet.status().await.unwrap();
        let error = status[2].error.as_deref();
        assert!(error.is_none_or(|e| e.contains("it is blank") && at != "end"), "{what}: {status:?}");
        let report = repair(&fleet, RepairOptions::default()).await;
        assert!(report.left.is_empty() && report.lost.is_empty() && report.drives.len() == usize::from(error.is_some()), "{what}: {report}");
        kept += report.kept;
        assert_eq!(ask(&fleet, what).await, whole, "{what}");
        // Killed while it noted everywhere that the drive is whole again, it leaves older copies of the fleet's record;
        // the newest counts, and a scrub brings the others up to it.
        let scrubbed = all(&fleet).await;
        assert!(
            scrubbed.left() == 0 && scrubbed.found.iter().all(|found| found.key == "skytether-fleet" && found.what.contains("older")),
            "{what}: {scrubbed}"
        );
        assert!(scrubbed.damaged == 0 || at == "member", "{what}: {scrubbed}");
        clean(&fleet, what).await;
        drop(fleet);
        no_leaks(dir, 2, what);
        assert!(parts(dir, 2) == before, "{what}: drive 2 is not what it was");
    };
    let places = killed_at(first.path(), Job::Repair, stops, if made { "blank" } else { "gone" }, look).await;
    assert!(places.contains_key("slices") && places.contains_key("member"), "{places:?}");
    assert!(kept > 0, "nothing was there that a repair before had made: {places:?}");
}

// Between them they are killed before each change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_repair_of_a_blank_drive_resumes() {
    killed_repair(true, (0..MANY).step_by(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_drive_replacement_resumes_as_a_repair() {
    killed_repair(false, (1..MANY).step_by(2)).await;
}
