//! Fleets grow and shrink: the answers stay, drives are balanced, moves are minimal, also under load and after a crash
//! at any change.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use skytether::{Fleet, HostOptions, IngestOptions, OpenOptions, Pushdown, RepairOptions, ResizeOptions, ResizeReport, ScrubOptions};
use skytether_common::{Kind, PartitionName};
use skytether_device::kept;
use skytether_drive::{Drive, DriveOptions, Storage};
use skytether_host::{PartitionRecord, RedundancyRecord};
use skytether_host::{RootRecord, Scheme};

use crate::killed_processes::{Job, MANY, killed_at};
use crate::redundancy::{answers, bring_back, dir_of, fill, lose};
use crate::scrub::values;
use crate::util::{batches, ingest, name, query, usage, value};

/// A fleet of small slices, of as many drives as it has.
pub(crate) async fn reopen(path: &Path) -> Fleet {
    let mut host = HostOptions { threads: 2, ..HostOptions::default() };
    host.slices.target_bytes = 8 << 10;
    let options = OpenOptions { memory_per_drive: Some(64 << 20), ..OpenOptions::default() };
    Fleet::open_with(path, &options, host).await.unwrap_or_else(|e| panic!("{}", e.report()))
}

async fn open(path: &Path, drives: usize, redundancy: &str) -> Fleet {
    crate::redundancy::open(path, drives, redundancy).await.unwrap()
}

pub(crate) fn adding(count: usize) -> ResizeOptions {
    ResizeOptions { count, ..ResizeOptions::default() }
}

pub(crate) fn retiring(drives: &[usize]) -> ResizeOptions {
    ResizeOptions { retire: drives.iter().map(|n| format!("drive-{n}")).collect(), ..ResizeOptions::default() }
}

pub(crate) async fn resize(fleet: &Fleet, options: &ResizeOptions) -> ResizeReport {
    fleet.resize(options, &|_| ()).await.unwrap_or_else(|e| panic!("{}", e.report()))
}

/// No drive is further off the mean than 5%, and what slices are too long for; and no more moved than had to, and a
/// slice per drive for data and parities of each table.
pub(crate) fn balanced(report: &ResizeReport, tables: u64) {
    let now: Vec<u64> = report.drives.iter().filter(|load| !report.retired.contains(&load.drive)).map(|load| load.after).collect();
    let mean = now.iter().sum::<u64>() as f64 / now.len() as f64;
    for load in &now {
        // What is partitioned by key stays where it is, over as many drives as it was written to.
        let off = (*load as f64 - mean).abs();
        assert!(off <= 0.05 * mean + 2.0 * report.longest as f64 + report.pinned as f64 / now.len() as f64 * 1.5, "{off} of {mean}: {report}");
    }
    assert!(report.bytes_moved <= report.bytes_least + report.longest * 2 * tables * report.drives.len() as u64, "{report}");
    assert!(report.left.is_empty() && report.drives.iter().all(|load| load.after == 0 || !report.retired.contains(&load.drive)), "{report}");
}

pub(crate) async fn clean(fleet: &Fleet, what: &str) {
    let report = fleet.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
    assert!(report.damaged == 0 && report.skipped.is_empty() && report.unverified == 0, "{what}: {report}");
    assert!(fleet.status().await.unwrap().iter().all(|drive| drive.error.is_none()), "{what}");
}

/// The drives' directories that `fleet.json` names.
fn places(dir: &Path) -> Vec<usize> {
    let list: serde_json::Value = serde_json::from_slice(&fs::read(dir.join("fleet.json")).unwrap()).unwrap();
    let count = list["drives"].as_array().unwrap().len();
    let places: Vec<usize> = list["places"].as_array().map(|all| all.iter().map(|n| n.as_u64().unwrap() as usize).collect()).unwrap_or_default();
    if places.is_empty() { (0..count).collect() } else { places }
}

