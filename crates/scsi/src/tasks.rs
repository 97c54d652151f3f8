//! The commands of a nexus that run, each with what ends it.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::command::Reply;
use crate::sense::{Fail, Key, Outcome, Sense, code};

/// A command by the eight bytes of its logical unit number and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub(crate) lun: u64,
    pub(crate) tag: u64,
}

/// The running commands.
#[derive(Debug)]
pub(crate) struct Tasks {
    limit: usize,
    running: Mutex<Running>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Running {
    /// Counts commands, because a tag may be used again.
    count: u64,
    tasks: HashMap<Name, (u64, CancellationToken)>,
}

/// A running command. It is over when this is dropped.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    tasks: &'a Tasks,
    name: Name,
    cancel: CancellationToken,
}

impl Task<'_> {
    pub(crate) fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        self.tasks.running.lock().tasks.remove(&self.name);
        if self.cancel.is_cancelled() {
            self.tasks.ended.notify_waiters();
        }
    }
}

impl Tasks {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, running: Mutex::default(), ended: Notify::new() }
    }

    /// Enters a command. A second one of the same name, and one too many, are refused.
    pub(crate) fn begin(&self, name: Name) -> Outcome<Task<'_>> {
        let mut running = self.running.lock();
        if running.tasks.contains_key(&name) {
            return Err(Sense::new(Key::Aborted, code::OVERLAPPED_COMMANDS).into());
        }
        if running.tasks.len() >= self.limit {
            return Err(Fail::Status(Reply::TASK_SET_FULL));
        }
        running.count += 1;
        let (count, cancel) = (running.count, CancellationToken::new());
        running.tasks.insert(name, (count, cancel.clone()));
        drop(running);
        Ok(Task { tasks: self, name, cancel })
    }

    /// Cancels the commands that `which` names, and returns them for [`Tasks::ended`].
    pub(crate) fn abort(&self, which: impl Fn(Name) -> bool) -> Vec<(Name, u64)> {
        let running = self.running.lock();
        let found = running.tasks.iter().filter(|(name, _)| which(**name));
        found.map(|(&name, (count, cancel))| (cancel.cancel(), (name, *count)).1).collect()
    }

    /// Waits until commands are over.
    pub(crate) async fn ended(&self, tasks: &[(Name, u64)]) {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            let over = {
                let running = self.running.lock();
                tasks.iter().all(|(name, count)| running.tasks.get(name).is_none_or(|(now, _)| now != count))
            };
            if over {
                return;
            }
            ended.await;
        }
    }
}
