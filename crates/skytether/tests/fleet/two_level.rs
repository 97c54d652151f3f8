//! Redundancy on two levels: any node may be lost, and one drive of each other node. A loss within a node is repaired
//! from its own drives.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use skytether::{AdaptiveMode, Fleet, HostOptions, IngestOptions, OpenOptions, Pushdown, ScrubOptions};
use skytether_common::{Key, Kind, PartitionName, Result};
use skytether_erasure::map::CodeMap;

use crate::drive_replacement::{WIDE, parts, repair, replacing, wide};
use crate::redundancy::{QUERIES, answers, bring_back, dir_of, fill, lose, receipt};
use crate::scrub::{all, files, put, values};
use crate::util::{CUTS, Random, batches, ingest, name, query, usage, value};

pub(crate) const SCHEME: &str = "ec:2+1/2+1";

/// Three nodes of three drives each.
pub(crate) const DRIVES: usize = 9;

pub(crate) async fn open_with(path: &Path, drives: usize, nodes: Option<usize>, redundancy: &str) -> Result<Fleet> {
    let mut host = HostOptions { threads: 2, ..HostOptions::default() };
    host.slices.target_bytes = 8 << 10;
    let options = OpenOptions { drives: Some(drives), redundancy: redundancy.into(), nodes, memory_per_drive: Some(64 << 20), ..OpenOptions::default() };
    Fleet::open_with(path, &options, host).await
}

pub(crate) async fn open(path: &Path) -> Result<Fleet> {
    let nodes = (!path.join("fleet.json").exists()).then_some(3);
    open_with(path, DRIVES, nodes, if nodes.is_some() { SCHEME } else { "none" }).await
}

/// A drive of each node; whole nodes; a whole node and a drive of each of the others.
const LOST: [&[usize]; 10] =
    [&[4], &[0, 4, 8], &[1, 3, 7], &[2, 5, 6], &[0, 1, 2], &[3, 4, 5], &[6, 7, 8], &[0, 1, 2, 3, 6], &[3, 4, 5, 2, 7], &[6, 7, 8, 1, 5]];

/// Under every cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_of_a_node_and_a_drive_of_each_other_changes_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    fill(&fleet).await;
    wide(&fleet).await;
    let (whole, of_wide) = (answers(&fleet, Pushdown::Full).await, value(&fleet, WIDE).await.unwrap());
    assert!(whole.iter().all(|rows| !rows.is_empty()));
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    let redundancy = record.tables["data"].redundancy.clone().unwrap();
    assert!(record.format == 3 && record.tolerates() == 3 && redundancy.scheme.to_string() == SCHEME && !redundancy.inner.is_empty(), "{record:?}");
    let status = fleet.status().await.unwrap();
    assert!(status.iter().enumerate().all(|(n, drive)| drive.node == Some(format!("node-{}", n / 3))), "{status:?}");
    assert!(fleet.list().await.unwrap().iter().all(|set| set.redundancy.iter().map(ToString::to_string).eq([SCHEME])));
    drop(fleet);
    for (round, lost) in LOST.into_iter().enumerate() {
        lose(dir.path(), lost);
        let fleet = open(dir.path()).await.unwrap_or_else(|e| panic!("without {lost:?}: {}", e.report()));
        let cuts = if lost.len() == 5 && round % 3 == 0 { CUTS.to_vec() } else { vec![CUTS[round % CUTS.len()]] };
        for cut in cuts {
            for (sql, (own, whole)) in QUERIES.iter().zip(answers(&fleet, cut).await.iter().zip(&whole)) {
                assert_eq!(own, whole, "without {lost:?}, {cut}: {sql}");
            }
        }
        assert_eq!(value(&fleet, WIDE).await.unwrap(), of_wide, "without {lost:?}");
        // Each query finds what it needs decoded, unless it is the first.
        let (rows, receipt) = receipt(&fleet, QUERIES[1]).await;
        assert_eq!(rows, whole[1]);
        for (n, drive) in receipt.drives.iter().enumerate() {
            assert_eq!(drive.served_by_fallback.is_some(), lost.contains(&n), "without {lost:?}: {drive:?}");
        }
        drop(fleet);
        let fleet = open(dir.path()).await.unwrap();
        let (_, receipt) = self::receipt(&fleet, "SELECT sum(n), max(name), min(grp), sum(id), sum(x) FROM lab.t").await;
        for (n, drive) in receipt.drives.iter().enumerate().filter(|(_, drive)| drive.served_by_fallback.is_some()) {
            let node = n / 3 * 3..n / 3 * 3 + 3;
            let alone = lost.iter().filter(|other| node.contains(other)).count() == 1;
            assert!(drive.slices_decoded > 0, "without {lost:?}: {drive:?}");
            assert_eq!(drive.slices_within, if alone { drive.slices_decoded } else { 0 }, "without {lost:?}: {drive:?}");
        }
        assert_eq!(receipt.to_string().contains("within its node"), receipt.drives.iter().any(|drive| drive.slices_within > 0), "{receipt}");
        drop(fleet);
        bring_back(dir.path(), lost);
    }
    let fleet = open(dir.path()).await.unwrap();
    assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
}

