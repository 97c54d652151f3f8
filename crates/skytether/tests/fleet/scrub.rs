//! Scrubs find and repair damage of any kind, and move next to nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use skytether::{Fleet, IngestOptions, Pushdown, ScrubOptions, ScrubReport};
use skytether_common::{Key, Kind, PartitionName};
use skytether_drive::Drive;
use skytether_erasure::map::{CodeMap, Shard};
use skytether_store::{Expect, Op};

use crate::redundancy::{QUERIES, answers, bring_back, dir_of, fill, lose, open};
use crate::util::{Random, batch, batches, ingest, name, query, value};

async fn scrub(fleet: &Fleet, options: ScrubOptions) -> ScrubReport {
    fleet.scrub(&options, &|_| ()).await.unwrap_or_else(|e| panic!("{}", e.report()))
}

pub(crate) async fn all(fleet: &Fleet) -> ScrubReport {
    scrub(fleet, ScrubOptions::default()).await
}

/// The files of a drive's values, in order, but for those that are empty.
pub(crate) fn files(fleet: &Path, drive: usize) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for below in fs::read_dir(dir_of(fleet, drive).join("slices")).unwrap() {
        files.extend(fs::read_dir(below.unwrap().path()).unwrap().map(|file| file.unwrap().path()));
    }
    files.retain(|file| fs::metadata(file).unwrap().len() > 0);
    files.sort();
    files
}

/// What a drive has, by keys.
pub(crate) fn values(fleet: &Path, drive: usize) -> Vec<(Key, Bytes)> {
    let drive = Drive::open(&dir_of(fleet, drive), None, Default::default()).unwrap();
    let entries = drive.store().list("", None, 100_000).unwrap();
    entries.into_iter().map(|entry| (entry.key.clone(), drive.store().get(&entry.key).unwrap())).collect()
}

pub(crate) fn put(fleet: &Path, drive: usize, key: &Key, value: Option<Bytes>) {
    let drive = Drive::open(&dir_of(fleet, drive), None, Default::default()).unwrap();
    let op = match value {
        Some(value) => Op::Put { key: key.clone(), value, expect: Expect::Any },
        None => Op::Delete { key: key.clone(), expect: Expect::Any },
    };
    drive.store().apply(vec![op]).unwrap();
}

/// Checks that a scrub repairs all damage, that a second one finds none, and that all values are what they were.
pub(crate) async fn mended(fleet: &Fleet, what: &str) -> ScrubReport {
    let report = all(fleet).await;
    assert!(report.left() == 0 && report.skipped.is_empty() && report.unverified == 0, "{what}: {report}");
    let again = all(fleet).await;
    assert!(again.damaged == 0 && again.values == report.values, "{what}: {again}");
    report
}

