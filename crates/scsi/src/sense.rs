//! Sense data (SPC-4, 4.5): why a command did not do what it asks for.

use bytes::{BufMut, Bytes, BytesMut};
use skytether_common::{Error, error::Kind};

/// Sense keys (SPC-4, table 27).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    None = 0x0,
    NotReady = 0x2,
    Medium = 0x3,
    Hardware = 0x4,
    Illegal = 0x5,
    Attention = 0x6,
    Protect = 0x7,
    CopyAborted = 0xA,
    Aborted = 0xB,
    Miscompare = 0xE,
    Completed = 0xF,
}

/// Additional sense codes with their qualifiers (SPC-4, annex F): the code in the high byte.
pub(crate) mod code {
    pub(crate) const NONE: u16 = 0x0000;
    pub(crate) const INITIALIZING_COMMAND_REQUIRED: u16 = 0x0402;
    pub(crate) const MANUAL_INTERVENTION_REQUIRED: u16 = 0x0403;
    pub(crate) const SANITIZE_IN_PROGRESS: u16 = 0x041B;
    pub(crate) const UNREACHABLE_COPY_TARGET: u16 = 0x0804;
    pub(crate) const COPY_TARGET_NOT_REACHABLE: u16 = 0x0D02;
    pub(crate) const INCORRECT_COPY_TARGET_TYPE: u16 = 0x0D03;
    pub(crate) const UNRECOVERED_READ_ERROR: u16 = 0x1100;
    pub(crate) const PARAMETER_LIST_LENGTH_ERROR: u16 = 0x1A00;
    pub(crate) const MISCOMPARE: u16 = 0x1D00;
    pub(crate) const INVALID_OPERATION_CODE: u16 = 0x2000;
    pub(crate) const LBA_OUT_OF_RANGE: u16 = 0x2100;
    pub(crate) const INVALID_FIELD_IN_CDB: u16 = 0x2400;
    pub(crate) const LOGICAL_UNIT_NOT_SUPPORTED: u16 = 0x2500;
    pub(crate) const INVALID_FIELD_IN_PARAMETERS: u16 = 0x2600;
    pub(crate) const PARAMETER_NOT_SUPPORTED: u16 = 0x2601;
    pub(crate) const INVALID_RELEASE: u16 = 0x2604;
    pub(crate) const TOO_MANY_TARGET_DESCRIPTORS: u16 = 0x2606;
    pub(crate) const UNSUPPORTED_TARGET_DESCRIPTOR: u16 = 0x2607;
    pub(crate) const TOO_MANY_SEGMENT_DESCRIPTORS: u16 = 0x2608;
    pub(crate) const UNSUPPORTED_SEGMENT_DESCRIPTOR: u16 = 0x2609;
    pub(crate) const WRITE_PROTECTED: u16 = 0x2700;
    pub(crate) const SOFTWARE_WRITE_PROTECTED: u16 = 0x2702;
    pub(crate) const SPACE_ALLOCATION_FAILED: u16 = 0x2707;
    pub(crate) const POWER_ON: u16 = 0x2900;
    pub(crate) const BUS_DEVICE_RESET: u16 = 0x2903;
    pub(crate) const TARGET_RESET: u16 = 0x2902;
    pub(crate) const MODE_PARAMETERS_CHANGED: u16 = 0x2A01;
    pub(crate) const RESERVATIONS_PREEMPTED: u16 = 0x2A03;
    pub(crate) const RESERVATIONS_RELEASED: u16 = 0x2A04;
    pub(crate) const REGISTRATIONS_PREEMPTED: u16 = 0x2A05;
    pub(crate) const COMMANDS_CLEARED: u16 = 0x2F00;
    pub(crate) const SAVING_NOT_SUPPORTED: u16 = 0x3900;
    pub(crate) const INTERNAL_TARGET_FAILURE: u16 = 0x4400;
    pub(crate) const INVALID_MESSAGE: u16 = 0x4900;
    pub(crate) const OVERLAPPED_COMMANDS: u16 = 0x4E00;
    pub(crate) const INSUFFICIENT_RESOURCES: u16 = 0x5503;
    pub(crate) const INSUFFICIENT_REGISTRATIONS: u16 = 0x5504;
}

/// Which field is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    in_cdb: bool,
    byte: u16,
    bit: Option<u8>,
}

/// Sense data before it has a format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sense {
    pub(crate) key: Key,
    pub(crate) code: u16,
    pub(crate) information: Option<u64>,
    field: Option<Field>,
    /// Of 65,536.
    progress: Option<u16>,
    /// The data of a vendor specific descriptor (type 80h). There is no place for it in the fixed format.
    vendor: Option<Bytes>,
}

