//! The store of one drive: a flat namespace of immutable, checksummed values.
//!
//! One trait, [`SliceStore`], and three implementations: [`memory::MemoryStore`], [`disk::DiskStore`] and
//! [`fault::FaultStore`], which wraps another and makes it fail on purpose. A [`StoreLayer`] is a store that does some
//! things differently from the one that it wraps.
//!
//! Invariant: a batch of changes is atomic, and durable when it is acknowledged (I6). One contract suite
//! (`contract.rs`) runs against all implementations; a new one must pass it. A store knows nothing of tables, slices or
//! networks.
//!
//! ```
//! use skytether_common::{Key, Kind};
//! use skytether_store::memory::MemoryStore;
//! use skytether_store::{Expect, Op, SliceStore};
//!
//! let (store, key) = (MemoryStore::new(), Key::new("a/b")?);
//! let put = |value: &'static str, expect| vec![Op::Put { key: key.clone(), value: value.into(), expect }];
//! let first = store.apply(put("first", Expect::Absent))?[0];
//! store.apply(put("second", Expect::Version(first)))?;
//!
//! // Another writer that knows the first version only changes nothing.
//! let error = store.apply(put("third", Expect::Version(first))).unwrap_err();
//! assert_eq!((error.kind(), store.get(&key)?), (Kind::Conflict, "second".into()));
//! # Ok::<(), skytether_common::Error>(())
//! ```
//!
//! See also `docs/internals/formats/drive-directory.md`.

pub mod batch;
#[doc(hidden)]
pub mod contract;
pub mod disk;
pub mod fault;
pub mod layer;
pub mod memory;
pub mod ranges;
pub mod row;

use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::{Key, Result, checksum};

pub use layer::StoreLayer;

/// Counts up with every change of a key; never used twice in one store, so a key that was deleted and written again
/// is seen to have changed.
pub type Version = u64;

/// What the writer believes about a key before its change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// Nothing: write whatever is there.
    Any,
    /// There is no such key.
    Absent,
    /// The key has this version.
    Version(Version),
}

/// One change in a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes `value` under `key`.
    Put {
        /// Where.
        key: Key,
        /// What; at most [`MAX_VALUE`] bytes.
        value: Bytes,
        /// On which condition.
        expect: Expect,
    },
    /// Removes `key`; removing what is not there is no error unless a version is expected.
    Delete {
        /// What to remove.
        key: Key,
        /// On which condition.
        expect: Expect,
    },
    /// Changes nothing: a condition on which the other changes of the batch are made.
    Check {
        /// Whose version counts.
        key: Key,
        /// The condition.
        expect: Expect,
    },
    /// Writes the value of `from` under `key` as well: a drive does not copy the bytes for it.
    Link {
        /// Where.
        key: Key,
        /// Whose value; no change of the same batch may be about it.
        from: Key,
        /// The length that it must have.
        len: u64,
        /// The CRC-32C that it must have.
        crc32c: u32,
        /// On which condition.
        expect: Expect,
    },
}

impl Op {
    /// The key that the change is about.
    #[must_use]
    pub fn key(&self) -> &Key {
        match self {
            Op::Put { key, .. } | Op::Delete { key, .. } | Op::Check { key, .. } | Op::Link { key, .. } => key,
        }
    }

    /// On which condition the change is made.
    #[must_use]
    pub fn expect(&self) -> Expect {
        match self {
            Op::Put { expect, .. } | Op::Delete { expect, .. } | Op::Check { expect, .. } | Op::Link { expect, .. } => *expect,
        }
    }
}

/// The largest value that a store takes. Slices stay at or below 1 MiB by default; metadata slices of very
/// wide tables may be larger.
pub const MAX_VALUE: usize = 64 << 20;

/// What a store knows about a key without reading its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its version.
    pub version: Version,
    /// The value's length in bytes.
    pub len: u64,
    /// The value's CRC-32C.
    pub crc32c: u32,
}

/// How much a store holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Number of keys.
    pub keys: u64,
    /// Sum of the values' lengths in bytes.
    pub value_bytes: u64,
    /// Bytes occupied altogether, with the index and what is around it.
    pub stored_bytes: u64,
}

/// A drive's namespace of slices.
///
/// Semantics that every implementation keeps, and `contract::check` tests:
/// - `apply` is atomic: all changes of a batch or none, also across a crash; when it returns, they are durable.
/// - If any expectation of a batch fails, the error is `Conflict`, names the key, and nothing changes.
/// - The same key twice in one batch is `Invalid`, and so is a link from a key that the batch changes. A link from a
///   key without a value is `NotFound`, and from one with another value `Conflict`: nothing changes.
/// - `get` returns exactly the bytes that were put, or `Corrupt` naming the key; it never returns other bytes.
/// - `get_ranges_unverified` returns parts of one version of a value, of the requested lengths. It does not check
///   whether they are the bytes that were put.
/// - Reads see whole batches, and a value that was read stays valid whatever happens to its key.
/// - `list` is in ascending key order.
pub trait SliceStore: Send + Sync + std::fmt::Debug {
    /// Carries out `batch` as one; the new versions of what was put (0 for deletes and checks), in order.
    ///
    /// # Errors
    /// `Conflict`, `Invalid`, `Exhausted` (disk full): nothing has changed. `Unavailable`: where a commit's outcome
    /// is unknown, all may have.
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>>;

    /// The value of `key`, verified.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Unavailable`.
    fn get(&self, key: &Key) -> Result<Bytes>;

    /// The value of `key`, verified, if it is the one of `len` bytes with this CRC-32C; `None` if the key has another
    /// one.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn get_expected(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        let value = self.get(key)?;
        Ok((value.len() as u64 == len && checksum::crc32c(&value) == crc32c).then_some(value))
    }

    /// As [`Self::get_expected`], after parts of the value were found damaged. A store over several drives may
    /// reconstruct it; `None` from a store that has only this copy.
    ///
    /// # Errors
    /// As [`Self::get`].
    fn get_mended(&self, _key: &Key, _len: u64, _crc32c: u32) -> Result<Option<Bytes>> {
        Ok(None)
    }

    /// The bytes of the value of `key` at each of `ranges` (from its start to before its end), in that order, as they
    /// are stored. Damage is *not* found, since the store has a checksum of the whole only: the caller must have
    /// checksums of the parts. The store reads nothing outside of `ranges`.
    ///
    /// # Errors
    /// `NotFound`, `Unavailable`; `Corrupt` where the value is missing or is not as long as it was, as for
    /// [`Self::get`]; `Invalid` where a range ends before it begins or beyond the value.
    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>>;

    /// The bytes of one range as [`Self::get_ranges_unverified`] gives them, but only where the system has them in
    /// memory: threads that must not wait for a disk may call it. `None` else, and where anything is wrong; the other
    /// method then waits, or says what.
    fn get_range_in_memory(&self, _key: &Key, _range: Range<u64>) -> Option<Bytes> {
        None
    }

    /// What is known about `key`, or `None`.
    ///
    /// # Errors
    /// `Unavailable`.
    fn stat(&self, key: &Key) -> Result<Option<Entry>>;

    /// All keys that begin with `prefix` and come after `after`, at most `limit`.
    ///
    /// # Errors
    /// `Unavailable`.
    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>>;

    /// How much is stored.
    ///
    /// # Errors
    /// `Unavailable`.
    fn usage(&self) -> Result<Usage>;

    /// Bytes that are free, and the capacity in bytes; `None` where the store cannot know.
    ///
    /// # Errors
    /// `Unavailable`.
    fn free(&self) -> Result<Option<(u64, u64)>> {
        Ok(None)
    }
}
