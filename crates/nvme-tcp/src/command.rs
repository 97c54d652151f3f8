//! Commands, completions and statuses. Numbers are little-endian.
//!
//! Source: NVM Express Base Specification 1.4 and NVMe over Fabrics 1.1.

use bytes::{BufMut, BytesMut};
use skytether_common::{Error, Kind};

/// The length of a command without data.
pub const COMMAND: usize = 64;
/// The length of a completion.
pub const COMPLETION: usize = 16;

/// Opcodes of the admin queue.
pub mod admin {
    /// Gives a page of a log.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Describes controller and namespaces.
    pub const IDENTIFY: u8 = 0x06;
    /// Ends a command.
    pub const ABORT: u8 = 0x08;
    /// Changes a setting.
    pub const SET_FEATURES: u8 = 0x09;
    /// Gives a setting.
    pub const GET_FEATURES: u8 = 0x0A;
    /// Waits for an event.
    pub const ASYNC_EVENT: u8 = 0x0C;
    /// Says that the host is there.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Commands of NVMe over Fabrics, on all queues.
    pub const FABRICS: u8 = 0x7F;
}

/// Opcodes of I/O queues.
pub mod io {
    /// Makes what was acknowledged durable.
    pub const FLUSH: u8 = 0x00;
    /// Writes blocks.
    pub const WRITE: u8 = 0x01;
    /// Reads blocks.
    pub const READ: u8 = 0x02;
    /// Compares blocks with data of the host.
    pub const COMPARE: u8 = 0x05;
    /// Makes blocks zeros.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Says how blocks are used; here: that they are no longer.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Reads blocks without sending them.
    pub const VERIFY: u8 = 0x0C;
    /// Runs a descriptor (vendor, host to controller).
    pub const EXEC_OUT: u8 = 0xC1;
    /// Gives the result (vendor, controller to host).
    pub const EXEC_IN: u8 = 0xC2;
}

/// Types of fabrics commands.
pub mod fabrics {
    /// Sets a property of the controller.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Makes the connection a queue of a controller.
    pub const CONNECT: u8 = 0x01;
    /// Gives a property.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Ends an I/O queue.
    pub const DISCONNECT: u8 = 0x08;
}

/// The outcome of a command: a type, a code, and whether it is of use to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(u16);

impl Status {
    /// Done.
    pub const SUCCESS: Self = Self::of(0, 0, false);
    /// The opcode is unknown.
    pub const INVALID_OPCODE: Self = Self::of(0, 0x01, true);
    /// A field has a value that it can't have.
    pub const INVALID_FIELD: Self = Self::of(0, 0x02, true);
    /// Another command has this identifier.
    pub const ID_CONFLICT: Self = Self::of(0, 0x03, false);
    /// A defect of this server, or of its storage.
    pub const INTERNAL: Self = Self::of(0, 0x06, false);
    /// It was ended by an abort.
    pub const ABORTED: Self = Self::of(0, 0x07, false);
    /// The other of two fused commands failed.
    pub const FAILED_FUSED: Self = Self::of(0, 0x09, false);
    /// The other half of a fused command is missing.
    pub const MISSING_FUSED: Self = Self::of(0, 0x0A, true);
    /// There is no such namespace.
    pub const INVALID_NAMESPACE: Self = Self::of(0, 0x0B, true);
    /// The command is not allowed now.
    pub const SEQUENCE: Self = Self::of(0, 0x0C, true);
    /// The length of the data is another than the command's.
    pub const DATA_LENGTH: Self = Self::of(0, 0x0F, true);
    /// Data can't be described so.
    pub const SGL_TYPE: Self = Self::of(0, 0x11, true);
    /// Data in the capsule is not where the command says.
    pub const SGL_OFFSET: Self = Self::of(0, 0x16, true);
    /// More is to be atomic than can be.
    pub const ATOMIC_EXCEEDED: Self = Self::of(0, 0x14, true);
    /// The namespace is read-only.
    pub const WRITE_PROTECTED: Self = Self::of(0, 0x20, true);
    /// A digest of the data is another; try again.
    pub const TRANSIENT_TRANSPORT: Self = Self::of(0, 0x22, false);
    /// Blocks beyond the end.
    pub const OUT_OF_RANGE: Self = Self::of(0, 0x80, true);
    /// No space is left.
    pub const CAPACITY: Self = Self::of(0, 0x81, true);
    /// The storage can't be reached now.
    pub const NOT_READY: Self = Self::of(0, 0x82, false);
    /// More event requests than allowed.
    pub const EVENT_LIMIT: Self = Self::of(1, 0x05, true);
    /// There is no such log page.
    pub const INVALID_LOG_PAGE: Self = Self::of(1, 0x09, true);
    /// The setting can't be changed.
    pub const NOT_CHANGEABLE: Self = Self::of(1, 0x0E, true);
    /// Connect of another format.
    pub const CONNECT_FORMAT: Self = Self::of(1, 0x80, true);
    /// The controller has this queue already, or there are too many.
    pub const CONNECT_BUSY: Self = Self::of(1, 0x81, true);
    /// Connect with wrong parameters.
    pub const CONNECT_PARAMETERS: Self = Self::of(1, 0x82, true);
    /// Connect by another host than the controller's.
    pub const CONNECT_HOST: Self = Self::of(1, 0x84, true);
    /// Stored bytes are damaged.
    pub const UNRECOVERED_READ: Self = Self::of(2, 0x81, true);
    /// Blocks differ from the data.
    pub const COMPARE_FAILURE: Self = Self::of(2, 0x85, true);
    /// EXEC: no result has this list identifier.
    pub const NO_RESULT: Self = Self::of(7, 0x01, true);
    /// EXEC: the descriptor is of a newer version, or asks for an unknown operation.
    pub const EXEC_UNSUPPORTED: Self = Self::of(7, 0x02, true);
    /// EXEC: it would take more memory, time or room for results than it may.
    pub const EXEC_EXHAUSTED: Self = Self::of(7, 0x03, true);

