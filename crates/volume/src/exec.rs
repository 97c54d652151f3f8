//! EXEC: a computation over places of a device.
//!
//! A door moves bytes: a descriptor in, a result out. What they mean is documented in `docs/block.md`, and known to
//! clients and to the implementation of [`Exec`] alone.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::Result;
use tokio_util::sync::CancellationToken;

use crate::device::BlockDevice;

/// What a door has to know of the bytes that it moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecLimits {
    /// The longest descriptor, in bytes.
    pub descriptor: u32,
    /// The longest result, in bytes.
    pub result: u32,
}

/// Computes over devices. It is stateless: a descriptor says everything, and nothing is kept of it.
pub trait Exec: Send + Sync + Debug {
    /// The lengths of descriptors and results.
    fn limits(&self) -> ExecLimits;

    /// What it can do, as the vendor's page of vital product data (SCSI) and the vendor's log page (NVMe) carry it; at
    /// most 2 KiB.
    fn capabilities(&self) -> Bytes;

    /// Carries out `descriptor` over `device`, and no other. A `cancel`led computation ends soon, with any error. The
    /// result is the form of the documentation, also where the computation fails in a way that the documentation
    /// names.
    ///
    /// # Errors
    /// `Invalid` for a descriptor that is none, `Unsupported` for one of a newer version or an unknown operation, those
    /// of the device, `Exhausted` where it would take more memory or time than it may.
    fn run(&self, device: Arc<dyn BlockDevice>, descriptor: Bytes, cancel: CancellationToken) -> BoxFuture<'_, Result<Bytes>>;
}
