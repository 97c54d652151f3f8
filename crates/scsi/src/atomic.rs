//! COMPARE AND WRITE, WRITE ATOMIC and ORWRITE.

use bytes::{Bytes, BytesMut};
use skytether_volume::device::{LOGICAL, PHYSICAL};

use crate::call::Call;
use crate::io::miscompare;
use crate::sense::{Outcome, Sense, code};
use crate::unit::BLOCK;

/// Bytes that ORWRITE changes at a time.
const STEP: usize = 256 << 10;

pub(crate) async fn compare_and_write(call: &Call<'_>) -> Outcome {
    call.unprotected()?;
    let (lba, count) = (call.cdb.u64(2), u64::from(call.cdb.u8(13)));
    let range = call.check(lba, count)?;
    // Twice: what is expected there, and what is written.
    if call.expected != 2 * range.len() || call.data.len() as u64 != call.expected {
        return Err(Sense::cdb(13).into());
    }
    if count == 0 {
        return Ok(Bytes::new());
    }
    let (expected, data) = (call.data.slice(..range.len() as usize), call.data.slice(range.len() as usize..));
    match call.unit.device.compare_and_write(range.at(), expected, data, call.durability()).await? {
        None => Ok(Bytes::new()),
        Some(offset) => Err(miscompare(offset.into())),
    }
}

pub(crate) async fn write_atomic(call: &Call<'_>) -> Outcome {
    call.unprotected()?;
    // ATOMIC BOUNDARY: there are none (MAXIMUM ATOMIC BOUNDARY SIZE is zero).
    let (lba, boundary, count) = (call.cdb.u64(2), call.cdb.u16(10), u64::from(call.cdb.u16(12)));
    let range = call.check(lba, count)?;
    let unit = u64::from(PHYSICAL / LOGICAL);
    if boundary != 0 {
        return Err(Sense::cdb(10).into());
    }
    if lba % unit != 0 {
        return Err(Sense::cdb(2).into());
    }
    if count % unit != 0 || count > u64::from(call.nexus.target.options.atomic) / BLOCK {
        return Err(Sense::cdb(12).into());
    }
    if (call.data.len() as u64) < range.len() {
        // In part is what this command is not about.
        return Err(Sense::illegal(code::INVALID_FIELD_IN_PARAMETERS).into());
    }
    if count > 0 {
        call.unit.device.write(range.at(), call.data(range.len()), call.durability()).await?;
    }
    Ok(Bytes::new())
}

pub(crate) async fn or_write(call: &Call<'_>) -> Outcome {
    call.unprotected()?;
    let range = call.transfer()?;
    let data = call.data(range.len());
    let data = data.slice(..data.len() - data.len() % BLOCK as usize);
    if data.is_empty() {
        return Ok(Bytes::new());
    }
    for (step, data) in data.chunks(STEP).enumerate() {
        let at = range.at() + (step * STEP) as u64;
        // A write may come between; then what is there is read again.
        loop {
            let there = call.unit.device.read(at, data.len() as u32).await?;
            let merged: BytesMut = there.iter().zip(data).map(|(a, b)| a | b).collect();
            if call.unit.device.compare_and_write(at, there, merged.freeze(), call.durability()).await?.is_none() {
                break;
            }
        }
    }
    Ok(Bytes::new())
}
