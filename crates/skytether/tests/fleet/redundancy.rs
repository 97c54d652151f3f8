//! Fleets lose drives: the answers over the rest are the same, and returning drives hold nothing stale.

use std::fs;
use std::path::{Path, PathBuf};

use skytether::{Fleet, HostOptions, IngestOptions, OpenOptions, Pushdown, QueryOptions, Receipt};
use skytether_common::{Kind, Result};

use crate::util::{CUTS, batches, ingest, lines, name, query, usage, value};

/// A fleet of small slices.
pub(crate) async fn open(path: &Path, drives: usize, redundancy: &str) -> Result<Fleet> {
    open_with_memory(path, drives, redundancy, HostOptions::default().memory_limit).await
}

/// The same, with a host of `memory_limit` bytes.
async fn open_with_memory(path: &Path, drives: usize, redundancy: &str, memory_limit: usize) -> Result<Fleet> {
    let mut host = HostOptions { threads: 2, memory_limit, ..HostOptions::default() };
    host.slices.target_bytes = 8 << 10;
    let options = OpenOptions { drives: Some(drives), redundancy: redundancy.into(), memory_per_drive: Some(64 << 20), ..OpenOptions::default() };
    Fleet::open_with(path, &options, host).await
}

pub(crate) fn dir_of(fleet: &Path, drive: usize) -> PathBuf {
    fleet.join("drives").join(drive.to_string())
}

fn aside(fleet: &Path, drive: usize) -> PathBuf {
    fleet.join(format!("away-{drive}"))
}

/// The drives are gone, to where they can be fetched back from.
pub(crate) fn lose(fleet: &Path, drives: &[usize]) {
    drives.iter().for_each(|n| fs::rename(dir_of(fleet, *n), aside(fleet, *n)).unwrap());
}

pub(crate) fn bring_back(fleet: &Path, drives: &[usize]) {
    drives.iter().for_each(|n| fs::rename(aside(fleet, *n), dir_of(fleet, *n)).unwrap());
}

/// All sets of 1 to `most` of `drives`.
pub(crate) fn subsets(drives: usize, most: usize) -> Vec<Vec<usize>> {
    (1u32..1 << drives).filter(|set| set.count_ones() as usize <= most).map(|set| (0..drives).filter(|n| set >> n & 1 == 1).collect()).collect()
}

pub(crate) const QUERIES: [&str; 12] = [
    "SELECT count(*), sum(n), min(x), max(name), count(name) FROM lab.t",
    "SELECT grp, count(*), sum(n), round(avg(x), 6) FROM lab.t WHERE n > 0 GROUP BY grp ORDER BY grp",
    "SELECT id, name, x FROM lab.t WHERE n % 97 = 3 ORDER BY id",
    "SELECT id, x FROM lab.t ORDER BY x DESC NULLS LAST, id LIMIT 20",
    "SELECT count(DISTINCT name), count(DISTINCT grp) FROM lab.t",
    "SELECT a.grp, count(*), sum(b.n) FROM lab.t a JOIN lab.keyed b ON a.id = b.id WHERE a.n < 0 GROUP BY a.grp ORDER BY a.grp",
    "SELECT k.grp, count(*) FROM lab.keyed k JOIN lab.keyed l ON k.id = l.id GROUP BY k.grp ORDER BY k.grp",
    "SELECT n, count(*) FROM lab.keyed GROUP BY n HAVING count(*) > 3 ORDER BY n",
    "SELECT gene, cell, value FROM blood.tiny.x WHERE value > 3 ORDER BY gene, cell",
    "SELECT gene, cell_moments(cell, value, 'cell_type', 'log1p_cp10k') FROM blood.tiny.x GROUP BY gene ORDER BY gene",
    "SELECT count(*), sum(nnz), sum(sum) FROM blood.tiny.x_rows",
    "SELECT o.cell_type, count(*), max(o.cell) FROM blood.tiny.obs o GROUP BY o.cell_type ORDER BY o.cell_type",
];

