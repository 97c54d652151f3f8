//! EXEC over SCSI: a pair of commands, whatever carries them.
//!
//! The bytes of EXEC OUT and EXEC IN are documented in crate `scsi` (`exec.rs`).

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Kind, Result};
use skytether_offload::Capabilities;
use skytether_offload::codes::MOST_RESULT;
use tokio::time::Instant;

use crate::path::{Caller, Path};

const INQUIRY: u8 = 0x12;
const EXEC_OUT: u8 = 0xC0;
const EXEC_IN: u8 = 0xC1;

/// The vendor's page of vital product data that says what EXEC can do.
const PAGE: u8 = 0xC0;
const PAGE_LENGTH: u16 = 4096;

/// EXEC OUT: a short result comes in the sense data.
const INLINE: u8 = 1;
/// EXEC IN: the result is not kept any longer.
const FORGET: u8 = 1;

/// Bytes before the result in the data of EXEC IN.
const HEADER: usize = 8;
/// Bytes that one EXEC IN asks for.
const PART: usize = 1 << 20;

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;

/// How often a command is sent again that the target asks to send again.
const TRIES: u32 = 8;

/// A SCSI command.
#[derive(Debug, Clone)]
pub struct Command {
    /// The command block.
    pub cdb: [u8; 16],
    /// Bytes of it that count.
    pub length: u8,
    /// Data for the target.
    pub out: Bytes,
    /// The most data from the target; 0 where `out` has some.
    pub most_in: u32,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status of SAM-5.
    pub status: u8,
    /// Sense data.
    pub sense: Bytes,
    /// Data from the target.
    pub data: Bytes,
}

/// What carries SCSI commands to a logical unit.
pub trait Scsi: Send + Sync + Debug {
    /// Carries out a command. Where it is dropped, or `deadline` passes, the command is ended if that is possible.
    ///
    /// # Errors
    /// `Unavailable` where the command may not have come to its end.
    fn execute(&self, command: Command, deadline: Instant) -> BoxFuture<'_, Result<Reply>>;

    /// The most bytes of data that a command may have.
    fn most_data(&self) -> usize;

    /// Its name, for people.
    fn name(&self) -> String;
}

/// EXEC over SCSI.
#[derive(Debug)]
pub struct ScsiPath<S> {
    scsi: S,
    list: AtomicU32,
}

impl<S: Scsi> ScsiPath<S> {
    /// Over what carries commands.
    pub fn new(scsi: S) -> Self {
        // Several clients of one nexus (SG_IO on one disk) must not take each other's results.
        let mut seed = [0; 4];
        let seed = if getrandom::fill(&mut seed).is_ok() { u32::from_be_bytes(seed) } else { std::process::id() };
        Self { scsi, list: AtomicU32::new(seed) }
    }

    async fn send(&self, command: Command, deadline: Instant) -> Result<Reply> {
        let mut tries = 0;
        loop {
            let reply = self.scsi.execute(command.clone(), deadline).await?;
            let key = Sense::of(&reply.sense).key;
            let again = match reply.status {
                BUSY | TASK_SET_FULL => true,
                // Unit attention: something happened before. The command was not carried out.
                CHECK_CONDITION => key == 0x6,
                _ => false,
            };
            tries += 1;
            if !again || tries == TRIES {
                return Ok(reply);
            }
            if reply.status != CHECK_CONDITION {
                tokio::time::sleep_until((Instant::now() + Duration::from_millis(10 << tries.min(6))).min(deadline)).await;
            }
        }
    }

    async fn page(&self, deadline: Instant) -> Result<Bytes> {
        let mut cdb = [0; 16];
        cdb[..3].copy_from_slice(&[INQUIRY, 1, PAGE]);
        cdb[3..5].copy_from_slice(&PAGE_LENGTH.to_be_bytes());
        let reply = self.send(Command { cdb, length: 6, out: Bytes::new(), most_in: PAGE_LENGTH.into() }, deadline).await?;
        if reply.status != GOOD {
            return Err(match Sense::of(&reply.sense).error(&self.scsi.name()) {
                error if error.kind() == Kind::Invalid => Error::unsupported(format!("{} has no EXEC", self.scsi.name())),
                error => error,
            });
        }
        let none = || Error::unsupported(format!("{} has no EXEC: its page {PAGE:#04x} is another one", self.scsi.name()));
        let length = usize::from(u16::from_be_bytes([*reply.data.get(2).ok_or_else(none)?, *reply.data.get(3).ok_or_else(none)?]));
        if reply.data[1] != PAGE || reply.data.len() < 4 + length {
            return Err(none());
        }
        Ok(reply.data.slice(4..4 + length))
    }

