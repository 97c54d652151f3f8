//! MODE SENSE and MODE SELECT: the caching, control and informational exceptions pages.

use bytes::{BufMut, Bytes, BytesMut};
use skytether_volume::device::LOGICAL;

use crate::call::{Call, allocated};
use crate::cdb::{be16, be32};
use crate::modes::Modes;
use crate::sense::{Outcome, Sense, code};

/// Page codes of the pages that there are, ascending.
const PAGES: [u8; 3] = [CACHING, CONTROL, EXCEPTIONS];
const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0A;
const EXCEPTIONS: u8 = 0x1C;
/// Asks for all pages.
const ALL: u8 = 0x3F;
/// Bit 2 of a byte: WCE in byte 2 of the caching page, D_SENSE in that of the control page.
const BIT_2: u8 = 0x04;
/// SWP in byte 4 of the control page.
const SWP: u8 = 0x08;

/// Which values MODE SENSE asks for: the field PC.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    Of(Modes),
    Changeable,
}

/// A page with its header (SPC-4, 7.5 and SBC-3, 6.5).
fn page(code: u8, values: Values) -> Vec<u8> {
    let flag = |bit: u8, of: fn(Modes) -> bool| match values {
        Values::Changeable => bit,
        Values::Of(modes) if of(modes) => bit,
        Values::Of(_) => 0,
    };
    match code {
        CACHING => {
            let mut page = vec![0; 20];
            (page[0], page[1], page[2]) = (CACHING, 0x12, flag(BIT_2, Modes::write_cache));
            page
        }
        CONTROL => {
            let mut page = vec![0; 12];
            (page[0], page[1], page[2]) = (CONTROL, 0x0A, flag(BIT_2, Modes::descriptors));
            page[4] = flag(SWP, Modes::software_write_protect);
            if values != Values::Changeable {
                // QUEUE ALGORITHM MODIFIER: commands may be reordered without restriction.
                page[3] = 0x10;
                // BUSY TIMEOUT PERIOD: no limit.
                (page[8], page[9]) = (0xFF, 0xFF);
            }
            page
        }
        _ => {
            let mut page = vec![0; 12];
            (page[0], page[1]) = (EXCEPTIONS, 0x0A);
            page
        }
    }
}

pub(crate) fn mode_sense(call: &Call<'_>) -> Outcome {
    let (cdb, modes) = (call.cdb, call.unit.state.lock().modes);
    let long = cdb.len() == 10;
    let values = match cdb.u8(2) >> 6 {
        0 => Values::Of(modes),
        1 => Values::Changeable,
        2 => Values::Of(Modes::default()),
        _ => return Err(Sense::illegal(code::SAVING_NOT_SUPPORTED).into()),
    };
    // Subpage FFh is all subpages, 00h the page itself.
    let (asked, subpage) = (cdb.u8(2) & 0x3F, cdb.u8(3));
    if !matches!(subpage, 0x00 | 0xFF) {
        return Err(Sense::cdb(3).into());
    }
    if asked != ALL && !PAGES.contains(&asked) {
        return Err(Sense::cdb_bit(2, 5).into());
    }
    let mut out = BytesMut::zeroed(if long { 8 } else { 4 });
    // WP, and DPOFUA.
    out[if long { 3 } else { 2 }] = u8::from(call.unit.read_only || modes.software_write_protect()) << 7 | 0x10;
    let header = out.len();
    if !cdb.bit(1, 3) {
        let blocks = call.unit.blocks;
        if long && cdb.bit(1, 4) {
            out[4] = 0x01;
            out.put_u64(blocks);
            out.put_u32(0);
        } else {
            // As many as fit; all ones are more (SBC-3, 6.5.2.2).
            out.put_u32(u32::try_from(blocks).unwrap_or(u32::MAX));
        }
        out.put_u32(LOGICAL);
    }
    let descriptors = out.len() - header;
    for code in PAGES.into_iter().filter(|&code| asked == ALL || asked == code) {
        out.put_slice(&page(code, values));
    }
    if long {
        let len = out.len() as u16 - 2;
        out[..2].copy_from_slice(&len.to_be_bytes());
        out[7] = descriptors as u8;
        return allocated(out, cdb.u16(7));
    }
    out[0] = out.len() as u8 - 1;
    out[3] = descriptors as u8;
    allocated(out, cdb.u8(4))
}

