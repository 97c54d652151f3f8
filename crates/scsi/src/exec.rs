//! EXEC OUT and EXEC IN: vendor specific commands that compute over places of the logical unit.
//!
//! What a descriptor and its result are is documented in `docs/block.md`; these commands move both as bytes. `C0h`
//! takes a descriptor and computes, `C1h` fetches the result. The nexus keeps results by a list identifier that the
//! initiator chooses, as EXTENDED COPY and RECEIVE COPY RESULTS do. Fields are big-endian.
//!
//! # EXEC OUT
//! | byte | bits | field |
//! |---|---|---|
//! | 0 | 7-0 | OPERATION CODE (C0h) |
//! | 1 | 7-1 | reserved |
//! | 1 | 0 | INLINE: a result of at most 84 bytes comes in the sense data, and is not kept |
//! | 2-5 | | LIST IDENTIFIER; a result that is kept under it is replaced |
//! | 6-9 | | reserved |
//! | 10-13 | | PARAMETER LIST LENGTH: bytes of the descriptor, which is the data-out |
//! | 14 | | reserved |
//! | 15 | | CONTROL |
//!
//! The command ends when the computation has. GOOD: the result is kept for EXEC IN. With INLINE and a short result:
//! CHECK CONDITION with the sense key COMPLETED (Fh), the additional sense code 0000h, and in the descriptor format
//! (response code 72h) as the only descriptor:
//!
//! | byte | field |
//! |---|---|
//! | 0 | DESCRIPTOR TYPE (80h, vendor specific) |
//! | 1 | ADDITIONAL LENGTH (2 + n) |
//! | 2 | FORM (01h) |
//! | 3 | reserved |
//! | 4 to 3+n | the result |
//!
//! The sense data then has at most 8 + 4 + 84 = 96 bytes, which is what Linux passes on. A parameter list length of
//! zero is no error: nothing is computed.
//!
//! # EXEC IN
//! | byte | bits | field |
//! |---|---|---|
//! | 0 | 7-0 | OPERATION CODE (C1h) |
//! | 1 | 7-1 | reserved |
//! | 1 | 0 | FORGET: the result is not kept any longer |
//! | 2-5 | | LIST IDENTIFIER |
//! | 6-9 | | OFFSET of the first byte of the result that is wanted, at most the result's length |
//! | 10-13 | | ALLOCATION LENGTH, the header included |
//! | 14 | | reserved |
//! | 15 | | CONTROL |
//!
//! The data-in:
//!
//! | byte | field |
//! |---|---|
//! | 0-3 | RESULT LENGTH: bytes of the whole result, whatever OFFSET and ALLOCATION LENGTH are |
//! | 4-7 | reserved |
//! | 8- | the result from OFFSET |
//!
//! # Errors
//! | sense key, code | when |
//! |---|---|
//! | ILLEGAL REQUEST, 2000h | the logical unit has no EXEC |
//! | ILLEGAL REQUEST, 2400h | EXEC IN: no result is kept under the identifier, or OFFSET is beyond it |
//! | ILLEGAL REQUEST, 1A00h | the descriptor is longer than the limit, or did not come whole |
//! | ILLEGAL REQUEST, 2600h | the descriptor is invalid |
//! | ILLEGAL REQUEST, 2601h | the descriptor's version or operation is not supported |
//! | ILLEGAL REQUEST, 5503h | it would take more memory, time or room for results than it may |
//! | DATA PROTECT, 2700h | an output, and the unit is write protected |
//! | MEDIUM ERROR, 1100h | the device is damaged there |
//!
//! # Limits
//! `Options` bounds the number, the bytes and the age of what a nexus keeps; the oldest go first. Results go with the
//! nexus. ABORT TASK and all other functions that end commands end a computation. Other commands never wait for one: it
//! takes no part in the order of commands once it began. For reservations EXEC OUT writes, since it may.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use skytether_common::{Error, error::Kind};
use skytether_volume::{BlockDevice, Exec};
use tokio::time::Instant;

