//! Files, and bytes in memory, as one block device: what operations work on where there is no target.
//!
//! The operations are those of the target, and see the same bytes, so that their results are equal.

use std::fmt::{self, Debug};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use skytether_offload::codes::MOST_LENGTH;
use skytether_volume::device::{LOGICAL, PHYSICAL};
use skytether_volume::{BlockDevice, DeviceInfo, Durability, Extent, Zeros};
use uuid::Uuid;

use crate::places::OpenFile;

/// What a part of the device has.
#[derive(Debug, Clone)]
pub enum Content {
    /// A file.
    File(Arc<OpenFile>),
    /// Bytes. They are not written.
    Memory(Bytes),
    /// What can be read anywhere.
    Other(Arc<dyn ReadAt>),
}

/// Something that can be read anywhere, by several threads.
pub trait ReadAt: Send + Sync + Debug {
    /// Fills `space` with the bytes from `at` on. What lies beyond the end stays zero.
    ///
    /// # Errors
    /// Any.
    fn read_at(&self, at: u64, space: &mut [u8]) -> Result<()>;
}

#[derive(Debug)]
struct Part {
    base: u64,
    length: u64,
    content: Content,
}

/// Files one after the other. Each begins at a physical block, and ends with zeros.
pub struct Files {
    parts: Vec<Part>,
    size: u64,
}

impl Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").field("parts", &self.parts.len()).field("size", &self.size).finish()
    }
}

impl Default for Files {
    fn default() -> Self {
        Self::new()
    }
}

impl Files {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self { parts: Vec::new(), size: 0 }
    }

    /// Adds the first `length` bytes of a content, and gives their place.
    ///
    /// # Errors
    /// `Exhausted` where all together are too long.
    pub fn add(&mut self, content: Content, length: u64) -> Result<u64> {
        let base = self.size;
        let rounded = length.checked_next_multiple_of(PHYSICAL.into());
        let size = rounded.and_then(|length| base.checked_add(length)).filter(|size| *size <= MOST_LENGTH);
        self.size = size.ok_or_else(|| Error::exhausted("the files are too long together; give fewer at a time"))?;
        self.parts.push(Part { base, length: self.size - base, content });
        Ok(base)
    }

    /// Calls `with` for each part of a range: the part, the place within it, the place within the range and the length.
    fn each(&self, at: u64, len: usize, mut with: impl FnMut(&Part, u64, usize, usize) -> Result<()>) -> Result<()> {
        let end = at.checked_add(len as u64).filter(|end| *end <= self.size);
        let end = end.filter(|_| at.is_multiple_of(LOGICAL.into()) && (len as u64).is_multiple_of(LOGICAL.into()));
        let end = end.ok_or_else(|| Error::invalid(format!("{len} bytes at {at} are no blocks of {} bytes of files", self.size)))?;
        let first = self.parts.partition_point(|part| part.base + part.length <= at);
        for part in self.parts[first..].iter().take_while(|part| part.base < end) {
            let (from, to) = (part.base.max(at), (part.base + part.length).min(end));
            with(part, from - part.base, (from - at) as usize, (to - from) as usize)?;
        }
        Ok(())
    }

    fn fill(&self, at: u64, len: usize) -> Result<Bytes> {
        let mut out = vec![0; len];
        self.each(at, len, |part, within, begin, length| {
            let space = &mut out[begin..begin + length];
            match &part.content {
                Content::File(file) => fill(file, within, space),
                Content::Memory(bytes) => {
                    let bytes = bytes.get(within as usize..).unwrap_or_default();
                    let known = bytes.len().min(space.len());
                    space[..known].copy_from_slice(&bytes[..known]);
                    Ok(())
                }
                Content::Other(other) => other.read_at(within, space),
            }
        })?;
        Ok(out.into())
    }

    fn put(&self, at: u64, data: &[u8]) -> Result<()> {
        self.each(at, data.len(), |part, within, begin, length| match &part.content {
            Content::File(file) => {
                let failed = |cause| Error::io("write", file.path(), cause);
                file.file().write_all_at(&data[begin..begin + length], within).map_err(failed)
            }
            Content::Memory(_) | Content::Other(_) => Err(Error::conflict("these bytes are not written")),
        })
    }
}

/// Reads a file; what lies beyond its end is zeros already.
fn fill(file: &OpenFile, mut at: u64, mut space: &mut [u8]) -> Result<()> {
    while !space.is_empty() {
        match file.file().read_at(space, at) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                at += n as u64;
                space = &mut space[n..];
            }
            Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(Error::io("read", file.path(), cause)),
        }
    }
    Ok(())
}

/// A device of files, as operations take it.
#[derive(Debug, Clone)]
pub struct FilesDevice(Arc<Files>);

impl FilesDevice {
    /// Of these files.
    #[must_use]
    pub fn new(files: Files) -> Self {
        Self(Arc::new(files))
    }

    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce(&Files) -> Result<T> + Send + 'static) -> Result<T> {
        let files = self.0.clone();
        tokio::task::spawn_blocking(move || work(&files)).await.map_err(|cause| Error::internal("reading files ended badly").with_source(cause))?
    }
}

impl BlockDevice for FilesDevice {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "files".to_owned(), id: Uuid::nil(), size: self.0.size, extent: PHYSICAL.into(), read_only: false }
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        self.blocking(move |files| files.fill(at, len as usize)).boxed()
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<()>> {
        async move {
            self.blocking(move |files| files.put(at, &data)).await?;
            if durability == Durability::Durable { self.flush().await } else { Ok(()) }
        }
        .boxed()
    }

    fn compare_and_write(&self, _: u64, _: Bytes, _: Bytes, _: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        async { Err(Error::unsupported("files can't be compared and written in one step")) }.boxed()
    }

    fn zero(&self, _: u64, _: u64, _: Zeros, _: Durability) -> BoxFuture<'_, Result<()>> {
        async { Err(Error::unsupported("files are not made zeros by operations")) }.boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.blocking(|files| {
            files.parts.iter().try_for_each(|part| match &part.content {
                Content::File(file) if file.access() == crate::places::Access::Write => {
                    file.file().sync_data().map_err(|cause| Error::io("sync", file.path(), cause))
                }
                _ => Ok(()),
            })
        })
        .boxed()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>> {
        async move { Ok(vec![Extent { at, len, mapped: true }]) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::Access;

    #[tokio::test]
    async fn files_and_memory_are_one_device() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), vec![7; 5000]).unwrap();
        let file = Arc::new(OpenFile::open(dir.path().join("a"), Access::Write).unwrap());
        let mut files = Files::new();
        assert_eq!(files.add(Content::File(file), 5000).unwrap(), 0);
        assert_eq!(files.add(Content::Memory(vec![9; 10].into()), 10).unwrap(), 8192);
        let device = FilesDevice::new(files);
        assert_eq!(device.info().size, 12_288);
        let all = device.read(4608, 4096).await.unwrap();
        assert_eq!((&all[..392], &all[392..3584]), (&[7; 392][..], &[0; 3192][..]));
        assert_eq!((&all[3584..3594], &all[3594..]), (&[9; 10][..], &[0; 502][..]));
        device.write(0, vec![1; 512].into(), Durability::Durable).await.unwrap();
        assert_eq!(std::fs::read(dir.path().join("a")).unwrap()[..513], [&[1; 512][..], &[7]].concat());
        assert!(device.write(8192, vec![1; 512].into(), Durability::Cached).await.is_err());
        assert!(device.read(100, 512).await.is_err() && device.read(12_288, 512).await.is_err());
    }
}
