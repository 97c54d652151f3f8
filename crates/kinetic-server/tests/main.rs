//! The server from outside, by the client of crate `kinetic`. Java and Python clients are tested in
//! `python/tests/kinetic`.

#[path = "../../kinetic/tests/simulator/blocking.rs"]
mod blocking;
mod connections;
mod identities;
mod limits;
mod listing;
mod logs;
mod media;
mod native;
mod peers;
mod pins;
mod programs;
mod queries;
mod raw;
mod receipt;
mod rights;
mod slices;
mod store;
mod timing;
mod wasm;
mod watch;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use skytether_device::{Cse, StorageOnly};
use skytether_doors::{ConnectOptions, DriveDoor};
use skytether_kinetic::{ClientOptions, Connection, Put};
use skytether_kinetic_server::{Kinetic, Options, Profile};
use skytether_kv::KeyValues;
use skytether_store::SliceStore;
use skytether_store::memory::MemoryStore;
use skytether_transport::{Credentials, Endpoint, Gate, Limits, Listener, ServeContext, ServerTls, TlsFiles, pki};
use uuid::Uuid;

/// A drive that listens on loopback, plain and with TLS. It ends with the test's runtime.
pub(crate) struct Served {
    pub(crate) plain: Endpoint,
    pub(crate) tls: Endpoint,
    /// Trusts the drive's certificate.
    pub(crate) options: Arc<ClientOptions>,
    /// The drive's own slices.
    pub(crate) slices: Arc<MemoryStore>,
    pub(crate) keys: Arc<KeyValues>,
}

/// Serves a blank drive with certificates below `dir`.
pub(crate) async fn serve(dir: &Path, profile: Profile) -> Served {
    serve_with(dir, profile, false).await
}

/// As [`serve`]; the server may demand authentication.
pub(crate) async fn serve_with(dir: &Path, profile: Profile, required: bool) -> Served {
    serve_as(dir, Options { profile, ..Options::default() }, required).await
}

/// As [`serve_with`], with any options.
pub(crate) async fn serve_as(dir: &Path, options: Options, required: bool) -> Served {
    serve_over(dir, KeyValues::in_memory(), options, required).await
}

/// As [`serve_as`], with the keys of any store.
pub(crate) async fn serve_over(dir: &Path, keys: KeyValues, options: Options, required: bool) -> Served {
    let certificates = dir.join("pki");
    pki::init(&certificates, &[], &[], true).unwrap();
    let file = |name: &str| certificates.join(name);
    let files = TlsFiles { cert: file("drive.pem"), key: file("drive.key"), client_ca: None, client_cert_optional: false };
    let limits = Limits { first_call_time: Duration::from_secs(2), ..Limits::default() };
    let context = ServeContext {
        tls: Some(Arc::new(ServerTls::load(files).unwrap())),
        auth: Arc::new(Gate { tokens: None, required }),
        limits,
        ..ServeContext::default()
    };
    let credentials = Credentials { tls_ca: Some(file("ca.pem")), ..Credentials::default() };
    let connect = ConnectOptions { credentials, ..ConnectOptions::default() };
    let (keys, slices) = (Arc::new(keys), Arc::new(MemoryStore::new()));
    let store: Arc<dyn SliceStore> = slices.clone();
    let drive: Arc<dyn Cse> = Arc::new(StorageOnly::new(store, Uuid::from_u128(7), "drive-7"));
    let mut at = Vec::new();
    for door in Kinetic::doors(Arc::clone(&keys), Options { connect: connect.clone(), ..options.clone() }) {
        let listener = Listener::bind(&Endpoint::new(door.scheme(), "127.0.0.1:0"), door.security(), &context).await.unwrap();
        at.push(listener.endpoint().clone());
        tokio::spawn(door.serve(Arc::clone(&drive), listener, context.clone()));
    }
    let (tls, plain) = (at.pop().unwrap(), at.pop().unwrap());
    Served { plain, tls, options: Arc::new(ClientOptions { connect, ..ClientOptions::default() }), slices, keys }
}

pub(crate) async fn open(at: &Endpoint, options: &Arc<ClientOptions>) -> Connection {
    Connection::open(at, Arc::clone(options)).await.unwrap()
}

pub(crate) fn put(key: &'static str, value: &'static str) -> Put {
    Put::new(Bytes::from_static(key.as_bytes()), Bytes::from_static(value.as_bytes()), None, Bytes::from_static(b"v1"))
}
