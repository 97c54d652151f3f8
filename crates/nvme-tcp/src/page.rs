//! A page of a fixed length whose fields are set by their place.

use bytes::Bytes;

/// Bytes that are zero where nothing was set. What does not fit is cut off.
#[derive(Debug, Clone)]
pub struct Page(Vec<u8>);

impl Page {
    /// `len` zeros.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self(vec![0; len])
    }

    /// Sets bytes.
    #[must_use]
    pub fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        let rest = self.0.get_mut(at..).unwrap_or_default();
        let len = bytes.len().min(rest.len());
        rest[..len].copy_from_slice(&bytes[..len]);
        self
    }

    /// Sets a byte.
    #[must_use]
    pub fn u8(self, at: usize, value: u8) -> Self {
        self.put(at, &[value])
    }

    /// Sets two bytes, the lower one first.
    #[must_use]
    pub fn u16(self, at: usize, value: u16) -> Self {
        self.put(at, &value.to_le_bytes())
    }

    /// Sets four bytes.
    #[must_use]
    pub fn u32(self, at: usize, value: u32) -> Self {
        self.put(at, &value.to_le_bytes())
    }

    /// Sets eight bytes.
    #[must_use]
    pub fn u64(self, at: usize, value: u64) -> Self {
        self.put(at, &value.to_le_bytes())
    }

    /// Sets a text of `len` bytes with `fill` behind it.
    #[must_use]
    pub fn text(self, at: usize, len: usize, text: &str, fill: u8) -> Self {
        let mut bytes: Vec<u8> = text.bytes().take(len).collect();
        bytes.resize(len, fill);
        self.put(at, &bytes)
    }

    /// Its bytes.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.0.into()
    }
}
