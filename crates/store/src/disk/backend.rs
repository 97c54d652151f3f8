//! The storage backends of redb: the index file itself, and a copy-on-write view of it that checks may change.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use redb::StorageBackend;

use super::crash::{Hook, Step};

/// `index.redb`. It takes no lock of its own: the drive's `LOCK` covers the index.
#[derive(Debug)]
pub(super) struct IndexFile {
    path: PathBuf,
    file: File,
    sync: bool,
    hook: Hook,
}

impl IndexFile {
    pub(super) fn open(path: &Path, sync: bool, hook: Hook) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: File::options().read(true).write(true).open(path)?, sync, hook })
    }
}

impl StorageBackend for IndexFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.hook.before(Step::WriteIndex)?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.hook.before(Step::SyncIndex)?;
        if self.sync {
            self.file.sync_data()?;
            self.hook.flushed(&self.path);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.hook.before(Step::WriteIndex)?;
        self.file.write_all_at(data, offset)
    }
}

const PAGE: u64 = 4096;

/// The index file as it is, with all changes kept in memory and dropped in the end.
#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    changed: Mutex<Changed>,
}

#[derive(Debug)]
struct Changed {
    len: u64,
    /// Up to here the file's own bytes count; beyond are zeros.
    from_file: u64,
    pages: BTreeMap<u64, Box<[u8; PAGE as usize]>>,
}

impl Overlay {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self { file, changed: Mutex::new(Changed { len, from_file: len, pages: BTreeMap::new() }) })
    }

    /// Walks the pages that `offset..offset + len` touches: page number, range in the page,
    /// range in the caller's buffer.
    fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let start = (at % PAGE) as usize;
            let n = (PAGE as usize - start).min(len - done);
            done += n;
            (n > 0).then(|| (at / PAGE, start..start + n, done - n..done))
        })
    }

    fn original(&self, changed: &Changed, page: u64) -> io::Result<Box<[u8; PAGE as usize]>> {
        let mut bytes = Box::new([0; PAGE as usize]);
        let start = page * PAGE;
        let n = changed.from_file.saturating_sub(start).min(PAGE) as usize;
        self.file.read_exact_at(&mut bytes[..n], start)?;
        Ok(bytes)
    }
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changed.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changed = self.changed.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > changed.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, here, there) in Self::parts(offset, out.len()) {
            match changed.pages.get(&page) {
                Some(bytes) => out[there].copy_from_slice(&bytes[here]),
                None => out[there].copy_from_slice(&self.original(&changed, page)?[here]),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changed = self.changed.lock();
        if len < changed.len {
            changed.from_file = changed.from_file.min(len);
            changed.pages.split_off(&len.div_ceil(PAGE));
            if let Some(last) = changed.pages.get_mut(&(len / PAGE)) {
                last[(len % PAGE) as usize..].fill(0);
            }
        }
        changed.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changed = self.changed.lock();
        for (page, here, there) in Self::parts(offset, data.len()) {
            if !changed.pages.contains_key(&page) {
                let original = self.original(&changed, page)?;
                changed.pages.insert(page, original);
            }
            if let Some(bytes) = changed.pages.get_mut(&page) {
                bytes[here].copy_from_slice(&data[there]);
            }
        }
        changed.len = changed.len.max(offset + data.len() as u64);
        Ok(())
    }
}
