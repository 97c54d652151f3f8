//! Drives and host as servers on loopback: every answer equals the embedded one, and what fails is named.

use futures::future::BoxFuture;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use skytether::{AdaptiveMode, DatasetKind, Fleet, HostOptions, Placement, Pushdown, QueryOptions};
use skytether_common::{Detail, Kind, Result};
use skytether_device::{CseInfo, DeliveryStream, Layer, OpenReply, Storage, SubPlan};
use skytether_drive::{Cse, Drive, DriveOptions};
use skytether_flight_drive::{ConnectOptions, FlightCse};
use skytether_host::{Founding, Host};
use skytether_store::disk::DriveIdentity;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::util::{CUTS, batches, ingest, name, open, query, value};

/// A server in a runtime of its own: dropping that closes its sockets at once, as the death of a process does.
pub(crate) struct Server {
    runtime: Option<Runtime>,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(serve: impl FnOnce(TcpListener) -> F) -> Self {
        Self::start_at("127.0.0.1:0", serve)
    }

    pub(crate) fn start_at<F: Future<Output = ()> + Send + 'static>(address: &str, serve: impl FnOnce(TcpListener) -> F) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let guard = runtime.enter();
        let listener = TcpListener::from_std(listener).unwrap();
        drop(guard);
        runtime.spawn(serve(listener));
        Self { runtime: Some(runtime), address }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // On a thread of its own, since it waits until all is closed: port and directory are free then.
            std::thread::spawn(move || drop(runtime)).join().unwrap();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn serve_drive(dir: &Path, n: usize) -> Server {
    serve_drive_at("127.0.0.1:0", dir, n)
}

/// Drive `n` below `dir`, made where it is not there.
pub(crate) fn serve_drive_at(address: &str, dir: &Path, n: usize) -> Server {
    let dir = dir.join(n.to_string());
    let new = || DriveIdentity { id: uuid::Uuid::new_v4(), name: format!("drive-{n}") };
    let identity = (!dir.join("drive.json").exists()).then(new);
    let drive = Drive::open(&dir, identity, DriveOptions::default()).unwrap();
    Server::start_at(address, move |listener| async move {
        skytether_drive::serve(drive, listener, std::future::pending()).await.unwrap();
    })
}

/// Four drives and a host, all behind sockets; a connection to the host.
pub(crate) async fn serve(dir: &Path) -> (Vec<Server>, Server, Fleet) {
    let drives: Vec<_> = (0..4).map(|n| serve_drive(dir, n)).collect();
    let host = serve_host("127.0.0.1:0", &drives);
    let fleet = Fleet::connect(&format!("grpc://{}", host.address)).await.unwrap();
    (drives, host, fleet)
}

/// A host over `drives`.
pub(crate) fn serve_host(address: &str, drives: &[Server]) -> Server {
    serve_host_with(address, drives, AdaptiveMode::default())
}

/// A host over `drives` whose work moves as `moving` says.
pub(crate) fn serve_host_with(address: &str, drives: &[Server], moving: AdaptiveMode) -> Server {
    serve_host_at(address, drives.iter().map(|d| d.address.clone()).collect(), moving)
}

/// A host over some of the drives of a fleet.
pub(crate) fn serve_host_over(address: &str, drives: &[&Server]) -> Server {
    serve_host_at(address, drives.iter().map(|d| d.address.clone()).collect(), AdaptiveMode::default())
}

fn serve_host_at(address: &str, addresses: Vec<String>, moving: AdaptiveMode) -> Server {
    Server::start_at(address, move |listener| async move {
        let options = ConnectOptions { idle_timeout: Duration::from_secs(20), ..ConnectOptions::default() };
        let mut connected: Vec<Arc<dyn Cse>> = Vec::new();
        for address in addresses {
            connected.push(FlightCse::connect(&address, options.clone()).await.unwrap());
        }
        let mut options = HostOptions { storage_deadline: Duration::from_secs(30), moving, ..HostOptions::default() };
        options.slices.target_bytes = 64 << 10;
        let (host, _) = Host::join(connected, options, Founding::EmptyDrives).await.unwrap();
        skytether_flight::serve(host, listener, std::future::pending()).await.unwrap();
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn served_and_embedded_fleets_answer_alike() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let embedded = open(one.path(), 4).await.unwrap();
    let (_drives, _host, served) = serve(two.path()).await;
    let rows = batches(10, 1000);
    for fleet in [&embedded, &served] {
        ingest(fleet, "lab.t", &rows, false).await.unwrap();
        crate::expression::write(fleet, "blood.tiny").await;
    }
    for sql in [
        "SELECT count(*), sum(n), min(x), max(name) FROM lab.t",
        "SELECT grp, count(*), round(avg(x), 6) FROM lab.t WHERE n > 0 GROUP BY grp ORDER BY grp",
        "SELECT id, name FROM lab.t WHERE id % 1000 = 3 ORDER BY id",
        "SELECT a.grp, count(*) FROM lab.t a JOIN blood.tiny.obs o ON a.name = replace(o.cell, 'cell-', 'name ') GROUP BY a.grp ORDER BY a.grp",
        "SELECT gene, cell_moments(cell, value, 'cell_type', 'log1p_cp10k') FROM blood.tiny.x GROUP BY gene ORDER BY gene",
        // The join ends before it has read a slice.
        "SELECT a.grp, count(*) FROM lab.t a JOIN (SELECT max(id) AS id FROM lab.t HAVING max(id) < 0) s ON a.id = s.id GROUP BY a.grp",
        "SELECT count(*) FROM lab.t a WHERE a.id IN (SELECT max(id) FROM lab.t HAVING max(id) < 0)",
        "SELECT a.grp, count(*) FROM lab.t a JOIN (SELECT id FROM lab.t ORDER BY id LIMIT 2 OFFSET 20000) s ON a.id = s.id GROUP BY a.grp",
    ] {
        for cut in CUTS {
            let expected = query(&embedded, sql, cut).await.unwrap();
            assert_eq!(query(&served, sql, cut).await.unwrap(), expected, "{cut}: {sql}");
        }
    }
    let names = |list: Vec<skytether::DatasetInfo>| list.into_iter().map(|d| (d.name, d.rows, d.tables)).collect::<Vec<_>>();
    assert_eq!(names(served.list().await.unwrap()), names(embedded.list().await.unwrap()));

    let mut query = served.sql("SELECT grp, sum(n) FROM lab.t GROUP BY grp", &QueryOptions::default()).await.unwrap();
    while let Some(batch) = query.stream.next().await {
        batch.unwrap();
    }
    let receipt = query.receipt.receipt();
    assert!(receipt.finished && receipt.drives.len() > 1 && receipt.bytes_moved > 0 && receipt.rows == 4, "{receipt}");
    assert!(served.explain("SELECT 1 FROM lab.t", true, &QueryOptions::default()).await.unwrap().contains("sub-plan"));

    let error = ingest(&served, "lab.t", &rows, false).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    ingest(&served, "lab.t", &rows[..1], true).await.unwrap();
    assert_eq!(value(&served, "SELECT count(*) FROM lab.t").await.unwrap(), "1000");
    served.drop_dataset(&name("lab.t")).await.unwrap();
    embedded.drop_dataset(&name("lab.t")).await.unwrap();
    // A detail is the same on both sides of the wire.
    for (sql, kind, detail) in [
        ("SELECT 1 FROM lab.t", Kind::NotFound, Detail::MissingDataset { dataset: name("lab.t") }),
        ("SELECT 1 FROM nothing", Kind::NotFound, Detail::MissingTable { table: "nothing".into() }),
        ("SELECT * FROM nothing AS x(a)", Kind::NotFound, Detail::MissingTable { table: "nothing".into() }),
        ("WITH t AS (SELECT * FROM other) SELECT * FROM t", Kind::NotFound, Detail::MissingTable { table: "other".into() }),
        ("SELECT nothing FROM blood.tiny.obs", Kind::Invalid, Detail::MissingColumn { column: "nothing".into() }),
    ] {
        for fleet in [&served, &embedded] {
            let error = crate::util::query(fleet, sql, Pushdown::Full).await.unwrap_err();
            assert_eq!((error.kind(), error.detail()), (kind, Some(&detail)), "{sql}: {error}");
        }
    }
    // What is there under that name, and is used otherwise than it can be, is not missing.
    let error = crate::util::query(&served, "WITH t AS (SELECT 1 AS a) SELECT * FROM t AS x(a, b)", Pushdown::Full).await.unwrap_err();
    assert_eq!(error.detail(), None, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_drive_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (mut drives, _host, fleet) = serve(dir.path()).await;
    ingest(&fleet, "lab.t", &batches(20, 2000), false).await.unwrap();
    let parts = fleet.describe(&name("lab.t")).await.unwrap().tables["data"].partitions.len();
    assert_eq!(parts, 4, "every drive must hold a part");
    // Not the home drive, which would already fail the look-up.
    let home = fleet.describe(&name("lab.t")).await.unwrap();
    let at_home = skytether_host::rendezvous(home.name.root_key().as_str(), ids(&fleet).await.iter()).unwrap();
    let dead = (at_home + 1) % 4;
    drives[dead].kill();
    let error = query(&fleet, "SELECT sum(n) FROM lab.t", Pushdown::Full).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains(&format!("drive-{dead}")), "{error}");
    let status = fleet.status().await.unwrap();
    assert_eq!(status.iter().map(|d| d.usage.is_some()).collect::<Vec<_>>(), (0..4).map(|n| n != dead).collect::<Vec<_>>());
    let error = ingest(&fleet, "lab.u", &batches(20, 2000), false).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
}

pub(crate) async fn ids(fleet: &Fleet) -> Vec<uuid::Uuid> {
    fleet.status().await.unwrap().into_iter().map(|d| d.info.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_host_and_wrong_addresses_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (drives, mut host, fleet) = serve(dir.path()).await;
    ingest(&fleet, "lab.t", &batches(1, 10), false).await.unwrap();
    let address = host.address.clone();
    host.kill();
    let error = query(&fleet, "SELECT 1 FROM lab.t", Pushdown::Full).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.to_string().contains(&address), "{error}");
    let error = Fleet::connect(&format!("grpc://{address}")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    let error = Fleet::connect("somewhere").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    let error = Fleet::connect(&format!("grpc://{}", drives[0].address)).await.unwrap_err();
    let told = error.to_string();
    assert!(error.kind() == Kind::Invalid && told.contains("is no Skytether host") && told.ends_with("and connect there"), "{told}");
}

/// A drive whose answers wait for a word.
#[derive(Debug)]
struct Slow {
    inner: Arc<Drive>,
    go: watch::Receiver<bool>,
}

impl Layer for Slow {
    fn info(&self) -> &CseInfo {
        self.inner.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.inner.as_ref())
    }

    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let DeliveryStream { schema, messages } = self.inner.execute(plan).await?;
            let mut go = self.go.clone();
            let wait = futures::stream::once(async move {
                let _ = go.wait_for(|go| *go).await;
            });
            Ok(DeliveryStream { schema, messages: wait.filter_map(|()| std::future::ready(None)).chain(messages).boxed() })
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move { Ok(OpenReply::Whole(Layer::execute(self, plan).await?)) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_served_drive_that_works_for_long_is_not_dead() {
    let dir = tempfile::tempdir().unwrap();
    let (go, waiting) = watch::channel(false);
    let identity = DriveIdentity { id: uuid::Uuid::new_v4(), name: "drive-0".into() };
    let drive = Arc::new(Slow { inner: Drive::open(dir.path(), Some(identity), DriveOptions::default()).unwrap(), go: waiting });
    let server = Server::start(move |listener| async move {
        skytether_flight_drive::serve(drive, listener, std::future::pending()).await.unwrap();
    });
    let short = Duration::from_millis(1500);
    let connected = FlightCse::connect(&server.address, ConnectOptions { idle_timeout: short, ..ConnectOptions::default() }).await.unwrap();
    let options = HostOptions { begin_deadline: short, silence_deadline: short, ..HostOptions::default() };
    let (host, _) = Host::join(vec![connected as Arc<dyn Cse>], options, Founding::EmptyDrives).await.unwrap();
    let mut writer = host.writer(&name("lab.t"), DatasetKind::Table, false).await.unwrap();
    let rows = batches(1, 100);
    writer.write_table("data", Placement::Spread, rows[0].schema(), rows.into_iter().map(Ok)).await.unwrap();
    writer.commit().await.unwrap();

    let query = host.sql("SELECT count(*) FROM lab.t", &QueryOptions::default()).await.unwrap();
    let mut answer = Box::pin(query.collect());
    // The deadlines pass several times; heartbeats show that the drive works.
    if let Ok(ended) = tokio::time::timeout(2 * short, &mut answer).await {
        panic!("the query ended although its drive still works on it: {ended:?}");
    }
    go.send(true).unwrap();
    assert_eq!(answer.await.unwrap()[0].num_rows(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_a_receipt_add_up_over_sockets_too() {
    use crate::receipts::{ADDED, assert_adds_up, receipt, slices};
    let dir = tempfile::tempdir().unwrap();
    let (_drives, _host, fleet) = serve(dir.path()).await;
    ingest(&fleet, "lab.t", &batches(10, 2000), false).await.unwrap();
    ingest(&fleet, "lab.u", &batches(3, 200), false).await.unwrap();
    let tables = [slices(&fleet, "lab.t").await, slices(&fleet, "lab.u").await];
    for (sql, reads) in ADDED {
        for cut in [Pushdown::Full, Pushdown::Raw] {
            assert_adds_up(&receipt(&fleet, sql, cut).await, tables[0] * reads[0] + tables[1] * reads[1], &format!("{sql} ({cut})"));
        }
    }
    // An explanation comes over the wire as data, and prints as the host prints it.
    let sql = ADDED[2].0;
    let explanation = fleet.explanation(sql, true, &QueryOptions::default()).await.unwrap();
    assert_eq!(explanation.receipt.as_ref().unwrap().rows, 4);
    let tree = explanation.receipt.as_ref().unwrap().tree();
    assert!(tree.contains("it merges what the drives have aggregated") && tree.contains("Broadcast: __shipped_0"), "{explanation}");
    let plain = fleet.explanation(sql, false, &QueryOptions::default()).await.unwrap();
    assert_eq!(plain.to_string(), fleet.explain(sql, false, &QueryOptions::default()).await.unwrap());
}
