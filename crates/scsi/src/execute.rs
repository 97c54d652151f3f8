//! How a command and a task management function are carried out.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};
use tokio_util::sync::CancellationToken;

use crate::call::Call;
use crate::cdb::Cdb;
use crate::command::{Command, Management, ManagementReply, Reply, TaskAttribute, Transfer};
use crate::operations::{self, Op, Operation};
use crate::sense::{Fail, Key, Outcome, Sense, code};
use crate::target::Nexus;
use crate::tasks::Name;
use crate::unit::LogicalUnit;
use crate::{address, dispatch, inquiry, report, request_sense, transfer};

/// Keeps the order of commands as long as one runs.
#[expect(dead_code, reason = "a guard is held, not read")]
enum Gate<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Alone(RwLockWriteGuard<'a, ()>),
    Open,
}

impl Nexus {
    /// The bytes that `cdb` asks for, also where the logical unit does not exist. Nothing for an operation that is not
    /// supported.
    #[must_use]
    pub fn transfer(&self, lun: u64, cdb: &[u8; 16]) -> Transfer {
        let cdb = Cdb(*cdb);
        match (operations::find(&cdb), self.target.unit(lun)) {
            (Ok(operation), Some(unit)) if !unit.supports(operation.op, &self.target.options) => Transfer::None,
            (Ok(operation), _) => transfer::of(operation.op, &cdb),
            (Err(_), _) => Transfer::None,
        }
    }

    /// Carries out a command. It begins when the future is first polled: that is its place in the order of commands.
    /// A reply that [is aborted](Reply::is_aborted) is not sent. A dropped future may have been carried out in part.
    pub async fn execute(&self, command: Command) -> Reply {
        let expected = command.data.len() as u64;
        self.execute_expecting(command, expected).await
    }

    /// The same, where the initiator means to send `expected` bytes, and the transport takes no more of them than the
    /// CDB asks for. COMPARE AND WRITE and WRITE SAME are refused if the two differ.
    pub async fn execute_expecting(&self, command: Command, expected: u64) -> Reply {
        let task = match self.tasks.begin(Name { lun: command.lun, tag: command.tag }) {
            Ok(task) => task,
            Err(fail) => return reply(Err(fail), false),
        };
        let unit = self.target.unit(command.lun);
        let carried = {
            let finishes = AtomicBool::new(false);
            let mut work = pin!(self.carry_out(unit, &command, expected, task.cancel(), &finishes));
            let carried = task.cancel().run_until_cancelled(work.as_mut()).await;
            if carried.is_none() && finishes.load(Ordering::Relaxed) {
                // A computation may have writes under way, and a reservation be written. The task is over with them.
                let _ = work.await;
            }
            carried
        };
        // What was cancelled while it was in the set is aborted, also where its work noticed that first and failed.
        let cancel = task.cancel().clone();
        drop(task);
        let Some(outcome) = carried.filter(|_| !cancel.is_cancelled()) else { return Reply::status(Reply::ABORTED) };
        let descriptors = outcome.is_err() && unit.is_some_and(|unit| unit.state.lock().modes.descriptors());
        reply(outcome, descriptors)
    }

    /// Sets `finishes` once the future must not be dropped any more, but told to end by `cancel`.
    async fn carry_out(&self, unit: Option<&Arc<LogicalUnit>>, command: &Command, expected: u64, cancel: &CancellationToken, finishes: &AtomicBool) -> Outcome {
        let cdb = Cdb(command.cdb);
        let found = operations::find(&cdb);
        let Some(unit) = unit else { return self.without_unit(command.lun, &cdb, found) };
        let call = Call { nexus: self, unit, cdb: &cdb, data: &command.data, expected, cancel };
        if let Ok(operation) = &found
            && cdb.bit(operation.usage.len() - 1, 2)
        {
            // NACA: there is no auto contingent allegiance.
            return Err(Sense::cdb_bit(operation.usage.len() as u16 - 1, 2).into());
        }
        // Without these, an initiator could not find out what waits for it.
        if let Ok(operation @ Operation { op: Op::Inquiry | Op::ReportLuns | Op::RequestSense, .. }) = found {
            return dispatch::run(&call, operation).await;
        }
        let gate = match command.attribute {
            TaskAttribute::Simple => Gate::Shared(unit.gate.read().await),
            TaskAttribute::Ordered => Gate::Alone(unit.gate.write().await),
            TaskAttribute::HeadOfQueue => Gate::Open,
            TaskAttribute::Aca => return Err(Sense::new(Key::Aborted, code::INVALID_MESSAGE).into()),
        };
        // Before a reservation is looked for, they must be known.
        unit.settle_for_command().await?;
        // An operation that does not exist reports a unit attention, too, and meets no reservation.
        unit.admit(self.id, &self.port, found.as_ref().map_or(operations::Access::Free, |operation| operation.access))?;
        let operation = found?;
        tracing::trace!(lun = unit.lun, command = operation.name, "a command runs");
        if !unit.supports(operation.op, &self.target.options) {
            return Err(Sense::illegal(code::INVALID_OPERATION_CODE).into());
        }
        finishes.store(matches!(operation.op, Op::ExecOut | Op::PersistentOut), Ordering::Relaxed);
        if matches!(operation.op, Op::ExecOut | Op::ExecIn | Op::Sanitize) {
            // These may take long: they wait for their turn, but later commands don't wait for them.
            drop(gate);
            return dispatch::run(&call, operation).await;
        }
        dispatch::run(&call, operation).await
    }