/// The drives that have what lies under the key of partition `slot` itself: as many as may be lost after its own; on
/// two levels m after it on its node, and m + 1 of each of the M nodes after that.
fn holders(redundancy: &RedundancyRecord, slot: usize) -> Vec<uuid::Uuid> {
    let RedundancyRecord { scheme, drives, nodes, .. } = redundancy;
    let Scheme::Levels(outer, inner) = scheme else {
        return (0..=scheme.tolerates()).map(|further| drives[(slot + further) % drives.len()]).collect();
    };
    let count = nodes.iter().max().unwrap() + 1;
    let of = |further: u32| {
        let own: Vec<usize> = (0..drives.len()).filter(|at| nodes[*at] == (nodes[slot] + further) % count).collect();
        let first = own.iter().position(|at| *at == slot).unwrap_or(slot % own.len());
        (0..=inner.parity()).map(move |at| own[(first + at) % own.len()])
    };
    (0..=outer.parity() as u32).flat_map(of).map(|at| drives[at]).collect()
}

/// Checks a closed fleet. A root record names every value on its drives, and every named value exists. Each root record
/// is on `homes` drives, and all other drives are empty.
pub(crate) fn no_leaks(dir: &Path, homes: usize, what: &str) {
    let mut found: Vec<(uuid::Uuid, PartitionName, Option<u32>)> = Vec::new();
    let mut records: BTreeMap<String, (RootRecord, usize)> = BTreeMap::new();
    let members = places(dir);
    for entry in fs::read_dir(dir.join("drives")).unwrap() {
        let n: usize = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
        if !dir_of(dir, n).join("drive.json").exists() {
            continue;
        }
        let id = Drive::open(&dir_of(dir, n), None, DriveOptions::default()).unwrap().info().id;
        let all = values(dir, n);
        assert!(
            members.contains(&n) || all.is_empty(),
            "{what}: drive {n} has left and holds {:?}",
            all.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>()
        );
        for (key, bytes) in all {
            if let Some((partition, number)) = PartitionName::parse(&key) {
                found.push((id, partition, number));
            } else if let Some((domain, dataset)) = key.as_str().split_once('/') {
                let record = RootRecord::decode(&name(&format!("{domain}.{dataset}")), &bytes).unwrap();
                let (first, copies) = records.entry(record.name.to_string()).or_insert_with(|| (record.clone(), 0));
                assert_eq!(*first, record, "{what}");
                *copies += 1;
            }
        }
    }
    assert!(records.values().all(|(_, copies)| *copies == homes), "{what}: {records:?}");
    let mut slices: BTreeMap<(uuid::Uuid, PartitionName), u32> = BTreeMap::new();
    for (id, partition, number) in found {
        let (record, _) = records.get(&partition.dataset.to_string()).unwrap_or_else(|| panic!("{what}: a part of {} is left", partition.dataset));
        assert!(record.names_partition(&partition), "{what}: a part of an old generation of {}", record.name);
        if kept::of_partition(&partition).is_some() {
            continue;
        }
        let of = |kind: &str| partition.table.strip_prefix(kind);
        let table = record.table(of("parity/").or(of("inner-parity/")).unwrap_or(&partition.table)).unwrap();
        let redundancy = || table.redundancy.as_ref().unwrap();
        let parts = match (of("parity/"), of("inner-parity/")) {
            (Some(_), _) => &redundancy().parity,
            (_, Some(_)) => &redundancy().inner,
            _ => &table.partitions,
        };
        let own = parts.iter().any(|p| p.drive == id && p.slot == partition.slot);
        if number.is_some() {
            assert!(own, "{what}: {id} has slices of {partition:?}");
            *slices.entry((id, partition)).or_default() += 1;
        } else {
            let copy = table.redundancy.as_ref().is_some_and(|r| holders(r, partition.slot as usize).contains(&id));
            assert!(own || copy, "{what}: {id} has the metadata of {partition:?}");
        }
    }
    for (record, _) in records.values() {
        for (title, table) in &record.tables {
            let parities = table.redundancy.iter().flat_map(|r| {
                let of = |parts: &[PartitionRecord], kind: &str| parts.iter().map(|p| (p.clone(), format!("{kind}/{title}"))).collect::<Vec<_>>();
                of(&r.parity, "parity").into_iter().chain(of(&r.inner, "inner-parity"))
            });
            for (p, table) in table.partitions.iter().map(|p| (p.clone(), title.clone())).chain(parities) {
                let partition = PartitionName { table, ..record.partition(title, p.slot) };
                let there = slices.get(&(p.drive, partition)).copied().unwrap_or(0);
                assert_eq!(there, p.slices, "{what}: {} {title} {}", record.name, p.slot);
            }
        }
    }
}