use crate::call::{Call, allocated};
use crate::computed::Computed;
use crate::protected::Protected;
use crate::sense::{Fail, Key, Outcome, Sense, code};

/// The longest result that comes in sense data: Linux passes on 96 bytes of these.
const INLINE: usize = 84;
/// Bytes before the result in the data of EXEC IN.
const HEADER: usize = 8;

pub(crate) async fn exec_out(call: &Call<'_>) -> Outcome {
    let exec = of_unit(call)?;
    let (list, length) = (call.cdb.u32(2), call.cdb.u32(10) as usize);
    if length == 0 {
        return Ok(Bytes::new());
    }
    let limits = exec.limits();
    if length > limits.descriptor as usize || call.data.len() < length {
        return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into());
    }
    call.unit.ready()?;
    let device: Arc<dyn BlockDevice> = match call.unit.writable() {
        Ok(()) => call.unit.device.clone(),
        Err(_) => Arc::new(Protected::new(call.unit.device.clone())),
    };
    // A computation also ends when the command's future is dropped, with a session for example.
    let cancel = call.cancel.child_token();
    let _ends = cancel.clone().drop_guard();
    let result = exec.run(device, call.data.slice(..length), cancel).await.map_err(failed)?;
    if call.cdb.bit(1, 0) && result.len() <= INLINE {
        let mut data = BytesMut::with_capacity(2 + result.len());
        data.put_slice(&[0x01, 0]);
        data.put_slice(&result);
        return Err(Sense::new(Key::Completed, code::NONE).vendor(data.freeze()).into());
    }
    if result.len() > (limits.result as usize).min(call.nexus.target.options.exec_bytes) {
        return Err(Sense::illegal(code::INSUFFICIENT_RESOURCES).into());
    }
    let lun = call.unit.lun;
    let computed = Computed { lun, list, result, since: Instant::now() };
    forget_old(call);
    call.nexus.computed.put(computed, |there| (there.lun, there.list) == (lun, list));
    Ok(Bytes::new())
}

pub(crate) fn exec_in(call: &Call<'_>) -> Outcome {
    of_unit(call)?;
    let (list, offset, allocation) = (call.cdb.u32(2), call.cdb.u32(6) as usize, call.cdb.u32(10) as usize);
    forget_old(call);
    let own = |there: &Computed| (there.lun, there.list) == (call.unit.lun, list);
    let found = call.nexus.computed.find(own).ok_or(Sense::cdb(2))?;
    let rest = found.result.get(offset..).ok_or(Sense::cdb(6))?;
    let mut out = BytesMut::with_capacity(allocation.min(HEADER + rest.len()));
    out.put_u32(found.result.len() as u32);
    out.put_u32(0);
    out.put_slice(&rest[..rest.len().min(allocation.saturating_sub(HEADER))]);
    if call.cdb.bit(1, 0) {
        call.nexus.computed.retain(|there| !own(there));
    }
    allocated(out, allocation)
}

fn of_unit<'a>(call: &Call<'a>) -> Outcome<&'a Arc<dyn Exec>> {
    call.unit.exec.as_ref().ok_or_else(|| Sense::illegal(code::INVALID_OPERATION_CODE).into())
}

fn forget_old(call: &Call<'_>) {
    let (now, kept) = (Instant::now(), call.nexus.target.options.exec_kept);
    call.nexus.computed.retain(|there| now.duration_since(there.since) < kept);
}

/// Why a computation failed.
fn failed(error: Error) -> Fail {
    match error.kind() {
        Kind::Invalid | Kind::NotFound => Sense::parameter_code(code::INVALID_FIELD_IN_PARAMETERS, 0).into(),
        Kind::Unsupported => Sense::parameter_code(code::PARAMETER_NOT_SUPPORTED, 0).into(),
        Kind::Exhausted => Sense::illegal(code::INSUFFICIENT_RESOURCES).into(),
        Kind::Conflict | Kind::Corrupt | Kind::Unavailable | Kind::Internal => error.into(),
    }
}
