//! RESERVE and RELEASE, PERSISTENT RESERVE IN and OUT: their bytes.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::sync::OwnedMutexGuard;

use crate::address;
use crate::call::{CONFLICT, Call, allocated};
use crate::cdb::{Cdb, be16, be32, be64};
use crate::command::InitiatorPort;
use crate::note::unsettled;
use crate::persistent::{Effects, Persistent, Type};
use crate::sense::{Key, Outcome, Sense, code};
use crate::target::{Nexus, Target};
use crate::tasks::Name;
use crate::unit::{LogicalUnit, NexusId, Note};

/// Service actions of PERSISTENT RESERVE OUT.
mod action {
    pub(super) const REGISTER: u8 = 0;
    pub(super) const RESERVE: u8 = 1;
    pub(super) const RELEASE: u8 = 2;
    pub(super) const CLEAR: u8 = 3;
    pub(super) const PREEMPT: u8 = 4;
    pub(super) const PREEMPT_AND_ABORT: u8 = 5;
    pub(super) const REGISTER_AND_IGNORE: u8 = 6;
}

/// Whether RESERVE and RELEASE do nothing, since there are persistent reservations (SPC-3, 5.6.3: CRH).
fn compatible(call: &Call<'_>, persistent: &Persistent) -> Outcome<bool> {
    if persistent.registrations.is_empty() {
        return Ok(false);
    }
    let port = &call.nexus.port;
    if persistent.reservation.is_some() && persistent.may(port) { Ok(true) } else { Err(CONFLICT) }
}

/// Extents and third parties are obsolete.
fn whole_unit(call: &Call<'_>) -> Outcome<()> {
    if call.cdb.u8(1) & 0x1F != 0 { Err(Sense::cdb_bit(1, 4).into()) } else { Ok(()) }
}

pub(crate) fn reserve(call: &Call<'_>) -> Outcome {
    whole_unit(call)?;
    let mut state = call.unit.state.lock();
    if !compatible(call, &state.persistent)? {
        match state.reserved {
            Some(holder) if holder != call.nexus.id => return Err(CONFLICT),
            _ => state.reserved = Some(call.nexus.id),
        }
    }
    Ok(Bytes::new())
}

pub(crate) fn release(call: &Call<'_>) -> Outcome {
    whole_unit(call)?;
    let mut state = call.unit.state.lock();
    // A release by another is no error, and does nothing (SPC-2, 7.16.2.2).
    if !compatible(call, &state.persistent)? && state.reserved == Some(call.nexus.id) {
        state.reserved = None;
    }
    Ok(Bytes::new())
}

pub(crate) fn persistent_in(call: &Call<'_>) -> Outcome {
    let state = call.unit.state.lock();
    if state.reserved.is_some_and(|holder| holder != call.nexus.id) {
        return Err(CONFLICT);
    }
    let persistent = &state.persistent;
    let mut out = BytesMut::new();
    if call.cdb.action() == 2 {
        // CRH and PTPL_C; TMV, ALLOW COMMANDS 1 (TEST UNIT READY never conflicts) and PTPL_A.
        let (can, is) = (u8::from(call.unit.device.keeps_notes()), u8::from(persistent.kept));
        out.put_slice(&[0, 8, 0x10 | can, 0x90 | is, 0xEA, 0x01, 0, 0]);
        return allocated(out, call.cdb.u16(7));
    }
    out.put_u32(persistent.generation);
    out.put_u32(0);
    match call.cdb.action() {
        0 => persistent.registrations.values().for_each(|&key| out.put_u64(key)),
        1 => {
            if let Some(reservation) = &persistent.reservation {
                out.put_u64(persistent.reservation_key());
                out.put_bytes(0, 5);
                out.put_slice(&[reservation.kind as u8, 0, 0]);
            }
        }
        _ => persistent.registrations.iter().for_each(|(port, &key)| put_status(&mut out, persistent, port, key)),
    }
    let len = out.len() as u32 - 8;
    out[4..8].copy_from_slice(&len.to_be_bytes());
    allocated(out, call.cdb.u16(7))
}

/// A full status descriptor (SPC-4, 6.16.5).
fn put_status(out: &mut BytesMut, persistent: &Persistent, port: &InitiatorPort, key: u64) {
    let holder = persistent.reservation.as_ref().filter(|_| persistent.is_holder(port));
    out.put_u64(key);
    out.put_u32(0);
    out.put_slice(&[u8::from(holder.is_some()), holder.map_or(0, |reservation| reservation.kind as u8)]);
    out.put_u32(0);
    out.put_u16(port.target_port);
    let id = transport_id(&port.name);
    out.put_u32(id.len() as u32);
    out.put_slice(&id);
}

/// An iSCSI TransportID of an initiator port (SPC-4, 7.6.4.6): format 1, the name with its session identifier.
fn transport_id(name: &str) -> BytesMut {
    let text = name.as_bytes();
    let text = &text[..text.len().min(1000)];
    let padded = ((text.len() + 4) & !3).max(20);
    let mut out = BytesMut::with_capacity(4 + padded);
    out.put_slice(&[0x45, 0]);
    out.put_u16(padded as u16);
    out.put_slice(text);
    out.put_bytes(0, padded - text.len());
    out
}

/// The name in such a TransportID.
fn name_of(id: &[u8]) -> Option<String> {
    let len = usize::from(be16(id, 2));
    let text = id.get(4..4 + len)?;
    let text = text.split(|&byte| byte == 0).next()?;
    (id[0] == 0x45).then(|| String::from_utf8(text.to_vec()).ok()).flatten()
}

