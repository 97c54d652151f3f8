//! Persistent reservations (SPC-4, 5.12): who is registered, and who holds what type of a reservation.
//!
//! This is the state alone, without commands' bytes: a change says which ports have to be told of it.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use crate::cdb::{be16, be32, be64};
use crate::command::{InitiatorPort, Reply};
use crate::operations::Access;
use crate::sense::{Fail, Outcome, Sense, code};

/// By what a registration knows its nexus.
pub(crate) type Port = InitiatorPort;

/// Registrations of a logical unit; more are refused.
const REGISTRATIONS: usize = 256;

/// Types of a persistent reservation (SPC-4, table 71).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrants = 5,
    ExclusiveAccessRegistrants = 6,
    WriteExclusiveAll = 7,
    ExclusiveAccessAll = 8,
}

impl Type {
    pub(crate) fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::WriteExclusive,
            3 => Self::ExclusiveAccess,
            5 => Self::WriteExclusiveRegistrants,
            6 => Self::ExclusiveAccessRegistrants,
            7 => Self::WriteExclusiveAll,
            8 => Self::ExclusiveAccessAll,
            _ => return None,
        })
    }

    /// Whether each registered nexus holds the reservation.
    pub(crate) fn all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAll | Self::ExclusiveAccessAll)
    }

    /// Whether registered nexuses may do what the holder may.
    fn for_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    fn excludes_reads(self) -> bool {
        matches!(self, Self::ExclusiveAccess | Self::ExclusiveAccessRegistrants | Self::ExclusiveAccessAll)
    }
}

/// A reservation. Where all registrants hold it, the holder is who made it, and of no meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) kind: Type,
    holder: Port,
}

/// The persistent reservations of a logical unit.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Persistent {
    /// PRGENERATION.
    pub(crate) generation: u32,
    pub(crate) registrations: BTreeMap<Port, u64>,
    pub(crate) reservation: Option<Reservation>,
    /// Whether all this outlives a loss of power (APTPL).
    pub(crate) kept: bool,
}

/// Whom a change has to be told, by unit attentions, and whose commands it ends where they are to be aborted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) attentions: Vec<(Port, u16)>,
    pub(crate) preempted: Vec<Port>,
}

const CONFLICT: Fail = Fail::Status(Reply::RESERVATION_CONFLICT);

/// The version of the form in which reservations are kept.
const FORMAT: u8 = 1;

/// The longest name of a port that is kept; those of iSCSI have 223 bytes and a session's identifier.
const MOST_NAME: usize = 1000;

