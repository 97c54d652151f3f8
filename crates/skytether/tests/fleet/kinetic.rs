//! A fleet on Kinetic drives: its slices lie under keys, and hosts push sub-plans through EXECUTE.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use skytether::{Fleet, HostOptions, Pushdown, QueryOptions};
use skytether_common::{Detail, Kind, Result};
use skytether_device::ProgramKind;
use skytether_doors::DriveDoor;
use skytether_drive::{Cse, Drive, DriveOptions};
use skytether_host::{Founding, Host};
use skytether_kinetic::{ClientOptions, KineticDrive};
use skytether_kinetic_server::{Kinetic, Options, QueryEngine, StoredSlices};
use skytether_kv::KeyValues;
use skytether_scheduler::message::PushdownLevel;
use skytether_store::disk::DriveIdentity;
use skytether_transport::{Endpoint, Listener, ServeContext};

use crate::served::Server;
use crate::util::{CUTS, batches, ingest, lines, open, query};

/// How a drive is behind its door.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Engine {
    Present,
    Absent,
}

/// Drive `n` below `dir`, served by Kinetic only.
pub(crate) fn serve_drive(dir: &Path, n: usize, engine: Engine) -> Server {
    serve_with_keys(dir, n, engine).0
}

fn serve_with_keys(dir: &Path, n: usize, engine: Engine) -> (Server, Arc<KeyValues>) {
    let identity = DriveIdentity { id: uuid::Uuid::new_v4(), name: format!("drive-{n}") };
    serve_as(&dir.join(n.to_string()), identity, engine, None)
}

/// The drive in `dir`, made with this identity where it is not there, over its own store of keys or another one.
pub(crate) fn serve_as(dir: &Path, identity: DriveIdentity, engine: Engine, keys: Option<KeyValues>) -> (Server, Arc<KeyValues>) {
    let drive = Drive::open(dir, (!dir.join("drive.json").exists()).then_some(identity), DriveOptions::default()).unwrap();
    let directory = dir.join("kinetic");
    let keys = Arc::new(keys.unwrap_or_else(|| KeyValues::open(&directory, &skytether_kv::Options::default()).unwrap()));
    let slices = Arc::new(StoredSlices::new(Arc::clone(&keys)));
    let queries = (engine == Engine::Present).then(|| QueryEngine::new(Arc::clone(&slices), drive.over(slices).unwrap()));
    let [plain, _] = Kinetic::doors(Arc::clone(&keys), Options { directory: Some(directory), queries, ..Options::default() });
    let server = Server::start(move |listener| async move { plain.serve(drive, Listener::plain(listener).unwrap(), ServeContext::default()).await.unwrap() });
    (server, keys)
}

pub(crate) async fn connect(drive: &Server) -> Arc<dyn Cse> {
    let at = Endpoint::new("kinetic", drive.address.clone());
    Arc::new(KineticDrive::connect(&at, ClientOptions::default()).await.unwrap())
}

/// A host over such drives, and a connection to it.
pub(crate) async fn serve(drives: &[Server], redundancy: &str) -> (Server, Fleet) {
    let addresses: Vec<_> = drives.iter().map(|drive| Endpoint::new("kinetic", drive.address.clone())).collect();
    let redundancy = redundancy.parse().unwrap();
    let host = Server::start(move |listener| async move {
        let mut connected: Vec<Arc<dyn Cse>> = Vec::new();
        for at in addresses {
            connected.push(Arc::new(KineticDrive::connect(&at, ClientOptions::default()).await.unwrap()));
        }
        let mut options = HostOptions { storage_deadline: Duration::from_secs(30), redundancy, ..HostOptions::default() };
        options.slices.target_bytes = 64 << 10;
        let (host, _) = Host::join(connected, options, Founding::EmptyDrives).await.unwrap();
        let mut connectors = skytether_flight_drive::connectors();
        skytether_kinetic::connectors_into(&mut connectors);
        let face = skytether_flight::Face { connectors: Arc::new(connectors), ..skytether_flight::Face::default() };
        let service = skytether_flight::service(host, face);
        skytether_flight::serve_on(service, Listener::plain(listener).unwrap(), ServeContext::default()).await.unwrap();
    });
    let fleet = Fleet::connect(&format!("grpc://{}", host.address)).await.unwrap();
    (host, fleet)
}

pub(crate) const QUERIES: [&str; 7] = [
    "SELECT count(*), sum(n), min(x), max(name) FROM lab.t",
    "SELECT grp, count(*), round(avg(x), 6) FROM lab.t WHERE n > 0 GROUP BY grp ORDER BY grp",
    "SELECT id, name FROM lab.t WHERE id % 1000 = 3 ORDER BY id",
    "SELECT a.grp, count(*) FROM lab.t a JOIN blood.tiny.obs o ON a.name = replace(o.cell, 'cell-', 'name ') GROUP BY a.grp ORDER BY a.grp",
    "SELECT gene, cell_moments(cell, value, 'cell_type', 'log1p_cp10k') FROM blood.tiny.x GROUP BY gene ORDER BY gene",
    "SELECT count(*) FROM lab.t a WHERE a.id IN (SELECT max(id) FROM lab.t HAVING max(id) < 0)",
    LONG,
];

/// Its rows are longer than a value, on each drive.
const LONG: &str = "SELECT id, repeat(name, 30) FROM lab.t ORDER BY id";

