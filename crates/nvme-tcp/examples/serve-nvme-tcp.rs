//! Serves volumes in memory over NVMe/TCP until it is interrupted.
//!
//! `cargo run -p skytether-nvme-tcp --example serve-nvme-tcp -- 127.0.0.1:4420 first=64M second=1G`
//!
//! EXEC answers the CRC-32C of places: its descriptor is a row of pairs of numbers, a first byte and a length of 64
//! bits each; its result has 4 bytes for each pair. Numbers are little-endian.

use std::error::Error;
use std::sync::Arc;

use skytether_device::{Cse, StorageOnly};
use skytether_doors::DriveDoor;
use skytether_nvme_tcp::{NvmeTcp, Options, SCHEME, nqn_of};
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, VolumeSpec};
use uuid::Uuid;

#[path = "../tests/sums.rs"]
mod sums;

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
    let drive: Arc<dyn Cse> = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive"));
    println!("{} {}", listener.url(), nqn_of(drive.info().id));
    let door = NvmeTcp::new(devices, Some(Arc::new(sums::Sums)), Options::default())?;
    let serving = tokio::spawn(door.serve(drive, listener, context.clone()));
    tokio::signal::ctrl_c().await?;
    context.shutdown.cancel();
    serving.await??;
    Ok(())
}
