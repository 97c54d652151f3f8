//! READ CAPACITY.

use bytes::{BufMut, BytesMut};
use skytether_volume::device::LOGICAL;

use crate::call::{Call, allocated};
use crate::sense::{Outcome, Sense};

pub(crate) fn read_capacity(call: &Call<'_>) -> Outcome {
    // PMI and the LOGICAL BLOCK ADDRESS are obsolete in SBC-3. SBC-2: an address needs PMI.
    if !call.cdb.bit(8, 0) && call.cdb.u32(2) != 0 {
        return Err(Sense::cdb(2).into());
    }
    let last = call.unit.blocks.saturating_sub(1);
    let mut out = BytesMut::with_capacity(8);
    // All ones: too many blocks for this command.
    out.put_u32(u32::try_from(last).unwrap_or(u32::MAX));
    out.put_u32(LOGICAL);
    Ok(out.freeze())
}

pub(crate) fn read_capacity16(call: &Call<'_>) -> Outcome {
    if !call.cdb.bit(14, 0) && call.cdb.u64(2) != 0 {
        return Err(Sense::cdb(2).into());
    }
    let mut out = BytesMut::zeroed(32);
    out[..8].copy_from_slice(&call.unit.blocks.saturating_sub(1).to_be_bytes());
    out[8..12].copy_from_slice(&LOGICAL.to_be_bytes());
    // LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    out[13] = (call.nexus.target.options.physical / LOGICAL).trailing_zeros() as u8;
    // LBPME and LBPRZ: thin, and what is unmapped reads as zeros.
    out[14] = 0xC0;
    allocated(out, call.cdb.u32(10) as usize)
}
