//! Fleets on two levels grow and shrink: shards stay on their node, and the fleet survives what it did before.

use std::collections::BTreeMap;
use std::path::Path;

use skytether::{Fleet, IngestOptions, Pushdown, ResizeOptions};
use skytether_common::Kind;

use crate::growth::{adding, balanced, clean, no_leaks, reopen, resize, retiring, settled};
use crate::redundancy::{answers, bring_back, dir_of, fill, lose};
use crate::two_level::{DRIVES, SCHEME, open, open_with};
use crate::util::{CUTS, batches, ingest, name, query, value};

/// On how many drives a root record lies: two of each of two nodes.
const HOMES: usize = 4;

fn on(node: &str, count: usize) -> ResizeOptions {
    ResizeOptions { node: Some(node.to_owned()), ..adding(count) }
}

/// The node of each drive, by name.
async fn nodes(fleet: &Fleet) -> BTreeMap<String, String> {
    fleet.status().await.unwrap().into_iter().map(|drive| (drive.info.name, drive.node.unwrap())).collect()
}

/// What lies on each node, by data set and table.
async fn shares(fleet: &Fleet) -> BTreeMap<(String, String, String), u64> {
    let of: BTreeMap<uuid::Uuid, String> = fleet.status().await.unwrap().into_iter().map(|drive| (drive.info.id, drive.node.unwrap())).collect();
    let mut shares = BTreeMap::new();
    for set in fleet.list().await.unwrap() {
        let record = fleet.describe(&set.name).await.unwrap();
        for (title, table) in record.tables.iter().filter(|(_, table)| table.redundancy.is_some()) {
            let redundancy = table.redundancy.as_ref().unwrap();
            for p in table.partitions.iter().chain(&redundancy.parity).chain(&redundancy.inner) {
                *shares.entry((record.name.to_string(), title.clone(), of[&p.drive].clone())).or_default() += u64::from(p.slices);
            }
        }
    }
    shares
}

/// The answers with each of these lost.
async fn survives(dir: &Path, lost: &[&[usize]], whole: &[Vec<String>]) {
    for (round, lost) in lost.iter().enumerate() {
        lose(dir, lost);
        let fleet = reopen(dir).await;
        assert_eq!(answers(&fleet, CUTS[round % CUTS.len()]).await, whole, "without {lost:?}");
        drop(fleet);
        bring_back(dir, lost);
    }
}

/// Drives join three nodes and leave them. Nothing moves between nodes, and each node is balanced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growth_and_retirement_keep_shards_on_their_node() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    fill(&fleet).await;
    ingest(&fleet, "lab.large", &batches(24, 1500), false).await.unwrap();
    let (whole, before) = (answers(&fleet, Pushdown::Full).await, shares(&fleet).await);
    assert!(before.len() > 9, "{before:?}");
    // No node is given, so each node gets one drive.
    let report = resize(&fleet, &adding(3)).await;
    balanced(&report, 9);
    assert!(report.bytes_moved > 0 && report.linked > 0 && report.notes.iter().any(|note| note.contains("drive-9 on node-0, drive-10 on node-1")), "{report}");
    let now = nodes(&fleet).await;
    assert!(["drive-9", "drive-10", "drive-11"].iter().zip(0..).all(|(drive, n)| now[*drive] == format!("node-{n}")), "{now:?}");
    assert_eq!(shares(&fleet).await, before);
    assert_eq!(answers(&fleet, Pushdown::Adaptive).await, whole);
    clean(&fleet, "grown").await;
    settled(&resize(&fleet, &ResizeOptions::default()).await);
    // What is written now lies on all of them.
    ingest(&fleet, "lab.new", &batches(16, 1000), false).await.unwrap();
    assert_eq!(fleet.describe(&name("lab.new")).await.unwrap().table("data").unwrap().partitions.len(), 12);
    fleet.drop_dataset(&name("lab.new")).await.unwrap();
    drop(fleet);
    no_leaks(dir.path(), HOMES, "grown");
    // Whole nodes, and a drive of each of the others, those that came among them.
    survives(dir.path(), &[&[0, 1, 2, 9, 10, 11], &[3, 4, 5, 10, 9, 8], &[6, 7, 8, 11, 1, 3]], &whole).await;

    let fleet = reopen(dir.path()).await;
    let report = resize(&fleet, &retiring(&[0, 4, 8])).await;
    balanced(&report, 9);
    assert_eq!(report.retired.len(), 3);
    assert_eq!(shares(&fleet).await, before);
    assert_eq!(answers(&fleet, Pushdown::Adaptive).await, whole);
    clean(&fleet, "shrunk").await;
    ingest(&fleet, "lab.t", &batches(6, 1000), true).await.unwrap();
    drop(fleet);
    no_leaks(dir.path(), HOMES, "shrunk");
    for n in [0, 4, 8] {
        std::fs::remove_dir_all(dir_of(dir.path(), n)).unwrap();
    }
    survives(dir.path(), &[&[1, 2, 9, 10, 11], &[3, 5, 10, 9, 7], &[6, 7, 11, 2, 5]], &whole).await;
}

