//! How many requests of each type the drive answered, how many bytes they moved, and how long the slowest took; how
//! many connections are open, and how many writes wait for the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use skytether_kinetic_protocol::MessageType;
use skytether_kinetic_protocol::log::Statistics;

/// Counters of all request types, since the drive was opened.
#[derive(Debug)]
pub(crate) struct Counters {
    /// By the number of the request type; responses have odd numbers, which stay unused.
    by_type: [Counter; 64],
    /// Connections that are open.
    pub(crate) connections: Gauge,
    /// Writes that were taken and are not answered.
    pub(crate) writes: Gauge,
}

/// How many there are of something now.
#[derive(Debug, Default, Clone)]
pub(crate) struct Gauge(Arc<AtomicU64>);

/// One of them. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Counted(Arc<AtomicU64>);

impl Gauge {
    /// One more.
    pub(crate) fn enter(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(&self.0))
    }

    /// One more, unless there are `most`.
    pub(crate) fn enter_up_to(&self, most: u64) -> Option<Counted> {
        let entered = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| (now < most).then_some(now + 1));
        entered.is_ok().then(|| Counted(Arc::clone(&self.0)))
    }

    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct Counter {
    count: AtomicU64,
    bytes: AtomicU64,
    slowest_us: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self { by_type: std::array::from_fn(|_| Counter::default()), connections: Gauge::default(), writes: Gauge::default() }
    }
}

impl Counters {
    fn of(&self, request: MessageType) -> Option<&Counter> {
        self.by_type.get(usize::try_from(i32::from(request)).ok()?)
    }

    /// Counts a request that was answered after `took`, with the bytes of its value or of that of its answer. A member
    /// of a batch counts when its batch has taken it.
    pub(crate) fn count(&self, request: MessageType, bytes: u64, took: Duration) {
        let Some(counter) = self.of(request) else { return };
        counter.count.fetch_add(1, Ordering::Relaxed);
        counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        counter.slowest_us.fetch_max(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// One entry for each request type.
    pub(crate) fn statistics(&self) -> Vec<Statistics> {
        let requests = MessageType::ALL.iter().filter(|kind| kind.is_request());
        let statistics = requests.filter_map(|kind| {
            let counter = self.of(*kind)?;
            Some(Statistics {
                message_type: Some((*kind).into()),
                count: Some(counter.count.load(Ordering::Relaxed)),
                bytes: Some(counter.bytes.load(Ordering::Relaxed)),
                max_latency: Some(counter.slowest_us.load(Ordering::Relaxed)),
            })
        });
        statistics.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_type_has_its_own_counter() {
        let counters = Counters::default();
        counters.count(MessageType::Put, 10, Duration::from_micros(5));
        counters.count(MessageType::Put, 20, Duration::from_micros(3));
        counters.count(MessageType::ManageApplet, 1, Duration::from_micros(2));
        let all = counters.statistics();
        assert_eq!(all.len(), MessageType::ALL.iter().filter(|kind| kind.is_request()).count());
        let of = |kind: MessageType| all.iter().find(|s| s.message_type == Some(kind.into())).map(|s| (s.count(), s.bytes(), s.max_latency()));
        assert_eq!(of(MessageType::Put), Some((2, 30, 5)));
        assert_eq!(of(MessageType::ManageApplet), Some((1, 1, 2)));
        assert_eq!(of(MessageType::Get), Some((0, 0, 0)));
    }
}
