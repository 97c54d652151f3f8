//! The descriptor of an EXEC: an operation, its arguments, and the extents that it reads and writes.
//!
//! Invariants of what [`Descriptor::decode`] gives and [`Descriptor::encode`] takes:
//! - All numbers are within the bounds of [`crate::codes`]; an object's extents cover its length.
//! - Places and lengths of extents are multiples of the logical block.
//! - Encoding what was decoded gives the same bytes.
//!
//! See also `docs/internals/formats/exec-descriptor.md` has the bytes.

use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_volume::device::LOGICAL;

use crate::codes::{
    HOLE, MOST_ARGUMENT_BYTES, MOST_ARGUMENTS, MOST_DESCRIPTOR, MOST_EXTENTS, MOST_LENGTH, MOST_OBJECTS, VERSION, descriptor_flag, object_flag,
};
use crate::wire::{self, Reader, padded_length, put_padded};

/// The first bytes of a descriptor.
pub const MAGIC: [u8; 4] = *b"OASD";
/// Bytes of a descriptor's header.
pub const HEADER: usize = 56;
/// Where the header has the checksum.
pub const CHECKSUM: usize = 12;
const OBJECT: usize = 40;
const EXTENT: usize = 16;
const ARGUMENT: usize = 8;

/// A computation over extents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descriptor {
    /// The operation; see [`crate::codes::opcode`].
    pub opcode: u16,
    /// See [`descriptor_flag`].
    pub flags: u32,
    /// The most time in milliseconds, waiting included; 0 for the target's own limit. The lower of both holds.
    pub time: u32,
    /// The most memory in bytes; 0 for the target's own limit. The lower of both holds.
    pub memory: u64,
    /// The longest result in bytes; 0 for the target's own limit. The lower of both holds.
    pub result: u64,
    /// What the operation must know.
    pub arguments: Vec<Argument>,
    /// What it reads.
    pub inputs: Vec<Object>,
    /// What it writes.
    pub outputs: Vec<Object>,
}

/// An argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// What it says; see [`crate::codes::tag`].
    pub tag: u16,
    /// Its value.
    pub value: Value,
}

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(u64),
    /// Any bytes.
    Bytes(Bytes),
    /// A text in UTF-8.
    Text(String),
}

/// A virtual object: bytes that lie in extents, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Object {
    /// Its length in bytes. For an output, the room: at most this length may be written.
    pub length: u64,
    /// The first byte that counts: the operation sees the bytes from here to the length. 0 for an output.
    pub begin: u64,
    /// For a search that goes on: the first byte at which a match may begin. 0 or at least `begin`.
    pub resume: u64,
    /// For a chunk: the place of byte 0 within the whole, in bytes. Offsets that are answered count from the whole's
    /// first byte.
    pub position: u64,
    /// See [`object_flag`].
    pub flags: u32,
    /// Where the bytes lie, in their order.
    pub extents: Vec<Extent>,
}

/// Bytes that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first byte on the device, a multiple of the logical block; or [`HOLE`].
    pub place: u64,
    /// The length in bytes, a multiple of the logical block, and not 0.
    pub length: u64,
}

impl Extent {
    /// The `length` bytes at `place`.
    #[must_use]
    pub fn new(place: u64, length: u64) -> Self {
        Self { place, length }
    }

    /// `length` bytes that read as zeros.
    #[must_use]
    pub fn hole(length: u64) -> Self {
        Self { place: HOLE, length }
    }

    /// Whether it reads as zeros and lies nowhere.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        self.place == HOLE
    }
}

impl Object {
    /// The first `length` bytes of `extents`.
    #[must_use]
    pub fn new(length: u64, extents: Vec<Extent>) -> Self {
        Self { length, extents, ..Self::default() }
    }

    /// The same object from byte `begin` on.
    #[must_use]
    pub fn beginning_at(mut self, begin: u64) -> Self {
        self.begin = begin;
        self
    }

    /// The same object as a chunk that begins at byte `position` of a whole; whether others come before and after it.
    #[must_use]
    pub fn chunk(mut self, position: u64, preceded: bool, followed: bool) -> Self {
        self.position = position;
        self.flags = if preceded { object_flag::PRECEDED } else { 0 } | if followed { object_flag::FOLLOWED } else { 0 };
        self
    }

    /// Whether others come before it.
    #[must_use]
    pub fn is_preceded(&self) -> bool {
        self.flags & object_flag::PRECEDED != 0
    }

