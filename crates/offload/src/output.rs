//! Writing output objects, and where an operation's bytes go.
//!
//! Invariants:
//! - Nothing is written outside of the object's extents.
//! - A write that began is never dropped: when EXEC answers, also after an abort, no write is under way.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use skytether_common::{Error, Result};
use skytether_volume::device::LOGICAL;
use skytether_volume::{BlockDevice, Durability};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::descriptor::{Extent, Object};
use crate::limits::Stop;

/// Writes that are under way while the next block is computed.
const BEHIND: usize = 2;

/// An output object that is written from its begin to its end.
#[derive(Debug)]
pub struct Output {
    device: Arc<dyn BlockDevice>,
    object: Object,
    number: usize,
    block: usize,
    /// What is given and not yet sent to the device.
    buffer: BytesMut,
    /// Bytes that were sent to the device.
    sent: u64,
    extent: usize,
    within: u64,
    writes: VecDeque<JoinHandle<Result<()>>>,
    tracker: TaskTracker,
    stop: Stop,
    runtime: Handle,
}

impl Output {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, object: Object, number: usize, block: u32, tracker: TaskTracker, stop: Stop, runtime: Handle) -> Self {
        let buffer = BytesMut::new();
        Self { device, object, number, block: block as usize, buffer, sent: 0, extent: 0, within: 0, writes: VecDeque::new(), tracker, stop, runtime }
    }

    /// Bytes that were given so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.sent + self.buffer.len() as u64
    }

    /// Bytes that may still be given.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.object.length - self.written()
    }

    /// The object that is written.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// `Exhausted` where the object is full, those of the device, and of a stop.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 > self.room() {
            return Err(Error::exhausted(format!("output object {} is full with {} bytes; give a larger one", self.number, self.object.length)));
        }
        while !bytes.is_empty() {
            if self.buffer.capacity() == 0 {
                self.buffer.reserve(self.block.min(bytes.len().max(64 << 10)));
            }
            let (now, later) = bytes.split_at((self.block - self.buffer.len()).min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == self.block {
                let full = std::mem::take(&mut self.buffer);
                self.send(full.freeze())?;
            }
        }
        Ok(())
    }

    /// Sends the rest, with zeros up to the next logical block, and waits for all writes. Gives the length.
    ///
    /// # Errors
    /// Those of the device, and of a stop.
    pub fn finish(&mut self) -> Result<u64> {
        let written = self.written();
        if !self.buffer.is_empty() {
            let mut rest = std::mem::take(&mut self.buffer);
            rest.resize(rest.len().next_multiple_of(LOGICAL as usize), 0);
            self.send(rest.freeze())?;
            self.sent = written;
        }
        while let Some(write) = self.writes.pop_front() {
            self.wait(write)?;
        }
        Ok(written)
    }

    /// Cuts the block where extents end, and begins the writes.
    fn send(&mut self, mut bytes: Bytes) -> Result<()> {
        while !bytes.is_empty() {
            self.stop.check()?;
            let Some(&Extent { place, length }) = self.object.extents.get(self.extent) else {
                return Err(Error::internal(format!("output object {} has no extent for byte {}", self.number, self.sent)));
            };
            let now = bytes.split_to((length - self.within).min(bytes.len() as u64) as usize);
            let (device, at, len) = (self.device.clone(), place + self.within, now.len() as u64);
            if self.writes.len() >= BEHIND
                && let Some(write) = self.writes.pop_front()
            {
                self.wait(write)?;
            }
            let write = self.tracker.spawn_on(async move { device.write(at, now, Durability::Cached).await }, &self.runtime);
            self.writes.push_back(write);
            self.sent += len;
            self.within += len;
            if self.within == length {
                self.extent += 1;
                self.within = 0;
            }
        }
        Ok(())
    }

    fn wait(&self, write: JoinHandle<Result<()>>) -> Result<()> {
        self.runtime.block_on(write).unwrap_or_else(|error| Err(Error::internal("a write ended badly").with_source(error)))
    }
}

/// Where an operation's bytes go: into the result, or into an output object.
#[derive(Debug)]
pub enum Sink<'a> {
    /// Into the result, which has room for at most that number of bytes.
    Inline(Vec<u8>, usize),
    /// Into an output object.
    Output(&'a mut Output),
}

impl Sink<'_> {
    /// Appends bytes.
    ///
    /// # Errors
    /// `Exhausted` where there is no room, and those of [`Output::write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Inline(data, most) if bytes.len() > *most - data.len() => {
                Err(Error::exhausted(format!("the result is longer than the {most} bytes that are left; give an output object")))
            }
            Self::Inline(data, _) => {
                data.extend_from_slice(bytes);
                Ok(())
            }
            Self::Output(output) => output.write(bytes),
        }
    }

    /// Bytes that still fit.
    #[must_use]
    pub fn room(&self) -> u64 {
        match self {
            Self::Inline(data, most) => (most - data.len()) as u64,
            Self::Output(output) => output.room(),
        }
    }

    /// Bytes that were given.
    #[must_use]
    pub fn written(&self) -> u64 {
        match self {
            Self::Inline(data, _) => data.len() as u64,
            Self::Output(output) => output.written(),
        }
    }
}

/// For encoders that write as they go. The error of the sink is kept in the error's cause.
impl std::io::Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Sink::write(self, bytes).map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
