//! A logical unit: its device, and what all nexuses share of it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use skytether_volume::device::LOGICAL;
use skytether_volume::{BlockDevice, Exec};
use tokio::sync::RwLock;
use uuid::Uuid;

use crate::command::Reply;
use crate::modes::Modes;
use crate::operations::{Access, Op};
use crate::options::Options;
use crate::persistent::{Persistent, Port};
use crate::sense::{Fail, Key, Outcome, Sense, code};

/// A logical unit of a target.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Its number. Clients look for 0 first.
    pub lun: u8,
    /// Its blocks.
    pub device: Arc<dyn BlockDevice>,
    /// What carries out EXEC; none where the operations are not supported.
    pub exec: Option<Arc<dyn Exec>>,
}

/// Bytes of a logical block.
pub(crate) const BLOCK: u64 = LOGICAL as u64;

/// Places of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// The first block.
    pub(crate) lba: u64,
    /// How many.
    pub(crate) count: u64,
}

impl Range {
    /// The first byte.
    pub(crate) fn at(self) -> u64 {
        self.lba * BLOCK
    }

    /// The length in bytes.
    pub(crate) fn len(self) -> u64 {
        self.count * BLOCK
    }
}

/// Names a nexus as long as the target lives.
pub(crate) type NexusId = u64;

/// Unit attentions that wait for one nexus; more are dropped, since one that says the same is there.
const ATTENTIONS: usize = 16;

pub(crate) struct LogicalUnit {
    pub(crate) lun: u8,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) exec: Option<Arc<dyn Exec>>,
    pub(crate) id: Uuid,
    pub(crate) name: String,
    /// Logical blocks.
    pub(crate) blocks: u64,
    /// Bytes in which places are mapped.
    pub(crate) extent: u64,
    pub(crate) read_only: bool,
    /// Simple commands hold it shared and ordered ones alone; it is fair, so that the order is that of arrival.
    pub(crate) gate: RwLock<()>,
    /// Held while persistent reservations change, and are kept.
    pub(crate) note: Arc<tokio::sync::Mutex<Note>>,
    /// Whether it is [`Note::Same`].
    pub(crate) settled: AtomicBool,
    pub(crate) state: Mutex<State>,
}

impl fmt::Debug for LogicalUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalUnit").field("lun", &self.lun).field("name", &self.name).field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

/// What is known of the note that has the persistent reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    /// It was not read so far, or can't be.
    Unread,
    /// It says what the state of the unit does.
    Same,
    /// A change of it failed, and it may say what that was to say.
    Unsure,
}

/// What changes of a logical unit.
#[derive(Debug, Default)]
pub(crate) struct State {
    attentions: HashMap<NexusId, VecDeque<u16>>,
    /// Who holds it by RESERVE.
    pub(crate) reserved: Option<NexusId>,
    pub(crate) persistent: Persistent,
    pub(crate) modes: Modes,
    /// By START STOP UNIT.
    pub(crate) stopped: bool,
    /// How far SANITIZE is, of 65,536.
    pub(crate) sanitizing: Option<u16>,
}

impl LogicalUnit {
    pub(crate) fn new(unit: Unit) -> Self {
        let info = unit.device.info();
        let keeps = unit.device.keeps_notes();
        Self {
            lun: unit.lun,
            device: unit.device,
            exec: unit.exec,
            id: info.id,
            name: info.name,
            blocks: info.size / u64::from(LOGICAL),
            extent: info.extent,
            read_only: info.read_only,
            gate: RwLock::new(()),
            note: Arc::new(tokio::sync::Mutex::new(if keeps { Note::Unread } else { Note::Same })),
            settled: AtomicBool::new(!keeps),
            state: Mutex::default(),
        }
    }

    /// Whether an operation of this kind may be carried out for `nexus` now. A unit attention that waits comes first.
    pub(crate) fn admit(&self, nexus: NexusId, port: &Port, access: Access) -> Outcome<()> {
        let mut state = self.state.lock();
        if let Some(attention) = state.attention(nexus) {
            return Err(Sense::new(Key::Attention, attention).into());
        }
        state.check_reservation(nexus, port, access)?;
        Ok(())
    }

