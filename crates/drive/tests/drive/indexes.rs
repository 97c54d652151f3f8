//! Indexes of one drive: what happens when space is short, when the table is another one, and when an index is not
//! wanted any more.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::common::*;
use arrow::array::{ArrayRef, Float64Array, Int64Array, StringArray};
use arrow::compute::concat_batches;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use skytether_common::{Error, Key, Kind, PartitionName, Result};
use skytether_drive::{Drive, DriveOptions, Storage};
use skytether_index::{Definition, Phase, State};
use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions};
use skytether_store::fault::{Fault, FaultStore, Operation, Rule, When};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op, SliceStore, StoreLayer};
use uuid::Uuid;

const SQL: &str = "SELECT id, price FROM shop.sales.data WHERE price = 3.5";

fn of() -> PartitionName {
    partition(&dataset("shop.sales"), "data")
}

fn at() -> PartitionName {
    skytether_index::partition(&of(), "price")
}

async fn define(drive: &Drive) {
    let value = Definition::new(vec!["price".into()], vec!["id".into()]).encode().unwrap().into();
    drive.apply(vec![Op::Put { key: at().key().unwrap(), value, expect: Expect::Absent }]).await.unwrap();
}

/// When the index is neither waiting nor being built.
async fn settled(drive: &Drive) -> State {
    for _ in 0..1200 {
        let state = drive.indexes().await.unwrap().remove(0);
        if !matches!(state.phase, Phase::Waiting | Phase::Building) {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{:?}", drive.indexes().await);
}

/// Rows of the query, and how many indexes it used.
async fn asked(drive: &Arc<Drive>) -> (Vec<String>, usize) {
    let (rows, annotation) = ask(drive.as_ref(), SQL).await;
    (lines(&rows), annotation.indexes.len())
}

fn slices_of_index(store: &dyn SliceStore) -> usize {
    store.list(&format!("{};", at().key().unwrap()), None, 1000).unwrap().len()
}

fn disk(dir: &std::path::Path, capacity: Option<u64>) -> Arc<dyn SliceStore> {
    let create = Some(DriveIdentity { id: Uuid::from_u128(2), name: "drive-2".into() });
    Arc::new(DiskStore::open(dir, OpenOptions { create, capacity, ..OpenOptions::default() }).unwrap())
}

/// However full the disk is that the tests run on.
fn anything_goes() -> DriveOptions {
    DriveOptions { index_free: 0.0, ..DriveOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_get_the_space_of_an_index() {
    let dir = tempfile::tempdir().unwrap();
    let used = {
        let store = disk(dir.path(), None);
        fill(store.as_ref());
        store.usage().unwrap().value_bytes
    };
    let capacity = used + (1 << 20);
    let store = disk(dir.path(), Some(capacity));
    let drive = drive_over(Arc::clone(&store), anything_goes());
    let (due, none) = asked(&drive).await;
    assert!(!due.is_empty() && none == 0);
    define(&drive).await;
    let state = settled(&drive).await;
    assert_eq!((state.phase, state.rows, state.stripes.0), (Phase::Ready, SALES as u64, state.stripes.1), "{state:?}");
    assert!(state.bytes > 0 && slices_of_index(store.as_ref()) >= 2);
    assert_eq!(asked(&drive).await, (due.clone(), 1));

    // There is no room for both this value and the index.
    let room = capacity - store.usage().unwrap().value_bytes;
    let value = Bytes::from(vec![7; usize::try_from(room + state.bytes / 2).unwrap()]);
    let put = |key: &str| vec![Op::Put { key: Key::new(key).unwrap(), value: value.clone(), expect: Expect::Absent }];
    drive.apply(put("other")).await.unwrap();
    let state = settled(&drive).await;
    assert!(state.phase == Phase::Dropped && state.bytes == 0 && state.why.is_some(), "{state:?}");
    assert_eq!((slices_of_index(store.as_ref()), asked(&drive).await), (0, (due.clone(), 0)));
    // What no index makes room for is refused.
    assert_eq!(drive.apply(put("another")).await.unwrap_err().kind(), skytether_common::Kind::Exhausted);
    drop((drive, store));

    // Opened again it has no more room than before, and says so.
    let store = disk(dir.path(), Some(capacity));
    let drive = drive_over(Arc::clone(&store), anything_goes());
    let state = settled(&drive).await;
    assert!(state.phase == Phase::Dropped && slices_of_index(store.as_ref()) == 0, "{state:?}");
    assert_eq!(asked(&drive).await, (due, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_leave_the_required_space_free() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path(), Some(64 << 20));
    fill(store.as_ref());
    let drive = drive_over(Arc::clone(&store), DriveOptions { index_free: 1.0, ..DriveOptions::default() });
    define(&drive).await;
    let state = settled(&drive).await;
    assert!(state.phase == Phase::Dropped && state.why.as_ref().is_some_and(|why| why.contains("free")), "{state:?}");
    assert_eq!(slices_of_index(store.as_ref()), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_of_other_content_is_not_used_and_is_rebuilt() {
    let store: Arc<dyn SliceStore> = Arc::new(MemoryStore::new());
    fill(store.as_ref());
    let drive = drive_over(Arc::clone(&store), DriveOptions::default());
    define(&drive).await;
    assert_eq!(settled(&drive).await.phase, Phase::Ready);
    drop(drive);
    // The same partition with its rows twice, which no writer should do.
    let old = store.list(of().key().unwrap().as_str(), None, 1000).unwrap();
    store.apply(old.into_iter().map(|entry| Op::Delete { key: entry.key, expect: Expect::Any }).collect()).unwrap();
    store_table(store.as_ref(), &of(), &concat_batches(&sales().schema(), &[sales(), sales()]).unwrap(), 8 << 10);
    let drive = drive_over(Arc::clone(&store), DriveOptions::default());
    let twice = asked(&drive).await.0;
    let state = settled(&drive).await;
    assert_eq!((state.phase, state.rows), (Phase::Ready, 2 * SALES as u64), "{state:?}");
    let (rows, used) = asked(&drive).await;
    assert_eq!((&rows, used), (&twice, 1));
    assert!(rows.chunks(2).all(|pair| pair[0] == pair[1]) && !rows.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_partition_gets_no_index() {
    let store: Arc<dyn SliceStore> = Arc::new(MemoryStore::new());
    fill(store.as_ref());
    let before = store.usage().unwrap().keys;
    let drive = drive_over(Arc::clone(&store), DriveOptions::default());
    for pause in [0, 1, 3, 10, 30, 100] {
        define(&drive).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
        // As when a data set is replaced.
        drive.apply(vec![Op::Delete { key: at().key().unwrap(), expect: Expect::Any }]).await.unwrap();
        let left = store.list(&format!("{};", at().key().unwrap()), None, 1000).unwrap();
        drive.apply(left.into_iter().map(|entry| Op::Delete { key: entry.key, expect: Expect::Any }).collect()).await.unwrap();
        assert!(drive.indexes().await.unwrap().is_empty());
    }
    // Nor does it come back.
    define(&drive).await;
    assert_eq!(settled(&drive).await.phase, Phase::Ready);
    drive.apply(vec![Op::Delete { key: at().key().unwrap(), expect: Expect::Any }]).await.unwrap();
    assert_eq!(asked(&drive).await.1, 0);
    drop(drive);
    let left = store.list(&format!("{};", at().key().unwrap()), None, 1000).unwrap();
    assert_eq!(store.usage().unwrap().keys, before + left.len() as u64, "only what the last one was, which a host collects");
}

/// What is called in a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Apply,
    Read,
    Stat,
}

type Hook = (Call, String, Box<dyn FnOnce(&MemoryStore) + Send>);

/// A store in which something happens just before the first call of some kind about a key that begins with some text,
/// and that has no room for `other` the first time.
#[derive(Default)]
struct Hooked {
    inner: MemoryStore,
    hook: Mutex<Option<Hook>>,
    refused: Mutex<bool>,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

impl Hooked {
    fn before(&self, call: Call, prefix: impl Into<String>, hook: impl FnOnce(&MemoryStore) + Send + 'static) {
        *self.hook.lock() = Some((call, prefix.into(), Box::new(hook)));
    }

    fn called(&self, call: Call, mut keys: impl Iterator<Item = String>) {
        let hook = {
            let mut hook = self.hook.lock();
            let hit = hook.as_ref().is_some_and(|(on, prefix, _)| *on == call && keys.any(|key| key.starts_with(prefix)));
            if hit { hook.take() } else { None }
        };
        if let Some((_, _, hook)) = hook {
            hook(&self.inner);
        }
    }
}

impl StoreLayer for Hooked {
    fn inner(&self) -> Result<&dyn SliceStore> {
        Ok(&self.inner)
    }

    fn before_apply(&self, batch: &[Op]) -> Result<()> {
        if batch.iter().any(|op| op.key().as_str() == "other") && !std::mem::replace(&mut *self.refused.lock(), true) {
            return Err(Error::exhausted("the disk is full"));
        }
        self.called(Call::Apply, batch.iter().map(|op| op.key().to_string()));
        Ok(())
    }

    fn before_read(&self, key: &Key) -> Result<()> {
        self.called(Call::Read, std::iter::once(key.to_string()));
        Ok(())
    }

    fn before_stat(&self, key: &Key) -> Result<()> {
        self.called(Call::Stat, std::iter::once(key.to_string()));
        Ok(())
    }
}

fn hooked() -> (Arc<Hooked>, Arc<Drive>) {
    let store = Arc::new(Hooked::default());
    fill(&store.inner);
    let drive = drive_over(Arc::clone(&store) as _, anything_goes());
    (store, drive)
}

fn slices_prefix() -> String {
    format!("{};", at().key().unwrap())
}

/// Writes a value from any thread that has no room unless an index is dropped.
fn needs_room(drive: &Arc<Drive>, runtime: &tokio::runtime::Handle) {
    let put = vec![Op::Put { key: Key::new("other").unwrap(), value: vec![1; 10].into(), expect: Expect::Absent }];
    let drive = Arc::clone(drive);
    runtime.block_on(async move { drive.apply(put).await }).unwrap();
}

/// When the index is ready, however it gets there.
async fn ready(drive: &Drive) -> State {
    let mut last = None;
    for _ in 0..1200 {
        last = drive.indexes().await.unwrap().pop();
        if last.as_ref().is_some_and(|state| state.phase == Phase::Ready) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    last.filter(|state| state.phase == Phase::Ready).unwrap_or_else(|| panic!("it is not ready"))
}

/// The index is dropped while its first segment is being written. What was written is deleted, and never used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_build_does_not_take_space_freed_for_a_write() {
    let (store, drive) = hooked();
    let (due, _) = asked(&drive).await;
    let (on, runtime) = (Arc::clone(&drive), tokio::runtime::Handle::current());
    // It is about to write its first segment.
    store.before(Call::Apply, slices_prefix(), move |_| needs_room(&on, &runtime));
    define(&drive).await;
    let state = settled(&drive).await;
    assert!(state.phase == Phase::Dropped && state.bytes == 0, "{state:?}");
    // What was on its way is taken off again, and never used.
    for _ in 0..200 {
        if slices_of_index(&store.inner) == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!((slices_of_index(&store.inner), asked(&drive).await), (0, (due, 0)));
    assert_eq!(settled(&drive).await.phase, Phase::Dropped);
}

/// The query reads the index while a write needs its space. The answer is right without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn query_during_an_index_drop_does_not_rebuild_the_index() {
    let (store, drive) = hooked();
    let (due, _) = asked(&drive).await;
    define(&drive).await;
    assert_eq!(settled(&drive).await.phase, Phase::Ready);
    let (on, runtime) = (Arc::clone(&drive), tokio::runtime::Handle::current());
    store.before(Call::Read, slices_prefix(), move |_| needs_room(&on, &runtime));
    assert_eq!(asked(&drive).await, (due, 0));
    assert!(store.hook.lock().is_none(), "the query read the index");
    // More often than the builder looks for something to do.
    for _ in 0..60 {
        tokio::time::sleep(Duration::from_millis(25)).await;
        let state = drive.indexes().await.unwrap().remove(0);
        assert!(state.phase == Phase::Dropped && slices_of_index(&store.inner) == 0, "{state:?}");
    }
}

/// That index is reported as failed, with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_index_definition_does_not_block_other_indexes() {
    let (store, drive) = hooked();
    let first = skytether_index::partition(&of(), "first").key().unwrap();
    let key = first.clone();
    let spoil = vec![Op::Put { key: first.clone(), value: Bytes::from_static(b"nothing"), expect: Expect::Any }];
    store.before(Call::Stat, first.to_string(), move |store| drop(store.apply(spoil).unwrap()));
    let value: Bytes = Definition::new(vec!["price".into()], vec!["id".into()]).encode().unwrap().into();
    let put = |key: Key| Op::Put { key, value: value.clone(), expect: Expect::Any };
    // In this order, which is that of their keys.
    drive.apply(vec![put(key), put(at().key().unwrap())]).await.unwrap();
    assert_eq!(ready(&drive).await.name, "price");
    let states = drive.indexes().await.unwrap();
    assert!(states[0].name == "first" && states[0].phase == Phase::Failed && states[0].why.is_some(), "{states:?}");
    // After another definition it is built as well.
    drive.apply(vec![put(first.clone())]).await.unwrap();
    assert_eq!(settled(&drive).await.phase, Phase::Ready);
    // An index whose definition is gone is forgotten, until it is defined again.
    store.inner.apply(vec![Op::Delete { key: first.clone(), expect: Expect::Any }]).unwrap();
    drive.apply(vec![Op::Delete { key: at().key().unwrap(), expect: Expect::Any }]).await.unwrap();
    let other = skytether_index::partition(&of(), "zero").key().unwrap();
    let gone = other.clone();
    store.before(Call::Stat, other.to_string(), move |store| drop(store.apply(vec![Op::Delete { key: gone, expect: Expect::Any }]).unwrap()));
    drive.apply(vec![put(other)]).await.unwrap();
    for _ in 0..400 {
        if drive.indexes().await.unwrap().iter().all(|state| state.name != "zero") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("{:?}", drive.indexes().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repaired_slice_gets_its_index_built() {
    let store: Arc<dyn SliceStore> = Arc::new(MemoryStore::new());
    fill(store.as_ref());
    let key = of().slice_key(3).unwrap();
    let slice = store.get(&key).unwrap();
    let mut damaged = slice.to_vec();
    damaged.iter_mut().for_each(|byte| *byte ^= 0x55);
    let put = |value: Bytes| vec![Op::Put { key: key.clone(), value, expect: Expect::Any }];
    store.apply(put(damaged.into())).unwrap();
    let drive = drive_over(Arc::clone(&store), DriveOptions::default());
    define(&drive).await;
    let state = settled(&drive).await;
    assert!(state.phase == Phase::Failed && state.why.is_some(), "{state:?}");
    // As a scrub does.
    drive.apply(put(slice)).await.unwrap();
    let state = ready(&drive).await;
    assert!(state.rows == SALES as u64 && state.why.is_none(), "{state:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transient_disk_error_delays_the_build_only() {
    let store = FaultStore::new(MemoryStore::new());
    fill(store.inner());
    store.add(Rule::new(Operation::Get, When::Nth(2), Fault::Fail(Kind::Unavailable)).under(format!("{};", of().key().unwrap())));
    let store = Arc::new(store);
    let drive = drive_over(Arc::clone(&store) as _, DriveOptions::default());
    define(&drive).await;
    assert_eq!(ready(&drive).await.rows, SALES as u64);
    assert_eq!(store.injected(), 1);
}

/// With too little memory the query scans, and its answer is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_search_reserves_memory_or_falls_back_to_a_scan() {
    const ROWS: i64 = 400_000;
    let store: Arc<dyn SliceStore> = Arc::new(MemoryStore::new());
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(0..ROWS))),
        ("kind", Arc::new(StringArray::from_iter((0..ROWS).map(|n| Some(["a", "b"][n as usize % 2]))))),
        ("price", Arc::new(Float64Array::from_iter_values((0..ROWS).map(|n| (n * 7919 % 400_009) as f64)))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let rows = RecordBatch::try_new(sales().schema(), rows.columns().to_vec()).unwrap();
    store_table(store.as_ref(), &of(), &rows, 64 << 10);
    let drive = drive_over(Arc::clone(&store), DriveOptions { memory_limit: 16 << 20, ..anything_goes() });
    let count = |low: i64, high: i64| format!("SELECT count(*), sum(id) FROM shop.sales.data WHERE price BETWEEN {low}.0 AND {high}.0");
    let ranges = [(1000, 2000), (1000, 120_000)];
    let mut due = Vec::new();
    for (low, high) in ranges {
        due.push(lines(&ask(drive.as_ref(), &count(low, high)).await.0));
    }
    define(&drive).await;
    assert_eq!(settled(&drive).await.phase, Phase::Ready);
    for ((low, high), (due, used)) in ranges.into_iter().zip(due.iter().zip([1, 0])) {
        let (rows, annotation) = ask(drive.as_ref(), &count(low, high)).await;
        assert_eq!((&lines(&rows), annotation.indexes.len()), (due, used), "{low} to {high}");
    }
    assert_eq!(drive.memory().reserved(), 0, "what a search took is given back");
    // With more of it the index serves the second as well.
    let drive = drive_over(store, anything_goes());
    let (rows, annotation) = ask(drive.as_ref(), &count(1000, 120_000)).await;
    assert_eq!((lines(&rows), annotation.indexes.len()), (due[1].clone(), 1));
}
