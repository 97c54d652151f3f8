//! Serves volumes in memory: `serve ADDR NAME=SIZE... [--secrets FILE]`, for example `serve 127.0.0.1:3260 a=64M b=1G`.
//!
//! It prints the URL of each volume, and ends by SIGINT.
#![allow(clippy::print_stdout, reason = "the URLs are its output")]

use std::sync::Arc;

use skytether_common::{Error, Result};
use skytether_device::{Cse, StorageOnly};
use skytether_doors::DriveDoor;
use skytether_iscsi::{Iscsi, Options, SCHEME, Secrets};
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, VolumeSpec};
use uuid::Uuid;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().ok_or_else(|| Error::invalid("give ADDR NAME=SIZE..."))?;
    let mut volumes: Vec<(String, Arc<dyn BlockDevice>)> = Vec::new();
    let mut options = Options::default();
    while let Some(argument) = arguments.next() {
        if argument == "--secrets" {
            let file = arguments.next().ok_or_else(|| Error::invalid("--secrets needs a file"))?;
            options.secrets = Some(Secrets::read(file.as_ref())?);
            continue;
        }
        let VolumeSpec { name, size } = argument.parse()?;
        volumes.push((name.to_string(), Arc::new(MemoryDevice::new(name.as_str(), size))));
    }
    let door = Iscsi::new(volumes, None, options)?;
    let context = ServeContext::default();
    let listener = Listener::bind(&Endpoint::new(SCHEME, address), Security::Plain, &context).await?;
    for (lun, name) in door.luns() {
        println!("{name} {}/{}/{lun}", listener.url(), door.target_name("memory"));
    }
    let drive: Arc<dyn Cse> = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "memory"));
    let shutdown = context.shutdown.clone();
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        shutdown.cancel();
    });
    door.serve(drive, listener, context).await
}
