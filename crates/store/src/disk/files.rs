//! The value files of a drive: written to `tmp/`, flushed, moved to their place, never changed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use skytether_common::{Error, Result};

use super::crash::{Hook, Step};

/// At most this many files of a batch are open at a time.
const OPEN_AT_ONCE: usize = 32;

/// At most this many of them are flushed at a time.
const FLUSHES_AT_ONCE: usize = 8;

/// `slices/` and `tmp/` of one drive.
#[derive(Debug)]
pub(super) struct Files {
    slices: PathBuf,
    tmp: PathBuf,
    sync: bool,
    hook: Hook,
    /// Which of `slices/<hh>` have a durable name.
    durable: Box<[AtomicBool; 256]>,
}

/// What becomes a value file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Content<'a> {
    /// These bytes.
    Bytes(&'a Bytes),
    /// What another value file has, which never changes: a link to it.
    File { number: u64, len: u32, crc32c: u32 },
}

/// What happened to be on the disk at opening.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Number and length of each value file.
    pub(super) values: Vec<(u64, u64)>,
    /// What no drive ever wrote.
    pub(super) foreign: Vec<PathBuf>,
}

impl Files {
    pub(super) fn new(dir: &Path, sync: bool, hook: Hook) -> Self {
        let durable = Box::new(std::array::from_fn(|_| AtomicBool::new(false)));
        Self { slices: dir.join("slices"), tmp: dir.join("tmp"), sync, hook, durable }
    }

