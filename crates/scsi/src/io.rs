//! READ, WRITE, WRITE AND VERIFY, VERIFY, PRE-FETCH and SYNCHRONIZE CACHE.

use bytes::Bytes;
use skytether_volume::Durability;

use crate::call::Call;
use crate::sense::{Fail, Key, Outcome, Sense, code};
use crate::unit::{BLOCK, Range};

/// Bytes that are read at a time where they are only looked at.
const STEP: u64 = 1 << 20;

pub(crate) async fn read(call: &Call<'_>) -> Outcome {
    call.unprotected()?;
    let range = call.transfer()?;
    if range.count == 0 {
        return Ok(Bytes::new());
    }
    // Force unit access: the medium has what the initiator reads.
    if call.cdb.len() != 6 && call.cdb.bit(1, 3) {
        call.unit.device.flush().await?;
    }
    Ok(call.unit.device.read(range.at(), range.len() as u32).await?)
}

pub(crate) async fn write(call: &Call<'_>) -> Outcome {
    call.unprotected()?;
    let range = call.transfer()?;
    put(call, range, call.durability()).await?;
    Ok(Bytes::new())
}

/// Writes the blocks that came. An initiator may expect to send less than the CDB says.
async fn put(call: &Call<'_>, range: Range, durability: Durability) -> Outcome<Bytes> {
    let data = call.data(range.len());
    let data = data.slice(..data.len() - data.len() % BLOCK as usize);
    if !data.is_empty() {
        call.unit.device.write(range.at(), data.clone(), durability).await?;
    }
    Ok(data)
}

pub(crate) async fn write_and_verify(call: &Call<'_>) -> Outcome {
    call.unprotected()?;
    let check = call.cdb.u8(1) >> 1 & 3;
    if check > 1 {
        return Err(Sense::cdb_bit(1, 2).into());
    }
    let range = call.transfer()?;
    let data = put(call, range, Durability::Durable).await?;
    compare(call, range.at(), &data).await?;
    Ok(Bytes::new())
}

pub(crate) async fn verify(call: &Call<'_>) -> Outcome {
    call.unprotected()?;
    match call.cdb.u8(1) >> 1 & 3 {
        0 => {
            let range = call.range()?;
            // The blocks can be read: that is all to verify.
            let (mut at, end) = (range.at(), range.at() + range.len());
            while at < end {
                let len = STEP.min(end - at);
                call.unit.device.read(at, len as u32).await?;
                at += len;
            }
        }
        1 => {
            let range = call.transfer()?;
            let data = call.data(range.len());
            compare(call, range.at(), &data).await?;
        }
        3 => {
            let range = call.range()?;
            let block = call.data(BLOCK);
            if range.count > 0 && (block.len() as u64) < BLOCK {
                return Err(Sense::illegal(code::INVALID_FIELD_IN_PARAMETERS).into());
            }
            same(call, range, &block).await?;
        }
        _ => return Err(Sense::cdb_bit(1, 2).into()),
    }
    Ok(Bytes::new())
}

/// MISCOMPARE, with the offset of the first byte that differs.
pub(crate) fn miscompare(offset: u64) -> Fail {
    Sense::new(Key::Miscompare, code::MISCOMPARE).information(offset).into()
}

/// Compares the bytes at `at` with `data`.
async fn compare(call: &Call<'_>, at: u64, data: &Bytes) -> Outcome<()> {
    // What is read has whole blocks.
    let whole = data.len() - data.len() % BLOCK as usize;
    for (step, expected) in data[..whole].chunks(STEP as usize).enumerate() {
        let offset = step as u64 * STEP;
        let there = call.unit.device.read(at + offset, expected.len() as u32).await?;
        if there[..] != *expected {
            let differs = there.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(0);
            return Err(miscompare(offset + differs as u64));
        }
    }
    Ok(())
}

/// Compares each block of the range with one.
async fn same(call: &Call<'_>, range: Range, block: &[u8]) -> Outcome<()> {
    let (mut at, end) = (range.at(), range.at() + range.len());
    while at < end {
        let len = STEP.min(end - at);
        let there = call.unit.device.read(at, len as u32).await?;
        for found in there.chunks(BLOCK as usize) {
            if found != block {
                let differs = found.iter().zip(block).position(|(a, b)| a != b).unwrap_or(0);
                return Err(miscompare(differs as u64));
            }
        }
        at += len;
    }
    Ok(())
}

pub(crate) async fn prefetch(call: &Call<'_>) -> Outcome {
    // No block is read ahead: to be told that they did not fit would be CONDITION MET's opposite, and GOOD says so.
    call.range()?;
    Ok(Bytes::new())
}

pub(crate) async fn synchronize_cache(call: &Call<'_>) -> Outcome {
    call.range()?;
    // IMMED would allow to reply before; an initiator that asks loses nothing by the wait.
    call.unit.device.flush().await?;
    Ok(Bytes::new())
}
