//! Sub-plans that a drive processes slice by slice: what it sends, and in which order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::common::*;
use arrow::array::{AsArray, Int64Array, new_null_array};
use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer};
use futures::StreamExt;
use skytether_common::{Key, Result};
use skytether_device::OpenReply;
use skytether_device::session::{Message, Session};
use skytether_drive::{Cse, Device, DriveOptions};
use skytether_engine::split_execution::Taken;
use skytether_engine::{Engine, Reader};
use skytether_scheduler::message::{CloseAfter, Completed, Down, EpochId, Order, PushdownLevel, SliceId, Up, Why};
use skytether_scheduler::profile::Profile;
use skytether_slice::Metadata;
use skytether_store::SliceStore;
use skytether_store::StoreLayer;
use skytether_store::memory::MemoryStore;
use tokio::sync::Notify;

/// Rows of the table: 2.4 MB of numbers that don't compress. That is less than may wait for a reader.
pub(crate) const ROWS: i64 = 300_000;

/// Threads of the drive, and so lanes of an epoch.
const LANES: usize = 2;

/// `shop.sales` with ids that don't compress.
pub(crate) fn store_numbers(store: &dyn SliceStore) -> Metadata {
    store_rows(store, ROWS, 200 << 10)
}

/// As [`store_numbers`], of `count` rows, in slices of `slice_bytes` bytes.
pub(crate) fn store_rows(store: &dyn SliceStore, count: i64, slice_bytes: usize) -> Metadata {
    let numbers = Arc::new(Int64Array::from_iter_values((0..count).map(number)));
    let (none, nothing) = (new_null_array(&DataType::Utf8, count as usize), new_null_array(&DataType::Float64, count as usize));
    let rows = RecordBatch::try_new(sales().schema(), vec![numbers, none, nothing]).unwrap();
    store_table(store, &partition(&dataset("shop.sales"), "data"), &rows, slice_bytes)
}

/// The id of a row.
pub(crate) fn number(row: i64) -> i64 {
    row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)
}

/// A store that reports how many slices were read.
#[derive(Debug, Default)]
struct Watched {
    inner: MemoryStore,
    read: Mutex<BTreeSet<Key>>,
    more: Notify,
}

impl Watched {
    fn saw(&self, key: &Key) {
        if key.as_str().contains(';') {
            self.read.lock().insert(key.clone());
            self.more.notify_one();
        }
    }

    /// Ready when `slices` slices were read.
    async fn has_read(&self, slices: usize) {
        while self.read.lock().len() < slices {
            self.more.notified().await;
        }
    }
}

impl StoreLayer for Watched {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.inner)
    }

    fn before_read(&self, key: &Key) -> Result<()> {
        self.saw(key);
        Ok(())
    }
}

/// The reader takes no rows. The drive works through its slices all the same, and its messages arrive before the rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_run_while_rows_wait_and_messages_overtake_rows() {
    let store = Arc::new(Watched::default());
    store_numbers(store.as_ref());
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions { threads: LANES, ..DriveOptions::default() });
    let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) = drive.open(sub_plan("SELECT id FROM shop.sales.data").await).await.unwrap()
    else {
        panic!("rows of a table are worked off slice by slice");
    };
    assert!(slice_manifest.len() >= 10, "{slice_manifest:?}");
    let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    let close = CloseAfter { drained: true, slices: None, seconds: None };
    orders.send(Down { epoch: EpochId(0), number: 0, order: Order::Open { rung: PushdownLevel::Full, slices: slices.clone(), close } }).unwrap();

    // There is no reader, as behind a slow link.
    tokio::time::timeout(Duration::from_secs(60), store.has_read(slices.len())).await.expect("the lanes wait for a reader");
    let (mut done, mut before_rows, mut batches, mut rows, mut over) = (0, None, 0, 0, None);
    while over.is_none() || rows < ROWS {
        let message = tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap();
        match message {
            Message::Up(Up::Progress { done: more, .. }) => done += more.len(),
            Message::Up(Up::EpochDone(completed)) => over = Some(completed),
            Message::Up(_) => {}
            Message::Batch { batch, .. } => {
                before_rows.get_or_insert(done);
                batches += 1;
                rows += batch.num_rows() as i64;
            }
            other => panic!("{other:?}"),
        }
    }
    let completed = over.unwrap();
    assert_eq!((completed.slices.len(), completed.rows, completed.batches), (slices.len(), ROWS as u64, batches));
    // Each lane has at most one slice that it has not reported, and one is read ahead for each.
    assert!(before_rows.unwrap() + 2 * LANES >= slices.len(), "{before_rows:?} of {} slices were told of before the first rows", slices.len());
    assert!(batches as usize > slices.len() / 2, "{batches} batches: rows go off early, not two megabytes at a time");
}