/// While a drive is lost that is to stay, nothing moves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retired_lost_drives_are_replaced_within_their_node() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    fill(&fleet).await;
    let (whole, before) = (answers(&fleet, Pushdown::Full).await, shares(&fleet).await);
    drop(fleet);
    // One is lost for good; so is another, on a node that is to lose a living one as well.
    lose(dir.path(), &[4, 8]);
    let fleet = reopen(dir.path()).await;
    let error = fleet.resize(&retiring(&[4, 8]), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.report().contains("1 would have so many: add others first"), "{}", error.report());
    // In one go: which node gets the one that comes is said.
    let error = fleet.resize(&ResizeOptions { retire: retiring(&[4, 8]).retire, ..on("node-1", 1) }, &|_| ()).await.unwrap_err();
    assert!(error.report().contains("2 would have so many"), "{}", error.report());
    let both = |node: &str, gone: usize| ResizeOptions { retire: retiring(&[gone]).retire, ..on(node, 1) };
    // While one is lost that stays, nothing moves; the blank drive has come nevertheless.
    let error = fleet.resize(&both("node-1", 4), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.report().contains("drive-8 is lost"), "{}", error.report());
    let error = fleet.resize(&both("node-2", 8), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.report().contains("drive-4 is lost"), "{}", error.report());
    let report = resize(&fleet, &retiring(&[4, 8])).await;
    assert!(report.left.is_empty() && report.retired.len() == 2, "{report}");
    assert_eq!(shares(&fleet).await, before);
    assert_eq!(answers(&fleet, Pushdown::Adaptive).await, whole);
    clean(&fleet, "without the lost ones").await;
    drop(fleet);
    no_leaks(dir.path(), HOMES, "without the lost ones");
    survives(dir.path(), &[&[0, 1, 2, 9, 10], &[3, 5, 9, 0, 6], &[6, 7, 10, 1, 3]], &whole).await;
}

/// Such a node may also take the place of another one, which leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_node_is_used_once_it_has_enough_drives() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    fill(&fleet).await;
    let (whole, before) = (answers(&fleet, Pushdown::Full).await, shares(&fleet).await);
    let refused = async |options: ResizeOptions, kind: Kind, text: &str| {
        let error = fleet.resize(&options, &|_| ()).await.unwrap_err();
        assert!(error.kind() == kind && error.report().contains(text), "{}", error.report());
    };
    refused(on("", 1), Kind::Invalid, "can't be the name of a node").await;
    refused(retiring(&[3]), Kind::Invalid, "redundancy ec:2+1/2+1 needs 3 nodes or more with 3 drives or more each").await;
    let used = async |set: &str| {
        ingest(&fleet, set, &batches(16, 1000), false).await.unwrap();
        let record = fleet.describe(&name(set)).await.unwrap();
        fleet.drop_dataset(&name(set)).await.unwrap();
        record.table("data").unwrap().redundancy.as_ref().unwrap().drives.len()
    };
    // Two are not enough for groups of three, and three are.
    assert!(resize(&fleet, &on("node-3", 2)).await.left.is_empty());
    assert_eq!(used("lab.two").await, DRIVES);
    assert!(resize(&fleet, &on("node-3", 1)).await.left.is_empty());
    assert_eq!(shares(&fleet).await, before);
    assert_eq!(used("lab.three").await, DRIVES + 3);
    assert_eq!(nodes(&fleet).await["drive-11"], "node-3");
    // The earlier data set is still on its three nodes, and none of them can lose a drive.
    refused(retiring(&[3]), Kind::Invalid, "node-1 would have 2, of 3 drives or more").await;
    // Of those nodes none can do with fewer, but another may take the place of one, also of one that is lost.
    let report = resize(&fleet, &retiring(&[3, 4, 5])).await;
    balanced(&report, 9);
    let after = shares(&fleet).await;
    let moved = before.iter().map(|((set, table, node), count)| ((set.clone(), table.clone(), node.replace("node-1", "node-3")), *count));
    assert_eq!(after, moved.collect());
    assert_eq!(answers(&fleet, Pushdown::Adaptive).await, whole);
    clean(&fleet, "on another node").await;
    drop(fleet);
    no_leaks(dir.path(), HOMES, "on another node");
    survives(dir.path(), &[&[0, 1, 2, 6, 9], &[9, 10, 11, 1, 7]], &whole).await;
    lose(dir.path(), &[6, 7, 8]);
    let fleet = reopen(dir.path()).await;
    let report = resize(&fleet, &ResizeOptions { retire: retiring(&[6, 7, 8]).retire, ..on("node-2b", 3) }).await;
    assert!(report.left.is_empty() && report.bytes_moved > 0, "{report}");
    assert_eq!(answers(&fleet, Pushdown::Adaptive).await, whole);
    clean(&fleet, "without the lost node").await;
    drop(fleet);
    no_leaks(dir.path(), HOMES, "without the lost node");
    // A fleet without nodes has none for those that come.
    let bare = open_with(&dir.path().join("bare"), 3, None, "none").await.unwrap();
    let error = bare.resize(&on("node-1", 1), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("was founded without nodes"), "{error}");
}

