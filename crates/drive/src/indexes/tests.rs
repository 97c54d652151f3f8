//! The thread that builds indexes, without a drive around it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use parking_lot::{Condvar, Mutex};
use skytether_common::Error;
use skytether_engine::Reader;
use skytether_engine::indexed::Indexes;
use skytether_index::{Definition, Phase, of_partition};
use skytether_store::SliceStore;
use skytether_store::memory::MemoryStore;
use tokio::sync::Semaphore;

use super::building::Shared;
use super::state::{IndexState, RETRY};

fn shared() -> Shared {
    let store: Arc<dyn SliceStore> = Arc::new(MemoryStore::new());
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    Shared {
        store: Arc::clone(&store),
        reader: Arc::new(Reader::new(store)),
        indexes: Arc::new(Indexes::new(Arc::clone(&pool), 1 << 20)),
        pool,
        turns: Arc::new(Semaphore::new(2)),
        most_turns: 2,
        memory: 1 << 20,
        leave_free: 0.0,
        state: Mutex::default(),
        wake: Condvar::new(),
    }
}

#[test]
fn while_queries_run_it_rests_three_times_as_long_as_it_works() {
    let shared = shared();
    let work = Duration::from_millis(600);
    // A query that runs before, and one that begins meanwhile.
    for before in [true, false] {
        let mut held = before.then(|| shared.turns.try_acquire().unwrap());
        let started = Instant::now();
        shared.work(|| {
            std::thread::sleep(work);
            held.get_or_insert_with(|| shared.turns.try_acquire().unwrap());
        });
        assert!(started.elapsed() >= 4 * work, "{:?}", started.elapsed());
    }
}

#[test]
fn indexes_take_turns_and_those_that_failed_wait_for_theirs() {
    let mut state = IndexState::default();
    let definition = Definition::new(vec!["x".into()], Vec::new());
    for name in ["a", "b", "c"] {
        let of =
            skytether_common::PartitionName { dataset: "lab.t".parse().unwrap(), generation: skytether_common::Generation(1), table: "data".into(), slot: 0 };
        state.define(&skytether_index::partition(&of, name), of, name.into(), definition.clone());
    }
    let name = |at: &skytether_common::PartitionName| of_partition(at).unwrap().1;
    let mut last = None;
    let mut order = String::new();
    for _ in 0..5 {
        let at = state.next(last.as_ref()).unwrap().0.clone();
        order += &name(&at);
        last = Some(at);
    }
    assert_eq!(order, "abcab");
    let serials: Vec<u64> = state.all.values().map(|entry| entry.serial).collect();
    assert_eq!(serials, [1, 2, 3]);
    for (at, entry) in state.all.values_mut().enumerate() {
        match at {
            0 => entry.fail(&Error::unsupported("never")),
            1 => entry.fail(&Error::unavailable("not now")),
            _ => entry.phase = Phase::Ready,
        }
    }
    assert!(state.next(None).is_none());
    let waits: Vec<Option<Instant>> = state.all.values().map(|entry| entry.again).collect();
    assert!(waits[0].is_none() && waits[1].is_some() && waits[2].is_none());
    let later = state.all.values_mut().nth(1).unwrap();
    for _ in 0..40 {
        later.fail(&Error::corrupt("still not"));
    }
    assert!(later.again.unwrap() <= Instant::now() + RETRY.1 && later.again.unwrap() > Instant::now() + RETRY.1 / 2);
    later.again = Some(Instant::now());
    assert_eq!(name(state.next(last.as_ref()).unwrap().0), "b");
}
