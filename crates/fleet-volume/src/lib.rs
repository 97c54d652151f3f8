//! Volumes over a fleet: extents as copies or shards of an erasure code on several drives.
//!
//! | module | subject |
//! |---|---|
//! | [`backing`] | [`FleetBacking`]: what volumes need of a store, over the drives of a fleet |
//! | [`layout`] | extent records: where the shards of an extent are; how many there are, and their lengths |
//! | `keys` | keys of volumes as keys of records and of shards |
//! | `write`, `read` | a merge of the journal; reads, also without some drives |
//! | `link` | snapshots and clones: shards that drives link |
//! | [`scrub`] | which copies and shards are damaged or missing, and extents that are written again |
//! | `moving` | extents that are written again, off drives that leave |
//! | `collect` | shards that no record names |
//! | `settle` | changes of records whose outcome is unknown |
//!
//! Where bytes flow:
//! - A *record* (header of a volume, extent record) lies on the home drives of its volume
//!   ([`skytether_catalog::volume_records`]).
//! - An *extent* is cut into data shards of whole blocks, with parities. Each lies on another drive, under a key with a
//!   *generation* that is drawn for each write. The commit of the extent record makes it the content of the extent.
//!   Then the shards of the generation before are deleted.
//! - A *read* takes the data shards that the extent record names, and decodes what drives that are down would have had.
//!
//! Invariants:
//! - An extent record is committed after its shards are durable, and names no shard that is not. So a crash leaves the
//!   old extent or the new one, and shards that no record names, which the next opening deletes.
//! - Each commit of a merge has the condition that the header record is the one that this process wrote.
//! - No two shards of an extent are on one drive (I12), and no byte is delivered unverified (I5).
//! - What was merged survives the loss of as many drives as the fleet's redundancy says. With fewer drives than
//!   K + M, a merge has fewer data shards first, and fewer parities only where no drive is left.
//!
//! See also `docs/internals/formats/volume.md`.
#![forbid(unsafe_code)]

pub mod backing;
mod collect;
mod keys;
pub mod layout;
mod link;
mod moving;
mod read;
pub mod scrub;
mod settle;
mod write;

pub use backing::FleetBacking;
pub use collect::Collected;
pub use moving::Moved;
