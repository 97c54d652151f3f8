//! What an EXEC may take, and how it is stopped.

use std::time::Duration;

use skytether_common::{Error, Kind, Result};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::descriptor::Descriptor;

/// What all EXECs of a target, and each one, may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// EXECs that compute at a time.
    pub running: usize,
    /// EXECs that wait, in their order. Further ones are refused.
    pub waiting: usize,
    /// The longest time of an EXEC, waiting included.
    pub time: Duration,
    /// The most memory of an EXEC in bytes: what it sorts, or merges. Blocks that are read ahead are added to it.
    pub memory: u64,
    /// The longest result in bytes.
    pub result: u32,
    /// The most bytes that all inputs of an EXEC may have together.
    pub bytes: u64,
    /// Bytes of a read and of a write.
    pub block: u32,
    /// Reads that are under way while a block is computed.
    pub ahead: usize,
    /// The longest line of a sort or merge in bytes. Searches by a regular expression have a lower bound of their own.
    pub line: usize,
    /// The longest head, and the longest tail, that an item of a chunk has, in bytes.
    pub element: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            running: 2,
            waiting: 64,
            time: Duration::from_secs(600),
            memory: 64 << 20,
            result: 4 << 20,
            bytes: 1 << 40,
            block: 512 << 10,
            ahead: 6,
            line: 8 << 20,
            element: 256 << 10,
        }
    }
}

/// The least memory of an EXEC in bytes.
pub(crate) const LEAST_MEMORY: u64 = 1 << 20;

/// The limits of one EXEC: the lower ones of target and descriptor.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The most memory in bytes.
    pub memory: u64,
    /// The longest result in bytes.
    pub result: usize,
    /// Bytes of a read and of a write.
    pub block: u32,
    /// Reads that are under way while a block is computed.
    pub ahead: usize,
    /// The longest line in bytes.
    pub line: usize,
    /// The longest head, and the longest tail, in bytes.
    pub element: usize,
}

impl Limits {
    pub(crate) fn of(options: &Options, descriptor: &Descriptor) -> Self {
        let least = |asked: u64| if asked == 0 { 0 } else { asked.max(LEAST_MEMORY) };
        let lower = |own: u64, asked: u64| if asked == 0 { own } else { own.min(asked) };
        // Less holds no sort, and no line of a common length.
        let memory = lower(options.memory, least(descriptor.memory));
        Self {
            memory,
            result: lower(options.result.into(), descriptor.result) as usize,
            block: options.block,
            ahead: options.ahead.max(1),
            line: options.line.min((memory / 4) as usize),
            element: options.element,
        }
    }
}

/// Tells a computation when it has to end. It asks between blocks.
#[derive(Debug, Clone)]
pub struct Stop {
    cancel: CancellationToken,
    deadline: Instant,
}

impl Stop {
    pub(crate) fn new(cancel: CancellationToken, deadline: Instant) -> Self {
        Self { cancel, deadline }
    }

    /// Goes on, or not.
    ///
    /// # Errors
    /// `Unavailable` where it was cancelled, `Exhausted` where its time has passed.
    pub fn check(&self) -> Result<()> {
        if self.cancel.is_cancelled() || Instant::now() >= self.deadline { Err(self.reason()) } else { Ok(()) }
    }

    fn reason(&self) -> Error {
        if self.cancel.is_cancelled() { cancelled() } else { Error::exhausted("the computation took longer than it may; ask for less at a time") }
    }

    /// Waits until it has to end, and says why.
    pub async fn stopped(&self) -> Error {
        tokio::select! {
            () = self.cancel.cancelled() => {}
            () = tokio::time::sleep_until(self.deadline) => {}
        }
        self.reason()
    }

    /// When it has to end.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Cancelled with the computation.
    #[must_use]
    pub fn token(&self) -> CancellationToken {
        self.cancel.clone()
    }
}

pub(crate) fn cancelled() -> Error {
    Error::new(Kind::Unavailable, "the computation was cancelled")
}
