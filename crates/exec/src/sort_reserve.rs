//! Memory that sorts leave free for their own merges.
//!
//! DataFusion's sort fills its share of the pool with rows, and merges them into a run on disk when the share is full.
//! The merge needs as much memory again for its keys: several keys, or texts, are written in a form that compares as
//! bytes. It takes this memory from the same pool, and fails where the rows have left none. A sort that does not fit
//! into memory would then end with an error, not on disk. So the rows of a sort may fill half of the sort's share.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::{Result, resources_datafusion_err};
use datafusion::execution::memory_pool::{FairSpillPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation};
use skytether_common::units::human_bytes;

/// How DataFusion names the consumer that holds the rows of a sort. Its merges are called `ExternalSorterMerge[n]`.
const SORTER: &str = "ExternalSorter[";

/// A fair pool that grants rows being sorted at most half of what they could have.
#[derive(Debug)]
pub(crate) struct SortReservePool {
    fair: FairSpillPool,
    limit: usize,
    sorters: AtomicUsize,
}

impl SortReservePool {
    pub(crate) fn new(limit: usize) -> Self {
        Self { fair: FairSpillPool::new(limit), limit, sorters: AtomicUsize::new(0) }
    }
}

fn sorts(consumer: &MemoryConsumer) -> bool {
    consumer.name().starts_with(SORTER)
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
        self.fair.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        if sorts(consumer) {
            self.sorters.fetch_sub(1, Ordering::Relaxed);
        }
        self.fair.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.fair.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.fair.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
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
