//! Files that a target writes: preallocated, written once, and cut to what came out.
//!
//! A target writes to the device, behind the file system's back. Three things follow:
//! - Space that was only reserved (`fallocate`) is UNWRITTEN: the file system shows zeros whatever the device has. So
//!   the room is written with zeros once. A [`crate::pool::Pool`] does that ahead of time, and files are used again.
//! - The page cache has the old bytes. They are dropped (`posix_fadvise`) before anything is read; also those of the
//!   file behind a loop device.
//! - Cutting a file (`truncate`) makes zeros of the rest of its last block, in the cache, and writes the block later.
//!   With an old block in the cache that would undo what the target wrote. So the cache is dropped before, and the last
//!   block is compared with the device (`O_DIRECT`).

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use skytether_common::{Error, Result};
use skytether_offload::Object;
use skytether_volume::device::PHYSICAL;

use crate::carrier::Disk;
use crate::places::{Access, OpenFile};

const BLOCK: u64 = PHYSICAL as u64;

/// Bytes of zeros that are written at once.
const ZEROS: usize = 1 << 20;

/// A file with room for what a target writes.
#[derive(Debug)]
pub struct OutputFile {
    file: Arc<OpenFile>,
    room: u64,
}

impl OutputFile {
    /// Makes a file with at least `room` bytes, all written. It must not exist.
    ///
    /// # Errors
    /// `Exhausted` where the disk is full, and what the system says. The file is removed then.
    pub fn create(path: impl AsRef<Path>, room: u64) -> Result<Self> {
        let path = path.as_ref();
        let room = room.max(1).checked_next_multiple_of(BLOCK).filter(|room| i64::try_from(*room).is_ok());
        let room = room.ok_or_else(|| Error::exhausted(format!("{}: no file is that long", path.display())))?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).map_err(|cause| Error::io("create", path, cause))?;
        let made = fill(&file, path, room).and_then(|()| OpenFile::of(file, path, Access::Write));
        match made {
            Ok(file) => Ok(Self { file: Arc::new(file), room }),
            Err(error) => {
                // It is ours: it did not exist before.
                let _ = std::fs::remove_file(path);
                Err(error)
            }
        }
    }

    /// A file that was made before. Its room is its length.
    ///
    /// # Errors
    /// What the system says; `Invalid` for a length that is not of whole blocks.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let file = OpenFile::open(path, Access::Write)?;
        let room = file.size()?;
        if room == 0 || !room.is_multiple_of(BLOCK) {
            return Err(Error::invalid(format!("{}: {room} bytes are no room for an output; it is of blocks of {BLOCK} bytes", file.path().display())));
        }
        Ok(Self { file: Arc::new(file), room })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Bytes that may be written.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Where a target may write.
    ///
    /// # Errors
    /// `Unsupported` where places can't be told, or where a target must not write.
    pub fn object(&self) -> Result<Object> {
        let places = self.file.places()?;
        places.as_output().cloned().map_err(|error| error.named(&self.path().display().to_string()))
    }

    /// Drops what is cached of the first `written` bytes, which a target wrote.
    ///
    /// # Errors
    /// `Unavailable` where the cache still has other bytes than the device.
    pub fn forget(&self, written: u64) -> Result<()> {
        let failed = |what: &str, cause: rustix::io::Errno| Error::io(what, self.path(), cause.into());
        // Dirty pages are not dropped.
        rustix::fs::fdatasync(self.file.file()).map_err(|cause| failed("sync", cause))?;
        fadvise(self.file.file().as_fd(), 0, None, Advice::DontNeed).map_err(|cause| failed("drop the cache of", cause))?;
        self.forget_behind()?;
        self.compare(written)
    }

    /// Drops what is cached of the file behind a loop device.
    fn forget_behind(&self) -> Result<()> {
        let places = self.file.places()?;
        let Disk::Loop { file } = &places.carrier.disk else { return Ok(()) };
        // It may be out of this process' reach. Then the comparison below tells whether that matters.
        let Ok(behind) = File::open(file) else { return Ok(()) };
        for extent in places.object.extents.iter().filter(|extent| !extent.is_hole()) {
            let length = std::num::NonZeroU64::new(extent.length);
            let _ = fadvise(behind.as_fd(), extent.place, length, Advice::DontNeed);
        }
        Ok(())
    }

    /// Compares the first and the last block, as the cache has them, with the device.
    fn compare(&self, written: u64) -> Result<()> {
        if written == 0 {
            return Ok(());
        }
        // Some file systems have no such reads: the cache was dropped all the same.
        let Ok(direct) = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(self.path()) else { return Ok(()) };
        for at in [0, (written - 1) / BLOCK * BLOCK] {
            let mut space = vec![0; 2 * BLOCK as usize];
            // Direct reads need an aligned buffer.
            let skip = space.as_ptr().align_offset(BLOCK as usize).min(BLOCK as usize);
            let there = &mut space[skip..skip + BLOCK as usize];
            if direct.read_exact_at(there, at).is_err() {
                return Ok(());
            }
            let mut cached = vec![0; BLOCK as usize];
            self.file.file().read_exact_at(&mut cached, at).map_err(|cause| Error::io("read", self.path(), cause))?;
            if cached != there {
                return Err(Error::unavailable(format!("{}: the cache still has what was there before byte {at} was written", self.path().display())));
            }
        }
        Ok(())
    }

    /// Cuts the file to the `written` bytes that came out. What was cached must have been dropped before.
    ///
    /// # Errors
    /// What the system says.
    pub fn cut(&mut self, written: u64) -> Result<()> {
        if written > self.room {
            return Err(Error::invalid(format!("{}: {written} bytes can't have been written to a room of {}", self.path().display(), self.room)));
        }
        let failed = |cause| Error::io("cut", self.path(), cause);
        self.file.file().set_len(written).map_err(failed)?;
        self.file.file().sync_all().map_err(failed)?;
        self.room = written - written % BLOCK;
        Ok(())
    }
}

/// Reserves room, so that it lies together, and writes it.
fn fill(file: &File, path: &Path, room: u64) -> Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, room) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(cause) => return Err(Error::io("reserve room in", path, cause.into())),
    }
    let zeros = vec![0; ZEROS];
    let mut at = 0;
    while at < room {
        let now = (room - at).min(ZEROS as u64) as usize;
        file.write_all_at(&zeros[..now], at).map_err(|cause| Error::io("write", path, cause))?;
        at += now as u64;
    }
    file.sync_all().map_err(|cause| Error::io("sync", path, cause))
}
