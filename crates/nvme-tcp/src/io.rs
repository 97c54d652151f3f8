//! Commands of I/O queues over namespaces.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use skytether_common::{Error, Kind};
use skytether_volume::device::{COMPARE_MOST, LOGICAL};
use skytether_volume::{BlockDevice, Zeros};
use tokio_util::sync::CancellationToken;

use crate::admin::Done;
use crate::command::{Command, Status, io, ranges};
use crate::controller::{Controller, Subsystem};
use crate::identify::TRANSFER;

/// All namespaces, for Flush.
const ALL: u32 = u32::MAX;

/// Bytes of data that the host sends with a command.
pub(crate) fn data_of_host(command: &Command) -> Result<u32, Status> {
    let len = match command.opcode() {
        io::WRITE | io::COMPARE => command.blocks() * u64::from(LOGICAL),
        io::DATASET_MANAGEMENT => (u64::from(command.word(10) & 0xff) + 1) * 16,
        io::EXEC_OUT => command.word(11).into(),
        _ => 0,
    };
    u32::try_from(len).ok().filter(|len| *len <= TRANSFER).ok_or(Status::INVALID_FIELD)
}

/// Bytes of data that a command gives at most.
pub(crate) fn data_of_controller(command: &Command) -> Result<u32, Status> {
    let len = match command.opcode() {
        io::READ => command.blocks() * u64::from(LOGICAL),
        io::EXEC_IN => command.word(11).into(),
        _ => 0,
    };
    u32::try_from(len).ok().filter(|len| *len <= TRANSFER).ok_or(Status::INVALID_FIELD)
}

/// Bytes that a command holds while it runs, besides what its capsule has.
pub(crate) fn room(command: &Command, transferred: u32) -> u32 {
    match command.opcode() {
        // The blocks, for the comparison.
        io::COMPARE => transferred + (command.blocks() as u32).saturating_mul(LOGICAL).min(TRANSFER),
        io::VERIFY => TRANSFER,
        _ => transferred,
    }
}

/// Carries out a command, of whose data `data` is what the host sent.
pub(crate) async fn run(subsystem: &Subsystem, controller: &Controller, command: &Command, data: Bytes, cancel: CancellationToken) -> Result<Done, Status> {
    if !controller.is_ready() {
        return Err(Status::SEQUENCE);
    }
    if command.opcode() == io::FLUSH && command.namespace() == ALL {
        return subsystem.flush().await.map(|()| Done::default());
    }
    let device = subsystem.device(command.namespace())?;
    match command.opcode() {
        io::EXEC_OUT => exec_out(subsystem, controller, device, command, data, cancel).await,
        io::EXEC_IN => exec_in(subsystem, controller, command),
        io::FLUSH => done(subsystem, device.flush().await),
        io::DATASET_MANAGEMENT => deallocate(subsystem, controller, device.as_ref(), command, &data).await,
        _ => blocks(subsystem, controller, device.as_ref(), command, data).await,
    }
}

fn done(subsystem: &Subsystem, outcome: Result<(), Error>) -> Result<Done, Status> {
    outcome.map(|()| Done::default()).map_err(|error| failed(subsystem, &error))
}

fn failed(subsystem: &Subsystem, error: &Error) -> Status {
    subsystem.failed(error)
}

/// The bytes of `blocks` from `first`, within the device.
fn place(device: &dyn BlockDevice, first: u64, blocks: u64) -> Result<(u64, u64), Status> {
    let unit = u64::from(LOGICAL);
    let end = first.checked_add(blocks).filter(|end| *end <= device.info().size / unit).ok_or(Status::OUT_OF_RANGE)?;
    Ok((first * unit, (end - first) * unit))
}

/// Commands with a first block and a number of blocks.
async fn blocks(subsystem: &Subsystem, controller: &Controller, device: &dyn BlockDevice, command: &Command, data: Bytes) -> Result<Done, Status> {
    if !matches!(command.opcode(), io::READ | io::WRITE | io::COMPARE | io::WRITE_ZEROES | io::VERIFY) {
        return Err(Status::INVALID_OPCODE);
    }
    if command.protects() {
        return Err(Status::INVALID_FIELD);
    }
    let (at, len) = place(device, command.first_block(), command.blocks())?;
    let durability = controller.durability(command.is_durable());
    let counters = &subsystem.counters;
    let fails = |error: Error| failed(subsystem, &error);
    match command.opcode() {
        io::READ => {
            // What is read with force unit access must be durable first.
            if command.is_durable() {
                device.flush().await.map_err(fails)?;
            }
            let data = device.read(at, len as u32).await.map_err(fails)?;
            counters.reads.fetch_add(1, Ordering::Relaxed);
            counters.blocks_read.fetch_add(command.blocks(), Ordering::Relaxed);
            Ok(Done::data(data))
        }
        io::WRITE => {
            device.write(at, data, durability).await.map_err(fails)?;
            counters.writes.fetch_add(1, Ordering::Relaxed);
            counters.blocks_written.fetch_add(command.blocks(), Ordering::Relaxed);
            Ok(Done::default())
        }
        io::COMPARE => {
            let stored = device.read(at, len as u32).await.map_err(fails)?;
            counters.reads.fetch_add(1, Ordering::Relaxed);
            if stored == data { Ok(Done::default()) } else { Err(Status::COMPARE_FAILURE) }
        }
        io::WRITE_ZEROES => {
            let how = if command.deallocates() { Zeros::Unmapped } else { Zeros::Mapped };
            done(subsystem, device.zero(at, len, how, durability).await)
        }
        _ => {
            let end = at + len;
            let mut from = at;
            while from < end {
                let len = u64::from(TRANSFER).min(end - from);
                device.read(from, len as u32).await.map_err(fails)?;
                from += len;
            }
            Ok(Done::default())
        }
    }
}

