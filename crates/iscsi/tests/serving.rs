//! A target that is served for a test.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_device::{Cse, StorageOnly};
use skytether_doors::DriveDoor;
use skytether_iscsi::{Iscsi, Options};
use skytether_transport::{Limits, Listener, ServeContext};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, DeviceInfo, Durability, Extent, Zeros};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The name of the target.
pub(crate) const NAME: &str = "iqn.2024-01.io.skytether:drive-0";

/// The length of each volume in bytes.
pub(crate) const SIZE: u64 = 64 << 20;

/// A door that is open.
pub(crate) struct Serving {
    pub(crate) address: SocketAddr,
    pub(crate) shutdown: CancellationToken,
    pub(crate) ended: JoinHandle<Result<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Serving {
    /// The URL of a logical unit.
    pub(crate) fn url(&self, lun: u8) -> String {
        format!("iscsi://{}/{NAME}/{lun}", self.address)
    }
}

/// Serves two volumes in memory.
pub(crate) async fn serve(options: Options) -> Serving {
    let volume = |name: &str| (name.to_owned(), Arc::new(MemoryDevice::new(name, SIZE)) as Arc<dyn BlockDevice>);
    serve_volumes(vec![volume("a"), volume("b")], options, Limits::default()).await
}

/// Serves `volumes`.
pub(crate) async fn serve_volumes(volumes: Vec<(String, Arc<dyn BlockDevice>)>, options: Options, limits: Limits) -> Serving {
    let door = Iscsi::new(volumes, None, options).unwrap();
    let context = ServeContext { limits, ..ServeContext::default() };
    let listener = Listener::plain(TcpListener::bind("127.0.0.1:0").await.unwrap()).unwrap();
    let address = listener.endpoint().authority().parse().unwrap();
    let drive: Arc<dyn Cse> = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive-0"));
    let shutdown = context.shutdown.clone();
    Serving { address, shutdown, ended: tokio::spawn(door.serve(drive, listener, context)) }
}

/// A device whose reads wait until they are let through.
#[derive(Debug)]
pub(crate) struct Gated {
    inner: MemoryDevice,
    pub(crate) gate: Semaphore,
    /// Reads that have begun.
    pub(crate) begun: Semaphore,
}

impl Gated {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { inner: MemoryDevice::new("gated", SIZE), gate: Semaphore::new(0), begun: Semaphore::new(0) })
    }
}

impl BlockDevice for Gated {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            self.begun.add_permits(1);
            self.gate.acquire().await.unwrap().forget();
            self.inner.read(at, len).await
        }
        .boxed()
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<()>> {
        self.inner.write(at, data, durability)
    }

    fn compare_and_write(&self, at: u64, expected: Bytes, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        self.inner.compare_and_write(at, expected, data, durability)
    }

    fn zero(&self, at: u64, len: u64, how: Zeros, durability: Durability) -> BoxFuture<'_, Result<()>> {
        self.inner.zero(at, len, how, durability)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.flush()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>> {
        self.inner.extents(at, len)
    }
}