/// It is carried out by a task of its own, which goes on when the command is aborted or its nexus lost: a change is
/// made whole, with all that it does to others, or not at all.
pub(crate) async fn persistent_out(call: &Call<'_>) -> Outcome {
    // One at a time, in the order of commands: what is kept must be what the last one made.
    let turn = Arc::clone(&call.unit.note).lock_owned().await;
    let asked = Asked { unit: call.unit.clone(), target: call.nexus.target.clone(), nexus: call.nexus.id, port: call.nexus.port.clone(), cdb: *call.cdb };
    let ended = tokio::spawn(asked.carry_out(turn, call.data.clone())).await.map_err(|_| Sense::new(Key::Hardware, code::INTERNAL_TARGET_FAILURE))??;
    // Two nexuses may wait for each other's commands: an aborted one no longer waits.
    let over = async {
        for (nexus, tasks) in &ended {
            nexus.tasks.ended(tasks).await;
        }
    };
    call.cancel.run_until_cancelled(over).await;
    Ok(Bytes::new())
}

/// Commands that were aborted, with their nexus.
type Ended = Vec<(Arc<Nexus>, Vec<(Name, u64)>)>;

/// A PERSISTENT RESERVE OUT, which outlives its command.
struct Asked {
    unit: Arc<LogicalUnit>,
    target: Arc<Target>,
    nexus: NexusId,
    port: InitiatorPort,
    cdb: Cdb,
}

impl Asked {
    /// Makes the change, and returns the commands that it aborts.
    async fn carry_out(self, mut turn: OwnedMutexGuard<Note>, data: Bytes) -> Outcome<Ended> {
        let unit = &self.unit;
        // The one before may have failed meanwhile.
        unit.settle_held(&mut turn).await.map_err(unsettled)?;
        let (Effects { attentions, preempted }, next) = {
            let state = unit.state.lock();
            if state.reserved.is_some_and(|holder| holder != self.nexus) {
                return Err(CONFLICT);
            }
            let mut next = state.persistent.clone();
            (self.change(&data, &mut next)?, next)
        };
        unit.change(&mut turn, next).await?;
        let (nexuses, lun) = (self.target.nexuses(), u16::from(unit.lun));
        let mut ended = Ended::new();
        if self.cdb.action() == action::PREEMPT_AND_ABORT {
            for nexus in nexuses.iter().filter(|nexus| nexus.id != self.nexus && preempted.contains(&nexus.port)) {
                let tasks = nexus.tasks.abort(|name| address::number(name.lun) == Some(lun));
                if !tasks.is_empty() {
                    ended.push((Arc::clone(nexus), tasks));
                }
            }
        }
        let mut state = unit.state.lock();
        for (nexus, _) in &ended {
            state.attend(nexus.id, code::COMMANDS_CLEARED);
        }
        for (port, code) in attentions {
            for nexus in nexuses.iter().filter(|nexus| nexus.port == port && nexus.id != self.nexus) {
                state.attend(nexus.id, code);
            }
        }
        drop(state);
        Ok(ended)
    }

    /// Carries out a service action on `persistent`.
    fn change(&self, data: &Bytes, persistent: &mut Persistent) -> Outcome<Effects> {
        let (cdb, port) = (&self.cdb, &self.port);
        let (action, length) = (cdb.action(), cdb.u32(5) as usize);
        let moves = action > action::REGISTER_AND_IGNORE;
        if data.len() < length || if moves { length < 28 } else { length != 24 } {
            return Err(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR).into());
        }
        let (key, other) = (be64(data, 0), be64(data, 8));
        let kind = || -> Outcome<Type> {
            // Only the scope of a whole logical unit.
            if cdb.u8(2) >> 4 != 0 {
                return Err(Sense::cdb_bit(2, 7).into());
            }
            Type::of(cdb.u8(2) & 0x0F).ok_or_else(|| Sense::cdb_bit(2, 3).into())
        };
        if moves {
            let keeps = data[17] & 0x01 != 0;
            if keeps && !self.unit.device.keeps_notes() {
                return Err(Sense::parameter(17).into());
            }
            let id = data.get(24..24 + be32(data, 20) as usize).ok_or(Sense::illegal(code::PARAMETER_LIST_LENGTH_ERROR))?;
            let name = name_of(id).ok_or(Sense::parameter(24))?.to_ascii_lowercase();
            let to = InitiatorPort { name, target_port: be16(data, 18) };
            if !(1..=self.target.options.ports).contains(&to.target_port) {
                return Err(Sense::parameter(18).into());
            }
            let effects = persistent.register_and_move(port, key, other, to, data[17] & 0x02 != 0)?;
            persistent.kept = keeps;
            return Ok(effects);
        }
        let registers = matches!(action, action::REGISTER | action::REGISTER_AND_IGNORE);
        // SPEC_I_PT and ALL_TG_PT, and APTPL, which matter where a nexus registers.
        let keeps = registers && data[20] & 0x01 != 0;
        if registers && data[20] & 0x0C != 0 || keeps && !self.unit.device.keeps_notes() {
            return Err(Sense::parameter(20).into());
        }
        match action {
            action::REGISTER | action::REGISTER_AND_IGNORE => {
                let effects = persistent.register(port, (action == action::REGISTER).then_some(key), other)?;
                persistent.kept = keeps;
                Ok(effects)
            }
            action::RESERVE => persistent.reserve(port, key, kind()?),
            action::RELEASE => persistent.release(port, key, kind()?),
            action::CLEAR => persistent.clear(port, key),
            action::PREEMPT | action::PREEMPT_AND_ABORT => persistent.preempt(port, key, other, kind()?),
            _ => Err(Sense::cdb_bit(1, 4).into()),
        }
    }
}
