//! An object of a device as a file that is read by place.

use std::io;

use skytether_common::Error;
use skytether_formats::Object;
use skytether_offload::ObjectReader;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Reads of threads that may block, carried out on the runtime. They end with the request.
#[derive(Clone)]
pub(crate) struct ReadObject {
    bytes: ObjectReader,
    runtime: Handle,
    deadline: Instant,
    cancel: CancellationToken,
}

impl ReadObject {
    /// Must be made within a runtime.
    pub(crate) fn new(bytes: ObjectReader, deadline: Instant, cancel: CancellationToken) -> Self {
        Self { bytes, runtime: Handle::current(), deadline, cancel }
    }
}

impl Object for ReadObject {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let end = self.len().min(at.saturating_add(into.len() as u64));
        if at >= end {
            return Ok(0);
        }
        let read = self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => Err(Error::unavailable("the query was cancelled")),
                () = sleep_until(self.deadline) => Err(Error::exhausted("the query takes more time than it may")),
                read = self.bytes.read(at..end) => read,
            }
        });
        let bytes = read.map_err(io::Error::other)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}
