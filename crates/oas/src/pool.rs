//! Rooms for outputs, made ahead of time: files of a pool, and a circular file for results that are not kept.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_offload::Object;
use skytether_volume::device::PHYSICAL;

use crate::output_file::OutputFile;
use crate::places::slice;

const BLOCK: u64 = PHYSICAL as u64;

/// How the names of a pool's files end.
const FREE: &str = ".room";

/// Files with room, in a directory of the file system that the target's device has.
///
/// A process has a pool for itself.
#[derive(Debug)]
pub struct Pool {
    directory: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<OutputFile>,
    next: u64,
}

impl Pool {
    /// The pool in `directory`, which is made where it does not exist. Files that are there are used again.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        let directory = directory.as_ref().to_owned();
        fs::create_dir_all(&directory).map_err(|cause| Error::io("create", &directory, cause))?;
        let mut state = State::default();
        let failed = |cause| Error::io("read", &directory, cause);
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(number) = name.to_str().and_then(|name| name.strip_suffix(FREE)).and_then(|number| number.parse::<u64>().ok()) else { continue };
            state.next = state.next.max(number.saturating_add(1));
            let path = directory.join(&name);
            match OutputFile::open(&path) {
                // What was only reserved, or is shared, is of no use.
                Ok(file) if file.object().is_ok() => state.free.push(file),
                _ => fs::remove_file(&path).map_err(|cause| Error::io("remove", &path, cause))?,
            }
        }
        Ok(Self { directory, state: Mutex::new(state) })
    }

    /// Makes `count` files more, of `room` bytes each.
    ///
    /// # Errors
    /// Those of [`OutputFile::create`].
    pub fn grow(&self, count: usize, room: u64) -> Result<()> {
        for _ in 0..count {
            let file = self.make(room)?;
            self.state.lock().free.push(file);
        }
        Ok(())
    }

    fn make(&self, room: u64) -> Result<OutputFile> {
        let number = {
            let mut state = self.state.lock();
            state.next += 1;
            state.next - 1
        };
        OutputFile::create(self.directory.join(format!("{number}{FREE}")), room)
    }

    /// Bytes of room of the files that are free, ascending.
    #[must_use]
    pub fn rooms(&self) -> Vec<u64> {
        let mut rooms: Vec<u64> = self.state.lock().free.iter().map(OutputFile::room).collect();
        rooms.sort_unstable();
        rooms
    }

    /// The smallest file with at least `room` bytes; a new one where there is none.
    ///
    /// # Errors
    /// Those of [`OutputFile::create`].
    pub fn take(&self, room: u64) -> Result<OutputFile> {
        {
            let free = &mut self.state.lock().free;
            let best = free.iter().enumerate().filter(|(_, file)| file.room() >= room).min_by_key(|(_, file)| file.room()).map(|(at, _)| at);
            if let Some(best) = best {
                return Ok(free.swap_remove(best));
            }
        }
        self.make(room)
    }

    /// Gives a file back that is not kept.
    pub fn give_back(&self, file: OutputFile) {
        self.state.lock().free.push(file);
    }

    /// Keeps the first `written` bytes of a file as `path`, which is replaced if it exists. The rest of its room is
    /// free space again.
    ///
    /// # Errors
    /// What the system says: `path` must be on the same file system.
    pub fn keep(&self, mut file: OutputFile, written: u64, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        file.cut(written)?;
        fs::rename(file.path(), path).map_err(|cause| Error::io("rename to", path, cause))?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::File::open(parent).and_then(|directory| directory.sync_all()).map_err(|cause| Error::io("sync", parent, cause))
    }
}

/// A file whose room is used again and again, for results that are read once.
#[derive(Debug, Clone)]
pub struct Ring {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: OutputFile,
    /// Bytes that were ever given away, from the first one on: those of the gaps at the file's end, too.
    given: Mutex<u64>,
}

/// A place in a ring.
#[derive(Debug)]
pub struct Slot {
    shared: Arc<Shared>,
    /// In the bytes that were ever given away.
    begin: u64,
    room: u64,
}

impl Ring {
    /// The ring in the file `path` of `room` bytes, which is made where it does not exist.
    ///
    /// # Errors
    /// Those of [`OutputFile::create`]; `Invalid` where there is a file of another length.
    pub fn open(path: impl AsRef<Path>, room: u64) -> Result<Self> {
        let path = path.as_ref();
        let file = if path.exists() { OutputFile::open(path)? } else { OutputFile::create(path, room)? };
        if file.room() < room {
            return Err(Error::invalid(format!("{}: it has {} bytes, not {room}; remove it", path.display(), file.room())));
        }
        Ok(Self { shared: Arc::new(Shared { file, given: Mutex::new(0) }) })
    }

