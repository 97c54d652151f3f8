//! A device that an initiator protects from changes.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use skytether_volume::{BlockDevice, DeviceInfo, Durability, Extent, Zeros};

/// Reads from another device, and refuses changes.
#[derive(Debug)]
pub(crate) struct Protected(Arc<dyn BlockDevice>);

impl Protected {
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self(device)
    }

    fn refuse<T: Send + 'static>(&self) -> BoxFuture<'_, Result<T>> {
        let error = Error::conflict(format!("{}: is write protected; ask for no output, or end the protection", self.0.info().name));
        futures::future::ready(Err(error)).boxed()
    }
}

impl BlockDevice for Protected {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { read_only: true, ..self.0.info() }
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        self.0.read(at, len)
    }

    fn write(&self, _: u64, _: Bytes, _: Durability) -> BoxFuture<'_, Result<()>> {
        self.refuse()
    }

    fn compare_and_write(&self, _: u64, _: Bytes, _: Bytes, _: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        self.refuse()
    }

    fn zero(&self, _: u64, _: u64, _: Zeros, _: Durability) -> BoxFuture<'_, Result<()>> {
        self.refuse()
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.0.flush()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>> {
        self.0.extents(at, len)
    }
}
