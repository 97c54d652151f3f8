//! INQUIRY: standard data and the pages of vital product data.

use bytes::{BufMut, BytesMut};
use skytether_volume::device::{COMPARE_MOST, LOGICAL, PHYSICAL};

use crate::call::{Call, allocated};
use crate::cdb::Cdb;
use crate::identity::{self, ascii};
use crate::operations;
use crate::options::Options;
use crate::sense::{Outcome, Sense};
use crate::thin;

/// The vendor's page: what EXEC can do.
pub(crate) const EXEC_PAGE: u8 = 0xC0;

pub(crate) fn inquiry(call: &Call<'_>) -> Outcome {
    let cdb = call.cdb;
    if !cdb.bit(1, 0) {
        if cdb.u8(2) != 0 {
            return Err(Sense::cdb(2).into());
        }
        return allocated(standard(&call.nexus.target.options, 0x00), cdb.u16(3));
    }
    let mut page = vital(call, cdb.u8(2))?;
    let len = (page.len() - 4) as u16;
    page[1] = cdb.u8(2);
    page[2..4].copy_from_slice(&len.to_be_bytes());
    allocated(page, cdb.u16(3))
}

/// The most blocks of COMPARE AND WRITE, whose CDB has one byte for them.
const COMPARE_BLOCKS: u8 = if COMPARE_MOST / LOGICAL < 0xFF { (COMPARE_MOST / LOGICAL) as u8 } else { 0xFF };

/// For a logical unit that does not exist: peripheral qualifier 3, device type unknown (SPC-4, 6.6.2).
pub(crate) fn absent(options: &Options, cdb: &Cdb) -> Outcome {
    if cdb.bit(1, 0) || cdb.u8(2) != 0 {
        return Err(Sense::cdb(2).into());
    }
    allocated(standard(options, 0x7F), cdb.u16(3))
}

fn standard(options: &Options, peripheral: u8) -> BytesMut {
    let mut out = BytesMut::with_capacity(96);
    out.put_u8(peripheral);
    // SPC-4; the response data format is 2.
    out.put_slice(&[0, 0x06, 0x02, 91]);
    // TPGS: implicit asymmetric access; 3PC: third-party copy.
    out.put_u8(0x18);
    // MULTIP.
    out.put_u8(if options.ports > 1 { 0x10 } else { 0 });
    // CMDQUE.
    out.put_u8(0x02);
    out.put_slice(&ascii::<8>(&options.vendor));
    out.put_slice(&ascii::<16>(&options.product));
    out.put_slice(&ascii::<4>(&options.revision));
    out.put_bytes(0, 22);
    // Version descriptors: SAM-5, SPC-4 and SBC-3, no version claimed.
    out.put_slice(&[0x00, 0xA0, 0x04, 0x60, 0x04, 0xC0]);
    out.resize(96, 0);
    out
}

fn vital(call: &Call<'_>, page: u8) -> Outcome<BytesMut> {
    let mut out = BytesMut::zeroed(4);
    match page {
        0x00 => {
            out.put_slice(&[0x00, 0x80, 0x83, 0x86, 0x8F, 0xB0, 0xB1, 0xB2]);
            if call.unit.exec.is_some() {
                out.put_u8(EXEC_PAGE);
            }
        }
        0x80 => out.put_slice(call.unit.id.simple().to_string().as_bytes()),
        0x83 => identification(call, &mut out),
        0x86 => extended(&mut out),
        0xB0 => block_limits(call, &mut out),
        0x8F => third_party_copy(&mut out),
        0xB1 => {
            let mut page = [0; 60];
            // MEDIUM ROTATION RATE: it does not rotate.
            page[1] = 1;
            // WABEREQ 1: after a block erase, blocks that were not written since can be read.
            page[3] = 0x40;
            out.put_slice(&page);
        }
        // LBPU, LBPWS, LBPWS10, LBPRZ and ANC_SUP; thin.
        0xB2 => out.put_slice(&[0x00, 0xE6, 0x02, 0x00]),
        EXEC_PAGE => match &call.unit.exec {
            Some(exec) => out.put_slice(&exec.capabilities()),
            None => return Err(Sense::cdb(2).into()),
        },
        _ => return Err(Sense::cdb(2).into()),
    }
    Ok(out)
}

/// One designation descriptor (SPC-4, 7.8.6.1).
fn designator(out: &mut BytesMut, code_set: u8, association: u8, kind: u8, designator: &[u8]) {
    // The protocol identifier is valid for ports and targets: iSCSI, 5.
    let (protocol, piv) = if association == 0 { (0, 0) } else { (0x50, 0x80) };
    out.put_slice(&[protocol | code_set, piv | association << 4 | kind, 0, designator.len() as u8]);
    out.put_slice(designator);
}

