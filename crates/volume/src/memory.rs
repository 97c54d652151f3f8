//! A device in memory, and one that records how it is called.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use skytether_common::{Error, Result};
use tokio::sync::watch;
use uuid::Uuid;

use crate::device::{BlockDevice, COMPARE_MOST, DeviceInfo, Durability, Extent, LOGICAL, PHYSICAL, Zeros};

const BLOCK: u64 = PHYSICAL as u64;

/// A device in memory, thin by physical blocks. Everything is durable as long as the process lives.
#[derive(Debug)]
pub struct MemoryDevice {
    info: DeviceInfo,
    blocks: RwLock<BTreeMap<u64, Box<[u8]>>>,
    notes: Mutex<BTreeMap<String, Bytes>>,
}

impl MemoryDevice {
    /// An empty device of `size` bytes.
    #[must_use]
    pub fn new(name: &str, size: u64) -> Self {
        let info = DeviceInfo { name: name.to_owned(), id: Uuid::from_u128(u128::from(size)), size, extent: BLOCK, read_only: false };
        Self { info, blocks: RwLock::default(), notes: Mutex::default() }
    }

    fn check(&self, at: u64, len: u64) -> Result<()> {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.info.size);
        if fits && at.is_multiple_of(LOGICAL.into()) && len.is_multiple_of(LOGICAL.into()) {
            return Ok(());
        }
        Err(Error::invalid(format!("{}: {len} bytes at {at} are no blocks of a device of {} bytes", self.info.name, self.info.size)))
    }

    fn copy_out(blocks: &BTreeMap<u64, Box<[u8]>>, at: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        let end = at + len as u64;
        for (&number, block) in blocks.range(at / BLOCK..end.div_ceil(BLOCK)) {
            let (from, to) = ((number * BLOCK).max(at), ((number + 1) * BLOCK).min(end));
            let within = (from - number * BLOCK) as usize..(to - number * BLOCK) as usize;
            out[(from - at) as usize..(to - at) as usize].copy_from_slice(&block[within]);
        }
        out
    }

    fn copy_in(blocks: &mut BTreeMap<u64, Box<[u8]>>, at: u64, data: &[u8]) {
        let end = at + data.len() as u64;
        for number in at / BLOCK..end.div_ceil(BLOCK) {
            let (from, to) = ((number * BLOCK).max(at), ((number + 1) * BLOCK).min(end));
            let within = (from - number * BLOCK) as usize..(to - number * BLOCK) as usize;
            let block = blocks.entry(number).or_insert_with(|| vec![0; BLOCK as usize].into_boxed_slice());
            block[within].copy_from_slice(&data[(from - at) as usize..(to - at) as usize]);
        }
    }
}

impl BlockDevice for MemoryDevice {
    fn keeps_notes(&self) -> bool {
        true
    }

    fn note<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>>> {
        async move { Ok(self.notes.lock().get(name).cloned()) }.boxed()
    }

