//! EXTENDED COPY and RECEIVE COPY RESULTS (SPC-4, 6.4 to 6.6 and 6.17 to 6.24): block to block, within the target.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use skytether_volume::Durability;

use crate::call::{Call, allocated};
use crate::cdb::{be16, be32, be64};
use crate::copied::Copied;
use crate::identity::{self, Designator};
use crate::operations::Access;
use crate::sense::{Fail, Key, Outcome, Sense, code};
use crate::unit::{BLOCK, LogicalUnit, Range};

/// Descriptors of copy sources and destinations.
const TARGETS: usize = 16;
const SEGMENTS: usize = 64;
/// MAXIMUM DESCRIPTOR LIST LENGTH, in bytes.
const LIST: usize = 4096;
/// MAXIMUM SEGMENT LENGTH, in bytes: what 16 bits of blocks are.
const SEGMENT: u64 = 32 << 20;
/// Length of an identification descriptor.
const TARGET: usize = 32;
/// Bytes that are copied at a time.
const STEP: u64 = 1 << 20;

/// Types of descriptors.
const IDENTIFICATION: u8 = 0xE4;
const BLOCK_TO_BLOCK: u8 = 0x02;
const BLOCK_TO_BLOCK_OFFSET: u8 = 0x0A;

/// The header of a parameter list, in either form.
struct Header {
    /// None where its results are not kept.
    list: Option<u32>,
    /// Where the descriptors begin, and where those of segments do.
    targets: usize,
    segments: usize,
    end: usize,
}

/// A copy of some blocks.
struct Segment {
    from: Arc<LogicalUnit>,
    source: Range,
    to: Arc<LogicalUnit>,
    destination: Range,
}

fn length_error() -> Fail {
    Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into()
}

fn aborted(code: u16) -> Fail {
    Sense::new(Key::CopyAborted, code).into()
}

pub(crate) async fn extended_copy(call: &Call<'_>) -> Outcome {
    let length = call.cdb.u32(10) as usize;
    if length == 0 {
        return Ok(Bytes::new());
    }
    let data = call.data.get(..length).ok_or_else(length_error)?;
    let header = if call.cdb.action() == 0 { header(data)? } else { header_long(data)? };
    let targets = &data[header.targets..header.segments];
    let segments = split(&data[header.segments..header.end], header.segments)?;
    if let Some(list) = header.list {
        keep(call, Copied { list, ended: None, segments: 0, bytes: 0 });
    }
    let mut done = (0, 0);
    let result = copy_all(call, targets, header.targets, &segments, &mut done).await;
    if let Some(list) = header.list {
        let ended = match &result {
            Err(Fail::Check(sense)) => Err(sense.as_ref().clone()),
            Err(Fail::Status(_)) => Err(Sense::new(Key::CopyAborted, code::NONE)),
            Ok(()) => Ok(()),
        };
        keep(call, Copied { list, ended: Some(ended), segments: done.0, bytes: done.1 });
    }
    result.map(|()| Bytes::new())
}

/// LID1 (SPC-4, table 116).
fn header(data: &[u8]) -> Outcome<Header> {
    if data.len() < 16 {
        return Err(length_error());
    }
    let (targets, segments, inline) = (usize::from(be16(data, 2)), be32(data, 8) as usize, be32(data, 12) as usize);
    // LIST ID USAGE: 2 is not to keep results, 3 is without an identifier, which has to be zero then.
    let list = match data[1] >> 3 & 3 {
        0 => Some(u32::from(data[0])),
        2 => None,
        3 if data[0] == 0 => None,
        3 => return Err(Sense::parameter(0).into()),
        _ => return Err(Sense::parameter(1).into()),
    };
    if inline != 0 {
        return Err(Sense::parameter(12).into());
    }
    limits(data, list, 16, targets, segments)
}

/// LID4 (SPC-4, table 119).
fn header_long(data: &[u8]) -> Outcome<Header> {
    if data.len() < 48 {
        return Err(length_error());
    }
    // PARAMETER LIST FORMAT, HEADER CSCD DESCRIPTOR LIST LENGTH and its type code.
    if data[0] != 0x01 {
        return Err(Sense::parameter(0).into());
    }
    if be16(data, 2) != 0x20 {
        return Err(Sense::parameter(2).into());
    }
    if data[16] != 0xFF {
        return Err(Sense::parameter(16).into());
    }
    // IMMED: a copy in the background is not offered.
    if data[15] & 0x02 != 0 {
        return Err(Sense::parameter(15).into());
    }
    let list = match data[1] >> 3 & 3 {
        0 => Some(be32(data, 20)),
        2 => None,
        3 if be32(data, 20) == 0 => None,
        3 => return Err(Sense::parameter(20).into()),
        _ => return Err(Sense::parameter(1).into()),
    };
    if be16(data, 46) != 0 {
        return Err(Sense::parameter(46).into());
    }
    limits(data, list, 48, be16(data, 42).into(), be16(data, 44).into())
}

