//! The operations: their codes, the bits of a CDB that matter, and what a reservation says to them.

use crate::cdb::Cdb;
use crate::sense::{Sense, code};

/// What carries an operation out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ReportLuns,
    ModeSelect,
    ModeSense,
    LogSense,
    Reserve,
    Release,
    PersistentIn,
    PersistentOut,
    StartStop,
    PreventAllow,
    ReadCapacity,
    ReadCapacity16,
    GetLbaStatus,
    Read,
    Write,
    WriteAndVerify,
    Verify,
    Prefetch,
    SynchronizeCache,
    ReadDefectData,
    WriteSame,
    Unmap,
    Sanitize,
    ExtendedCopy,
    ReceiveCopyResults,
    CompareAndWrite,
    OrWrite,
    WriteAtomic,
    ReportPortGroups,
    ReportOperations,
    ReportFunctions,
    ExecOut,
    ExecIn,
}

/// What another initiator's reservation says to an operation (SPC-4, 5.12.1 and SBC-3, 4.17).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// It never conflicts.
    Free,
    /// It conflicts with RESERVE, and with no persistent reservation.
    Query,
    /// It conflicts with exclusive access, not with write exclusive.
    Read,
    /// It conflicts with both.
    Write,
    /// The operation decides by itself.
    Own,
}

/// One operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) op: Op,
    pub(crate) code: u8,
    pub(crate) action: Option<u8>,
    pub(crate) access: Access,
    /// For each byte of the CDB the bits that are evaluated (SPC-4, 6.34.3), as many as the CDB has.
    pub(crate) usage: &'static [u8],
    /// Seconds after which an initiator should take the command for lost; zero is none.
    pub(crate) recommended: u32,
    /// A name for people.
    pub(crate) name: &'static str,
}

const fn plain(op: Op, access: Access, usage: &'static [u8], recommended: u32, name: &'static str) -> Operation {
    Operation { op, code: usage[0], action: None, access, usage, recommended, name }
}

const fn action(op: Op, access: Access, usage: &'static [u8], recommended: u32, name: &'static str) -> Operation {
    Operation { op, code: usage[0], action: Some(usage[1] & 0x1F), access, usage, recommended, name }
}

/// The bit NACA of the control byte, the only one that is evaluated.
const C: u8 = 0x04;
const FF: u8 = 0xFF;