    /// The file of value `number`.
    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.slices.join(format!("{:02x}", number & 0xff)).join(format!("{number:016x}"))
    }

    fn tmp_path(&self, number: u64) -> PathBuf {
        self.tmp.join(format!("{number:016x}"))
    }

    /// Writes `values` durably to their places. On an error none of them is left, except after a crash point.
    pub(super) fn write(&self, values: &[(u64, Content<'_>)]) -> Result<()> {
        let done = self.write_aside(values).and_then(|()| self.move_into_place(values));
        if done.is_err() && !self.hook.crashed() {
            for (number, _) in values {
                let _ = fs::remove_file(self.tmp_path(*number));
                let _ = fs::remove_file(self.path(*number));
            }
        }
        done
    }

    fn write_aside(&self, values: &[(u64, Content<'_>)]) -> Result<()> {
        for some in values.chunks(OPEN_AT_ONCE) {
            // All writes first: the system can then flush them together, and the later flushes find little to do.
            let mut open = Vec::with_capacity(some.len());
            for (number, value) in some {
                let path = self.tmp_path(*number);
                match value {
                    Content::Bytes(value) => {
                        let file = self.write_one(&path, value).map_err(|e| Error::io("write", &path, e))?;
                        open.push((path, file));
                    }
                    Content::File { number, .. } => open.extend(self.link_one(*number, &path)?.map(|file| (path, file))),
                }
            }
            for (path, _) in &open {
                self.hook.before(Step::SyncValue).map_err(|e| Error::io("flush", path, e))?;
            }
            if self.sync {
                together(&open, |(path, file)| {
                    file.sync_data().map_err(|e| Error::io("flush", path, e))?;
                    self.hook.flushed(path);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    fn write_one(&self, path: &Path, value: &[u8]) -> io::Result<File> {
        let create = || File::options().write(true).create_new(true).open(path);
        if let Err(e) = self.hook.before(Step::WriteValue) {
            if self.hook.crashed() {
                // What a machine that stops leaves behind.
                create()?.write_all(&value[..value.len() / 2])?;
            }
            return Err(e);
        }
        let mut file = create()?;
        file.write_all(value)?;
        Ok(file)
    }

    /// A link to the file of value `number`, which was flushed before. Where the disk has no links, a copy, which the
    /// caller must flush.
    fn link_one(&self, number: u64, path: &Path) -> Result<Option<File>> {
        let from = self.path(number);
        self.hook.before(Step::WriteValue).map_err(|e| Error::io("link", path, e))?;
        match fs::hard_link(&from, path) {
            Ok(()) => Ok(None),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(Error::not_found(format!("{} is missing, and can't be linked", from.display())).with_source(e)),
            Err(_) => {
                fs::copy(&from, path).map_err(|e| Error::io("copy", path, e))?;
                File::open(path).map(Some).map_err(|e| Error::io("open", path, e))
            }
        }
    }

    fn move_into_place(&self, values: &[(u64, Content<'_>)]) -> Result<()> {
        let mut touched = BTreeSet::new();
        let mut new_directories = false;
        for (number, _) in values {
            let (from, to) = (self.tmp_path(*number), self.path(*number));
            let hh = (*number & 0xff) as u8;
            self.hook.before(Step::Rename).map_err(|e| Error::io("move", &from, e))?;
            if touched.insert(hh) && !self.durable[usize::from(hh)].load(Ordering::Acquire) {
                make_directory(&self.directory(hh))?;
                new_directories = true;
            }
            fs::rename(&from, &to).map_err(|e| Error::io("move into place", &from, e))?;
        }
        self.hook.before(Step::SyncDirectories).map_err(|e| Error::io("flush", &self.slices, e))?;
        if self.sync {
            let directories: Vec<_> = touched.iter().map(|hh| self.directory(*hh)).collect();
            together(&directories, |path| sync_directory(path, &self.hook))?;
            if new_directories {
                sync_directory(&self.slices, &self.hook)?;
            }
        }
        for hh in touched {
            self.durable[usize::from(hh)].store(true, Ordering::Release);
        }
        Ok(())
    }

    fn directory(&self, hh: u8) -> PathBuf {
        self.slices.join(format!("{hh:02x}"))
    }

    /// The bytes of value `number` at `ranges` if the file has `len` bytes; otherwise its length. `None` if there is no
    /// such file. Never reads or allocates more than the ranges, which must be within `len`.
    pub(super) fn read(&self, number: u64, len: u64, ranges: &[Range<u64>]) -> Result<Option<Result<Vec<Bytes>, u64>>> {
        let path = self.path(number);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        let failed = |e| unread(&path, e);
        let found = file.metadata().map_err(failed)?.len();
        if found != len {
            return Ok(Some(Err(found)));
        }
        // One piece of memory for all, which is not cleared first.
        let total = ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        let (mut bytes, mut at) = (Vec::with_capacity(usize::try_from(total).unwrap_or(0)), 0);
        for range in ranges {
            if range.start != at {
                file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
            }
            let read = Read::by_ref(&mut file).take(range.end - range.start).read_to_end(&mut bytes).map_err(failed)? as u64;
            at = range.start + read;
            if at != range.end {
                // Cut off since its length was looked at.
                return Ok(Some(Err(at)));
            }
        }
        let mut bytes = Bytes::from(bytes);
        Ok(Some(Ok(ranges.iter().map(|range| bytes.split_to((range.end - range.start) as usize)).collect())))
    }

    /// The bytes of value `number` at `range`, which must be within `len`, where neither the file's name nor its bytes
    /// have to come from the disk.
    #[cfg(target_os = "linux")]
    pub(super) fn read_in_memory(&self, number: u64, len: u64, range: Range<u64>) -> Option<Bytes> {
        use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
        use rustix::io::{ReadWriteFlags, preadv2};

        let file = File::from(openat2(CWD, self.path(number), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED).ok()?);
        if file.metadata().ok()?.len() != len {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
        let read = preadv2(&file, &mut [io::IoSliceMut::new(&mut bytes)], range.start, ReadWriteFlags::NOWAIT).ok()?;
        (read == bytes.len()).then(|| Bytes::from(bytes))
    }

    /// Other systems do not say what they have in memory.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn read_in_memory(&self, _number: u64, _len: u64, _range: Range<u64>) -> Option<Bytes> {
        None
    }

    /// Takes away values that nothing names any more. What can't be removed now is removed at the next opening.
    pub(super) fn remove(&self, numbers: &[u64]) {
        for number in numbers {
            if self.hook.before(Step::Unlink).is_err() {
                if self.hook.crashed() {
                    return;
                }
                continue;
            }
            let path = self.path(*number);
            if let Err(e) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), error = %e, "cannot remove a replaced value now; it goes at the next opening");
            }
        }
    }

    /// Empties `tmp/`; how many files were there.
    pub(super) fn empty_tmp(&self) -> Result<u64> {
        let mut removed = 0;
        for path in directory(&self.tmp)? {
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) }.map_err(|e| Error::io("remove", &path, e))?;
            removed += 1;
        }
        Ok(removed)
    }

    /// All value files, and what does not belong.
    pub(super) fn scan(&self) -> Result<Found> {
        let mut found = Found::default();
        for hh in directory(&self.slices)? {
            let digits = hh.file_name().and_then(|n| n.to_str()).filter(|n| is_hex(n, 2)).map(str::to_owned);
            let Some(digits) = digits.filter(|_| hh.is_dir()) else {
                found.foreign.push(hh);
                continue;
            };
            for path in directory(&hh)? {
                let name = path.file_name().and_then(|n| n.to_str()).filter(|n| is_hex(n, 16) && n.ends_with(&digits));
                let number = name.and_then(|n| u64::from_str_radix(n, 16).ok());
                let metadata = path.symlink_metadata().map_err(|e| Error::io("look at", &path, e))?;
                match number {
                    Some(number) if metadata.is_file() => found.values.push((number, metadata.len())),
                    _ => found.foreign.push(path),
                }
            }
        }
        Ok(found)
    }
}

/// Does `f` to all `items`, some at a time: the file system's journal takes flushes that come together in one go.
fn together<T: Sync>(items: &[T], f: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    if items.len() < 2 {
        return items.iter().try_for_each(f);
    }
    let (next, f) = (AtomicUsize::new(0), &f);
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            f(item)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..items.len().min(FLUSHES_AT_ONCE)).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for helper in helpers {
            done = done.and(helper.join().unwrap_or_else(|_| Err(Error::internal("a thread that flushes files panicked"))));
        }
        done
    })
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn directory(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).map_err(|e| Error::io("list", path, e))?;
    entries.map(|entry| entry.map(|e| e.path()).map_err(|e| Error::io("list", path, e))).collect()
}

/// Makes one directory; that it is there already is fine.
pub(super) fn make_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(Error::io("create", path, e)),
        _ => Ok(()),
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(path: &Path, hook: &Hook) -> Result<()> {
    File::open(path).and_then(|dir| dir.sync_all()).map_err(|e| Error::io("flush", path, e))?;
    hook.flushed(path);
    Ok(())
}

/// The error of a value's file that the system cannot read. An input/output error (`EIO`) of the medium means that this
/// value is damaged, not that the drive is down: other values can be read, and this one repaired.
fn unread(path: &Path, e: std::io::Error) -> Error {
    match e.raw_os_error() {
        Some(EIO) if cfg!(unix) => Error::corrupt(format!("the disk can't read {}", path.display())).with_source(e),
        _ => Error::io("read", path, e),
    }
}

/// The number of an input/output error, on all systems like Unix.
const EIO: i32 = 5;

#[cfg(test)]
mod tests {
    use skytether_common::Kind;

    use super::*;

    /// Other errors of the disk mean that the drive is unavailable.
    #[cfg(unix)]
    #[test]
    fn unreadable_sector_is_corrupt_and_not_unavailable() {
        let kind = |e| unread(Path::new("slices/07/7"), e).kind();
        assert_eq!(kind(io::Error::from_raw_os_error(EIO)), Kind::Corrupt);
        assert_eq!(kind(io::Error::from(ErrorKind::TimedOut)), Kind::Unavailable);
    }
}
