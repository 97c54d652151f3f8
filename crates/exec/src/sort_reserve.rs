//! Memory that sorts leave free for their own merges, and exchanges for all others.
//!
//! DataFusion's sort fills its share of the pool with rows, and merges them into a run on disk when the share is full.
//! The merge needs as much memory again for its keys: several keys, or texts, are written in a form that compares as
//! bytes. It takes this memory from the same pool, and fails where the rows have left none. A sort that does not fit
//! into memory would then end with an error, not on disk. So the rows of a sort may fill half of the sort's share.
//!
//! A repartition keeps rows for readers that have not come yet, and takes its share for each of its partitions. A plan
//! with many of them would leave a sort or an aggregate a share too small for one batch. They don't give back what a
//! join needs either. So all of them together get an eighth of the memory, and no share. The rest of their rows goes
//! to disk.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use skytether_common::units::human_bytes;

/// How DataFusion names the consumer that holds the rows of a sort. Its merges are called `ExternalSorterMerge[n]`.
const SORTER: &str = "ExternalSorter[";

/// How DataFusion names the consumer that holds the rows for a partition.
const EXCHANGE: &str = "RepartitionExec[";

/// A fair pool that grants rows being sorted at most half of what they could have, and exchanges an eighth.
#[derive(Debug)]
pub(crate) struct SortReservePool {
    fair: Arc<dyn MemoryPool>,
    /// Of the rows in all exchanges.
    exchanged: MemoryReservation,
    limit: usize,
    sorters: AtomicUsize,
}

impl SortReservePool {
    pub(crate) fn new(limit: usize) -> Self {
        let fair: Arc<dyn MemoryPool> = Arc::new(FairSpillPool::new(limit));
        let exchanged = MemoryConsumer::new("exchanges").register(&fair);
        Self { fair, exchanged, limit, sorters: AtomicUsize::new(0) }
    }
}

fn sorts(consumer: &MemoryConsumer) -> bool {
    consumer.name().starts_with(SORTER)
}

fn exchanges(consumer: &MemoryConsumer) -> bool {
    consumer.can_spill() && consumer.name().starts_with(EXCHANGE)
}

impl fmt::Display for SortReservePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fair.fmt(f)
    }
}

impl MemoryPool for SortReservePool {
    fn name(&self) -> &str {
        "sort_room"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        if sorts(consumer) {
            self.sorters.fetch_add(1, Ordering::Relaxed);
        }
        if !exchanges(consumer) {
            self.fair.register(consumer);
        }
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if sorts(consumer) {
            self.sorters.fetch_sub(1, Ordering::Relaxed);
        }
        if !exchanges(consumer) {
            self.fair.unregister(consumer);
        }
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        if exchanges(reservation.consumer()) {
            self.exchanged.grow(additional);
        } else {
            self.fair.grow(reservation, additional);
        }
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        if exchanges(reservation.consumer()) {
            self.exchanged.shrink(shrink);
        } else {
            self.fair.shrink(reservation, shrink);
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        if exchanges(reservation.consumer()) {
            let (wanted, room) = (self.exchanged.size().saturating_add(additional), self.limit / 8);
            if wanted > room {
                return Err(resources_datafusion_err!("exchanges want {}, more than their {}", human_bytes(wanted as u64), human_bytes(room as u64)));
            }
            return self.exchanged.try_grow(additional);
        }
        if sorts(reservation.consumer()) {
            let room = self.limit / 2 / self.sorters.load(Ordering::Relaxed).max(1);
            let wanted = reservation.size().saturating_add(additional);
            // A sort that holds nothing has nothing to spill: a first batch larger than its share may use free memory.
            if wanted > room && reservation.size() > 0 {
                return Err(resources_datafusion_err!(
                    "{} wants {}, more than the {} of its rows",
                    reservation.consumer().name(),
                    human_bytes(wanted as u64),
                    human_bytes(room as u64)
                ));
            }
        }
        self.fair.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.fair.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.fair.memory_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_take_an_eighth_and_no_share() {
        let pool: Arc<dyn MemoryPool> = Arc::new(SortReservePool::new(8 << 20));
        let exchanges: Vec<_> = (0..9).map(|at| MemoryConsumer::new(format!("RepartitionExec[{at}]")).with_can_spill(true).register(&pool)).collect();
        for exchange in &exchanges[..8] {
            exchange.try_grow(128 << 10).unwrap();
        }
        assert!(exchanges[8].try_grow(1).is_err());
        assert_eq!(pool.reserved(), 1 << 20);
        let groups = MemoryConsumer::new("groups").with_can_spill(true).register(&pool);
        groups.try_grow(7 << 20).unwrap();
        groups.free();
        let table = MemoryConsumer::new("table").register(&pool);
        table.try_grow(7 << 20).unwrap();
        assert!(table.try_grow(1).is_err());
        exchanges[0].shrink(100);
        exchanges[8].try_grow(100).unwrap();
        drop(exchanges);
        table.try_grow(1 << 20).unwrap();
        drop(table);
        assert_eq!(pool.reserved(), 0);
    }
}
