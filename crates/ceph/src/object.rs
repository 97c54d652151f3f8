//! The bytes of an object, from wherever they come: the class in an OSD, a store, or memory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use skytether_ceph_protocol::Piece;
use skytether_common::{Error, Result};
use skytether_formats::Object;

/// Bytes of an object. Reading blocks.
pub trait ObjectBytes: Send + Sync {
    /// Bytes from `at` on, fewer at the object's end only.
    ///
    /// # Errors
    /// Those of what has them.
    fn read(&self, at: u64, len: u64) -> Result<Bytes>;
}

impl ObjectBytes for Bytes {
    fn read(&self, at: u64, len: u64) -> Result<Bytes> {
        let end = at.saturating_add(len).min(Bytes::len(self) as u64);
        // Both are within the bytes.
        Ok(if at < end { self.slice(at as usize..end as usize) } else { Self::new() })
    }
}

/// A file: an object has a part of it, and the request some pieces.
pub(crate) struct FileOfObject {
    pub(crate) bytes: Arc<dyn ObjectBytes>,
    /// The file's length.
    pub(crate) size: u64,
    /// Where the object begins in it, and how many bytes it has of it.
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) pieces: Vec<Piece>,
    /// Bytes of the object that were read.
    pub(crate) read: Arc<AtomicU64>,
}

impl FileOfObject {
    /// Bytes from `at` on: at least one, at most `len`, none at the file's end.
    fn some(&self, at: u64, len: u64) -> Result<Bytes> {
        let len = len.min(self.size.saturating_sub(at));
        if len == 0 {
            return Ok(Bytes::new());
        }
        for piece in &self.pieces {
            if let Some(from) = at.checked_sub(piece.at).filter(|from| *from < piece.bytes.len() as u64) {
                let end = (from + len).min(piece.bytes.len() as u64);
                return Ok(Bytes::copy_from_slice(piece.bytes.get(from as usize..end as usize).unwrap_or_default()));
            }
        }
        let Some(from) = at.checked_sub(self.at).filter(|from| *from < self.len) else {
            return Err(Error::unsupported(format!("byte {at} of the file is neither in the object nor in the request: send it along, or do it above")));
        };
        let read = self.bytes.read(from, len.min(self.len - from))?;
        if read.is_empty() {
            return Err(Error::corrupt(format!("the object ends after {from} bytes, and {} were due: it was changed meanwhile", self.len)));
        }
        self.read.fetch_add(read.len() as u64, Ordering::Relaxed);
        Ok(read)
    }

    /// All bytes of a range.
    fn all(&self, at: u64, len: u64) -> Result<Bytes> {
        let first = self.some(at, len)?;
        if first.len() as u64 == len {
            return Ok(first);
        }
        let mut whole = Vec::with_capacity(usize::try_from(len.min(self.size)).unwrap_or(0));
        whole.extend_from_slice(&first);
        while (whole.len() as u64) < len {
            let next = self.some(at + whole.len() as u64, len - whole.len() as u64)?;
            if next.is_empty() {
                return Err(Error::corrupt(format!("the file ends before byte {}", at + len)));
            }
            whole.extend_from_slice(&next);
        }
        Ok(whole.into())
    }
}

impl Object for FileOfObject {
    fn len(&self) -> u64 {
        self.size
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.some(at, into.len() as u64).map_err(io::Error::other)?;
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// A [`FileOfObject`] as the Parquet reader wants it.
#[derive(Clone)]
pub(crate) struct Chunks(pub(crate) Arc<FileOfObject>);

impl Length for Chunks {
    fn len(&self) -> u64 {
        self.0.size
    }
}

impl ChunkReader for Chunks {
    type T = io::Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        // A page's header and, mostly, the page.
        let bytes = self.0.some(start, 64 << 10).map_err(|e| ParquetError::External(Box::new(e)))?;
        Ok(io::Cursor::new(bytes))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.0.all(start, length as u64).map_err(|e| ParquetError::External(Box::new(e)))
    }
}
