//! Bounds of volumes.

use std::time::Duration;

use skytether_common::{Error, Result};

use crate::header::EXTENTS;
use crate::names::VolumeName;
use crate::record::MAX_DATA;

/// How volumes work. The defaults suit a drive with a gigabyte of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Bytes of an extent of volumes that are made; those that are there keep theirs.
    pub extent: u32,
    /// The most bytes that the journal of one volume takes on the local disk, and a quarter more for files to be used
    /// again. Writers wait where it is full. What is overwritten in the journal is never merged: twice the bytes that
    /// clients write again and again are a good size.
    pub journal_bytes: u64,
    /// Bytes of one file of the journal, at which the next one begins.
    pub segment_bytes: u64,
    /// The most bytes of extents that the devices of a drive keep in memory, all together.
    pub cache_bytes: u64,
    /// The most extents of one volume that the journal has something of; an eighth of them is for zeros alone. Each
    /// takes some 100 bytes of memory, and each block of 4,096 bytes in the journal 40.
    pub dirty_extents: usize,
    /// The most bytes of extents that are merged at a time.
    pub merge_bytes: u64,
    /// After this time without a write, what the journal holds is merged.
    pub idle: Duration,
    /// How long a write waits for room before it fails: less than the 30 s after which Linux resets a SCSI disk.
    pub stall: Duration,
    /// Volumes that are opened also where the journal with their last writes is not here, or is damaged. What is only
    /// there is lost. A journal that can be read is used all the same.
    pub discard_journal: Vec<VolumeName>,
    /// Whether a flush merges what it covers, so that it is durable in the store as well, and not in the journal alone.
    /// For a store that survives the loss of a disk, where the journal does not.
    pub flush_merges: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            extent: 256 << 10,
            journal_bytes: 4 << 30,
            segment_bytes: 64 << 20,
            cache_bytes: 256 << 20,
            dirty_extents: 1 << 16,
            merge_bytes: 8 << 20,
            idle: Duration::from_secs(2),
            stall: Duration::from_secs(25),
            discard_journal: Vec::new(),
            flush_merges: false,
        }
    }
}

impl Options {
    /// `Invalid` for values that can't work.
    ///
    /// # Errors
    /// `Invalid`, naming the value.
    pub fn check(&self) -> Result<()> {
        let record = MAX_DATA as u64 + 8192;
        let wrong = |what: String| Err(Error::invalid(what));
        if !self.extent.is_power_of_two() || !EXTENTS.contains(&self.extent) {
            return wrong(format!("an extent of {} bytes is not possible: use a power of two from 4096 to 1048576", self.extent));
        }
        if self.segment_bytes < record || self.segment_bytes > 1 << 30 {
            return wrong(format!("a journal file of {} bytes is not possible: use {record} to 1 GiB", self.segment_bytes));
        }
        if self.journal_bytes < 4 * self.segment_bytes {
            return wrong(format!("a journal of {} bytes is not possible: use at least four files of {}", self.journal_bytes, self.segment_bytes));
        }
        if self.dirty_extents < 2 * MAX_DATA / EXTENTS.start().to_owned() as usize {
            return wrong(format!("{} extents in the journal are too few: use at least 512", self.dirty_extents));
        }
        Ok(())
    }
}