pub(crate) async fn fill(fleet: &Fleet) {
    let rows = batches(6, 1000);
    ingest(fleet, "lab.t", &rows, false).await.unwrap();
    let options = IngestOptions { partition_by: vec!["id".into()], ..IngestOptions::default() };
    fleet.ingest_table(&name("lab.keyed"), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.unwrap();
    crate::expression::write(fleet, "blood.tiny").await;
}

pub(crate) async fn answers(fleet: &Fleet, cut: Pushdown) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in QUERIES {
        all.push(query(fleet, sql, cut).await.unwrap_or_else(|e| panic!("{sql} ({cut}): {}", e.report())));
    }
    all
}

pub(crate) async fn receipt(fleet: &Fleet, sql: &str) -> (Vec<String>, Receipt) {
    let query = fleet.sql(sql, &QueryOptions::default()).await.unwrap();
    let handle = query.receipt.clone();
    let rows = lines(&query.collect().await.unwrap());
    (rows, handle.receipt())
}

/// Bytes of memory of a host that has little.
const LITTLE: usize = 64 << 20;

/// The host is who decodes, in the memory that it has: with little of it, it answers the same. (What it keeps and reads
/// ahead then: unit tests of `redundant::decoded` and `redundant::ahead`.)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_with_little_memory_reconstructs_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    fill(&fleet).await;
    // Some hundred slices of each drive.
    let rows = batches(100, 10_000);
    let large = ingest(&fleet, "lab.large", &rows, false).await.unwrap();
    assert!(large.bytes_stored > LITTLE as u64 / 4, "{large:?}");
    let all = "SELECT grp, count(*), sum(n), min(x), max(name) FROM lab.large GROUP BY grp ORDER BY grp";
    let (whole, of_large) = (answers(&fleet, Pushdown::Full).await, query(&fleet, all, Pushdown::Full).await.unwrap());
    drop(fleet);
    lose(dir.path(), &[1]);
    let fleet = open_with_memory(dir.path(), 4, "none", LITTLE).await.unwrap();
    for cut in [Pushdown::Adaptive, Pushdown::Full, Pushdown::Raw] {
        assert_eq!(answers(&fleet, cut).await, whole, "{cut}");
        assert_eq!(query(&fleet, all, cut).await.unwrap(), of_large, "{cut}");
    }
    let (_, receipt) = receipt(&fleet, all).await;
    assert!(receipt.drives[1].slices_decoded > 100, "{receipt}");
}

