//! UNMAP, WRITE SAME and GET LBA STATUS.

use bytes::{BufMut, Bytes, BytesMut};
use skytether_volume::Zeros;

use crate::call::{Call, allocated};
use crate::cdb::{be16, be32, be64};
use crate::sense::{Outcome, Sense, code};
use crate::unit::{BLOCK, Range};

/// MAXIMUM UNMAP LBA COUNT: as many as there are.
pub(crate) const UNMAP_BLOCKS: u32 = u32::MAX;
/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
pub(crate) const UNMAP_DESCRIPTORS: u32 = 1024;
/// MAXIMUM WRITE SAME LENGTH: what both CDBs can say, 32 MiB. Each block is written where the pattern is not zeros.
pub(crate) const WRITE_SAME_BLOCKS: u64 = 65_535;
/// Bytes that WRITE SAME writes at a time.
const STEP: u64 = 1 << 20;
/// How many extents GET LBA STATUS reports at most.
const STATUSES: usize = 4096;

pub(crate) async fn unmap(call: &Call<'_>) -> Outcome {
    // ANCHOR.
    let how = if call.cdb.bit(1, 0) { Zeros::Mapped } else { Zeros::Unmapped };
    let length = usize::from(call.cdb.u16(7));
    if length == 0 {
        return Ok(Bytes::new());
    }
    // Shorter lists than the header, and lists that the initiator did not send.
    if length < 8 || call.data.len() < length {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    let data = &call.data[..length];
    let descriptors = usize::from(be16(data, 2));
    if descriptors % 16 != 0 {
        return Err(Sense::parameter(2).into());
    }
    if usize::from(be16(data, 0)) + 2 > length || descriptors + 8 > length {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    if descriptors / 16 > UNMAP_DESCRIPTORS as usize {
        return Err(Sense::parameter(2).into());
    }
    // All are checked before the first is carried out.
    let ranges = data[8..8 + descriptors].chunks(16).map(|descriptor| call.check(be64(descriptor, 0), be32(descriptor, 8).into()));
    for range in ranges.collect::<Outcome<Vec<Range>>>()? {
        if range.count > 0 {
            call.unit.device.zero(range.at(), range.len(), how, call.durability_of_zeros()).await?;
        }
    }
    Ok(Bytes::new())
}

pub(crate) async fn write_same(call: &Call<'_>) -> Outcome {
    call.unprotected()?;
    let cdb = call.cdb;
    let (anchor, unmap, none) = (cdb.bit(1, 4), cdb.bit(1, 3), cdb.len() == 16 && cdb.bit(1, 0));
    // ANCHOR is about unmapping (SBC-3, table 134).
    if anchor && !unmap {
        return Err(Sense::cdb_bit(1, 4).into());
    }
    let (lba, count) = cdb.blocks();
    let range = call.check(lba, count)?;
    // WSNZ says that zero is no number of blocks.
    if count == 0 || count > WRITE_SAME_BLOCKS {
        return Err(Sense::cdb(if cdb.len() == 10 { 7 } else { 10 }).into());
    }
    if !none && call.expected != BLOCK {
        return Err(Sense::cdb(0).into());
    }
    let block = if none { Bytes::from_static(&[0; BLOCK as usize]) } else { call.data(BLOCK) };
    if (block.len() as u64) < BLOCK {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    let durability = call.durability_of_zeros();
    if block.iter().all(|&byte| byte == 0) {
        // Without UNMAP the blocks are to be there afterwards.
        let how = if unmap && !anchor { Zeros::Unmapped } else { Zeros::Mapped };
        call.unit.device.zero(range.at(), range.len(), how, durability).await?;
        return Ok(Bytes::new());
    }
    // What is not zeros can't be unmapped, since that reads as zeros: it is written.
    let step = Bytes::from(block.repeat((range.len().min(STEP) / BLOCK) as usize));
    let (mut at, end) = (range.at(), range.at() + range.len());
    while at < end {
        let len = STEP.min(end - at);
        call.unit.device.write(at, step.slice(..len as usize), durability).await?;
        at += len;
    }
    Ok(Bytes::new())
}

pub(crate) async fn get_lba_status(call: &Call<'_>) -> Outcome {
    let lba = call.cdb.u64(2);
    let allocation = call.cdb.u32(10) as usize;
    // There has to be a block to tell of.
    call.check(lba.min(u64::MAX - 1), 1)?;
    let range = call.check(lba, call.unit.blocks - lba)?;
    let mut out = BytesMut::zeroed(8);
    // Each entry takes 16 bytes; one is always looked for, so that the length is right.
    let most = (allocation.saturating_sub(8) / 16).clamp(1, STATUSES);
    'extents: for extent in call.unit.device.extents(range.at(), range.len()).await? {
        let (mut lba, mut left) = (extent.at / BLOCK, extent.len / BLOCK);
        while left > 0 {
            if out.len() >= 8 + 16 * most {
                break 'extents;
            }
            let count = left.min(u32::MAX.into());
            out.put_u64(lba);
            out.put_u32(count as u32);
            // Mapped, or deallocated.
            out.put_u32(if extent.mapped { 0 } else { 0x0100_0000 });
            (lba, left) = (lba + count, left - count);
        }
    }
    let len = out.len() as u32 - 4;
    out[..4].copy_from_slice(&len.to_be_bytes());
    allocated(out, allocation)
}