    const fn of(kind: u16, code: u16, final_: bool) -> Self {
        Self(kind << 9 | code << 1 | if final_ { 1 << 15 } else { 0 })
    }

    /// The field as completions have it.
    #[must_use]
    pub const fn field(self) -> u16 {
        self.0
    }

    /// The outcome of a failed I/O.
    #[must_use]
    pub fn of_error(error: &Error) -> Self {
        match error.kind() {
            Kind::Invalid | Kind::Unsupported => Self::INVALID_FIELD,
            Kind::Conflict => Self::WRITE_PROTECTED,
            Kind::Exhausted => Self::CAPACITY,
            Kind::Corrupt => Self::UNRECOVERED_READ,
            Kind::Unavailable => Self::NOT_READY,
            Kind::NotFound | Kind::Internal => Self::INTERNAL,
        }
    }
}

/// Where the data of a command is, or goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the capsule.
    Capsule {
        /// From the beginning of the capsule's data.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// In units of their own.
    Transfer {
        /// Bytes.
        len: u32,
    },
}

impl Place {
    /// Bytes of the data.
    #[must_use]
    pub fn len(&self) -> u32 {
        let (Self::Capsule { len, .. } | Self::Transfer { len }) = self;
        *len
    }

    /// Whether there is no data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    bytes: [u8; COMMAND],
}

impl Command {
    /// Any 64 bytes are a command.
    #[must_use]
    pub fn new(bytes: [u8; COMMAND]) -> Self {
        Self { bytes }
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }

    /// The opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// 0 alone, 1 the first of two fused commands, 2 the second, 3 invalid.
    #[must_use]
    pub fn fuse(&self) -> u8 {
        self.bytes[1] & 3
    }

    /// The identifier.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.u16(2)
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> u32 {
        self.u32(4)
    }

    /// The type of a fabrics command.
    #[must_use]
    pub fn fabrics_type(&self) -> u8 {
        self.bytes[4]
    }

    /// Command double word `number`, 10 to 15.
    #[must_use]
    pub fn word(&self, number: usize) -> u32 {
        self.u32((number.clamp(10, 15)) * 4)
    }

    /// Command double words `number` and the next: 64 bits.
    #[must_use]
    pub fn double(&self, number: usize) -> u64 {
        self.u64(number.clamp(10, 14) * 4)
    }

    /// The first logical block of an I/O command.
    #[must_use]
    pub fn first_block(&self) -> u64 {
        self.double(10)
    }

    /// How many logical blocks an I/O command covers.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        u64::from(self.word(12) & 0xffff) + 1
    }

    /// Whether the change is acknowledged once durable (FUA).
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.word(12) & 1 << 30 != 0
    }

    /// Whether written zeros may be unmapped (DEAC).
    #[must_use]
    pub fn deallocates(&self) -> bool {
        self.word(12) & 1 << 25 != 0
    }

    /// Whether the command carries protection information, which namespaces here don't have (PRACT).
    #[must_use]
    pub fn protects(&self) -> bool {
        self.word(12) & 1 << 29 != 0
    }

    /// Where its data is.
    ///
    /// # Errors
    /// [`Status::SGL_TYPE`] for all but data in the capsule and the transport's own transfers.
    pub fn place(&self) -> Result<Place, Status> {
        let (address, len) = (self.u64(24), self.u32(32));
        match self.bytes[39] {
            0x01 => Ok(Place::Capsule { offset: address, len }),
            0x5A => Ok(Place::Transfer { len }),
            _ => Err(Status::SGL_TYPE),
        }
    }

    /// Whether data goes from the controller to the host: the two low bits of the opcode, or of the fabrics type.
    #[must_use]
    pub fn moves_data(&self) -> u8 {
        if self.opcode() == admin::FABRICS { self.fabrics_type() & 3 } else { self.opcode() & 3 }
    }

    /// Fields of Connect.
    #[must_use]
    pub fn connect(&self) -> Connect {
        Connect { format: self.u16(40), queue: self.u16(42), size: self.u16(44), attributes: self.bytes[46], keep_alive: self.u32(48) }
    }

    /// Fields of Property Get and Set: whether it has 64 bits, its place, its new value.
    #[must_use]
    pub fn property(&self) -> (bool, u32, u64) {
        (self.bytes[40] & 7 == 1, self.u32(44), self.u64(48))
    }
}

