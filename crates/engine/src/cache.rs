//! A small LRU cache with a bound on its weight.

use std::hash::Hash;

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::unsync;

/// Bytes of a value, as far as the number of values is estimated from the limit. The estimate bounds how many keys of
/// evicted values the cache remembers. It must be at least as many as fit, or values of a new generation that are read
/// again and again never displace those of an old one.
const VALUE: usize = 16 << 10;

/// Bounds of the estimate: each of the remembered keys takes some 50 bytes.
const ITEMS: (usize, usize) = (64, 1 << 16);

/// See the module's text. Values are cheap to clone (`Arc`s).
///
/// One lock for all: of the shards of quick_cache's own locked form each has a part of the limit, and one column
/// may take most of the whole.
#[derive(Debug)]
pub struct Cache<K, V>(Mutex<unsync::Cache<K, (V, usize), ByWeight>>);

#[derive(Debug, Clone)]
struct ByWeight;

impl<K, V> Weighter<K, (V, usize)> for ByWeight {
    fn weight(&self, _: &K, (_, weight): &(V, usize)) -> u64 {
        // What weighs nothing would stay for ever.
        (*weight).max(1) as u64
    }
}

impl<K: Hash + Eq, V: Clone> Cache<K, V> {
    /// A cache of at most `limit` (bytes, as the callers of [`Cache::put`] weigh them).
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Mutex::new(unsync::Cache::with_weighter((limit / VALUE).clamp(ITEMS.0, ITEMS.1), limit as u64, ByWeight)))
    }

    /// The value of `key`.
    pub fn get(&self, key: &K) -> Option<V> {
        self.0.lock().get(key).map(|(value, _)| value.clone())
    }

    /// Keeps `value`, unless it alone is heavier than 97% of what the whole cache may be. The value that is kept under
    /// `key` afterwards or `value`: if two put the same key, both go on with the first's.
    pub fn put(&self, key: K, value: V, weight: usize) -> V {
        let mut kept = self.0.lock();
        if let Some((first, _)) = kept.get(&key) {
            return first.clone();
        }
        kept.insert(key, (value.clone(), weight));
        value
    }

    /// Lets go of the value of `key`, if that is `unwanted`.
    pub fn remove_if(&self, key: &K, unwanted: impl FnOnce(&V) -> bool) {
        self.0.lock().remove_if(key, |(value, _)| unwanted(value));
    }

    /// The weight of all entries.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.0.lock().weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn used_entries_stay_and_the_weight_is_bounded() {
        let cache = Cache::new(10);
        cache.put(0, 0, 4);
        for n in 1..100 {
            assert_eq!(cache.get(&0), Some(0), "{n}");
            assert_eq!(cache.put(n, n, 4), n);
            assert!(cache.weight() <= 10, "{n}: {}", cache.weight());
        }
        assert_eq!(cache.get(&98), None);
    }

    #[test]
    fn new_generation_displaces_the_old_one_within_ten_reads() {
        let (limit, weight) = (64 << 20, 200 << 10);
        let cache = Cache::new(limit);
        let hits = |generation: u32| {
            let mut found = 0;
            for key in (0..300).map(|n| (generation, n)) {
                match cache.get(&key) {
                    Some(()) => found += 1,
                    None => cache.put(key, (), weight),
                }
            }
            found
        };
        for generation in [1, 2] {
            let passes: Vec<usize> = (0..10).map(|_| hits(generation)).collect();
            assert_eq!(passes.last(), Some(&300), "generation {generation}: {passes:?}");
        }
    }

    #[test]
    fn too_heavy_entry_is_not_kept_and_evicts_nothing() {
        let cache = Cache::new(10);
        cache.put("a", 1, 9);
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
