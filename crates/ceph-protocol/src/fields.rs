//! Bytes with bounds: numbers, and texts and blobs with their length before them.

use std::fmt;

/// Bytes that are no request, response or frame: what is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// The result of a decoder.
pub(crate) type Decoded<T> = Result<T, Malformed>;

/// An error with this text.
pub(crate) fn wrong<T>(what: impl Into<String>) -> Decoded<T> {
    Err(Malformed(what.into()))
}

/// Bytes that are written.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(&mut self, n: u8) -> &mut Self {
        self.raw(&[n])
    }

    pub(crate) fn u16(&mut self, n: u16) -> &mut Self {
        self.raw(&n.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, n: u32) -> &mut Self {
        self.raw(&n.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, n: u64) -> &mut Self {
        self.raw(&n.to_le_bytes())
    }

    /// A number of entries. More than `u32` has are refused by every reader, as all lists are bounded.
    pub(crate) fn count(&mut self, n: usize) -> &mut Self {
        self.u32(u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// Bytes with their length.
    pub(crate) fn blob(&mut self, bytes: &[u8]) -> &mut Self {
        self.count(bytes.len()).raw(bytes)
    }
}

/// Bytes that are read.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    left: &'a [u8],
    /// What they are, for errors.
    of: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(of: &'static str, bytes: &'a [u8]) -> Self {
        Self { left: bytes, of }
    }

    pub(crate) fn raw(&mut self, len: usize) -> Decoded<&'a [u8]> {
        match self.left.split_at_checked(len) {
            Some((taken, left)) => {
                self.left = left;
                Ok(taken)
            }
            None => wrong(format!("a {} ends after {} bytes where {len} more are due", self.of, self.left.len())),
        }
    }

    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Decoded<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of entries, at most `most`.
    pub(crate) fn count(&mut self, most: usize) -> Decoded<usize> {
        match usize::try_from(self.u32()?) {
            Ok(n) if n <= most => Ok(n),
            _ => wrong(format!("a {} has a list of more than {most} entries", self.of)),
        }
    }

    pub(crate) fn blob(&mut self) -> Decoded<&'a [u8]> {
        let len = self.u32()?;
        self.raw(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// A text of at most `most` bytes.
    pub(crate) fn text(&mut self, most: usize) -> Decoded<String> {
        let bytes = self.blob()?;
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.len() <= most => Ok(text.to_owned()),
            _ => wrong(format!("a {} has a text that is not UTF-8, or has more than {most} bytes", self.of)),
        }
    }

    /// All bytes must have been read.
    pub(crate) fn end(self) -> Decoded<()> {
        if self.left.is_empty() { Ok(()) } else { wrong(format!("a {} has {} bytes too many", self.of, self.left.len())) }
    }
}
