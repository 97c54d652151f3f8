//! A drive as a blocking store, as the contract of all stores needs it. The tests of `kinetic-server` use it, too.

use std::ops::Range;

use bytes::Bytes;
use skytether_common::{Error, Key, Result};
use skytether_device::Storage;
use skytether_kinetic::KineticDrive;
use skytether_store::{Entry, Op, SliceStore, Usage, Version};
use tokio::runtime::Handle;

/// A drive as a store that blocks. A drive has no links; here a link is a copy, as its callers make one.
#[derive(Debug)]
pub(crate) struct Blocking {
    pub(crate) drive: KineticDrive,
    pub(crate) runtime: Handle,
}

impl Blocking {
    fn copied(&self, op: Op, batch: &[Op]) -> Result<Op> {
        let Op::Link { key, from, len, crc32c, expect } = op else { return Ok(op) };
        if batch.iter().any(|other| *other.key() == from) {
            return Err(Error::invalid("a link from a key that the batch changes"));
        }
        match self.get_expected(&from, len, crc32c)? {
            Some(value) => Ok(Op::Put { key, value, expect }),
            None => Err(Error::conflict("the key to link from has another value")),
        }
    }
}

impl SliceStore for Blocking {
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        let copies = batch.iter().map(|op| self.copied(op.clone(), &batch)).collect::<Result<Vec<_>>>()?;
        self.runtime.block_on(self.drive.apply(copies))
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        self.runtime.block_on(self.drive.get(key))
    }

    fn get_ranges_unverified(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.runtime.block_on(self.drive.get_ranges_unverified(key, ranges))
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        self.runtime.block_on(self.drive.stat(key))
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        self.runtime.block_on(self.drive.list(prefix, after, limit))
    }

    fn usage(&self) -> Result<Usage> {
        self.runtime.block_on(self.drive.usage())
    }
}
