//! Results of EXEC that wait for their host, bounded in number, bytes and time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

/// Bounds of what one controller holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultLimits {
    /// Results.
    pub count: usize,
    /// Bytes of all together; a door raises it to the longest result that its `Exec` gives.
    pub bytes: usize,
    /// From the end of the computation.
    pub age: Duration,
}

impl Default for ResultLimits {
    fn default() -> Self {
        Self { count: 256, bytes: 16 << 20, age: Duration::from_secs(120) }
    }
}

/// What one controller holds, by list identifier and namespace. The oldest goes first.
#[derive(Debug)]
pub struct Results {
    limits: ResultLimits,
    held: VecDeque<Held>,
    bytes: usize,
}

#[derive(Debug)]
struct Held {
    namespace: u32,
    list: u32,
    result: Bytes,
    since: Instant,
}

impl Results {
    /// Nothing is held.
    #[must_use]
    pub fn new(limits: ResultLimits) -> Self {
        Self { limits, held: VecDeque::new(), bytes: 0 }
    }

    /// Holds a result in place of one with the same identifier. Whether it fits at all.
    pub fn hold(&mut self, namespace: u32, list: u32, result: Bytes, now: Instant) -> bool {
        self.forget(namespace, list);
        self.expire(now);
        if result.len() > self.limits.bytes || self.limits.count == 0 {
            return false;
        }
        while self.held.len() >= self.limits.count || self.bytes + result.len() > self.limits.bytes {
            let Some(oldest) = self.held.pop_front() else { break };
            self.bytes -= oldest.result.len();
        }
        self.bytes += result.len();
        self.held.push_back(Held { namespace, list, result, since: now });
        true
    }

    /// The result, if it is still there.
    #[must_use]
    pub fn get(&mut self, namespace: u32, list: u32, now: Instant) -> Option<Bytes> {
        self.expire(now);
        self.held.iter().find(|held| held.namespace == namespace && held.list == list).map(|held| held.result.clone())
    }

    /// Drops a result.
    pub fn forget(&mut self, namespace: u32, list: u32) {
        let bytes = &mut self.bytes;
        self.held.retain(|held| {
            let stays = held.namespace != namespace || held.list != list;
            *bytes -= if stays { 0 } else { held.result.len() };
            stays
        });
    }

    fn expire(&mut self, now: Instant) {
        while let Some(oldest) = self.held.front()
            && now.saturating_duration_since(oldest.since) >= self.limits.age
        {
            self.bytes -= oldest.result.len();
            self.held.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Bytes {
        vec![1; len].into()
    }

    #[test]
    fn results_are_bounded_in_number_bytes_and_time() {
        let limits = ResultLimits { count: 3, bytes: 100, age: Duration::from_secs(10) };
        let (mut results, now) = (Results::new(limits), Instant::now());
        assert!((1..=4).all(|list| results.hold(1, list, bytes(10), now)));
        assert_eq!((results.get(1, 1, now), results.get(1, 4, now)), (None, Some(bytes(10))));
        assert!(results.hold(1, 5, bytes(85), now));
        assert_eq!((results.get(1, 3, now), results.get(1, 4, now).is_some(), results.bytes), (None, true, 95));
        assert!(!results.hold(1, 6, bytes(101), now));
        let later = now + Duration::from_secs(10);
        assert_eq!((results.get(1, 5, later), results.bytes), (None, 0));
    }

    #[test]
    fn identifier_is_one_of_its_namespace() {
        let (mut results, now) = (Results::new(ResultLimits::default()), Instant::now());
        assert!(results.hold(1, 7, bytes(1), now) && results.hold(2, 7, bytes(2), now) && results.hold(1, 7, bytes(3), now));
        assert_eq!((results.get(1, 7, now), results.get(2, 7, now)), (Some(bytes(3)), Some(bytes(2))));
        results.forget(1, 7);
        assert_eq!((results.get(1, 7, now), results.bytes), (None, 2));
    }
}
