//! A store that does something before it passes on what it is asked: what tests put below a drive, to see, to hold up or to refuse what it wants.

use std::fmt::Debug;
use std::ops::Range;

use bytes::Bytes;
use skytether_common::{Key, Result};

use crate::{Entry, Op, SliceStore, Usage, Version};

/// What is done before; an error is the answer then, and nothing is passed on. Who implements it is a [`SliceStore`].
pub trait Before: Send + Sync + Debug {
    /// The store that is asked then, if it is there.
    ///
    /// # Errors
    /// Why it is not.
    fn behind(&self) -> Result<&dyn SliceStore>;
    /// Before [`SliceStore::apply`].
    ///
    /// # Errors
    /// Why it is refused.
    fn applies(&self, _batch: &[Op]) -> Result<()> {
        Ok(())
    }
    /// Before a value is read, or parts of it.
    ///
    /// # Errors
    /// Why it is refused.
    fn reads(&self, _key: &Key) -> Result<()> {
        Ok(())
    }
    /// Before [`SliceStore::stat`].
    ///
    /// # Errors
    /// Why it is refused.
    fn looks(&self, _key: &Key) -> Result<()> {
        Ok(())
    }
}

impl<B: Before> SliceStore for B {
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        self.applies(&batch)?;
        self.behind()?.apply(batch)
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        self.reads(key)?;
        self.behind()?.get(key)
    }

    fn get_expected(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        self.reads(key)?;
        self.behind()?.get_expected(key, len, crc32c)
    }

    fn get_mended(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        self.reads(key)?;
        self.behind()?.get_mended(key, len, crc32c)
    }

    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.reads(key)?;
        self.behind()?.get_ranges_unverified(key, ranges)
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.looks(key)?;
        self.behind()?.stat(key)
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.behind()?.list(prefix, after, limit)
    }

    fn usage(&self) -> Result<Usage> {
        self.behind()?.usage()
    }

    fn free(&self) -> Result<Option<(u64, u64)>> {
        self.behind()?.free()
    }
}
