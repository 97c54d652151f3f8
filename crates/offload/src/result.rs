//! The result of an EXEC: an item for each input object, or one for all, and the lengths of the outputs.
//!
//! An answer of few bytes is short, so that it fits into sense data: 72 bytes for a SHA-256, 40 for right frames.
//!
//! See also `docs/internals/formats/exec-descriptor.md` has the bytes.

use bytes::Bytes;
use skytether_common::{Error, Kind, Result};

use crate::codes::{MOST_OBJECTS, MOST_RESULT, MOST_TEXT, MOST_VALUES, VERSION, item_flag, kind_of, number_of};
use crate::wire::{self, Reader, padded_length, put_padded};

/// The first bytes of a result.
pub const MAGIC: [u8; 4] = *b"OASR";
/// Bytes of a result's header.
pub const HEADER: usize = 24;
/// Where the header has the checksum.
pub const CHECKSUM: usize = 12;
/// Bytes of an item's header.
pub const ITEM: usize = 16;

/// What an EXEC answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecResult {
    /// The operation that was asked for.
    pub opcode: u16,
    /// Why the computation failed as a whole. Items may be there all the same, and are right then.
    pub failure: Option<Failure>,
    /// What was found, for each input object in its order, or one for all. Which, the operation says.
    pub items: Vec<Item>,
    /// How many bytes were written to each output object.
    pub outputs: Vec<u64>,
}

/// An error as results carry it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What the client can do.
    pub kind: Kind,
    /// What went wrong, for people; at most [`MOST_TEXT`] bytes.
    pub text: String,
}

/// What was found of an input object, or of all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Item {
    /// Why there is nothing else: damage of this object, for example. Others are not affected.
    pub failure: Option<Failure>,
    /// See [`item_flag`].
    pub flags: u16,
    /// Numbers. What they mean, the operation says.
    pub values: Vec<u64>,
    /// Bytes: digests, offsets, rows.
    pub data: Bytes,
    /// Of a chunk: the bytes up to the first boundary between elements.
    pub head: Bytes,
    /// Of a chunk: the bytes after the last boundary between elements.
    pub tail: Bytes,
}

impl From<&Error> for Failure {
    /// Its kind, its text and those of its causes, cut to [`MOST_TEXT`] bytes.
    fn from(error: &Error) -> Self {
        // It prints its causes, too.
        let mut text = error.to_string();
        text.truncate(text.floor_char_boundary(MOST_TEXT));
        Self { kind: error.kind(), text }
    }
}

impl From<&Failure> for Error {
    fn from(failure: &Failure) -> Self {
        Error::new(failure.kind, failure.text.clone())
    }
}

impl Item {
    /// With these bytes.
    #[must_use]
    pub fn of_data(data: impl Into<Bytes>) -> Self {
        Self { data: data.into(), ..Self::default() }
    }

    /// With these numbers.
    #[must_use]
    pub fn of_values(values: &[u64]) -> Self {
        Self { values: values.to_vec(), ..Self::default() }
    }

    /// One that failed.
    #[must_use]
    pub fn failed(error: &Error) -> Self {
        Self { failure: Some(error.into()), ..Self::default() }
    }

    /// Whether all `flags` are set.
    #[must_use]
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Bytes that it takes in a result.
    #[must_use]
    pub fn encoded_length(&self) -> usize {
        let text = self.failure.as_ref().map_or(0, |failure| failure.text.len());
        ITEM + 8 * self.values.len() + [self.data.len().max(text), self.head.len(), self.tail.len()].map(padded_length).iter().sum::<usize>()
    }

    /// The item, or its failure.
    ///
    /// # Errors
    /// The failure.
    pub fn done(&self) -> Result<&Self> {
        self.failure.as_ref().map_or(Ok(self), |failure| Err(failure.into()))
    }
}

impl ExecResult {
    /// Bytes of [`ExecResult::encode`].
    #[must_use]
    pub fn encoded_length(&self) -> usize {
        let text = self.failure.as_ref().map_or(0, |failure| padded_length(failure.text.len()));
        HEADER + text + 8 * self.outputs.len() + self.items.iter().map(Item::encoded_length).sum::<usize>()
    }

