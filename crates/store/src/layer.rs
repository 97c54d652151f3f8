//! Layers of stores, in tower's sense: a store that does some things differently from the one that it wraps. An
//! emulated disk is one, as are those that tests put below a drive, to see, to delay or to refuse what it asks.
//!
//! Every [`StoreLayer`] is a [`SliceStore`]. Whatever it does not override goes on to [`StoreLayer::inner`].

use std::fmt::Debug;
use std::ops::Range;

use bytes::Bytes;
use skytether_common::{Key, Result};

use crate::{Entry, Op, SliceStore, Usage, Version};

/// A layer's own behaviour: before a call is passed on ([`Self::before_apply`], [`Self::before_read`],
/// [`Self::before_stat`]), or instead of it.
pub trait StoreLayer: Send + Sync + Debug {
    /// The store to which calls are passed on.
    ///
    /// # Errors
    /// The answer to a call that must not be passed on.
    fn inner(&self) -> Result<&dyn SliceStore>;
    /// Before [`SliceStore::apply`].
    ///
    /// # Errors
    /// Why it is refused.
    fn before_apply(&self, _batch: &[Op]) -> Result<()> {
        Ok(())
    }
    /// Before a value is read, or parts of it.
    ///
    /// # Errors
    /// Why it is refused.
    fn before_read(&self, _key: &Key) -> Result<()> {
        Ok(())
    }
    /// Before [`SliceStore::stat`].
    ///
    /// # Errors
    /// Why it is refused.
    fn before_stat(&self, _key: &Key) -> Result<()> {
        Ok(())
    }
    /// As [`SliceStore::apply`].
    ///
    /// # Errors
    /// As there.
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.before_apply(&batch)?;
        self.inner()?.apply(batch)
    }
    /// As [`SliceStore::get`].
    ///
    /// # Errors
    /// As there.
    fn get(&self, key: &Key) -> Result<Bytes> {
        self.before_read(key)?;
        self.inner()?.get(key)
    }
    /// As [`SliceStore::get_expected`].
    ///
    /// # Errors
    /// As there.
    fn get_expected(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        self.before_read(key)?;
        self.inner()?.get_expected(key, len, crc32c)
    }
    /// As [`SliceStore::get_mended`].
    ///
    /// # Errors
    /// As there.
    fn get_mended(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        self.before_read(key)?;
        self.inner()?.get_mended(key, len, crc32c)
    }
    /// As [`SliceStore::get_ranges_unverified`].
    ///
    /// # Errors
    /// As there.
    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.before_read(key)?;
        self.inner()?.get_ranges_unverified(key, ranges)
    }
    /// As [`SliceStore::get_range_in_memory`]. It is not passed on by default: what delays or refuses reads must be
    /// asked.
    fn get_range_in_memory(&self, _key: &Key, _range: Range<u64>) -> Option<Bytes> {
        None
    }
    /// As [`SliceStore::stat`].
    ///
    /// # Errors
    /// As there.
    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.before_stat(key)?;
        self.inner()?.stat(key)
    }
}

impl<L: StoreLayer> SliceStore for L {
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        StoreLayer::apply(self, batch)
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        StoreLayer::get(self, key)
    }

    fn get_expected(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        StoreLayer::get_expected(self, key, len, crc32c)
    }

    fn get_mended(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        StoreLayer::get_mended(self, key, len, crc32c)
    }

    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        StoreLayer::get_ranges_unverified(self, key, ranges)
    }

    fn get_range_in_memory(&self, key: &Key, range: Range<u64>) -> Option<Bytes> {
        StoreLayer::get_range_in_memory(self, key, range)
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        StoreLayer::stat(self, key)
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.inner()?.list(prefix, after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.inner()?.usage()
    }

    fn free(&self) -> Result<Option<(u64, u64)>> {
        self.inner()?.free()
    }
}
