//! Programs of a drive that run when keys change, by name: what `skytether program watch` and `Drive.watch` do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_kinetic_protocol::command::Command;
use skytether_kinetic_protocol::{MessageType, StatusCode};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::time::interval;

use crate::connection::Connection;
use crate::library::{ProgramLibrary, ProgramRun, check_name};
use crate::programs::{Noticed, Watched};

/// How often a drive that says nothing is probed, where the options do not say.
const PROBE: Duration = Duration::from_secs(2);

/// A watch that was set here, and what the drive tells of it.
///
/// The watch belongs to the drive: without [`Watching::end`] it stays there when this is dropped.
#[derive(Debug)]
pub struct Watching {
    on: Connection,
    at: String,
    program: Vec<Bytes>,
    changes: Watched,
    told: broadcast::Receiver<Command>,
    probe: Duration,
    missed: Arc<AtomicU64>,
}

impl ProgramLibrary {
    /// Has the drive run a program after each change of these keys. The key and `PUT` or `DELETE` follow its own
    /// arguments. A watch of the same program and keys is replaced.
    ///
    /// # Errors
    /// `NotFound` where there is no such program; `Invalid` where the identity may not list the keys or run programs.
    pub async fn watch(&self, name: &str, changes: Watched, run: ProgramRun) -> Result<Watching> {
        check_name(name)?;
        let what = format!("watch keys for the program {name}");
        // A connection of its own: the drive tells of the runs there.
        let on = self.client().another().await.map_err(|e| self.failed(&what, e))?;
        let told = on.notifications();
        let program = self.execution(&on, name, run).await?;
        let keys = program.keys.clone();
        on.watch(program, changes.clone(), true).await.map_err(|e| self.failed(&what, e))?;
        let probe = self.client().keepalive().unwrap_or(PROBE);
        Ok(Watching { on, at: self.client().at().authority().to_string(), program: keys, changes, told, probe, missed: Arc::default() })
    }

    /// Ends all watches of a program that this identity has set. A run under way goes on.
    ///
    /// # Errors
    /// `NotFound` where there is no such program, or none of its watches.
    pub async fn unwatch(&self, name: &str) -> Result<()> {
        check_name(name)?;
        let what = format!("end the watches of the program {name}");
        let on = self.client().connection().await.map_err(|e| self.failed(&what, e))?;
        let keys = self.keys_of(&on, name).await.map_err(|e| self.failed(&what, e))?;
        if keys.is_empty() {
            return Err(self.absent(name));
        }
        on.unwatch(keys, None).await.map_err(|e| self.failed(&what, e))
    }
}

impl Watching {
    /// The next run. It waits as long as the drive answers probes.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Unavailable` where the drive has gone; `Corrupt` where what it says has not the form of a run.
    pub async fn next(&mut self) -> Result<Noticed> {
        let mut probes = interval(self.probe);
        // The first tick is at once.
        probes.tick().await;
        loop {
            tokio::select! {
                biased;
                said = self.told.recv() => match said {
                    Ok(command) => {
                        if let Some(noticed) = Noticed::read(&command)? {
                            return Ok(noticed);
                        }
                    }
                    Err(RecvError::Lagged(lost)) => {
                        self.missed.fetch_add(lost, Ordering::Relaxed);
                    }
                    Err(RecvError::Closed) => return Err(self.gone("its connection has ended")),
                },
                _ = probes.tick() => {
                    if let Err(failure) = self.on.noop().await {
                        return Err(self.gone(&Error::from(failure).report()));
                    }
                }
            }
        }
    }

    /// How many messages of the drive came faster than they were taken, and were lost.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// The same number, for those that can't wait until [`Watching::next`] has ended.
    #[must_use]
    pub fn missed_so_far(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.missed)
    }

    /// Ends the watch. A run under way goes on.
    ///
    /// # Errors
    /// `Unavailable` where the drive has gone.
    pub async fn end(&self) -> Result<()> {
        match self.on.unwatch(self.program.clone(), Some(self.changes.clone())).await {
            // It has ended already: it was replaced, or the drive was erased.
            Err(failure) if failure.code() == Some(StatusCode::NotFound) => Ok(()),
            Err(failure) => Err(self.gone(&Error::from(failure).report())),
            Ok(()) => Ok(()),
        }
    }

    fn gone(&self, why: &str) -> Error {
        Error::unavailable(format!("the drive at {} does not tell of the watch any more: {why}; watch again", self.at))
    }
}

/// The word for a change: `put` or `delete`.
#[must_use]
pub fn word(kind: MessageType) -> &'static str {
    if kind == MessageType::Put { "put" } else { "delete" }
}