fn put_port(out: &mut BytesMut, port: &Port) {
    let name = &port.name.as_bytes()[..port.name.len().min(MOST_NAME)];
    out.put_u16(port.target_port);
    out.put_u16(name.len() as u16);
    out.put_slice(name);
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn take_port(bytes: &mut &[u8]) -> Option<Port> {
    let head = take(bytes, 4)?;
    let name = take(bytes, be16(head, 2).into())?;
    Some(Port { name: String::from_utf8(name.to_vec()).ok()?, target_port: be16(head, 0) })
}

impl Persistent {
    /// As it is kept: the format, PRGENERATION, registrations with their ports and keys, and the reservation.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(FORMAT);
        out.put_u32(self.generation);
        out.put_u16(self.registrations.len() as u16);
        for (port, key) in &self.registrations {
            put_port(&mut out, port);
            out.put_u64(*key);
        }
        if let Some(reservation) = &self.reservation {
            out.put_u8(reservation.kind as u8);
            put_port(&mut out, &reservation.holder);
        }
        out.freeze()
    }

    /// What [`Self::encode`] gave; `None` for anything else. Without any bytes, nothing is kept.
    pub(crate) fn decode(mut bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let head = take(&mut bytes, 7).filter(|head| head[0] == FORMAT)?;
        let mut found = Self { generation: be32(head, 1), kept: true, ..Self::default() };
        for _ in 0..be16(head, 5) {
            let port = take_port(&mut bytes)?;
            found.registrations.insert(port, be64(take(&mut bytes, 8)?, 0));
        }
        if !bytes.is_empty() {
            let kind = Type::of(take(&mut bytes, 1)?[0])?;
            found.reservation = Some(Reservation { kind, holder: take_port(&mut bytes)? });
        }
        (bytes.is_empty() && found.registrations.len() <= REGISTRATIONS).then_some(found)
    }

    /// Whether an operation of `access` from `port` conflicts.
    pub(crate) fn conflicts(&self, port: &Port, access: Access) -> bool {
        let Some(reservation) = &self.reservation else { return false };
        let excluded = match access {
            Access::Free | Access::Query | Access::Own => false,
            Access::Read => reservation.kind.excludes_reads(),
            Access::Write => true,
        };
        excluded && !self.may(port)
    }

    /// Whether `port` may do what a holder may.
    pub(crate) fn may(&self, port: &Port) -> bool {
        let registered = self.registrations.contains_key(port);
        self.reservation.as_ref().is_none_or(|reservation| registered && (reservation.kind.for_registrants() || reservation.holder == *port))
    }

    pub(crate) fn is_holder(&self, port: &Port) -> bool {
        let registered = self.registrations.contains_key(port);
        self.reservation.as_ref().is_some_and(|reservation| registered && (reservation.kind.all_registrants() || reservation.holder == *port))
    }

    /// Unless `port` is registered with `key`, RESERVATION CONFLICT.
    fn registered(&self, port: &Port, key: u64) -> Outcome<()> {
        if self.registrations.get(port) == Some(&key) { Ok(()) } else { Err(CONFLICT) }
    }

    /// All registered ports but one, each with `code`.
    fn others(&self, but: &Port, code: u16) -> Vec<(Port, u16)> {
        self.registrations.keys().filter(|port| *port != but).map(|port| (port.clone(), code)).collect()
    }

    /// REGISTER; without a `key`, REGISTER AND IGNORE EXISTING KEY. A `new` key of zero ends the registration.
    pub(crate) fn register(&mut self, port: &Port, key: Option<u64>, new: u64) -> Outcome<Effects> {
        let registered = self.registrations.get(port).copied();
        if key.is_some_and(|key| key != registered.unwrap_or(0)) {
            return Err(CONFLICT);
        }
        match (registered, new) {
            (None, 0) => return Ok(Effects::default()),
            (Some(_), 0) => {
                let effects = self.unregister(port);
                self.generation = self.generation.wrapping_add(1);
                return Ok(effects);
            }
            (None, _) if self.registrations.len() >= REGISTRATIONS => return Err(Sense::illegal(code::INSUFFICIENT_REGISTRATIONS).into()),
            _ => self.registrations.insert(port.clone(), new),
        };
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects::default())
    }

    /// Ends a registration, and the reservation with its last holder.
    fn unregister(&mut self, port: &Port) -> Effects {
        let held = self.is_holder(port);
        self.registrations.remove(port);
        let mut effects = Effects::default();
        if let Some(reservation) = self.reservation.take_if(|reservation| held && (!reservation.kind.all_registrants() || self.registrations.is_empty()))
            && reservation.kind.for_registrants()
        {
            effects.attentions = self.others(port, code::RESERVATIONS_RELEASED);
        }
        effects
    }

    pub(crate) fn reserve(&mut self, port: &Port, key: u64, kind: Type) -> Outcome<Effects> {
        self.registered(port, key)?;
        match &self.reservation {
            None => self.reservation = Some(Reservation { kind, holder: port.clone() }),
            Some(there) if there.kind == kind && self.is_holder(port) => {}
            Some(_) => return Err(CONFLICT),
        }
        Ok(Effects::default())
    }

    pub(crate) fn release(&mut self, port: &Port, key: u64, kind: Type) -> Outcome<Effects> {
        self.registered(port, key)?;
        if !self.is_holder(port) {
            return Ok(Effects::default());
        }
        if self.reservation.as_ref().is_some_and(|there| there.kind != kind) {
            return Err(Sense::illegal(code::INVALID_RELEASE).into());
        }
        self.reservation = None;
        let attentions = if kind.for_registrants() { self.others(port, code::RESERVATIONS_RELEASED) } else { Vec::new() };
        Ok(Effects { attentions, ..Effects::default() })
    }

    pub(crate) fn clear(&mut self, port: &Port, key: u64) -> Outcome<Effects> {
        self.registered(port, key)?;
        let attentions = self.others(port, code::RESERVATIONS_PREEMPTED);
        self.registrations.clear();
        self.reservation = None;
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects { attentions, ..Effects::default() })
    }

    /// PREEMPT of the registrations with the key `victim` (SPC-4, 5.12.11.4).
    pub(crate) fn preempt(&mut self, port: &Port, key: u64, victim: u64, kind: Type) -> Outcome<Effects> {
        self.registered(port, key)?;
        let there = self.reservation.clone();
        let all = there.as_ref().is_some_and(|there| there.kind.all_registrants());
        // The parameter list has the victim's key in its byte 8.
        if victim == 0 && !all {
            return Err(Sense::parameter(8).into());
        }
        let of_holder = there.as_ref().is_some_and(|there| !there.kind.all_registrants() && self.registrations.get(&there.holder) == Some(&victim));
        let takes = of_holder || victim == 0;
        let goes = |other: &Port, theirs: u64| other != port && (victim == 0 || theirs == victim);
        if !takes && !self.registrations.values().any(|&theirs| theirs == victim) {
            return Err(CONFLICT);
        }
        let preempted: Vec<Port> = self.registrations.iter().filter(|(other, theirs)| goes(other, **theirs)).map(|(other, _)| other.clone()).collect();
        self.registrations.retain(|other, theirs| !goes(other, *theirs));
        let mut attentions: Vec<_> = preempted.iter().map(|other| (other.clone(), code::REGISTRATIONS_PREEMPTED)).collect();
        if takes {
            self.reservation = Some(Reservation { kind, holder: port.clone() });
            if there.is_some_and(|there| there.kind != kind) {
                attentions.extend(self.others(port, code::RESERVATIONS_RELEASED));
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects { attentions, preempted })
    }

    /// REGISTER AND MOVE to another port, which gets the key `new` (SPC-4, 5.12.8).
    pub(crate) fn register_and_move(&mut self, port: &Port, key: u64, new: u64, to: Port, unregister: bool) -> Outcome<Effects> {
        self.registered(port, key)?;
        let Some(there) = self.reservation.clone().filter(|there| !there.kind.all_registrants() && there.holder == *port) else {
            return Err(CONFLICT);
        };
        // The key is in byte 8 of the parameter list, the TransportID from byte 24.
        if new == 0 {
            return Err(Sense::parameter(8).into());
        }
        if to == *port {
            return Err(Sense::parameter(24).into());
        }
        if !self.registrations.contains_key(&to) && self.registrations.len() >= REGISTRATIONS {
            return Err(Sense::illegal(code::INSUFFICIENT_REGISTRATIONS).into());
        }
        self.registrations.insert(to.clone(), new);
        self.reservation = Some(Reservation { holder: to, ..there });
        if unregister {
            self.registrations.remove(port);
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(Effects::default())
    }

    /// The key of the reservation: none where all registrants hold it.
    pub(crate) fn reservation_key(&self) -> u64 {
        let holder = self.reservation.as_ref().filter(|reservation| !reservation.kind.all_registrants()).map(|reservation| &reservation.holder);
        holder.and_then(|holder| self.registrations.get(holder)).copied().unwrap_or(0)
    }
}
