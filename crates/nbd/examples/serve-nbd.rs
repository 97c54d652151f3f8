//! Serves volumes in memory over NBD until it is interrupted.
//!
//! `cargo run -p skytether-nbd --example serve-nbd -- 127.0.0.1:10809 first=64M second=1G`

use std::error::Error;
use std::sync::Arc;

use skytether_device::{Cse, StorageOnly};
use skytether_doors::DriveDoor;
use skytether_nbd::{Nbd, Options, SCHEME};
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, VolumeSpec};
use uuid::Uuid;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, volumes @ ..] = words.as_slice() else { return Err("say: ADDRESS NAME=SIZE...".into()) };
    let mut devices: Vec<(String, Arc<dyn BlockDevice>)> = Vec::new();
    for volume in volumes {
        let VolumeSpec { name, size } = volume.parse()?;
        devices.push((name.to_string(), Arc::new(MemoryDevice::new(name.as_str(), size))));
    }
    let context = ServeContext::default();
    let listener = Listener::bind(&Endpoint::new(SCHEME, address.as_str()), Security::Plain, &context).await?;
    println!("{}", listener.url());
    let drive: Arc<dyn Cse> = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive"));
    let serving = tokio::spawn(Nbd::new(devices, Options::default())?.serve(drive, listener, context.clone()));
    tokio::signal::ctrl_c().await?;
    context.shutdown.cancel();
    serving.await??;
    Ok(())
}
