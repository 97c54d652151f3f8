//! The watches whose runs led to a change.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs that a watched run may lead to, however its changes and those of further runs spread.
pub(crate) const RUNS: u32 = 64;

/// The watches whose runs led to a change, in the order of their numbers; none for a change from outside.
///
/// A watch does not see what its own runs lead to. But watches that see each other's changes could run in each order
/// of all of them: so the runs behind one that a change from outside started have a number of runs together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain {
    watches: Arc<[u64]>,
    /// The runs that are left.
    left: Option<Arc<AtomicU32>>,
}

impl Chain {
    /// A chain of these watches.
    #[cfg(test)]
    pub(crate) fn of(watches: &[u64]) -> Self {
        Self { watches: watches.into(), left: None }
    }

    #[cfg(test)]
    pub(crate) fn watches(&self) -> &[u64] {
        &self.watches
    }

    pub(crate) fn contains(&self, watch: &u64) -> bool {
        self.watches.contains(watch)
    }

    /// The chain of what a run of `watch` leads to, which this one led to.
    pub(crate) fn with(&self, watch: u64) -> Self {
        let mut watches = self.watches.to_vec();
        watches.insert(watches.partition_point(|other| *other < watch), watch);
        Self { watches: watches.into(), left: Some(self.left.clone().unwrap_or_else(|| Arc::new(AtomicU32::new(RUNS)))) }
    }

    /// Takes one of the runs that are left, if there is one. A change from outside may always start runs.
    pub(crate) fn may_run(&self) -> bool {
        let take = |left: &Arc<AtomicU32>| left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        self.left.as_ref().is_none_or(take)
    }
}

/// Chains of the same watches are the same: a key that changes again for them waits once.
impl PartialEq for Chain {
    fn eq(&self, other: &Self) -> bool {
        self.watches == other.watches
    }
}

impl Eq for Chain {}

impl Hash for Chain {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.watches.hash(state);
    }
}
