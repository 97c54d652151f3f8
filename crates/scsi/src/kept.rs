//! A few things that a nexus keeps for later commands.

use std::collections::VecDeque;

use parking_lot::Mutex;

/// At most `limit` things of at most `bytes` together, the newest last. A newer one replaces the oldest.
#[derive(Debug)]
pub(crate) struct Kept<T> {
    limit: usize,
    bytes: usize,
    size: fn(&T) -> usize,
    kept: Mutex<VecDeque<T>>,
}

impl<T: Clone> Kept<T> {
    /// `size` is the bytes of one.
    pub(crate) fn new(limit: usize, bytes: usize, size: fn(&T) -> usize) -> Self {
        Self { limit, bytes, size, kept: Mutex::default() }
    }

    /// Keeps `value` instead of those that `replaces` names.
    pub(crate) fn put(&self, value: T, replaces: impl Fn(&T) -> bool) {
        let mut kept = self.kept.lock();
        kept.retain(|there| !replaces(there));
        kept.push_back(value);
        let mut all: usize = kept.iter().map(self.size).sum();
        while kept.len() > self.limit || all > self.bytes {
            let Some(oldest) = kept.pop_front() else { break };
            all -= (self.size)(&oldest);
        }
    }

    pub(crate) fn find(&self, which: impl Fn(&T) -> bool) -> Option<T> {
        self.kept.lock().iter().find(|there| which(there)).cloned()
    }

    pub(crate) fn retain(&self, which: impl Fn(&T) -> bool) {
        self.kept.lock().retain(which);
    }

    pub(crate) fn clear(&self) {
        self.kept.lock().clear();
    }
}
