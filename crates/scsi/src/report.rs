//! REPORT LUNS, REPORT SUPPORTED OPERATION CODES, REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS and REPORT TARGET PORT
//! GROUPS.

use bytes::{BufMut, BytesMut};

use crate::address;
use crate::call::{Call, allocated};
use crate::cdb::Cdb;
use crate::operations::{self, OPERATIONS, Operation};
use crate::sense::{Outcome, Sense};
use crate::target::Target;

/// The same for each logical unit, and for that of this name.
pub(crate) fn luns(target: &Target, cdb: &Cdb) -> Outcome {
    let allocation = cdb.u32(6);
    if allocation < 16 {
        return Err(Sense::cdb(6).into());
    }
    let mut out = BytesMut::zeroed(8);
    // SELECT REPORT: those that can be reached without more, well known ones, or both.
    if matches!(cdb.u8(2), 0 | 2) {
        for lun in target.luns() {
            out.put_slice(&address::bytes(lun));
        }
    }
    match cdb.u8(2) {
        0 => {}
        1 | 2 => out.put_u64(address::REPORT_LUNS),
        _ => return Err(Sense::cdb(2).into()),
    }
    let len = out.len() as u32 - 8;
    out[..4].copy_from_slice(&len.to_be_bytes());
    allocated(out, allocation as usize)
}

pub(crate) fn operation_codes(call: &Call<'_>) -> Outcome {
    let cdb = call.cdb;
    let allocation = cdb.u32(6);
    let (timeouts, option, code, action) = (cdb.bit(2, 7), cdb.u8(2) & 7, cdb.u8(3), cdb.u16(4));
    let supported = |operation: &Operation| call.unit.supports(operation.op, &call.nexus.target.options);
    let mut out = BytesMut::new();
    if option == 0 {
        out.put_u32(0);
        for operation in OPERATIONS.iter().filter(|operation| supported(operation)) {
            out.put_slice(&[operation.code, 0]);
            out.put_u16(operation.action.unwrap_or(0).into());
            // SERVACTV: there is a service action; CTDP: a timeouts descriptor follows.
            out.put_slice(&[0, u8::from(timeouts) << 1 | u8::from(operation.action.is_some())]);
            out.put_u16(operation.usage.len() as u16);
            if timeouts {
                put_timeouts(&mut out, operation);
            }
        }
        let len = out.len() as u32 - 4;
        out[..4].copy_from_slice(&len.to_be_bytes());
        return allocated(out, allocation as usize);
    }
    let of_code: Vec<&Operation> = operations::of_code(code).iter().filter(|operation| supported(operation)).collect();
    let has_actions = of_code.iter().any(|operation| operation.action.is_some());
    let found = match option {
        // The operation code has service actions, or has none, against what is asked.
        1 if has_actions => return Err(Sense::cdb_bit(2, 2).into()),
        2 if !has_actions && !of_code.is_empty() => return Err(Sense::cdb_bit(2, 2).into()),
        1 => of_code.first(),
        2 | 3 if has_actions => of_code.iter().find(|operation| operation.action.is_some_and(|own| u16::from(own) == action)),
        2 => None,
        3 => of_code.first().filter(|_| action == 0),
        _ => return Err(Sense::cdb_bit(2, 2).into()),
    };
    match found {
        // SUPPORT: not supported.
        None => out.put_slice(&[0, 1, 0, 0]),
        Some(operation) => {
            // SUPPORT: in conformance with a standard, or in a vendor's manner.
            let support = if operation.code >= 0xC0 { 5 } else { 3 };
            out.put_slice(&[0, u8::from(timeouts) << 7 | support]);
            out.put_u16(operation.usage.len() as u16);
            out.put_slice(operation.usage);
            if timeouts {
                put_timeouts(&mut out, operation);
            }
        }
    }
    allocated(out, allocation as usize)
}

/// A command timeouts descriptor (SPC-4, 6.34.4). There is no nominal time, since that is the medium's.
fn put_timeouts(out: &mut BytesMut, operation: &Operation) {
    out.put_slice(&[0x00, 0x0A, 0, 0]);
    out.put_u32(0);
    out.put_u32(operation.recommended);
}

pub(crate) fn functions(call: &Call<'_>) -> Outcome {
    let allocation = call.cdb.u32(6);
    if allocation < 4 {
        return Err(Sense::cdb(6).into());
    }
    // ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET.
    let mut out = BytesMut::from(&[0x80 | 0x40 | 0x10 | 0x08 | 0x02, 0, 0, 0][..]);
    // REPD: the extended form.
    if call.cdb.bit(2, 7) {
        out[3] = 12;
        out.resize(16, 0);
    }
    allocated(out, allocation as usize)
}

pub(crate) fn port_groups(call: &Call<'_>) -> Outcome {
    let ports = call.nexus.target.options.ports;
    let mut out = BytesMut::zeroed(4);
    // PARAMETER DATA FORMAT: with the extended header.
    match call.cdb.u8(1) >> 5 {
        0 => {}
        1 => out.put_slice(&[0x10, 0, 0, 0]),
        _ => return Err(Sense::cdb_bit(1, 7).into()),
    }
    // One group, 1, active and optimized; it supports no other state, and it never changed.
    out.put_slice(&[0x00, 0x01, 0, 1, 0, 0, 0, u8::try_from(ports).unwrap_or(u8::MAX)]);
    for port in (1..=ports).take(255) {
        out.put_u16(0);
        out.put_u16(port);
    }
    let len = out.len() as u32 - 4;
    out[..4].copy_from_slice(&len.to_be_bytes());
    allocated(out, call.cdb.u32(6) as usize)
}
