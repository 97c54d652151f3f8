//! The same drive behind a connection: the same answers, and failures of the connection.

use futures::future::BoxFuture;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, Ticket};
use bytes::Bytes;
use futures::StreamExt;
use skytether_common::{Detail, Key, Kind, Result};
use skytether_device::{CseInfo, DeliveryStream, Layer, OpenReply, ResultMessage, SubPlan};
use skytether_drive::{Cse, DriveOptions, Storage, serve};
use skytether_flight_drive::frames::{self, LIST_PAGE};
use skytether_flight_drive::{self as flight, ConnectOptions, FlightCse, MAX_MESSAGE};
use skytether_store::{Expect, Op};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// A server on a port of its own; ends when dropped.
struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<()>>,
}

impl Server {
    async fn start(cse: Arc<dyn Cse>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(flight::serve(cse, listener, async {
            let _ = stopped.await;
        }));
        Self { address, stop: Some(stop), task }
    }

    async fn connect(&self) -> Arc<FlightCse> {
        FlightCse::connect(&self.address.to_string(), ConnectOptions::default()).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Short enough for tests to wait for, and long enough for a machine that does much else: within a quarter of it the
/// other side is to say that it lives.
const SILENCE: Duration = Duration::from_secs(2);

fn quick() -> ConnectOptions {
    ConnectOptions { connect_timeout: SILENCE, idle_timeout: SILENCE, keepalive: None, ..ConnectOptions::default() }
}

/// Forwards bytes to a server until it freezes (connections stay open, nothing goes through) or
/// dies (connections close).
struct Proxy {
    address: SocketAddr,
    frozen: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (frozen, freezing) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = TcpStream::connect(server).await.unwrap().into_split();
                connections.spawn(pump(from_client, to_server, freezing.clone()));
                connections.spawn(pump(from_server, to_client, freezing.clone()));
            }
        });
        Self { address, frozen, task }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pump(mut from: tokio::net::tcp::OwnedReadHalf, mut to: tokio::net::tcp::OwnedWriteHalf, mut freezing: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let n = tokio::select! {
            biased;
            () = async { drop(freezing.wait_for(|f| *f).await) } => None,
            n = from.read(&mut buffer) => Some(n.unwrap_or(0)),
        };
        // Frozen: both halves stay open.
        let Some(n) = n else { return std::future::pending().await };
        if n == 0 || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn answers_over_a_connection_equal_those_in_process() {
    let drive = drive();
    let server = Server::start(drive.clone()).await;
    let remote = FlightCse::connect(&format!("grpc://{}", server.address), ConnectOptions::default()).await.unwrap();
    assert_eq!(remote.info(), drive.info());
    for sql in [
        "SELECT * FROM shop.sales.data",
        "SELECT id FROM shop.sales.data WHERE id < 0",
        "SELECT kind, __avg_state(price) AS s, __count_state(1) AS n FROM shop.sales.data WHERE id > 100 GROUP BY kind",
        "SELECT count(*) AS n FROM blood.tiny.x",
        "SELECT gene, cell, value FROM blood.tiny.x WHERE gene = 'GENE-1'",
        "SELECT * FROM blood.tiny.x_rows",
    ] {
        let plan = sub_plan(sql).await;
        // What only the first of several equal sub-plans reads is then in the drive's caches.
        run(drive.as_ref(), plan.clone()).await.unwrap();
        let (here, mine) = run(drive.as_ref(), plan.clone()).await.unwrap();
        let (there, theirs) = run(remote.as_ref(), plan).await.unwrap();
        assert_eq!(here.schema(), there.schema(), "{sql}");
        assert_eq!(lines(&here), lines(&there), "{sql}");
        assert_eq!(
            (mine.rows_out, mine.slices, mine.slices_pruned, mine.bytes_read),
            (theirs.rows_out, theirs.slices, theirs.slices_pruned, theirs.bytes_read)
        );
        // IPC adds headers and padding, and little else.
        assert!(theirs.bytes_sent > 0 && theirs.bytes_sent < mine.bytes_sent * 2 + 4096, "{sql}: {} and {}", mine.bytes_sent, theirs.bytes_sent);
        assert!(theirs.bytes_received > mine.bytes_received, "a ticket is longer than its plan");
    }
    for sql in ["SELECT cell FROM blood.tiny.secret"] {
        let plan = sub_plan(sql).await;
        let (here, there) = (run(drive.as_ref(), plan.clone()).await.unwrap_err(), run(remote.as_ref(), plan).await.unwrap_err());
        assert_eq!(here.kind(), there.kind());
        let text = there.to_string();
        assert!(
            text.starts_with(&format!("drive drive-2 at {}: ", server.address)) && text.ends_with(here.to_string().strip_prefix("drive-2: ").unwrap()),
            "{text}"
        );
    }
}

#[tokio::test]
async fn errors_in_the_middle_keep_their_kind() {
    let drive = drive_with(DriveOptions { memory_limit: 700 << 10, ..DriveOptions::default() });
    let server = Server::start(drive).await;
    let remote = server.connect().await;
    let error = run(remote.as_ref(), sub_plan("SELECT id, count(*) AS n FROM shop.sales.data GROUP BY id").await).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
    assert!(error.to_string().contains("drive drive-2 at 127.0.0.1:"), "{error}");
}

#[tokio::test]
async fn storage_works_over_a_connection() {
    let drive = drive();
    let server = Server::start(drive.clone()).await;
    let remote = server.connect().await;
    let key = |n: usize| Key::new(format!("a/b/{n:05}")).unwrap();
    let many = LIST_PAGE + 100;
    let batch = (0..many).map(|n| Op::Put { key: key(n), value: Bytes::from(vec![n as u8; n % 50]), expect: Expect::Absent }).collect();
    let versions = remote.apply(batch).await.unwrap();
    assert_eq!(versions.len(), many);
    assert_eq!(remote.get(&key(77)).await.unwrap(), Bytes::from(vec![77; 27]));
    let entry = remote.stat(&key(77)).await.unwrap().unwrap();
    assert_eq!((entry.len, entry.version), (27, versions[77]));
    assert_eq!(remote.stat(&key(99_999)).await.unwrap(), None);
    assert_eq!(remote.usage().await.unwrap(), drive.usage().await.unwrap());
    let listed = remote.list("a/b/", None, usize::MAX).await.unwrap();
    assert_eq!(listed, drive.list("a/b/", None, usize::MAX).await.unwrap());
    assert_eq!(listed.len(), many);
    assert_eq!(remote.list("a/b/", Some(&key(3)), 2).await.unwrap().iter().map(|e| e.key.clone()).collect::<Vec<_>>(), [key(4), key(5)]);
    let error = remote.get(&key(99_999)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(error.to_string().contains("a/b/99999") && error.to_string().contains("drive drive-2 at"), "{error}");
    assert_eq!(error.detail(), Some(&Detail::missing_key(&key(99_999))));
    let stale = Op::Put { key: key(0), value: Bytes::new(), expect: Expect::Version(versions[0] + 1_000_000) };
    let other = Op::Delete { key: key(1), expect: Expect::Any };
    let error = remote.apply(vec![other, stale]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Conflict);
    assert!(remote.stat(&key(1)).await.unwrap().is_some(), "nothing of a refused batch happens");
}

/// A batch above the limit of a message fails as a whole, and nothing of it is stored.
#[tokio::test]
async fn largest_value_travels_both_ways_and_larger_batches_fail() {
    let server = Server::start(drive()).await;
    let remote = server.connect().await;
    let key = Key::new("big").unwrap();
    let value = Bytes::from(vec![0xa5; skytether_store::MAX_VALUE]);
    remote.apply(vec![Op::Put { key: key.clone(), value: value.clone(), expect: Expect::Absent }]).await.unwrap();
    assert!(remote.get(&key).await.unwrap() == value);
    let half = value.slice(..MAX_MESSAGE / 2);
    let two = ["one", "two"].map(|k| Op::Put { key: Key::new(k).unwrap(), value: half.clone(), expect: Expect::Any });
    let error = remote.apply(two.to_vec()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
    assert_eq!(remote.stat(&Key::new("one").unwrap()).await.unwrap(), None);
}

#[tokio::test]
async fn server_survives_any_bytes_at_its_port() {
    let server = Server::start(drive()).await;
    for junk in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x00\x01\x02\x03\xff\xfe",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        &[0u8; 70_000],
    ] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The server may close before all is written.
        let _ = stream.write_all(junk).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
    }
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap();
    let mut client = FlightServiceClient::new(channel).max_encoding_message_size(usize::MAX);
    let good = frames::encode_ticket(&sub_plan("SELECT id FROM shop.sales.data").await).unwrap();
    let mut long_header = good.to_vec();
    long_header[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut off_by_some = good.to_vec();
    off_by_some[0] ^= 0x10;
    let mut flipped = good.to_vec();
    let last = flipped.len() - 20;
    flipped[last] ^= 0xff;
    let header = |json: &[u8]| [&(json.len() as u32).to_le_bytes()[..], json].concat();
    for ticket in [
        vec![],
        vec![1, 2, 3],
        good[..good.len() / 2].to_vec(),
        good[..30].to_vec(),
        long_header,
        off_by_some,
        flipped,
        header(b"{}"),
        header(b"{\"query\": 7"),
        header("[".repeat(100_000).as_bytes()),
        vec![0; skytether_device::subplan::MAX_PLAN + frames::MAX_HEADER],
        vec![7; 1 << 20],
    ] {
        let answer = client.do_get(Ticket::new(ticket.clone())).await;
        let status = match answer {
            Err(status) => status,
            // A flipped byte may leave a plan that can be read; then it fails or runs, but ends.
            Ok(stream) => match stream.into_inner().collect::<Vec<_>>().await.into_iter().find_map(std::result::Result::err) {
                Some(status) => status,
                None => continue,
            },
        };
        assert!(status.message().starts_with("drive-2: "), "{:?}: {status:?}", &ticket[..ticket.len().min(20)]);
    }
    let batch = frames::encode_batch(&[Op::Put { key: Key::new("k").unwrap(), value: Bytes::from_static(b"value"), expect: Expect::Any }]).unwrap();
    let mut wrong_sum = batch.to_vec();
    *wrong_sum.last_mut().unwrap() ^= 1;
    for (action, body) in [
        ("explode", vec![]),
        ("get", vec![]),
        ("get", b"{\"key\": \"\"}".to_vec()),
        ("get", b"{\"key\": \"a b\"}".to_vec()),
        ("stat", vec![0xff; 1000]),
        ("list", b"{\"prefix\": \"\", \"after\": null, \"limit\": -1}".to_vec()),
        ("apply", vec![]),
        ("apply", batch[..batch.len() - 1].to_vec()),
        ("apply", [&batch[..], b"x"].concat()),
        ("apply", wrong_sum),
        ("apply", header(br#"[{"op":"put","key":"k","expect":"any","len":18446744073709551615,"crc32c":0}]"#)),
        ("apply", header(br#"[{"op":"put","key":"k","expect":"any","len":67108864,"crc32c":0}]"#)),
    ] {
        let answer = client.do_action(Action::new(action, body.clone())).await;
        let status = match answer {
            Err(status) => status,
            Ok(stream) => {
                stream.into_inner().collect::<Vec<_>>().await.into_iter().find_map(std::result::Result::err).unwrap_or_else(|| panic!("{action} {body:?}"))
            }
        };
        assert!(status.message().starts_with("drive-2: "), "{action} {body:?}: {status:?}");
    }
    // A message over the limit is refused before it is taken in.
    assert!(client.do_get(Ticket::new(vec![0; MAX_MESSAGE + 1])).await.is_err());
    let remote = server.connect().await;
    assert_eq!(remote.stat(&Key::new("k").unwrap()).await.unwrap(), None, "no broken batch was applied");
    assert_eq!(ask(remote.as_ref(), "SELECT id FROM shop.sales.data").await.0.num_rows(), SALES as usize);
}

#[tokio::test]
async fn closed_port_is_unavailable_and_names_the_address() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let error = FlightCse::connect(&address.to_string(), quick()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
    // A server that never sends anything.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let error = FlightCse::connect(&address.to_string(), quick()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn foreign_server_at_the_port_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let other = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.write_all(b"220 mail.example ESMTP\r\n").await;
        }
    });
    let error = FlightCse::connect(&address.to_string(), quick()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    other.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drive_that_freezes_in_the_middle_is_noticed_in_time() {
    let server = Server::start(drive()).await;
    let proxy = Proxy::to(server.address).await;
    let remote = FlightCse::connect(&proxy.address.to_string(), quick()).await.unwrap();
    let mut stream = remote.execute(sub_plan("SELECT gene, cell, value FROM blood.tiny.x").await).await.unwrap();
    assert!(matches!(stream.messages.next().await, Some(Ok(ResultMessage::Batch { .. }))));
    proxy.frozen.send(true).unwrap();
    let error = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            // What was on its way still arrives.
            if let Err(error) = stream.messages.next().await.unwrap() {
                return error;
            }
        }
    });
    let error = error.await.unwrap();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.to_string().contains(&format!("drive drive-2 at {}", proxy.address)), "{error}");
    assert!(stream.messages.next().await.is_none(), "one error, then the end");
    let error = remote.usage().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_drive_that_dies_in_the_middle_is_named() {
    let server = Server::start(drive()).await;
    let proxy = Proxy::to(server.address).await;
    let remote = FlightCse::connect(&proxy.address.to_string(), ConnectOptions::default()).await.unwrap();
    let mut stream = remote.execute(sub_plan("SELECT gene, cell, value FROM blood.tiny.x").await).await.unwrap();
    assert!(matches!(stream.messages.next().await, Some(Ok(ResultMessage::Batch { .. }))));
    let address = proxy.address;
    drop(proxy);
    let error = loop {
        if let Err(error) = stream.messages.next().await.unwrap() {
            break error;
        }
    };
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.to_string().contains(&format!("drive drive-2 at {address}")), "{error}");
}

/// A drive whose sub-plans wait for the test's signal.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Cse>,
    go: watch::Receiver<bool>,
}

