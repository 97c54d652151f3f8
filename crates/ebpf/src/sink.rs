//! What a program prints and emits.

use bytes::Bytes;

/// Bytes that a program writes, up to a limit.
#[derive(Debug)]
pub struct Sink {
    bytes: Vec<u8>,
    limit: usize,
}

impl Sink {
    /// An empty one.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), limit }
    }

    /// Appends `bytes`. Whether they fit; if not, those that do are kept.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let fit = bytes.get(..self.limit - self.bytes.len());
        self.bytes.extend_from_slice(fit.unwrap_or(bytes));
        fit.is_none_or(|fit| fit.len() == bytes.len())
    }

    /// The limit in bytes.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes.
    pub fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sink_beyond_its_limit_keeps_what_fits() {
        let mut sink = Sink::new(5);
        assert!(sink.push(b"abc") && sink.push(b"") && sink.push(b"de") && sink.push(b""));
        assert!(!sink.push(b"f"));
        assert_eq!(sink.take(), "abcde");
        let mut sink = Sink::new(2);
        assert!(!sink.push(b"abc"));
        assert_eq!(sink.take(), "ab");
    }
}
