//! A server in this process.

use std::sync::Arc;

use skytether_device::StorageOnly;
use skytether_doors::DriveDoor;
use skytether_nvme_tcp::pdu::Digests;
use skytether_nvme_tcp::{NvmeTcp, Options, SCHEME, nqn_of};
use skytether_transport::{Endpoint, Listener, Security, ServeContext};
use skytether_volume::BlockDevice;
use skytether_volume::memory::MemoryDevice;
use tokio::runtime::Runtime;
use uuid::Uuid;

pub(crate) use crate::host::{Host, Sqe};
use crate::sums::Sums;

/// The drive's identity.
pub(crate) const DRIVE: Uuid = Uuid::from_u128(7);

/// A served door. It ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) context: ServeContext,
    _runtime: Runtime,
}

impl Server {
    /// Serves volumes in memory of these sizes, all different, with EXEC.
    pub(crate) fn of(sizes: &[u64]) -> Self {
        Self::start(sizes, Options::default())
    }

    pub(crate) fn start(sizes: &[u64], options: Options) -> Self {
        let devices = sizes.iter().map(|size| (size.to_string(), Arc::new(MemoryDevice::new(&size.to_string(), *size)) as Arc<dyn BlockDevice>));
        Self::over(devices.collect(), options)
    }

    pub(crate) fn over(volumes: Vec<(String, Arc<dyn BlockDevice>)>, options: Options) -> Self {
        Self::at("127.0.0.1:0", volumes, options)
    }

    pub(crate) fn at(address: &str, volumes: Vec<(String, Arc<dyn BlockDevice>)>, options: Options) -> Self {
        Self::serve(address, NvmeTcp::new(volumes, Some(Arc::new(Sums)), options).unwrap())
    }

    pub(crate) fn serve(address: &str, door: Arc<NvmeTcp>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let context = ServeContext::default();
        let address = runtime.block_on(async {
            let listener = Listener::bind(&Endpoint::new(SCHEME, address), Security::Plain, &context).await.unwrap();
            let address = listener.endpoint().authority().to_owned();
            tokio::spawn(door.serve(Arc::new(StorageOnly::in_memory(DRIVE, "drive")), listener, context.clone()));
            address
        });
        Self { address, context, _runtime: runtime }
    }

    /// A connection that was opened, and is no queue yet.
    pub(crate) fn open(&self, digests: Digests) -> Host {
        Host::open(&self.address, digests)
    }

    /// An admin queue of a controller that is ready, and its number.
    pub(crate) fn admin(&self, digests: Digests) -> (Host, u16) {
        Host::admin(&self.address, &nqn_of(DRIVE), (9, digests, 0))
    }

    /// A controller with one I/O queue.
    pub(crate) fn associate(&self, digests: Digests) -> (Host, Host) {
        self.associate_as(9, digests, 0)
    }

    /// The same of the host `name`, which promises to be heard of within `keep_alive` milliseconds.
    pub(crate) fn associate_as(&self, name: u8, digests: Digests, keep_alive: u32) -> (Host, Host) {
        Host::associate(&self.address, &nqn_of(DRIVE), (name, digests, keep_alive))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.context.shutdown.cancel();
    }
}
