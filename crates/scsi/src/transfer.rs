//! How many bytes a CDB asks for.

use skytether_volume::device::LOGICAL;

use crate::cdb::Cdb;
use crate::command::Transfer;
use crate::operations::Op;

const BLOCK: u64 = LOGICAL as u64;

/// What `cdb` asks for, which is of `op`.
pub(crate) fn of(op: Op, cdb: &Cdb) -> Transfer {
    let (_, count) = cdb.blocks();
    let transfer = match op {
        Op::TestUnitReady | Op::Reserve | Op::Release | Op::StartStop | Op::PreventAllow | Op::Prefetch | Op::SynchronizeCache => Transfer::None,
        Op::Inquiry => Transfer::In(cdb.u16(3).into()),
        Op::RequestSense => Transfer::In(cdb.u8(4).into()),
        Op::ModeSense if cdb.len() == 6 => Transfer::In(cdb.u8(4).into()),
        Op::ModeSelect if cdb.len() == 6 => Transfer::Out(cdb.u8(4).into()),
        Op::ModeSense | Op::PersistentIn | Op::LogSense => Transfer::In(cdb.u16(7).into()),
        Op::ModeSelect | Op::Unmap | Op::Sanitize => Transfer::Out(cdb.u16(7).into()),
        Op::PersistentOut => Transfer::Out(cdb.u32(5).into()),
        Op::ReadDefectData if cdb.len() == 10 => Transfer::In(cdb.u16(7).into()),
        Op::ReportLuns | Op::ReportPortGroups | Op::ReportOperations | Op::ReportFunctions | Op::ReadDefectData => Transfer::In(cdb.u32(6).into()),
        Op::ReadCapacity => Transfer::In(8),
        Op::ReadCapacity16 | Op::GetLbaStatus | Op::ReceiveCopyResults | Op::ExecIn => Transfer::In(cdb.u32(10).into()),
        Op::ExtendedCopy | Op::ExecOut => Transfer::Out(cdb.u32(10).into()),
        Op::Read => Transfer::In(count * BLOCK),
        Op::Write | Op::WriteAndVerify | Op::OrWrite => Transfer::Out(count * BLOCK),
        Op::WriteAtomic => Transfer::Out(u64::from(cdb.u16(12)) * BLOCK),
        Op::CompareAndWrite => Transfer::Out(u64::from(cdb.u8(13)) * 2 * BLOCK),
        Op::Verify => match cdb.u8(1) >> 1 & 3 {
            1 => Transfer::Out(count * BLOCK),
            3 if count > 0 => Transfer::Out(BLOCK),
            _ => Transfer::None,
        },
        // NDOB: no data-out buffer.
        Op::WriteSame if cdb.len() == 16 && cdb.bit(1, 0) => Transfer::None,
        Op::WriteSame => Transfer::Out(BLOCK),
    };
    match transfer {
        Transfer::In(0) | Transfer::Out(0) => Transfer::None,
        other => other,
    }
}
