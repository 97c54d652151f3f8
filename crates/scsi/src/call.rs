//! A command while it is carried out: what the modules of the commands work on.

use std::sync::Arc;

use bytes::Bytes;
use skytether_volume::Durability;
use tokio_util::sync::CancellationToken;

use crate::cdb::Cdb;
use crate::command::Reply;
use crate::sense::{Fail, Outcome, Sense};
use crate::target::Nexus;
use crate::unit::{BLOCK, LogicalUnit, Range};

/// A command.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) nexus: &'a Nexus,
    pub(crate) unit: &'a Arc<LogicalUnit>,
    pub(crate) cdb: &'a Cdb,
    pub(crate) data: &'a Bytes,
    /// The bytes that the initiator meant to send, where `data` has those that were taken.
    pub(crate) expected: u64,
    pub(crate) cancel: &'a CancellationToken,
}

impl Call<'_> {
    /// The blocks that the CDB names, which the device has.
    pub(crate) fn range(&self) -> Outcome<Range> {
        let (lba, count) = self.cdb.blocks();
        self.check(lba, count)
    }

    pub(crate) fn check(&self, lba: u64, count: u64) -> Outcome<Range> {
        self.unit.range(lba, count)
    }

    /// The blocks that the CDB names and moves, which are not too many.
    pub(crate) fn transfer(&self) -> Outcome<Range> {
        let (lba, count) = self.cdb.blocks();
        if count > u64::from(self.nexus.target.options.transfer) / BLOCK {
            return Err(Sense::cdb(if self.cdb.len() == 10 {
                7
            } else if self.cdb.len() == 12 {
                6
            } else {
                10
            })
            .into());
        }
        self.check(lba, count)
    }

    /// RDPROTECT, WRPROTECT and VRPROTECT: there is no protection information to check.
    pub(crate) fn unprotected(&self) -> Outcome<()> {
        if self.cdb.u8(1) >> 5 != 0 && self.cdb.len() != 6 {
            return Err(Sense::cdb_bit(1, 7).into());
        }
        Ok(())
    }

    /// By the bit FUA.
    pub(crate) fn durability(&self) -> Durability {
        let forced = self.cdb.len() != 6 && self.cdb.bit(1, 3);
        if forced || !self.unit.state.lock().modes.write_cache() { Durability::Durable } else { Durability::Cached }
    }

    /// Without a bit FUA: only the write cache decides.
    pub(crate) fn durability_of_zeros(&self) -> Durability {
        if self.unit.state.lock().modes.write_cache() { Durability::Cached } else { Durability::Durable }
    }

    /// The part of a parameter list or of blocks that came.
    pub(crate) fn data(&self, len: u64) -> Bytes {
        let len = usize::try_from(len).map_or(self.data.len(), |len| len.min(self.data.len()));
        self.data.slice(..len)
    }
}

/// `data`, no longer than the allocation length says.
pub(crate) fn allocated(data: impl Into<Bytes>, allocation: impl TryInto<usize>) -> Outcome {
    let mut data = data.into();
    data.truncate(allocation.try_into().unwrap_or(usize::MAX));
    Ok(data)
}

/// RESERVATION CONFLICT.
pub(crate) const CONFLICT: Fail = Fail::Status(Reply::RESERVATION_CONFLICT);
