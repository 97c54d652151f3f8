//! Protocol data units: headers as bytes, opcodes, flags, reasons (RFC 7143, section 11). Pure.

/// The length of a basic header segment in bytes.
pub const HEADER: usize = 48;

/// A tag that names nothing.
pub const NO_TAG: u32 = 0xffff_ffff;

/// The longest additional header segments that a header can announce, in bytes.
pub const MAX_ADDITIONAL: usize = 255 * 4;

/// The first byte of a header, without its immediate bit.
#[allow(missing_docs)]
pub mod opcode {
    pub const NOP_OUT: u8 = 0x00;
    pub const COMMAND: u8 = 0x01;
    pub const TASK_MANAGEMENT: u8 = 0x02;
    pub const LOGIN: u8 = 0x03;
    pub const TEXT: u8 = 0x04;
    pub const DATA_OUT: u8 = 0x05;
    pub const LOGOUT: u8 = 0x06;
    pub const SNACK: u8 = 0x10;
    pub const NOP_IN: u8 = 0x20;
    pub const RESPONSE: u8 = 0x21;
    pub const TASK_MANAGEMENT_RESPONSE: u8 = 0x22;
    pub const LOGIN_RESPONSE: u8 = 0x23;
    pub const TEXT_RESPONSE: u8 = 0x24;
    pub const DATA_IN: u8 = 0x25;
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    pub const READY_TO_TRANSFER: u8 = 0x31;
    pub const ASYNCHRONOUS: u8 = 0x32;
    pub const REJECT: u8 = 0x3f;
}

/// Bits of the second byte.
#[allow(missing_docs)]
pub mod flag {
    pub const FINAL: u8 = 0x80;
    pub const TRANSIT: u8 = 0x80;
    pub const CONTINUE: u8 = 0x40;
    pub const READ: u8 = 0x40;
    pub const WRITE: u8 = 0x20;
    /// Data-In carries the status.
    pub const STATUS: u8 = 0x01;
    pub const OVERFLOW: u8 = 0x04;
    pub const UNDERFLOW: u8 = 0x02;
}

/// Why a unit is rejected (RFC 7143, 11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The digest of its data is wrong.
    DataDigest = 0x02,
    /// SNACK, which error recovery level 0 does not have.
    Snack = 0x03,
    /// It may not come here, or breaks what was negotiated.
    Protocol = 0x04,
    /// An unknown opcode.
    NotSupported = 0x05,
    /// Too many immediate commands are under way.
    Immediate = 0x06,
    /// Its tag is that of a task under way.
    TaskInProgress = 0x07,
    /// A field of it is invalid.
    InvalidField = 0x09,
}

/// A basic header segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Header(pub [u8; HEADER]);

impl std::fmt::Debug for Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Header(opcode {:#04x}, flags {:#04x}, data {}, tag {:#x})", self.opcode(), self.flags(), self.data_length(), self.tag())
    }
}

impl Header {
    /// An empty header of `opcode`, with the final bit.
    #[must_use]
    pub fn new(opcode: u8) -> Self {
        let mut bytes = [0; HEADER];
        bytes[0] = opcode;
        bytes[1] = flag::FINAL;
        Self(bytes)
    }

    /// The opcode.
    #[must_use]
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// Whether it is delivered at once, outside the order of command numbers.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The second byte.
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Whether the second byte has `flag`.
    #[must_use]
    pub fn has(&self, flag: u8) -> bool {
        self.0[1] & flag != 0
    }

    /// The length of the additional header segments in bytes.
    #[must_use]
    pub fn additional_length(&self) -> usize {
        usize::from(self.0[4]) * 4
    }

    /// The length of the data segment in bytes, without padding.
    #[must_use]
    pub fn data_length(&self) -> usize {
        (self.u32(4) & 0x00ff_ffff) as usize
    }

    /// The logical unit, in the eight bytes of SAM.
    #[must_use]
    pub fn lun(&self) -> u64 {
        u64::from(self.u32(8)) << 32 | u64::from(self.u32(12))
    }

    /// The initiator's task tag.
    #[must_use]
    pub fn tag(&self) -> u32 {
        self.u32(16)
    }

    /// The target's transfer tag, the expected length of a command, or the tag that a management function refers to.
    #[must_use]
    pub fn word5(&self) -> u32 {
        self.u32(20)
    }

    /// The command number of a request.
    #[must_use]
    pub fn cmd_sn(&self) -> u32 {
        self.u32(24)
    }

    /// The command block.
    #[must_use]
    pub fn cdb(&self) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&self.0[32..48]);
        cdb
    }

    /// The big-endian number at byte `at`; 0 beyond the end.
    #[must_use]
    pub fn u32(&self, at: usize) -> u32 {
        self.0.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_be_bytes)
    }

    /// The big-endian number at byte `at`; 0 beyond the end.
    #[must_use]
    pub fn u16(&self, at: usize) -> u16 {
        self.0.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_be_bytes)
    }

    /// Puts `value` at byte `at`, big-endian. Nothing happens beyond the end.
    pub fn set_u32(&mut self, at: usize, value: u32) {
        if let Some(bytes) = self.0.get_mut(at..at + 4) {
            bytes.copy_from_slice(&value.to_be_bytes());
        }
    }

    /// Puts `value` at byte `at`, big-endian. Nothing happens beyond the end.
    pub fn set_u16(&mut self, at: usize, value: u16) {
        if let Some(bytes) = self.0.get_mut(at..at + 2) {
            bytes.copy_from_slice(&value.to_be_bytes());
        }
    }

    /// Sets the length of the data segment.
    pub fn set_data_length(&mut self, length: usize) {
        let additional = u32::from(self.0[4]) << 24;
        self.set_u32(4, additional | (length as u32 & 0x00ff_ffff));
    }
}

/// How many bytes fill `length` up to whole words.
#[must_use]
pub fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}

/// A number of an event, which wraps: whether `a` comes before `b` (RFC 1982).
#[must_use]
pub fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_standard_has_them() {
        let mut header = Header::new(opcode::COMMAND);
        header.0[0] |= 0x40;
        header.0[4] = 2;
        header.set_data_length(0x01_02_03);
        header.set_u32(16, 7);
        assert!(header.is_immediate() && header.has(flag::FINAL));
        assert_eq!((header.opcode(), header.additional_length(), header.data_length(), header.tag()), (1, 8, 0x01_02_03, 7));
        assert_eq!(header.u32(HEADER), 0);
    }

    #[test]
    fn numbers_compare_around_their_end() {
        assert!(before(u32::MAX, 0) && before(0, 1) && !before(1, 1) && !before(0, u32::MAX));
        assert_eq!([0, 1, 2, 3, 4].map(padding), [0, 3, 2, 1, 0]);
    }
}
