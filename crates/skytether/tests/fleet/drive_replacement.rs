//! Lost drives are rebuilt on blank ones with the same bytes, while the fleet works and after a crash.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use skytether::{Fleet, IngestOptions, Pushdown, RepairOptions, RepairReport, ScrubOptions};
use skytether_common::{Key, Kind};
use skytether_drive::{Drive, DriveOptions};
use skytether_erasure::map::CodeMap;
use skytether_store::disk::DriveIdentity;

use crate::redundancy::{answers, bring_back, dir_of, fill, lose, open};
use crate::scrub::values;
use crate::served::{Server, serve_drive_at};
use crate::util::{batches, ingest, name, query, usage, value};

pub(crate) async fn repair(fleet: &Fleet, options: RepairOptions) -> RepairReport {
    fleet.repair(&options, &|_| ()).await.unwrap_or_else(|e| panic!("{}", e.report()))
}

pub(crate) fn replacing(drives: &[usize]) -> RepairOptions {
    RepairOptions { drives: drives.iter().map(|n| format!("drive-{n}")).collect(), ..RepairOptions::default() }
}

/// A table of several groups of columns.
pub(crate) async fn wide(fleet: &Fleet) {
    let column = |c: usize| (format!("c{c}"), Arc::new(Int64Array::from_iter_values((0..400).map(|row| (row * (c + 3) % 1009) as i64))) as ArrayRef);
    let rows = RecordBatch::try_from_iter((0..150).map(column)).unwrap();
    ingest(fleet, "lab.wide", &[rows.clone(), rows], false).await.unwrap();
}

pub(crate) const WIDE: &str = "SELECT count(*), sum(c0), max(c149), min(c77) FROM lab.wide";

/// What belongs to data sets, by keys.
pub(crate) fn parts(dir: &Path, drive: usize) -> BTreeMap<String, Bytes> {
    // What drives keep of results is their own affair.
    let is_part = |key: &str| key.contains('/') && !key.contains("kept%2F");
    values(dir, drive).into_iter().filter(|(key, _)| is_part(key.as_str())).map(|(key, value)| (key.as_str().to_owned(), value)).collect()
}

/// How many shards of groups that have some on these drives have to be read for them, and how many are on these drives,
/// by the code maps that lie on a drive of the fleet.
fn least(dir: &Path, drives: usize, lost: &[usize]) -> (u64, u64) {
    let ids: Vec<uuid::Uuid> = (0..drives).map(|n| Drive::open(&dir_of(dir, n), None, DriveOptions::default()).unwrap().info_id()).collect();
    let gone: Vec<uuid::Uuid> = lost.iter().map(|n| ids[*n]).collect();
    let mut maps: BTreeMap<String, Bytes> = BTreeMap::new();
    for n in 0..drives {
        maps.extend(parts(dir, n).into_iter().filter(|(key, _)| key.contains("parity%2F") && !key.contains(';')));
    }
    let (mut groups, mut shards) = (0, 0);
    for stored in maps.values() {
        let head = 4 + u32::from_le_bytes(*stored.first_chunk::<4>().unwrap()) as usize;
        let of: BTreeMap<String, Vec<uuid::Uuid>> = serde_json::from_slice(&stored[4..head]).unwrap();
        for members in CodeMap::from_bytes(&stored[head..]).unwrap().iter() {
            let here = members.all().iter().filter(|shard| gone.contains(&of["drives"][shard.drive as usize])).count() as u64;
            groups += u64::from(here > 0);
            shards += here;
        }
    }
    (groups, shards)
}

trait InfoId {
    fn info_id(&self) -> uuid::Uuid;
}

impl InfoId for Drive {
    fn info_id(&self) -> uuid::Uuid {
        skytether_device::Storage::info(self).id
    }
}

