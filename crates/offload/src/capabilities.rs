//! What a target can do, as its vendor page carries it.

use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_volume::ExecLimits;

use crate::codes::{MOST_ARGUMENT_BYTES, MOST_EXTENTS, MOST_OBJECTS, VERSION};
use crate::wire::{self, Reader};

/// The first bytes of a target's capabilities.
pub const MAGIC: [u8; 4] = *b"OASC";
/// The most operations that are named: the page stays below 2 KiB.
pub const MOST_OPERATIONS: usize = 960;

/// What a target can do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The longest descriptor and result.
    pub limits: ExecLimits,
    /// The most input objects and the most output objects.
    pub objects: u32,
    /// The most extents.
    pub extents: u32,
    /// The most bytes of arguments.
    pub arguments: u32,
    /// The longest time of an EXEC in milliseconds.
    pub time: u32,
    /// The most memory of an EXEC in bytes.
    pub memory: u64,
    /// The most bytes that an EXEC reads.
    pub bytes: u64,
    /// The operations, in ascending order.
    pub operations: Vec<u16>,
}

impl Capabilities {
    /// Those of this version's format, with no operations.
    #[must_use]
    pub fn new(limits: ExecLimits) -> Self {
        let (objects, extents, arguments) = (MOST_OBJECTS as u32, MOST_EXTENTS as u32, MOST_ARGUMENT_BYTES as u32);
        Self { limits, objects, extents, arguments, time: 0, memory: 0, bytes: 0, operations: Vec::new() }
    }

    /// Whether the operation is there.
    #[must_use]
    pub fn has(&self, opcode: u16) -> bool {
        self.operations.binary_search(&opcode).is_ok()
    }

    /// The page's bytes; operations beyond [`MOST_OPERATIONS`] are left out.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let operations = &self.operations[..self.operations.len().min(MOST_OPERATIONS)];
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&[VERSION, 0]);
        out.extend_from_slice(&(operations.len() as u16).to_le_bytes());
        for number in [self.limits.descriptor, self.limits.result, self.objects, self.extents, self.arguments, self.time] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.memory, self.bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for opcode in operations {
            out.extend_from_slice(&opcode.to_le_bytes());
        }
        out.into()
    }

    /// The capabilities of a page's bytes. What follows them is ignored: a later version may say more.
    ///
    /// # Errors
    /// `Invalid` where they are none, `Unsupported` for another version.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let mut reader = Reader::new(bytes.clone(), "capabilities");
        wire::begin(&mut reader, MAGIC, VERSION)?;
        reader.zero(1)?;
        let count = usize::from(reader.u16()?);
        let limits = ExecLimits { descriptor: reader.u32()?, result: reader.u32()? };
        let (objects, extents, arguments, time) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        let (memory, bytes) = (reader.u64()?, reader.u64()?);
        let operations = (0..count).map(|_| reader.u16()).collect::<Result<Vec<_>>>()?;
        if !operations.is_sorted() {
            return Err(Error::invalid("capabilities: operations are not in their order"));
        }
        Ok(Self { limits, objects, extents, arguments, time, memory, bytes, operations })
    }
}