fn limits(data: &[u8], list: Option<u32>, at: usize, targets: usize, segments: usize) -> Outcome<Header> {
    let all = targets.saturating_add(segments);
    if all > LIST || at + all > data.len() || !targets.is_multiple_of(TARGET) {
        return Err(length_error());
    }
    if targets / TARGET > TARGETS {
        return Err(Sense::parameter_code(code::TOO_MANY_TARGET_DESCRIPTORS, at).into());
    }
    if let Some(number) = data[at..at + targets].chunks(TARGET).position(|descriptor| descriptor[0] != IDENTIFICATION) {
        return Err(Sense::parameter_code(code::UNSUPPORTED_TARGET_DESCRIPTOR, at + number * TARGET).into());
    }
    Ok(Header { list, targets: at, segments: at + targets, end: at + all })
}

/// The segment descriptors, each whole and of a type that is known, with its place in the parameter list.
fn split(mut list: &[u8], mut at: usize) -> Outcome<Vec<(usize, &[u8])>> {
    let mut segments = Vec::new();
    while !list.is_empty() {
        if segments.len() == SEGMENTS {
            return Err(Sense::parameter_code(code::TOO_MANY_SEGMENT_DESCRIPTORS, at).into());
        }
        let length = match list[0] {
            BLOCK_TO_BLOCK => 28,
            BLOCK_TO_BLOCK_OFFSET => 32,
            _ => return Err(Sense::parameter_code(code::UNSUPPORTED_SEGMENT_DESCRIPTOR, at).into()),
        };
        if list.len() < length {
            return Err(length_error());
        }
        if usize::from(be16(list, 2)) + 4 != length {
            return Err(Sense::parameter(at + 2).into());
        }
        segments.push((at, &list[..length]));
        (list, at) = (&list[length..], at + length);
    }
    Ok(segments)
}

async fn copy_all(call: &Call<'_>, targets: &[u8], at: usize, segments: &[(usize, &[u8])], done: &mut (u16, u64)) -> Outcome<()> {
    let targets: Vec<Arc<LogicalUnit>> =
        targets.chunks(TARGET).enumerate().map(|(number, descriptor)| unit(call, descriptor, at + number * TARGET)).collect::<Outcome<_>>()?;
    for (at, descriptor) in segments {
        let segment = segment(&targets, descriptor, *at)?;
        permitted(call, &segment).await?;
        copy(&segment, done).await?;
        done.0 += 1;
    }
    Ok(())
}

/// The logical unit of an identification descriptor (SPC-4, 6.4.5.3). LU ID TYPE and NUL are obsolete, and ignored.
fn unit(call: &Call<'_>, descriptor: &[u8], at: usize) -> Outcome<Arc<LogicalUnit>> {
    if descriptor[1] & 0x1F != 0 {
        return Err(aborted(code::INCORRECT_COPY_TARGET_TYPE));
    }
    let length = usize::from(descriptor[7]);
    if length > 20 {
        return Err(Sense::parameter(at + 7).into());
    }
    if be32(descriptor, 28) & 0xFF_FFFF != BLOCK as u32 {
        return Err(Sense::parameter(at + 29).into());
    }
    // ASSOCIATION has to be the logical unit.
    let wanted = Designator { code_set: descriptor[4] & 0x0F, kind: descriptor[5] & 0x3F, bytes: descriptor[8..8 + length].to_vec() };
    let target = &call.nexus.target;
    let found = target.units.iter().find(|unit| identity::designators(&target.options, unit.id).contains(&wanted));
    found.cloned().ok_or_else(|| aborted(code::COPY_TARGET_NOT_REACHABLE))
}

fn segment(targets: &[Arc<LogicalUnit>], descriptor: &[u8], at: usize) -> Outcome<Segment> {
    let of = |index: u16| targets.get(usize::from(index)).cloned().ok_or_else(|| aborted(code::UNREACHABLE_COPY_TARGET));
    let (from, to) = (of(be16(descriptor, 4))?, of(be16(descriptor, 6))?);
    let count = if descriptor[0] == BLOCK_TO_BLOCK {
        u64::from(be16(descriptor, 10))
    } else {
        let bytes = u64::from(be32(descriptor, 8));
        if bytes > SEGMENT || bytes % BLOCK != 0 {
            return Err(Sense::parameter(at + 8).into());
        }
        // Offsets within a block.
        if be32(descriptor, 28) != 0 {
            return Err(Sense::parameter(at + 28).into());
        }
        bytes / BLOCK
    };
    let range = |unit: &LogicalUnit, lba| unit.range(lba, count).map_err(|_| aborted(code::NONE));
    let (source, destination) = (range(&from, be64(descriptor, 12))?, range(&to, be64(descriptor, 20))?);
    Ok(Segment { from, source, to, destination })
}