    /// The next `room` bytes. Older slots are overwritten.
    ///
    /// # Errors
    /// `Exhausted` where the ring is shorter.
    pub fn take(&self, room: u64) -> Result<Slot> {
        let all = self.shared.file.room();
        let room = room.max(1).checked_next_multiple_of(BLOCK).filter(|room| *room <= all);
        let room = room.ok_or_else(|| Error::exhausted(format!("{}: a ring of {all} bytes has no such room", self.shared.file.path().display())))?;
        let mut given = self.shared.given.lock();
        // A slot is one piece.
        let left = all - *given % all;
        let begin = if left < room { *given + left } else { *given };
        *given = begin + room;
        Ok(Slot { shared: self.shared.clone(), begin, room })
    }
}

impl Slot {
    fn at(&self) -> u64 {
        self.begin % self.shared.file.room()
    }

    fn is_there(&self) -> bool {
        *self.shared.given.lock() <= self.begin + self.shared.file.room()
    }

    /// Bytes that may be written.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Where a target may write.
    ///
    /// # Errors
    /// Those of [`OutputFile::object`].
    pub fn object(&self) -> Result<Object> {
        let part = slice(&self.shared.file.object()?, self.at(), self.at() + self.room)?;
        Ok(Object::new(part.length, part.extents))
    }

    /// The first `written` bytes that a target wrote.
    ///
    /// # Errors
    /// `Conflict` where a later slot overwrote them.
    pub fn read(&self, written: u64) -> Result<Vec<u8>> {
        let file = &self.shared.file;
        let written = written.min(self.room);
        file.forget(0)?;
        let mut bytes = vec![0; written as usize];
        file.file().file().read_exact_at(&mut bytes, self.at()).map_err(|cause| Error::io("read", file.path(), cause))?;
        if self.is_there() { Ok(bytes) } else { Err(Error::conflict(format!("{}: later results overwrote this one", file.path().display()))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pools on file systems without places keep nothing, so these files are put in by hand.
    fn pool(rooms: &[u64]) -> (tempfile::TempDir, Pool) {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool::open(dir.path().join("pool")).unwrap();
        rooms.iter().for_each(|room| pool.grow(1, *room).unwrap());
        (dir, pool)
    }

    #[test]
    fn the_smallest_file_that_fits_is_taken() {
        let (_dir, pool) = pool(&[16_384, 8192, 65_536]);
        let file = pool.take(8193).unwrap();
        assert_eq!((file.room(), pool.rooms()), (16_384, vec![8192, 65_536]));
        pool.give_back(file);
        assert_eq!(pool.take(100_000).unwrap().room(), 102_400);
        assert_eq!(pool.rooms(), [8192, 16_384, 65_536]);
    }

    #[test]
    fn what_is_kept_has_the_length_that_came_out() {
        let (dir, pool) = pool(&[8192]);
        let file = pool.take(1).unwrap();
        file.file().file().write_all_at(b"abc", 0).unwrap();
        pool.keep(file, 3, dir.path().join("result")).unwrap();
        assert_eq!(fs::read(dir.path().join("result")).unwrap(), b"abc");
        assert!(pool.rooms().is_empty() && fs::read_dir(dir.path().join("pool")).unwrap().next().is_none());
        let file = pool.take(1).unwrap();
        assert!(pool.keep(file, 5000, dir.path().join("other")).is_err());
    }

    #[test]
    fn slots_follow_each_other_in_a_circle() {
        let dir = tempfile::tempdir().unwrap();
        let ring = Ring::open(dir.path().join("ring"), 16_384).unwrap();
        let slots: Vec<Slot> = [5000, 4096, 8192].iter().map(|room| ring.take(*room).unwrap()).collect();
        // The third does not fit behind the second, and takes the place of the first.
        assert_eq!(slots.iter().map(Slot::at).collect::<Vec<_>>(), [0, 8192, 0]);
        assert_eq!(slots.iter().map(Slot::is_there).collect::<Vec<_>>(), [false, true, true]);
        assert!(ring.take(20_000).is_err());
    }
}
