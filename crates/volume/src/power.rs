//! Journal files in memory that can lose their power and fail, for tests.
//!
//! What was written and not flushed is lost by sectors of 512 bytes, each by itself, as disks lose it. A step that
//! fails may have been carried out, in part or whole. After a flush that failed, the system takes what it could not
//! write for written: later flushes leave it out.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::files::{FileIo, Files};

/// Bytes that a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Which step fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Counted from 1: creations, removals, writes and flushes.
    pub at: u64,
    /// Whether it is carried out all the same.
    pub carried_out: bool,
    /// Whether all later steps fail, too.
    pub stays: bool,
}

#[derive(Debug, Default)]
struct Content {
    now: Vec<u8>,
    /// As of the last flush.
    durable: Vec<u8>,
    /// The sectors that the next flush writes.
    dirty: BTreeSet<usize>,
}

impl Content {
    fn write(&mut self, at: usize, part: &[u8]) {
        let end = at + part.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[at..end].copy_from_slice(part);
        self.dirty.extend(at / SECTOR..end.div_ceil(SECTOR));
    }

    fn flush(&mut self) {
        self.durable.resize(self.now.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(self.now.len());
            self.durable[range.clone()].copy_from_slice(&self.now[range]);
        }
    }
}

#[derive(Debug, Default)]
struct State {
    files: RwLock<BTreeMap<String, Arc<RwLock<Content>>>>,
    steps: AtomicU64,
    reused: AtomicU64,
    failure: Mutex<Option<Failure>>,
}

impl State {
    fn step<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let step = self.steps.fetch_add(1, Ordering::Relaxed) + 1;
        let failure = *self.failure.lock();
        match failure {
            Some(failure) if step == failure.at || (failure.stays && step > failure.at) => {
                if step == failure.at && failure.carried_out {
                    work()?;
                }
                Err(io::Error::other(format!("step {step} fails by the plan of a test")))
            }
            _ => work(),
        }
    }
}

/// The directory. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct PowerFiles(Arc<State>);

impl PowerFiles {
    /// An empty directory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a step fail, counted from the begin; none with `None`.
    pub fn fail(&self, failure: Option<Failure>) {
        *self.0.failure.lock() = failure;
    }

    /// How many steps there were.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }

    /// How many retired files were used again.
    #[must_use]
    pub fn reused(&self) -> u64 {
        self.0.reused.load(Ordering::Relaxed)
    }

    /// Cuts the power. Of what was not flushed, each sector remains if `keeps` says so.
    pub fn lose_power(&self, mut keeps: impl FnMut() -> bool) {
        self.restart();
        for file in self.0.files.read().values() {
            let mut content = file.write();
            let (mut after, now, dirty) = (content.durable.clone(), &content.now, &content.dirty);
            // The length is metadata: it may have grown without the data.
            if now.len() > after.len() && keeps() {
                after.resize(now.len(), 0);
            }
            let len = after.len();
            for (sector, (to, from)) in after.chunks_mut(SECTOR).zip(now[..len.min(now.len())].chunks(SECTOR)).enumerate() {
                if dirty.contains(&sector) && to[..from.len()] != *from && keeps() {
                    to[..from.len()].copy_from_slice(from);
                }
            }
            *content = Content { now: after.clone(), durable: after, dirty: BTreeSet::new() };
        }
        self.fail(None);
    }

    /// The process ends: retired files are removed.
    pub fn restart(&self) {
        self.0.files.write().retain(|name, _| !name.ends_with(".tmp"));
    }

    /// Bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.files.read().values().map(|file| file.read().now.len() as u64).sum()
    }

    /// Changes one byte of a file on the disk.
    ///
    /// # Errors
    /// Where there is no such byte.
    pub fn damage(&self, name: &str, at: usize) -> io::Result<()> {
        let file = self.file(name)?;
        let mut content = file.write();
        let Content { now, durable, .. } = &mut *content;
        *now.get_mut(at).ok_or(io::ErrorKind::UnexpectedEof)? ^= 0x55;
        if let Some(byte) = durable.get_mut(at) {
            *byte ^= 0x55;
        }
        Ok(())
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// Where there is none.
    pub fn content(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(self.file(name)?.read().now.clone())
    }

    fn file(&self, name: &str) -> io::Result<Arc<RwLock<Content>>> {
        self.0.files.read().get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn opened(&self, file: Arc<RwLock<Content>>) -> Arc<dyn FileIo> {
        Arc::new(PowerFile { state: Arc::clone(&self.0), file })
    }
}

impl Files for PowerFiles {
    fn place(&self) -> String {
        "a test's memory".to_owned()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.0.files.read().keys().cloned().collect())
    }

    fn create(&self, name: &str, content: &[u8]) -> io::Result<Arc<dyn FileIo>> {
        let file = self.0.step(|| {
            let file = Arc::new(RwLock::new(Content { now: content.to_vec(), durable: content.to_vec(), dirty: BTreeSet::new() }));
            self.0.files.write().insert(name.to_owned(), Arc::clone(&file));
            Ok(file)
        })?;
        Ok(self.opened(file))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn FileIo>> {
        Ok(self.opened(self.file(name)?))
    }

    fn retire(&self, name: &str) -> io::Result<()> {
        self.0.step(|| {
            let mut files = self.0.files.write();
            let file = files.remove(name).ok_or(io::ErrorKind::NotFound)?;
            files.insert(format!("{name}.tmp"), file);
            Ok(())
        })
    }

    fn reuse(&self, retired: &str, name: &str, head: &[u8]) -> io::Result<Arc<dyn FileIo>> {
        let file = self.0.step(|| {
            let mut files = self.0.files.write();
            let file = files.remove(&format!("{retired}.tmp")).ok_or(io::ErrorKind::NotFound)?;
            file.write().write(0, head);
            files.insert(name.to_owned(), Arc::clone(&file));
            self.0.reused.fetch_add(1, Ordering::Relaxed);
            Ok(file)
        })?;
        Ok(self.opened(file))
    }

    fn discard(&self, retired: &str) -> io::Result<()> {
        self.0.step(|| self.0.files.write().remove(&format!("{retired}.tmp")).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.step(|| self.0.files.write().remove(name).map(drop).ok_or_else(|| io::ErrorKind::NotFound.into()))
    }
}

#[derive(Debug)]
struct PowerFile {
    state: Arc<State>,
    file: Arc<RwLock<Content>>,
}

impl FileIo for PowerFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.read().now.len() as u64)
    }

    fn write_at(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.state.step(|| {
            let mut content = self.file.write();
            let mut at = at as usize;
            for part in parts {
                content.write(at, part);
                at += part.len();
            }
            Ok(())
        })
    }

    fn read_at(&self, at: u64, to: &mut [u8], _: bool) -> io::Result<bool> {
        let content = self.file.read();
        let at = usize::try_from(at).map_err(io::Error::other)?;
        let from = content.now.get(at..at.saturating_add(to.len())).ok_or(io::ErrorKind::UnexpectedEof)?;
        to.copy_from_slice(from);
        Ok(true)
    }

    fn sync(&self) -> io::Result<()> {
        let done = self.state.step(|| {
            self.file.write().flush();
            Ok(())
        });
        self.file.write().dirty.clear();
        done
    }
}
