//! The bytes of a slice, or of its pieces that were read.

use std::sync::Arc;

use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Bytes of a slice, with gaps perhaps. Asking for a byte in a gap is an error.
#[derive(Debug, Clone)]
pub struct Pieces {
    /// The length of the slice.
    len: u64,
    /// Where each begins, and its bytes; ascending, none in another.
    pieces: Arc<[(u64, Bytes)]>,
}

impl From<Bytes> for Pieces {
    /// The whole slice.
    fn from(bytes: Bytes) -> Self {
        Self { len: bytes.len() as u64, pieces: [(0, bytes)].into() }
    }
}

impl Pieces {
    /// The bytes from `start` to the end of a slice of `len` bytes.
    ///
    /// # Errors
    /// `Internal` where they are not the slice's last.
    pub fn part(len: u64, start: u64, bytes: Bytes) -> skytether_common::Result<Self> {
        if start.checked_add(bytes.len() as u64) != Some(len) {
            return Err(skytether_common::Error::internal(format!("{} bytes from {start} on are not the end of {len}", bytes.len())));
        }
        Ok(Self::new(len, vec![(start, bytes)]))
    }

    /// The `pieces` of a slice of `len` bytes, each with its place: ascending, without overlap, none beyond the end.
    pub(crate) fn new(len: u64, pieces: Vec<(u64, Bytes)>) -> Self {
        Self { len, pieces: pieces.into() }
    }

    /// The bytes of the slice if all are there.
    #[must_use]
    pub fn whole(&self) -> Option<&Bytes> {
        match self.pieces.as_ref() {
            [(0, bytes)] if bytes.len() as u64 == self.len => Some(bytes),
            _ => None,
        }
    }

    /// The bytes from `start` on, as far as their piece goes.
    fn starting(&self, start: u64) -> Result<Bytes> {
        let after = self.pieces.partition_point(|(begin, _)| *begin <= start);
        let piece = after.checked_sub(1).and_then(|at| self.pieces.get(at));
        let found = piece.and_then(|(begin, bytes)| {
            let at = usize::try_from(start - begin).ok()?;
            (at <= bytes.len()).then(|| bytes.slice(at..))
        });
        found.ok_or_else(|| ParquetError::General(format!("byte {start} of a slice of {} bytes is wanted, which was not read for these columns", self.len)))
    }
}

impl Length for Pieces {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Pieces {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.starting(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.starting(start)?;
        if length > bytes.len() {
            return Err(ParquetError::General(format!(
                "{length} bytes from byte {start} of a slice of {} bytes are wanted, of which {} were read for these columns",
                self.len,
                bytes.len()
            )));
        }
        Ok(bytes.slice(..length))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn missing_pieces_are_an_error() {
        let pieces = Pieces::new(30, vec![(4, Bytes::from_static(b"efgh")), (8, Bytes::from_static(b"ij")), (20, Bytes::from_static(b"uvwxyzabcd"))]);
        assert_eq!((pieces.len(), pieces.whole()), (30, None));
        for (start, length, due) in
            [(4, 4, Some(&b"efgh"[..])), (5, 2, Some(b"fg")), (8, 2, Some(b"ij")), (20, 10, Some(b"uvwxyzabcd")), (29, 1, Some(b"d")), (30, 0, Some(b""))]
        {
            assert_eq!(pieces.get_bytes(start, length).ok().as_deref(), due, "{start} {length}");
        }
        // A request across two pieces is an error: no decoder needs one.
        for (start, length) in
            [(0, 0), (0, 1), (3, 2), (4, 5), (4, 30), (10, 1), (12, 1), (19, 1), (29, 2), (31, 0), (u64::MAX, 1), (4, usize::MAX), (u64::MAX, usize::MAX)]
        {
            assert!(pieces.get_bytes(start, length).is_err(), "{start} {length}");
        }
        let mut read = Vec::new();
        pieces.get_read(6).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, b"gh");
        assert!(pieces.get_read(2).is_err() && pieces.get_read(31).is_err() && Pieces::new(5, vec![]).get_read(0).is_err());
        let whole = Pieces::from(Bytes::from_static(b"abc"));
        assert_eq!((whole.len(), whole.whole().map(Bytes::as_ref)), (3, Some(&b"abc"[..])));
        assert!(whole.get_bytes(1, 3).is_err() && Pieces::new(4, vec![(0, Bytes::from_static(b"abc"))]).whole().is_none());
    }
}