/// A fleet begins with three nodes of one drive. After growth it stores data sets on two levels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_founded_with_one_drive_suffice_once_they_grow() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open_with(dir.path(), 3, Some(3), "none").await.unwrap();
    let rows = batches(12, 1000);
    let options = IngestOptions { redundancy: Some(SCHEME.parse().unwrap()), ..IngestOptions::default() };
    ingest(&fleet, "lab.first", &rows, false).await.unwrap();
    resize(&fleet, &adding(6)).await;
    fleet.ingest_table(&name("lab.t"), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.unwrap();
    let sum = "SELECT count(*), sum(n) FROM lab.t";
    let whole = query(&fleet, sum, Pushdown::Full).await.unwrap();
    drop(fleet);
    // The next open deletes copies at former homes.
    drop(reopen(dir.path()).await);
    no_leaks(dir.path(), HOMES, "grown");
    // drive-3 to drive-5 came to the three nodes, and so did the others.
    for lost in [&[0, 3, 6, 1, 2][..], &[1, 4, 7, 3, 5], &[2, 5, 8, 6, 7]] {
        lose(dir.path(), lost);
        let fleet = reopen(dir.path()).await;
        assert_eq!(query(&fleet, sum, Pushdown::Full).await.unwrap(), whole, "without {lost:?}");
        drop(fleet);
        bring_back(dir.path(), lost);
    }
}

/// A table by key moves from a retired drive within its node. Data sets on one level have a share on every drive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyed_tables_move_within_nodes_and_one_level_ones_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open_with(dir.path(), DRIVES, Some(3), "none").await.unwrap();
    let rows = batches(12, 1000);
    let store = async |set: &str, scheme: &str, key: &[&str]| {
        let partition_by = key.iter().map(|key| (*key).to_owned()).collect();
        let options = IngestOptions { partition_by, redundancy: Some(scheme.parse().unwrap()), ..IngestOptions::default() };
        fleet.ingest_table(&name(set), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.unwrap();
    };
    store("lab.keyed", SCHEME, &["id"]).await;
    store("lab.flat", "ec:3+1", &[]).await;
    store("lab.bare", "none", &[]).await;
    let sums = async |fleet: &Fleet| {
        let mut sums = Vec::new();
        for set in ["keyed", "flat", "bare"] {
            sums.push(query(fleet, &format!("SELECT count(*), sum(n), max(name) FROM lab.{set}"), Pushdown::Adaptive).await.unwrap());
        }
        sums
    };
    let whole = sums(&fleet).await;
    resize(&fleet, &on("node-2", 2)).await;
    let error = fleet.resize(&retiring(&[0]), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.report().contains("node-0 would have 2, of 3 drives or more"), "{}", error.report());
    let report = resize(&fleet, &retiring(&[6])).await;
    assert!(report.left.is_empty() && report.bytes_moved > 0, "{report}");
    assert_eq!(sums(&fleet).await, whole);
    let drives = fleet.describe(&name("lab.keyed")).await.unwrap().table("data").unwrap().redundancy.clone().unwrap().drives;
    let on_nodes = nodes(&fleet).await;
    let named: BTreeMap<uuid::Uuid, String> = fleet.status().await.unwrap().into_iter().map(|drive| (drive.info.id, drive.info.name)).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    drives.iter().for_each(|id| *counts.entry(&on_nodes[&named[id]]).or_default() += 1);
    assert!(drives.len() == DRIVES && counts.values().all(|count| *count == 3), "{counts:?}");
    // Tables on one level have their share on all drives.
    assert_eq!(fleet.describe(&name("lab.flat")).await.unwrap().table("data").unwrap().partitions.len(), DRIVES + 1);
    clean(&fleet, "by key").await;
    drop(fleet);
    lose(dir.path(), &[3, 4, 5, 7, 1]);
    let fleet = reopen(dir.path()).await;
    assert_eq!(query(&fleet, "SELECT count(*), sum(n), max(name) FROM lab.keyed", Pushdown::Full).await.unwrap(), whole[0]);
    assert!(value(&fleet, "SELECT count(*) FROM lab.bare").await.is_err());
}