/// All operations, by their codes.
#[rustfmt::skip]
pub(crate) static OPERATIONS: &[Operation] = &[
    plain(Op::TestUnitReady, Access::Query, &[0x00, 0, 0, 0, 0, C], 10, "TEST UNIT READY"),
    plain(Op::RequestSense, Access::Free, &[0x03, 0x01, 0, 0, FF, C], 10, "REQUEST SENSE"),
    plain(Op::Read, Access::Read, &[0x08, 0x1F, FF, FF, FF, C], 60, "READ(6)"),
    plain(Op::Write, Access::Write, &[0x0A, 0x1F, FF, FF, FF, C], 60, "WRITE(6)"),
    plain(Op::Inquiry, Access::Free, &[0x12, 0x01, FF, FF, FF, C], 10, "INQUIRY"),
    plain(Op::ModeSelect, Access::Write, &[0x15, 0x11, 0, 0, FF, C], 10, "MODE SELECT(6)"),
    plain(Op::Reserve, Access::Own, &[0x16, 0x1F, 0, 0, 0, C], 10, "RESERVE(6)"),
    plain(Op::Release, Access::Own, &[0x17, 0x1F, 0, 0, 0, C], 10, "RELEASE(6)"),
    plain(Op::ModeSense, Access::Read, &[0x1A, 0x08, FF, FF, FF, C], 10, "MODE SENSE(6)"),
    plain(Op::StartStop, Access::Own, &[0x1B, 0x01, 0, 0x0F, 0xF7, C], 60, "START STOP UNIT"),
    plain(Op::PreventAllow, Access::Own, &[0x1E, 0, 0, 0, 0x03, C], 10, "PREVENT ALLOW MEDIUM REMOVAL"),
    plain(Op::ReadCapacity, Access::Query, &[0x25, 0, FF, FF, FF, FF, 0, 0, 0x01, C], 10, "READ CAPACITY(10)"),
    plain(Op::Read, Access::Read, &[0x28, 0xF8, FF, FF, FF, FF, 0, FF, FF, C], 60, "READ(10)"),
    plain(Op::Write, Access::Write, &[0x2A, 0xF8, FF, FF, FF, FF, 0, FF, FF, C], 60, "WRITE(10)"),
    plain(Op::WriteAndVerify, Access::Write, &[0x2E, 0xF6, FF, FF, FF, FF, 0, FF, FF, C], 60, "WRITE AND VERIFY(10)"),
    plain(Op::Verify, Access::Read, &[0x2F, 0xF6, FF, FF, FF, FF, 0, FF, FF, C], 60, "VERIFY(10)"),
    plain(Op::Prefetch, Access::Read, &[0x34, 0x02, FF, FF, FF, FF, 0, FF, FF, C], 60, "PRE-FETCH(10)"),
    plain(Op::SynchronizeCache, Access::Write, &[0x35, 0x02, FF, FF, FF, FF, 0, FF, FF, C], 120, "SYNCHRONIZE CACHE(10)"),
    plain(Op::ReadDefectData, Access::Read, &[0x37, 0, 0x1F, 0, 0, 0, 0, FF, FF, C], 10, "READ DEFECT DATA(10)"),
    plain(Op::WriteSame, Access::Write, &[0x41, 0xF8, FF, FF, FF, FF, 0, FF, FF, C], 120, "WRITE SAME(10)"),
    plain(Op::Unmap, Access::Write, &[0x42, 0x01, 0, 0, 0, 0, 0, FF, FF, C], 120, "UNMAP"),
    action(Op::Sanitize, Access::Write, &[0x48, 0xA1, 0, 0, 0, 0, 0, FF, FF, C], 0, "SANITIZE, OVERWRITE"),
    action(Op::Sanitize, Access::Write, &[0x48, 0xA2, 0, 0, 0, 0, 0, FF, FF, C], 0, "SANITIZE, BLOCK ERASE"),
    action(Op::Sanitize, Access::Write, &[0x48, 0xBF, 0, 0, 0, 0, 0, FF, FF, C], 0, "SANITIZE, EXIT FAILURE MODE"),
    plain(Op::LogSense, Access::Query, &[0x4D, 0x01, FF, FF, 0, FF, FF, FF, FF, C], 10, "LOG SENSE"),
    plain(Op::ModeSelect, Access::Write, &[0x55, 0x11, 0, 0, 0, 0, 0, FF, FF, C], 10, "MODE SELECT(10)"),
    plain(Op::ModeSense, Access::Read, &[0x5A, 0x18, FF, FF, 0, 0, 0, FF, FF, C], 10, "MODE SENSE(10)"),
    action(Op::PersistentIn, Access::Own, &[0x5E, 0x00, 0, 0, 0, 0, 0, FF, FF, C], 10, "PERSISTENT RESERVE IN, READ KEYS"),
    action(Op::PersistentIn, Access::Own, &[0x5E, 0x01, 0, 0, 0, 0, 0, FF, FF, C], 10, "PERSISTENT RESERVE IN, READ RESERVATION"),
    action(Op::PersistentIn, Access::Own, &[0x5E, 0x02, 0, 0, 0, 0, 0, FF, FF, C], 10, "PERSISTENT RESERVE IN, REPORT CAPABILITIES"),
    action(Op::PersistentIn, Access::Own, &[0x5E, 0x03, 0, 0, 0, 0, 0, FF, FF, C], 10, "PERSISTENT RESERVE IN, READ FULL STATUS"),
    action(Op::PersistentOut, Access::Own, &[0x5F, 0x00, 0, 0, 0, FF, FF, FF, FF, C], 10, "PERSISTENT RESERVE OUT, REGISTER"),
    action(Op::PersistentOut, Access::Own, &[0x5F, 0x01, FF, 0, 0, FF, FF, FF, FF, C], 10, "PERSISTENT RESERVE OUT, RESERVE"),
    action(Op::PersistentOut, Access::Own, &[0x5F, 0x02, FF, 0, 0, FF, FF, FF, FF, C], 10, "PERSISTENT RESERVE OUT, RELEASE"),
    action(Op::PersistentOut, Access::Own, &[0x5F, 0x03, 0, 0, 0, FF, FF, FF, FF, C], 10, "PERSISTENT RESERVE OUT, CLEAR"),
    action(Op::PersistentOut, Access::Own, &[0x5F, 0x04, FF, 0, 0, FF, FF, FF, FF, C], 10, "PERSISTENT RESERVE OUT, PREEMPT"),
    action(Op::PersistentOut, Access::Own, &[0x5F, 0x05, FF, 0, 0, FF, FF, FF, FF, C], 10, "PERSISTENT RESERVE OUT, PREEMPT AND ABORT"),
    action(Op::PersistentOut, Access::Own, &[0x5F, 0x06, 0, 0, 0, FF, FF, FF, FF, C], 10, "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY"),
    action(Op::PersistentOut, Access::Own, &[0x5F, 0x07, 0, 0, 0, FF, FF, FF, FF, C], 10, "PERSISTENT RESERVE OUT, REGISTER AND MOVE"),
    action(Op::ExtendedCopy, Access::Write, &[0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, C], 300, "EXTENDED COPY(LID1)"),
    action(Op::ExtendedCopy, Access::Write, &[0x83, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, C], 300, "EXTENDED COPY(LID4)"),
    action(Op::ReceiveCopyResults, Access::Read, &[0x84, 0x00, FF, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, C], 10, "RECEIVE COPY STATUS(LID1)"),
    action(Op::ReceiveCopyResults, Access::Read, &[0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, C], 10, "RECEIVE COPY OPERATING PARAMETERS"),
    action(Op::ReceiveCopyResults, Access::Read, &[0x84, 0x04, FF, 0, 0, 0, 0, 0, 0, 0, FF, FF, FF, FF, 0, C], 10, "RECEIVE COPY FAILURE DETAILS(LID1)"),
    action(Op::ReceiveCopyResults, Access::Read, &[0x84, 0x05, FF, FF, FF, FF, 0, 0, 0, 0, FF, FF, FF, FF, 0, C], 10, "RECEIVE COPY STATUS(LID4)"),
    plain(Op::Read, Access::Read, &[0x88, 0xF8, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "READ(16)"),
    plain(Op::CompareAndWrite, Access::Write, &[0x89, 0xF8, FF, FF, FF, FF, FF, FF, FF, FF, 0, 0, 0, FF, 0, C], 60, "COMPARE AND WRITE"),
    plain(Op::Write, Access::Write, &[0x8A, 0xF8, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "WRITE(16)"),
    plain(Op::OrWrite, Access::Write, &[0x8B, 0xF8, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "ORWRITE(16)"),
    plain(Op::WriteAndVerify, Access::Write, &[0x8E, 0xF6, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "WRITE AND VERIFY(16)"),
    plain(Op::Verify, Access::Read, &[0x8F, 0xF6, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "VERIFY(16)"),
    plain(Op::Prefetch, Access::Read, &[0x90, 0x02, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "PRE-FETCH(16)"),
    plain(Op::SynchronizeCache, Access::Write, &[0x91, 0x02, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 120, "SYNCHRONIZE CACHE(16)"),
    plain(Op::WriteSame, Access::Write, &[0x93, 0xF9, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 120, "WRITE SAME(16)"),
    plain(Op::WriteAtomic, Access::Write, &[0x9C, 0xF8, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "WRITE ATOMIC(16)"),
    action(Op::ReadCapacity16, Access::Query, &[0x9E, 0x10, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0x01, C], 10, "READ CAPACITY(16)"),
    action(Op::GetLbaStatus, Access::Read, &[0x9E, 0x12, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "GET LBA STATUS"),
    plain(Op::ReportLuns, Access::Free, &[0xA0, 0, FF, 0, 0, 0, FF, FF, FF, FF, 0, C], 10, "REPORT LUNS"),
    action(Op::ReportPortGroups, Access::Query, &[0xA3, 0xEA, 0, 0, 0, 0, FF, FF, FF, FF, 0, C], 10, "REPORT TARGET PORT GROUPS"),
    action(Op::ReportOperations, Access::Read, &[0xA3, 0x0C, 0x87, FF, FF, FF, FF, FF, FF, FF, 0, C], 10, "REPORT SUPPORTED OPERATION CODES"),
    action(Op::ReportFunctions, Access::Read, &[0xA3, 0x0D, 0x80, 0, 0, 0, FF, FF, FF, FF, 0, C], 10, "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS"),
    plain(Op::Read, Access::Read, &[0xA8, 0xF8, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "READ(12)"),
    plain(Op::Write, Access::Write, &[0xAA, 0xF8, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "WRITE(12)"),
    plain(Op::WriteAndVerify, Access::Write, &[0xAE, 0xF6, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "WRITE AND VERIFY(12)"),
    plain(Op::Verify, Access::Read, &[0xAF, 0xF6, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "VERIFY(12)"),
    plain(Op::ReadDefectData, Access::Read, &[0xB7, 0x1F, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 10, "READ DEFECT DATA(12)"),
    plain(Op::ExecOut, Access::Write, &[0xC0, 0x01, FF, FF, FF, FF, 0, 0, 0, 0, FF, FF, FF, FF, 0, C], 0, "EXEC OUT"),
    plain(Op::ExecIn, Access::Read, &[0xC1, 0x01, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, FF, 0, C], 60, "EXEC IN"),
];

/// For each operation code its first operation and how many there are.
static INDEX: [(u8, u8); 256] = {
    let mut index = [(0, 0); 256];
    let mut at = 0;
    while at < OPERATIONS.len() {
        let entry = &mut index[OPERATIONS[at].code as usize];
        if entry.1 == 0 {
            entry.0 = at as u8;
        }
        entry.1 += 1;
        at += 1;
    }
    index
};

/// The operations of a code.
pub(crate) fn of_code(code: u8) -> &'static [Operation] {
    let (first, count) = INDEX[usize::from(code)];
    &OPERATIONS[usize::from(first)..usize::from(first) + usize::from(count)]
}

/// The operation that `cdb` asks for.
pub(crate) fn find(cdb: &Cdb) -> Result<&'static Operation, Sense> {
    let operations = of_code(cdb.code());
    match operations {
        [] => Err(Sense::illegal(code::INVALID_OPERATION_CODE)),
        [operation] if operation.action.is_none() => Ok(operation),
        _ => operations.iter().find(|operation| operation.action == Some(cdb.action())).ok_or(Sense::cdb_bit(1, 4)),
    }
}
