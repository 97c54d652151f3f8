//! Serves a blank drive without an engine over Kinetic, plain and over TLS, until it is interrupted.
//!
//! `cargo run -p skytether-kinetic-server --example serve -- DIRECTORY java 8123 8443` stores below `DIRECTORY`, with
//! the limits of the profile `java` (or `drive`), and makes certificates there. `native` behind the ports permits
//! native programs.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use skytether_device::{Cse, StorageOnly};
use skytether_doors::DriveDoor;
use skytether_kinetic_server::{Kinetic, Options, Profile};
use skytether_kv::KeyValues;
use skytether_transport::{Endpoint, Listener, ServeContext, ServerTls, TlsFiles, pki};
use uuid::Uuid;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [directory, profile, ports @ ..] = words.as_slice() else { return Err("say: DIRECTORY java|drive [PORT TLSPORT] [native]".into()) };
    // As the programs of drives do.
    skytether_common::memory::tune_allocator();
    let (directory, profile) = (PathBuf::from(directory), if profile == "java" { Profile::Java } else { Profile::Drive });
    let certificates = directory.join("pki");
    if !certificates.exists() {
        pki::init(&certificates, &[], &[], false)?;
    }
    let files = TlsFiles { cert: certificates.join("drive.pem"), key: certificates.join("drive.key"), client_ca: None, client_cert_optional: false };
    let context = ServeContext { tls: Some(Arc::new(ServerTls::load(files)?)), ..ServeContext::default() };
    let keys = Arc::new(KeyValues::open(&directory.join("kinetic"), &skytether_kv::Options::default())?);
    let drive: Arc<dyn Cse> = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive"));
    let native_programs = ports.iter().any(|word| word == "native");
    let options = Options { profile, native_programs, directory: Some(directory), ..Options::default() };
    let mut serving = Vec::new();
    for (at, door) in Kinetic::doors(keys, options).into_iter().enumerate() {
        let port = ports.get(at).map_or("0", String::as_str);
        let address = Endpoint::new(door.scheme(), format!("127.0.0.1:{port}"));
        let listener = Listener::bind(&address, door.security(), &context).await?;
        println!("{}", listener.url());
        serving.push(tokio::spawn(door.serve(Arc::clone(&drive), listener, context.clone())));
    }
    tokio::signal::ctrl_c().await?;
    context.shutdown.cancel();
    for door in serving {
        door.await??;
    }
    Ok(())
}
