//! What a transport passes on, and what it gets back.

use bytes::Bytes;

/// One end of a nexus: an initiator port at a target port.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InitiatorPort {
    /// The SCSI port name: `iqn...,i,0xISID` for iSCSI. Persistent reservations know the initiator by it.
    pub name: String,
    /// The relative target port identifier, from 1.
    pub target_port: u16,
}

/// The bytes that a CDB by itself asks for. A transport compares them with what the initiator expects.
///
/// `In` is the allocation length where the CDB has one, so that the data of a reply may be shorter. `Out` may be more
/// than [`Options::transfer`](crate::Options::transfer): such a command is refused, so that its data is not needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transfer {
    /// No data.
    None,
    /// At most this many bytes to the initiator.
    In(u64),
    /// This many bytes from the initiator.
    Out(u64),
}

/// How a command is ordered among those of its logical unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskAttribute {
    /// In any order between ordered commands.
    #[default]
    Simple,
    /// After all commands that came before, and before all that come later.
    Ordered,
    /// At once.
    HeadOfQueue,
    /// While an auto contingent allegiance is in effect, which is never so here: such a command ends with INVALID
    /// MESSAGE ERROR.
    Aca,
}

/// A command and its data.
#[derive(Debug, Clone)]
pub struct Command {
    /// The eight bytes of the logical unit number.
    pub lun: u64,
    /// The initiator's name for the command, unique among those of the nexus and logical unit that run.
    pub tag: u64,
    /// The command descriptor block. Bytes beyond its length are not looked at.
    pub cdb: [u8; 16],
    /// How it is ordered.
    pub attribute: TaskAttribute,
    /// The data from the initiator. It may be shorter or longer than the CDB says: commands that write blocks write
    /// those that came whole, and no more than they say.
    pub data: Bytes,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The status (SAM-5, table 40), or [`Reply::ABORTED`].
    pub status: u8,
    /// Sense data in the fixed or descriptor format; empty if there is none.
    pub sense: Bytes,
    /// Data for the initiator.
    pub data: Bytes,
}

impl Reply {
    /// The status of a command that a task management function ended: no response is sent. It is no status of SAM-5.
    pub const ABORTED: u8 = 0xFF;
    /// GOOD.
    pub const GOOD: u8 = 0x00;
    /// CHECK CONDITION.
    pub const CHECK_CONDITION: u8 = 0x02;
    /// RESERVATION CONFLICT.
    pub const RESERVATION_CONFLICT: u8 = 0x18;
    /// TASK SET FULL.
    pub const TASK_SET_FULL: u8 = 0x28;

    /// Whether a task management function ended the command, so that the initiator gets no response.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.status == Self::ABORTED
    }

    pub(crate) fn status(status: u8) -> Self {
        Self { status, sense: Bytes::new(), data: Bytes::new() }
    }
}

/// A task management function (SAM-5, 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Management {
    /// Ends one command of this nexus.
    AbortTask {
        /// The eight bytes of the logical unit number.
        lun: u64,
        /// The command's tag.
        tag: u64,
    },
    /// Ends this nexus' commands at a logical unit.
    AbortTaskSet {
        /// The eight bytes of the logical unit number.
        lun: u64,
    },
    /// Ends all commands at a logical unit.
    ClearTaskSet {
        /// The eight bytes of the logical unit number.
        lun: u64,
    },
    /// Ends all commands at a logical unit, and sets it back.
    LunReset {
        /// The eight bytes of the logical unit number.
        lun: u64,
    },
    /// Ends all commands, and sets all logical units back.
    TargetWarmReset,
    /// The same; the transport ends its sessions.
    TargetColdReset,
}

/// How a task management function ended. The commands that it ended are over by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagementReply {
    /// Carried out.
    Complete,
    /// There is no such command: it ended before, or never came.
    TaskDoesNotExist,
    /// There is no such logical unit.
    LunDoesNotExist,
    /// This target does not have the function.
    NotSupported,
    /// The function could not be carried out.
    Rejected,
}