/// What lies on a drive of the parts of data sets: under which key.
pub(crate) fn had(dir: &Path, drive: usize) -> Vec<(Key, Bytes)> {
    values(dir, drive).into_iter().filter(|(key, _)| PartitionName::parse(key).is_some()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_drive_is_reconstructed_within_its_node() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    fill(&fleet).await;
    drop(fleet);
    let slices: Vec<(Key, Bytes)> = had(dir.path(), 4).into_iter().filter(|(key, _)| key.as_str().contains(';') && !key.as_str().contains("tiny")).collect();
    for part in [".data.", ".parity%2Fdata.", ".inner-parity%2Fdata."] {
        assert!(slices.iter().any(|(key, _)| key.as_str().contains(part)), "{part}");
    }
    lose(dir.path(), &[4]);
    let fleet = open(dir.path()).await.unwrap();
    let drive = &fleet.host().unwrap().drives()[4];
    // So that the code maps are known: they lie on other nodes, too.
    let mut seen = Vec::new();
    for (key, value) in &slices {
        let set = PartitionName::parse(key).unwrap().0.dataset;
        if !seen.contains(&set) {
            assert_eq!(drive.get(key).await.unwrap(), value);
            seen.push(set);
        }
    }
    // The files on all other nodes are gone, and no drive has noticed it.
    for n in [0, 1, 2, 6, 7, 8] {
        std::fs::rename(dir_of(dir.path(), n).join("slices"), dir_of(dir.path(), n).join("gone")).unwrap();
    }
    for (key, value) in &slices {
        let len = value.len() as u64;
        let ranges = [0..len.min(100), len / 2..len / 2 + 1, len.saturating_sub(70)..len, 0..0];
        let parts = drive.get_ranges_unverified(key, &ranges).await.unwrap_or_else(|e| panic!("{key}: {}", e.report()));
        assert!(ranges.iter().zip(parts).all(|(range, part)| part == value.slice(range.start as usize..range.end as usize)), "{key}");
        assert_eq!(&drive.get(key).await.unwrap_or_else(|e| panic!("{key}: {}", e.report())), value);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reconstructed_values_equal_the_lost_ones_whole_and_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    fill(&fleet).await;
    drop(fleet);
    for lost in [&[4][..], &[3, 4, 5, 0, 7], &[0, 1, 2, 5, 6]] {
        let before: Vec<(usize, Key, Bytes)> = lost.iter().flat_map(|n| had(dir.path(), *n).into_iter().map(|(key, value)| (*n, key, value))).collect();
        assert!(before.iter().any(|(_, key, _)| key.as_str().contains("inner-parity")));
        lose(dir.path(), lost);
        let fleet = open(dir.path()).await.unwrap();
        for (at, (n, key, value)) in before.into_iter().enumerate() {
            let drive = &fleet.host().unwrap().drives()[n];
            let entry = drive.stat(&key).await.unwrap().unwrap();
            assert_eq!((entry.len, entry.crc32c), (value.len() as u64, skytether_common::checksum::crc32c(&value)), "{key}");
            let len = value.len() as u64;
            let of = |a: usize, b: usize| (at * a) as u64 % (len + 1)..len.min((at * a) as u64 % (len + 1) + b as u64);
            let ranges = [of(7919, 1), of(104_729, 100), of(31, 4000), len..len, len.saturating_sub(3)..len, 63.min(len)..65.min(len)];
            let parts = drive.get_ranges_unverified(&key, &ranges).await.unwrap_or_else(|e| panic!("without {lost:?}, {key}: {}", e.report()));
            for (range, part) in ranges.iter().zip(parts) {
                assert_eq!(part, value.slice(range.start as usize..range.end as usize), "without {lost:?}, {key}, {range:?}");
            }
            assert_eq!(drive.get(&key).await.unwrap_or_else(|e| panic!("without {lost:?}, {key}: {}", e.report())), value, "{key}");
        }
        drop(fleet);
        bring_back(dir.path(), lost);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loss_in_the_middle_of_a_query_changes_no_answer() {
    use crate::crash_mid_query::{QUERIES, answer, filled, host_over};

    let dir = tempfile::tempdir().unwrap();
    let fleet = async |breaths: BTreeMap<usize, Arc<AtomicUsize>>, moving| host_over(dir.path(), (DRIVES, Some(3)), SCHEME, breaths, moving).await.unwrap();
    let first = fleet(BTreeMap::new(), AdaptiveMode::AsNeeded).await;
    let whole = filled(first).await;
    let mut served_by_fallback = 0;
    let movings = [AdaptiveMode::AsNeeded, AdaptiveMode::Never];
    for (round, (breath, lost)) in [0, 1, 2, 3, 5, 8, 13].into_iter().zip(LOST.into_iter().rev().cycle()).enumerate() {
        for (at, (sql, whole)) in QUERIES.iter().zip(&whole).enumerate().skip(round % 2).step_by(2) {
            let lives: BTreeMap<usize, Arc<AtomicUsize>> = lost.iter().map(|n| (*n, Arc::new(AtomicUsize::new(usize::MAX)))).collect();
            let (cut, moving) = (CUTS[(at + round) % CUTS.len()], movings[round % 2]);
            let host = fleet(lives.clone(), moving).await;
            // Not all at the same moment.
            lives.values().enumerate().for_each(|(n, left)| left.store(breath + n % 2, Ordering::SeqCst));
            let (own, receipt) = answer(&host, sql, cut).await.unwrap_or_else(|e| panic!("{moving:?}, {cut}, {lost:?} after {breath}: {sql}: {}", e.report()));
            assert_eq!(&own, whole, "{moving:?}, {cut}, {lost:?} after {breath}: {sql}");
            let names: Vec<String> = lost.iter().map(|n| format!("drive-{n}")).collect();
            served_by_fallback +=
                receipt.drives.iter().filter(|d| d.served_by_fallback.is_some()).inspect(|d| assert!(names.contains(&d.name), "{d:?}")).count();
            lives.values().for_each(|left| left.store(0, Ordering::SeqCst));
            assert_eq!(&answer(&host, sql, Pushdown::Full).await.unwrap().0, whole);
        }
    }
    assert!(served_by_fallback > 20, "{served_by_fallback}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losses_beyond_redundancy_name_the_drives() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    fill(&fleet).await;
    drop(fleet);
    lose(dir.path(), &[0, 2, 4, 5]);
    let error = open(dir.path()).await.unwrap_err();
    let text = error.report();
    assert_eq!(error.kind(), Kind::Unavailable, "{text}");
    assert!(text.contains("4 drives are lost, but this fleet survives the loss of 1 node, and of 1 drive of each other node at the same time"), "{text}");
    assert!([0, 2, 4, 5].iter().all(|n| text.contains(&format!("drive-{n} ("))), "{text}");
    bring_back(dir.path(), &[5]);
    let fleet = open(dir.path()).await.unwrap();
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "6000");
    // A value that only one level protects is reported by name when its drives are lost.
    drop(fleet);
    bring_back(dir.path(), &[0, 2, 4]);
    let fleet = open(dir.path()).await.unwrap();
    let flat = IngestOptions { redundancy: Some("ec:4+1".parse().unwrap()), ..IngestOptions::default() };
    let rows = batches(12, 1000);
    fleet.ingest_table(&name("lab.flat"), rows[0].schema(), rows.iter().cloned().map(Ok), flat).await.unwrap();
    let sum = value(&fleet, "SELECT sum(n) FROM lab.flat").await.unwrap();
    drop(fleet);
    lose(dir.path(), &[7]);
    let fleet = open(dir.path()).await.unwrap();
    assert_eq!(value(&fleet, "SELECT sum(n) FROM lab.flat").await.unwrap(), sum);
    drop(fleet);
    lose(dir.path(), &[1, 4]);
    let fleet = open(dir.path()).await.unwrap();
    let error = query(&fleet, "SELECT sum(n) FROM lab.flat", Pushdown::Full).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.report().contains("can't be decoded"), "{}", error.report());
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "6000");
}

/// Data sets are replaced, dropped and made while drives are away. When these are back, nothing stale is left on them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingest_uses_whole_nodes_and_returning_drives_catch_up() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open_with(dir.path(), 12, Some(4), SCHEME).await.unwrap();
    let empty = usage(&fleet).await.0;
    for n in 0..4 {
        ingest(&fleet, &format!("lab.set{n}"), &batches(4, 1000), false).await.unwrap();
    }
    drop(fleet);
    let count = async |fleet: &Fleet, set: &str| value(fleet, &format!("SELECT count(*) FROM lab.{set}")).await;
    for (round, lost) in [&[1][..], &[3, 4, 5], &[11, 10]].into_iter().enumerate() {
        lose(dir.path(), lost);
        let fleet = open_with(dir.path(), 12, None, "none").await.unwrap();
        ingest(&fleet, "lab.set0", &batches(2, 600 + round), true).await.unwrap();
        fleet.drop_dataset(&name("lab.set1")).await.unwrap();
        ingest(&fleet, &format!("lab.new{round}"), &batches(2, 300), false).await.unwrap();
        let record = fleet.describe(&name(&format!("lab.new{round}"))).await.unwrap();
        let own = record.tables["data"].redundancy.clone().unwrap();
        let ids: Vec<uuid::Uuid> = fleet.status().await.unwrap().iter().map(|drive| drive.info.id).collect();
        assert_eq!(own.drives.len(), 9);
        assert!(
            own.drives.iter().all(|id| ids.iter().position(|other| other == id).unwrap() / 3 != lost[0] / 3),
            "a node without one of its drives is left out"
        );
        let check = async |fleet: &Fleet| {
            assert_eq!(count(fleet, "set0").await.unwrap(), (2 * (600 + round)).to_string());
            assert_eq!(count(fleet, "set1").await.unwrap_err().kind(), Kind::NotFound);
            assert_eq!(count(fleet, "set2").await.unwrap(), "4000");
            assert_eq!(count(fleet, &format!("new{round}")).await.unwrap(), "600");
        };
        check(&fleet).await;
        drop(fleet);
        bring_back(dir.path(), lost);
        let fleet = open_with(dir.path(), 12, None, "none").await.unwrap();
        assert!(fleet.status().await.unwrap().iter().all(|drive| drive.error.is_none()));
        check(&fleet).await;
        drop(fleet);
        // Others are lost: a node, and a drive of each other.
        let others = [6, 7, 8, 0, 4, 9];
        lose(dir.path(), &others);
        let fleet = open_with(dir.path(), 12, None, "none").await.unwrap();
        check(&fleet).await;
        drop(fleet);
        bring_back(dir.path(), &others);
        let fleet = open_with(dir.path(), 12, None, "none").await.unwrap();
        ingest(&fleet, "lab.set1", &batches(4, 1000), false).await.unwrap();
    }
    // With a drive of each of two nodes gone, only two nodes are whole.
    lose(dir.path(), &[0, 3]);
    let fleet = open_with(dir.path(), 12, None, "none").await.unwrap();
    let error = ingest(&fleet, "lab.more", &batches(1, 100), false).await.unwrap_err();
    let text = error.report();
    assert!(error.kind() == Kind::Invalid && text.contains("needs 3 nodes or more with 3 drives or more each, but of 4 that have any"), "{text}");
    fleet.drop_dataset(&name("lab.set3")).await.unwrap();
    let flat = IngestOptions { redundancy: Some("ec:4+1".parse().unwrap()), ..IngestOptions::default() };
    let rows = batches(1, 100);
    fleet.ingest_table(&name("lab.more"), rows[0].schema(), rows.iter().cloned().map(Ok), flat).await.unwrap();
    drop(fleet);
    bring_back(dir.path(), &[0, 3]);
    let fleet = open_with(dir.path(), 12, None, "none").await.unwrap();
    for set in fleet.list().await.unwrap() {
        fleet.drop_dataset(&set.name).await.unwrap();
    }
    assert_eq!(usage(&fleet).await.0, empty, "keys leaked");
}

/// The code maps of a data set's table `data`, across nodes and within them, from whichever drive has them, and
/// how many drives they count.
pub(crate) fn maps(dir: &Path, dataset: &str) -> (CodeMap, CodeMap, u32, Vec<uuid::Uuid>) {
    let key = |key: &Key| PartitionName::parse(key).is_some_and(|(p, n)| n.is_none() && p.table == "parity/data" && p.dataset == name(dataset));
    let (_, stored) = (0..DRIVES).flat_map(|n| had(dir, n)).find(|(own, _)| key(own)).unwrap();
    let head = 4 + u32::from_le_bytes(*stored.first_chunk::<4>().unwrap()) as usize;
    let of: serde_json::Value = serde_json::from_slice(&stored[4..head]).unwrap();
    let drives: Vec<uuid::Uuid> = serde_json::from_value(of["drives"].clone()).unwrap();
    let (across, within) = stored[head..].split_at(of["across"].as_u64().unwrap() as usize);
    (CodeMap::from_bytes(across).unwrap(), CodeMap::from_bytes(within).unwrap(), drives.len() as u32, drives)
}

/// On both levels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unequal_slices_waste_little_and_parities_are_balanced() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    let random = &mut Random(11);
    let rows: Vec<RecordBatch> = (0..60)
        .map(|_| {
            // Numbers that take from 8 to 50 bits.
            let numbers = |random: &mut Random| {
                let bits = 8 + random.below(42);
                Int64Array::from_iter_values((0..20_000).map(|_| random.below(1 << bits) as i64))
            };
            RecordBatch::try_from_iter([("x", Arc::new(numbers(random)) as ArrayRef), ("y", Arc::new(numbers(random)))]).unwrap()
        })
        .collect();
    ingest(&fleet, "lab.t", &rows, false).await.unwrap();
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    drop(fleet);
    let (across, within, drives, _) = maps(dir.path(), "lab.t");
    let lens = |map: &CodeMap| {
        let sum = |of: fn(&skytether_erasure::map::Members<'_>) -> u64| map.iter().map(|members| of(&members)).sum::<u64>();
        (sum(|members| members.data.iter().map(|shard| shard.len).sum()), sum(|members| members.parity.iter().map(|shard| shard.len).sum()))
    };
    let ((data, outer), (both, inner)) = (lens(&across), lens(&within));
    assert!(across.len() > 400 && both == data + outer, "{} groups, {data} + {outer} bytes, {both} covered", across.len());
    assert!(outer as f64 <= data as f64 * (0.5 + 0.01), "{outer} of {data}");
    assert!(inner as f64 <= both as f64 * (0.5 + 0.01), "{inner} of {both}");
    // Each slice is in a group across nodes, and each slice and parity of those in one within its node.
    let slices: u32 = record.tables["data"].partitions.iter().map(|p| p.slices).sum();
    let shards = |map: &CodeMap| map.iter().map(|members| members.data.len()).sum::<usize>();
    assert_eq!((shards(&across), shards(&within)), (slices as usize, slices as usize + across.len()));
    for shard in within.iter().flat_map(|members| members.data.to_vec()).filter(|shard| shard.home >= drives) {
        assert!(across.find(skytether_erasure::map::Role::Parity, shard.home - drives, shard.number).is_some());
    }
    let per_drive = |partitions: &[skytether::PartitionRecord]| partitions.iter().map(|p| p.bytes).collect::<Vec<_>>();
    let redundancy = record.tables["data"].redundancy.clone().unwrap();
    for bytes in [per_drive(&redundancy.parity), per_drive(&redundancy.inner)] {
        let mean = bytes.iter().sum::<u64>() as f64 / DRIVES as f64;
        assert!(bytes.len() == DRIVES && bytes.iter().all(|of| (*of as f64 - mean).abs() < 0.12 * mean), "{bytes:?}");
    }
}

/// The answers, with whole nodes and drives of others lost.
pub(crate) async fn survives(dir: &Path, whole: &[Vec<String>]) {
    for lost in LOST.iter().skip(7) {
        lose(dir, lost);
        let fleet = open(dir).await.unwrap();
        for (sql, whole) in QUERIES.iter().zip(whole).step_by(3) {
            assert_eq!(
                &query(&fleet, sql, Pushdown::Full).await.unwrap_or_else(|e| panic!("without {lost:?}: {}", e.report())),
                whole,
                "without {lost:?}: {sql}"
            );
        }
        drop(fleet);
        bring_back(dir, lost);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bit_is_found_and_repaired_on_either_level() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    fill(&fleet).await;
    let whole = answers(&fleet, Pushdown::Full).await;
    let clean = all(&fleet).await;
    assert!(clean.damaged == 0 && clean.unverified == 0 && clean.groups > 0, "{clean}");
    drop(fleet);
    // Where which value is, since files have no names.
    let random = &mut Random(3);
    for (round, kind) in
        [".data.", ".parity%2Fdata.", ".inner-parity%2Fdata.", ".parity%2Fx.", ".inner-parity%2Fx.", ".x."].into_iter().cycle().take(18).enumerate()
    {
        let drive = (0..DRIVES)
            .cycle()
            .skip(random.below(DRIVES))
            .find(|n| had(dir.path(), *n).iter().any(|(key, _)| key.as_str().contains(kind) && key.as_str().contains(';')));
        let drive = drive.unwrap();
        let mine: Vec<(Key, Bytes)> =
            had(dir.path(), drive).into_iter().filter(|(key, v)| key.as_str().contains(kind) && key.as_str().contains(';') && !v.is_empty()).collect();
        let (key, before) = mine[random.below(mine.len())].clone();
        let file = files(dir.path(), drive).into_iter().find(|file| std::fs::read(file).unwrap() == before).unwrap();
        let mut bytes = before.to_vec();
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
        std::fs::write(&file, &bytes).unwrap();
        let fleet = open(dir.path()).await.unwrap();
        let report = all(&fleet).await;
        assert!(report.damaged == 1 && report.left() == 0 && report.found[0].mended, "{round}: byte {at} of {key}: {report}");
        assert!(report.found[0].drive == format!("drive-{drive}"), "{report}");
        drop(fleet);
        assert!(had(dir.path(), drive).contains(&(key, before)), "{round}");
    }
    // Whole values gone, of both drives of a group within a node: they come from other nodes.
    let (_, within, drives, ids) = maps(dir.path(), "lab.t");
    let group = within.iter().find(|members| members.data.len() == 2 && members.data.iter().all(|shard| shard.home < drives)).unwrap();
    let fleet = open(dir.path()).await.unwrap();
    let at: Vec<uuid::Uuid> = fleet.status().await.unwrap().iter().map(|drive| drive.info.id).collect();
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    drop(fleet);
    for shard in group.data {
        let drive = at.iter().position(|id| *id == ids[shard.drive as usize]).unwrap();
        put(dir.path(), drive, &record.partition("data", shard.home).slice_key(shard.number).unwrap(), None);
    }
    let fleet = open(dir.path()).await.unwrap();
    assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
    let check = fleet.scrub(&ScrubOptions { check: true, ..ScrubOptions::default() }, &|_| ()).await.unwrap();
    assert!(check.left() >= 2, "{check}");
    let report = all(&fleet).await;
    assert!(report.damaged == 2 && report.left() == 0, "{report}");
    assert_eq!(all(&fleet).await.damaged, 0);
    drop(fleet);
    survives(dir.path(), &whole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_drives_and_nodes_are_rebuilt_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path()).await.unwrap();
    ingest(&fleet, "lab.t", &batches(10, 1000), false).await.unwrap();
    drop(fleet);
    // Of one drive, each group within its node is read once, and nothing else.
    let (_, within, _, ids) = maps(dir.path(), "lab.t");
    lose(dir.path(), &[4]);
    let fleet = open(dir.path()).await.unwrap();
    let at = fleet.status().await.unwrap()[4].info.id;
    let place = ids.iter().position(|id| *id == at).unwrap() as u32;
    let groups = within.iter().filter(|members| members.is_on(place));
    let (groups, bytes) = groups.fold((0, 0), |(groups, bytes), members| {
        let mut others: Vec<u64> = members.all().iter().filter(|shard| shard.drive != place).map(|shard| shard.len).collect();
        others.sort_unstable();
        (groups + 1, bytes + others[others.len() - members.data.len()..].iter().sum::<u64>())
    });
    let report = repair(&fleet, replacing(&[4])).await;
    assert!(report.left.is_empty() && report.groups == groups && report.bytes_read == report.bytes_least, "{report}, {groups} groups");
    // And what has copies, from anywhere.
    assert!(report.bytes_read <= bytes + (64 << 10), "{report}: {bytes}");
    std::fs::remove_dir_all(dir.path().join("away-4")).unwrap();
    fill_beside(&fleet).await;
    let whole = answers(&fleet, Pushdown::Full).await;
    let of_wide = value(&fleet, WIDE).await.unwrap();
    drop(fleet);
    let before: Vec<_> = (0..DRIVES).map(|n| parts(dir.path(), n)).collect();
    for lost in [&[4][..], &[1, 3, 8], &[3, 4, 5], &[6, 7, 8, 1, 5]] {
        lose(dir.path(), lost);
        let fleet = open(dir.path()).await.unwrap();
        let report = repair(&fleet, replacing(lost)).await;
        assert!(report.left.is_empty() && report.lost.is_empty() && report.kept == 0 && report.drives.len() == lost.len(), "{lost:?}: {report}");
        assert!(fleet.status().await.unwrap().iter().all(|drive| drive.error.is_none()), "{lost:?}");
        assert_eq!(answers(&fleet, Pushdown::Adaptive).await, whole, "{lost:?}");
        assert_eq!(value(&fleet, WIDE).await.unwrap(), of_wide);
        let scrubbed = all(&fleet).await;
        assert!(scrubbed.damaged == 0 && scrubbed.skipped.is_empty() && scrubbed.unverified == 0, "{lost:?}: {scrubbed}");
        drop(fleet);
        for n in 0..DRIVES {
            let (now, before) = (parts(dir.path(), n), &before[n]);
            let names =
                |of: &BTreeMap<String, Bytes>, than: &BTreeMap<String, Bytes>| of.keys().filter(|key| !than.contains_key(*key)).cloned().collect::<Vec<_>>();
            assert!(&now == before, "{lost:?}: drive {n} lacks {:?}, has {:?} more", names(before, &now), names(&now, before));
        }
        for n in lost {
            std::fs::remove_dir_all(dir.path().join(format!("away-{n}"))).unwrap();
        }
    }
    survives(dir.path(), &whole).await;
}

async fn fill_beside(fleet: &Fleet) {
    fleet.drop_dataset(&name("lab.t")).await.unwrap();
    fill(fleet).await;
    wide(fleet).await;
}

/// The other data sets of the fleet have no redundancy. Schemes that need more nodes are refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_data_set_may_use_two_levels_where_nodes_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open_with(dir.path(), DRIVES, Some(3), "none").await.unwrap();
    let rows = batches(6, 1000);
    ingest(&fleet, "lab.bare", &rows, false).await.unwrap();
    let with = |scheme: &str| IngestOptions { redundancy: Some(scheme.parse().unwrap()), ..IngestOptions::default() };
    let store = async |title: &str, scheme: &str| fleet.ingest_table(&name(title), rows[0].schema(), rows.iter().cloned().map(Ok), with(scheme)).await;
    store("lab.kept", SCHEME).await.unwrap();
    // Copies on both levels.
    store("lab.copies", "ec:1+2/1+1").await.unwrap();
    for scheme in ["ec:3+1/2+1", "ec:2+1/3+1"] {
        let error = store("lab.more", scheme).await.unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.report().contains("nodes or more with"), "{}", error.report());
    }
    let expected = value(&fleet, "SELECT sum(n) FROM lab.kept").await.unwrap();
    drop(fleet);
    for lost in [&[0, 1, 2, 4, 8][..], &[6, 7, 8]] {
        lose(dir.path(), lost);
        let fleet = open(dir.path()).await.unwrap();
        assert_eq!(value(&fleet, "SELECT sum(n) FROM lab.kept").await.unwrap(), expected);
        assert_eq!(value(&fleet, "SELECT sum(n) FROM lab.copies").await.unwrap(), expected);
        assert_eq!(fleet.list().await.unwrap().len(), 3);
        assert!(value(&fleet, "SELECT sum(n) FROM lab.bare").await.is_err());
        drop(fleet);
        bring_back(dir.path(), lost);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_levels_are_refused_without_enough_nodes_and_drives() {
    let dir = tempfile::tempdir().unwrap();
    for (drives, nodes, says) in [
        (9, None, "say on how many nodes the drives are (nodes=3, in the shell --nodes 3, with 3 drives each or more)"),
        (10, Some(3), "10 drives can't be on 3 nodes with as many each"),
        (8, Some(2), "needs 9 drives or more"),
        (10, Some(2), "needs 3 nodes or more with 3 drives or more each, but there are 2 with 5 each"),
        (12, Some(6), "but there are 6 with 2 each"),
        (9, Some(0), "can't be on 0 nodes"),
    ] {
        let error = open_with(&dir.path().join("fleet"), drives, nodes, SCHEME).await.unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains(says), "{drives} on {nodes:?}: {error}");
    }
    // A fleet keeps the nodes with which it was founded.
    let fleet = open_with(&dir.path().join("three"), 9, Some(3), "none").await.unwrap();
    drop(fleet);
    let error = open_with(&dir.path().join("three"), 9, Some(9), "none").await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("has 3 nodes"), "{error}");
    drop(open_with(&dir.path().join("three"), 9, Some(3), "none").await.unwrap());
    drop(open_with(&dir.path().join("bare"), 4, None, "none").await.unwrap());
    let error = open_with(&dir.path().join("bare"), 4, Some(2), "none").await.unwrap_err();
    assert!(error.to_string().contains("has no nodes"), "{error}");
}

