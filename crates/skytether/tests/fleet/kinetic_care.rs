//! Fleets on Kinetic drives that are damaged, lost, busy, or have two hosts.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use skytether::{Fleet, Pushdown, QueryOptions, RepairOptions, ScrubOptions};
use skytether_common::Kind;
use skytether_host::{Founding, Host};
use skytether_kinetic::{ClientOptions, Connection, KineticDrive};
use skytether_kv::backend::{Backend, Space, Step};
use skytether_kv::memory::Memory;
use skytether_kv::{Change, Durability, KeyValues, To};
use skytether_store::disk::DriveIdentity;
use skytether_transport::Endpoint;
use uuid::Uuid;

use crate::fencing::{fenced, options, rows, store};
use crate::kinetic::{Engine, QUERIES, connect, fill, serve, serve_as, serve_drive};
use crate::served::Server;
use crate::util::{lines, query};

async fn answers(fleet: &Fleet) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in QUERIES {
        all.push(query(fleet, sql, Pushdown::Adaptive).await.unwrap_or_else(|e| panic!("{sql}: {}", e.report())));
    }
    all
}

/// The keys of the slices on a drive.
async fn slices(drive: &Server) -> Vec<Bytes> {
    let entries = connect(drive).await.list("", None, 10_000).await.unwrap();
    let all: Vec<Bytes> = entries.iter().filter(|entry| entry.key.as_str().contains(';')).map(|entry| Bytes::from(entry.key.as_str().to_owned())).collect();
    assert!(all.len() > 3, "{all:?}");
    all
}

/// Flips a bit of what the backend has of each of these keys.
fn flip(disk: &Memory, keys: &[Bytes]) {
    for key in keys {
        let (stored, record) = {
            let view = disk.view().unwrap();
            let mut all = view.range(Bound::Unbounded, Bound::Unbounded, false).map(Result::unwrap);
            all.find(|(stored, _)| stored.len() == key.len() + 1 && stored.ends_with(key)).unwrap()
        };
        let mut record = record.to_vec();
        *record.last_mut().unwrap() ^= 16;
        disk.commit(vec![Step::Put(Space::Records, stored, record.into())], u64::MAX, true).unwrap();
    }
}

/// Values that another client has replaced or deleted, and bits that the medium has flipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_values_of_kinetic_drives_are_mended() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Memory::default();
    let (mut drives, mut keys) = (Vec::new(), Vec::new());
    for n in 0..4 {
        let own = (n == 2).then(|| KeyValues::over(Arc::new(disk.clone()), "in memory".to_owned(), &skytether_kv::Options::default()).unwrap());
        let identity = DriveIdentity { id: Uuid::new_v4(), name: format!("drive-{n}") };
        let (server, kept) = serve_as(&dir.path().join(n.to_string()), identity, Engine::Present, own);
        drives.push(server);
        keys.push(kept);
    }
    let (_host, fleet) = serve(&drives, "ec:2+1").await;
    fill(&fleet).await.unwrap();
    let expected = answers(&fleet).await;
    let whole = fleet.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
    assert!(whole.damaged == 0 && whole.values > 50 && whole.skipped.is_empty() && whole.unverified == 0, "{whole}");

    let replaced = slices(&drives[0]).await;
    for key in &replaced[..2] {
        let record = keys[0].get(key).unwrap().unwrap();
        let mut value = record.value.to_vec();
        value[7] ^= 1;
        let to = To::Put { version: record.meta.version, tag: record.meta.tag, algorithm: record.meta.algorithm, value: value.into() };
        keys[0].write(vec![Change { key: key.clone(), expect: None, to }], Durability::Through).await.unwrap();
    }
    let deleted = slices(&drives[1]).await;
    keys[1].write(vec![Change::delete(deleted[0].clone())], Durability::Through).await.unwrap();
    flip(&disk, &slices(&drives[2]).await[..3]);

    let found = fleet.scrub(&ScrubOptions { check: true, ..ScrubOptions::default() }, &|_| ()).await.unwrap();
    assert_eq!((found.damaged, found.mended), (6, 0), "{found}");
    let mended = fleet.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
    assert!(mended.damaged == 6 && mended.left() == 0 && mended.skipped.is_empty() && mended.unverified == 0, "{mended}");
    let again = fleet.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
    assert!(again.damaged == 0 && again.values == whole.values, "{again}");
    assert_eq!(answers(&fleet).await, expected);
}