impl Layer for Slow {
    fn info(&self) -> &CseInfo {
        self.inner.info()
    }

    fn inner(&self) -> Result<&dyn Cse> {
        Ok(self.inner.as_ref())
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let _ = self.go.clone().wait_for(|go| *go).await;
            self.inner.get(key).await
        })
    }

    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let DeliveryStream { schema, messages } = self.inner.execute(plan).await?;
            let mut go = self.go.clone();
            let wait = futures::stream::once(async move {
                let _ = go.wait_for(|go| *go).await;
            });
            Ok(DeliveryStream { schema, messages: Box::pin(wait.filter_map(|()| std::future::ready(None)).chain(messages)) })
        })
    }

    fn open(&self, plan: SubPlan) -> BoxFuture<'_, Result<OpenReply>> {
        Box::pin(async move { Ok(OpenReply::Whole(Layer::execute(self, plan).await?)) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_drive_is_not_a_dead_one() {
    let (go, waiting) = watch::channel(false);
    let server = Server::start(Arc::new(Slow { inner: drive(), go: waiting })).await;
    let remote = FlightCse::connect(&server.address.to_string(), quick()).await.unwrap();
    let mut stream = remote.execute(sub_plan("SELECT count(*) AS n FROM shop.sales.data").await).await.unwrap();
    let key = partition(&dataset("shop.sales"), "data").key().unwrap();
    let get = remote.get(&key);
    tokio::pin!(get);
    // Several times the idle timeout passes; signs of life keep both calls up.
    let both = tokio::time::timeout(2 * SILENCE, futures::future::select(stream.messages.next(), &mut get)).await;
    assert!(both.is_err(), "a call ended although its drive still works on it");
    go.send(true).unwrap();
    assert!(matches!(stream.messages.next().await, Some(Ok(ResultMessage::Batch { .. }))));
    assert!(!get.await.unwrap().is_empty());
}

#[tokio::test]
async fn a_client_that_goes_ends_its_work_on_the_drive() {
    let server = Server::start(drive_with(DriveOptions { max_concurrent: 1, ..DriveOptions::default() })).await;
    let remote = server.connect().await;
    let mut stream = remote.execute(sub_plan("SELECT gene, cell, value FROM blood.tiny.x").await).await.unwrap();
    assert!(matches!(stream.messages.next().await, Some(Ok(ResultMessage::Batch { .. }))));
    drop(stream);
    // Runs only once the other has ended.
    assert_eq!(ask(remote.as_ref(), "SELECT id FROM shop.sales.data").await.0.num_rows(), SALES as usize);
}

#[tokio::test]
async fn a_shutdown_ends_running_sub_plans_and_the_server() {
    let (_go, waiting) = watch::channel(false);
    let mut server = Server::start(Arc::new(Slow { inner: drive(), go: waiting })).await;
    let remote = server.connect().await;
    let mut stream = remote.execute(sub_plan("SELECT count(*) AS n FROM shop.sales.data").await).await.unwrap();
    server.stop.take().unwrap().send(()).unwrap();
    let error = stream.messages.next().await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    drop((stream, remote));
    (&mut server.task).await.unwrap().unwrap();
}

#[tokio::test]
async fn drive_serve_is_this_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(serve(drive(), listener, async {
        let _ = stopped.await;
    }));
    let remote = FlightCse::connect(&address.to_string(), ConnectOptions::default()).await.unwrap();
    assert_eq!(remote.info().name, "drive-2");
    drop(remote);
    stop.send(()).unwrap();
    server.await.unwrap().unwrap();
}
