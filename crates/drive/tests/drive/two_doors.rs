//! What comes through a drive's doors, over its slices (Flight) and over the keys of another store (Kinetic), has one
//! memory and one set of turns.

use std::sync::Arc;

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use skytether_common::{Error, Kind, Result};
use skytether_device::{Cse, DeliveryStream, Program, ProgramKind, SubPlan};
use skytether_drive::{Drive, DriveOptions, ExecutionContext, Executor};
use skytether_store::memory::MemoryStore;
use tokio::sync::Semaphore;

use crate::common::{fill, info, lines, run, sub_plan};

/// A program that ends at once, and leaves what the drive gave it: the memory and the turns of the drive.
#[derive(Debug, Default)]
struct Shows(Mutex<Option<(Arc<dyn MemoryPool>, Arc<Semaphore>)>>);

impl Executor for Shows {
    fn kind(&self) -> ProgramKind {
        ProgramKind::Native
    }

    fn execute(self: Arc<Self>, _: SubPlan, context: ExecutionContext) -> BoxFuture<'static, Result<DeliveryStream>> {
        *self.0.lock() = Some((context.memory, context.turns));
        async { Err(Error::invalid("it only shows")) }.boxed()
    }
}

const SORTED: &str = "SELECT id, kind, price FROM shop.sales.data ORDER BY price, id DESC";
const MEMORY: u64 = 64 << 20;
const TURNS: usize = 3;

/// Both ways into a drive, and its memory and turns.
async fn both_ways() -> ([Arc<dyn Cse>; 2], Arc<dyn MemoryPool>, Arc<Semaphore>) {
    let (own, keys) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    fill(own.as_ref());
    fill(keys.as_ref());
    let (shows, options) = (Arc::new(Shows::default()), DriveOptions { memory_limit: MEMORY, max_concurrent: TURNS, ..DriveOptions::default() });
    let drive = Drive::with_executors(own, info(), options, vec![Arc::clone(&shows) as _]).unwrap();
    let asked = SubPlan { program: Program::Native { name: "show".into(), arguments: Default::default() }, ..sub_plan(SORTED).await };
    assert!(drive.execute(asked).await.is_err());
    let (memory, turns) = shows.0.lock().take().unwrap();
    assert_eq!(turns.available_permits(), TURNS);
    ([Arc::clone(&drive) as Arc<dyn Cse>, drive.over(keys).unwrap()], memory, turns)
}

#[tokio::test]
async fn sub_plans_of_both_doors_wait_for_the_same_turns() {
    let (ways, _, turns) = both_ways().await;
    let expected = lines(&run(ways[0].as_ref(), sub_plan(SORTED).await).await.unwrap().0);
    let held = Arc::clone(&turns).acquire_many_owned(TURNS as u32).await.unwrap();
    let mut waiting = Vec::new();
    for way in &ways {
        let (way, plan) = (Arc::clone(way), sub_plan(SORTED).await);
        waiting.push(tokio::spawn(async move { run(way.as_ref(), plan).await.unwrap().0 }));
    }
    // However often they are looked at, none has a turn.
    for _ in 0..2000 {
        tokio::task::yield_now().await;
    }
    assert!(waiting.iter().all(|one| !one.is_finished()) && turns.available_permits() == 0);
    drop(held);
    for one in waiting {
        assert_eq!(lines(&one.await.unwrap()), expected);
    }
    assert_eq!(turns.available_permits(), TURNS);
}

#[tokio::test]
async fn sub_plans_of_both_doors_take_from_the_same_memory() {
    let (ways, memory, _) = both_ways().await;
    let before = memory.reserved();
    // All of it but what a sort needs, as a sub-plan of either door would hold it.
    let taken = MemoryConsumer::new("a sub-plan of another door").register(&memory);
    taken.try_grow(usize::try_from(MEMORY).unwrap() - before - (64 << 10)).unwrap();
    for way in &ways {
        let error = run(way.as_ref(), sub_plan(SORTED).await).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted, "{}", error.report());
    }
    drop(taken);
    for way in &ways {
        assert_eq!(run(way.as_ref(), sub_plan(SORTED).await).await.unwrap().0.num_rows(), crate::common::SALES as usize);
    }
}