    /// Whether others follow it.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.flags & object_flag::FOLLOWED != 0
    }

    /// Bytes that an operation sees.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.length.saturating_sub(self.begin)
    }

    /// # Errors
    /// `Invalid` where it breaks a rule of the format, `Unsupported` for a flag of a newer version.
    pub fn check(&self) -> Result<()> {
        if self.flags & !object_flag::ALL != 0 {
            return Err(Error::unsupported(format!("object flags {:#x} are not known", self.flags & !object_flag::ALL)));
        }
        if self.length > MOST_LENGTH || self.position > MOST_LENGTH {
            return Err(Error::invalid(format!("an object of {} bytes at {} is too long", self.length, self.position)));
        }
        if self.begin > self.length || self.resume > self.length || (self.resume != 0 && self.resume < self.begin) {
            return Err(Error::invalid(format!("an object of {} bytes can't begin at {} and go on at {}", self.length, self.begin, self.resume)));
        }
        let mut covered = 0u64;
        for extent in &self.extents {
            let block = u64::from(LOGICAL);
            if extent.length == 0 || !extent.length.is_multiple_of(block) || (!extent.is_hole() && !extent.place.is_multiple_of(block)) {
                return Err(Error::invalid(format!("an extent of {} bytes at {} is not of blocks of {block} bytes", extent.length, extent.place)));
            }
            if !extent.is_hole() && extent.place.checked_add(extent.length).is_none_or(|end| end > MOST_LENGTH) {
                return Err(Error::invalid(format!("an extent of {} bytes at {} ends beyond any device", extent.length, extent.place)));
            }
            covered =
                covered.checked_add(extent.length).filter(|sum| *sum <= MOST_LENGTH).ok_or_else(|| Error::invalid("extents of an object are too long"))?;
        }
        if covered < self.length {
            return Err(Error::invalid(format!("extents of {covered} bytes don't cover an object of {}", self.length)));
        }
        Ok(())
    }
}

impl Descriptor {
    /// One without arguments and objects.
    #[must_use]
    pub fn new(opcode: u16) -> Self {
        Self { opcode, ..Self::default() }
    }

    /// With a number as a further argument.
    #[must_use]
    pub fn number(mut self, tag: u16, number: u64) -> Self {
        self.arguments.push(Argument { tag, value: Value::Number(number) });
        self
    }

    /// With bytes as a further argument.
    #[must_use]
    pub fn bytes(mut self, tag: u16, bytes: impl Into<Bytes>) -> Self {
        self.arguments.push(Argument { tag, value: Value::Bytes(bytes.into()) });
        self
    }

    /// With a text as a further argument.
    #[must_use]
    pub fn text(mut self, tag: u16, text: impl Into<String>) -> Self {
        self.arguments.push(Argument { tag, value: Value::Text(text.into()) });
        self
    }

    /// With a further input object.
    #[must_use]
    pub fn input(mut self, object: Object) -> Self {
        self.inputs.push(object);
        self
    }

    /// With a further output object.
    #[must_use]
    pub fn output(mut self, object: Object) -> Self {
        self.outputs.push(object);
        self
    }

    /// With these flags set, too.
    #[must_use]
    pub fn with(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    /// Whether all `flags` are set.
    #[must_use]
    pub fn has(&self, flags: u32) -> bool {
        self.flags & flags == flags
    }

    /// The bytes of the descriptor. What they take can be computed before: [`Descriptor::encoded_length`].
    ///
    /// # Errors
    /// `Invalid` where it breaks a rule or a bound of the format, `Unsupported` for flags of a newer version.
    pub fn encode(&self) -> Result<Bytes> {
        self.check()?;
        let mut out = Vec::with_capacity(self.encoded_length());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, 0]);
        out.extend_from_slice(&self.opcode.to_le_bytes());
        out.extend_from_slice(&(self.encoded_length() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        for number in [self.flags, self.arguments.len() as u32, self.inputs.len() as u32, self.outputs.len() as u32, self.time, 0] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.memory, self.result] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for argument in &self.arguments {
            let number;
            let (of, bytes): (u8, &[u8]) = match &argument.value {
                Value::Number(value) => {
                    number = value.to_le_bytes();
                    (1, &number)
                }
                Value::Bytes(bytes) => (2, bytes),
                Value::Text(text) => (3, text.as_bytes()),
            };
            out.extend_from_slice(&argument.tag.to_le_bytes());
            out.extend_from_slice(&[of, 0]);
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            put_padded(&mut out, bytes);
        }
        for object in self.inputs.iter().chain(&self.outputs) {
            for number in [object.length, object.begin, object.resume, object.position] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            out.extend_from_slice(&(object.extents.len() as u32).to_le_bytes());
            out.extend_from_slice(&object.flags.to_le_bytes());
            for extent in &object.extents {
                out.extend_from_slice(&extent.place.to_le_bytes());
                out.extend_from_slice(&extent.length.to_le_bytes());
            }
        }
        wire::seal(&mut out, CHECKSUM);
        Ok(out.into())
    }

    /// Bytes of [`Descriptor::encode`].
    #[must_use]
    pub fn encoded_length(&self) -> usize {
        let objects = self.inputs.iter().chain(&self.outputs);
        HEADER + self.argument_bytes() + objects.map(|object| OBJECT + object.extents.len() * EXTENT).sum::<usize>()
    }

    fn argument_bytes(&self) -> usize {
        let length = |argument: &Argument| match &argument.value {
            Value::Number(_) => 8,
            Value::Bytes(bytes) => padded_length(bytes.len()),
            Value::Text(text) => padded_length(text.len()),
        };
        self.arguments.iter().map(|argument| ARGUMENT + length(argument)).sum()
    }

