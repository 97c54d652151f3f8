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

/// The most bytes that are read at once.
const READ: u64 = 8 << 20;

/// Bytes from `at` on, fewer at the object's end only.
///
/// # Errors
/// Those of what has them.
pub(crate) fn all(bytes: &dyn ObjectBytes, at: u64, len: u64) -> Result<Bytes> {
    let first = bytes.read(at, len.min(READ))?;
    if first.len() as u64 == len || first.is_empty() {
        return Ok(first);
    }
    let mut whole = first.to_vec();
    while (whole.len() as u64) < len {
        let next = bytes.read(at + whole.len() as u64, (len - whole.len() as u64).min(READ))?;
        if next.is_empty() {
            break;
        }
        whole.extend_from_slice(&next);
    }
    Ok(whole.into())
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
    #[expect(clippy::misnamed_getters, reason = "the file's length; `len` is that of its part in the object")]
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
    #[expect(clippy::misnamed_getters, reason = "as of the file")]
    fn len(&self) -> u64 {
        self.0.size
    }
}

/// Bytes that a page's header mostly has, and what is read where it has more.
const HEADER: u64 = 512;
const MORE: u64 = 16 << 10;

/// A file from a place on. The Parquet reader reads headers of pages so; the pages it reads apart.
pub(crate) struct FromPlace {
    file: Arc<FileOfObject>,
    at: u64,
    bytes: Bytes,
    wanted: u64,
}

impl io::Read for FromPlace {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            self.bytes = self.file.some(self.at, self.wanted).map_err(io::Error::other)?;
            self.at += self.bytes.len() as u64;
            self.wanted = MORE;
        }
        let bytes = self.bytes.split_to(self.bytes.len().min(into.len()));
        into[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

impl ChunkReader for Chunks {
    type T = FromPlace;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(FromPlace { file: Arc::clone(&self.0), at: start, bytes: Bytes::new(), wanted: HEADER })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.0.all(start, length as u64).map_err(|e| ParquetError::External(Box::new(e)))
    }
}