    async fn pair(&self, descriptor: Bytes, most: usize, deadline: Instant) -> Result<Bytes> {
        let list = self.list.fetch_add(1, Ordering::Relaxed);
        let mut cdb = [0; 16];
        cdb[..2].copy_from_slice(&[EXEC_OUT, INLINE]);
        cdb[2..6].copy_from_slice(&list.to_be_bytes());
        cdb[10..14].copy_from_slice(&(descriptor.len() as u32).to_be_bytes());
        let reply = self.send(Command { cdb, length: 16, out: descriptor, most_in: 0 }, deadline).await?;
        if reply.status != GOOD {
            let sense = Sense::of(&reply.sense);
            return sense.inline().map_or_else(|| Err(sense.error(&self.scsi.name())), |found| Ok(reply.sense.slice_ref(found)));
        }
        let wrong = |what: &str| Error::unavailable(format!("{}: {what}", self.scsi.name()));
        let mut result = BytesMut::new();
        let most = most.min(MOST_RESULT);
        loop {
            let part = PART.min(self.scsi.most_data()).min(most - result.len() + HEADER);
            let mut cdb = [0; 16];
            cdb[0] = EXEC_IN;
            cdb[2..6].copy_from_slice(&list.to_be_bytes());
            cdb[6..10].copy_from_slice(&(result.len() as u32).to_be_bytes());
            cdb[10..14].copy_from_slice(&(part as u32).to_be_bytes());
            let reply = self.send(Command { cdb, length: 16, out: Bytes::new(), most_in: part as u32 }, deadline).await?;
            if reply.status != GOOD {
                // The session may be another one than that of EXEC OUT. The target dropped the result with the first.
                let error = Sense::of(&reply.sense).error(&self.scsi.name());
                let lost = error.kind() == Kind::Invalid;
                return Err(if lost {
                    Error::unavailable(format!("{}: the result is not kept any longer", self.scsi.name())).with_source(error)
                } else {
                    error
                });
            }
            let Some(length) = reply.data.first_chunk::<4>().map(|length| u32::from_be_bytes(*length) as usize) else {
                return Err(wrong("the result of EXEC has no length"));
            };
            if length > most {
                return Err(wrong(&format!("a result of {length} bytes, {most} are the most")));
            }
            let bytes = reply.data.get(HEADER..).unwrap_or_default();
            let bytes = &bytes[..bytes.len().min(length.saturating_sub(result.len()))];
            result.extend_from_slice(bytes);
            if result.len() == length {
                break;
            }
            if bytes.is_empty() {
                return Err(wrong("the result of EXEC ends before its length"));
            }
        }
        if result.len() > PART {
            self.forget(list, deadline).await;
        }
        Ok(result.freeze())
    }

    /// Frees a large result in the target, which would drop it later by itself.
    async fn forget(&self, list: u32, deadline: Instant) {
        let mut cdb = [0; 16];
        cdb[..2].copy_from_slice(&[EXEC_IN, FORGET]);
        cdb[2..6].copy_from_slice(&list.to_be_bytes());
        cdb[13] = HEADER as u8;
        // The result is here already.
        let _ = self.send(Command { cdb, length: 16, out: Bytes::new(), most_in: HEADER as u32 }, deadline).await;
    }
}

impl<S: Scsi> Path for ScsiPath<S> {
    fn name(&self) -> String {
        self.scsi.name()
    }

