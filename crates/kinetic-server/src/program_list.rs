//! The programs that a drive has loaded, and those that run.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use skytether_common::Error;
use skytether_kinetic_protocol::program::ProcessStatus;
use tokio::sync::Semaphore;

use crate::turns::Turns;

use crate::loaded::Loaded;

/// Programs that run at the same time; others wait.
const TURNS: usize = 2;

/// Sub-plans whose bytes are in memory; others wait. The engine has its own turns.
const QUERIES: usize = 8;

/// Programs that run or wait.
const LISTED: usize = 64;

/// Loaded programs that are kept for further runs.
const KEPT: usize = 8;

/// The programs of one drive.
#[derive(Debug)]
pub(crate) struct Programs {
    /// A program holds a turn while it runs.
    pub(crate) turns: Arc<Turns>,
    /// A sub-plan holds a permit from when its bytes are read.
    pub(crate) queries: Arc<Semaphore>,
    running: Mutex<Running>,
    /// By their bytes, the last used one first.
    loaded: Mutex<VecDeque<(Bytes, Arc<Loaded>)>>,
}

#[derive(Debug, Default)]
struct Running {
    next: u64,
    programs: BTreeMap<u64, Run>,
}

#[derive(Debug)]
struct Run {
    keys: Vec<Bytes>,
    until: Instant,
    /// Whether a watch started it.
    watched: bool,
    aborted: Arc<AtomicBool>,
}

impl Default for Programs {
    fn default() -> Self {
        Self { turns: Turns::new(TURNS), queries: Arc::new(Semaphore::new(QUERIES)), running: Mutex::default(), loaded: Mutex::default() }
    }
}

/// Takes a program off the list of those that run.
pub(crate) struct Listed {
    programs: Arc<Programs>,
    number: u64,
    /// Set when the program is to end.
    pub(crate) aborted: Arc<AtomicBool>,
}

impl Listed {
    /// Says until when the program runs.
    pub(crate) fn runs_until(&self, until: Instant) {
        if let Some(run) = self.programs.running.lock().programs.get_mut(&self.number) {
            run.until = until;
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.programs.running.lock().programs.remove(&self.number);
    }
}

impl Programs {
    /// The program of these bytes.
    pub(crate) fn load(&self, bytes: &Bytes) -> Result<Arc<Loaded>, Error> {
        if let Some(program) = self.known(bytes) {
            return Ok(program);
        }
        // Without the lock: others need not wait for this program.
        let program = Arc::new(Loaded::load(bytes)?);
        let mut loaded = self.loaded.lock();
        loaded.push_front((bytes.clone(), Arc::clone(&program)));
        loaded.truncate(KEPT);
        Ok(program)
    }

    /// The program if it is loaded; it counts as the last used one then.
    fn known(&self, bytes: &Bytes) -> Option<Arc<Loaded>> {
        let mut loaded = self.loaded.lock();
        let at = loaded.iter().position(|(known, _)| known == bytes)?;
        let found = loaded.remove(at)?;
        let program = Arc::clone(&found.1);
        loaded.push_front(found);
        Some(program)
    }

    /// Drops a loaded program.
    pub(crate) fn forget(&self, bytes: &Bytes) {
        self.loaded.lock().retain(|(known, _)| known != bytes);
    }

    /// Puts a program on the list of those that run or wait; `None` where the list is full. There is always a place for
    /// a watched one: one runs at a time.
    pub(crate) fn list(self: &Arc<Self>, keys: Vec<Bytes>, until: Instant, watched: bool) -> Option<Listed> {
        let aborted = Arc::new(AtomicBool::new(false));
        let mut running = self.running.lock();
        if running.programs.len() >= LISTED && !watched {
            return None;
        }
        running.next += 1;
        let number = running.next;
        running.programs.insert(number, Run { keys, until, watched, aborted: Arc::clone(&aborted) });
        Some(Listed { programs: Arc::clone(self), number, aborted })
    }

    /// Tells the programs of these keys to end; whether there are any.
    pub(crate) fn abort(&self, keys: &[Bytes]) -> bool {
        let running = self.running.lock();
        let mut found = false;
        for run in running.programs.values().filter(|run| run.keys == keys) {
            run.aborted.store(true, Ordering::Relaxed);
            found = true;
        }
        found
    }

    /// Tells the programs to end that watches started: with rights, or on a drive, that are no more.
    pub(crate) fn abort_watched(&self) {
        self.running.lock().programs.values().filter(|run| run.watched).for_each(|run| run.aborted.store(true, Ordering::Relaxed));
    }

    /// Tells all programs to end.
    pub(crate) fn abort_all(&self) {
        self.running.lock().programs.values().for_each(|run| run.aborted.store(true, Ordering::Relaxed));
    }

    /// The programs that run: all, or those of these keys.
    pub(crate) fn statuses(&self, keys: &[Bytes]) -> Vec<ProcessStatus> {
        let now = Instant::now();
        let running = self.running.lock();
        let those = running.programs.values().filter(|run| keys.is_empty() || run.keys == keys);
        let status = |run: &Run| ProcessStatus {
            program_key: run.keys.clone(),
            time_to_expiration: Some(i32::try_from(run.until.saturating_duration_since(now).as_millis()).unwrap_or(i32::MAX)),
        };
        those.map(status).collect()
    }
}
