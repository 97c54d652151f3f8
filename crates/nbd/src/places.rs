//! Any bytes of a device: places and lengths that are no multiples of its logical block.
//!
//! Clients that ask for block sizes keep to them. Others (`dd bs=1` by way of FUSE, shells) need this.

use bytes::{Bytes, BytesMut};
use skytether_common::{Error, Result};
use skytether_volume::device::LOGICAL;
use skytether_volume::{BlockDevice, Durability, Zeros};

const BLOCK: u64 = LOGICAL as u64;

/// How often a block is compared and written, when others write to it at the same time, before the request fails.
const ATTEMPTS: usize = 1000;

/// The whole blocks around a range: their first byte and their length.
pub(crate) fn around(at: u64, len: u64) -> (u64, u64) {
    let from = at - at % BLOCK;
    (from, (at + len).next_multiple_of(BLOCK) - from)
}

/// The `len` bytes at `at`, which are within the device.
pub(crate) async fn read(device: &dyn BlockDevice, at: u64, len: u32) -> Result<Bytes> {
    let (from, around) = around(at, len.into());
    // At most two blocks more than 32 MiB.
    let bytes = device.read(from, around as u32).await?;
    let skipped = (at - from) as usize;
    Ok(bytes.slice(skipped..skipped + len as usize))
}

/// Writes `data` at `at`.
pub(crate) async fn write(device: &dyn BlockDevice, at: u64, mut data: Bytes, durability: Durability) -> Result<()> {
    let head = to_boundary(at, data.len() as u64);
    if head > 0 {
        let edge = data.split_to(head as usize);
        patch(device, at, &edge, durability).await?;
    }
    let whole = data.len() - data.len() % LOGICAL as usize;
    let tail = data.split_off(whole);
    if !data.is_empty() {
        device.write(at + head, data, durability).await?;
    }
    if tail.is_empty() { Ok(()) } else { patch(device, at + head + whole as u64, &tail, durability).await }
}

/// Makes the `len` bytes at `at` zeros.
pub(crate) async fn zero(device: &dyn BlockDevice, at: u64, len: u64, how: Zeros, durability: Durability) -> Result<()> {
    let zeros = [0; LOGICAL as usize];
    let head = to_boundary(at, len);
    if head > 0 {
        patch(device, at, &zeros[..head as usize], durability).await?;
    }
    let (at, len) = (at + head, len - head);
    let tail = len % BLOCK;
    if len > tail {
        device.zero(at, len - tail, how, durability).await?;
    }
    if tail == 0 { Ok(()) } else { patch(device, at + len - tail, &zeros[..tail as usize], durability).await }
}

/// How many of `len` bytes at `at` come before the first boundary of a block.
fn to_boundary(at: u64, len: u64) -> u64 {
    (at.next_multiple_of(BLOCK) - at).min(len)
}

/// Changes bytes within one block. Other changes of the block are kept, also those that come at the same time.
async fn patch(device: &dyn BlockDevice, at: u64, data: &[u8], durability: Durability) -> Result<()> {
    let from = at - at % BLOCK;
    let within = (at - from) as usize..(at - from) as usize + data.len();
    for _ in 0..ATTEMPTS {
        let old = device.read(from, LOGICAL).await?;
        let mut new = BytesMut::from(&old[..]);
        new[within.clone()].copy_from_slice(data);
        if device.compare_and_write(from, old, new.freeze(), durability).await?.is_none() {
            return Ok(());
        }
    }
    Err(Error::unavailable(format!("{}: the block at {from} changes all the time; write whole blocks", device.info().name)))
}