    /// # Errors
    /// As [`Descriptor::encode`].
    pub fn check(&self) -> Result<()> {
        let extents = self.inputs.iter().chain(&self.outputs).map(|object| object.extents.len()).sum::<usize>();
        for (found, most, of) in [
            (self.arguments.len(), MOST_ARGUMENTS, "arguments"),
            (self.argument_bytes(), MOST_ARGUMENT_BYTES, "bytes of arguments"),
            (self.inputs.len(), MOST_OBJECTS, "input objects"),
            (self.outputs.len(), MOST_OBJECTS, "output objects"),
            (extents, MOST_EXTENTS, "extents"),
            (self.encoded_length(), MOST_DESCRIPTOR, "bytes of a descriptor"),
        ] {
            if found > most {
                return Err(Error::invalid(format!("{found} {of} are too many, {most} are the most; send several descriptors")));
            }
        }
        if self.flags & !descriptor_flag::ALL != 0 {
            return Err(Error::unsupported(format!("descriptor flags {:#x} are not known", self.flags & !descriptor_flag::ALL)));
        }
        for (number, object) in self.inputs.iter().enumerate() {
            object.check().map_err(|error| error.context(format!("input object {number} of the descriptor is wrong")))?;
        }
        for (number, object) in self.outputs.iter().enumerate() {
            object.check().map_err(|error| error.context(format!("output object {number} of the descriptor is wrong")))?;
            if object.begin != 0 || object.resume != 0 || object.position != 0 || object.flags != 0 || object.extents.iter().any(Extent::is_hole) {
                return Err(Error::invalid(format!("output object {number} of the descriptor begins elsewhere than at 0, is a chunk, or has holes")));
            }
        }
        Ok(())
    }

    /// The descriptor of these bytes.
    ///
    /// # Errors
    /// `Invalid` where they are none or break a bound, `Unsupported` for a newer version or its flags.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let mut reader = Reader::new(bytes.clone(), "descriptor");
        if bytes.len() > MOST_DESCRIPTOR {
            return Err(reader.error(format!("{} bytes are too many, {MOST_DESCRIPTOR} are the most", bytes.len())));
        }
        wire::begin(&mut reader, MAGIC, VERSION)?;
        reader.zero(1)?;
        let opcode = reader.u16()?;
        let length = reader.u32()? as usize;
        if length != bytes.len() {
            return Err(reader.error(format!("the header says {length} bytes, there are {}", bytes.len())));
        }
        if reader.u32()? != wire::checksum(bytes, CHECKSUM) {
            return Err(reader.error("the checksum is wrong; send it again"));
        }
        let flags = reader.u32()?;
        let arguments = reader.count(MOST_ARGUMENTS, "arguments")?;
        let inputs = reader.count(MOST_OBJECTS, "input objects")?;
        let outputs = reader.count(MOST_OBJECTS, "output objects")?;
        let time = reader.u32()?;
        reader.zero(4)?;
        let (memory, result) = (reader.u64()?, reader.u64()?);
        let arguments = (0..arguments).map(|_| read_argument(&mut reader)).collect::<Result<_>>()?;
        let mut extents = 0;
        let mut objects = |count: usize| (0..count).map(|_| read_object(&mut reader, &mut extents)).collect::<Result<Vec<_>>>();
        let (inputs, outputs) = (objects(inputs)?, objects(outputs)?);
        if reader.rest() != 0 {
            return Err(reader.error(format!("{} bytes follow the last object", reader.rest())));
        }
        let descriptor = Self { opcode, flags, time, memory, result, arguments, inputs, outputs };
        descriptor.check()?;
        Ok(descriptor)
    }
}

fn read_argument(reader: &mut Reader) -> Result<Argument> {
    let (tag, of) = (reader.u16()?, reader.u8()?);
    reader.zero(1)?;
    let length = reader.count(MOST_ARGUMENT_BYTES, "bytes of an argument")?;
    let value = match of {
        1 if length == 8 => Value::Number(reader.u64()?),
        2 => Value::Bytes(reader.padded(length)?),
        3 => {
            let bytes = reader.padded(length)?;
            Value::Text(std::str::from_utf8(&bytes).map_err(|error| reader.error("a text is not UTF-8").with_source(error))?.to_owned())
        }
        _ => return Err(reader.error(format!("an argument can't be of type {of} and have {length} bytes"))),
    };
    Ok(Argument { tag, value })
}

fn read_object(reader: &mut Reader, extents: &mut usize) -> Result<Object> {
    let (length, begin, resume, position) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
    let count = reader.count(MOST_EXTENTS, "extents")?;
    let flags = reader.u32()?;
    *extents += count;
    if *extents > MOST_EXTENTS || count * EXTENT > reader.rest() {
        return Err(reader.error(format!("{count} extents are too many, or their bytes are missing")));
    }
    let extents = (0..count).map(|_| Ok(Extent { place: reader.u64()?, length: reader.u64()? })).collect::<Result<_>>()?;
    Ok(Object { length, begin, resume, position, flags, extents })
}