async fn rebuilt(redundancy: &str, drives: usize, lost: &[usize], then: &[usize]) {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), drives, redundancy).await.unwrap();
    fill(&fleet).await;
    wide(&fleet).await;
    let (whole, of_wide) = (answers(&fleet, Pushdown::Full).await, value(&fleet, WIDE).await.unwrap());
    drop(fleet);
    let before: Vec<_> = (0..drives).map(|n| parts(dir.path(), n)).collect();
    let (groups, shards) = least(dir.path(), drives, lost);
    lose(dir.path(), lost);
    let fleet = open(dir.path(), drives, "none").await.unwrap();
    assert_eq!(answers(&fleet, Pushdown::Adaptive).await, whole);
    // Queries go on.
    let done = AtomicU64::new(0);
    let work = async {
        let report = repair(&fleet, replacing(lost)).await;
        done.store(1, Ordering::SeqCst);
        report
    };
    let asking = async {
        let mut rounds = 0;
        while done.load(Ordering::SeqCst) == 0 || rounds == 0 {
            assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
            rounds += 1;
        }
    };
    let (report, ()) = tokio::join!(work, asking);
    assert!(report.left.is_empty() && report.lost.is_empty() && report.kept == 0 && report.drives.len() == lost.len(), "{report}");
    assert_eq!(report.groups, groups, "each group is read once: {report}");
    assert!(report.rebuilt >= shards && report.bytes_read == report.bytes_least && report.bytes_written > 0, "{report}");
    // They are used again.
    assert!(fleet.status().await.unwrap().iter().all(|drive| drive.error.is_none()));
    assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
    let scrubbed = fleet.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
    assert!(scrubbed.damaged == 0 && scrubbed.skipped.is_empty() && scrubbed.unverified == 0, "{scrubbed}");
    drop(fleet);
    // Byte for byte what it was, so that placement is, too.
    for (n, before) in before.iter().enumerate() {
        assert!(parts(dir.path(), n) == *before, "{redundancy}: drive {n}");
    }
    for other in then {
        lose(dir.path(), &[*other]);
    }
    let fleet = open(dir.path(), drives, "none").await.unwrap();
    assert_eq!(answers(&fleet, Pushdown::Full).await, whole, "{redundancy} with {lost:?} replaced, without {then:?}");
    assert_eq!(value(&fleet, WIDE).await.unwrap(), of_wide);
    drop(fleet);
    then.iter().for_each(|other| bring_back(dir.path(), &[*other]));
    // The one that was replaced is not used again.
    let (now, old) = (dir.path().join("now"), lost[0]);
    fs::rename(dir_of(dir.path(), old), &now).unwrap();
    bring_back(dir.path(), &[old]);
    let fleet = open(dir.path(), drives, "none").await.unwrap();
    let status = fleet.status().await.unwrap();
    assert!(status[old].error.as_ref().is_some_and(|e| e.contains("another drive took its place")), "{status:?}");
    assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
    drop(fleet);
    lose(dir.path(), &[old]);
    fs::rename(&now, dir_of(dir.path(), old)).unwrap();
    let fleet = open(dir.path(), drives, "none").await.unwrap();
    assert!(fleet.status().await.unwrap().iter().all(|drive| drive.error.is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_three_drives_is_rebuilt_identically() {
    rebuilt("ec:2+1", 3, &[1], &[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_is_rebuilt_identically() {
    rebuilt("replicas:2", 3, &[2], &[1]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_six_are_rebuilt_together_and_each_group_is_read_once() {
    rebuilt("ec:4+2", 6, &[0, 4], &[2, 5]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_repair_resumes_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    fill(&fleet).await;
    for n in 0..3 {
        ingest(&fleet, &format!("lab.more{n}"), &batches(4, 1000), false).await.unwrap();
    }
    let whole = answers(&fleet, Pushdown::Full).await;
    drop(fleet);
    let before = parts(dir.path(), 2);
    lose(dir.path(), &[2]);
    let mut seen = 0;
    for round in 1..5u64 {
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        let told = (AtomicU64::new(0), tokio::sync::Notify::new());
        let tell = |_: &_| {
            // Something more than the last time has been written.
            if told.0.fetch_add(1, Ordering::SeqCst) >= u64::from(round > 2) {
                told.1.notify_one();
            }
        };
        let options = if round == 1 { replacing(&[2]) } else { RepairOptions::default() };
        tokio::select! {
            biased;
            () = told.1.notified() => {}
            done = fleet.repair(&options, &tell) => panic!("{}: done at once: {done:?}", round),
        }
        assert_eq!(query(&fleet, "SELECT count(*) FROM lab.t", Pushdown::Full).await.unwrap(), ["6000"]);
        drop(fleet);
        let own = Drive::open(&dir_of(dir.path(), 2), None, DriveOptions::default()).unwrap();
        let keys = own.store().usage().unwrap().keys;
        assert!(if round == 1 { keys > seen } else { keys >= seen }, "{round}: {keys} after {seen}");
        seen = keys;
        drop(own);
        // A rebuild that was begun does not count as whole.
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        let status = fleet.status().await.unwrap();
        assert!(status[2].error.as_ref().is_some_and(|e| e.contains("it is blank")) && status[2].usage.is_some(), "{status:?}");
        assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
    }
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let report = repair(&fleet, RepairOptions::default()).await;
    assert!(report.kept > 0 && report.rebuilt > 0 && report.left.is_empty() && report.drives == ["drive-2"], "{report}");
    let again = repair(&fleet, RepairOptions::default()).await;
    assert!(again.drives.is_empty() && again.rebuilt == 0, "{again}");
    drop(fleet);
    assert!(parts(dir.path(), 2) == before);
    lose(dir.path(), &[0]);
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    assert_eq!(answers(&fleet, Pushdown::Full).await, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingests_and_drops_continue_during_a_repair_without_leaks() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    let empty = usage(&fleet).await.0;
    for n in 0..6 {
        ingest(&fleet, &format!("lab.t{n}"), &batches(6, 1000), false).await.unwrap();
    }
    drop(fleet);
    lose(dir.path(), &[1]);
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let total: u64 = {
        let mut total = 0;
        for n in 0..6 {
            total += fleet.describe(&name(&format!("lab.t{n}"))).await.unwrap().bytes();
        }
        total
    };
    // Slow enough that all of this falls into it.
    let options = RepairOptions { bytes_per_s: Some(total / 2), ..replacing(&[1]) };
    let others = async {
        for n in 0..9 {
            let set = format!("lab.t{}", n % 3);
            ingest(&fleet, &set, &batches(2 + n % 3, 700), true).await.unwrap();
            assert_eq!(value(&fleet, &format!("SELECT count(*) FROM {set}")).await.unwrap(), (700 * (2 + n % 3)).to_string());
            if n == 4 {
                fleet.drop_dataset(&name("lab.t4")).await.unwrap();
                ingest(&fleet, "lab.new", &batches(2, 500), false).await.unwrap();
            }
        }
        // Only one at a time.
        fleet.repair(&RepairOptions::default(), &|_| ()).await
    };
    let (report, second) = tokio::join!(repair(&fleet, options), others);
    assert!(report.left.is_empty() && report.lost.is_empty(), "{report}");
    if let Err(e) = second {
        assert_eq!(e.kind(), Kind::Conflict);
    }
    let scrubbed = fleet.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
    assert!(scrubbed.damaged == 0 && scrubbed.skipped.is_empty(), "{scrubbed}");
    drop(fleet);
    fs::remove_dir_all(dir.path().join("away-1")).unwrap();
    for n in 0..4 {
        lose(dir.path(), &[n]);
        let fleet = open(dir.path(), 4, "none").await.unwrap();
        for (set, rows) in [("lab.t0", 1400), ("lab.t1", 2100), ("lab.t2", 2800), ("lab.t3", 6000), ("lab.t5", 6000), ("lab.new", 1000)] {
            assert_eq!(value(&fleet, &format!("SELECT count(*) FROM {set}")).await.unwrap(), rows.to_string(), "without {n}");
        }
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t4").await.unwrap_err().kind(), Kind::NotFound);
        drop(fleet);
        bring_back(dir.path(), &[n]);
    }
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    for set in fleet.list().await.unwrap() {
        fleet.drop_dataset(&set.name).await.unwrap();
    }
    assert_eq!(usage(&fleet).await.0, empty, "keys leaked");
}

/// Without redundancy a repair is not supported. Unknown and healthy drives are refused. Slices without redundancy are
/// named as lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repair_refuses_wrong_targets_and_names_lost_slices() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = crate::util::open(dir.path(), 3).await.unwrap();
    ingest(&fleet, "lab.t", &batches(2, 100), false).await.unwrap();
    assert_eq!(fleet.repair(&RepairOptions::default(), &|_| ()).await.unwrap_err().kind(), Kind::Unsupported);
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 4, "ec:2+1").await.unwrap();
    ingest(&fleet, "lab.t", &batches(6, 1000), false).await.unwrap();
    let bare = IngestOptions { redundancy: Some("none".parse().unwrap()), ..IngestOptions::default() };
    let rows = batches(20, 1000);
    fleet.ingest_table(&name("lab.bare"), rows[0].schema(), rows.iter().cloned().map(Ok), bare).await.unwrap();
    for drives in [vec!["drive-1".to_owned()], vec!["nobody".to_owned()]] {
        let error = fleet.repair(&RepairOptions { drives, ..RepairOptions::default() }, &|_| ()).await.unwrap_err();
        assert!(error.kind() == Kind::Invalid, "{error}");
    }
    drop(fleet);
    lose(dir.path(), &[3]);
    // Something else lies there.
    fs::create_dir(dir_of(dir.path(), 3)).unwrap();
    fs::write(dir_of(dir.path(), 3).join("letter"), "x").unwrap();
    let fleet = open(dir.path(), 4, "none").await.unwrap();
    let report = repair(&fleet, RepairOptions::default()).await;
    assert!(report.drives.is_empty() && report.lost.keys().eq(["drive-3"]), "{report}");
    let error = fleet.repair(&replacing(&[3]), &|_| ()).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.to_string().contains("is not empty"), "{error}");
    fs::remove_file(dir_of(dir.path(), 3).join("letter")).unwrap();
    cut_off(&dir_of(dir.path(), 3));
    let report = repair(&fleet, replacing(&[3])).await;
    assert!(report.left.len() == 1 && report.left[0].contains("lab/bare/") && report.left[0].contains("was on drive-3 alone"), "{report}");
    assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "6000");
    let error = query(&fleet, "SELECT sum(n) FROM lab.bare", Pushdown::Full).await.unwrap_err();
    assert!(matches!(error.kind(), Kind::NotFound | Kind::Corrupt | Kind::Unavailable), "{}", error.report());
}

/// What the making of a drive leaves that is killed before its end.
pub(crate) fn cut_off(dir: &Path) {
    ["slices", "tmp"].iter().for_each(|name| fs::create_dir_all(dir.join(name)).unwrap());
    fs::write(dir.join("LOCK"), "").unwrap();
    fs::write(dir.join("index.redb"), "half").unwrap();
    fs::write(dir.join("tmp").join("drive.json"), "{").unwrap();
}

/// Drive `n`, blank, with the id of another, at an address.
fn blank_at(address: &str, dir: &Path, n: usize, id: uuid::Uuid) -> Server {
    let drive = Drive::open(dir, Some(DriveIdentity { id, name: format!("drive-{n}") }), DriveOptions::default()).unwrap();
    Server::start_at(address, move |listener| async move {
        skytether_drive::serve(drive, listener, std::future::pending()).await.unwrap();
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_drives_are_replaced_at_their_address_and_at_another() {
    let dir = tempfile::tempdir().unwrap();
    let (mut drives, mut host, fleet) = crate::served::serve(dir.path()).await;
    let rows = batches(20, 1000);
    let options = IngestOptions { redundancy: Some("ec:2+1".parse().unwrap()), ..IngestOptions::default() };
    fleet.ingest_table(&name("lab.t"), rows[0].schema(), rows.iter().cloned().map(Ok), options).await.unwrap();
    let sql = "SELECT grp, count(*), sum(n), round(avg(x), 6) FROM lab.t GROUP BY grp ORDER BY grp";
    let whole = query(&fleet, sql, Pushdown::Full).await.unwrap();
    let ids = crate::served::ids(&fleet).await;
    // At its own address, while the host runs: the host finds out by itself that it is another.
    let address = drives[2].address.clone();
    drives[2].kill();
    assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole);
    drives[2] = blank_at(&address, &dir.path().join("new-2"), 2, ids[2]);
    let told = AtomicU64::new(0);
    let report = fleet.repair(&RepairOptions::default(), &|_| _ = told.fetch_add(1, Ordering::SeqCst)).await.unwrap_or_else(|e| panic!("{}", e.report()));
    assert!(report.drives == ["drive-2"] && report.left.is_empty() && report.lost.is_empty() && report.bytes_read == report.bytes_least, "{report}");
    assert!(told.into_inner() > 0);
    let checked = async |what: &str| {
        assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole, "{what}");
        let status = fleet.status().await.unwrap();
        assert!(status.iter().all(|drive| drive.error.is_none()), "{what}: {status:?}");
        let report = fleet.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
        assert!(report.damaged == 0 && report.skipped.is_empty(), "{what}: {report}");
    };
    checked("at its address").await;
    // At another, of a host that began without it.
    drives[0].kill();
    let at = host.address.clone();
    host.kill();
    let others: Vec<_> = (1..4).map(|n| &drives[n]).collect();
    let _host = crate::served::serve_host_over(&at, &others);
    crate::redundancy::reached(&fleet).await;
    assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole);
    let wrong = blank_at("127.0.0.1:0", &dir.path().join("wrong"), 0, uuid::Uuid::new_v4());
    let with = |address: &str| RepairOptions { drives: vec!["drive-0".into()], address: Some(address.to_owned()), ..RepairOptions::default() };
    let error = fleet.repair(&with(&wrong.address), &|_| ()).await.unwrap_err();
    let told = error.to_string();
    assert!(error.kind() == Kind::Invalid && told.contains(&format!("{} can't take the place of drive-0", wrong.address)), "{told}");
    assert!(told.contains(&format!("missing is drive-0 ({})", ids[0])) && told.contains("drive serve --data NEW --replace ID"), "{told}");
    let new = blank_at("127.0.0.1:0", &dir.path().join("new-0"), 0, ids[0]);
    let report = repair(&fleet, with(&new.address)).await;
    assert!(report.drives == ["drive-0"] && report.left.is_empty(), "{report}");
    checked("at another address").await;
    drives[3].kill();
    assert_eq!(query(&fleet, sql, Pushdown::Full).await.unwrap(), whole);
    drives[3] = serve_drive_at("127.0.0.1:0", dir.path(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blank_drive_does_not_hide_data_of_its_predecessor() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = open(dir.path(), 3, "ec:2+1").await.unwrap();
    let sets: Vec<String> = (0..8).map(|n| format!("lab.t{n}")).collect();
    for set in &sets {
        ingest(&fleet, set, &batches(2, 300), false).await.unwrap();
    }
    drop(fleet);
    for n in 0..3 {
        let id = Drive::open(&dir_of(dir.path(), n), None, DriveOptions::default()).unwrap().info_id();
        lose(dir.path(), &[n]);
        drop(Drive::open(&dir_of(dir.path(), n), Some(DriveIdentity { id, name: format!("drive-{n}") }), DriveOptions::default()).unwrap());
        let fleet = open(dir.path(), 3, "none").await.unwrap();
        for set in &sets {
            assert_eq!(value(&fleet, &format!("SELECT count(*) FROM {set}")).await.unwrap(), "600");
        }
        assert_eq!(fleet.list().await.unwrap().len(), sets.len());
        let status = fleet.status().await.unwrap();
        assert!(status[n].error.as_ref().is_some_and(|e| e.contains("skytether repair")), "{status:?}");
        let key = Key::new("skytether-fleet").unwrap();
        assert!(fleet.host().unwrap().drives()[n].get(&key).await.is_err(), "nobody tells it that it is of the fleet before all is on it");
        let report = repair(&fleet, RepairOptions::default()).await;
        assert!(report.drives == [format!("drive-{n}")] && report.left.is_empty(), "{report}");
        drop(fleet);
        fs::remove_dir_all(dir.path().join(format!("away-{n}"))).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blank_drive_next_to_an_absent_one_is_no_new_fleet() {
    // One data set, so that it may well have been on these two alone.
    for (blank, away) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] {
        let dir = tempfile::tempdir().unwrap();
        let fleet = open(dir.path(), 3, "ec:2+1").await.unwrap();
        ingest(&fleet, "lab.t", &batches(2, 300), false).await.unwrap();
        drop(fleet);
        let id = Drive::open(&dir_of(dir.path(), blank), None, DriveOptions::default()).unwrap().info_id();
        lose(dir.path(), &[blank]);
        drop(Drive::open(&dir_of(dir.path(), blank), Some(DriveIdentity { id, name: format!("drive-{blank}") }), DriveOptions::default()).unwrap());
        lose(dir.path(), &[away]);
        if let Ok(fleet) = open(dir.path(), 3, "none").await {
            let told = ingest(&fleet, "lab.other", &batches(1, 10), false).await;
            assert!(told.is_err(), "drive-{blank} is blank, drive-{away} away: {told:?}");
        }
        bring_back(dir.path(), &[away]);
        let fleet = open(dir.path(), 3, "none").await.unwrap();
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "600", "drive-{blank} is blank, drive-{away} was away");
        let report = repair(&fleet, RepairOptions::default()).await;
        assert!(report.left.is_empty(), "{report}");
        assert_eq!(value(&fleet, "SELECT count(*) FROM lab.t").await.unwrap(), "600");
    }
}