/// A copy may do what the nexus may do by itself.
async fn permitted(call: &Call<'_>, segment: &Segment) -> Outcome<()> {
    for (unit, access) in [(&segment.from, Access::Read), (&segment.to, Access::Write)] {
        unit.ready()?;
        unit.settle_for_command().await?;
        unit.state.lock().check_reservation(call.nexus.id, &call.nexus.port, access)?;
    }
    segment.to.writable()
}

async fn copy(segment: &Segment, done: &mut (u16, u64)) -> Outcome<()> {
    let mut copied = 0;
    while copied < segment.source.len() {
        let len = STEP.min(segment.source.len() - copied);
        let data = segment.from.device.read(segment.source.at() + copied, len as u32).await?;
        segment.to.device.write(segment.destination.at() + copied, data, Durability::Cached).await?;
        copied += len;
        done.1 += len;
    }
    if !segment.to.state.lock().modes.write_cache() {
        segment.to.device.flush().await?;
    }
    Ok(())
}

pub(crate) fn receive_copy_results(call: &Call<'_>) -> Outcome {
    let cdb = call.cdb;
    let mut out = BytesMut::zeroed(4);
    match cdb.action() {
        0x00 => {
            let copied = find(call, cdb.u8(2).into())?;
            out.put_u8(status(&copied));
            out.put_u16(copied.segments);
            // TRANSFER COUNT UNITS: KiB.
            out.put_u8(1);
            out.put_u32(u32::try_from(copied.bytes >> 10).unwrap_or(u32::MAX));
        }
        0x03 => parameters(&mut out),
        0x04 => {
            let failed = find(call, cdb.u8(2).into())?.ended.and_then(Result::err);
            if let Some(sense) = failed {
                let sense = sense.bytes(false);
                out.put_bytes(0, 52);
                // EXTENDED COPY COMMAND STATUS: CHECK CONDITION.
                out.put_slice(&[0x02, 0]);
                out.put_u16(sense.len() as u16);
                out.put_slice(&sense);
            }
        }
        _ => {
            let copied = find(call, cdb.u32(2))?;
            let sense = copied.ended.clone().and_then(Result::err).map(|sense| sense.bytes(true)).unwrap_or_default();
            // RESPONSE TO SERVICE ACTION: EXTENDED COPY(LID4).
            out.put_slice(&[0x01, status(&copied)]);
            out.put_u16(0);
            // ESTIMATED STATUS UPDATE DELAY: unknown.
            out.put_u32(0xFFFF_FFFE);
            out.put_slice(&[if sense.is_empty() { 0 } else { 0x02 }, sense.len() as u8, sense.len() as u8, 0]);
            out.put_u64(copied.bytes);
            out.put_u16(copied.segments);
            out.put_bytes(0, 6);
            out.put_slice(&sense);
        }
    }
    // AVAILABLE DATA.
    let len = out.len() as u32 - 4;
    out[..4].copy_from_slice(&len.to_be_bytes());
    allocated(out, cdb.u32(10) as usize)
}

fn find(call: &Call<'_>, list: u32) -> Outcome<Copied> {
    call.nexus.copies.find(|copied| copied.list == list).ok_or_else(|| Sense::cdb(2).into())
}

/// COPY MANAGER STATUS: in progress, without errors, with errors.
fn status(copied: &Copied) -> u8 {
    match copied.ended {
        None => 0,
        Some(Ok(())) => 1,
        Some(Err(_)) => 2,
    }
}

/// OPERATING PARAMETERS (SPC-4, table 196).
fn parameters(out: &mut BytesMut) {
    // SNLID: a list without an identifier.
    out.put_u32(0x0100_0000);
    out.put_u16(TARGETS as u16);
    out.put_u16(SEGMENTS as u16);
    out.put_u32(LIST as u32);
    out.put_u32(SEGMENT as u32);
    // No inline data, no held data, no streams.
    out.put_bytes(0, 12);
    out.put_u16(0);
    // TOTAL CONCURRENT COPIES and MAXIMUM CONCURRENT COPIES.
    out.put_u16(255);
    out.put_u8(255);
    // DATA SEGMENT GRANULARITY, as a power of two.
    out.put_slice(&[BLOCK.trailing_zeros() as u8, 0, 0, 0, 0, 0]);
    let kinds = [BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_OFFSET, IDENTIFICATION];
    out.put_u8(kinds.len() as u8);
    out.put_slice(&kinds);
}

fn keep(call: &Call<'_>, copied: Copied) {
    let list = copied.list;
    call.nexus.copies.put(copied, |there| there.list == list);
}
