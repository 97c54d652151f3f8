//! Doors of one drive: Flight over TLS, and a toy door that shows what another door needs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::{Detail, Key, Kind, Result};
use skytether_device::Cse;
use skytether_doors::DriveDoor;
use skytether_drive::{Drive, DriveOptions};
use skytether_flight_drive::ConnectOptions;
use skytether_store::disk::DriveIdentity;
use skytether_store::{Expect, Op};
use skytether_transport::{Alpn, Connection, Credentials, Endpoint, Gate, Listener, Security, ServeContext, ServerTls, TlsFiles, pki};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use uuid::Uuid;

/// `toy://`: `GET KEY` answers the value and a line break, `LIST PREFIX` the keys in a line. This is all that a door
/// has.
#[derive(Debug)]
struct Toy;

impl DriveDoor for Toy {
    fn scheme(&self) -> &'static str {
        "toy"
    }

    fn serve(self: Arc<Self>, drive: Arc<dyn Cse>, at: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            let mut incoming = at.incoming(Alpn::Absent, &context);
            let mut conversations = JoinSet::new();
            loop {
                tokio::select! {
                    () = context.shutdown.cancelled() => return Ok(()),
                    Some(connection) = incoming.next_connection() => {
                        conversations.spawn(converse(Arc::clone(&drive), connection));
                    }
                }
            }
        })
    }
}

async fn converse(drive: Arc<dyn Cse>, connection: Connection) {
    let (read, mut write) = tokio::io::split(connection);
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut answer = answer(drive.as_ref(), &line).await.unwrap_or_else(|e| Bytes::from(format!("ERROR {e}"))).to_vec();
        answer.push(b'\n');
        if write.write_all(&answer).await.is_err() || write.flush().await.is_err() {
            return;
        }
    }
}

async fn answer(drive: &dyn Cse, line: &str) -> Result<Bytes> {
    match line.split_once(' ') {
        Some(("GET", key)) => drive.get(&Key::new(key)?).await,
        Some(("LIST", prefix)) => {
            let keys: Vec<_> = drive.list(prefix, None, 100).await?.iter().map(|entry| entry.key.to_string()).collect();
            Ok(keys.join(" ").into())
        }
        _ => Err(skytether_common::Error::invalid("write GET KEY or LIST PREFIX")),
    }
}

fn drive(dir: &Path) -> Arc<Drive> {
    let create = Some(DriveIdentity { id: Uuid::from_u128(7), name: "d".into() });
    Drive::open(&dir.join("drive"), create, DriveOptions::default()).unwrap()
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

/// Opens the doors of `urls` on `drive`; where they are.
async fn open(drive: &Arc<Drive>, context: &ServeContext, urls: &[&str]) -> Vec<Endpoint> {
    let mut doors = skytether_flight_drive::drive_doors();
    doors.register("toy", Arc::new(Toy));
    let mut bound = Vec::new();
    for url in urls {
        let at = url.parse().unwrap();
        let door = Arc::clone(doors.get(&at).unwrap());
        let listener = Listener::bind(&at, door.security(), context).await.unwrap();
        bound.push(listener.endpoint().clone());
        tokio::spawn(door.serve(drive.clone(), listener, context.clone()));
    }
    bound
}

async fn connect(at: &Endpoint, credentials: Credentials) -> Result<Arc<dyn Cse>> {
    let options = ConnectOptions { credentials, ..ConnectOptions::default() };
    skytether_flight_drive::connectors().get(at)?.connect(at, &options).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sibling_door_serves_the_same_drive_next_to_flight() {
    let dir = tempfile::tempdir().unwrap();
    let (drive, context) = (drive(dir.path()), ServeContext::default());
    let at = open(&drive, &context, &["toy://127.0.0.1:0", "127.0.0.1:0"]).await;
    let flight = connect(&at[1], Credentials::default()).await.unwrap();
    flight.apply(vec![Op::Put { key: key("toy/a"), value: "one".into(), expect: Expect::Absent }]).await.unwrap();
    let mut toy = TcpStream::connect(at[0].authority()).await.unwrap();
    toy.write_all(b"LIST toy/\nGET toy/a\nGET toy/b\nPUT\n").await.unwrap();
    toy.shutdown().await.unwrap();
    let mut said = String::new();
    toy.read_to_string(&mut said).await.unwrap();
    let lines: Vec<_> = said.lines().collect();
    assert!(lines.len() == 4 && lines[..2] == ["toy/a", "one"] && lines[2].contains("toy/b") && lines[3].contains("LIST PREFIX"), "{said}");
    // Its port follows the rules of all: no door can listen where the context does not allow it.
    assert!(Listener::bind(&"toy://0.0.0.0:0".parse().unwrap(), Security::Plain, &context).await.unwrap_err().message().contains("--insecure"));
    let refused = connect(&at[0], Credentials::default()).await.unwrap_err();
    assert!(refused.kind() == Kind::Unsupported && refused.message().contains("grpc://, grpc+tls://"), "{refused}");
    context.shutdown.cancel();
}

fn host_identity(dir: &Path) -> Option<(PathBuf, PathBuf)> {
    Some((dir.join("host.pem"), dir.join("host.key")))
}

#[tokio::test(flavor = "multi_thread")]
async fn mutual_tls_drive_admits_hosts_of_its_authority_only() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    pki::init(&ours, &[], &[], false).unwrap();
    pki::init(&theirs, &[], &[], false).unwrap();
    let files = TlsFiles { cert: ours.join("drive.pem"), key: ours.join("drive.key"), client_ca: Some(ours.join("ca.pem")), client_cert_optional: false };
    let context =
        ServeContext { tls: Some(Arc::new(ServerTls::load(files).unwrap())), auth: Arc::new(Gate { tokens: None, required: true }), ..ServeContext::default() };
    let at = open(&drive(dir.path()), &context, &["grpc+tls://127.0.0.1:0"]).await.remove(0);
    let with = |identity| Credentials { tls_ca: Some(ours.join("ca.pem")), identity, ..Credentials::default() };
    let drive = connect(&at, with(host_identity(&ours))).await.unwrap();
    drive.apply(vec![Op::Put { key: key("a"), value: "one".into(), expect: Expect::Absent }]).await.unwrap();
    assert_eq!(drive.get(&key("a")).await.unwrap(), "one");
    for identity in [None, host_identity(&theirs), Some((ours.join("drive.pem"), ours.join("drive.key")))] {
        let refused = connect(&at, with(identity.clone())).await.unwrap_err();
        assert!(refused.kind() == Kind::Unavailable && refused.detail() == Some(&Detail::TlsRefused), "{identity:?}: {refused:#?}");
        assert!(refused.to_string().contains("client certificate"), "{identity:?}: {refused:#?}");
    }
    let plain = Endpoint::new("grpc", at.authority());
    assert_eq!(connect(&plain, Credentials::default()).await.unwrap_err().kind(), Kind::Unavailable);
    // The counter may move only after a client has seen its connection close.
    while context.metrics.counts().failed_greetings < 4 {
        tokio::task::yield_now().await;
    }
    context.shutdown.cancel();
}
