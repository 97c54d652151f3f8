//! Crash injection. A hook before every step that reaches the disk lets tests stop a batch at each of them. A hook
//! after every flush tells tests what survives a power loss.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use skytether_common::{Error, Result};

/// What is about to be done to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Write one value into `tmp/`.
    WriteValue,
    /// Flush one written value.
    SyncValue,
    /// Move one value from `tmp/` to its place.
    Rename,
    /// Flush the directories that got new names.
    SyncDirectories,
    /// Begin the transaction that makes the batch visible.
    CommitIndex,
    /// Write a part of the index.
    WriteIndex,
    /// Flush the index.
    SyncIndex,
    /// The batch is durable; what it replaced is still there.
    Committed,
    /// Remove one replaced value.
    Unlink,
}

/// What a test wants a step to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// What it always does.
    Go,
    /// Fail as if the system had refused it.
    Fail(io::ErrorKind),
    /// Stop here as if the machine had: half of a write is done, nothing is cleaned up, and the store is dead.
    Crash,
}

/// Decides the fate of each step.
pub trait CrashPoint: Send + Sync + Debug {
    /// Called before `step` is done.
    fn before(&self, step: Step) -> Fate;

    /// Called after `path` was flushed: what was written to the file, or the names in the directory, outlive a
    /// loss of power from now on.
    fn flushed(&self, _path: &Path) {}
}

/// The hook as the store holds it; once crashed, it stays crashed.
#[derive(Debug, Clone, Default)]
pub(super) struct Hook {
    point: Option<Arc<dyn CrashPoint>>,
    crashed: Arc<AtomicBool>,
}

impl Hook {
    pub(super) fn new(point: Option<Arc<dyn CrashPoint>>) -> Self {
        Self { point, crashed: Arc::default() }
    }

    pub(super) fn crashed(&self) -> bool {
        self.crashed.load(Ordering::SeqCst)
    }

    /// `Unavailable` after a crash.
    pub(super) fn alive(&self) -> Result<()> {
        if self.crashed() { Err(Error::unavailable("the drive stopped at a crash point: open it again")) } else { Ok(()) }
    }

    /// Asks for the fate of `step`; an error where it shall not be done.
    pub(super) fn before(&self, step: Step) -> io::Result<()> {
        let Some(point) = &self.point else { return Ok(()) };
        if self.crashed() {
            return Err(io::Error::other("stopped at a crash point"));
        }
        match point.before(step) {
            Fate::Go => Ok(()),
            Fate::Fail(kind) => Err(kind.into()),
            Fate::Crash => {
                self.crashed.store(true, Ordering::SeqCst);
                Err(io::Error::other(format!("stopped at crash point {step:?}")))
            }
        }
    }

    /// Reports that `path` was flushed.
    pub(super) fn flushed(&self, path: &Path) {
        if let Some(point) = &self.point {
            point.flushed(path);
        }
    }
}
