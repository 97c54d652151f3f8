//! A block device: what all block protocols read and write.

use std::fmt::Debug;

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use uuid::Uuid;

/// Bytes that are written whole or not at all, wherever they begin at a multiple of it: the physical block.
pub const PHYSICAL: u32 = 4096;

/// The logical block, in bytes: the unit in which clients count. Linux mounts images of this unit by loop devices, too.
pub const LOGICAL: u32 = 512;

/// The most bytes that [`BlockDevice::compare_and_write`] takes; more are `Invalid`. Volumes write them as one record
/// of their journal, of at most a MiB, also where they begin and end within physical blocks.
pub const COMPARE_MOST: u32 = (1 << 20) - PHYSICAL;

/// What a device says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// By which the operator knows it.
    pub name: String,
    /// Given once, when the volume is made. Clients recognise the device by it on every path.
    pub id: Uuid,
    /// Bytes; a multiple of [`PHYSICAL`].
    pub size: u64,
    /// Bytes of the unit in which places are mapped; a power of two, at least [`PHYSICAL`].
    pub extent: u64,
    /// Whether writes are refused: a snapshot, for example.
    pub read_only: bool,
}

/// When a change is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Once later reads see it. It survives the end of the process only by chance; [`BlockDevice::flush`] makes it
    /// durable.
    #[default]
    Cached,
    /// Once it survives a loss of power (force unit access).
    Durable,
}

/// How a range becomes zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeros {
    /// The places become unmapped where that is possible; they read as zeros either way.
    Unmapped,
    /// The places stay mapped, so that later writes there do not fail for want of space.
    Mapped,
}

/// A range of a device that is mapped as a whole, or not at all. Unmapped places read as zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte.
    pub at: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Whether something was written there.
    pub mapped: bool,
}

/// A device of numbered bytes.
///
/// Semantics that every implementation keeps:
/// - Places and lengths are multiples of [`LOGICAL`]; others are `Invalid`, as are ranges beyond the end.
/// - A physical block that a write covers whole is written whole or not at all, also across a loss of power. A read
///   sees all of a write to one physical block, or nothing of it.
/// - A read sees every write that was acknowledged before it began.
/// - A call that is dropped may have been carried out.
/// - No call holds more memory than a small multiple of its data; implementations bound what all calls together hold.
///
/// Errors: `Invalid` for places, `Conflict` for a change of a read-only device, `Exhausted` where the disk is full,
/// `Corrupt` for damage, which names the place, `Unavailable` where the storage fails.
pub trait BlockDevice: Send + Sync + Debug {
    /// What it says of itself. Cheap.
    fn info(&self) -> DeviceInfo;

    /// The `len` bytes at `at`.
    ///
    /// # Errors
    /// As the trait says.
    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>>;

    /// Writes `data` at `at`.
    ///
    /// # Errors
    /// As the trait says. What was written of physical blocks then is unknown, each of them is old or new.
    fn write(&self, at: u64, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<()>>;

    /// Writes `data` at `at` if the bytes there are `expected`, of the same length. `None` if it was written, or the
    /// offset of the first byte that differs. It is one step that no other write to the range comes between. At most
    /// [`COMPARE_MOST`] bytes.
    ///
    /// # Errors
    /// As the trait says.
    fn compare_and_write(&self, at: u64, expected: Bytes, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<Option<u32>>>;

    /// Makes the `len` bytes at `at` zeros. `len` may be that of the device.
    ///
    /// # Errors
    /// As the trait says.
    fn zero(&self, at: u64, len: u64, how: Zeros, durability: Durability) -> BoxFuture<'_, Result<()>>;

    /// Makes all that was acknowledged durable.
    ///
    /// # Errors
    /// `Unavailable` where it is unknown what is durable.
    fn flush(&self) -> BoxFuture<'_, Result<()>>;

    /// Which places of the `len` bytes at `at` are mapped, in their order, without gaps; neighbours differ. The list
    /// may end before the range does, after 1,024 extents at the earliest.
    ///
    /// # Errors
    /// As the trait says.
    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>>;

    /// Whether doors can keep notes with the device.
    fn keeps_notes(&self) -> bool {
        false
    }

    /// The small value that a door keeps with the device under a name; `None` where there is none.
    ///
    /// # Errors
    /// `Unsupported` where the device keeps none; those of the storage.
    fn note<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>>> {
        Box::pin(async move { Err(no_notes(&self.info())) })
    }

    /// Keeps `note` under a name in the place of the one before, durably; nothing of it with `None`. A note goes with
    /// its device, and not into snapshots and clones.
    ///
    /// # Errors
    /// As for [`Self::note`].
    fn keep_note<'a>(&'a self, _name: &'a str, _note: Option<Bytes>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { Err(no_notes(&self.info())) })
    }
}

fn no_notes(of: &DeviceInfo) -> Error {
    Error::unsupported(format!("{} keeps no notes of doors", of.name))
}
