//! What commands hold in memory, of one session and of all.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The unit of counting in bytes: permits of a semaphore are 32 bits.
const UNIT: u64 = 1024;

/// Memory of all sessions.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<Semaphore>);

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

impl Memory {
    pub(crate) fn new(bytes: u64) -> Self {
        Self(Arc::new(Semaphore::new((units(bytes) as usize).min(Semaphore::MAX_PERMITS))))
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> u64 {
        self.0.available_permits() as u64 * UNIT
    }

    /// Takes `bytes`, if they are left.
    pub(crate) fn take(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_many_owned(units(bytes)).ok()
    }
}

/// Memory that a command holds. It is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    _permit: OwnedSemaphorePermit,
    bytes: u64,
    taken: Arc<AtomicU64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The memory of one session: commands take theirs in the order in which they came.
///
/// Only whole commands take memory, and what they take suffices to their end. So a command that waits is always passed
/// the memory of others some time.
pub(crate) struct Queue {
    memory: Memory,
    limit: u64,
    taken: Arc<AtomicU64>,
    /// Tags of commands that wait, with the bytes that they need.
    waiting: VecDeque<(u32, u64)>,
    acquiring: Option<BoxFuture<'static, Result<OwnedSemaphorePermit, AcquireError>>>,
}

impl Queue {
    /// Of at most `limit` bytes, out of `memory`.
    pub(crate) fn new(memory: Memory, limit: u64) -> Self {
        Self { memory, limit, taken: Arc::default(), waiting: VecDeque::new(), acquiring: None }
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.taken.load(Ordering::Relaxed) + bytes <= self.limit
    }

    fn held(&self, permit: OwnedSemaphorePermit, bytes: u64) -> Held {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Held { _permit: permit, bytes, taken: Arc::clone(&self.taken) }
    }

    /// Takes `bytes` at once, if they are left and no command waits.
    pub(crate) fn take(&self, bytes: u64) -> Option<Held> {
        if !self.waiting.is_empty() || !self.has_room(bytes) {
            return None;
        }
        self.memory.take(bytes).map(|permit| self.held(permit, bytes))
    }

    /// The command `tag` waits for `bytes`.
    pub(crate) fn wait(&mut self, tag: u32, bytes: u64) {
        self.waiting.push_back((tag, bytes));
    }

    /// The command `tag` waits no longer.
    pub(crate) fn forget(&mut self, tag: u32) {
        if self.waiting.front().is_some_and(|(first, _)| *first == tag) {
            self.acquiring = None;
        }
        self.waiting.retain(|(other, _)| *other != tag);
    }

    /// The next command that gets its memory.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<(u32, Held)> {
        let Some(&(tag, bytes)) = self.waiting.front() else { return Poll::Pending };
        // What this session gives back, it gives back between polls.
        if !self.has_room(bytes) {
            return Poll::Pending;
        }
        let acquiring = self.acquiring.get_or_insert_with(|| Arc::clone(&self.memory.0).acquire_many_owned(units(bytes)).boxed());
        match acquiring.poll_unpin(cx) {
            Poll::Ready(Ok(permit)) => {
                self.acquiring = None;
                self.waiting.pop_front();
                Poll::Ready((tag, self.held(permit, bytes)))
            }
            // The semaphore is never closed.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("taken", &self.taken).field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(queue: &mut Queue) -> Option<(u32, Held)> {
        match queue.poll_next(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(next) => Some(next),
            Poll::Pending => None,
        }
    }

    #[test]
    fn commands_get_memory_in_their_order() {
        let memory = Memory::new(10 << 10);
        let mut queue = Queue::new(memory.clone(), 8 << 10);
        let first = queue.take(6 << 10).unwrap();
        assert!(queue.take(4 << 10).is_none());
        queue.wait(1, 4 << 10);
        queue.wait(2, 1 << 10);
        // The small one would fit, but came later.
        assert!(queue.take(1 << 10).is_none() && next(&mut queue).is_none());
        drop(first);
        let (tag, held) = next(&mut queue).unwrap();
        assert_eq!((tag, memory.left()), (1, 6 << 10));
        assert_eq!(next(&mut queue).unwrap().0, 2);
        drop(held);
        assert_eq!(memory.left(), 10 << 10);
    }

    #[test]
    fn one_session_leaves_memory_to_others() {
        let memory = Memory::new(10 << 10);
        let (one, mut two) = (Queue::new(memory.clone(), 6 << 10), Queue::new(memory, 6 << 10));
        let held = one.take(6 << 10).unwrap();
        assert!(one.take(1 << 10).is_none());
        let _other = two.take(4 << 10).unwrap();
        two.wait(7, 2 << 10);
        assert!(next(&mut two).is_none());
        drop(held);
        assert_eq!(next(&mut two).unwrap().0, 7);
    }
}