/// Lets slices be read one by one.
#[derive(Debug, Default)]
pub(crate) struct Gated {
    inner: MemoryStore,
    let_in: Mutex<usize>,
    more: Condvar,
}

impl Gated {
    pub(crate) fn open(&self, slices: usize) {
        *self.let_in.lock() += slices;
        self.more.notify_all();
    }

    fn close(&self) {
        *self.let_in.lock() = 0;
    }

    fn wait(&self, key: &Key) {
        if key.as_str().contains(';') {
            let mut let_in = self.let_in.lock();
            self.more.wait_while_for(&mut let_in, |let_in| *let_in == 0, Duration::from_secs(60));
            *let_in = let_in.saturating_sub(1);
        }
    }
}

impl StoreLayer for Gated {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.inner)
    }

    fn before_read(&self, key: &Key) -> Result<()> {
        self.wait(key);
        Ok(())
    }
}

/// Another consumer takes nearly all memory in the middle of an epoch. Each slice is covered or returned, and returned
/// ones run later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_drive_finishes_begun_slices_and_returns_the_rest() {
    let store = Arc::new(Gated::default());
    let metadata = store_numbers(store.as_ref());
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions { threads: LANES, memory_limit: 64 << 20, ..DriveOptions::default() });
    let plan = sub_plan("SELECT count(*), sum(CAST(id AS DOUBLE)) FROM shop.sales.data").await;
    let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) = drive.open(plan).await.unwrap() else {
        panic!("a sum is worked off slice by slice")
    };
    let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    let close = CloseAfter { drained: true, slices: None, seconds: None };
    orders.send(Down { epoch: EpochId(7), number: 0, order: Order::Open { rung: PushdownLevel::Full, slices: slices.clone(), close } }).unwrap();
    // Another user takes nearly all of the drive's memory once the first slices are done.
    store.open(3);
    let (mut done, mut hog, mut stopped, mut counted, mut batches) = (BTreeSet::new(), None, None, 0, 0);
    let mut completed: Option<Completed> = None;
    while completed.as_ref().is_none_or(|completed| batches < completed.batches) {
        let message = tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap();
        match message {
            Message::Up(Up::Progress { done: more, .. }) => {
                done.extend(more.iter().map(|cost| cost.slice));
                if !done.is_empty() && hog.is_none() {
                    let taken = MemoryConsumer::new("somebody else").register(drive.memory());
                    taken.grow(60 << 20);
                    hog = Some(taken);
                }
            }
            Message::Up(Up::Stopped { epoch, remaining, accepts, .. }) => {
                assert_eq!((epoch, stopped.is_none()), (EpochId(7), true));
                assert!(accepts.is_none_or(|rung| rung < PushdownLevel::Full), "{accepts:?}");
                stopped = Some(remaining);
                // Now what it has begun can go on.
                store.open(slices.len());
            }
            Message::Up(Up::EpochDone(end)) => completed = Some(end),
            Message::Up(_) => {}
            Message::Batch { epoch, batch, .. } => {
                assert_eq!(epoch, EpochId(7));
                batches += 1;
                counted += batch.column(0).as_primitive::<arrow::datatypes::Int64Type>().values().iter().sum::<i64>();
            }
            other => panic!("{other:?}"),
        }
    }
    let (completed, remaining) = (completed.unwrap(), stopped.expect("it went on as if nothing had happened"));
    // Nothing twice, and nothing left out.
    let covered: BTreeSet<_> = completed.slices.iter().copied().collect();
    assert!(!covered.is_empty() && covered.len() < slices.len() && covered.is_superset(&done), "{covered:?} of {} slices", slices.len());
    assert!(remaining.iter().all(|slice| !covered.contains(slice)) && covered.len() + remaining.len() == slices.len(), "{covered:?}, {remaining:?}");
    let rows_of = |slice: &SliceId| metadata.stripe_rows(slice.0 as usize).unwrap() as i64;
    assert_eq!(counted, covered.iter().map(rows_of).sum::<i64>(), "the state is that of the slices which are covered");
    // What was given back is processed when there is memory again.
    drop(hog);
    orders.send(Down { epoch: EpochId(8), number: 0, order: Order::Open { rung: PushdownLevel::Full, slices: remaining.clone(), close } }).unwrap();
    let mut rest = 0;
    while counted + rest < ROWS {
        let message = tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap();
        match message {
            Message::Batch { epoch: EpochId(8), batch, .. } => {
                rest += batch.column(0).as_primitive::<arrow::datatypes::Int64Type>().values().iter().sum::<i64>()
            }
            Message::Up(Up::EpochDone(end)) => assert_eq!(end.slices.len(), remaining.len()),
            Message::Up(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(counted + rest, ROWS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_device_reports_only_its_own_queue() {
    // Two epochs on one core that is sixty times slower: each waits for the other about as long as it works. By this
    // machine's clock that is a hundred and twenty times the processor time.
    let store = Arc::new(MemoryStore::default());
    store_numbers(store.as_ref());
    let slow = Profile { speed_per_core: 1.0 / 60.0, cores: 1, ..Profile::shipped("server").unwrap() };
    let device = Some(Device { name: "slow".to_owned(), profile: slow });
    let drive = drive_over(store as _, DriveOptions { device, max_concurrent: 1, ..DriveOptions::default() });
    let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) =
        drive.open(sub_plan("SELECT count(*), max(CAST(id AS VARCHAR)) FROM shop.sales.data").await).await.unwrap()
    else {
        panic!("a greatest value of a table is worked off slice by slice");
    };
    let close = CloseAfter { drained: true, slices: None, seconds: None };
    for epoch in 0..2 {
        let slices = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).skip(epoch).step_by(2).collect();
        orders.send(Down { epoch: EpochId(epoch as u32), number: 0, order: Order::Open { rung: PushdownLevel::Full, slices, close } }).unwrap();
    }
    let (mut loads, mut over) = (Vec::new(), 0);
    while over < 2 {
        let message = tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap();
        match message {
            Message::Up(Up::Progress { load, .. }) => loads.push(load),
            Message::Up(Up::EpochDone(_)) => over += 1,
            _ => {}
        }
    }
    // The load is measured again with each millisecond of processor time, and is 1 before. Other processes on this
    // machine raise it.
    let most = loads.iter().copied().fold(1.0, f64::max);
    loads.sort_by(f64::total_cmp);
    assert!(loads.len() >= 10 && most > 1.2 && loads[loads.len() / 2] < 40.0, "{loads:?}");
}

/// Opens an epoch over these slices, which stays open.
pub(crate) fn opening(epoch: u32, rung: PushdownLevel, slices: &[SliceId]) -> Down {
    Down { epoch: EpochId(epoch), number: 0, order: Order::Open { rung, slices: slices.to_vec(), close: CloseAfter::TOLD } }
}

/// The refusal of an epoch: the pushdown level that the drive accepts, when to ask again, and why.
async fn refusal(messages: &mut (impl futures::Stream<Item = Result<Message>> + Unpin), refused: u32) -> (Option<PushdownLevel>, f64, Why) {
    loop {
        match tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap() {
            Message::Up(Up::Refused { epoch, accepts, again, why }) if epoch == EpochId(refused) => return (accepts, again, why),
            Message::Up(Up::Accepted { epoch } | Up::EpochDone(Completed { epoch, .. })) | Message::Batch { epoch, .. } => {
                assert_ne!(epoch, EpochId(refused), "it was to be refused")
            }
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_without_memory_or_time_names_the_level_it_accepts() {
    for why in [Why::Memory, Why::Speed] {
        let store = Arc::new(MemoryStore::default());
        store_numbers(store.as_ref());
        let busy = if why == Why::Speed { 1.0 } else { f64::INFINITY };
        let drive = drive_over(store as _, DriveOptions { threads: LANES, memory_limit: 64 << 20, max_load: busy, ..DriveOptions::default() });
        let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) =
            drive.open(sub_plan("SELECT sum(id % 1000000) FROM shop.sales.data").await).await.unwrap()
        else {
            panic!("a sum of a table is worked off slice by slice");
        };
        let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
        let hog = MemoryConsumer::new("somebody else").register(drive.memory());
        if why == Why::Memory {
            hog.grow(60 << 20);
        }
        orders.send(opening(0, PushdownLevel::Full, &slices)).unwrap();
        let (accepts, again, said) = refusal(&mut messages, 0).await;
        assert!(said == why && accepts == Some(PushdownLevel::Raw) && again > 0.0, "{accepts:?} in {again} s, as {said:?}");
        // What it says that it takes, it takes.
        orders.send(opening(1, PushdownLevel::Raw, &slices[..2])).unwrap();
        orders.send(Down { epoch: EpochId(1), number: 1, order: Order::Close { drain: true } }).unwrap();
        loop {
            match tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap() {
                Message::Up(Up::EpochDone(end)) => {
                    assert_eq!((end.epoch, end.slices.len()), (EpochId(1), 2));
                    break;
                }
                Message::Up(Up::Refused { epoch, .. }) => panic!("{epoch:?} was refused, too"),
                Message::EpochError { error, .. } => panic!("{}", error.report()),
                _ => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_delay_grows_with_the_queue_of_the_drive() {
    /// Those that such a drive takes on.
    const EPOCHS: u32 = 16;
    // Sixty times slower than this machine: what waits there is worth waiting for.
    let store = Arc::new(Gated::default());
    store_numbers(store.as_ref());
    let slow = Profile { speed_per_core: 1.0 / 60.0, cores: 1, ..Profile::shipped("server").unwrap() };
    let device = Some(Device { name: "slow".to_owned(), profile: slow });
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions { device, max_concurrent: 1, ..DriveOptions::default() });
    let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) =
        drive.open(sub_plan("SELECT count(*), sum(id % 1000000) FROM shop.sales.data").await).await.unwrap()
    else {
        panic!("a sum of a table is worked off slice by slice");
    };
    let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    assert!(slices.len() >= 10, "{slice_manifest:?}");
    // One slice shows what slices take.
    store.open(1000);
    orders.send(opening(0, PushdownLevel::Full, &slices[..1])).unwrap();
    orders.send(Down { epoch: EpochId(0), number: 1, order: Order::Close { drain: true } }).unwrap();
    let mut cost = None;
    loop {
        match tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap() {
            Message::Up(Up::Progress { done, .. }) => cost = cost.or(done.first().map(|done| done.cpu)),
            Message::Up(Up::EpochDone(_)) => break,
            _ => {}
        }
    }
    let cost = cost.expect("a slice that is done has its cost");
    // From now on nothing is done: as many epochs as it takes have one other slice each, and then all others.
    store.close();
    for epoch in 1..=EPOCHS {
        orders.send(opening(epoch, PushdownLevel::Full, &slices[1..2])).unwrap();
    }
    orders.send(opening(EPOCHS + 1, PushdownLevel::Full, &slices)).unwrap();
    let few = refusal(&mut messages, EPOCHS + 1).await;
    for epoch in 1..=EPOCHS {
        orders.send(Down { epoch: EpochId(epoch), number: 1, order: Order::Feed { slices: slices[1..].to_vec() } }).unwrap();
    }
    orders.send(opening(EPOCHS + 2, PushdownLevel::Full, &slices)).unwrap();
    let many = refusal(&mut messages, EPOCHS + 2).await;
    store.open(1 << 20);
    for ((accepts, again, why), waiting) in [(few, 1), (many, slices.len() - 1)] {
        assert_eq!((accepts, why), (Some(PushdownLevel::Raw), Why::Queue));
        let seconds = f64::from(EPOCHS) * waiting as f64 * cost;
        assert!((again - seconds.clamp(0.05, 30.0)).abs() < 1e-9, "{again} s for {seconds} s of work");
    }
    assert!(many.1 > few.1, "{} s, and then {} s", few.1, many.1);
}

/// The next message, whatever it is.
pub(crate) async fn heard(messages: &mut (impl futures::Stream<Item = Result<Message>> + Unpin)) -> Message {
    tokio::time::timeout(Duration::from_secs(60), messages.next()).await.expect("the drive is silent").unwrap().unwrap()
}

/// Work that was not measured counts as a load of 1. So a drive accepts epochs until its own slices have shown what
/// they take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drive_refuses_by_measured_load_only() {
    // Unmeasured work counts as 1. Two epochs on one core wait for each other about as long as they work, which is 2,
    // and more where other processes use this machine.
    for (max_load, refuses) in [(1.1, true), (f64::INFINITY, false)] {
        let store = Arc::new(Gated::default());
        store_numbers(store.as_ref());
        let slow = Profile { speed_per_core: 0.5, cores: 1, ..Profile::shipped("server").unwrap() };
        let device = Some(Device { name: "slow".to_owned(), profile: slow });
        let drive = drive_over(Arc::clone(&store) as _, DriveOptions { device, max_concurrent: 1, max_load, ..DriveOptions::default() });
        // So much of each row that every slice is a measurement.
        let plan = sub_plan("SELECT count(*), max(md5(CAST(id AS VARCHAR))) FROM shop.sales.data").await;
        let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) = drive.open(plan).await.unwrap() else {
            panic!("a greatest value is worked off slice by slice");
        };
        let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
        let open = |epoch| {
            let order = Order::Open { rung: PushdownLevel::Full, slices: slices.clone(), close: CloseAfter::DRAINED };
            orders.send(Down { epoch: EpochId(epoch), number: 0, order }).unwrap();
        };
        // While nothing has been done, both are taken on.
        open(0);
        open(1);
        let mut accepted = BTreeSet::new();
        while accepted.len() < 2 {
            match heard(&mut messages).await {
                Message::Up(Up::Accepted { epoch }) => {
                    accepted.insert(epoch);
                }
                Message::Up(Up::Progress { done, .. }) => assert!(done.is_empty(), "{done:?}"),
                other => panic!("{other:?}"),
            }
        }
        store.open(1 << 20);
        // Two are there all the time: another one for each that ends, because it is done or because it was stopped.
        // Where the drive does not refuse, it is enough that these go well.
        let enough = if refuses { 60 } else { 6 };
        let mut next = 2;
        let refused = loop {
            match heard(&mut messages).await {
                Message::Up(Up::Refused { accepts, again, why, .. } | Up::Stopped { accepts, again, why, .. }) if !refuses || why != Why::Speed => {
                    panic!("{accepts:?} in {again} s, as {why:?}")
                }
                Message::Up(Up::Refused { epoch, accepts, again, .. }) => {
                    assert!(epoch >= EpochId(2) && accepts == Some(PushdownLevel::Raw) && again > 0.0, "{epoch:?}: {accepts:?} in {again} s");
                    break true;
                }
                Message::Up(Up::Stopped { accepts, again, .. }) => assert!(accepts == Some(PushdownLevel::Raw) && again > 0.0, "{accepts:?} in {again} s"),
                Message::Up(Up::EpochDone(_)) if next == enough => break false,
                Message::Up(Up::EpochDone(_)) => {
                    open(next);
                    next += 1;
                }
                Message::Up(Up::Accepted { .. } | Up::Progress { .. }) | Message::Batch { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(refused, refuses, "{next} epochs were opened");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_on_a_slow_core_take_their_cost_in_wall_time() {
    const SPEED: f64 = 0.05;
    let mut costs = Vec::new();
    for device in [false, true] {
        let store = Arc::new(MemoryStore::default());
        store_numbers(store.as_ref());
        let slow = Profile { speed_per_core: SPEED, cores: 1, ..Profile::shipped("server").unwrap() };
        let device = device.then(|| Device { name: "slow".to_owned(), profile: slow });
        let is_slow = device.is_some();
        let drive = drive_over(store as _, DriveOptions { device, ..DriveOptions::default() });
        let plan = sub_plan("SELECT count(*), max(md5(CAST(id AS VARCHAR))) FROM shop.sales.data").await;
        let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) = drive.open(plan).await.unwrap() else {
            panic!("a greatest value is worked off slice by slice");
        };
        let slices = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
        let began = Instant::now();
        orders.send(Down { epoch: EpochId(0), number: 0, order: Order::Open { rung: PushdownLevel::Full, slices, close: CloseAfter::DRAINED } }).unwrap();
        let end = loop {
            if let Message::Up(Up::EpochDone(end)) = heard(&mut messages).await {
                break end;
            }
        };
        let took = began.elapsed().as_secs_f64();
        // Others that use this machine only make it later.
        assert!(!is_slow || took > 0.9 * end.cpu, "{took} s for {} s of the core", end.cpu);
        costs.push(end.cpu);
    }
    // Processor times, whatever waits: twenty times as much of the slow core, give or take what two
    // runs of the same differ by.
    assert!(costs[0] > 0.0 && costs[1] > 0.4 * costs[0] / SPEED, "{costs:?}");
}

/// Slices that a lane has begun stay where they are. Each slice counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_not_begun_move_from_one_epoch_to_another() {
    let store = Arc::new(Gated::default());
    let metadata = store_numbers(store.as_ref());
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions { threads: LANES, ..DriveOptions::default() });
    let plan = sub_plan("SELECT count(*), sum(id % 1000) FROM shop.sales.data").await;
    let OpenReply::Session(Session { slice_manifest, orders, mut messages, .. }) = drive.open(plan).await.unwrap() else {
        panic!("a sum is worked off slice by slice")
    };
    let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    assert!(slices.len() >= 10, "{slice_manifest:?}");
    let (kept, last) = slices.split_at(slices.len() - 5);
    orders.send(opening(0, PushdownLevel::Full, &slices)).unwrap();
    // Each lane has begun a slice, and waits for it.
    let begun: BTreeSet<SliceId> = loop {
        match heard(&mut messages).await {
            Message::Up(Up::Progress { running, .. }) if running.len() == LANES => break running.into_iter().map(|(slice, _)| slice).collect(),
            Message::Up(Up::Progress { .. } | Up::Accepted { .. }) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(begun.iter().all(|slice| kept.contains(slice)), "in their order: {begun:?}");
    // The last five, and with them what can't be had.
    let wanted = last.iter().chain(&begun).copied().collect();
    orders.send(Down { epoch: EpochId(0), number: 1, order: Order::Take { slices: wanted } }).unwrap();
    let taken = loop {
        match heard(&mut messages).await {
            Message::Up(Up::Taken { epoch, number, slices }) => {
                assert_eq!((epoch, number), (EpochId(0), 1));
                break slices;
            }
            Message::Up(Up::Progress { done, .. }) => assert!(done.is_empty(), "{done:?}"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(taken, last, "those that were not begun, and no others");
    // Another epoch gets some of them with its opening, and more when it is open.
    orders.send(Down { epoch: EpochId(0), number: 2, order: Order::Close { drain: true } }).unwrap();
    orders.send(opening(1, PushdownLevel::Full, &taken[..2])).unwrap();
    orders.send(Down { epoch: EpochId(1), number: 1, order: Order::Feed { slices: taken[2..].to_vec() } }).unwrap();
    orders.send(Down { epoch: EpochId(1), number: 2, order: Order::Close { drain: true } }).unwrap();
    store.open(1 << 20);
    // Of each epoch: its rows and their sum, the batches that came, and its end.
    let mut epochs: [(i64, i64, u32, Option<Completed>); 2] = [(0, 0, 0, None), (0, 0, 0, None)];
    while epochs.iter().any(|(.., batches, end)| end.as_ref().is_none_or(|end| *batches < end.batches)) {
        match heard(&mut messages).await {
            Message::Batch { epoch: EpochId(epoch), batch, .. } => {
                let sum_of = |column: usize| batch.column(column).as_primitive::<arrow::datatypes::Int64Type>().iter().flatten().sum::<i64>();
                let (rows, sum, batches, _) = &mut epochs[epoch as usize];
                (*rows, *sum, *batches) = (*rows + sum_of(0), *sum + sum_of(1), *batches + 1);
            }
            Message::Up(Up::EpochDone(end)) => {
                let at = end.epoch.0 as usize;
                assert!(epochs[at].3.replace(end).is_none(), "it ended twice");
            }
            Message::Up(Up::Progress { .. } | Up::Accepted { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    for ((rows, _, _, end), covered) in epochs.iter().zip([kept, last]) {
        let mut ended_with = end.as_ref().unwrap().slices.clone();
        ended_with.sort_unstable();
        assert_eq!(ended_with, covered, "exactly the slices that it was left with");
        assert_eq!(*rows, covered.iter().map(|slice| metadata.stripe_rows(slice.0 as usize).unwrap() as i64).sum::<i64>());
    }
    let whole: i64 = (0..ROWS).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) % 1000).sum();
    assert_eq!((epochs[0].0 + epochs[1].0, epochs[0].1 + epochs[1].1), (ROWS, whole));
}

/// The engine plans the part below an aggregation when an epoch first needs it. Its columns are those that the drive
/// announced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filter_level_of_an_aggregation_is_planned_on_first_use() {
    let store = Arc::new(MemoryStore::default());
    store_numbers(store.as_ref());
    let plan = sub_plan("SELECT id % 3 AS third, kind, count(*), max(id) FROM shop.sales.data WHERE id > 0 GROUP BY id % 3, kind").await;

    let pool = Arc::new(GreedyMemoryPool::new(64 << 20));
    let engine = Arc::new(Engine::new("drive-0".to_owned(), Arc::new(Reader::new(Arc::clone(&store) as _)), pool, 1, 1).unwrap());
    let Taken::Split(divided) = engine.take(plan.clone()).await.unwrap() else { panic!("it has several slices") };
    assert!(divided.fetcher(PushdownLevel::Full).is_ok() && divided.fetcher(PushdownLevel::Raw).is_ok());
    let error = divided.fetcher(PushdownLevel::Filter).unwrap_err();
    assert!(error.to_string().contains("before its plan was ready"), "{error}");
    divided.ready(PushdownLevel::Filter).await.unwrap();
    assert!(divided.fetcher(PushdownLevel::Filter).is_ok());

    let drive = drive_over(store, DriveOptions { threads: LANES, ..DriveOptions::default() });
    let OpenReply::Session(Session { schema, lower, slice_manifest, orders, mut messages, .. }) = drive.open(plan).await.unwrap() else {
        panic!("it has several slices")
    };
    let lower = lower.expect("an aggregation has a lower part");
    let slices: Vec<_> = slice_manifest.iter().map(|stripe| SliceId(stripe.stripe)).collect();
    let (one, other) = slices.split_at(slices.len() / 2);
    let close = CloseAfter { drained: true, slices: None, seconds: None };
    for (epoch, rung, slices) in [(0, PushdownLevel::Filter, one), (1, PushdownLevel::Full, other)] {
        orders.send(Down { epoch: EpochId(epoch), number: 0, order: Order::Open { rung, slices: slices.to_vec(), close } }).unwrap();
    }
    let (mut over, mut due, mut came) = (0, 0, [0, 0]);
    while over < 2 || came[0] + came[1] < due {
        match heard(&mut messages).await {
            Message::Up(Up::EpochDone(completed)) => (over, due) = (over + 1, due + completed.rows),
            Message::Batch { epoch, batch, .. } => {
                let announced = if epoch == EpochId(0) { &lower } else { &schema };
                let columns = |schema: &Schema| schema.fields().iter().map(|f| (f.name().clone(), f.data_type().clone())).collect::<Vec<_>>();
                assert_eq!(columns(&batch.schema()), columns(announced), "{epoch:?}");
                came[epoch.0 as usize] += batch.num_rows() as u64;
            }
            Message::Up(_) => {}
            other => panic!("{other:?}"),
        }
    }
    // About half of the numbers are above zero; of states there are three for each lane and epoch at most.
    assert!(came[0] > ROWS as u64 / 5 && (1..=3 * LANES as u64).contains(&came[1]), "{came:?}");
}
