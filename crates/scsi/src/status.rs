//! START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL, READ DEFECT DATA and LOG SENSE: of a medium that is never removed and
//! has no defects.

use bytes::{BufMut, Bytes, BytesMut};

use crate::call::{CONFLICT, Call, allocated};
use crate::operations::Access;
use crate::sense::{Key, Outcome, Sense, code};

/// Conflicts with the reservation of another nexus, whatever its kind.
fn not_reserved(call: &Call<'_>) -> Outcome<()> {
    let state = call.unit.state.lock();
    let reserved = state.reserved.is_some_and(|holder| holder != call.nexus.id);
    if reserved || state.persistent.conflicts(&call.nexus.port, Access::Write) { Err(CONFLICT) } else { Ok(()) }
}

pub(crate) async fn start_stop(call: &Call<'_>) -> Outcome {
    let cdb = call.cdb;
    let (condition, flush, eject, start) = (cdb.u8(4) >> 4, !cdb.bit(4, 2), cdb.bit(4, 1), cdb.bit(4, 0));
    // To start is allowed to each nexus (SBC-3, table 13).
    if !(start && condition == 0) {
        not_reserved(call)?;
    }
    if let Some(progress) = call.unit.state.lock().sanitizing {
        return Err(Sense::new(Key::NotReady, code::SANITIZE_IN_PROGRESS).progress(progress).into());
    }
    match condition {
        // START VALID.
        0x0 => {
            // LOEJ: there is nothing to eject.
            if eject {
                return Err(Sense::cdb_bit(4, 1).into());
            }
            if !start && flush {
                call.unit.device.flush().await?;
            }
            call.unit.state.lock().stopped = !start;
        }
        // ACTIVE, IDLE, STANDBY, LU_CONTROL, FORCE_IDLE_0 and FORCE_STANDBY_0: there is one power condition. START and
        // LOEJ are not looked at.
        0x1 | 0x2 | 0x3 | 0x7 | 0xA | 0xB => {}
        _ => return Err(Sense::cdb_bit(4, 7).into()),
    }
    Ok(Bytes::new())
}

pub(crate) fn prevent_allow(call: &Call<'_>) -> Outcome {
    if call.cdb.u8(4) & 0x03 != 0 {
        not_reserved(call)?;
    }
    // The medium can't be removed either way.
    Ok(Bytes::new())
}

pub(crate) fn read_defect_data(call: &Call<'_>) -> Outcome {
    let cdb = call.cdb;
    // REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT come back; the lists are empty.
    let (asked, long) = if cdb.len() == 10 { (cdb.u8(2) & 0x1F, false) } else { (cdb.u8(1) & 0x1F, true) };
    let mut out = BytesMut::new();
    out.put_slice(&[0, asked]);
    if long {
        out.put_bytes(0, 6);
        return allocated(out, cdb.u32(6) as usize);
    }
    out.put_u16(0);
    allocated(out, cdb.u16(7))
}

/// Pages (SPC-4, 7.3): the supported ones, and informational exceptions, which are none.
pub(crate) fn log_sense(call: &Call<'_>) -> Outcome {
    let cdb = call.cdb;
    // SP: nothing is saved.
    if cdb.bit(1, 0) {
        return Err(Sense::cdb_bit(1, 0).into());
    }
    if cdb.u8(3) != 0 {
        return Err(Sense::cdb(3).into());
    }
    let page = cdb.u8(2) & 0x3F;
    let mut out = BytesMut::zeroed(4);
    match page {
        0x00 => out.put_slice(&[0x00, 0x2F]),
        // Parameter 0: additional sense code and qualifier, and no temperature.
        0x2F => out.put_slice(&[0, 0, 0x03, 0x04, 0, 0, 0xFF, 0]),
        _ => return Err(Sense::cdb_bit(2, 5).into()),
    }
    out[0] = page;
    let len = out.len() as u16 - 4;
    out[2..4].copy_from_slice(&len.to_be_bytes());
    allocated(out, cdb.u16(7))
}