/// Compare and Write, fused: both succeed or none.
pub(crate) async fn compare_and_write(
    subsystem: &Subsystem,
    controller: &Controller,
    (compare, expected): (&Command, Bytes),
    (write, data): (&Command, Bytes),
) -> Result<Done, Status> {
    if !controller.is_ready() {
        return Err(Status::SEQUENCE);
    }
    let same = (compare.namespace(), compare.first_block(), compare.blocks()) == (write.namespace(), write.first_block(), write.blocks());
    if !same || compare.opcode() != io::COMPARE || write.opcode() != io::WRITE || compare.protects() || write.protects() {
        return Err(Status::INVALID_FIELD);
    }
    let device = subsystem.device(write.namespace())?;
    let (at, len) = place(device.as_ref(), write.first_block(), write.blocks())?;
    if len > COMPARE_MOST.into() {
        return Err(Status::ATOMIC_EXCEEDED);
    }
    let durability = controller.durability(write.is_durable());
    match device.compare_and_write(at, expected, data, durability).await {
        Ok(None) => Ok(Done::default()),
        Ok(Some(_)) => Err(Status::COMPARE_FAILURE),
        Err(error) => Err(failed(subsystem, &error)),
    }
}

async fn deallocate(subsystem: &Subsystem, controller: &Controller, device: &dyn BlockDevice, command: &Command, data: &Bytes) -> Result<Done, Status> {
    let count = (command.word(10) & 0xff) as usize + 1;
    let ranges = ranges(data, count).ok_or(Status::DATA_LENGTH)?;
    let places = ranges.iter().map(|range| place(device, range.first, range.blocks.into())).collect::<Result<Vec<_>, Status>>()?;
    // The other attributes are hints.
    if command.word(11) & 1 << 2 != 0 {
        for (at, len) in places.into_iter().filter(|(_, len)| *len > 0) {
            let freed = device.zero(at, len, Zeros::Unmapped, controller.durability(false)).await;
            freed.map_err(|error| failed(subsystem, &error))?;
        }
    }
    Ok(Done::default())
}

/// Runs the descriptor and holds its result. The completion has the result's length.
async fn exec_out(
    subsystem: &Subsystem,
    controller: &Controller,
    device: &Arc<dyn BlockDevice>,
    command: &Command,
    descriptor: Bytes,
    cancel: CancellationToken,
) -> Result<Done, Status> {
    let exec = subsystem.exec.as_ref().ok_or(Status::INVALID_OPCODE)?;
    if command.word(12) | command.word(13) | command.word(14) | command.word(15) != 0 {
        return Err(Status::INVALID_FIELD);
    }
    if descriptor.len() > exec.limits().descriptor as usize {
        return Err(Status::EXEC_EXHAUSTED);
    }
    // A result of an earlier command of this name would be mistaken for this one's.
    controller.results.lock().forget(command.namespace(), command.word(10));
    let result = exec.run(Arc::clone(device), descriptor, cancel.clone()).await.map_err(|error| {
        tracing::debug!(%error, "a computation failed");
        match error.kind() {
            _ if cancel.is_cancelled() => Status::ABORTED,
            Kind::Unsupported => Status::EXEC_UNSUPPORTED,
            Kind::Exhausted => Status::EXEC_EXHAUSTED,
            _ => failed(subsystem, &error),
        }
    })?;
    let len = result.len() as u64;
    let held = controller.results.lock().hold(command.namespace(), command.word(10), result, Instant::now());
    if held { Ok(Done::result(len)) } else { Err(Status::EXEC_EXHAUSTED) }
}

/// Gives a part of a result. The completion has the length of the whole.
fn exec_in(subsystem: &Subsystem, controller: &Controller, command: &Command) -> Result<Done, Status> {
    if subsystem.exec.is_none() {
        return Err(Status::INVALID_OPCODE);
    }
    let (list, len, offset, flags) = (command.word(10), command.word(11) as usize, command.word(12) as usize, command.word(13));
    if flags > 1 || command.word(14) | command.word(15) != 0 {
        return Err(Status::INVALID_FIELD);
    }
    let mut results = controller.results.lock();
    let result = results.get(command.namespace(), list, Instant::now()).ok_or(Status::NO_RESULT)?;
    if offset > result.len() {
        return Err(Status::INVALID_FIELD);
    }
    if flags & 1 != 0 {
        results.forget(command.namespace(), list);
    }
    Ok(Done { result: result.len() as u64, data: result.slice(offset..result.len().min(offset.saturating_add(len))) })
}