/// A host over served drives, three in a row on each node; a connection to it.
async fn serve(drives: &[crate::served::Server]) -> (crate::served::Server, Fleet) {
    use skytether_device::{Cse, Storage};
    use skytether_flight_drive::{ConnectOptions, FlightCse};
    use skytether_host::{Founding, Host};

    let addresses: Vec<String> = drives.iter().map(|drive| drive.address.clone()).collect();
    let host = crate::served::Server::start_at("127.0.0.1:0", move |listener| async move {
        let connection = ConnectOptions { idle_timeout: std::time::Duration::from_secs(20), ..ConnectOptions::default() };
        let mut options = HostOptions { redundancy: SCHEME.parse().unwrap(), storage_deadline: std::time::Duration::from_secs(30), ..HostOptions::default() };
        options.slices.target_bytes = 16 << 10;
        let mut connected: Vec<Arc<dyn Cse>> = Vec::new();
        for (n, address) in addresses.iter().enumerate() {
            let drive = FlightCse::connect(address, connection.clone()).await.unwrap();
            options.nodes.insert(Storage::info(drive.as_ref()).id, format!("node-{}", n / 3));
            connected.push(drive);
        }
        let (host, _) = Host::join(connected, options, Founding::EmptyDrives).await.unwrap();
        skytether_flight::serve(host, listener, std::future::pending()).await.unwrap();
    });
    let fleet = Fleet::connect(&format!("grpc://{}", host.address)).await.unwrap();
    (host, fleet)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_fleet_survives_loss_of_a_node_and_one_drive_each() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives: Vec<_> = (0..DRIVES).map(|n| crate::served::serve_drive_at("127.0.0.1:0", dir.path(), n)).collect();
    let (_host, fleet) = serve(&drives).await;
    // The client writes to the drives itself, and learns from them which are on which node.
    ingest(&fleet, "lab.t", &batches(12, 1000), false).await.unwrap();
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    assert_eq!(record.tables["data"].redundancy.as_ref().unwrap().scheme.to_string(), SCHEME);
    assert_eq!(fleet.status().await.unwrap()[4].node.as_deref(), Some("node-1"));
    let sql = "SELECT grp, count(*), sum(n), round(avg(x), 6) FROM lab.t GROUP BY grp ORDER BY grp";
    let whole = query(&fleet, sql, Pushdown::Full).await.unwrap();
    // One after the other, until five of nine are gone.
    for (lost, cut) in [7, 3, 0, 1, 2].into_iter().zip([Pushdown::Full, Pushdown::Adaptive, Pushdown::Raw, Pushdown::Filter, Pushdown::Full]) {
        drives[lost].kill();
        let own = query(&fleet, sql, cut).await.unwrap_or_else(|e| panic!("without {lost}, {cut}: {}", e.report()));
        assert_eq!(own, whole, "without {lost}, {cut}");
    }
    let (rows, told) = receipt(&fleet, sql).await;
    assert_eq!(rows, whole);
    assert_eq!(told.drives.iter().filter(|drive| drive.served_by_fallback.is_some()).count(), 5, "{told}");
    drives[4].kill();
    let error = query(&fleet, sql, Pushdown::Full).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{}", error.report());
}