/// Makes a connection a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// Of the record; 0.
    pub format: u16,
    /// 0 for the admin queue.
    pub queue: u16,
    /// Entries less one.
    pub size: u16,
    /// Bit 2: the host does not follow the head of the submission queue.
    pub attributes: u8,
    /// Milliseconds; 0 for never.
    pub keep_alive: u32,
}

/// The data of Connect: a host, and the subsystem and controller that it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectData {
    /// The host, given once.
    pub host_id: [u8; 16],
    /// `0xFFFF` for a new controller.
    pub controller: u16,
    /// The subsystem's name.
    pub subsystem: String,
    /// The host's name.
    pub host: String,
}

/// The length of [`ConnectData`] as bytes.
pub const CONNECT_DATA: usize = 1024;

impl ConnectData {
    /// Reads it. `None` where it is too short, or names have no end or are no UTF-8.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; CONNECT_DATA] = bytes.try_into().ok()?;
        let name = |at: usize| {
            let field = &bytes[at..at + 256];
            // A qualified name has at most 223 bytes, so that a zero ends it.
            let end = field.iter().position(|byte| *byte == 0).filter(|end| (1..=223).contains(end))?;
            String::from_utf8(field[..end].to_vec()).ok()
        };
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&bytes[..16]);
        Some(Self { host_id, controller: u16::from_le_bytes([bytes[16], bytes[17]]), subsystem: name(256)?, host: name(512)? })
    }
}

/// The 16 bytes of a completion.
#[must_use]
pub fn completion(command: u16, queue: u16, head: u16, status: Status, result: u64) -> [u8; COMPLETION] {
    let mut out = BytesMut::with_capacity(COMPLETION);
    out.put_u64_le(result);
    out.put_u16_le(head);
    out.put_u16_le(queue);
    out.put_u16_le(command);
    out.put_u16_le(status.field());
    let mut bytes = [0; COMPLETION];
    bytes.copy_from_slice(&out);
    bytes
}

/// A range of Dataset Management.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// Its first block.
    pub first: u64,
    /// How many.
    pub blocks: u32,
}

/// The ranges of Dataset Management: `count` of 16 bytes each. `None` where there are fewer bytes.
#[must_use]
pub fn ranges(bytes: &[u8], count: usize) -> Option<Vec<BlockRange>> {
    let all = bytes.get(..count.checked_mul(16)?)?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    Some(all.chunks_exact(16).map(|range| BlockRange { first: number(&range[8..16]), blocks: number(&range[4..8]) as u32 }).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn random_commands_are_read_or_refused(halves: ([u8; 32], [u8; 32])) {
            let command = Command::new([halves.0, halves.1].concat().try_into().unwrap());
            let _ = (command.connect(), command.property(), command.place().map(|place| place.len()), command.double(14), command.word(99));
            prop_assert!((1..=1 << 16).contains(&command.blocks()));
        }

        #[test]
        fn random_connect_data_is_read_or_refused(bytes in prop::collection::vec(0_u8..200, 0..1100), at in 0_usize..300) {
            let mut bytes = bytes;
            bytes.resize(1024, 0);
            bytes[256 + at % 256] = 0;
            bytes[512 + at % 256] = 0;
            if let Some(data) = ConnectData::parse(&bytes) {
                prop_assert!(!data.host.is_empty() && data.subsystem.len() < 256);
            }
        }

        #[test]
        fn random_ranges_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..5000), count in 0_usize..300) {
            prop_assert_eq!(ranges(&bytes, count).map(|ranges| ranges.len()), (bytes.len() >= 16 * count).then_some(count));
        }
    }

    #[test]
    fn statuses_have_type_code_and_finality() {
        assert_eq!(Status::COMPARE_FAILURE.field(), 0x8000 | 2 << 9 | 0x85 << 1);
        assert_eq!(Status::NOT_READY.field(), 0x82 << 1);
    }
}