/// The answers of a fleet that lost each of some sets of drives are those of the whole one.
async fn survives(redundancy: &str, drives: usize, sets: &[Vec<usize>], cuts: &[Pushdown]) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), drives, redundancy).await.unwrap();
    fill(&fleet).await;
    let whole = answers(&fleet, Pushdown::Full).await;
    assert!(whole.iter().all(|rows| !rows.is_empty()));
    let (_, untouched) = receipt(&fleet, QUERIES[0]).await;
    assert!(untouched.drives.iter().all(|d| d.served_by_fallback.is_none() && d.slices_decoded == 0));
    drop(fleet);
    for lost in sets {
        lose(dir.path(), lost);
        let fleet = open(dir.path(), drives, "none").await.unwrap_or_else(|e| panic!("{redundancy} without {lost:?}: {}", e.report()));
        for cut in cuts {
            for (sql, (own, whole)) in QUERIES.iter().zip(answers(&fleet, *cut).await.iter().zip(&whole)) {
                assert_eq!(own, whole, "{redundancy} without {lost:?}, {cut}: {sql}");
            }
        }
        let (rows, receipt) = receipt(&fleet, QUERIES[1]).await;
        assert_eq!(rows, whole[1]);
        for (n, drive) in receipt.drives.iter().enumerate() {
            assert_eq!(drive.name, format!("drive-{n}"));
            assert_eq!(drive.served_by_fallback.is_some(), lost.contains(&n), "{redundancy} without {lost:?}: {drive:?}");
            // Also where they were decoded for a query before.
            assert_eq!(drive.slices_decoded > 0, lost.contains(&n), "{redundancy} without {lost:?}: {drive:?}");
        }
        let told = receipt.to_string();
        assert!(told.contains("run on the host in its place") && told.contains(&format!("drive-{} is lost", lost[0])), "{told}");
        let status = fleet.status().await.unwrap();
        assert!(status.iter().enumerate().all(|(n, d)| d.error.is_some() == lost.contains(&n) && d.info.name == format!("drive-{n}")), "{status:?}");
        assert_eq!(fleet.list().await.unwrap().len(), 3);
        drop(fleet);
        bring_back(dir.path(), lost);
    }
    let fleet = open(dir.path(), drives, redundancy).await.unwrap();
    assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_drive_of_three_may_be_lost_under_every_cut() {
    survives("ec:2+1", 3, &subsets(3, 1), &CUTS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_copy_of_two_may_be_lost() {
    survives("replicas:2", 2, &subsets(2, 1), &CUTS).await;
    survives("replicas:2", 4, &subsets(4, 1), &[Pushdown::Adaptive, Pushdown::Raw]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_copies_of_three_may_be_lost() {
    survives("replicas:3", 4, &subsets(4, 2), &[Pushdown::Adaptive]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_slices_are_decoded_once_and_live_drives_do_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(20, 1000), false).await.unwrap();
    let sql = "SELECT grp, count(*), sum(n), sum(id), max(x), min(name) FROM lab.t GROUP BY grp ORDER BY grp";
    let full = QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() };
    let ask = async |fleet: &Fleet| {
        let query = fleet.sql(sql, &full).await.unwrap();
        let handle = query.receipt.clone();
        (lines(&query.collect().await.unwrap()), handle.receipt())
    };
    let (whole, before) = ask(&fleet).await;
    let record = fleet.describe(&name("lab.t")).await.unwrap();
    let ids: Vec<uuid::Uuid> = fleet.status().await.unwrap().iter().map(|drive| drive.info.id).collect();
    let slices = |n: usize| record.tables["data"].partitions.iter().filter(|p| p.drive == ids[n]).map(|p| u64::from(p.slices)).sum::<u64>();
    drop(fleet);
    for lost in 0..4 {
        lose(dir.path(), &[lost]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        let (rows, after) = ask(&fleet).await;
        assert_eq!(rows, whole, "without {lost}");
        for (n, (was, is)) in before.drives.iter().zip(&after.drives).enumerate() {
            if n == lost {
                assert!(slices(n) > 5 && is.slices_decoded == slices(n), "{} of {} slices were decoded", is.slices_decoded, slices(n));
            } else {
                assert_eq!((was.rung, was.slices, was.slices_pruned, is.above.slices), (is.rung, is.slices, is.slices_pruned, 0), "{is:?}");
                assert_eq!(is.slices_decoded, 0);
            }
        }
        drop(fleet);
        bring_back(dir.path(), &[lost]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_two_drives_of_six_may_be_lost() {
    let sets = subsets(6, 2);
    assert_eq!(sets.len(), 6 + 15);
    // Every pair under a cut, in turn, so that each cut meets several.
    for (n, cut) in CUTS.into_iter().enumerate() {
        let own: Vec<_> = sets.iter().skip(n).step_by(CUTS.len()).cloned().collect();
        survives("ec:4+2", 6, &own, &[cut]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_loss_too_many_names_the_drives() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    fill(&fleet).await;
    let whole = answers(&fleet, Pushdown::Full).await;
    drop(fleet);
    lose(dir.path(), &[1, 3]);
    let error = open(dir.path(), 4, "none").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let text = error.report();
    assert!(text.contains("2 drives are lost, but this fleet survives the loss of 1") && text.contains("drive-1 (") && text.contains("drive-3 ("), "{text}");
    bring_back(dir.path(), &[1]);
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn less_redundant_data_sets_are_named_and_the_others_work() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    let rows = batches(6, 1000);
    let with = |scheme: &str| IngestOptions { redundancy: Some(scheme.parse().unwrap()), ..IngestOptions::default() };
    let store = async |fleet: &Fleet, title: &str, options: IngestOptions| {
        fleet.ingest_table(&name(title), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.map(drop)
    };
    store(&fleet, "lab.bare", with("none")).await.unwrap();
    store(&fleet, "lab.kept", with("replicas:2")).await.unwrap();
    let error = store(&fleet, "lab.wide", with("ec:4+1")).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.report().contains("ec:4+1 needs 5 drives or more, but there are 4"), "{}", error.report());
    let error = store(&fleet, "lab.two", with("ec:2+1/2+1")).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("needs to know which node each drive is on"), "{error}");
    let record = fleet.describe(&name("lab.bare")).await.unwrap();
    assert!(record.tables["data"].redundancy.is_none() && record.format == 1 && record.tolerates() == 0);
    let record = fleet.describe(&name("lab.kept")).await.unwrap();
    assert!(record.format == 2 && record.tolerates() == 1);
    let sum = async |fleet: &Fleet, title: &str| value(fleet, &format!("SELECT sum(n) FROM {title}")).await;
    let expected = sum(&fleet, "lab.bare").await.unwrap();
    drop(fleet);
    for n in 0..4 {
        lose(dir.path(), &[n]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        assert_eq!(sum(&fleet, "lab.kept").await.unwrap(), expected);
        let error = sum(&fleet, "lab.bare").await.unwrap_err();
        assert!(error.kind() == Kind::Unavailable && error.report().contains(&format!("drive-{n} is lost")), "{}", error.report());
        drop(fleet);
        bring_back(dir.path(), &[n]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_set_may_have_more_than_its_fleet_had() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3, "none").await.unwrap();
    let rows = batches(6, 1000);
    ingest(&fleet, "lab.bare", &rows, false).await.unwrap();
    let options = IngestOptions { redundancy: Some("ec:2+1".parse().unwrap()), ..IngestOptions::default() };
    fleet.ingest_table(&name("lab.kept"), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.unwrap();
    let expected = query(&fleet, "SELECT grp, sum(n) FROM lab.kept GROUP BY grp ORDER BY grp", Pushdown::Full).await.unwrap();
    drop(fleet);
    for n in 0..3 {
        lose(dir.path(), &[n]);
        let fleet = open(dir.path(), 3, "none").await.unwrap();
        assert_eq!(query(&fleet, "SELECT grp, sum(n) FROM lab.kept GROUP BY grp ORDER BY grp", Pushdown::Full).await.unwrap(), expected);
        assert_eq!(fleet.list().await.unwrap().len(), 2);
        assert!(value(&fleet, "SELECT sum(n) FROM lab.bare").await.is_err());
        drop(fleet);
        bring_back(dir.path(), &[n]);
    }
}

/// Data sets are replaced, dropped and made while each drive in turn is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_drive_catches_up_and_nothing_leaks() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    let empty = usage(&fleet).await.0;
    let rows = batches(6, 1000);
    let sets: Vec<String> = (0..8).map(|n| format!("lab.set{n}")).collect();
    for set in &sets {
        ingest(&fleet, set, &rows, false).await.unwrap();
    }
    drop(fleet);
    let count = async |fleet: &Fleet, set: &str| value(fleet, &format!("SELECT count(*) FROM {set}")).await;
    for n in 0..4 {
        lose(dir.path(), &[n]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        // Some stay, some are replaced, some are dropped, some are new.
        for (at, set) in sets.iter().enumerate() {
            match at % 4 {
                0 => {}
                1 => drop(ingest(&fleet, set, &batches(3, 700 + n), true).await.unwrap()),
                2 => fleet.drop_dataset(&name(set)).await.unwrap(),
                _ => {
                    fleet.drop_dataset(&name(set)).await.unwrap();
                    ingest(&fleet, set, &batches(3, 500 + n), false).await.unwrap();
                }
            }
        }
        ingest(&fleet, &format!("lab.new{n}"), &batches(3, 300), false).await.unwrap();
        let check = async |fleet: &Fleet| {
            for (at, set) in sets.iter().enumerate() {
                match at % 4 {
                    0 => assert_eq!(count(fleet, set).await.unwrap(), "6000"),
                    1 => assert_eq!(count(fleet, set).await.unwrap(), (3 * (700 + n)).to_string(), "{set}, without {n}"),
                    2 => assert_eq!(count(fleet, set).await.unwrap_err().kind(), Kind::NotFound),
                    _ => assert_eq!(count(fleet, set).await.unwrap(), (3 * (500 + n)).to_string(), "{set}, without {n}"),
                }
            }
            assert_eq!(count(fleet, &format!("lab.new{n}")).await.unwrap(), "900");
        };
        check(&fleet).await;
        drop(fleet);
        bring_back(dir.path(), &[n]);
        // It is back, and a drive that knows the changes is not: no drive knows the current records.
        lose(dir.path(), &[(n + 1) % 4]);
        let error = open(dir.path(), 4, "none").await.unwrap_err();
        let text = error.report();
        assert!(error.kind() == Kind::Unavailable && text.contains("2 drives are lost") && text.contains("it was away while data sets changed"), "{text}");
        bring_back(dir.path(), &[(n + 1) % 4]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        assert!(fleet.status().await.unwrap().iter().all(|d| d.error.is_none() && d.unreadable.is_empty()));
        check(&fleet).await;
        drop(fleet);
        // What came while it was away survives the loss of others, as does what it missed.
        lose(dir.path(), &[(n + 2) % 4]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        check(&fleet).await;
        drop(fleet);
        bring_back(dir.path(), &[(n + 2) % 4]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        for set in sets.iter().skip(2).step_by(4) {
            ingest(&fleet, set, &rows, false).await.unwrap();
        }
    }
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    for set in fleet.list().await.unwrap() {
        fleet.drop_dataset(&set.name).await.unwrap();
    }
    assert_eq!(usage(&fleet).await.0, empty, "keys leaked");
}

/// Flips a bit in the middle of the files of some drive's slices that are long enough to be such: how many.
fn flip(fleet: &Path, drive: usize, every: usize) -> usize {
    let mut files = Vec::new();
    for below in fs::read_dir(dir_of(fleet, drive).join("slices")).unwrap() {
        files.extend(fs::read_dir(below.unwrap().path()).unwrap().map(|file| file.unwrap().path()));
    }
    files.sort();
    let mut flipped = 0;
    for file in files.iter().step_by(every) {
        let mut bytes = fs::read(file).unwrap();
        if !bytes.starts_with(b"PAR1") {
            continue;
        }
        let at = bytes.len() / 2;
        bytes[at] ^= 0x10;
        fs::write(file, bytes).unwrap();
        flipped += 1;
    }
    flipped
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_slices_are_reconstructed_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    fill(&fleet).await;
    let whole = answers(&fleet, Pushdown::Full).await;
    drop(fleet);
    assert!(flip(dir.path(), 2, 1) > 5);
    for cut in CUTS {
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        for (sql, (own, whole)) in QUERIES.iter().zip(answers(&fleet, cut).await.iter().zip(&whole)) {
            assert_eq!(own, whole, "{cut}: {sql}");
        }
    }
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let (rows, receipt) = receipt(&fleet, QUERIES[1]).await;
    assert_eq!(rows, whole[1]);
    let served_by_fallback: Vec<_> = receipt.drives.iter().filter(|d| d.served_by_fallback.is_some()).collect();
    assert!(served_by_fallback.len() == 1 && served_by_fallback[0].name == "drive-2" && served_by_fallback[0].slices_decoded > 0, "{receipt}");
    assert!(receipt.to_string().contains("because drive-2 could not"), "{receipt}");
}

/// Where the root records of a fleet that is closed lie: for each drive its names.
async fn records(dir: &Path, drives: usize) -> Vec<Vec<(String, Vec<u8>)>> {
    let mut all = Vec::new();
    for n in 0..drives {
        let drive = skytether_drive::Drive::open(&dir_of(dir, n), None, Default::default()).unwrap();
        let mut own = Vec::new();
        for entry in drive.store().list("", None, 100_000).unwrap() {
            if entry.key.as_str().matches('/').count() == 1 {
                own.push((entry.key.to_string(), drive.store().get(&entry.key).unwrap().to_vec()));
            }
        }
        all.push(own);
    }
    all
}

fn change(dir: &Path, drive: usize, op: skytether_store::Op) {
    let drive = skytether_drive::Drive::open(&dir_of(dir, drive), None, Default::default()).unwrap();
    drive.store().apply(vec![op]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_copies_that_a_crash_left_different_are_reconciled() {
    use skytether_store::{Expect, Op};

    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(2, 500), false).await.unwrap();
    drop(fleet);
    let old = records(dir.path(), 4).await;
    let homes: Vec<usize> = (0..4).filter(|n| !old[*n].is_empty()).collect();
    assert_eq!(homes.len(), 2, "{old:?}");
    assert_eq!(old[homes[0]], old[homes[1]]);
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(2, 700), true).await.unwrap();
    drop(fleet);
    let new = records(dir.path(), 4).await;
    let key: skytether_common::Key = name("lab.t").root_key();
    for home in &homes {
        // What was not there yet when the crash came: the old one, none, and one that can't be read.
        for left in [Some(old[*home][0].1.clone()), None, Some(b"{".to_vec())] {
            let op = match left {
                Some(value) => Op::Put { key: key.clone(), value: value.into(), expect: Expect::Any },
                None => Op::Delete { key: key.clone(), expect: Expect::Any },
            };
            change(dir.path(), *home, op);
            let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
            assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "1400");
            drop(fleet);
            assert_eq!(records(dir.path(), 4).await, new);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_writers_wins_on_all_homes() {
    use skytether::{DatasetKind, Placement};

    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    let empty = usage(&fleet).await.0;
    for replace in [false, true] {
        let begin = async |rows: usize| {
            let mut writer = fleet.writer(&name("lab.t"), DatasetKind::Table, replace).await.unwrap();
            let rows = batches(2, rows);
            writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
            writer
        };
        let (one, two) = (begin(400).await, begin(500).await);
        let (one, two) = tokio::join!(tokio::spawn(one.commit()), tokio::spawn(two.commit()));
        let (one, two) = (one.unwrap(), two.unwrap());
        assert!(one.is_ok() != two.is_ok(), "{one:?}, {two:?}");
        let lost = if one.is_ok() { &two } else { &one };
        assert_eq!(lost.as_ref().unwrap_err().kind(), Kind::Conflict);
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), if one.is_ok() { "800" } else { "1000" });
    }
    fleet.drop_dataset(&name("lab.t")).await.unwrap();
    assert_eq!(usage(&fleet).await.0, empty, "keys leaked");
}

/// Waits until the restarted host answers at the address of the former one. The connection to the former one is broken,
/// and a new one is made.
pub(crate) async fn reached(fleet: &Fleet) {
    let mut last = None;
    for _ in 0..100 {
        match fleet.status().await {
            Ok(_) => return,
            Err(e) => last = Some(e),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("the host does not answer: {}", last.map(|e| e.report()).unwrap_or_default());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_served_drive_fails_over_and_rejoins() {
    let dir = tempfile::tempdir().unwrap();
    let (mut drives, mut host, fleet) = crate::served::serve(dir.path()).await;
    let rows = batches(20, 1000);
    let with = |scheme: &str| IngestOptions { redundancy: Some(scheme.parse().unwrap()), replace: true, ..IngestOptions::default() };
    let store = async |title: &str, rows: &[arrow::record_batch::RecordBatch]| {
        fleet.ingest_table(&name(title), rows[0].schema(), rows.iter().cloned().map(Ok), with("ec:2+1")).await.map(drop)
    };
    // The host learns of the fleet's first data set with redundancy when a client ingests through it.
    store("lab.t", &rows).await.unwrap();
    let sql = "SELECT grp, count(*), sum(n), round(avg(x), 6) FROM lab.t GROUP BY grp ORDER BY grp";
    let whole = query(&fleet, sql, Pushdown::Full).await.unwrap();
    for n in 0..4 {
        let address = drives[n].address.clone();
        drives[n].kill();
        for cut in CUTS {
            let own = query(&fleet, sql, cut).await.unwrap_or_else(|e| panic!("without {n}, {cut}: {}", e.report()));
            assert_eq!(own, whole, "without {n}, {cut}");
        }
        store("lab.meanwhile", &rows[n..=n]).await.unwrap_or_else(|e| panic!("without {n}: {}", e.report()));
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.meanwhile").await.unwrap(), "1000");
        // The host restarts without the drive.
        if n % 2 == 0 {
            let at = host.address.clone();
            host.kill();
            let others: Vec<_> = (0..4).filter(|other| *other != n).map(|other| &drives[other]).collect();
            host = crate::served::serve_host_over(&at, &others);
            reached(&fleet).await;
            let own = query(&fleet, sql, Pushdown::Full).await.unwrap_or_else(|e| panic!("own query without drive {n}: {}", e.report()));
            assert_eq!(own, whole);
            host.kill();
            drives[n] = crate::served::serve_drive_at(&address, dir.path(), n);
            host = crate::served::serve_host(&at, &drives);
            reached(&fleet).await;
        } else {
            drives[n] = crate::served::serve_drive_at(&address, dir.path(), n);
            // The host looks for it every 2 seconds.
            tokio::time::sleep(std::time::Duration::from_millis(2200)).await;
        }
        assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole);
        let mut status = fleet.status().await.unwrap();
        for _ in 0..120 {
            if status.iter().all(|d| d.error.is_none()) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            drop(query(&fleet, sql, Pushdown::Full).await);
            status = fleet.status().await.unwrap();
        }
        assert!(status.iter().all(|d| d.error.is_none()), "after {n}: {status:?}");
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.meanwhile").await.unwrap(), "1000");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_lost_drives_are_exact_whole_and_in_parts() {
    use skytether_common::{Key, PartitionName};

    for (redundancy, drives, lost) in [("replicas:2", 3, vec![1]), ("ec:2+1", 4, vec![2]), ("ec:3+2", 6, vec![0, 4])] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(dir.path(), drives, redundancy).await.unwrap();
        fill(&fleet).await;
        drop(fleet);
        let mut had = Vec::new();
        for n in &lost {
            let drive = skytether_drive::Drive::open(&dir_of(dir.path(), *n), None, Default::default()).unwrap();
            for entry in drive.store().list("", None, 100_000).unwrap() {
                if PartitionName::parse(&entry.key).is_some() {
                    had.push((*n, entry.key.clone(), drive.store().get(&entry.key).unwrap()));
                }
            }
        }
        let parities = had.iter().filter(|(_, key, _)| key.as_str().contains(".parity%2F")).count();
        // Places follow from random ids: how many of each kind a drive has differs from run to run.
        assert!(parities > 0 && had.len() > parities, "{parities} of {}", had.len());
        lose(dir.path(), &lost);
        let fleet = open(dir.path(), drives, "none").await.unwrap();
        let host = fleet.host().unwrap();
        for (at, (n, key, value)) in had.into_iter().enumerate() {
            let drive = &host.drives()[n];
            let entry = drive.stat(&key).await.unwrap().unwrap();
            assert_eq!((entry.len, entry.crc32c), (value.len() as u64, skytether_common::checksum::crc32c(&value)), "{key}");
            let len = value.len() as u64;
            // Before the whole is known, so that parts are made of parts.
            let of = |a: usize, b: usize| (at * a) as u64 % (len + 1)..len.min((at * a) as u64 % (len + 1) + b as u64);
            let ranges = [of(7919, 1), of(104_729, 100), of(31, 4000), 0..0, len..len, len.saturating_sub(3)..len, 63.min(len)..65.min(len)];
            let parts = drive.get_ranges_unverified(&key, &ranges).await.unwrap_or_else(|e| panic!("{redundancy}, {key}: {}", e.report()));
            for (range, part) in ranges.iter().zip(parts) {
                assert_eq!(part, value.slice(range.start as usize..range.end as usize), "{redundancy}, {key}, {range:?}");
            }
            assert_eq!(drive.get_ranges_unverified(&key, std::slice::from_ref(&(0..len + 1))).await.unwrap_err().kind(), Kind::Invalid);
            assert_eq!(drive.get(&key).await.unwrap(), value, "{redundancy}, {key}");
        }
        let key = Key::new("lab/t/0000000000000000.data.0;00000000").unwrap();
        let error = host.drives()[lost[0]].get(&key).await.unwrap_err();
        assert!(error.kind() == Kind::Unavailable && error.to_string().contains("is lost"), "{error}");
        let put = skytether_store::Op::Put { key, value: "x".into(), expect: skytether_store::Expect::Any };
        assert_eq!(host.drives()[lost[0]].apply(vec![put]).await.unwrap_err().kind(), Kind::Unavailable);
    }
}