pub(crate) async fn mode_select(call: &Call<'_>) -> Outcome {
    let cdb = call.cdb;
    let long = cdb.len() == 10;
    let length = if long { usize::from(cdb.u16(7)) } else { usize::from(cdb.u8(4)) };
    // SP: nothing is saved. PF: pages are those of the standard.
    if cdb.bit(1, 0) {
        return Err(Sense::cdb_bit(1, 0).into());
    }
    if length == 0 {
        return Ok(Bytes::new());
    }
    if !cdb.bit(1, 4) {
        return Err(Sense::cdb_bit(1, 4).into());
    }
    let header = if long { 8 } else { 4 };
    if length < header || call.data.len() < length {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    let data = &call.data[..length];
    let descriptors = if long { usize::from(be16(data, 6)) } else { usize::from(data[3]) };
    let medium = if long { 2 } else { 1 };
    if data[medium] != 0 {
        return Err(Sense::parameter(medium).into());
    }
    if header + descriptors > length {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    check_descriptor(call, &data[header..header + descriptors], header, long && data[4] & 1 != 0)?;
    let turns_off = {
        let mut state = call.unit.state.lock();
        let (before, after) = (state.modes, pages(data, header + descriptors, state.modes)?);
        if before != after {
            state.modes = after;
            state.attend_others(call.nexus.id, code::MODE_PARAMETERS_CHANGED);
        }
        before.write_cache() && !after.write_cache()
    };
    // An initiator that sees no cache has no reason to flush: what was cached must be durable before the answer.
    if turns_off && let Err(error) = call.unit.device.flush().await {
        call.unit.state.lock().modes.set_write_cache(true);
        return Err(error.into());
    }
    Ok(Bytes::new())
}

/// A block descriptor can't change anything.
fn check_descriptor(call: &Call<'_>, descriptor: &[u8], at: usize, long: bool) -> Outcome<()> {
    let (blocks, length) = match (descriptor.len(), long) {
        (0, _) => return Ok(()),
        (8, false) => (u64::from(be32(descriptor, 0)), be32(descriptor, 4) & 0xFF_FFFF),
        (16, true) => (u64::from(be32(descriptor, 0)) << 32 | u64::from(be32(descriptor, 4)), be32(descriptor, 12)),
        _ => return Err(Sense::parameter(if at == 8 { 6 } else { 3 }).into()),
    };
    let short = u64::from(u32::try_from(call.unit.blocks).unwrap_or(u32::MAX));
    if blocks != 0 && blocks != call.unit.blocks && (long || blocks != short) {
        return Err(Sense::parameter(at).into());
    }
    if length != LOGICAL { Err(Sense::parameter(at + if long { 12 } else { 5 }).into()) } else { Ok(()) }
}

/// The values after the pages from `at`, which leave alone what can't be changed.
fn pages(data: &[u8], mut at: usize, before: Modes) -> Outcome<Modes> {
    let mut modes = before;
    while at < data.len() {
        // Bit 7 is PS, which is reserved here, bit 6 SPF.
        let code = data[at] & 0x7F;
        if !PAGES.contains(&code) {
            return Err(Sense::parameter(at).into());
        }
        let (current, mask) = (page(code, Values::Of(modes)), page(code, Values::Changeable));
        let Some(new) = data.get(at..at + current.len()) else {
            return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into());
        };
        if new[1] != current[1] {
            return Err(Sense::parameter(at + 1).into());
        }
        if let Some(wrong) = (2..new.len()).find(|&byte| (new[byte] ^ current[byte]) & !mask[byte] != 0) {
            return Err(Sense::parameter(at + wrong).into());
        }
        match code {
            CACHING => modes.set_write_cache(new[2] & BIT_2 != 0),
            CONTROL => modes.set_control(new[2] & BIT_2 != 0, new[4] & SWP != 0),
            _ => {}
        }
        at += new.len();
    }
    Ok(modes)
}