impl Sense {
    pub(crate) fn new(key: Key, code: u16) -> Self {
        Self { key, code, information: None, field: None, progress: None, vendor: None }
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN CDB: the field that begins in this byte.
    pub(crate) fn cdb(byte: u16) -> Self {
        Self { field: Some(Field { in_cdb: true, byte, bit: None }), ..Self::new(Key::Illegal, code::INVALID_FIELD_IN_CDB) }
    }

    /// The same, with the leftmost bit of the field.
    pub(crate) fn cdb_bit(byte: u16, bit: u8) -> Self {
        Self { field: Some(Field { in_cdb: true, byte, bit: Some(bit) }), ..Self::new(Key::Illegal, code::INVALID_FIELD_IN_CDB) }
    }

    /// ILLEGAL REQUEST, INVALID FIELD IN PARAMETER LIST: the field that begins in this byte.
    pub(crate) fn parameter(byte: usize) -> Self {
        Self::parameter_code(code::INVALID_FIELD_IN_PARAMETERS, byte)
    }

    /// ILLEGAL REQUEST with another `code` about the parameter list.
    pub(crate) fn parameter_code(code: u16, byte: usize) -> Self {
        let byte = u16::try_from(byte).unwrap_or(u16::MAX);
        Self { field: Some(Field { in_cdb: false, byte, bit: None }), ..Self::new(Key::Illegal, code) }
    }

    pub(crate) fn illegal(code: u16) -> Self {
        Self::new(Key::Illegal, code)
    }

    pub(crate) fn information(self, information: u64) -> Self {
        Self { information: Some(information), ..self }
    }

    pub(crate) fn progress(self, progress: u16) -> Self {
        Self { progress: Some(progress), ..self }
    }

    pub(crate) fn vendor(self, data: Bytes) -> Self {
        Self { vendor: Some(data), ..self }
    }

    /// Sense-key specific data (SPC-4, 4.5.2.4).
    fn specific(&self) -> Option<[u8; 3]> {
        if let Some(Field { in_cdb, byte, bit }) = self.field {
            let first = 0x80 | u8::from(in_cdb) << 6 | bit.map_or(0, |bit| 0x08 | bit & 7);
            let [high, low] = byte.to_be_bytes();
            return Some([first, high, low]);
        }
        self.progress.map(|progress| [0x80, progress.to_be_bytes()[0], progress.to_be_bytes()[1]])
    }

    /// As bytes: the descriptor format where the logical unit is set to it, or where the fixed one has no room.
    pub(crate) fn bytes(&self, descriptors: bool) -> Bytes {
        if descriptors || self.vendor.is_some() { self.descriptors() } else { self.fixed() }
    }

    /// Response code 70h (SPC-4, table 53).
    fn fixed(&self) -> Bytes {
        let mut out = [0; 18];
        out[0] = 0x70;
        out[2] = self.key as u8;
        // Larger information does not fit: the format then says that the field is not valid.
        if let Some(information) = self.information.and_then(|information| u32::try_from(information).ok()) {
            out[0] |= 0x80;
            out[3..7].copy_from_slice(&information.to_be_bytes());
        }
        out[7] = 10;
        out[12..14].copy_from_slice(&self.code.to_be_bytes());
        if let Some(specific) = self.specific() {
            out[15..18].copy_from_slice(&specific);
        }
        Bytes::copy_from_slice(&out)
    }

    /// Response code 72h (SPC-4, table 28).
    fn descriptors(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_slice(&[0x72, self.key as u8]);
        out.put_u16(self.code);
        out.put_bytes(0, 4);
        if let Some(information) = self.information {
            out.put_slice(&[0x00, 0x0A, 0x80, 0]);
            out.put_u64(information);
        }
        if let Some(specific) = self.specific() {
            out.put_slice(&[0x02, 0x06, 0, 0]);
            out.put_slice(&specific);
            out.put_u8(0);
        }
        if let Some(vendor) = &self.vendor {
            out.put_slice(&[0x80, vendor.len() as u8]);
            out.put_slice(vendor);
        }
        out[7] = (out.len() - 8) as u8;
        out.freeze()
    }
}

/// A command that does not end with GOOD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fail {
    /// CHECK CONDITION.
    Check(Box<Sense>),
    /// Another status, without sense data.
    Status(u8),
}

impl From<Sense> for Fail {
    fn from(sense: Sense) -> Self {
        Self::Check(Box::new(sense))
    }
}

impl From<Error> for Fail {
    /// Failures of a device, whose places and lengths were checked before.
    fn from(error: Error) -> Self {
        let (key, code) = match error.kind() {
            Kind::Conflict => (Key::Protect, code::WRITE_PROTECTED),
            Kind::Exhausted => (Key::Protect, code::SPACE_ALLOCATION_FAILED),
            Kind::Corrupt => (Key::Medium, code::UNRECOVERED_READ_ERROR),
            // Initiators try an aborted command again, which is what this kind asks for.
            Kind::Unavailable => (Key::Aborted, code::INTERNAL_TARGET_FAILURE),
            Kind::Invalid | Kind::NotFound | Kind::Unsupported | Kind::Internal => (Key::Hardware, code::INTERNAL_TARGET_FAILURE),
        };
        tracing::warn!(%error, "a device failed");
        Sense::new(key, code).into()
    }
}

/// The result of carrying out a command: its data for the initiator.
pub(crate) type Outcome<T = Bytes> = Result<T, Fail>;
