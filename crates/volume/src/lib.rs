//! Volumes: block devices over a drive's store, and what the doors of block protocols see of them.
//!
//! | module | subject |
//! |---|---|
//! | [`device`] | [`BlockDevice`]: bytes by their place, what is durable when, which places are mapped |
//! | [`exec`] | [`Exec`]: a computation over places of one device, which a door passes on as bytes |
//! | [`memory`] | a device in memory, for tests and models |
//! | [`volumes`] | [`Volumes`]: all volumes of a drive; `NAME=SIZE`, snapshots, removal, scrub |
//! | [`volume`], `reading` | [`Volume`]: reads and writes |
//! | [`snapshot`] | snapshots and their read-only devices |
//! | [`open`] | making, opening, growing, closing |
//! | [`backing`] | [`Backing`]: the few calls of a drive's store that volumes need |
//! | [`record`], [`recovery`], [`files`] | the journal: its bytes, what a crash leaves, its files |
//! | [`header`], [`names`], [`options`] | header records; names, keys and sizes; bounds |
//! | `keys`, `numbers`, `notes` | what is on the drive; numbers of volumes; small values of doors |
//! | [`extents`] | the cache of extents |
//! | [`scrub`] | verification of extents |
//!
//! A door (iSCSI, NVMe/TCP, NBD) knows [`BlockDevice`] and [`Exec`] alone: neither the store nor what EXEC computes.
//!
//! # Where bytes flow
//!
//! - A *volume* is extents of a fixed size, values of the drive's store. An extent that was never written, or was
//!   unmapped, has no key, and reads as zeros.
//! - A *write* is appended to the journal, a row of segment files on the local disk, as records of whole blocks of
//!   4,096 bytes. The index in memory says which block's newest content is in which segment. A write that covers a part
//!   of a block reads the block first; it is appended only if no other write to that block came between.
//! - A *flush* is one `fdatasync` of the segments that have new records, for all callers that wait.
//! - A *merge*, in the background, takes the extents with the oldest records, and puts them into the store as a batch.
//!   A segment is removed when neither it nor an older one holds the newest content of anything.
//! - A *read* looks into the index: content in the journal is read from its file (the system's page cache), all other
//!   content from the store through a bounded cache of extents.
//! - A *snapshot* merges everything, and links all extents under other keys, while new writes go to the journal.
//!
//! # Invariants
//!
//! - What remains of a journal is a suffix of all records. So its replay gives each block its newest content.
//! - What was durable in a segment that is removed is in an extent, or was overwritten by a durable record.
//! - A record is whole or absent after a crash, and so is each block of it.
//! - Each merge has the condition that the header record is the one that this process wrote when it opened the volume.
//!   A process that lost the volume to another one changes nothing more.
//! - Nothing waits without a deadline: a writer for which the journal has no room fails after [`Options::stall`].
//! - No lock is held over a read. Appends are one at a time, over a write to the page cache.
//!
//! See also `docs/internals/formats/volume.md`.
#![forbid(unsafe_code)]

pub mod backing;
pub mod device;
pub mod exec;
pub mod extents;
#[doc(hidden)]
pub mod files;
pub mod header;
mod index;
mod journal;
mod keys;
#[doc(hidden)]
pub mod memory;
mod merge;
pub mod names;
mod notes;
mod numbers;
pub mod open;
pub mod options;
#[doc(hidden)]
pub mod power;
mod reading;
#[doc(hidden)]
pub mod record;
pub mod recovery;
pub mod scrub;
pub mod snapshot;
pub mod volume;
pub mod volumes;

pub use backing::{Backing, StorageBacking};
pub use device::{BlockDevice, DeviceInfo, Durability, Extent, Zeros};
pub use exec::{Exec, ExecLimits};
pub use names::{VolumeName, VolumeSpec};
pub use options::Options;
pub use snapshot::SnapshotDevice;
pub use volume::{Volume, VolumeUsage};
pub use volumes::{VolumeStatus, Volumes};
