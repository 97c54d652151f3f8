//! Two hosts over the same drives: the later one may change them, the older one is fenced on every drive.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skytether::{DatasetKind, NewIndex, Placement, Pushdown, QueryOptions, Scheme};
use skytether_aggregator::Aggregator;
use skytether_common::{Detail, Error, Key, Kind, Result};
use skytether_drive::Cse;
use skytether_flight_drive::{ConnectOptions, FlightCse};
use skytether_host::{DatasetWriter, Founding, Host, HostOptions};
use skytether_store::{Expect, Op};

use crate::served::{Server, serve_drive_at};
use crate::util::{batches, lines, name};

const RECORD: &str = "skytether-fleet-host";

pub(crate) fn options(redundancy: &str) -> HostOptions {
    let mut options = HostOptions { storage_deadline: Duration::from_secs(30), redundancy: redundancy.parse::<Scheme>().unwrap(), ..HostOptions::default() };
    options.slices.target_bytes = 16 << 10;
    options
}

async fn connected(drives: &[Server]) -> Vec<Arc<dyn Cse>> {
    let options = ConnectOptions { idle_timeout: Duration::from_secs(20), ..ConnectOptions::default() };
    let mut all: Vec<Arc<dyn Cse>> = Vec::new();
    for drive in drives {
        all.push(FlightCse::connect(&drive.address, options.clone()).await.unwrap());
    }
    all
}

/// A host with connections of its own.
async fn host(drives: &[Server], redundancy: &str) -> Result<Host> {
    Ok(Host::join(connected(drives).await, options(redundancy), Founding::EmptyDrives).await?.0)
}

fn served(dir: &Path, drives: usize) -> Vec<Server> {
    (0..drives).map(|n| serve_drive_at("127.0.0.1:0", dir, n)).collect()
}

async fn begun(host: &Host, dataset: &str, rows: usize) -> Result<DatasetWriter> {
    let mut writer = host.writer(&name(dataset), DatasetKind::Table, true).await?;
    let rows = batches(4, rows);
    writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await?;
    Ok(writer)
}

pub(crate) async fn store(host: &Host, dataset: &str, rows: usize) -> Result<()> {
    begun(host, dataset, rows).await?.commit().await.map(drop)
}

