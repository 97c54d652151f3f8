//! From an operation to what carries it out.

use bytes::Bytes;

use crate::call::Call;
use crate::operations::{Op, Operation};
use crate::sense::Outcome;
use crate::{atomic, capacity, copy, exec, inquiry, io, mode, report, request_sense, reserve, sanitize, status, thin};

/// Carries out `operation`, which the nexus may do.
pub(crate) async fn run(call: &Call<'_>, operation: &Operation) -> Outcome {
    let op = operation.op;
    match op {
        Op::TestUnitReady | Op::Read | Op::Verify | Op::Prefetch | Op::SynchronizeCache | Op::GetLbaStatus => call.unit.ready()?,
        Op::Write | Op::WriteAndVerify | Op::WriteSame | Op::Unmap | Op::CompareAndWrite | Op::OrWrite | Op::WriteAtomic | Op::Sanitize => {
            call.unit.ready()?;
            call.unit.writable()?;
        }
        _ => {}
    }
    match op {
        Op::Read => io::read(call).await,
        Op::Write => io::write(call).await,
        // The others are rarer, and their futures larger: these are made only when they run.
        _ => Box::pin(other(call, op)).await,
    }
}

async fn other(call: &Call<'_>, op: Op) -> Outcome {
    match op {
        Op::TestUnitReady => Ok(Bytes::new()),
        Op::Read => io::read(call).await,
        Op::Write => io::write(call).await,
        Op::WriteAndVerify => io::write_and_verify(call).await,
        Op::Verify => io::verify(call).await,
        Op::Prefetch => io::prefetch(call).await,
        Op::SynchronizeCache => io::synchronize_cache(call).await,
        Op::CompareAndWrite => atomic::compare_and_write(call).await,
        Op::WriteAtomic => atomic::write_atomic(call).await,
        Op::OrWrite => atomic::or_write(call).await,
        Op::Unmap => thin::unmap(call).await,
        Op::WriteSame => thin::write_same(call).await,
        Op::GetLbaStatus => thin::get_lba_status(call).await,
        Op::Sanitize => sanitize::sanitize(call).await,
        Op::ExtendedCopy => copy::extended_copy(call).await,
        Op::ReceiveCopyResults => copy::receive_copy_results(call),
        Op::ExecOut => exec::exec_out(call).await,
        Op::ExecIn => exec::exec_in(call),
        Op::Inquiry => inquiry::inquiry(call),
        Op::RequestSense => request_sense::request_sense(call),
        Op::ReadCapacity => capacity::read_capacity(call),
        Op::ReadCapacity16 => capacity::read_capacity16(call),
        Op::ModeSense => mode::mode_sense(call),
        Op::ModeSelect => mode::mode_select(call).await,
        Op::LogSense => status::log_sense(call),
        Op::StartStop => status::start_stop(call).await,
        Op::PreventAllow => status::prevent_allow(call),
        Op::ReadDefectData => status::read_defect_data(call),
        Op::Reserve => reserve::reserve(call),
        Op::Release => reserve::release(call),
        Op::PersistentIn => reserve::persistent_in(call),
        Op::PersistentOut => reserve::persistent_out(call).await,
        Op::ReportLuns => report::luns(&call.nexus.target, call.cdb),
        Op::ReportOperations => report::operation_codes(call),
        Op::ReportFunctions => report::functions(call),
        Op::ReportPortGroups => report::port_groups(call),
    }
}