pub(crate) async fn fill(fleet: &Fleet) -> Result<()> {
    ingest(fleet, "lab.t", &batches(40, 1000), false).await?;
    crate::expression::write(fleet, "blood.tiny").await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleets_on_kinetic_drives_answer_as_embedded_ones() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let embedded = open(one.path(), 3).await.unwrap();
    let (drives, keys): (Vec<_>, Vec<_>) = (0..3).map(|n| serve_with_keys(two.path(), n, Engine::Present)).unzip();
    let (_host, fleet) = serve(&drives, "none").await;
    for fleet in [&embedded, &fleet] {
        fill(fleet).await.unwrap();
    }
    for sql in QUERIES {
        for cut in CUTS {
            assert_eq!(query(&fleet, sql, cut).await.unwrap(), query(&embedded, sql, cut).await.unwrap(), "{cut}: {sql}");
        }
    }
    let ran = fleet.sql("SELECT grp, sum(n) FROM lab.t GROUP BY grp", &QueryOptions::default()).await.unwrap();
    let receipt = ran.receipt.clone();
    assert_eq!(lines(&ran.collect().await.unwrap()).len(), 4);
    let receipt = receipt.receipt();
    assert_eq!(receipt.drives.len(), 3, "{receipt}");
    for drive in &receipt.drives {
        assert!(drive.served_by_fallback.is_none() && drive.slices > 0 && drive.name.starts_with("drive-"), "{receipt}");
        assert!(drive.bytes_sent < 10_000 && drive.above.is_none(), "rows moved, not results: {receipt}");
    }
    // What a drive says of an error is the same on both sides.
    let error = query(&fleet, "SELECT nothing FROM blood.tiny.obs", Pushdown::Full).await.unwrap_err();
    assert_eq!((error.kind(), error.detail()), (Kind::Invalid, Some(&Detail::MissingColumn { column: "nothing".into() })));
    assert!(connect(&drives[0]).await.capabilities().runs(ProgramKind::Substrait));
    // A sub-plan that is longer than a value lies under keys for as long as it runs, and so do such rows.
    let names: Vec<_> = (0..7000).map(|n| format!("'{}name {n}'", "x".repeat(if n % 9 == 0 { 0 } else { 200 }))).collect();
    let long_plan = format!("SELECT count(*) FROM lab.t WHERE name NOT IN ({})", names.join(", "));
    let counted = query(&embedded, &long_plan, Pushdown::Full).await.unwrap();
    let ran = fleet.sql(&long_plan, &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await.unwrap();
    let receipt = ran.receipt.clone();
    assert_eq!(lines(&ran.collect().await.unwrap()), counted);
    assert!(receipt.receipt().drives.iter().all(|drive| drive.bytes_received > 1 << 20), "{}", receipt.receipt());
    let ran = fleet.sql(LONG, &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await.unwrap();
    let receipt = ran.receipt.clone();
    ran.collect().await.unwrap();
    assert!(receipt.receipt().drives.iter().all(|drive| drive.bytes_sent > 1 << 20), "{}", receipt.receipt());
    let passing = |keys: &KeyValues| {
        let of = |first: &[u8], last: &[u8]| keys.keys(Bound::Included(first), Bound::Excluded(last), false, 10).unwrap();
        [of(b"~skytether-plan/", b"~skytether-plan0"), of(b"~skytether-rows/", b"~skytether-rows0")].concat()
    };
    let cleared = async {
        while keys.iter().any(|keys| !passing(keys).is_empty()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), cleared).await.expect("keys of the moment stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinetic_drives_without_an_engine_are_read_by_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let drives: Vec<_> = [Engine::Present, Engine::Absent].into_iter().enumerate().map(|(n, engine)| serve_drive(dir.path(), n, engine)).collect();
    let (_host, fleet) = serve(&drives, "none").await;
    fill(&fleet).await.unwrap();
    for cut in CUTS {
        let options = QueryOptions { cut, ..QueryOptions::default() };
        let ran = fleet.sql("SELECT grp, sum(n) FROM lab.t GROUP BY grp ORDER BY grp", &options).await.unwrap();
        let receipt = ran.receipt.clone();
        assert_eq!(lines(&ran.collect().await.unwrap()).len(), 4);
        let receipt = receipt.receipt();
        let [only_stores] = &receipt.drives.iter().filter(|drive| drive.served_by_fallback.is_some()).collect::<Vec<_>>()[..] else { panic!("{receipt}") };
        assert!(only_stores.reason.as_ref().is_some_and(|why| why.contains("runs no sub-plans")), "{cut}: {receipt}");
        // Its values moved, and the receipt counts them.
        assert_eq!(only_stores.rung, Some(PushdownLevel::Raw), "{cut}: {receipt}");
        assert!(only_stores.bytes_read > 0 && only_stores.bytes_sent >= only_stores.bytes_read, "{cut}: {receipt}");
        assert!(receipt.bytes_moved >= only_stores.bytes_sent, "{cut}: {receipt}");
        let text = receipt.to_string();
        assert!(text.contains("only read here") && text.contains("run on the host in its place: from the values that it gave, because"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_kinetic_drive_is_decoded_from_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let mut drives: Vec<_> = (0..4).map(|n| serve_drive(dir.path(), n, Engine::Present)).collect();
    let (_host, fleet) = serve(&drives, "ec:2+1").await;
    fill(&fleet).await.unwrap();
    let mut expected = Vec::new();
    for sql in QUERIES {
        expected.push(query(&fleet, sql, Pushdown::Adaptive).await.unwrap());
    }
    drives[1].kill();
    for (sql, expected) in QUERIES.into_iter().zip(expected) {
        assert_eq!(query(&fleet, sql, Pushdown::Adaptive).await.unwrap(), expected, "{sql}");
    }
}