/// What is balanced stays, but for a few slices: which of many small tables has one too many depends on where the
/// others' were when it was looked at.
pub(crate) fn settled(again: &ResizeReport) {
    let all: u64 = again.drives.iter().map(|load| load.after).sum();
    assert!(again.bytes_moved * 20 <= all, "what is balanced stays: {again}");
    // Within the 5% that are promised, up to the size of a slice, which may help one drive and not another.
    let slice = again.longest as f64 * again.drives.len() as f64 / all as f64;
    assert!(again.off_after <= again.off_before.max(0.05) + slice, "{again}");
}

/// Grows a fleet by `more`, lets `leave` go, opens it again in between, and looks at everything each time.
async fn grown(redundancy: &str, drives: usize, more: usize, leave: &[usize], lost: &[usize]) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), drives, redundancy).await;
    fill(&fleet).await;
    ingest(&fleet, "lab.large", &batches(20, 1500), false).await.unwrap();
    let homes = redundancy.parse::<skytether_host::Scheme>().unwrap().tolerates() + 1;
    let whole = answers(&fleet, Pushdown::Full).await;
    let large = "SELECT count(*), sum(id), sum(n), max(name) FROM lab.large";
    let of_large = query(&fleet, large, Pushdown::Full).await.unwrap();
    let check = async |fleet: &Fleet, what: &str| {
        assert_eq!(answers(fleet, Pushdown::Full).await, whole, "{redundancy} {what}");
        assert_eq!(answers(fleet, Pushdown::Adaptive).await, whole, "{redundancy} {what}");
        assert_eq!(query(fleet, large, Pushdown::Full).await.unwrap(), of_large, "{redundancy} {what}");
    };
    // Tables: t, keyed, four to five of tiny, large.
    let report = resize(&fleet, &adding(more)).await;
    balanced(&report, 8);
    assert!(report.added.len() == more && report.bytes_moved > 0 && report.linked > 0 && report.datasets >= 2, "{report}");
    check(&fleet, "grown").await;
    clean(&fleet, "grown").await;
    let again = resize(&fleet, &ResizeOptions::default()).await;
    settled(&again);
    // What is written now lies on all.
    ingest(&fleet, "lab.new", &batches(10, 1000), false).await.unwrap();
    let new = fleet.describe(&name("lab.new")).await.unwrap();
    assert_eq!(new.table("data").unwrap().partitions.len(), drives + more);
    drop(fleet);
    no_leaks(dir.path(), homes, "grown");
    let fleet = reopen(dir.path()).await;
    check(&fleet, "grown and opened").await;
    // Root records are where they are looked for, also those that are written and dropped now.
    assert_eq!(fleet.list().await.unwrap().len(), 5);
    fleet.drop_dataset(&name("lab.new")).await.unwrap();
    drop(fleet);
    lose(dir.path(), lost);
    let fleet = reopen(dir.path()).await;
    let gone: Vec<usize> = leave.iter().chain(lost).copied().collect();
    let report = resize(&fleet, &retiring(&gone)).await;
    balanced(&report, 8);
    assert_eq!(report.retired.len(), gone.len());
    check(&fleet, "shrunk").await;
    clean(&fleet, "shrunk").await;
    assert_eq!(fleet.status().await.unwrap().len(), drives + more - gone.len());
    ingest(&fleet, "lab.new", &batches(2, 1000), false).await.unwrap();
    ingest(&fleet, "lab.t", &batches(6, 1000), true).await.unwrap();
    drop(fleet);
    no_leaks(dir.path(), homes, "shrunk");
    for n in &gone {
        // They are not needed any more.
        if dir_of(dir.path(), *n).exists() {
            fs::remove_dir_all(dir_of(dir.path(), *n)).unwrap();
        }
    }
    let fleet = reopen(dir.path()).await;
    check(&fleet, "shrunk and opened").await;
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.new").await.unwrap(), "2000");
    drop(fleet);
    // What is left survives what it should.
    if homes > 1 {
        for n in places(dir.path()) {
            lose(dir.path(), &[n]);
            let fleet = reopen(dir.path()).await;
            check(&fleet, &format!("without {n}")).await;
            drop(fleet);
            bring_back(dir.path(), &[n]);
        }
    }
    // And grows again, into the places of those that left.
    let fleet = reopen(dir.path()).await;
    let report = resize(&fleet, &adding(gone.len())).await;
    balanced(&report, 9);
    check(&fleet, "grown again").await;
    let empty = fleet.list().await.unwrap();
    for set in empty {
        fleet.drop_dataset(&set.name).await.unwrap();
    }
    assert_eq!(usage(&fleet).await.0, (drives + more) as u64, "keys leaked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_without_redundancy_grows_by_one_and_shrinks_again() {
    grown("none", 3, 1, &[1], &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_of_copies_grows_by_two_and_loses_one_for_good() {
    grown("replicas:2", 3, 2, &[0], &[2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_with_parity_grows_by_one_and_shrinks_again() {
    grown("ec:2+1", 4, 1, &[1], &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleet_with_parity_grows_by_two_and_retires_two_lost_ones() {
    grown("ec:3+2", 6, 2, &[], &[1, 4]).await;
}

/// Over data sets of many slices and of one, without redundancy, with copies and with parity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growth_balances_drives_within_5_percent_by_minimal_moves() {
    for redundancy in ["none", "replicas:2", "ec:2+1"] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(dir.path(), 4, redundancy).await;
        // Some with many slices, and many with one.
        for n in 0..2 {
            ingest(&fleet, &format!("lab.many{n}"), &batches(24, 1500), false).await.unwrap();
        }
        for n in 0..12 {
            ingest(&fleet, &format!("lab.small{n}"), &batches(1, 150), false).await.unwrap();
        }
        let sum = "SELECT count(*), sum(id), sum(n) FROM lab.many1";
        let before = query(&fleet, sum, Pushdown::Full).await.unwrap();
        for options in [adding(1), adding(2), retiring(&[0]), retiring(&[2, 3])] {
            let report = resize(&fleet, &options).await;
            assert!(
                report.off_after <= 0.05 + 2.0 * report.longest as f64 / (report.drives.iter().map(|load| load.after).sum::<u64>() as f64 / 7.0),
                "{report}"
            );
            balanced(&report, 2);
            assert_eq!(query(&fleet, sum, Pushdown::Adaptive).await.unwrap(), before);
            settled(&resize(&fleet, &ResizeOptions::default()).await);
        }
        clean(&fleet, redundancy).await;
        drop(fleet);
        no_leaks(dir.path(), usize::from(redundancy != "none") + 1, redundancy);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_and_ingests_continue_during_a_resize() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await;
    for n in 0..5 {
        ingest(&fleet, &format!("lab.t{n}"), &batches(6, 1000), false).await.unwrap();
    }
    let sum = |n: usize| format!("SELECT count(*), sum(id), sum(n) FROM lab.t{n}");
    let whole = query(&fleet, &sum(3), Pushdown::Full).await.unwrap();
    // An ingest that begins before any of it and commits after, over what was there.
    let mut writer = fleet.writer(&name("lab.t2"), skytether::DatasetKind::Table, true).await.unwrap();
    writer.write_table("data", skytether::Placement::Spread, batches(1, 10)[0].schema(), batches(3, 400).into_iter().map(Ok)).await.unwrap();
    let total: u64 = {
        let mut total = 0;
        for n in 0..5 {
            total += fleet.describe(&name(&format!("lab.t{n}"))).await.unwrap().bytes();
        }
        total
    };
    // Slow enough that all of this falls into it.
    let slowly = |options: ResizeOptions| ResizeOptions { bytes_per_s: Some(total / 8), ..options };
    let work = async {
        let grown = resize(&fleet, &slowly(adding(1))).await;
        let shrunk = resize(&fleet, &slowly(retiring(&[1]))).await;
        (grown, shrunk)
    };
    let done = AtomicU64::new(0);
    let work = async {
        let reports = work.await;
        done.store(1, Ordering::SeqCst);
        reports
    };
    let asking = async {
        let mut rounds = 0;
        while done.load(Ordering::SeqCst) == 0 {
            assert_eq!(query(&fleet, &sum(3), Pushdown::Adaptive).await.unwrap(), whole);
            assert_eq!(query(&fleet, &sum(4), Pushdown::Raw).await.unwrap(), query(&fleet, &sum(4), Pushdown::Full).await.unwrap());
            rounds += 1;
        }
        rounds
    };
    let writing = async {
        for n in 0..6 {
            let set = format!("lab.t{}", n % 2);
            ingest(&fleet, &set, &batches(2 + n % 3, 700), true).await.unwrap_or_else(|e| panic!("{}", e.report()));
            assert_eq!(value(&fleet, &format!("SELECT count(*) FROM {set}")).await.unwrap(), (700 * (2 + n % 3)).to_string());
        }
        // Only one at a time.
        fleet.resize(&ResizeOptions::default(), &|_| ()).await.map(|_| ()).map_err(|e| e.kind())
    };
    let ((grown, shrunk), rounds, second) = tokio::join!(work, asking, writing);
    assert!(second.is_ok() || second == Err(Kind::Conflict));
    assert!(rounds > 0 && grown.left.is_empty() && shrunk.left.is_empty(), "{grown}\n{shrunk}");
    // A resize has only moved the replaced data set. The new one has a part on the drive that left, which the error
    // names.
    let late = writer.commit().await.unwrap_err();
    assert!(late.kind() == Kind::Conflict && late.to_string().contains("drive-1 left the fleet"), "{}", late.report());
    let mut writer = fleet.writer(&name("lab.t2"), skytether::DatasetKind::Table, true).await.unwrap();
    writer.write_table("data", skytether::Placement::Spread, batches(1, 10)[0].schema(), batches(3, 400).into_iter().map(Ok)).await.unwrap();
    resize(&fleet, &adding(1)).await;
    writer.commit().await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t2").await.unwrap(), "1200");
    resize(&fleet, &ResizeOptions::default()).await;
    clean(&fleet, "beside").await;
    drop(fleet);
    no_leaks(dir.path(), 2, "beside");
    let fleet = reopen(dir.path()).await;
    assert_eq!(query(&fleet, &sum(3), Pushdown::Full).await.unwrap(), whole);
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t2").await.unwrap(), "1200");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_resize_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3, "ec:2+1").await;
    let rows = batches(6, 1000);
    ingest(&fleet, "lab.t", &rows, false).await.unwrap();
    let keyed = IngestOptions { partition_by: vec!["id".into()], ..IngestOptions::default() };
    fleet.ingest_table(&name("lab.keyed"), rows[0].schema(), rows.iter().cloned().map(Ok), keyed).await.unwrap();
    let refused = async |options: ResizeOptions, kind: Kind, text: &str| {
        let error = fleet.resize(&options, &|_| ()).await.unwrap_err();
        assert!(error.kind() == kind && error.report().contains(text), "{}", error.report());
    };
    refused(retiring(&[0]), Kind::Invalid, "add others first").await;
    refused(retiring(&[7]), Kind::Invalid, "there is no drive").await;
    refused(ResizeOptions { addresses: vec!["127.0.0.1:1".into()], ..ResizeOptions::default() }, Kind::Invalid, "below it").await;
    // With one more there is one to take the place; with two gone there is not. Where the making of a drive
    // was cut off, one is made.
    crate::drive_replacement::cut_off(&dir_of(dir.path(), 3));
    assert_eq!(resize(&fleet, &adding(2)).await.added, ["drive-3", "drive-4"]);
    resize(&fleet, &retiring(&[0])).await;
    resize(&fleet, &adding(1)).await;
    let bare = IngestOptions { redundancy: Some("none".parse().unwrap()), partition_by: vec!["id".into()], ..IngestOptions::default() };
    fleet.ingest_table(&name("lab.wide"), rows[0].schema(), rows.iter().cloned().map(Ok), bare).await.unwrap();
    refused(retiring(&[1]), Kind::Unavailable, "lab.wide data is partitioned by key").await;
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.wide").await.unwrap(), "6000");
    assert_eq!(fleet.status().await.unwrap().len(), 5);
    drop(fleet);
    // Lost, and not to leave.
    lose(dir.path(), &[2]);
    let fleet = reopen(dir.path()).await;
    let error = fleet.resize(&ResizeOptions::default(), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.to_string().contains("drive-2 is lost"), "{error}");
    // A part of this was on the lost one alone.
    let error = fleet.resize(&retiring(&[2]), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.report().contains("lab.wide"), "{}", error.report());
    fleet.drop_dataset(&name("lab.wide")).await.unwrap();
    resize(&fleet, &retiring(&[2])).await;
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.keyed").await.unwrap(), "6000");
    clean(&fleet, "without the lost one").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resize_and_repair_keep_a_rate_limit() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await;
    ingest(&fleet, "lab.t", &batches(24, 1500), false).await.unwrap();
    let total = fleet.describe(&name("lab.t")).await.unwrap().bytes();
    // A fifth of it goes to the one that comes, and another fifth is on one that leaves.
    let rate = total / 6;
    let kept = |seconds: f64, bytes: u64| assert!(bytes > total / 10 && seconds > 0.7 * bytes as f64 / rate as f64, "{bytes} of {total} in {seconds} s");
    for options in [adding(1), retiring(&[0])] {
        let report = resize(&fleet, &ResizeOptions { bytes_per_s: Some(rate), ..options }).await;
        kept(report.seconds, report.bytes_moved);
    }
    drop(fleet);
    lose(dir.path(), &[1]);
    let fleet = reopen(dir.path()).await;
    let options = RepairOptions { bytes_per_s: Some(rate), ..crate::drive_replacement::replacing(&[1]) };
    let report = fleet.repair(&options, &|_| ()).await.unwrap_or_else(|e| panic!("{}", e.report()));
    kept(report.seconds, report.bytes_read);
    clean(&fleet, "at a rate").await;
}

/// Kills a growth or a retirement before every `every`th of its changes, and repeats it.
async fn killed_everywhere(redundancy: &str, job: Job, every: usize) {
    let first = tempfile::tempdir().unwrap();
    let scheme = redundancy.parse::<Scheme>().unwrap();
    let levels = scheme.inner().is_some();
    let (drives, homes) = if levels { (crate::two_level::DRIVES, 4) } else { (3, scheme.tolerates() + 1) };
    let fleet = if levels { crate::two_level::open(first.path()).await.unwrap() } else { open(first.path(), drives, redundancy).await };
    ingest(&fleet, "lab.a", &batches(3, 500), false).await.unwrap();
    ingest(&fleet, "lab.b", &batches(2, 400), false).await.unwrap();
    let leave = job == Job::Retire;
    if leave {
        resize(&fleet, &adding(1)).await;
    }
    drop(fleet);
    let sql = ["SELECT count(*), sum(id), sum(n), min(name) FROM lab.a", "SELECT count(*), sum(id), sum(n), min(name) FROM lab.b"];
    let look = async |dir: &Path, _: usize, _: &str, what: &str| {
        let fleet = reopen(dir).await;
        for (sql, due) in sql.iter().zip(["1500", "800"]) {
            assert!(value(&fleet, sql).await.unwrap_or_else(|e| panic!("{what}: {}", e.report())).starts_with(due), "{what}");
        }
        // What was begun may be there, whole.
        let names: Vec<String> = fleet.status().await.unwrap().into_iter().map(|drive| drive.info.name).collect();
        let has = |name: &str| names.iter().any(|other| other == name);
        clean(&fleet, what).await;
        drop(fleet);
        no_leaks(dir, homes, what);
        let fleet = reopen(dir).await;
        let again = match (leave, has(&format!("drive-{drives}")), has("drive-1")) {
            (false, false, _) => adding(1),
            (true, _, true) => retiring(&[1]),
            _ => ResizeOptions::default(),
        };
        let report = resize(&fleet, &again).await;
        assert!(report.left.is_empty(), "{what}: {report}");
        assert_eq!(fleet.status().await.unwrap().len(), drives + usize::from(!leave), "{what}");
        ingest(&fleet, "lab.b", &batches(2, 400), true).await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        clean(&fleet, what).await;
        drop(fleet);
        no_leaks(dir, homes, what);
    };
    let places = killed_at(first.path(), job, (0..MANY).step_by(every), redundancy, look).await;
    assert!(places.len() > 1, "nothing was changed: {places:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_growth_resumes() {
    killed_everywhere("none", Job::Grow, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_growth_with_parity_resumes() {
    killed_everywhere("replicas:2", Job::Grow, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_retirement_resumes() {
    killed_everywhere("none", Job::Retire, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_retirement_with_parity_resumes() {
    killed_everywhere("replicas:2", Job::Retire, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_growth_on_two_levels_resumes() {
    killed_everywhere(crate::two_level::SCHEME, Job::Grow, 13).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_retirement_on_two_levels_resumes() {
    killed_everywhere(crate::two_level::SCHEME, Job::Retire, 13).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_fleets_grow_and_shrink() {
    let dir = tempfile::tempdir().unwrap();
    let (mut drives, mut host, fleet) = crate::served::serve(dir.path()).await;
    let rows = batches(40, 1500);
    let options = IngestOptions { redundancy: Some("ec:2+1".parse().unwrap()), ..IngestOptions::default() };
    fleet.ingest_table(&name("lab.t"), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.unwrap();
    let sql = "SELECT grp, count(*), sum(n), round(avg(x), 6) FROM lab.t GROUP BY grp ORDER BY grp";
    let whole = query(&fleet, sql, Pushdown::Full).await.unwrap();
    // An ingest through this connection that began before.
    let mut writer = fleet.writer(&name("lab.before"), skytether::DatasetKind::Table, false).await.unwrap();
    writer.write_table("data", skytether::Placement::Spread, rows[0].schema(), batches(2, 400).into_iter().map(Ok)).await.unwrap();
    drives.push(crate::served::serve_drive_at("127.0.0.1:0", dir.path(), 4));
    let error = fleet.resize(&adding(1), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("name its address"), "{error}");
    let told = AtomicU64::new(0);
    let add = ResizeOptions { addresses: vec![drives[4].address.clone()], ..ResizeOptions::default() };
    let report = fleet.resize(&add, &|_| _ = told.fetch_add(1, Ordering::SeqCst)).await.unwrap_or_else(|e| panic!("{}", e.report()));
    balanced(&report, 1);
    assert!(report.added == ["drive-4"] && told.into_inner() > 0 && report.notes.iter().any(|note| note.contains("--drives")), "{report}");
    assert_eq!(query(&fleet, sql, Pushdown::Adaptive).await.unwrap(), whole);
    writer.commit().await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.before").await.unwrap(), "800");
    let mut writer = fleet.writer(&name("lab.between"), skytether::DatasetKind::Table, false).await.unwrap();
    writer.write_table("data", skytether::Placement::Spread, rows[0].schema(), batches(2, 400).into_iter().map(Ok)).await.unwrap();
    let report = fleet.resize(&retiring(&[0]), &|_| ()).await.unwrap_or_else(|e| panic!("{}", e.report()));
    balanced(&report, 2);
    // The home drive of the root record left meanwhile, and is no longer there.
    let error = writer.commit().await.unwrap_err();
    assert!(matches!(error.kind(), Kind::Conflict | Kind::Unavailable), "{}", error.report());
    assert_eq!(query(&fleet, sql, Pushdown::Adaptive).await.unwrap(), whole);
    ingest(&fleet, "lab.after", &batches(2, 400), false).await.unwrap();
    drives[0].kill();
    assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole);
    let at = host.address.clone();
    host.kill();
    let left: Vec<_> = (1..5).map(|n| &drives[n]).collect();
    let _host = crate::served::serve_host_over(&at, &left);
    crate::redundancy::reached(&fleet).await;
    assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole);
    assert_eq!(fleet.list().await.unwrap().iter().map(|d| d.name.to_string()).collect::<Vec<_>>(), ["lab.after", "lab.before", "lab.t"]);
    clean(&fleet, "served").await;
}