    /// The result's bytes.
    ///
    /// # Errors
    /// `Invalid` where it breaks a bound of the format.
    pub fn encode(&self) -> Result<Bytes> {
        let length = self.encoded_length();
        let text = |failure: &Option<Failure>| failure.as_ref().map_or(0, |failure| failure.text.len());
        if length > MOST_RESULT || self.items.len() > MOST_OBJECTS || self.outputs.len() > MOST_OBJECTS || text(&self.failure) > MOST_TEXT {
            return Err(Error::invalid(format!("a result of {length} bytes and {} items is too long", self.items.len())));
        }
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, status(&self.failure)]);
        out.extend_from_slice(&self.opcode.to_le_bytes());
        out.extend_from_slice(&(length as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(self.items.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.outputs.len() as u16).to_le_bytes());
        out.extend_from_slice(&(text(&self.failure) as u16).to_le_bytes());
        if let Some(failure) = &self.failure {
            put_padded(&mut out, failure.text.as_bytes());
        }
        for written in &self.outputs {
            out.extend_from_slice(&written.to_le_bytes());
        }
        for item in &self.items {
            if item.values.len() > MOST_VALUES || text(&item.failure) > MOST_TEXT || (item.failure.is_some() && !item.data.is_empty()) {
                return Err(Error::invalid(format!("an item of {} values breaks a bound of results", item.values.len())));
            }
            let data = item.failure.as_ref().map_or(&item.data[..], |failure| failure.text.as_bytes());
            out.extend_from_slice(&[status(&item.failure), item.values.len() as u8]);
            out.extend_from_slice(&item.flags.to_le_bytes());
            for bytes in [data, &item.head, &item.tail] {
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            }
            for value in &item.values {
                out.extend_from_slice(&value.to_le_bytes());
            }
            for bytes in [data, &item.head, &item.tail] {
                put_padded(&mut out, bytes);
            }
        }
        wire::seal(&mut out, CHECKSUM);
        Ok(out.into())
    }

    /// The result of these bytes. A door may have appended zeros; the header's length counts.
    ///
    /// # Errors
    /// `Invalid` where they are none or break a bound, `Unsupported` for a newer version.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let mut reader = Reader::new(bytes.clone(), "result");
        wire::begin(&mut reader, MAGIC, VERSION)?;
        let status = reader.u8()?;
        let opcode = reader.u16()?;
        let length = reader.u32()? as usize;
        if length > bytes.len() || !(HEADER..=MOST_RESULT).contains(&length) {
            return Err(reader.error(format!("the header says {length} bytes, there are {}", bytes.len())));
        }
        let bytes = bytes.slice(..length);
        if reader.u32()? != wire::checksum(&bytes, CHECKSUM) {
            return Err(reader.error("the checksum is wrong; ask again"));
        }
        let at = reader.at();
        let mut reader = Reader::new(bytes, "result");
        reader.bytes(at)?;
        let items = reader.count(MOST_OBJECTS, "items")?;
        let (outputs, text) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        if outputs > MOST_OBJECTS {
            return Err(reader.error(format!("{outputs} outputs are too many")));
        }
        let failure = read_failure(&mut reader, status, text)?;
        let outputs = (0..outputs).map(|_| reader.u64()).collect::<Result<_>>()?;
        let items = (0..items).map(|_| read_item(&mut reader)).collect::<Result<_>>()?;
        if reader.rest() != 0 {
            return Err(reader.error(format!("{} bytes follow the last item", reader.rest())));
        }
        Ok(Self { opcode, failure, items, outputs })
    }

    /// The items, or why there are none.
    ///
    /// # Errors
    /// The failure as a whole.
    pub fn done(&self) -> Result<&[Item]> {
        self.failure.as_ref().map_or(Ok(&self.items), |failure| Err(failure.into()))
    }
}

fn status(failure: &Option<Failure>) -> u8 {
    failure.as_ref().map_or(0, |failure| number_of(failure.kind))
}

fn read_failure(reader: &mut Reader, status: u8, length: usize) -> Result<Option<Failure>> {
    if length > MOST_TEXT || (status == 0 && length > 0) {
        return Err(reader.error(format!("status {status} with a text of {length} bytes")));
    }
    let text = reader.padded(length)?;
    if status == 0 {
        return Ok(None);
    }
    let kind = kind_of(status).ok_or_else(|| reader.error(format!("status {status} is not known")))?;
    let text = std::str::from_utf8(&text).map_err(|error| reader.error("a text is not UTF-8").with_source(error))?.to_owned();
    Ok(Some(Failure { kind, text }))
}

fn read_item(reader: &mut Reader) -> Result<Item> {
    let (status, values) = (reader.u8()?, usize::from(reader.u8()?));
    let flags = reader.u16()?;
    if values > MOST_VALUES || flags & !item_flag::ALL != 0 {
        return Err(reader.error(format!("an item with {values} values and flags {flags:#x}")));
    }
    let (data, head, tail) = (reader.u32()? as usize, reader.u32()? as usize, reader.u32()? as usize);
    let values = (0..values).map(|_| reader.u64()).collect::<Result<_>>()?;
    let (failure, data) = if status == 0 { (None, reader.padded(data)?) } else { (read_failure(reader, status, data)?, Bytes::new()) };
    Ok(Item { failure, flags, values, data, head: reader.padded(head)?, tail: reader.padded(tail)? })
}