    /// What a target says for a logical unit that does not exist (SPC-4, 4.7.4.1 in SAM-5).
    fn without_unit(&self, lun: u64, cdb: &Cdb, found: Result<&Operation, Sense>) -> Outcome {
        match found.map(|operation| operation.op) {
            Ok(Op::Inquiry) => inquiry::absent(&self.target.options, cdb),
            Ok(Op::ReportLuns) if lun == address::REPORT_LUNS || address::number(lun) == Some(0) => report::luns(&self.target, cdb),
            Ok(Op::RequestSense) => request_sense::absent(cdb),
            _ => Err(Sense::illegal(code::LOGICAL_UNIT_NOT_SUPPORTED).into()),
        }
    }

    /// Carries out a task management function, and waits until the commands that it ends are over. These must be
    /// polled meanwhile, by other tasks of the runtime for example.
    pub async fn manage(&self, function: Management) -> ManagementReply {
        let lun = match function {
            Management::AbortTask { lun, .. } | Management::AbortTaskSet { lun } | Management::ClearTaskSet { lun } | Management::LunReset { lun } => Some(lun),
            Management::TargetWarmReset | Management::TargetColdReset => None,
        };
        let unit = lun.and_then(|lun| self.target.unit(lun));
        if lun.is_some() && unit.is_none() {
            return ManagementReply::LunDoesNotExist;
        }
        let number = lun.and_then(address::number);
        let of_unit = |name: Name| number.is_none() || address::number(name.lun) == number;
        match function {
            Management::AbortTask { lun, tag } => {
                let ended = self.tasks.abort(|name| name == Name { lun, tag });
                self.tasks.ended(&ended).await;
                if ended.is_empty() { ManagementReply::TaskDoesNotExist } else { ManagementReply::Complete }
            }
            Management::AbortTaskSet { .. } => {
                let ended = self.tasks.abort(of_unit);
                self.tasks.ended(&ended).await;
                ManagementReply::Complete
            }
            Management::ClearTaskSet { .. } => {
                for nexus in end_everywhere(&self.target.nexuses(), of_unit).await {
                    if let (true, Some(unit)) = (nexus != self.id, unit) {
                        unit.state.lock().attend(nexus, code::COMMANDS_CLEARED);
                    }
                }
                ManagementReply::Complete
            }
            Management::LunReset { .. } | Management::TargetWarmReset | Management::TargetColdReset => {
                end_everywhere(&self.target.nexuses(), of_unit).await;
                let units = self.target.units.iter().filter(|other| number.is_none_or(|number| u16::from(other.lun) == number));
                let attention = if number.is_some() { code::BUS_DEVICE_RESET } else { code::TARGET_RESET };
                units.for_each(|unit| unit.state.lock().reset(attention));
                ManagementReply::Complete
            }
        }
    }
}

/// Ends the commands that `which` names, and returns the nexuses that had one.
async fn end_everywhere(nexuses: &[Arc<Nexus>], which: impl Fn(Name) -> bool) -> Vec<u64> {
    let ended: Vec<_> = nexuses.iter().map(|nexus| (nexus, nexus.tasks.abort(&which))).filter(|(_, ended)| !ended.is_empty()).collect();
    for (nexus, tasks) in &ended {
        nexus.tasks.ended(tasks).await;
    }
    ended.iter().map(|(nexus, _)| nexus.id).collect()
}

fn reply(outcome: Outcome, descriptors: bool) -> Reply {
    match outcome {
        Ok(data) => Reply { data, ..Reply::status(Reply::GOOD) },
        Err(Fail::Check(sense)) => Reply { sense: sense.bytes(descriptors), ..Reply::status(Reply::CHECK_CONDITION) },
        Err(Fail::Status(status)) => Reply::status(status),
    }
}