pub(crate) async fn rows(host: &Host, dataset: &str) -> Result<String> {
    let query = host.sql(&format!("SELECT count(*) FROM {dataset}"), &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await?;
    Ok(lines(&query.collect().await?).remove(0))
}

/// All that is stored, by drives and keys, with what it is and its version; but for the records of hosts.
async fn stored(drives: &[Server]) -> Vec<(usize, String, u64, u32)> {
    let mut all = Vec::new();
    for (at, drive) in connected(drives).await.into_iter().enumerate() {
        let entries = drive.list("", None, 10_000).await.unwrap();
        all.extend(
            entries.into_iter().filter(|entry| entry.key.as_str() != RECORD).map(|entry| (at, entry.key.as_str().to_owned(), entry.version, entry.crc32c)),
        );
    }
    all
}

pub(crate) fn fenced(error: &Error) {
    let text = error.report();
    assert!(matches!(error.detail(), Some(Detail::Fenced { term, .. }) if *term > 1), "{:?}: {text}", error.detail());
    assert!(error.kind() == Kind::Conflict && text.contains("takes no changes from this host any more") && text.contains("another host"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_host_is_fenced_and_the_newer_one_writes() {
    for redundancy in ["none", "ec:2+1"] {
        let dir = tempfile::tempdir().unwrap();
        let drives = served(dir.path(), 3);
        let older = host(&drives, redundancy).await.unwrap();
        store(&older, "lab.t", 500).await.unwrap();
        let newer = host(&drives, redundancy).await.unwrap();
        let before = stored(&drives).await;
        fenced(&store(&older, "lab.t", 100).await.unwrap_err());
        fenced(&store(&older, "lab.new", 100).await.unwrap_err());
        fenced(&older.catalog().drop_dataset(&name("lab.t")).await.unwrap_err());
        let index = NewIndex { dataset: name("lab.t"), table: "data".into(), name: None, columns: vec!["x".into()], include: Vec::new() };
        fenced(&older.catalog().create_index(&index).await.unwrap_err());
        assert_eq!(stored(&drives).await, before, "{redundancy}");
        // Its status says so.
        let taken = older.status().await;
        assert!(
            taken.iter().all(|drive| drive.error.is_none() && drive.fenced.as_ref().is_some_and(|who| who.contains("another host (process "))),
            "{taken:?}"
        );
        assert!(newer.status().await.iter().all(|drive| drive.error.is_none() && drive.fenced.is_none()));
        // It may still be asked, and sees what the newer one does.
        assert_eq!(rows(&older, "lab.t").await.unwrap(), "2000");
        store(&newer, "lab.t", 200).await.unwrap();
        assert_eq!((rows(&older, "lab.t").await.unwrap(), rows(&newer, "lab.t").await.unwrap()), ("800".to_owned(), "800".to_owned()));
        // Begun again it is the newer one.
        let again = host(&drives, redundancy).await.unwrap();
        fenced(&store(&newer, "lab.t", 100).await.unwrap_err());
        store(&again, "lab.t", 300).await.unwrap();
        assert_eq!(rows(&newer, "lab.t").await.unwrap(), "1200");
    }
}

/// A drive that is taken into another fleet, whose hosts may have begun less often, says so; the host goes on with the
/// others, and still knows a newer one of its own fleet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_of_another_fleet_does_not_fence_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let drives = served(dir.path(), 3);
    drop(host(&drives, "none").await.unwrap());
    let own = host(&drives, "none").await.unwrap();
    store(&own, "lab.t", 500).await.unwrap();
    let left = &connected(&drives).await[1];
    let other = r#"{"format":1,"term":1,"host":"00000000-0000-0000-0000-0000000000aa","process":7,"since":0}"#;
    left.apply(vec![Op::Put { key: Key::new(RECORD).unwrap(), value: other.into(), expect: Expect::Any }]).await.unwrap();
    let error = store(&own, "lab.t", 700).await.unwrap_err();
    assert_eq!(error.detail(), Some(&Detail::Fenced { drive: "drive-1".into(), term: 1 }));
    let error = error.report();
    assert!(error.contains("drive-1 takes no changes from this host any more: it left this fleet, and the host of another one (process 7"), "{error}");
    assert!(!error.contains("another host (process"), "{error}");
    assert!(own.status().await.iter().all(|drive| drive.fenced.is_none()));
    assert_eq!(rows(&own, "lab.t").await.unwrap(), "2000");
    let newer = host(&drives, "none").await.unwrap();
    fenced(&store(&own, "lab.t", 100).await.unwrap_err());
    store(&newer, "lab.t", 100).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ingest_cut_off_by_another_host_leaves_the_old_data_set() {
    let dir = tempfile::tempdir().unwrap();
    let drives = served(dir.path(), 3);
    let older = host(&drives, "ec:2+1").await.unwrap();
    store(&older, "lab.t", 500).await.unwrap();
    let whole = stored(&drives).await;
    // Its slices are on the drives, and only the commit is to come.
    let writer = begun(&older, "lab.t", 700).await.unwrap();
    let newer = host(&drives, "ec:2+1").await.unwrap();
    fenced(&writer.commit().await.unwrap_err());
    assert_eq!(rows(&newer, "lab.t").await.unwrap(), "2000");
    // What it left behind goes when a host begins, or went with the one that cut it off.
    drop(host(&drives, "ec:2+1").await.unwrap());
    assert_eq!(stored(&drives).await, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_hosts_that_start_together_remains() {
    let dir = tempfile::tempdir().unwrap();
    let drives = served(dir.path(), 3);
    store(&host(&drives, "none").await.unwrap(), "lab.t", 100).await.unwrap();
    for round in 0..5 {
        let (a, b, c) = tokio::join!(host(&drives, "none"), host(&drives, "none"), host(&drives, "none"));
        let mut wrote = 0;
        for host in [a, b, c] {
            match host {
                Ok(host) => match store(&host, "lab.t", 100 + round).await {
                    Ok(()) => wrote += 1,
                    Err(e) => fenced(&e),
                },
                Err(e) => assert_eq!(e.kind(), Kind::Conflict, "{}", e.report()),
            }
        }
        // Each that was refused was so by another one; all may have been, by one that gave up.
        assert!(wrote <= 1, "{wrote} of three hosts have the fleet");
        let last = host(&drives, "none").await.unwrap();
        store(&last, "lab.t", 50).await.unwrap();
        assert_eq!(rows(&last, "lab.t").await.unwrap(), "200");
    }
}

/// A newer host took over while the drive was away. The older host reaches the returning drive first, and cannot write
/// all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_drive_is_fenced_before_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives = served(dir.path(), 3);
    let older = host(&drives, "replicas:2").await.unwrap();
    store(&older, "lab.t", 300).await.unwrap();
    let address = drives[2].address.clone();
    drives[2].kill();
    let newer = {
        let here = connected(&drives[..2]).await;
        Host::join(here, options("replicas:2"), Founding::EmptyDrives).await.unwrap().0
    };
    let status = newer.status().await;
    let told: Vec<&str> = status.iter().filter_map(|drive| drive.error.as_deref()).collect();
    assert!(
        told.len() == 1 && told[0].contains("the host was given no drive of its id") && told[0].contains("--replace drive-2 --replacement ADDR"),
        "{status:?}"
    );
    // The older one has that drive alone to itself: whatever it does, the others have a say in it.
    drives[2] = serve_drive_at(&address, dir.path(), 2);
    fenced(&store(&older, "lab.t", 100).await.unwrap_err());
    assert_eq!(rows(&newer, "lab.t").await.unwrap(), "1200");
    drop(newer);
    let last = host(&drives, "replicas:2").await.unwrap();
    store(&last, "lab.t", 200).await.unwrap();
    assert_eq!(rows(&last, "lab.t").await.unwrap(), "800");
    let records = connected(&drives).await;
    let mut terms = Vec::new();
    for drive in records {
        let record: serde_json::Value = serde_json::from_slice(&drive.get(&Key::new(RECORD).unwrap()).await.unwrap()).unwrap();
        terms.push(record["term"].as_u64().unwrap());
    }
    assert!(terms.windows(2).all(|pair| pair[0] == pair[1]) && terms[0] >= 3, "{terms:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_or_lost_coordinator_record_is_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let drives = served(dir.path(), 2);
    let host_ = host(&drives, "none").await.unwrap();
    store(&host_, "lab.t", 100).await.unwrap();
    let key = Key::new(RECORD).unwrap();
    let direct = connected(&drives).await;
    for drive in &direct {
        drive.apply(vec![skytether_store::Op::Delete { key: key.clone(), expect: skytether_store::Expect::Any }]).await.unwrap();
    }
    store(&host_, "lab.t", 200).await.unwrap();
    for drive in &direct {
        drive.apply(vec![skytether_store::Op::Put { key: key.clone(), value: "no record".into(), expect: skytether_store::Expect::Any }]).await.unwrap();
    }
    store(&host_, "lab.t", 300).await.unwrap();
    drop(host(&drives, "none").await.unwrap());
    fenced(&store(&host_, "lab.t", 400).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregators_and_their_parents_are_fenced_separately() {
    let dir = tempfile::tempdir().unwrap();
    let drives = served(dir.path(), 2);
    let aggregator = async || Aggregator::open("left", connected(&drives).await, options("none"), Founding::EmptyDrives, None).await.unwrap() as Arc<dyn Cse>;
    let above = async |aggregator: &Arc<dyn Cse>| Host::join(vec![Arc::clone(aggregator)], options("none"), Founding::EmptyDrives).await.unwrap().0;
    let left = aggregator().await;
    let older = above(&left).await;
    store(&older, "lab.t", 500).await.unwrap();
    let newer = above(&left).await;
    fenced(&store(&older, "lab.t", 100).await.unwrap_err());
    store(&newer, "lab.t", 200).await.unwrap();
    // Another process of the same aggregator: the former one changes nothing below it, whichever host it serves.
    let again = aggregator().await;
    fenced(&store(&newer, "lab.t", 100).await.unwrap_err());
    let last = above(&again).await;
    assert_eq!(rows(&last, "lab.t").await.unwrap(), "800");
    store(&last, "lab.t", 300).await.unwrap();
    assert_eq!(rows(&last, "lab.t").await.unwrap(), "1200");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_drives_have_no_coordinator_record() {
    let dir = tempfile::tempdir().unwrap();
    let fleet = crate::util::open(dir.path(), 2).await.unwrap();
    crate::util::ingest(&fleet, "lab.t", &batches(1, 10), false).await.unwrap();
    drop(fleet);
    for n in 0..2 {
        let values = crate::scrub::values(dir.path(), n);
        assert!(!values.is_empty() && values.iter().all(|(key, _)| key.as_str() != RECORD), "drive {n}");
    }
}