    fn keep_note<'a>(&'a self, name: &'a str, note: Option<Bytes>) -> BoxFuture<'a, Result<()>> {
        async move {
            match note {
                Some(note) => drop(self.notes.lock().insert(name.to_owned(), note)),
                None => drop(self.notes.lock().remove(name)),
            }
            Ok(())
        }
        .boxed()
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            self.check(at, len.into())?;
            Ok(Self::copy_out(&self.blocks.read(), at, len as usize).into())
        }
        .boxed()
    }

    fn write(&self, at: u64, data: Bytes, _: Durability) -> BoxFuture<'_, Result<()>> {
        async move {
            self.check(at, data.len() as u64)?;
            Self::copy_in(&mut self.blocks.write(), at, &data);
            Ok(())
        }
        .boxed()
    }

    fn compare_and_write(&self, at: u64, expected: Bytes, data: Bytes, _: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        async move {
            self.check(at, data.len() as u64)?;
            if expected.len() != data.len() || data.len() > COMPARE_MOST as usize {
                return Err(Error::invalid(format!("{}: {} bytes can't be compared with {}", self.info.name, data.len(), expected.len())));
            }
            let mut blocks = self.blocks.write();
            let there = Self::copy_out(&blocks, at, data.len());
            if let Some(differs) = there.iter().zip(&expected).position(|(a, b)| a != b) {
                return Ok(Some(differs as u32));
            }
            Self::copy_in(&mut blocks, at, &data);
            Ok(None)
        }
        .boxed()
    }

    fn zero(&self, at: u64, len: u64, how: Zeros, _: Durability) -> BoxFuture<'_, Result<()>> {
        async move {
            self.check(at, len)?;
            let mut blocks = self.blocks.write();
            let end = at + len;
            if how == Zeros::Mapped {
                let zeros = [0; BLOCK as usize];
                let mut from = at;
                while from < end {
                    let to = ((from / BLOCK + 1) * BLOCK).min(end);
                    Self::copy_in(&mut blocks, from, &zeros[..(to - from) as usize]);
                    from = to;
                }
                return Ok(());
            }
            let numbers: Vec<u64> = blocks.range(at / BLOCK..end.div_ceil(BLOCK)).map(|(&number, _)| number).collect();
            for number in numbers {
                let (from, to) = ((number * BLOCK).max(at), ((number + 1) * BLOCK).min(end));
                if to - from == BLOCK {
                    blocks.remove(&number);
                } else {
                    Self::copy_in(&mut blocks, from, &vec![0; (to - from) as usize]);
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        async { Ok(()) }.boxed()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>> {
        async move {
            self.check(at, len)?;
            let (blocks, end) = (self.blocks.read(), at + len);
            let mut found: Vec<Extent> = Vec::new();
            let mut push = |from: u64, to: u64, mapped: bool| match found.last_mut() {
                Some(last) if last.mapped == mapped => last.len += to - from,
                _ if to > from => found.push(Extent { at: from, len: to - from, mapped }),
                _ => {}
            };
            let mut from = at;
            for &number in blocks.range(at / BLOCK..end.div_ceil(BLOCK)).map(|(number, _)| number) {
                let (first, last) = ((number * BLOCK).max(at), ((number + 1) * BLOCK).min(end));
                push(from, first, false);
                push(first, last, true);
                from = last;
            }
            push(from, end, false);
            Ok(found)
        }
        .boxed()
    }
}

/// A call of a [`RecordingDevice`] that changed blocks or made them durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// [`BlockDevice::write`].
    Write(Durability),
    /// [`BlockDevice::compare_and_write`].
    CompareAndWrite(Durability),
    /// [`BlockDevice::zero`].
    Zero(Zeros, Durability),
    /// [`BlockDevice::flush`].
    Flush,
}

/// A device in memory that records what doors demand of it, for their tests. It can hold changes back, as a volume
/// does that waits for room; one that is dropped meanwhile is not carried out.
#[derive(Debug)]
pub struct RecordingDevice {
    inner: MemoryDevice,
    recorded: Mutex<Vec<Recorded>>,
    held: watch::Sender<bool>,
    waiting: AtomicUsize,
}

/// Counts a change as waiting until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl RecordingDevice {
    /// An empty device of `size` bytes, which holds nothing back.
    #[must_use]
    pub fn new(name: &str, size: u64) -> Self {
        let (held, _) = watch::channel(false);
        Self { inner: MemoryDevice::new(name, size), recorded: Mutex::default(), held, waiting: AtomicUsize::new(0) }
    }

    /// What was carried out since the last call, in its order.
    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut *self.recorded.lock())
    }

    /// Whether later changes wait. Those that wait go on when it is `false` again.
    pub fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// How many changes wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    async fn record(&self, call: Recorded) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let waiting = Waiting(&self.waiting);
        // It fails where the sender is gone, which is this device's.
        let _ = self.held.subscribe().wait_for(|held| !held).await;
        drop(waiting);
        self.recorded.lock().push(call);
    }
}

impl BlockDevice for RecordingDevice {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        self.inner.read(at, len)
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<()>> {
        async move {
            self.record(Recorded::Write(durability)).await;
            self.inner.write(at, data, durability).await
        }
        .boxed()
    }

    fn compare_and_write(&self, at: u64, expected: Bytes, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        async move {
            self.record(Recorded::CompareAndWrite(durability)).await;
            self.inner.compare_and_write(at, expected, data, durability).await
        }
        .boxed()
    }

    fn zero(&self, at: u64, len: u64, how: Zeros, durability: Durability) -> BoxFuture<'_, Result<()>> {
        async move {
            self.record(Recorded::Zero(how, durability)).await;
            self.inner.zero(at, len, how, durability).await
        }
        .boxed()
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            self.recorded.lock().push(Recorded::Flush);
            self.inner.flush().await
        }
        .boxed()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>> {
        self.inner.extents(at, len)
    }
}