    fn capabilities(&self, caller: Caller) -> BoxFuture<'_, Result<Capabilities>> {
        async move { Capabilities::decode(&self.page(caller.deadline).await?) }.boxed()
    }

    fn exec(&self, descriptor: Bytes, most: usize, caller: Caller) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            if descriptor.len() > self.scsi.most_data() {
                return Err(Error::exhausted(format!("{}: a descriptor of {} bytes does not fit into a command", self.name(), descriptor.len())));
            }
            // Nothing is kept of a descriptor, so that it may be carried out twice.
            match self.pair(descriptor.clone(), most, caller.deadline).await {
                Err(error) if error.kind() == Kind::Unavailable && Instant::now() < caller.deadline => self.pair(descriptor, most, caller.deadline).await,
                done => done,
            }
        }
        .boxed()
    }
}

/// Sense data, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sense<'a> {
    key: u8,
    code: u16,
    /// The data of the vendor's descriptor.
    vendor: Option<&'a [u8]>,
}

impl<'a> Sense<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let at = |at: usize| bytes.get(at).copied().unwrap_or(0);
        if at(0) & 0x7e == 0x72 {
            let end = bytes.len().min(8 + usize::from(at(7)));
            let (mut next, mut vendor) = (8, None);
            while next + 2 <= end {
                let length = usize::from(at(next + 1));
                if at(next) == 0x80 {
                    vendor = bytes.get(next + 2..(next + 2 + length).min(end));
                }
                next += 2 + length;
            }
            return Self { key: at(1) & 0xf, code: u16::from_be_bytes([at(2), at(3)]), vendor };
        }
        Self { key: at(2) & 0xf, code: u16::from_be_bytes([at(12), at(13)]), vendor: None }
    }

    /// The result of an EXEC whose sense data has it: the key COMPLETED, and form 1.
    fn inline(&self) -> Option<&'a [u8]> {
        match self.vendor {
            Some([1, 0, result @ ..]) if self.key == 0xf && self.code == 0 => Some(result),
            _ => None,
        }
    }

    fn error(&self, name: &str) -> Error {
        let Self { key, code, .. } = self;
        let (kind, what) = match (key, code) {
            (0x5, 0x2000) => (Kind::Unsupported, "it has no EXEC"),
            (0x5, 0x2500) => (Kind::NotFound, "it has no such logical unit"),
            (0x5, 0x2601) => (Kind::Unsupported, "it does not have this operation, or this version of descriptors"),
            (0x5, 0x5503) => (Kind::Exhausted, "it has no room for this computation"),
            (0x5, 0x1A00) => (Kind::Exhausted, "the descriptor is too long for it"),
            (0x5, _) => (Kind::Invalid, "it refuses the command"),
            (0x3, _) => (Kind::Corrupt, "the medium is damaged there"),
            (0x7, 0x2707) => (Kind::Exhausted, "it is full"),
            (0x7, _) => (Kind::Conflict, "it is write protected"),
            _ => (Kind::Unavailable, "the command failed"),
        };
        Error::new(kind, format!("{name}: {what} (sense {key:x}/{:02x}/{:02x})", code >> 8, code & 0xff))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_sense_data_are_read() {
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0x70, 0x06, 0x29, 0x01);
        assert_eq!(Sense::of(&fixed), Sense { key: 6, code: 0x2901, vendor: None });
        let described = [0x72, 0x0f, 0, 0, 0, 0, 0, 9, 0x02, 0, 0x80, 5, 1, 0, 7, 8, 9];
        assert_eq!(Sense::of(&described).inline(), Some(&[7, 8, 9][..]));
        assert_eq!(Sense::of(&described[..12]).inline(), None);
        assert_eq!(Sense::of(&[]), Sense { key: 0, code: 0, vendor: None });
    }

    #[test]
    fn sense_says_what_the_caller_can_do() {
        let kind = |key, code| Sense { key, code, vendor: None }.error("t").kind();
        assert_eq!([kind(5, 0x2000), kind(5, 0x2400), kind(3, 0x1100)], [Kind::Unsupported, Kind::Invalid, Kind::Corrupt]);
        assert_eq!([kind(7, 0x2700), kind(0xb, 0x4400), kind(5, 0x5503)], [Kind::Conflict, Kind::Unavailable, Kind::Exhausted]);
    }
}
