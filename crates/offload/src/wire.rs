//! Little-endian numbers and padded bytes.

use bytes::Bytes;
use skytether_common::{Error, Result};

/// Every part of a descriptor or result begins at a multiple of it.
pub(crate) const ALIGN: usize = 8;

/// Reads numbers from bytes. What is missing is `Invalid`.
pub(crate) struct Reader {
    bytes: Bytes,
    at: usize,
    what: &'static str,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes, what: &'static str) -> Self {
        Self { bytes, at: 0, what }
    }

    pub(crate) fn rest(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{}, byte {}: {what}", self.what, self.at))
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<Bytes> {
        if len > self.rest() {
            return Err(self.error(format!("{len} bytes are missing, there are {}", self.rest())));
        }
        let found = self.bytes.slice(self.at..self.at + len);
        self.at += len;
        Ok(found)
    }

    /// Bytes, and the zeros that fill them up to the next part.
    pub(crate) fn padded(&mut self, len: usize) -> Result<Bytes> {
        let found = self.bytes(len)?;
        let padding = self.bytes(len.next_multiple_of(ALIGN) - len)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(self.error("padding is not zero"));
        }
        Ok(found)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut number = [0; N];
        number.copy_from_slice(&self.bytes(N)?);
        Ok(number)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.number::<1>().map(|[number]| number)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.number().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.number().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.number().map(u64::from_le_bytes)
    }

    /// A number that counts things, of at most `most`.
    pub(crate) fn count(&mut self, most: usize, of: &str) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > most { Err(self.error(format!("{count} {of} are too many, {most} are the most"))) } else { Ok(count) }
    }

    pub(crate) fn zero(&mut self, bytes: usize) -> Result<()> {
        if self.bytes(bytes)?.iter().any(|byte| *byte != 0) {
            return Err(self.error("reserved bytes are not zero"));
        }
        Ok(())
    }
}

/// Appends `bytes`, and zeros up to the next part.
pub(crate) fn put_padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(ALIGN), 0);
}

/// The bytes that `len` bytes take with their padding.
pub(crate) fn padded_length(len: usize) -> usize {
    len.saturating_add(ALIGN - 1) / ALIGN * ALIGN
}

/// The CRC-32C of `bytes`, with the 4 bytes at `field` taken as zeros.
pub(crate) fn checksum(bytes: &[u8], field: usize) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    let (before, rest) = bytes.split_at(field.min(bytes.len()));
    digest.update(before);
    digest.update(&[0; 4]);
    digest.update(rest.get(4..).unwrap_or_default());
    digest.finalize() as u32
}

/// Writes the checksum of `bytes` at `field`. Used by encoders, and by fuzz targets to get past the check.
pub fn seal(bytes: &mut [u8], field: usize) {
    let sum = checksum(bytes, field).to_le_bytes();
    if let Some(place) = bytes.get_mut(field..field + 4) {
        place.copy_from_slice(&sum);
    }
}

/// A header's beginning: magic, version. An unknown version is `Unsupported`.
pub(crate) fn begin(reader: &mut Reader, magic: [u8; 4], version: u8) -> Result<()> {
    if reader.bytes(4)? != magic[..] {
        return Err(reader.error(format!("it does not begin with {:?}", String::from_utf8_lossy(&magic))));
    }
    let found = reader.u8()?;
    if found == version { Ok(()) } else { Err(Error::unsupported(format!("{}: version {found} is not known, {version} is", reader.what))) }
}