    /// The `count` blocks from `lba`, if the device has them all.
    pub(crate) fn range(&self, lba: u64, count: u64) -> Outcome<Range> {
        if lba > self.blocks || count > self.blocks - lba {
            // The first block that does not exist.
            return Err(Sense::illegal(code::LBA_OUT_OF_RANGE).information(lba.max(self.blocks)).into());
        }
        Ok(Range { lba, count })
    }

    /// Whether the unit has the operation.
    pub(crate) fn supports(&self, op: Op, options: &Options) -> bool {
        match op {
            Op::ExecOut | Op::ExecIn => self.exec.is_some(),
            Op::WriteAtomic => options.atomic > 0,
            _ => true,
        }
    }

    /// Whether the medium can be reached.
    pub(crate) fn ready(&self) -> Outcome<()> {
        let state = self.state.lock();
        if let Some(progress) = state.sanitizing {
            return Err(Sense::new(Key::NotReady, code::SANITIZE_IN_PROGRESS).progress(progress).into());
        }
        if state.stopped {
            return Err(Sense::new(Key::NotReady, code::INITIALIZING_COMMAND_REQUIRED).into());
        }
        Ok(())
    }

    /// Whether blocks may be changed.
    pub(crate) fn writable(&self) -> Outcome<()> {
        if self.read_only {
            return Err(Sense::new(Key::Protect, code::WRITE_PROTECTED).into());
        }
        if self.state.lock().modes.software_write_protect() {
            return Err(Sense::new(Key::Protect, code::SOFTWARE_WRITE_PROTECTED).into());
        }
        Ok(())
    }
}

impl State {
    pub(crate) fn joined(&mut self, nexus: NexusId) {
        self.attentions.insert(nexus, VecDeque::from([code::POWER_ON]));
    }

    /// Forgets a nexus, and its RESERVE.
    pub(crate) fn left(&mut self, nexus: NexusId) {
        self.attentions.remove(&nexus);
        if self.reserved == Some(nexus) {
            self.reserved = None;
        }
    }

    /// Establishes a unit attention for one nexus.
    pub(crate) fn attend(&mut self, nexus: NexusId, code: u16) {
        if let Some(waiting) = self.attentions.get_mut(&nexus)
            && waiting.len() < ATTENTIONS
            && !waiting.contains(&code)
        {
            waiting.push_back(code);
        }
    }

    /// Establishes a unit attention for all nexuses but one.
    pub(crate) fn attend_others(&mut self, but: NexusId, code: u16) {
        let others: Vec<NexusId> = self.attentions.keys().copied().filter(|&nexus| nexus != but).collect();
        for nexus in others {
            self.attend(nexus, code);
        }
    }

    /// Takes the unit attention that waits for a nexus.
    pub(crate) fn attention(&mut self, nexus: NexusId) -> Option<u16> {
        self.attentions.get_mut(&nexus)?.pop_front()
    }

    /// A reset: it replaces all that waits (SPC-4, table 51), and ends RESERVE. Persistent reservations stay.
    pub(crate) fn reset(&mut self, attention: u16) {
        for waiting in self.attentions.values_mut() {
            *waiting = VecDeque::from([attention]);
        }
        self.reserved = None;
        self.stopped = false;
        self.modes = self.modes.after_reset();
    }

    /// Whether the reservation of another nexus conflicts with an operation of `access`.
    pub(crate) fn check_reservation(&self, nexus: NexusId, port: &Port, access: Access) -> Outcome<()> {
        const CONFLICT: Fail = Fail::Status(Reply::RESERVATION_CONFLICT);
        if self.reserved.is_some_and(|holder| holder != nexus) && !matches!(access, Access::Free | Access::Own) {
            return Err(CONFLICT);
        }
        if self.persistent.conflicts(port, access) { Err(CONFLICT) } else { Ok(()) }
    }
}