/// Device identification: of the volume by its id, of the port and of the target.
fn identification(call: &Call<'_>, out: &mut BytesMut) {
    let options = &call.nexus.target.options;
    for own in identity::designators(options, call.unit.id) {
        designator(out, own.code_set, 0, own.kind, &own.bytes);
    }
    let port = call.nexus.port.target_port;
    designator(out, 1, 1, 4, &[0, 0, port.to_be_bytes()[0], port.to_be_bytes()[1]]);
    // Target port group 1 has all ports.
    designator(out, 1, 1, 5, &[0, 0, 0, 1]);
    if !options.name.is_empty() {
        designator(out, 3, 1, 8, &scsi_name(&format!("{},t,0x{port:04x}", options.name)));
        designator(out, 3, 2, 8, &scsi_name(&options.name));
    }
}

/// UTF-8, ended by a zero and filled up to four bytes, at most 252 (SPC-4, 7.8.6.11).
fn scsi_name(name: &str) -> Vec<u8> {
    let mut out = name.as_bytes().to_vec();
    out.truncate(251);
    out.resize((out.len() + 4) & !3, 0);
    out
}

/// Extended INQUIRY data (SPC-4, 7.8.7): simple, ordered and head of queue tasks, and unit attentions as they wait.
fn extended(out: &mut BytesMut) {
    let mut page = [0; 60];
    // HEADSUP, ORDSUP, SIMPSUP.
    page[1] = 0x07;
    // V_SUP: there is a cache that is volatile.
    page[2] = 0x01;
    // LUICLR: unit attentions of a logical unit go with a reset of it.
    page[3] = 0x01;
    out.put_slice(&page);
}

/// Block limits (SBC-3, 6.6.3).
fn block_limits(call: &Call<'_>, out: &mut BytesMut) {
    let physical = PHYSICAL / LOGICAL;
    let transfer = call.nexus.target.options.transfer / LOGICAL;
    let mut page = BytesMut::with_capacity(60);
    // WSNZ: WRITE SAME says how many blocks.
    page.put_u8(0x01);
    // MAXIMUM COMPARE AND WRITE LENGTH.
    page.put_u8(COMPARE_BLOCKS);
    // OPTIMAL TRANSFER LENGTH GRANULARITY.
    page.put_u16(physical as u16);
    page.put_u32(transfer);
    // OPTIMAL TRANSFER LENGTH: 1 MiB.
    page.put_u32(transfer.min((1 << 20) / LOGICAL));
    // MAXIMUM PREFETCH LENGTH: not told.
    page.put_u32(0);
    page.put_u32(thin::UNMAP_BLOCKS);
    page.put_u32(thin::UNMAP_DESCRIPTORS);
    // OPTIMAL UNMAP GRANULARITY, and UGAVALID with the alignment 0.
    page.put_u32(u32::try_from(call.unit.extent / u64::from(LOGICAL)).unwrap_or(u32::MAX));
    page.put_u32(0x8000_0000);
    page.put_u64(thin::WRITE_SAME_BLOCKS);
    // MAXIMUM ATOMIC TRANSFER LENGTH, ATOMIC ALIGNMENT and ATOMIC TRANSFER LENGTH GRANULARITY; zeros where WRITE ATOMIC
    // is not supported.
    let atomic = call.nexus.target.options.atomic / LOGICAL;
    page.put_u32(atomic);
    page.put_u32(if atomic == 0 { 0 } else { physical });
    page.put_u32(if atomic == 0 { 0 } else { physical });
    // No atomic boundaries.
    page.put_u64(0);
    out.put_slice(&page);
}

/// Third-party copy (SPC-4, 7.8.17): the commands that are supported, by their service actions.
fn third_party_copy(out: &mut BytesMut) {
    let mut list = BytesMut::new();
    for code in [0x83, 0x84] {
        let actions: Vec<u8> = operations::of_code(code).iter().filter_map(|operation| operation.action).collect();
        list.put_slice(&[code, actions.len() as u8]);
        list.put_slice(&actions);
    }
    // The descriptor's length is a multiple of 4.
    let len = (list.len() + 1 + 3) & !3;
    // Supported commands, 0001h.
    out.put_u16(0x0001);
    out.put_u16(len as u16);
    out.put_u8(list.len() as u8);
    out.put_slice(&list);
    out.put_bytes(0, len - 1 - list.len());
}