/// A drive of ours takes the lost one's place by its id, and one of another maker by the id in its address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_kinetic_drive_is_rebuilt_on_a_blank_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives: Vec<_> = (0..4).map(|n| serve_drive(dir.path(), n, Engine::Present)).collect();
    let (mut host, mut fleet) = serve(&drives, "ec:2+1").await;
    fill(&fleet).await.unwrap();
    let expected = answers(&fleet).await;
    let status = fleet.status().await.unwrap();
    let id = |name: &str| status.iter().find(|drive| drive.info.name == name).unwrap().info.id;
    for (name, engine) in [("drive-1", Engine::Present), ("drive-2", Engine::Absent)] {
        // The second of those that are left; a host begins without it.
        drop(drives.remove(1));
        assert_eq!(answers(&fleet).await, expected, "without {name}");
        host.kill();
        (host, fleet) = serve(&drives, "none").await;
        assert_eq!(answers(&fleet).await, expected, "begun without {name}");
        let stranger = DriveIdentity { id: if engine == Engine::Present { id(name) } else { Uuid::new_v4() }, name: name.to_owned() };
        let blank = serve_as(&dir.path().join(format!("blank-{name}")), stranger, engine, None).0;
        let at = format!("kinetic://{}", blank.address);
        drives.push(blank);
        let address = if engine == Engine::Present { at } else { format!("{at}?id={}", id(name)) };
        let options = RepairOptions { drives: vec![name.to_owned()], address: Some(address), ..RepairOptions::default() };
        let report = fleet.repair(&options, &|_| ()).await.unwrap_or_else(|e| panic!("{name}: {}", e.report()));
        assert!(report.drives == [name] && report.left.is_empty() && report.lost.is_empty() && report.rebuilt > 5, "{report}");
        let scrubbed = fleet.scrub(&ScrubOptions::default(), &|_| ()).await.unwrap();
        assert!(scrubbed.damaged == 0 && scrubbed.skipped.is_empty(), "{name}: {scrubbed}");
        assert_eq!(answers(&fleet).await, expected, "after the repair of {name}");
    }
    // Both are whole: drive-3 may be lost.
    drives[1].kill();
    assert_eq!(answers(&fleet).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn address_with_another_id_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let drive = serve_drive(dir.path(), 0, Engine::Absent);
    let id = connect(&drive).await.info().id;
    let at = |rest: String| -> Endpoint { format!("kinetic://{}{rest}", drive.address).parse().unwrap() };
    let again = KineticDrive::connect(&at(format!("?id={id}")), ClientOptions::default()).await.unwrap();
    assert_eq!(skytether_device::Storage::info(&again).id, id);
    let refused = KineticDrive::connect(&at(format!("?id={}", Uuid::from_u128(5))), ClientOptions::default()).await.unwrap_err();
    assert!(refused.kind() == Kind::Invalid && refused.message().contains("has the id"), "{refused}");
    for wrong in ["?id=5", "/x"] {
        assert_eq!(KineticDrive::connect(&at(wrong.to_owned()), ClientOptions::default()).await.unwrap_err().kind(), Kind::Invalid);
    }
}

async fn host(drives: &[Server], redundancy: &str) -> Host {
    let mut connected = Vec::new();
    for drive in drives {
        connected.push(connect(drive).await);
    }
    Host::join(connected, options(redundancy), Founding::EmptyDrives).await.unwrap().0
}

/// All that is stored on the drives, by names and versions.
async fn stored(drives: &[Server]) -> Vec<(usize, String, u64)> {
    let mut all = Vec::new();
    for (n, drive) in drives.iter().enumerate() {
        let entries = connect(drive).await.list("", None, 10_000).await.unwrap();
        let names = entries.into_iter().filter(|entry| entry.key.as_str() != "skytether-fleet-host");
        all.extend(names.map(|entry| (n, entry.key.as_str().to_owned(), entry.version)));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_host_of_kinetic_drives_is_fenced() {
    for redundancy in ["none", "ec:2+1"] {
        let dir = tempfile::tempdir().unwrap();
        let drives: Vec<_> = (0..3).map(|n| serve_drive(dir.path(), n, Engine::Present)).collect();
        let older = host(&drives, redundancy).await;
        store(&older, "lab.t", 500).await.unwrap();
        let newer = host(&drives, redundancy).await;
        let before = stored(&drives).await;
        fenced(&store(&older, "lab.t", 100).await.unwrap_err());
        fenced(&store(&older, "lab.new", 100).await.unwrap_err());
        assert_eq!(stored(&drives).await, before, "{redundancy}");
        // It may still be asked, and sees what the newer one does.
        assert_eq!(rows(&older, "lab.t").await.unwrap(), "2000");
        store(&newer, "lab.t", 200).await.unwrap();
        assert_eq!((rows(&older, "lab.t").await.unwrap(), rows(&newer, "lab.t").await.unwrap()), ("800".to_owned(), "800".to_owned()));
        let again = host(&drives, redundancy).await;
        fenced(&store(&newer, "lab.t", 100).await.unwrap_err());
        store(&again, "lab.t", 300).await.unwrap();
        assert_eq!(rows(&newer, "lab.t").await.unwrap(), "1200");
    }
}

/// A drive whose connections are all taken runs no further sub-plan: the host reads its values instead, and asks it
/// again with the next query.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_kinetic_drive_is_read_by_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let drives: Vec<_> = (0..2).map(|n| serve_drive(dir.path(), n, Engine::Present)).collect();
    let (_host, fleet) = serve(&drives, "none").await;
    fill(&fleet).await.unwrap();
    let sql = "SELECT grp, count(*), sum(n) FROM lab.t GROUP BY grp ORDER BY grp";
    let at: Endpoint = format!("kinetic://{}", drives[1].address).parse().unwrap();
    // Until there is no place. The host keeps the connection that it has.
    let mut taken = Vec::new();
    let busy = loop {
        match Connection::open(&at, Arc::new(ClientOptions::default())).await {
            Ok(on) => {
                on.noop().await.unwrap();
                taken.push(on);
            }
            Err(busy) => break busy,
        }
    };
    assert!((90..100).contains(&taken.len()) && busy.kind() == Kind::Unavailable, "{}: {busy}", taken.len());
    let ran = async || {
        let ran = fleet.sql(sql, &QueryOptions::default()).await.unwrap();
        let receipt = ran.receipt.clone();
        let rows = lines(&ran.collect().await.unwrap());
        let why = receipt.receipt().drives.iter().map(|drive| drive.served_by_fallback.clone()).collect::<Vec<_>>();
        (rows, why)
    };
    let (rows, why) = ran().await;
    let said: Vec<_> = why.iter().flatten().collect();
    assert!(said.len() == 1 && said[0].contains("SERVICE_BUSY") && said[0].contains("connections"), "{why:?}");
    taken.clear();
    let (again, why) = ran().await;
    assert_eq!((again, why), (rows, vec![None, None]));
}
