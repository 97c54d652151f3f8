//! An [`Exec`] for tests: the CRC-32C of places.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use skytether_volume::{BlockDevice, Exec, ExecLimits};
use tokio_util::sync::CancellationToken;

/// The descriptor is a row of pairs: first byte and length, 64 bits each. The result has 32 bits for each. The pair of
/// zeros waits until it is cancelled.
#[derive(Debug)]
pub(crate) struct Sums;

impl Exec for Sums {
    fn limits(&self) -> ExecLimits {
        ExecLimits { descriptor: 64 << 10, result: 16 << 10 }
    }

    fn capabilities(&self) -> Bytes {
        Bytes::from_static(b"sums of places\0\0")
    }

    fn run(&self, device: Arc<dyn BlockDevice>, descriptor: Bytes, cancel: CancellationToken) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            if descriptor.is_empty() || !descriptor.len().is_multiple_of(16) {
                return Err(Error::invalid("the descriptor is no row of places"));
            }
            let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            let mut sums = BytesMut::new();
            for pair in descriptor.chunks_exact(16) {
                let (mut at, mut len) = (number(&pair[..8]), number(&pair[8..]));
                if (at, len) == (0, 0) {
                    cancel.cancelled().await;
                    return Err(Error::unavailable("the computation was cancelled"));
                }
                let mut sum = 0;
                while len > 0 {
                    let piece = len.min(1 << 20);
                    sum = crc32c::crc32c_append(sum, &device.read(at, piece as u32).await?);
                    (at, len) = (at + piece, len - piece);
                }
                sums.put_u32_le(sum);
            }
            Ok(sums.freeze())
        }
        .boxed()
    }
}