/// The answers with each drive lost in turn.
async fn survives(dir: &Path, drives: usize, whole: &[Vec<String>]) {
    for n in 0..drives {
        lose(dir, &[n]);
        let fleet = open(dir, drives, "none").await.unwrap();
        for (sql, whole) in QUERIES.iter().zip(whole).step_by(3) {
            assert_eq!(&query(&fleet, sql, Pushdown::Full).await.unwrap_or_else(|e| panic!("without {n}: {}", e.report())), whole, "without {n}: {sql}");
        }
        drop(fleet);
        bring_back(dir, &[n]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_of_a_healthy_fleet_moves_next_to_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Slices of 1 MiB of numbers that nothing packs.
    let fleet = Fleet::open(dir.path(), &skytether::OpenOptions { drives: Some(3), redundancy: "ec:2+1".into(), ..Default::default() }).await.unwrap();
    let random = &mut Random(5);
    let rows: Vec<arrow::record_batch::RecordBatch> = (0..24)
        .map(|_| {
            let numbers = arrow::array::Int64Array::from_iter_values((0..131_072).map(|_| random.below(1 << 53) as i64));
            arrow::record_batch::RecordBatch::try_from_iter([("x", std::sync::Arc::new(numbers) as arrow::array::ArrayRef)]).unwrap()
        })
        .collect();
    ingest(&fleet, "lab.t", &rows, false).await.unwrap();
    let (told, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let report = fleet
        .scrub(&ScrubOptions::default(), &|progress| {
            told.fetch_add(1, Ordering::Relaxed);
            most.fetch_max(progress.done, Ordering::Relaxed);
            assert!(progress.done <= progress.total);
        })
        .await
        .unwrap();
    let stored = fleet.describe(&name("lab.t")).await.unwrap().bytes();
    assert!(stored > 36 << 20 && report.bytes_verified >= stored && report.groups >= 12, "{report}");
    assert!(report.bytes_moved * 100 < report.bytes_verified, "{report}");
    assert!(report.damaged == 0 && report.skipped.is_empty() && report.unverified == 0 && report.bytes_mending == 0, "{report}");
    assert!(told.into_inner() > 1 && most.into_inner() >= stored);
    assert!(report.to_string().contains("nothing is damaged"), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_of_small_slices_moves_little() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(60, 2000), false).await.unwrap();
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    let slices: u32 = record.tables["data"].partitions.iter().map(|p| p.slices).sum();
    assert!(slices > 200 && record.bytes() / u64::from(slices) < 16 << 10);
    let report = all(&fleet).await;
    assert!(report.values > u64::from(slices) && report.groups >= u64::from(slices / 2) && report.damaged == 0, "{report}");
    // One digest for all groups of a shape, place and drive, however many: a part of it is the same
    // for any number of slices.
    assert!(report.bytes_moved < 4 * 6 * 4200 + record.bytes() / 100, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flipped_bit_is_found_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    fill(&fleet).await;
    let whole = answers(&fleet, Pushdown::Full).await;
    let random = &mut Random(1);
    let mut kinds = BTreeSet::new();
    for round in 0..40 {
        let drive = random.below(4);
        let files = files(dir.path(), drive);
        let file = &files[random.below(files.len())];
        let before = fs::read(file).unwrap();
        let mut bytes = before.clone();
        let (at, bit) = (random.below(bytes.len()), random.below(8));
        bytes[at] ^= 1 << bit;
        fs::write(file, &bytes).unwrap();
        let report = all(&fleet).await;
        assert!(report.damaged == 1 && report.left() == 0, "{round}: bit {bit} of byte {at} of {}: {report}", file.display());
        let found = &report.found[0];
        assert!(found.mended && found.drive == format!("drive-{drive}") && found.what.contains("is damaged"), "{report}");
        kinds.insert(match (found.key.contains(";"), found.key.contains("parity%2F"), found.dataset.is_some()) {
            (true, parity, _) => {
                if parity {
                    "parity"
                } else {
                    "slice"
                }
            }
            (false, true, _) => "code map",
            (false, false, true) => "metadata slice or root record",
            (false, false, false) => "record of the fleet",
        });
        // In a new file: the old one is gone.
        assert!(!file.exists() && self::files(dir.path(), drive).iter().any(|file| fs::read(file).unwrap() == before), "{round}");
    }
    assert!(kinds.len() >= 3, "{kinds:?}");
    assert_eq!(all(&fleet).await.damaged, 0);
    drop(fleet);
    survives(dir.path(), 4, &whole).await;
}

/// Values are damaged, truncated, lost, exchanged, or of an older generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_repairs_any_kind_of_damage_on_one_drive() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    fill(&fleet).await;
    // An older generation, from which a stale slice may come.
    ingest(&fleet, "lab.old", &batches(3, 900), false).await.unwrap();
    let whole = answers(&fleet, Pushdown::Full).await;
    drop(fleet);
    let random = &mut Random(2);
    let old: Vec<Vec<(Key, Bytes)>> =
        (0..4).map(|n| values(dir.path(), n).into_iter().filter(|(key, _)| key.as_str().starts_with("lab/old/")).collect()).collect();
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    ingest(&fleet, "lab.old", &batches(3, 900), true).await.unwrap();
    drop(fleet);
    for round in 0..14 {
        let drive = round % 4;
        let before = values(dir.path(), drive);
        let mine: Vec<&(Key, Bytes)> = before.iter().filter(|(key, _)| PartitionName::parse(key).is_some()).collect();
        let some = &mine[random.below(mine.len())].0;
        let parts = files(dir.path(), drive);
        let file = &parts[random.below(parts.len())];
        let what = match round % 7 {
            0 => {
                let bytes = fs::read(file).unwrap();
                fs::write(file, &bytes[..random.below(bytes.len())]).unwrap();
                "truncated"
            }
            1 => {
                fs::remove_file(file).unwrap();
                "lost"
            }
            2 => {
                // Two files exchanged, and the index left as it is.
                let other = &parts[random.below(parts.len())];
                let (a, b) = (fs::read(file).unwrap(), fs::read(other).unwrap());
                fs::write(file, &b).unwrap();
                fs::write(other, &a).unwrap();
                if a == b { "nothing" } else { "swapped" }
            }
            3 => {
                // The same, and the index says so.
                let other = mine[random.below(mine.len())];
                let own = mine.iter().find(|(key, _)| key == some).unwrap();
                put(dir.path(), drive, &own.0, Some(other.1.clone()));
                put(dir.path(), drive, &other.0, Some(own.1.clone()));
                if own.1 == other.1 { "nothing" } else { "swapped with the index" }
            }
            4 => {
                // What lay under the same name in the generation before.
                let (key, stale) = &old[drive][random.below(old[drive].len())];
                let tail = key.as_str().rsplit_once('.').unwrap().1;
                let now = mine.iter().find(|(key, _)| key.as_str().starts_with("lab/old/") && key.as_str().rsplit_once('.').unwrap().1 == tail).unwrap();
                put(dir.path(), drive, &now.0, Some(stale.clone()));
                if now.1 == *stale { "nothing" } else { "stale" }
            }
            5 => {
                put(dir.path(), drive, some, None);
                "gone from the index"
            }
            _ => {
                // Everything, each in its way.
                for (n, file) in parts.iter().enumerate() {
                    let mut bytes = fs::read(file).unwrap();
                    let at = random.below(bytes.len());
                    match n % 3 {
                        0 => fs::remove_file(file).unwrap(),
                        1 => fs::write(file, &bytes[..at]).unwrap(),
                        _ => {
                            bytes[at] ^= 0x80;
                            fs::write(file, bytes).unwrap();
                        }
                    }
                }
                "all"
            }
        };
        let fleet = open(dir.path(), 4, "none").await.unwrap_or_else(|e| panic!("{what}: {}", e.report()));
        let report = mended(&fleet, what).await;
        if what == "all" {
            assert!(report.damaged as usize >= mine.len(), "{report}");
        }
        drop(fleet);
        let after = values(dir.path(), drive);
        let keys = |values: &[(Key, Bytes)]| values.iter().map(|(key, _)| key.as_str().to_owned()).collect::<Vec<_>>();
        assert_eq!(keys(&after), keys(&before), "{what}");
        let differs: Vec<_> = before.iter().zip(&after).filter(|(a, b)| a != b).map(|(a, _)| a.0.as_str()).collect();
        assert!(differs.is_empty(), "{round}, {what}: {differs:?}");
    }
    survives(dir.path(), 4, &whole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_repairs_random_damage_up_to_what_groups_survive() {
    for (redundancy, drives, hit) in [("replicas:2", 3, 1), ("ec:3+2", 6, 2)] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(dir.path(), drives, redundancy).await.unwrap();
        fill(&fleet).await;
        let whole = answers(&fleet, Pushdown::Full).await;
        drop(fleet);
        let before: Vec<_> = (0..drives).map(|n| values(dir.path(), n)).collect();
        for seed in 0..4 {
            let random = &mut Random(100 + seed);
            let first = random.below(drives);
            for n in 0..hit {
                for file in files(dir.path(), (first + n) % drives) {
                    let mut bytes = fs::read(&file).unwrap();
                    let at = random.below(bytes.len());
                    bytes[at] ^= 1 << random.below(8);
                    match random.below(5) {
                        0 => fs::remove_file(&file).unwrap(),
                        1 => fs::write(&file, &bytes[..at]).unwrap(),
                        2 => fs::write(&file, bytes).unwrap(),
                        _ => {}
                    }
                }
            }
            let fleet = open(dir.path(), drives, "none").await.unwrap();
            let report = mended(&fleet, redundancy).await;
            assert!(report.mended > 10, "{report}");
            drop(fleet);
            let after: Vec<_> = (0..drives).map(|n| values(dir.path(), n)).collect();
            assert!(after == before, "{redundancy}, seed {seed}");
        }
        survives(dir.path(), drives, &whole).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unrepairable_damage_is_named_and_nothing_gets_worse() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(6, 1000), false).await.unwrap();
    let bare = IngestOptions { redundancy: Some("none".parse().unwrap()), ..IngestOptions::default() };
    // Other rows, so that no two slices are the same.
    let rows: Vec<_> = (10..13).map(|at| batch(at, 1000)).collect();
    fleet.ingest_table(&name("lab.bare"), rows[0].schema(), rows.iter().cloned().map(Ok), bare).await.unwrap();
    drop(fleet);
    // All slices and parities of two drives, and a slice that is there once.
    let random = &mut Random(9);
    let is_slice = |key: &Key| key.as_str().contains(';');
    let mut lost = BTreeSet::new();
    for n in [1, 2] {
        let slices: Vec<Bytes> =
            values(dir.path(), n).into_iter().filter(|(key, _)| is_slice(key) && key.as_str().starts_with("lab/t/")).map(|(_, value)| value).collect();
        for file in files(dir.path(), n) {
            let mut bytes = fs::read(&file).unwrap();
            if slices.iter().any(|slice| *slice == bytes) {
                let at = random.below(bytes.len());
                bytes[at] ^= 4;
                fs::write(&file, bytes).unwrap();
                lost.insert(file);
            }
        }
    }
    let (home, key, value) = (0..4)
        .find_map(|n| {
            values_that_are_whole(dir.path(), n)
                .into_iter()
                .find(|(key, _)| key.as_str().starts_with("lab/bare/") && is_slice(key))
                .map(|(key, value)| (n, key, value))
        })
        .unwrap();
    let file = files(dir.path(), home).into_iter().find(|file| fs::read(file).unwrap() == value).unwrap();
    fs::write(&file, &value[1..]).unwrap();
    let disk = |dir: &Path| -> Vec<_> { (0..4).flat_map(|n| files(dir, n)).map(|file| (fs::read(&file).unwrap(), file)).collect() };
    let before = disk(dir.path());
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    // To look changes nothing.
    let report = scrub(&fleet, ScrubOptions { check: true, ..ScrubOptions::default() }).await;
    assert!(report.damaged as usize == lost.len() + 1 && report.mended == 0 && report.check && report.bytes_mending == 0, "{report}");
    assert!(disk(dir.path()) == before);
    let checked = report.damaged;
    let report = all(&fleet).await;
    assert!(report.damaged == checked && report.mended > 0 && report.left() > 2, "{report}");
    let bare = report.found.iter().find(|found| found.key == key.as_str()).unwrap();
    assert!(!bare.mended && bare.error.as_ref().unwrap().contains("stored once, without redundancy: drop lab.bare"), "{bare:?}");
    for found in report.found.iter().filter(|found| found.key != key.as_str()) {
        assert!(["drive-1", "drive-2"].contains(&found.drive.as_str()) && found.key.starts_with("lab/t/"), "{found:?}");
        assert!(found.mended || found.error.as_ref().unwrap().contains("are whole, and "), "{found:?}");
    }
    assert!(report.to_string().contains("could not be mended"), "{report}");
    // Whole values are unchanged, and so are damaged ones that were not repaired.
    let after = disk(dir.path());
    let gone: Vec<_> = before.iter().filter(|file| !after.contains(file)).collect();
    assert!(gone.len() == report.mended as usize && gone.iter().all(|(_, file)| lost.contains(file)));
    let again = all(&fleet).await;
    assert!(again.damaged == report.left() && again.mended == 0, "{again}");
    // Its rows are not told wrong.
    let error = query(&fleet, "SELECT sum(n), max(name), min(x) FROM lab.t", Pushdown::Full).await.unwrap_err();
    assert!(matches!(error.kind(), Kind::Corrupt | Kind::Unavailable), "{}", error.report());
}

/// As [`values`], those that can be read.
fn values_that_are_whole(fleet: &Path, drive: usize) -> Vec<(Key, Bytes)> {
    let drive = Drive::open(&dir_of(fleet, drive), None, Default::default()).unwrap();
    let entries = drive.store().list("", None, 100_000).unwrap();
    entries.into_iter().filter_map(|entry| Some((entry.key.clone(), drive.store().get(&entry.key).ok()?))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parities_of_other_data_are_found_by_digest_and_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(20, 1000), false).await.unwrap();
    let sql = "SELECT count(*), sum(n), min(x), max(name) FROM lab.t";
    let whole = query(&fleet, sql, Pushdown::Full).await.unwrap();
    drop(fleet);
    // A parity and its checksum in the code map, both of something else: no checksum tells.
    let all_values: Vec<_> = (0..4).map(|n| values(dir.path(), n)).collect();
    let is_map = |key: &Key| key.as_str().contains("parity%2Fdata") && !key.as_str().contains(';');
    let (map_key, stored) = all_values.iter().flatten().find(|(key, _)| is_map(key)).unwrap();
    let head = 4 + u32::from_le_bytes(*stored.first_chunk::<4>().unwrap()) as usize;
    let map = CodeMap::from_bytes(&stored[head..]).unwrap();
    let mut groups: Vec<(Vec<Shard>, Vec<Shard>)> = map.iter().map(|members| (members.data.to_vec(), members.parity.to_vec())).collect();
    let victim = groups.len() / 2;
    let shard = &mut groups[victim].1[0];
    let key = Key::new(format!("{}.{};{:08x}", map_key.as_str().rsplit_once('.').unwrap().0, shard.home, shard.number)).unwrap();
    let (at, parity) =
        all_values.iter().enumerate().find_map(|(n, values)| values.iter().find(|(own, _)| *own == key).map(|(_, value)| (n, value.clone()))).unwrap();
    let mut other = parity.to_vec();
    other[100] ^= 1;
    shard.crc32c = skytether_common::checksum::crc32c(&other);
    put(dir.path(), at, &key, Some(other.into()));
    let wrong = CodeMap::new(map.code(), groups.iter().map(|(data, parity)| (data.as_slice(), parity.as_slice()))).unwrap();
    let wrong: Bytes = [&stored[..head], &wrong.to_bytes()].concat().into();
    for (n, values) in all_values.iter().enumerate() {
        if values.iter().any(|(own, _)| own == map_key) {
            put(dir.path(), n, map_key, Some(wrong.clone()));
        }
    }
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let report = scrub(&fleet, ScrubOptions { check: true, ..ScrubOptions::default() }).await;
    assert!(report.damaged == 1 && report.mended == 0 && report.found[0].key == key.as_str(), "{report}");
    let report = mended(&fleet, "a parity of other data").await;
    assert!(report.damaged == 1 && report.found[0].key == key.as_str() && report.found[0].what.contains("does not fit the data of its group"), "{report}");
    drop(fleet);
    let after: Vec<_> = (0..4).map(|n| values(dir.path(), n)).collect();
    assert!(after == all_values, "all is what it was before");
    for n in 0..4 {
        lose(dir.path(), &[n]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole, "without {n}");
        drop(fleet);
        bring_back(dir.path(), &[n]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_drive_is_skipped_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    fill(&fleet).await;
    drop(fleet);
    lose(dir.path(), &[3]);
    let random = &mut Random(3);
    let flipped = files(dir.path(), 0);
    let (file, bytes) = flipped.iter().map(|file| (file, fs::read(file).unwrap())).find(|(_, bytes)| bytes.starts_with(b"PAR1")).unwrap();
    let mut other = bytes.clone();
    other[random.below(bytes.len())] ^= 2;
    fs::write(file, other).unwrap();
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let report = all(&fleet).await;
    assert!(report.skipped.keys().eq(["drive-3"]) && report.unverified > 10 && report.damaged == 1, "{report}");
    // Its group may have another shard on the drive that is down: then no repair is possible now.
    let left = report.left();
    drop(fleet);
    bring_back(dir.path(), &[3]);
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let report = mended(&fleet, "all are here").await;
    assert_eq!(report.damaged, left);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_ingests_and_drops_continue_during_a_scrub() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    for n in 0..6 {
        ingest(&fleet, &format!("lab.t{n}"), &batches(6, 1000), false).await.unwrap();
    }
    let scrubs = async {
        let mut changed = BTreeSet::new();
        for _ in 0..12 {
            let report = all(&fleet).await;
            assert!(report.damaged == 0, "{report}");
            changed.extend(report.changed);
        }
        changed
    };
    let others = async {
        for n in 0..12 {
            ingest(&fleet, &format!("lab.t{}", n % 3), &batches(3 + n % 4, 1000), true).await.unwrap();
            assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t5").await.unwrap(), "6000");
            if n % 4 == 3 {
                fleet.drop_dataset(&name("lab.t4")).await.unwrap();
                ingest(&fleet, "lab.t4", &batches(2, 1000), false).await.unwrap();
            }
        }
    };
    let (changed, ()) = tokio::join!(scrubs, others);
    assert!(!changed.contains(&name("lab.t5")));
    assert_eq!(mended(&fleet, "at last").await.damaged, 0);
    // The repair of values that were deleted meanwhile leaves nothing behind.
    for set in fleet.list().await.unwrap() {
        fleet.drop_dataset(&set.name).await.unwrap();
    }
    assert_eq!(crate::util::usage(&fleet).await.0, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scrub_obeys_rate_limit_selection_and_cancellation() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.a", &batches(6, 1000), false).await.unwrap();
    ingest(&fleet, "lab.b", &batches(6, 1000), false).await.unwrap();
    let one = ScrubOptions { datasets: vec![name("lab.b")], ..ScrubOptions::default() };
    let report = scrub(&fleet, one.clone()).await;
    assert!(report.datasets == 1 && report.bytes_verified < fleet.describe(&name("lab.b")).await.unwrap().bytes() * 3 / 2, "{report}");
    let unknown = ScrubOptions { datasets: vec![name("lab.c")], ..ScrubOptions::default() };
    assert_eq!(fleet.scrub(&unknown, &|_| ()).await.unwrap_err().kind(), Kind::NotFound);
    // A quarter of what is verified lies on each drive, about: that much takes a second at this rate.
    let slow = ScrubOptions { bytes_per_s: Some(report.bytes_verified / 4), ..one.clone() };
    let report = scrub(&fleet, slow).await;
    assert!(report.seconds > 0.5, "{report}");
    // A scrub without a waiting caller ends, however long it would take.
    let never = ScrubOptions { bytes_per_s: Some(1), ..one };
    let stopped = tokio::time::timeout(std::time::Duration::from_millis(300), fleet.scrub(&never, &|_| ())).await;
    assert!(stopped.is_err());
    assert_eq!(all(&fleet).await.damaged, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_drives_are_scrubbed_through_their_host() {
    let dir = tempfile::tempdir().unwrap();
    let (mut drives, _host, fleet) = crate::served::serve(dir.path()).await;
    let options = IngestOptions { redundancy: Some("ec:2+1".parse().unwrap()), ..IngestOptions::default() };
    let rows = batches(150, 1000);
    fleet.ingest_table(&name("lab.t"), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.unwrap();
    // All columns, so that it meets damage wherever that is.
    let sql = "SELECT grp, count(*), sum(n), sum(id), min(x), max(name) FROM lab.t GROUP BY grp ORDER BY grp";
    let whole = query(&fleet, sql, Pushdown::Full).await.unwrap();
    let slices = |n: usize| -> Vec<PathBuf> {
        let mut files = Vec::new();
        for below in fs::read_dir(dir.path().join(n.to_string()).join("slices")).unwrap() {
            files.extend(fs::read_dir(below.unwrap().path()).unwrap().map(|file| file.unwrap().path()));
        }
        files.into_iter().filter(|file| fs::read(file).unwrap().starts_with(b"PAR1")).collect()
    };
    let hit = slices(2);
    assert!(hit.len() > 1);
    for file in &hit {
        let mut bytes = fs::read(file).unwrap();
        let at = bytes.len() / 3;
        bytes[at] ^= 0x11;
        fs::write(file, bytes).unwrap();
    }
    // A query reconstructs damaged values that it reads, and the status reports them.
    assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole);
    let status = fleet.status().await.unwrap();
    assert!(status.iter().enumerate().all(|(n, drive)| (drive.damaged > 0) == (n == 2)), "{status:?}");
    let told = Mutex::new(Vec::new());
    let report = fleet.scrub(&ScrubOptions::default(), &|progress| told.lock().push(progress.clone())).await.unwrap();
    assert!(report.damaged as usize == hit.len() && report.left() == 0 && report.found.iter().all(|found| found.drive == "drive-2"), "{report}");
    let told = told.into_inner();
    assert!(told.iter().any(|far| far.what == "lab.t" && far.done == far.total), "{told:?}");
    assert!(fleet.status().await.unwrap().iter().all(|drive| drive.damaged == 0));
    assert_eq!(all(&fleet).await.damaged, 0);
    drives[1].kill();
    let report = all(&fleet).await;
    assert!(report.skipped.keys().eq(["drive-1"]) && report.unverified > 0 && report.damaged == 0, "{report}");
    assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole);
}
