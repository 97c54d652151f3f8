//! A small cache with a bound on its weight; what was used longest ago goes first.

use std::collections::HashMap;
use std::hash::Hash;

use parking_lot::{Mutex, MutexGuard};

/// See the module's text. Values are cheap to clone (`Arc`s).
#[derive(Debug)]
pub(crate) struct Cache<K, V> {
    limit: usize,
    inner: Mutex<Inner<K, V>>,
}

#[derive(Debug)]
struct Inner<K, V> {
    entries: HashMap<K, Entry<V>>,
    weight: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    weight: usize,
    used: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> Cache<K, V> {
    /// A cache of at most `limit` (bytes, as the callers of [`Cache::put`] weigh them).
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, inner: Mutex::new(Inner { entries: HashMap::new(), weight: 0, clock: 0 }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K, V>> {
        // Every change leaves the cache whole, so a panic elsewhere does no harm.
        self.inner.lock()
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut inner = self.lock();
        inner.clock += 1;
        let now = inner.clock;
        let entry = inner.entries.get_mut(key)?;
        entry.used = now;
        Some(entry.value.clone())
    }

    /// Keeps `value`, unless it alone is heavier than the whole cache may be. The value that is kept under `key` afterwards or `value`:
    /// if two put the same key, both go on with the first's.
    pub(crate) fn put(&self, key: K, value: V, weight: usize) -> V {
        let mut inner = self.lock();
        inner.clock += 1;
        let used = inner.clock;
        if let Some(entry) = inner.entries.get_mut(&key) {
            entry.used = used;
            return entry.value.clone();
        }
        if weight > self.limit {
            return value;
        }
        while inner.weight + weight > self.limit {
            let Some(oldest) = inner.entries.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| k.clone()) else { break };
            if let Some(gone) = inner.entries.remove(&oldest) {
                inner.weight -= gone.weight;
            }
        }
        inner.weight += weight;
        inner.entries.insert(key, Entry { value: value.clone(), weight, used });
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_longest_unused_goes_first() {
        let cache = Cache::new(10);
        cache.put("a", 1, 4);
        cache.put("b", 2, 4);
        assert_eq!(cache.get(&"a"), Some(1));
        cache.put("c", 3, 4);
        assert_eq!((cache.get(&"a"), cache.get(&"b"), cache.get(&"c")), (Some(1), None, Some(3)));
    }

    #[test]
    fn what_is_too_heavy_is_not_kept_and_throws_nothing_out() {
        let cache = Cache::new(10);
        cache.put("a", 1, 10);
        assert_eq!(cache.put("b", 2, 11), 2);
        assert_eq!((cache.get(&"a"), cache.get(&"b")), (Some(1), None));
    }

    #[test]
    fn two_that_put_the_same_key_share_the_first() {
        let cache = Cache::new(10);
        let first = cache.put("a", Arc::new(1), 1);
        assert!(Arc::ptr_eq(&cache.put("a", Arc::new(1), 1), &first));
    }
}
